/* SPDX-License-Identifier: Apache-2.0 */
/* Layout of a block:
 *
 *     struct header
 *     i32 tokens (n_tokens), padded to 8 bytes
 *     for each store: struct store_header, then for each group
 *         i32 positions (n_slots) and f32 scores (n_slots) where the store has them,
 *         f32 sums of V (v_heads of the group, v_dim) where the policy keeps them,
 *         the slots (n_slots, slot_bytes), padded to 8 bytes
 *
 * Positions and scores of a sequence at rest lie in its seat (not in the peak region): prompts that
 * are being read are not saved. */

#include "engine/kv/snapshot.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { VERSION = 1, HAS_POS = 1, HAS_SCORE = 2, HAS_SUM = 4, SUM_SHIFT = 8, BUFFER = 256 << 10 };

static const char magic[8] = "PIPITSEQ";

struct header {
    char magic[8];
    uint32_t version;
    int32_t n_stores;
    char identity[64];
    char policy[POLICY_TEXT_MAX];
    int32_t n_tokens;
    int32_t n_prompt;
    int32_t n_slots;
    int32_t budget;
    int64_t n_evicted;
    uint64_t bytes; /* of the block */
};

struct store_header {
    int32_t layer;
    int32_t n_groups;
    int32_t n_slots;
    uint32_t flags;
    uint64_t slot_bytes;
};

_Static_assert(sizeof(struct header) == 8 + 8 + 64 + POLICY_TEXT_MAX + 32, "no padding");
_Static_assert(sizeof(struct store_header) == 24, "no padding");

static uint64_t pad8(uint64_t n)
{
    return (n + 7) & ~UINT64_C(7);
}

/* The flag, and above it the floats of one group's sums. */
static uint32_t sum_flags(const struct shape *s, const struct policy *p, int32_t variant,
                          int32_t store)
{
    const struct ops_kv_layout *l = shape_layout(s, variant, store);

    return shape_keeps_sum(s, p, store) ? HAS_SUM | (uint32_t)(l->v_heads * l->v_dim) << SUM_SHIFT
                                        : 0u;
}

static uint64_t n_sums(const struct store_header *h)
{
    return h->flags >> SUM_SHIFT;
}

/* What a store of a sequence at rest has. */
static struct store_header describe(const struct cache *c, const struct cache_seq *q, int32_t store,
                                    int32_t n_slots)
{
    const struct shape *s = &c->shape;
    bool ring = s->seats[store].ring > 0;
    bool evicts = shape_evicts(s, &q->policy, store);

    return (struct store_header){
        .layer = s->config.stores[store].layer,
        .n_groups = s->seats[store].n_groups,
        .n_slots = n_slots,
        .flags = (ring || evicts ? HAS_POS : 0u) | (evicts && q->place->scores ? HAS_SCORE : 0u) |
                 sum_flags(s, &q->policy, q->variant, store),
        .slot_bytes = ops_kv_slot_bytes(shape_layout(s, q->variant, store)),
    };
}

/* Of a group, what lies before its slots. */
static uint64_t state_bytes(const struct store_header *h)
{
    uint64_t n = (uint64_t)h->n_slots;

    return pad8(n * (h->flags & HAS_POS ? sizeof(int32_t) : 0)) +
           pad8(n * (h->flags & HAS_SCORE ? sizeof(float) : 0)) + pad8(n_sums(h) * sizeof(float));
}

static uint64_t slots_bytes(const struct store_header *h)
{
    return (uint64_t)h->n_slots * h->slot_bytes;
}

static uint64_t group_bytes(const struct store_header *h)
{
    return state_bytes(h) + pad8(slots_bytes(h));
}

static uint64_t store_bytes(const struct store_header *h)
{
    return sizeof(*h) + (uint64_t)h->n_groups * group_bytes(h);
}

uint64_t snapshot_bytes(const struct cache *c, int32_t seat)
{
    const struct cache_seq *q = &c->seqs[seat];
    uint64_t sum = sizeof(struct header) + pad8((uint64_t)q->n_tokens * sizeof(int32_t));

    for (int32_t i = 0; i < c->shape.config.n_stores; i++) {
        struct store_header h = describe(c, q, i, cache_store_slots(c, seat, i));

        sum += store_bytes(&h);
    }
    return sum;
}

/* ---- one group, either way ------------------------------------------------------------------- */

struct copier {
    struct cache *c;
    uint8_t *buf;                     /* (BUFFER, or one slot's bytes where that is more) */
    int other;                        /* what sink or source said, when it failed */
    const struct snapshot_sink *sink; /* saving, else NULL */
    /* Loading: the next byte in what is held, and in the block. */
    const struct snapshot_source *source;
    const uint8_t *held;
    uint64_t at;
};

static uint64_t buffer_bytes(uint64_t slot_bytes)
{
    return slot_bytes > BUFFER ? slot_bytes : BUFFER;
}

static int put(struct copier *x, const void *data, uint64_t n)
{
    x->other = x->sink->write(x->sink->arg, data, (size_t)n);
    return x->other;
}

/* Up to the next multiple of 8. */
static int put_pad(struct copier *x, uint64_t n)
{
    static const uint8_t zeros[8];

    return pad8(n) > n ? put(x, zeros, pad8(n) - n) : 0;
}

static int save_array(struct copier *x, const void *device, uint64_t bytes)
{
    const struct backend_ops *ops = x->c->shape.config.ops;
    const uint8_t *from = device;
    int r = 0;

    for (uint64_t done = 0; !r && done < bytes; done += BUFFER) {
        uint64_t n = bytes - done < BUFFER ? bytes - done : BUFFER;

        r = ops->read(x->c->be, x->buf, from + done, n);
        r = r ? r : put(x, x->buf, n);
    }
    return r ? r : put_pad(x, bytes);
}

static int load_array(struct copier *x, void *device, uint64_t bytes)
{
    int r = x->c->shape.config.ops->write(x->c->be, device, x->held, bytes);

    x->held += pad8(bytes);
    x->at += pad8(bytes);
    return r;
}

static int copy_array(struct copier *x, void *device, uint64_t bytes)
{
    return x->sink ? save_array(x, device, bytes) : load_array(x, device, bytes);
}

static int copy_slots(struct copier *x, const struct store_header *h, const struct ops_kv *kv,
                      int32_t group)
{
    const struct backend_ops *ops = x->c->shape.config.ops;
    int32_t most = (int32_t)(buffer_bytes(h->slot_bytes) / h->slot_bytes);
    struct ops_kv_slots slots = {.kv = kv, .group = group, .host = x->buf};
    int r = 0;

    for (; !r && slots.slot0 < h->n_slots; slots.slot0 += most) {
        slots.n_slots = h->n_slots - slots.slot0 < most ? h->n_slots - slots.slot0 : most;
        uint64_t bytes = (uint64_t)slots.n_slots * h->slot_bytes;

        if (x->sink) {
            r = ops->kv_export(x->c->be, &slots);
            r = r ? r : put(x, x->buf, bytes);
        } else {
            uint64_t from = x->at + (uint64_t)slots.slot0 * h->slot_bytes;

            x->other = x->source->read(x->source->arg, from, x->buf, (size_t)bytes);
            r = x->other ? x->other : ops->kv_import(x->c->be, &slots);
        }
    }
    x->at += pad8(slots_bytes(h));
    return r || !x->sink ? r : put_pad(x, slots_bytes(h));
}

static int copy_group(struct copier *x, const struct store_header *h, const struct ops_kv *kv,
                      int32_t group)
{
    size_t at = (size_t)group * (size_t)kv->cap;
    uint64_t n = (uint64_t)h->n_slots;
    int r = 0;

    if (h->flags & HAS_POS) {
        r = copy_array(x, kv->slot_pos + at, n * sizeof(int32_t));
    }
    if (!r && (h->flags & HAS_SCORE)) {
        r = copy_array(x, kv->score + at, n * sizeof(float));
    }
    if (!r && (h->flags & HAS_SUM)) {
        r = copy_array(x, kv->v_sum + (size_t)group * (size_t)n_sums(h), n_sums(h) * sizeof(float));
    }
    return r ? r : copy_slots(x, h, kv, group);
}

static int save_store(struct copier *x, int32_t seat, int32_t store)
{
    struct cache *c = x->c;
    struct store_header h = describe(c, &c->seqs[seat], store, cache_store_slots(c, seat, store));
    struct ops_kv kv = cache_store_kv(c, seat, store);
    int r = put(x, &h, sizeof(h));

    for (int32_t g = 0; !r && g < h.n_groups; g++) {
        r = copy_group(x, &h, &kv, g);
    }
    return r;
}

/* The most bytes that one slot of any store takes. */
static uint64_t largest_slot(const struct cache *c, int32_t variant)
{
    uint64_t most = 0;

    for (int32_t i = 0; i < c->shape.config.n_stores; i++) {
        uint64_t n = ops_kv_slot_bytes(shape_layout(&c->shape, variant, i));

        most = n > most ? n : most;
    }
    return most;
}

int snapshot_save(struct cache *c, int32_t seat, const char identity[64], const int32_t *tokens,
                  const struct snapshot_sink *sink)
{
    const struct cache_seq *q = &c->seqs[seat];
    struct header head = {
        .version = VERSION,
        .n_stores = c->shape.config.n_stores,
        .n_tokens = q->n_tokens,
        .n_prompt = q->n_prompt,
        .n_slots = q->n_slots,
        .budget = q->budget,
        .n_evicted = q->n_evicted,
        .bytes = snapshot_bytes(c, seat),
    };
    struct copier x = {
        .c = c, .sink = sink, .buf = malloc(buffer_bytes(largest_slot(c, q->variant)))};
    uint64_t token_bytes = (uint64_t)q->n_tokens * sizeof(int32_t);
    int r = x.buf ? 0 : -ENOMEM;

    memcpy(head.magic, magic, sizeof(magic));
    memcpy(head.identity, identity, sizeof(head.identity));
    policy_print(&q->policy, head.policy, sizeof(head.policy));
    r = r ? r : put(&x, &head, sizeof(head));
    r = r ? r : put(&x, tokens, token_bytes);
    r = r ? r : put_pad(&x, token_bytes);
    for (int32_t i = 0; !r && i < head.n_stores; i++) {
        r = save_store(&x, seat, i);
    }
    free(x.buf);
    return r;
}

/* ---- checking -------------------------------------------------------------------------------- */

static int broken(struct error *reterr, const char *what)
{
    return error_set(reterr, -EBADMSG, "the saved sequence is broken: %s", what);
}

static int check_header(const struct cache *c, const struct header *h, size_t size,
                        const char identity[64], const struct policy *p, struct error *reterr)
{
    char policy[POLICY_TEXT_MAX];

    if (memcmp(h->magic, magic, sizeof(magic)) != 0) {
        return broken(reterr, "it does not begin as one");
    }
    if (h->version != VERSION) {
        return error_set(reterr, -ENOTSUP, "the saved sequence is of version %u, this is %d",
                         h->version, VERSION);
    }
    if (memcmp(h->identity, identity, sizeof(h->identity)) != 0) {
        return error_set(reterr, -EBADMSG, "the sequence was saved with another model or overlay");
    }
    if (memchr(h->policy, 0, sizeof(h->policy)) == NULL) {
        return broken(reterr, "its policy");
    }
    policy_print(p, policy, sizeof(policy));
    if (strcmp(policy, h->policy) != 0) {
        return error_set(reterr, -EINVAL, "the sequence was saved under policy %s", h->policy);
    }
    if (h->bytes != size || h->n_stores != c->shape.config.n_stores || h->n_tokens < 1 ||
        h->n_tokens > c->shape.config.ctx || h->n_prompt < 1 || h->n_prompt > h->n_tokens ||
        h->n_slots < 0 || h->n_slots > h->n_tokens || h->n_evicted < 0) {
        return broken(reterr, "its sizes");
    }
    if (p->place == POLICY_FULL
            ? h->budget != 0 || h->n_slots != h->n_tokens
            : h->budget < 1 || h->budget > c->shape.steady_cap || h->n_slots > h->budget) {
        return broken(reterr, "its budget");
    }
    return 0;
}

/* Slots that a store of such a sequence must have. */
static int32_t slots_of(const struct cache *c, const struct policy *p, int32_t store,
                        const struct header *h)
{
    int32_t ring = c->shape.seats[store].ring;

    if (h->budget > 0 && shape_evicts(&c->shape, p, store)) {
        return h->n_slots;
    }
    return ring && h->n_tokens > ring ? ring : h->n_tokens;
}

/* Each slot holds a position, no two the same: a victim is found among such. seen: (n_tokens) bits.
 */
static int check_positions(const uint8_t *at, int32_t n, int32_t n_tokens, uint8_t *seen,
                           struct error *reterr)
{
    memset(seen, 0, (size_t)n_tokens / 8 + 1);
    for (int32_t i = 0; i < n; i++) {
        int32_t pos;

        memcpy(&pos, at + (size_t)i * sizeof(pos), sizeof(pos));
        if (pos < 0 || pos >= n_tokens) {
            return broken(reterr, "a position");
        }
        if (seen[pos / 8] & 1u << pos % 8) {
            return broken(reterr, "two slots of one position");
        }
        seen[pos / 8] |= (uint8_t)(1u << pos % 8);
    }
    return 0;
}

static int check_finite(const uint8_t *at, uint64_t n, const char *what, struct error *reterr)
{
    for (uint64_t i = 0; i < n; i++) {
        float x;

        memcpy(&x, at + (size_t)i * sizeof(x), sizeof(x));
        if (!isfinite(x)) {
            return broken(reterr, what);
        }
    }
    return 0;
}

static int check_group(const struct store_header *h, const uint8_t *at, int32_t n_tokens,
                       uint8_t *seen, struct error *reterr)
{
    uint64_t n = (uint64_t)h->n_slots;
    int r = 0;

    if (h->flags & HAS_POS) {
        r = check_positions(at, h->n_slots, n_tokens, seen, reterr);
        at += pad8(n * sizeof(int32_t));
    }
    if (!r && (h->flags & HAS_SCORE)) {
        r = check_finite(at, n, "a score", reterr);
        at += pad8(n * sizeof(float));
    }
    return r ? r : check_finite(at, n_sums(h), "a sum of V", reterr);
}

/* Takes what is small out of the block, one thing after the other. */
struct taker {
    const struct cache *c;
    const struct snapshot_source *source;
    struct header head;
    struct cache_seq seq; /* policy, place and variant of the sequence to be */
    uint8_t *held;
    uint8_t *seen;
    uint64_t n_held;
    uint64_t at;
};

static int take(struct taker *t, uint64_t n, struct error *reterr)
{
    int r;

    if (!checked_range(t->at, n, t->source->size)) {
        return broken(reterr, "it ends early");
    }
    r = t->source->read(t->source->arg, t->at, t->held + t->n_held, (size_t)n);
    if (r) {
        return error_set_errno(reterr, r, "the saved sequence cannot be read");
    }
    t->n_held += n;
    t->at += n;
    return 0;
}

static int take_store(struct taker *t, int32_t store, struct error *reterr)
{
    struct store_header want =
        describe(t->c, &t->seq, store, slots_of(t->c, &t->seq.policy, store, &t->head));
    int r = take(t, sizeof(want), reterr);

    if (!r && memcmp(t->held + t->n_held - sizeof(want), &want, sizeof(want)) != 0) {
        r = error_set(reterr, -ENOTSUP,
                      "the saved sequence's cache of layer %d is laid out otherwise", want.layer);
    }
    for (int32_t g = 0; !r && g < want.n_groups; g++) {
        r = take(t, state_bytes(&want), reterr);
        r = r ? r
              : check_group(&want, t->held + t->n_held - state_bytes(&want), t->head.n_tokens,
                            t->seen, reterr);
        if (!r && !checked_range(t->at, pad8(slots_bytes(&want)), t->source->size)) {
            r = broken(reterr, "it ends early");
        }
        t->at += pad8(slots_bytes(&want));
    }
    return r;
}

/* What a sequence with this header leaves to be held; the header's numbers are within the plan's.
 */
static uint64_t held_bytes(const struct taker *t)
{
    uint64_t sum = sizeof(t->head) + pad8((uint64_t)t->head.n_tokens * sizeof(int32_t));

    for (int32_t i = 0; i < t->head.n_stores; i++) {
        struct store_header h =
            describe(t->c, &t->seq, i, slots_of(t->c, &t->seq.policy, i, &t->head));

        sum += sizeof(h) + (uint64_t)h.n_groups * state_bytes(&h);
    }
    return sum;
}

static int take_all(struct taker *t, struct error *reterr)
{
    int r;

    memcpy(t->held, &t->head, sizeof(t->head));
    t->n_held = sizeof(t->head);
    t->at = sizeof(t->head);
    r = take(t, pad8((uint64_t)t->head.n_tokens * sizeof(int32_t)), reterr);
    for (int32_t i = 0; !r && i < t->head.n_stores; i++) {
        r = take_store(t, i, reterr);
    }
    if (!r && t->at != t->source->size) {
        r = broken(reterr, "it is longer than its stores");
    }
    return r;
}

int snapshot_open(const struct cache *c, const struct snapshot_source *source,
                  const char identity[64], const struct policy *p, struct snapshot **ret,
                  struct error *reterr)
{
    struct taker t = {.c = c, .source = source};
    struct snapshot *s = calloc(1, sizeof(*s));
    int r;

    if (!s) {
        return error_set(reterr, -ENOMEM, "no memory for a saved sequence");
    }
    t.held = (uint8_t *)&t.head;
    r = take(&t, sizeof(t.head), reterr);
    r = r ? r : check_header(c, &t.head, source->size, identity, p, reterr);
    if (r) {
        goto fail;
    }
    t.seq = (struct cache_seq){
        .policy = *p, .place = place_find(p->place), .variant = shape_variant(&c->shape, p)};
    if (t.seq.variant < 0) {
        r = error_set(reterr, -ENOMEM, "it was saved under %s, of which the plan has no pages",
                      t.head.policy);
        goto fail;
    }
    s->held_bytes = held_bytes(&t);
    s->held = malloc((size_t)(s->held_bytes + buffer_bytes(largest_slot(c, t.seq.variant))));
    t.held = s->held;
    t.seen = malloc((size_t)t.head.n_tokens / 8 + 1);
    r = t.held && t.seen ? take_all(&t, reterr)
                         : error_set(reterr, -ENOMEM, "no memory for a saved sequence");
    free(t.seen);
    if (r) {
        goto fail;
    }
    s->source = *source;
    memcpy(s->policy, t.head.policy, sizeof(s->policy));
    s->tokens = (const int32_t *)(const void *)(s->held + sizeof(t.head));
    s->n_tokens = t.head.n_tokens;
    s->n_slots = t.head.n_slots;
    s->budget = t.head.budget;
    *ret = s;
    return 0;
fail:
    snapshot_close(s);
    return r;
}

void snapshot_close(struct snapshot *s)
{
    if (s) {
        free(s->held);
        free(s);
    }
}

int snapshot_load(struct cache *c, int32_t seat, const struct snapshot *s, int *ret_read)
{
    struct cache_seq *q = &c->seqs[seat];
    struct copier x = {
        .c = c, .source = &s->source, .held = s->held, .buf = s->held + s->held_bytes};
    struct header head;
    int r;

    memcpy(&head, x.held, sizeof(head));
    x.held += sizeof(head) + pad8((uint64_t)head.n_tokens * sizeof(int32_t));
    x.at = sizeof(head) + pad8((uint64_t)head.n_tokens * sizeof(int32_t));
    r = cache_refill(c, seat, head.n_tokens, head.n_slots, head.n_evicted);
    for (int32_t i = 0; !r && i < head.n_stores; i++) {
        struct store_header h = describe(c, q, i, cache_store_slots(c, seat, i));
        struct ops_kv kv = cache_store_kv(c, seat, i);

        x.held += sizeof(h);
        x.at += sizeof(h);
        for (int32_t g = 0; !r && g < h.n_groups; g++) {
            r = copy_group(&x, &h, &kv, g);
        }
    }
    *ret_read = x.other;
    return x.other ? 0 : r;
}

int snapshot_positions(const void *buf, size_t size, int32_t store, int32_t group,
                       const int32_t **ret, int32_t *ret_n)
{
    const uint8_t *p = buf;
    struct store_header h;
    struct header head;
    uint64_t at;

    if (size < sizeof(head)) {
        return -EBADMSG;
    }
    memcpy(&head, p, sizeof(head));
    at = sizeof(head) + pad8((uint64_t)head.n_tokens * sizeof(int32_t));
    if (store < 0 || store >= head.n_stores || group < 0) {
        return -ENOENT;
    }
    for (int32_t i = 0;; i++) {
        if (!checked_range(at, sizeof(h), size)) {
            return -EBADMSG;
        }
        memcpy(&h, p + at, sizeof(h));
        if (!checked_range(at, store_bytes(&h), size)) {
            return -EBADMSG;
        }
        if (i == store) {
            break;
        }
        at += store_bytes(&h);
    }
    if (group >= h.n_groups) {
        return -ENOENT;
    }
    at += sizeof(h) + (uint64_t)group * group_bytes(&h);
    *ret = h.flags & HAS_POS ? (const int32_t *)(const void *)(p + at) : NULL;
    *ret_n = h.n_slots;
    return 0;
}

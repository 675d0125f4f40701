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
#include <string.h>

#include "base/checked.h"

enum { VERSION = 1, HAS_POS = 1, HAS_SCORE = 2, HAS_SUM = 4, SUM_SHIFT = 8 };

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
    bool evicts = q->place->evicts && s->config.stores[store].window == 0;

    return (struct store_header){
        .layer = s->config.stores[store].layer,
        .n_groups = s->seats[store].n_groups,
        .n_slots = n_slots,
        .flags = (ring || evicts ? HAS_POS : 0u) | (evicts && q->place->scores ? HAS_SCORE : 0u) |
                 sum_flags(s, &q->policy, q->variant, store),
        .slot_bytes = ops_kv_slot_bytes(shape_layout(s, q->variant, store)),
    };
}

static uint64_t group_bytes(const struct store_header *h)
{
    uint64_t n = (uint64_t)h->n_slots;

    return pad8(n * (h->flags & HAS_POS ? sizeof(int32_t) : 0)) +
           pad8(n * (h->flags & HAS_SCORE ? sizeof(float) : 0)) + pad8(n_sums(h) * sizeof(float)) +
           pad8(n * h->slot_bytes);
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
    uint8_t *at;
    bool load;
};

static int copy_array(struct copier *x, void *device, uint64_t bytes)
{
    const struct backend_ops *ops = x->c->shape.config.ops;
    int r = x->load ? ops->write(x->c->be, device, x->at, bytes)
                    : ops->read(x->c->be, x->at, device, bytes);

    x->at += pad8(bytes);
    return r;
}

static int copy_group(struct copier *x, const struct store_header *h, const struct ops_kv *kv,
                      int32_t group)
{
    const struct backend_ops *ops = x->c->shape.config.ops;
    size_t at = (size_t)group * (size_t)kv->cap;
    uint64_t n = (uint64_t)h->n_slots;
    struct ops_kv_slots slots = {.kv = kv, .group = group, .n_slots = h->n_slots};
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
    if (r) {
        return r;
    }
    slots.host = x->at;
    x->at += pad8(n * h->slot_bytes);
    if (h->n_slots == 0) {
        return 0;
    }
    return x->load ? ops->kv_import(x->c->be, &slots) : ops->kv_export(x->c->be, &slots);
}

int snapshot_save(struct cache *c, int32_t seat, const char identity[64], const int32_t *tokens,
                  void *buf)
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
    struct copier x = {.c = c, .at = buf};
    uint64_t token_bytes = (uint64_t)q->n_tokens * sizeof(int32_t);

    memcpy(head.magic, magic, sizeof(magic));
    memcpy(head.identity, identity, sizeof(head.identity));
    policy_print(&q->policy, head.policy, sizeof(head.policy));
    memset(buf, 0, (size_t)head.bytes); /* the padding too */
    memcpy(x.at, &head, sizeof(head));
    x.at += sizeof(head);
    memcpy(x.at, tokens, (size_t)token_bytes);
    x.at += pad8(token_bytes);
    for (int32_t i = 0; i < head.n_stores; i++) {
        struct store_header h = describe(c, q, i, cache_store_slots(c, seat, i));
        struct ops_kv kv = cache_store_kv(c, seat, i);
        int r = 0;

        memcpy(x.at, &h, sizeof(h));
        x.at += sizeof(h);
        for (int32_t g = 0; !r && g < h.n_groups; g++) {
            r = copy_group(&x, &h, &kv, g);
        }
        if (r) {
            return r;
        }
    }
    return 0;
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
static int32_t slots_of(const struct cache *c, int32_t store, const struct header *h)
{
    int32_t ring = c->shape.seats[store].ring;

    if (c->shape.config.stores[store].window) {
        return ring && h->n_tokens > ring ? ring : h->n_tokens;
    }
    return h->n_slots;
}

static int check_group(const struct store_header *h, const uint8_t *at, int32_t n_tokens,
                       struct error *reterr)
{
    for (int32_t i = 0; i < h->n_slots && (h->flags & HAS_POS); i++) {
        int32_t pos;

        memcpy(&pos, at + (size_t)i * sizeof(pos), sizeof(pos));
        if (pos < -1 || pos >= n_tokens) {
            return broken(reterr, "a position");
        }
    }
    at += pad8((uint64_t)h->n_slots * (h->flags & HAS_POS ? sizeof(int32_t) : 0));
    for (int32_t i = 0; i < h->n_slots && (h->flags & HAS_SCORE); i++) {
        float score;

        memcpy(&score, at + (size_t)i * sizeof(score), sizeof(score));
        if (!isfinite(score)) {
            return broken(reterr, "a score");
        }
    }
    at += pad8((uint64_t)h->n_slots * (h->flags & HAS_SCORE ? sizeof(float) : 0));
    for (uint64_t i = 0; i < n_sums(h); i++) {
        float sum;

        memcpy(&sum, at + (size_t)i * sizeof(sum), sizeof(sum));
        if (!isfinite(sum)) {
            return broken(reterr, "a sum of V");
        }
    }
    return 0;
}

static int check_store(const struct cache *c, const struct cache_seq *q, int32_t store,
                       const struct header *head, const uint8_t *at, uint64_t left,
                       uint64_t *ret_bytes, struct error *reterr)
{
    struct store_header want = describe(c, q, store, slots_of(c, store, head));
    struct store_header h;
    int r = 0;

    if (left < sizeof(h)) {
        return broken(reterr, "it ends early");
    }
    memcpy(&h, at, sizeof(h));
    if (memcmp(&h, &want, sizeof(h)) != 0) {
        return error_set(reterr, -ENOTSUP,
                         "the saved sequence's cache of layer %d is laid out otherwise",
                         want.layer);
    }
    if (left < store_bytes(&h)) {
        return broken(reterr, "it ends early");
    }
    for (int32_t g = 0; !r && g < h.n_groups; g++) {
        r = check_group(&h, at + sizeof(h) + (uint64_t)g * group_bytes(&h), head->n_tokens, reterr);
    }
    *ret_bytes = store_bytes(&h);
    return r;
}

int snapshot_check(const struct cache *c, const void *buf, size_t size, const char identity[64],
                   const struct policy *p, struct snapshot_info *ret, struct error *reterr)
{
    struct cache_seq q = {.policy = *p, .place = place_find(p->place)};
    struct header head;
    uint64_t at = sizeof(head);
    int r;

    if (size < sizeof(head)) {
        return broken(reterr, "it ends early");
    }
    memcpy(&head, buf, sizeof(head));
    r = check_header(c, &head, size, identity, p, reterr);
    if (r) {
        return r;
    }
    q.variant = shape_variant(&c->shape, p);
    if (q.variant < 0) {
        return error_set(reterr, -ENOTSUP, "the plan has no pages of this policy's precision");
    }
    if (!checked_range(at, pad8((uint64_t)head.n_tokens * sizeof(int32_t)), size)) {
        return broken(reterr, "it ends early");
    }
    at += pad8((uint64_t)head.n_tokens * sizeof(int32_t));
    for (int32_t i = 0; i < head.n_stores; i++) {
        uint64_t bytes = 0;

        r = check_store(c, &q, i, &head, (const uint8_t *)buf + at, size - at, &bytes, reterr);
        if (r) {
            return r;
        }
        at += bytes;
    }
    if (at != size) {
        return broken(reterr, "it is longer than its stores");
    }
    memcpy(ret->policy, head.policy, sizeof(ret->policy));
    ret->tokens = (const int32_t *)(const void *)((const uint8_t *)buf + sizeof(head));
    ret->n_tokens = head.n_tokens;
    ret->n_slots = head.n_slots;
    ret->budget = head.budget;
    return 0;
}

int snapshot_load(struct cache *c, int32_t seat, const void *buf)
{
    struct cache_seq *q = &c->seqs[seat];
    struct copier x = {.c = c, .at = (uint8_t *)buf, .load = true};
    struct header head;
    int r;

    memcpy(&head, buf, sizeof(head));
    x.at += sizeof(head) + pad8((uint64_t)head.n_tokens * sizeof(int32_t));
    r = cache_refill(c, seat, head.n_tokens, head.n_slots, head.n_evicted);
    for (int32_t i = 0; !r && i < head.n_stores; i++) {
        struct store_header h = describe(c, q, i, cache_store_slots(c, seat, i));
        struct ops_kv kv = cache_store_kv(c, seat, i);

        x.at += sizeof(h);
        for (int32_t g = 0; !r && g < h.n_groups; g++) {
            r = copy_group(&x, &h, &kv, g);
        }
    }
    return r;
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

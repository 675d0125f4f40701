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

#include "engine/kv/seq/snapshot.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { VERSION = 1, HAS_POS = 1, HAS_SCORE = 2, HAS_SUM = 4, SUM_SHIFT = 8, BUFFER = 64 << 10 };

static const char magic[8] = "PIPITSEQ";

struct header {
    char magic[8];
    uint32_t version;
    int32_t n_stores;
    char identity[64];
    char policy[KV_TEXT_MAX];
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

_Static_assert(sizeof(struct header) == 8 + 8 + 64 + KV_TEXT_MAX + 32, "no padding");
_Static_assert(sizeof(struct store_header) == 24, "no padding");

static uint64_t pad8(uint64_t n)
{
    return (n + 7) & ~UINT64_C(7);
}

/* The flag, and above it the floats of one group's sums. */
static uint32_t sum_flags(const struct geometry *s, const struct policy *p, int32_t variant,
                          int32_t store)
{
    const struct ops_kv_layout *l = geometry_layout(s, variant, store);

    return geometry_keeps_sum(s, p, store)
               ? HAS_SUM | (uint32_t)(l->v_heads * l->v_dim) << SUM_SHIFT
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
    const struct geometry *s = &c->geometry;
    bool ring = s->seats[store].ring > 0;
    bool evicts = geometry_evicts(s, &q->policy, store);

    return (struct store_header){
        .layer = s->config.stores[store].layer,
        .n_groups = s->seats[store].n_groups,
        .n_slots = n_slots,
        .flags = (ring || evicts ? HAS_POS : 0u) | (evicts && q->place->scores ? HAS_SCORE : 0u) |
                 sum_flags(s, &q->policy, q->variant, store),
        .slot_bytes = ops_kv_slot_bytes(geometry_layout(s, q->variant, store)),
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

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        struct store_header h = describe(c, q, i, cache_store_slots(c, seat, i));

        sum += store_bytes(&h);
    }
    return sum;
}

/* ---- writing: a block as parts in a row -------------------------------------------------------
 */

enum part {
    PART_HEADER,
    PART_TOKENS,
    PART_STORE,
    PART_POS,
    PART_SCORE,
    PART_SUM,
    PART_SLOTS,
    PART_END
};

struct snapshot_writer {
    struct cache *c;
    int32_t seat;
    const int32_t *tokens;
    struct header head;
    size_t least;
    enum part part;
    int32_t store;
    int32_t group;
    struct store_header h; /* of the store */
    uint64_t at;           /* in the part, which is padded to 8 bytes */
};

/* The most bytes that one slot of any store takes. */
static uint64_t largest_slot(const struct cache *c, int32_t variant)
{
    uint64_t most = 0;

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        uint64_t n = ops_kv_slot_bytes(geometry_layout(&c->geometry, variant, i));

        most = n > most ? n : most;
    }
    return most;
}

static uint64_t part_bytes(const struct snapshot_writer *w)
{
    const struct store_header *h = &w->h;
    uint64_t n = (uint64_t)h->n_slots;

    switch (w->part) {
    case PART_HEADER:
        return sizeof(w->head);
    case PART_TOKENS:
        return (uint64_t)w->head.n_tokens * sizeof(int32_t);
    case PART_STORE:
        return sizeof(*h);
    case PART_POS:
        return h->flags & HAS_POS ? n * sizeof(int32_t) : 0;
    case PART_SCORE:
        return h->flags & HAS_SCORE ? n * sizeof(float) : 0;
    case PART_SUM:
        return n_sums(h) * sizeof(float);
    case PART_SLOTS:
        return slots_bytes(h);
    default:
        return 0;
    }
}

static void begin_store(struct snapshot_writer *w)
{
    bool more = w->store < w->head.n_stores;

    w->part = more ? PART_STORE : PART_END;
    w->group = 0;
    if (more) {
        w->h = describe(w->c, &w->c->seqs[w->seat], w->store,
                        cache_store_slots(w->c, w->seat, w->store));
    }
}

static void next_part(struct snapshot_writer *w)
{
    bool store_ends = w->part == PART_STORE && w->h.n_groups == 0;

    w->at = 0;
    if (w->part == PART_TOKENS) {
        begin_store(w);
    } else if (w->part != PART_SLOTS && !store_ends) {
        w->part++;
    } else if (++w->group < w->h.n_groups) {
        w->part = PART_POS;
    } else {
        w->store++;
        begin_store(w);
    }
}

/* n bytes of the part from w->at on; of slots, whole ones. */
static int read_part(const struct snapshot_writer *w, uint8_t *buf, uint64_t n)
{
    const struct backend_ops *ops = w->c->geometry.config.ops;
    struct ops_kv kv;
    size_t at;

    switch (w->part) {
    case PART_HEADER:
        memcpy(buf, (const uint8_t *)&w->head + w->at, n);
        return 0;
    case PART_TOKENS:
        memcpy(buf, (const uint8_t *)w->tokens + w->at, n);
        return 0;
    case PART_STORE:
        memcpy(buf, (const uint8_t *)&w->h + w->at, n);
        return 0;
    default:
        break;
    }
    kv = cache_store_kv(w->c, w->seat, w->store);
    at = (size_t)w->group * (size_t)kv.cap;
    switch (w->part) {
    case PART_POS:
        return ops->read(w->c->be, buf, (const uint8_t *)(kv.slot_pos + at) + w->at, n);
    case PART_SCORE:
        return ops->read(w->c->be, buf, (const uint8_t *)(kv.score + at) + w->at, n);
    case PART_SUM:
        at = (size_t)w->group * (size_t)n_sums(&w->h);
        return ops->read(w->c->be, buf, (const uint8_t *)(kv.v_sum + at) + w->at, n);
    default:
        if (cache_on_disk(w->c, w->seat, w->store) >= 0) {
            return tier_save_slots(w->c->tier, w->seat, cache_on_disk(w->c, w->seat, w->store),
                                   w->group, (int32_t)(w->at / w->h.slot_bytes),
                                   (int32_t)(n / w->h.slot_bytes), buf);
        }
        return ops->kv_export(w->c->be,
                              &(struct ops_kv_slots){.kv = &kv,
                                                     .group = w->group,
                                                     .host = buf,
                                                     .slot0 = (int32_t)(w->at / w->h.slot_bytes),
                                                     .n_slots = (int32_t)(n / w->h.slot_bytes)});
    }
}

int snapshot_next(struct snapshot_writer *w, void *buf, size_t size, size_t *ret_n)
{
    size_t done = 0;

    while (w->part != PART_END && done < size) {
        uint8_t *to = (uint8_t *)buf + done;
        uint64_t bytes = part_bytes(w);
        uint64_t left = (w->at < bytes ? bytes : pad8(bytes)) - w->at;
        uint64_t n = left < size - done ? left : size - done;
        int r = 0;

        if (w->at < bytes && w->part == PART_SLOTS) {
            n -= n % w->h.slot_bytes;
        }
        if (n == 0 && left > 0) {
            break;
        }
        if (n > 0 && w->at < bytes) {
            r = read_part(w, to, n);
        } else {
            memset(to, 0, n);
        }
        if (r) {
            return r;
        }
        w->at += n;
        done += n;
        if (w->at == pad8(bytes)) {
            next_part(w);
        }
    }
    if (done == 0 && w->part != PART_END) {
        return -ENOBUFS;
    }
    *ret_n = done;
    return 0;
}

bool snapshot_waits(struct snapshot_writer *w, size_t size)
{
    int32_t disk =
        w->part < PART_STORE || w->part == PART_END ? -1 : cache_on_disk(w->c, w->seat, w->store);
    int64_t slot = (int64_t)((w->part == PART_SLOTS ? w->at : 0) + size);

    if (disk < 0) {
        return false;
    }
    slot /= (int64_t)w->h.slot_bytes;
    return tier_save_waits(w->c->tier, w->seat, disk,
                           slot < w->h.n_slots ? (int32_t)slot : w->h.n_slots - 1);
}

size_t snapshot_least(const struct snapshot_writer *w)
{
    return w->least;
}

int snapshot_writer_create(struct cache *c, int32_t seat, const char identity[64],
                           const int32_t *tokens, struct snapshot_writer **ret)
{
    const struct cache_seq *q = &c->seqs[seat];
    uint64_t slot = largest_slot(c, q->variant);
    struct snapshot_writer *w = calloc(1, sizeof(*w));

    if (!w) {
        return -ENOMEM;
    }
    w->c = c;
    w->seat = seat;
    w->tokens = tokens;
    w->least = slot > 8 ? (size_t)slot : 8;
    w->head = (struct header){
        .version = VERSION,
        .n_stores = c->geometry.config.n_stores,
        .n_tokens = q->n_tokens,
        .n_prompt = q->n_prompt,
        .n_slots = q->n_slots,
        .budget = q->budget,
        .n_evicted = q->n_evicted,
        .bytes = snapshot_bytes(c, seat),
    };
    memcpy(w->head.magic, magic, sizeof(magic));
    memcpy(w->head.identity, identity, sizeof(w->head.identity));
    policy_print(&q->policy, w->head.policy, sizeof(w->head.policy));
    if (policy_on_disk(&q->policy)) {
        tier_save_begin(c->tier, seat, q->n_tokens);
    }
    *ret = w;
    return 0;
}

void snapshot_writer_destroy(struct snapshot_writer *w)
{
    if (w && policy_on_disk(&w->c->seqs[w->seat].policy)) {
        tier_save_end(w->c->tier, w->seat);
    }
    free(w);
}

/* ---- loading ----------------------------------------------------------------------------------
 */

static uint64_t buffer_bytes(uint64_t slot_bytes)
{
    return slot_bytes > BUFFER ? slot_bytes : BUFFER;
}

static int load_array(struct cache *c, struct snapshot *s, void *device, uint64_t bytes)
{
    int r = c->geometry.config.ops->write(c->be, device, s->held + s->held_at, bytes);

    s->held_at += pad8(bytes);
    s->at += pad8(bytes);
    return r;
}

/* What comes before the group's slots. */
static int load_state(struct cache *c, struct snapshot *s, const struct store_header *h,
                      const struct ops_kv *kv)
{
    size_t at = (size_t)s->group * (size_t)kv->cap;
    uint64_t n = (uint64_t)h->n_slots;
    int r = 0;

    if (s->group == 0) {
        s->held_at += sizeof(*h);
        s->at += sizeof(*h);
    }
    if (h->flags & HAS_POS) {
        r = load_array(c, s, kv->slot_pos + at, n * sizeof(int32_t));
    }
    if (!r && (h->flags & HAS_SCORE)) {
        r = load_array(c, s, kv->score + at, n * sizeof(float));
    }
    if (!r && (h->flags & HAS_SUM)) {
        r = load_array(c, s, kv->v_sum + (size_t)s->group * (size_t)n_sums(h),
                       n_sums(h) * sizeof(float));
    }
    return r;
}

/* The group's next slots, a buffer of them. */
static int load_slots(struct cache *c, struct snapshot *s, const struct store_header *h,
                      const struct ops_kv *kv, int *ret_read)
{
    int32_t most = (int32_t)(buffer_bytes(h->slot_bytes) / h->slot_bytes);
    int32_t left = h->n_slots - s->slot;
    struct ops_kv_slots slots = {.kv = kv,
                                 .group = s->group,
                                 .slot0 = s->slot,
                                 .n_slots = left < most ? left : most,
                                 .host = s->held + s->held_bytes};

    if (slots.n_slots == 0) {
        return 0;
    }
    *ret_read = s->source.read(s->source.arg, s->at + (uint64_t)s->slot * h->slot_bytes, slots.host,
                               (size_t)slots.n_slots * (size_t)h->slot_bytes);
    s->slot += slots.n_slots;
    return *ret_read ? 0 : c->geometry.config.ops->kv_import(c->be, &slots);
}

static void next_store(struct snapshot *s)
{
    s->group = 0;
    s->kept = 0;
    s->store++;
}

/* Is the group whole, the next one's turn has come. */
static void next_group(struct snapshot *s, const struct store_header *h, bool on_disk)
{
    if (s->slot < h->n_slots) {
        return;
    }
    s->at += pad8(slots_bytes(h));
    s->slot = 0;
    s->group++;
    if (s->group == h->n_groups && !on_disk) {
        next_store(s);
    }
}

/* All of a store that belongs in the tier's file has been imported into the staging store: into the
 * file with it, as with rows that were just computed, a chunk a call. */
static int keep_rows(struct cache *c, int32_t seat, struct snapshot *s,
                     const struct store_header *h, uint64_t *ret_n)
{
    int32_t left = h->n_slots - s->kept;
    int32_t n = left < c->geometry.tier.max_chunk ? left : c->geometry.tier.max_chunk;
    int r = tier_keep(c->tier, seat, cache_on_disk(c, seat, s->store), s->kept, n);

    s->kept += n;
    *ret_n += (uint64_t)(n * h->n_groups) * h->slot_bytes;
    if (s->kept == h->n_slots) {
        next_store(s);
    }
    return r;
}

static int begin_load(struct cache *c, int32_t seat, struct snapshot *s)
{
    struct header head;

    memcpy(&head, s->held, sizeof(head));
    s->begun = true;
    s->held_at = sizeof(head) + pad8((uint64_t)head.n_tokens * sizeof(int32_t));
    s->at = s->held_at;
    return cache_refill(c, seat, head.n_tokens, head.n_slots, head.n_evicted);
}

int snapshot_load(struct cache *c, int32_t seat, struct snapshot *s, uint64_t least,
                  uint64_t *ret_n, int *ret_read)
{
    int r = s->begun ? 0 : begin_load(c, seat, s);

    *ret_n = 0;
    *ret_read = 0;
    while (!r && !*ret_read && *ret_n < least && !snapshot_loaded(s)) {
        struct store_header h =
            describe(c, &c->seqs[seat], s->store, cache_store_slots(c, seat, s->store));
        struct ops_kv kv = cache_store_kv(c, seat, s->store);

        assert(h.n_groups > 0); /* the greatest common divisor of two counts of heads */
        if (s->group == h.n_groups) {
            r = keep_rows(c, seat, s, &h, ret_n);
            continue;
        }
        uint64_t from = s->at + (uint64_t)s->slot * h.slot_bytes;

        r = s->slot == 0 ? load_state(c, s, &h, &kv) : 0;
        r = r ? r : load_slots(c, s, &h, &kv, ret_read);
        *ret_n += s->at + (uint64_t)s->slot * h.slot_bytes - from;
        next_group(s, &h, cache_on_disk(c, seat, s->store) >= 0);
    }
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
    if (!policy_same_saved(p, h->policy)) {
        return error_set(reterr, -EINVAL, "the sequence was saved under policy %s", h->policy);
    }
    if (h->bytes != size || h->n_stores != c->geometry.config.n_stores || h->n_tokens < 1 ||
        h->n_tokens > c->geometry.config.ctx || h->n_prompt < 1 || h->n_prompt > h->n_tokens ||
        h->n_slots < 0 || h->n_slots > h->n_tokens || h->n_evicted < 0) {
        return broken(reterr, "its sizes");
    }
    if (!policy_evicts(p)
            ? h->budget != 0 || h->n_slots != h->n_tokens
            : h->budget < 1 || h->budget > c->geometry.steady_cap || h->n_slots > h->budget) {
        return broken(reterr, "its budget");
    }
    return 0;
}

/* Slots that a store of such a sequence must have. */
static int32_t slots_of(const struct cache *c, const struct policy *p, int32_t store,
                        const struct header *h)
{
    int32_t ring = c->geometry.seats[store].ring;

    if (h->budget > 0 && geometry_evicts(&c->geometry, p, store)) {
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

/* Counts of use are whole and have an end (OPS_USE_COUNT). */
static int check_counts(const uint8_t *at, uint64_t n, struct error *reterr)
{
    for (uint64_t i = 0; i < n; i++) {
        float x;

        memcpy(&x, at + i * sizeof(x), sizeof(x));
        if (!(x >= 0 && x <= OPS_USE_MAX && x - floorf(x) < 0x1p-23f)) {
            return broken(reterr, "a count of use");
        }
    }
    return 0;
}

static int check_group(const struct store_header *h, const struct policy *p, const uint8_t *at,
                       int32_t n_tokens, uint8_t *seen, struct error *reterr)
{
    uint64_t n = (uint64_t)h->n_slots;
    int r = 0;

    if (h->flags & HAS_POS) {
        r = check_positions(at, h->n_slots, n_tokens, seen, reterr);
        at += pad8(n * sizeof(int32_t));
    }
    if (!r && (h->flags & HAS_SCORE)) {
        r = check_finite(at, n, "a score", reterr);
        r = !r && p->place->use == OPS_USE_COUNT ? check_counts(at, n, reterr) : r;
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
              : check_group(&want, &t->seq.policy, t->held + t->n_held - state_bytes(&want),
                            t->head.n_tokens, t->seen, reterr);
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
        .policy = *p, .place = p->place, .variant = geometry_variant(&c->geometry, p)};
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
    s->n_stores = t.head.n_stores;
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a block that was checked: what is held first, then the slots, a buffer at a time. */

#include "engine/kv/seq/snapshot_impl.h"

#include <assert.h>
#include <string.h>

static int load_array(struct cache *c, struct snapshot *s, void *device, uint64_t bytes)
{
    int r = c->geometry.config.ops->write(c->be, device, s->held + s->held_at, bytes);

    s->held_at += snapshot_pad8(bytes);
    s->at += snapshot_pad8(bytes);
    return r;
}

/* Sums or latest entries, then statistics. */
static int load_words(struct cache *c, int32_t seq, struct snapshot *s,
                      const struct snapshot_store *h, const struct ops_kv *kv)
{
    const struct backend_ops *ops = c->geometry.config.ops;
    const struct cache_seq *q = &c->seqs[seq];
    uint64_t all = snapshot_n_words(h) * sizeof(float);
    uint64_t expect = snapshot_expect_words(c, q, s->store) * sizeof(float);
    uint64_t own = all - expect;
    uint8_t *to = h->flags & HAS_LATEST ? kv->latest : (uint8_t *)kv->v_sum;
    int r =
        own == 0 ? 0 : ops->write(c->be, to + (uint64_t)s->group * own, s->held + s->held_at, own);

    if (!r && expect > 0) {
        r = ops->write(c->be, cache_expect_stats(c, q, s->store, s->group),
                       s->held + s->held_at + own, expect);
    }
    s->held_at += snapshot_pad8(all);
    s->at += snapshot_pad8(all);
    return r;
}

/* What comes before the group's slots. */
static int load_state(struct cache *c, int32_t seq, struct snapshot *s,
                      const struct snapshot_store *h, const struct ops_kv *kv)
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
    return r || snapshot_n_words(h) == 0 ? r : load_words(c, seq, s, h, kv);
}

/* The group's next slots, a buffer of them. */
static int load_slots(struct cache *c, int32_t seq, struct snapshot *s,
                      const struct snapshot_store *h, const struct ops_kv *kv, int *ret_read)
{
    int32_t most = (int32_t)(snapshot_buffer_bytes(h->slot_bytes) / h->slot_bytes);
    int32_t first = cache_first_page(c, &c->seqs[seq], s->store, s->group) * OPS_PAGE_SLOTS;

    s->slot = s->slot < first ? first : s->slot; /* those before have no page */
    int32_t left = h->n_slots - s->slot;
    struct ops_kv_slots slots = {.kv = kv,
                                 .group = s->group,
                                 .slot0 = s->slot,
                                 .n_slots = left < most ? left : most,
                                 .host = s->held + s->held_bytes};

    if (slots.n_slots == 0) {
        return 0;
    }
    size_t n = (size_t)slots.n_slots * (size_t)h->slot_bytes;
    uint64_t at = (uint64_t)s->slot * h->slot_bytes;

    *ret_read = s->source.read(s->source.arg, s->at + at, slots.host, n);
    s->slot += slots.n_slots;
    if (*ret_read) {
        return 0;
    }
    if (h->flags & HAS_STATE) {
        uint8_t *page = cache_state_page(c, &c->seqs[seq], s->store, 0);

        return c->geometry.config.ops->write(c->be, page + at, slots.host, n);
    }
    return c->geometry.config.ops->kv_import(c->be, &slots);
}

static void next_store(struct snapshot *s)
{
    s->group = 0;
    s->kept = 0;
    s->store++;
}

/* Is the group whole, the next one's turn has come. */
static void next_group(struct snapshot *s, const struct snapshot_store *h, bool kept)
{
    if (s->slot < h->n_slots) {
        return;
    }
    s->at += snapshot_pad8(snapshot_slots_bytes(h));
    s->slot = 0;
    s->group++;
    if (s->group == h->n_groups && !kept) {
        next_store(s);
    }
}

/* All of a store was imported: its home keeps it as rows that were just computed, a chunk a call.
 */
static int keep_rows(struct cache *c, int32_t seq, struct snapshot *s,
                     const struct snapshot_store *h, uint64_t *ret_n)
{
    int32_t left = h->n_slots - s->kept;
    int32_t n = left < c->geometry.tier.max_chunk ? left : c->geometry.tier.max_chunk;
    int r = home_of(c, seq, s->store)->keep(c, seq, s->store, s->kept, n);

    s->kept += n;
    *ret_n += (uint64_t)(n * h->n_groups) * h->slot_bytes;
    if (s->kept == h->n_slots) {
        next_store(s);
    }
    return r;
}

static int begin_load(struct cache *c, int32_t seq, struct snapshot *s)
{
    struct snapshot_header head;

    memcpy(&head, s->held, sizeof(head));
    s->begun = true;
    s->held_at = sizeof(head) + snapshot_pad8((uint64_t)head.n_tokens * sizeof(int32_t));
    s->at = s->held_at;
    return cache_refill(c, seq, head.n_tokens, s->slots, s->first, head.n_evicted);
}

int snapshot_load(struct cache *c, int32_t seq, struct snapshot *s, uint64_t least, uint64_t *ret_n,
                  int *ret_read)
{
    int r = s->begun ? 0 : begin_load(c, seq, s);

    *ret_n = 0;
    *ret_read = 0;
    while (!r && !*ret_read && *ret_n < least && !snapshot_loaded(s)) {
        struct snapshot_store h =
            snapshot_describe(c, &c->seqs[seq], s->store, cache_store_slots(c, seq, s->store));
        struct ops_kv kv = cache_store_kv(c, seq, s->store);

        assert(h.n_groups > 0); /* the greatest common divisor of two counts of heads */
        if (s->group == h.n_groups) {
            r = keep_rows(c, seq, s, &h, ret_n);
            continue;
        }
        uint64_t from = s->at + (uint64_t)s->slot * h.slot_bytes;

        r = s->slot == 0 ? load_state(c, seq, s, &h, &kv) : 0;
        r = r ? r : load_slots(c, seq, s, &h, &kv, ret_read);
        *ret_n += s->at + (uint64_t)s->slot * h.slot_bytes - from;
        next_group(s, &h, home_of(c, seq, s->store)->keep != NULL);
    }
    return r;
}

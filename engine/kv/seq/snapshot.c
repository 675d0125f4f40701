/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a block, as far as the cache says it, and a look into one in memory. */

#include "engine/kv/seq/snapshot_impl.h"

#include <errno.h>
#include <string.h>

#include "base/checked.h"
#include "engine/kv/seq/cache.h"

const char snapshot_magic[8] = "PIPITSEQ";

static uint64_t latest_words(const struct ops_kv_layout *l)
{
    return ops_kv_latest_bytes(l) * OPS_LATEST_ENTRIES / sizeof(float);
}

static uint64_t sum_words(const struct ops_kv_layout *l)
{
    return (uint64_t)l->v_heads * (uint64_t)l->v_dim;
}

uint64_t snapshot_expect_words(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    return policy_expects(&q->policy) && geometry_evicts(&c->geometry, &q->policy, store)
               ? geometry_expect_words(&c->geometry, store)
               : 0;
}

/* A flag, and above it the words that one group's sums or latest entries and its statistics take.
 * No policy has sums and entries: sums are for selection, and none selects among slots of four
 * bits. Whether there are statistics the policy says. */
static uint32_t word_flags(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    const struct geometry *s = &c->geometry;
    const struct ops_kv_layout *l = geometry_layout(s, q->variant, store);
    uint32_t latest = (uint32_t)latest_words(l);
    uint32_t expect = (uint32_t)snapshot_expect_words(c, q, store) << WORD_SHIFT;

    return expect + (latest ? HAS_LATEST | latest << WORD_SHIFT
                     : geometry_keeps_sum(s, &q->policy, store)
                         ? HAS_SUM | (uint32_t)sum_words(l) << WORD_SHIFT
                         : 0u);
}

bool snapshot_words_fit(const struct cache *c, const struct cache_seq *q)
{
    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        const struct ops_kv_layout *l = geometry_layout(&c->geometry, q->variant, i);

        if (c->geometry.arrays[i].kind->state) {
            continue;
        }
        uint64_t expect = snapshot_expect_words(c, q, i);

        if (latest_words(l) + expect > SNAPSHOT_MOST_WORDS ||
            sum_words(l) + expect > SNAPSHOT_MOST_WORDS) {
            return false;
        }
    }
    return true;
}

/* What a store of a sequence at rest has. */
struct snapshot_store snapshot_describe(const struct cache *c, const struct cache_seq *q,
                                        int32_t store, int32_t n_slots)
{
    const struct geometry *s = &c->geometry;
    bool positions = s->arrays[store].kind->positions;
    bool evicts = geometry_evicts(s, &q->policy, store);
    const struct ops_kv_layout *l = geometry_layout(s, q->variant, store);
    bool k_rotates = policy_rotates(&q->policy, l->k_type);

    if (s->arrays[store].kind->state) {
        return (struct snapshot_store){
            .layer = s->config.stores[store].layer,
            .n_groups = 1,
            .n_slots = (int32_t)(l->page_bytes / STATE_SLOT),
            .flags = HAS_STATE,
            .slot_bytes = STATE_SLOT,
        };
    }
    return (struct snapshot_store){
        .layer = s->config.stores[store].layer,
        .n_groups = s->arrays[store].n_groups,
        .n_slots = n_slots,
        .flags = (positions || evicts ? HAS_POS : 0u) |
                 (evicts && q->place->scores ? HAS_SCORE : 0u) |
                 (geometry_centers(s, &q->policy, store) ? HAS_CENTER : 0u) |
                 (k_rotates ? HAS_HADAMARD_K : 0u) |
                 (policy_rotates(&q->policy, l->v_type) ? HAS_HADAMARD_V : 0u) |
                 (k_rotates && s->config.stores[store].balance ? HAS_BALANCE : 0u) |
                 word_flags(c, q, store),
        .slot_bytes = ops_kv_slot_bytes(l),
    };
}

/* The most bytes that one slot of any store takes. */
uint64_t snapshot_largest_slot(const struct cache *c, int32_t variant)
{
    uint64_t most = STATE_SLOT;

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        uint64_t n = ops_kv_slot_bytes(geometry_layout(&c->geometry, variant, i));

        most = n > most ? n : most;
    }
    return most;
}

uint64_t snapshot_bytes(const struct cache *c, int32_t seq)
{
    const struct cache_seq *q = &c->seqs[seq];
    uint64_t sum =
        sizeof(struct snapshot_header) + snapshot_pad8((uint64_t)q->n_tokens * sizeof(int32_t));

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        struct snapshot_store h = snapshot_describe(c, q, i, cache_store_slots(c, seq, i));

        sum += snapshot_store_bytes(&h);
    }
    return sum;
}

int snapshot_positions(const void *buf, size_t size, int32_t store, int32_t group,
                       const int32_t **ret, int32_t *ret_n)
{
    const uint8_t *p = buf;
    struct snapshot_store h;
    struct snapshot_header head;
    uint64_t at;

    if (size < sizeof(head)) {
        return -EBADMSG;
    }
    memcpy(&head, p, sizeof(head));
    at = sizeof(head) + snapshot_pad8((uint64_t)head.n_tokens * sizeof(int32_t));
    if (store < 0 || store >= head.n_stores || group < 0) {
        return -ENOENT;
    }
    for (int32_t i = 0;; i++) {
        if (!checked_range(at, sizeof(h), size)) {
            return -EBADMSG;
        }
        memcpy(&h, p + at, sizeof(h));
        if (!checked_range(at, snapshot_store_bytes(&h), size)) {
            return -EBADMSG;
        }
        if (i == store) {
            break;
        }
        at += snapshot_store_bytes(&h);
    }
    if (group >= h.n_groups) {
        return -ENOENT;
    }
    at += sizeof(h) + (uint64_t)group * snapshot_group_bytes(&h);
    *ret = h.flags & HAS_POS ? (const int32_t *)(const void *)(p + at) : NULL;
    *ret_n = h.n_slots;
    return 0;
}

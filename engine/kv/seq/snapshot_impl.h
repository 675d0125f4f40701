/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_SEQ_SNAPSHOT_IMPL_H
#define PIPIT_ENGINE_KV_SEQ_SNAPSHOT_IMPL_H

/* Layout of a block:
 *
 *     struct header
 *     i32 tokens (n_tokens), padded to 8 bytes
 *     for each store: struct store_header, then for each group
 *         i32 positions (n_slots) and f32 scores (n_slots) where the store has them,
 *         f32 sums of V (v_heads of the group, v_dim) where the policy keeps them, or the entries
 *         of the latest tokens (ops_kv.latest) where its slots have four bits, and behind either
 *         the statistics of queries (ops_expect.h) where the policy keeps those,
 *         the slots (n_slots, slot_bytes), padded to 8 bytes
 *
 * Under heads=adaptive a store has as many slots in each group as its fullest; what the others have
 * not are empty, position -1 and zeros.
 *
 * Positions and scores of a sequence at rest are in its own arrays (not in the peak region):
 * prompts that are being read are not saved. */

#include "engine/kv/home/home.h"
#include "engine/kv/seq/cache_impl.h"
#include "engine/kv/seq/snapshot.h"

enum {
    SNAPSHOT_VERSION = 1,
    HAS_POS = 1,
    HAS_SCORE = 2,
    HAS_SUM = 4,
    HAS_CENTER = 8,
    HAS_HADAMARD_K = 32,
    HAS_HADAMARD_V = 64,
    HAS_BALANCE = 128, /* rotated keys were multiplied by what model/balance.c derives */
    HAS_STATE = 16,    /* slots are a state's bytes, STATE_SLOT each */
    STATE_SLOT = 64,
    WORD_SHIFT = 8, /* above: the words of 4 bytes that a group's sums or latest entries, and its
                       statistics, take */
    SNAPSHOT_BUFFER = 64 << 10
};

#define HAS_LATEST (1u << 31) /* the words begin with entries of the latest tokens, not sums */
enum { SNAPSHOT_MOST_WORDS = (1 << (31 - WORD_SHIFT)) - 1 };

_Static_assert((HAS_POS | HAS_SCORE | HAS_SUM | HAS_CENTER | HAS_HADAMARD_K | HAS_HADAMARD_V |
                HAS_BALANCE | HAS_STATE) < 1 << WORD_SHIFT,
               "a flag of a stored cache reaches into the bits that count its words");
/* A group of one head each for K and V, the usual one, with heads of 1024 dims and a scale. */
_Static_assert(2 * (1024 + 8) * OPS_LATEST_ENTRIES / 4 <= SNAPSHOT_MOST_WORDS,
               "the latest entries of a group take more words than a stored cache's flags count");

extern const char snapshot_magic[8];

struct snapshot_header {
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

struct snapshot_store {
    int32_t layer;
    int32_t n_groups;
    int32_t n_slots;
    uint32_t flags;
    uint64_t slot_bytes;
};

_Static_assert(sizeof(struct snapshot_header) == 8 + 8 + 64 + KV_TEXT_MAX + 32, "no padding");
_Static_assert(sizeof(struct snapshot_store) == 24, "no padding");

static inline uint64_t snapshot_pad8(uint64_t n)
{
    return (n + 7) & ~UINT64_C(7);
}

static inline uint64_t snapshot_n_words(const struct snapshot_store *h)
{
    return (h->flags & ~HAS_LATEST) >> WORD_SHIFT;
}

/* Of these, statistics of queries. */
uint64_t snapshot_expect_words(const struct cache *c, const struct cache_seq *q, int32_t store);

/* Do all groups' words fit into their flags? */
bool snapshot_words_fit(const struct cache *c, const struct cache_seq *q);

/* May slots of a store hold nothing? */
static inline bool snapshot_has_empty(const struct cache_seq *q, int32_t store)
{
    return policy_divides_heads(&q->policy) && q->stores[store].budget > 0;
}

/* What a store of a sequence at rest has. */
struct snapshot_store snapshot_describe(const struct cache *c, const struct cache_seq *q,
                                        int32_t store, int32_t n_slots);

/* Of a group, what lies before its slots. */
static inline uint64_t snapshot_state_bytes(const struct snapshot_store *h)
{
    uint64_t n = (uint64_t)h->n_slots;

    return snapshot_pad8(n * (h->flags & HAS_POS ? sizeof(int32_t) : 0)) +
           snapshot_pad8(n * (h->flags & HAS_SCORE ? sizeof(float) : 0)) +
           snapshot_pad8(snapshot_n_words(h) * sizeof(float));
}

static inline uint64_t snapshot_slots_bytes(const struct snapshot_store *h)
{
    return (uint64_t)h->n_slots * h->slot_bytes;
}

static inline uint64_t snapshot_group_bytes(const struct snapshot_store *h)
{
    return snapshot_state_bytes(h) + snapshot_pad8(snapshot_slots_bytes(h));
}

static inline uint64_t snapshot_store_bytes(const struct snapshot_store *h)
{
    return sizeof(*h) + (uint64_t)h->n_groups * snapshot_group_bytes(h);
}

/* The most bytes that one slot of any store takes, and a buffer for slots of so many. */
uint64_t snapshot_largest_slot(const struct cache *c, int32_t variant);
static inline uint64_t snapshot_buffer_bytes(uint64_t slot_bytes)
{
    return slot_bytes > SNAPSHOT_BUFFER ? slot_bytes : SNAPSHOT_BUFFER;
}

#endif

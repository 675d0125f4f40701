/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_HOME_TIER_POOL_H
#define PIPIT_ENGINE_KV_HOME_TIER_POOL_H

/* Slots of a tier that stay in memory (pool=N,full=spill): K and V of so many slots for each sequence, store
 * and head group, in canonical form. The file has them as well, for pages are written as they fill; so
 * when one comes and the pool is full, its victim is just forgotten, and read from the file if it is
 * listed again. The rules are those of a pool that drops (policy/pool.c).
 *
 * Creator: tier_pool_create; freed by tier_pool_destroy. One thread. */

#include "engine/kv/policy/policy.h"

struct tier_pool;

struct tier_pool_config {
    int32_t n_seqs;
    int32_t n_sets; /* of a sequence: stores times head groups */
    int32_t n_slots;
    int32_t ctx;
    uint64_t slot_bytes; /* of a slot and head group */
};

/* What a sequence's sets do. */
struct tier_pool_rule {
    enum policy_victim victim;
    int32_t n_slots; /* at most the configured; 0: nothing stays */
    int32_t exempt;  /* POLICY_COUNTER: the latest slots, which stay */
};

/* Marks of slots that are on their way to be read; those in the pool must not go before they are. */
enum tier_mark { TIER_UNMARKED, TIER_IN_FILE, TIER_IN_POOL };

uint64_t tier_pool_bytes(const struct tier_pool_config *c);
int tier_pool_create(const struct tier_pool_config *c, struct tier_pool **ret,
                     struct error *reterr) WARN_UNUSED;
void tier_pool_destroy(struct tier_pool *p); /* takes NULL */

/* A sequence begins with nothing in its sets. */
void tier_pool_admit(struct tier_pool *p, int32_t seq, const struct tier_pool_rule *rule);
/* The slot's K and V, or NULL: they are not here. */
const uint8_t *tier_pool_find(const struct tier_pool *p, int32_t seq, int32_t set, int32_t slot);
/* A slot that is here was listed for a layer. */
void tier_pool_list(struct tier_pool *p, int32_t seq, int32_t set, int32_t slot);
/* A new row, of which `last` is the latest slot of all, or one that was fetched. Where all that may go is
 * marked (ctx) it stays outside. */
void tier_pool_put(struct tier_pool *p, int32_t seq, int32_t set, int32_t slot,
                   const uint8_t *from, const uint8_t *marks, int32_t last);
/* Does what was fetched come in again? Not under fifo: it is old, and would go first. */
bool tier_pool_readmits(const struct tier_pool *p, int32_t seq);

#endif

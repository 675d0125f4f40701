/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_SEQ_PREFIX_H
#define PIPIT_ENGINE_KV_SEQ_PREFIX_H

/* The prefix cache: pages of prompts, kept after (and while) their sequences run, so that a text
 * which begins alike need not be read again.
 *
 * A trie of units. A unit is 64 tokens behind those of its parent, and the page of each store and
 * head group that holds their K and V. Roots are principals and canonical policy texts (seed
 * included): nobody finds what another principal or policy left. Model and overlays are the
 * engine's own.
 *
 * Kept is only what a cold run would compute to the same bits: whole chunks of a prompt (chunk= of
 * the policy), read as a prompt, of a policy that keeps all, in a model without rings. A recurrent
 * layer's state is of one position and not of a unit: where models have such layers, the last unit
 * of a block may have a checkpoint, a copy of the states behind it, and a text can only go on from
 * there. The last to be of use stay.
 *
 * Kept pages are free memory put to use: where a sequence needs pages, units that nobody else holds
 * go, least recently used first. Parents are more recent than their children, so the oldest unit
 * is a leaf. All memory is taken at creation; one thread. */

#include "engine/kv/plan/geometry.h"

enum { PREFIX_TOKENS = OPS_PAGE_SLOTS, PREFIX_MAX_ROOTS = 256 };
#define PREFIX_NONE UINT32_MAX

struct prefix_unit {
    uint32_t parent; /* PREFIX_NONE: the first of its text */
    uint32_t root;
    uint32_t next; /* in its bucket; of the free list */
    uint32_t newer;
    uint32_t older;
    uint32_t n_children;
    uint32_t bucket;
    uint64_t checkpoint; /* when its states were last of use; 0: it has none */
};

struct prefix_root {
    uint64_t principal;
    uint32_t n_units; /* 0: free */
    int32_t variant;  /* of its pages (geometry.h) */
    char policy[KV_TEXT_MAX];
};

struct prefix {
    uint32_t cap;    /* units; 0: nothing is kept */
    uint32_t n_rows; /* pages of a unit: groups of all stores */
    uint32_t n_buckets;
    uint32_t free;
    uint32_t newest;
    uint32_t oldest;
    uint32_t n_roots;
    bool states;               /* texts go on from checkpoints alone */
    uint64_t clock;            /* of their use */
    struct prefix_root *roots; /* (n_roots) */
    struct prefix_unit *units; /* (cap) */
    int32_t *tokens;           /* (cap, PREFIX_TOKENS) */
    uint32_t *pages;           /* (cap, n_rows), stores in order, then groups; of a state
                                  PREFIX_NONE where the unit has no checkpoint */
    uint32_t *buckets;         /* (n_buckets) first unit */
};

/* Host bytes that prefix_create takes. */
uint64_t prefix_bytes(const struct geometry *s);
int prefix_create(const struct geometry *s, struct prefix *ret, struct error *reterr) WARN_UNUSED;
void prefix_destroy(struct prefix *p); /* takes a zeroed struct */

/* Tokens of whole chunks and whole units; 0 for a policy whose pages are not kept. */
int32_t prefix_block(const struct prefix *p, const struct policy *policy);

/* The longest chain that begins these tokens: its length in units, the last of them in ret. */
int32_t prefix_find(struct prefix *p, uint64_t principal, const struct policy *policy,
                    const int32_t *tokens, int32_t n_units, uint32_t *ret);
/* Makes a chain the most recent. */
void prefix_touch(struct prefix *p, uint32_t unit);

/* A new unit behind `parent` (PREFIX_NONE: the first) from tokens; its pages are the caller's to
 * fill. PREFIX_NONE without room. The last unit of a chain that grows is to be touched. */
uint32_t prefix_add(struct prefix *p, uint64_t principal, const struct policy *policy,
                    int32_t variant, uint32_t parent, const int32_t *tokens);
static inline int32_t prefix_variant(const struct prefix *p, uint32_t unit)
{
    return p->roots[p->units[unit].root].variant;
}
/* The chain's last unit from `unit` up behind whole blocks, *n_units long, and with a checkpoint
 * where texts go on from such alone. */
uint32_t prefix_trim(const struct prefix *p, int32_t block, uint32_t unit, int32_t *n_units);
/* Notes that a unit's states have been of use. */
static inline void prefix_use(struct prefix *p, uint32_t unit)
{
    p->units[unit].checkpoint = ++p->clock;
}
/* The unit whose checkpoint has been of no use for longest, of those that `fits`; PREFIX_NONE. */
uint32_t prefix_oldest_checkpoint(const struct prefix *p, bool (*fits)(void *arg, uint32_t unit),
                                  void *arg);
/* Forgets a leaf, whose pages the caller has given back. */
void prefix_drop(struct prefix *p, uint32_t unit);

#endif

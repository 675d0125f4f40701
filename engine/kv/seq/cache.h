/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_SEQ_CACHE_H
#define PIPIT_ENGINE_KV_SEQ_CACHE_H

/* What the cache holds: page slabs by class, and for each slot of a sequence its page tables,
 * positions and scores in device memory. All of it is taken at creation, by the geometry of
 * geometry.h; a sequence reserves what it will need at most when it is admitted, so that no step
 * can run out. Private to engine/kv; its users have kv.h. */

#include "engine/kv/kv.h"
#include "engine/kv/store/pages.h"
#include "engine/kv/policy/place.h"
#include "engine/kv/seq/prefix.h"
#include "engine/kv/plan/geometry.h"

/* One store of one sequence. */
struct cache_store {
    int32_t budget;  /* slots per group, 0: all, or a ring's */
    int32_t n_slots; /* with a budget: that may be live, committed */
    int32_t n_pages; /* held by each group, but for its first ones (cache_seq.first) */
    bool divided;    /* heads=adaptive: some group may have fewer than others */
    int32_t at;      /* of a state: which of its pages is committed */
};

struct cache_seq {
    bool busy;
    struct policy policy;
    const struct place_ops *place;
    int32_t variant;
    uint64_t principal;
    int32_t n_prompt;
    int32_t n_steps;            /* over which the policy's tau runs */
    int32_t budget;             /* of the mean store that evicts, 0: all */
    int32_t n_kept;             /* of them, offered to the prefix cache */
    int32_t n_tokens;           /* committed: the next token's position */
    int32_t prepared;           /* n_tokens + rows of the prepared step */
    bool evicting;              /* the prepared row overwrites victims in some store */
    bool in_peak;               /* positions and scores lie in the peak region */
    bool layered;               /* the prompt is being read layer by layer */
    bool shares;                /* some of its pages may be another's too */
    int64_t n_evicted;          /* summed over stores and groups */
    struct geometry_need left;  /* reserved, not taken */
    uint8_t *tables;            /* device */
    uint8_t *state;             /* device */
    uint32_t *pages;            /* host mirror of the page tables, as laid out in tables */
    struct cache_store *stores; /* (n_stores) */
    int32_t *first;             /* (n_groups of all stores) where a store is divided: so many pages
                                   of a group are not there, and their slots hold nothing */
};

struct cache {
    struct geometry geometry;
    struct backend *be;
    struct pages classes[GEOMETRY_MAX_CLASSES];
    struct cache_seq *seqs; /* (n_seqs) */
    void *tables;           /* device (n_seqs, table_bytes) */
    void *state;            /* device (n_seqs, state_bytes) and the peak region */
    uint8_t *peak_state;
    uint32_t *pages_host;
    struct cache_store *stores; /* (n_seqs, n_stores) */
    int32_t *first;             /* (n_seqs, n_groups) */
    int32_t peak_holder;        /* sequence, or -1 */
    struct staging *staging;    /* NULL: nobody's pages lie on the host */
    struct tier *tier;          /* NULL: nobody's K and V lie on disk */
    struct prefix prefix;
    struct kv_step *step;        /* the running one */
    struct heads_work *heads;   /* scratch (cache_heads.c); NULL: all keep equally many */
    struct expect_work *expect; /* scratch (cache_expect.c); NULL: no policy keeps statistics */
};

/* Device and host bytes that kv_create takes. */
uint64_t cache_bytes(const struct geometry *s);
uint64_t cache_host_bytes(const struct geometry *s);

/* The store's number on disk, or -1. */
int32_t cache_on_disk(const struct cache *c, int32_t seq, int32_t store);

/* A sequence at rest (no step begun): a store's slots that may be live, as the backend sees them.
 */
struct ops_kv cache_store_kv(const struct cache *c, int32_t seq, int32_t store);
int32_t cache_store_slots(const struct cache *c, int32_t seq, int32_t store);
/* On a fresh sequence: takes the pages of a sequence whose slots the caller then fills: n_slots
 * (n_stores) where a store has a budget; NULL: as many as it may. first: as cache_seq's, or NULL. */
int cache_refill(struct cache *c, int32_t seq, int32_t n_tokens, const int32_t *n_slots,
                 const int32_t *first, int64_t n_evicted) WARN_UNUSED;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_SEQ_CACHE_H
#define PIPIT_ENGINE_KV_SEQ_CACHE_H

/* The cache of all sequences: page slabs by class, and for each seat (a place for one sequence)
 * its page tables, positions and scores in device memory. All of it is taken at creation, by the
 * geometry of geometry.h; a sequence reserves what it will need at most when it sits down, so that
 * no step can run out.
 *
 * Steps are kv.h's. Between prepare and commit one may be given up and prepared again: the same
 * pages and victims.
 *
 * Creator: cache_create; freed by cache_destroy. One thread. */

#include "engine/kv/store/pages.h"
#include "engine/kv/policy/place.h"
#include "engine/kv/seq/prefix.h"
#include "engine/kv/plan/geometry.h"

struct cache_seq {
    bool busy;
    struct policy policy;
    const struct place_ops *place;
    int32_t variant;
    uint64_t principal;
    int32_t n_prompt;
    int32_t n_steps;           /* over which the policy's tau runs */
    int32_t budget;            /* slots per group of a global store, 0: all */
    int32_t n_kept;            /* of them, offered to the prefix cache */
    int32_t n_tokens;          /* committed: the next token's position */
    int32_t n_slots;           /* that may be live in a global store, committed */
    int32_t prepared;          /* n_tokens + rows of the prepared step */
    bool evicting;             /* the prepared row overwrites victims */
    bool in_peak;              /* positions and scores lie in the peak region */
    bool layered;              /* the prompt is being read layer by layer */
    bool shares;               /* some of its pages may be another's too */
    int64_t n_evicted;         /* summed over stores and groups */
    struct geometry_need left; /* reserved, not taken */
    uint8_t *tables;           /* device */
    uint8_t *state;            /* device */
    uint32_t *pages;           /* host mirror of the page tables, as laid out in tables */
    int32_t *n_pages;          /* (n_stores) pages held by each group */
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
    int32_t *n_pages_host;
    int32_t peak_holder;     /* seat, or -1 */
    struct staging *staging; /* NULL: nobody's pages lie on the host */
    struct tier *tier;       /* NULL: nobody's K and V lie on disk */
    struct prefix prefix;
    struct kv_step *step; /* the running one */
};

/* Device and host bytes that cache_create takes. */
uint64_t cache_bytes(const struct geometry *s);
uint64_t cache_host_bytes(const struct geometry *s);

/* Takes the geometry over (the caller's becomes zeroed), also on failure. */
int cache_create(struct geometry *geometry, struct backend *be, struct cache **ret,
                 struct error *reterr) WARN_UNUSED;
void cache_destroy(struct cache *c); /* takes NULL */

/* Can it ever sit down? -ENOMEM for what the plan lacks, with numbers; -ENOTSUP for what no plan
 * has. */
int cache_check(const struct cache *c, const struct policy *p, const struct geometry_text *text,
                struct error *reterr) WARN_UNUSED;

/* Would its prompt be read layer by layer? */
bool cache_reads_layered(const struct cache *c, const struct policy *p,
                         const struct geometry_text *text);

/* Would it need the one region for long prompts? */
bool cache_needs_peak(const struct cache *c, const struct policy *p,
                      const struct geometry_text *text);

/* Sits a sequence down on a free seat: the seat's index, or -EBUSY until others leave. Of its first
 * n_known tokens those that are kept are there already: seqs[].n_tokens. */
int cache_sit(struct cache *c, const struct policy *p, uint64_t principal,
              const struct geometry_text *text, const int32_t *tokens, int32_t n_known);
void cache_leave(struct cache *c, int32_t seat);
/* Sits a sequence down that begins as a copy of one at rest whose prompt is read: same policy and
 * n_prompt, room for text->n_tokens. All pages are shared until one of the two writes. The new
 * seat, or -EBUSY (no seat or pages, or the other is not at rest), or the device's error. */
int cache_fork(struct cache *c, int32_t parent, const struct geometry_text *text);

/* The store's number on disk, or -1. */
int32_t cache_on_disk(const struct cache *c, int32_t seat, int32_t store);
/* Have its K and V on disk been lost? A negative errno with the cause; it must then be ended. */
int cache_failed(const struct cache *c, int32_t seat, struct error *ret);
/* How many rows a decode step may write that are taken back: nothing may be overwritten by them,
 * nothing counted, and each must read what it would alone. */
int32_t cache_spare_rows(const struct cache *c, int32_t seat);
/* After a commit, while or after the prompt is read: cuts what is above the budget, gives back the
 * pages above it. `last`: the prompt is complete. */
int cache_cut(struct cache *c, int32_t seat, bool last) WARN_UNUSED;

/* The prompt is read so far; its first n tokens may be kept for others. */
void cache_keep(struct cache *c, int32_t seat, const int32_t *tokens, int32_t n);

/* Layer-wise prefill (q->layered): one store after the other takes the whole prompt and is cut,
 * when all of the prompt is in; and the end of it all. */
int cache_layer_cut(struct cache *c, int32_t seat, int32_t store) WARN_UNUSED;
void cache_layer_done(struct cache *c, int32_t seat);
/* Hidden states: f32 rows of the whole prompt, and of max_survivors rows beyond the split. */
float *cache_hidden(const struct cache *c);
float *cache_survivors(const struct cache *c);

/* A sequence at rest (no step begun): a store's slots that may be live, as the backend sees them.
 */
struct ops_kv cache_store_kv(const struct cache *c, int32_t seat, int32_t store);
int32_t cache_store_slots(const struct cache *c, int32_t seat, int32_t store);
/* On a fresh seat: takes the pages of a sequence whose slots the caller then fills (snapshot.c). */
int cache_refill(struct cache *c, int32_t seat, int32_t n_tokens, int32_t n_slots,
                 int64_t n_evicted) WARN_UNUSED;

/* Bytes of the pages that the sequence holds; its live slots summed over stores and groups. */
void cache_usage(const struct cache *c, int32_t seat, uint64_t *ret_bytes, int64_t *ret_slots);
void cache_totals(const struct cache *c, uint64_t *ret_used, uint64_t *ret_total);

#endif

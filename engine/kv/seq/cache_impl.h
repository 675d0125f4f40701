/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_SEQ_CACHE_IMPL_H
#define PIPIT_ENGINE_KV_SEQ_CACHE_IMPL_H

/* What the files of the cache share: one store of one sequence. Private to cache*.c. */

#include "base/memory.h"
#include "engine/kv/seq/cache.h"

/* The first positions and scores of the region that the sequence uses for a store: its own, or
 * the peak region while its prompt is read. */
struct cache_state {
    uint8_t *pos;
    uint8_t *score;
    int32_t cap;
};

struct cache_state cache_state_of(const struct cache *c, const struct cache_seq *q, int32_t store);

/* The store whose scores all stores share, or -1. */
int32_t cache_score_store_of(const struct cache *c, const struct cache_seq *q);

/* Does the policy drop tokens of this store? Rings of sliding layers are beyond it. */
static inline bool cache_evicts_from(const struct cache_seq *q, int32_t store)
{
    return q->stores[store].budget > 0;
}
/* Must a new token of it overwrite a victim's slot? */
bool cache_is_full(const struct cache_seq *q, int32_t store);

/* Slots that may be live once n_new more tokens are in. */
int32_t cache_slots_after(const struct cache *c, const struct cache_seq *q, int32_t store,
                          int32_t n_new);

/* The store's slots as the backend sees them, of which n_slots may be live. */
struct ops_kv cache_kv_of(const struct cache *c, const struct cache_seq *q, int32_t store,
                          int32_t n_slots);

/* Page `at` of a state, device. */
uint8_t *cache_state_page(const struct cache *c, const struct cache_seq *q, int32_t store,
                          int32_t at);

/* Pages for n_slots, out of the reservation; and all but the first `keep` of each group back. */
int cache_take_pages(struct cache *c, struct cache_seq *q, int32_t store,
                     int32_t n_slots) WARN_UNUSED;
void cache_drop_pages(struct cache *c, struct cache_seq *q, int32_t store, int32_t keep);
/* The same, and the sequence's reservation has them again. Nobody else holds them. */
void cache_return_pages(struct cache *c, struct cache_seq *q, int32_t store, int32_t keep);
/* Of one group those from page `from` on, and says how many. */
uint32_t cache_drop_of_group(struct cache *c, struct cache_seq *q, int32_t store, int32_t group,
                             int32_t from);

/* Pages of a store that have just come free are the reservation's again. */
void cache_reserve_again(struct cache *c, struct cache_seq *q, int32_t store, uint32_t n);

/* The first page that a group has; and the pages of all groups. */
int32_t cache_first_page(const struct cache *c, const struct cache_seq *q, int32_t store,
                         int32_t group);
int32_t cache_store_pages(const struct cache *c, const struct cache_seq *q, int32_t store);

/* The host mirror of a store's page table: (n_groups, max_pages). */
static inline uint32_t *cache_host_pages(const struct cache_seq *q,
                                         const struct geometry_arrays *st)
{
    return q->pages + st->pages_off / sizeof(uint32_t);
}

/* A store with prepared rows [pos0, pos0 + n_rows) as the newest. The rows are the caller's to say.
 */
struct ops_seq cache_view_of(const struct cache *c, const struct cache_seq *q, int32_t store,
                             int32_t pos0, int32_t n_rows);
/* Does a step of it change sums of V? */
bool cache_sums(const struct cache *c, int32_t seq);

/* Before n_rows are written: pages that they go to and that others share become copies. */
int cache_own_pages(struct cache *c, struct cache_seq *q, int32_t n_rows) WARN_UNUSED;

/* The index of a free sequence, or -EBUSY. */
int cache_free_seq(const struct cache *c);

/* Pages by class (GEOMETRY_MAX_CLASSES), all of them or none. */
bool cache_reserve(struct cache *c, const uint32_t *n);

/* The chain of kept pages that begins these tokens, of whole blocks: its last unit, its length. Its
 * pages get one holder more, or one fewer. */
int32_t cache_find_kept(struct cache *c, const struct policy *p, uint64_t principal,
                        const int32_t *tokens, int32_t n, uint32_t *ret_unit);
void cache_hold_kept(struct cache *c, int32_t variant, uint32_t unit);
void cache_release_kept(struct cache *c, int32_t variant, uint32_t unit);
/* Pages by class of n_units. */
void cache_kept_pages(const struct cache *c, int32_t variant, int32_t n_units, uint32_t *ret);
/* A new sequence: its tables begin with these pages. */
int cache_attach(struct cache *c, struct cache_seq *q, uint32_t unit, int32_t n_units) WARN_UNUSED;
/* Drops kept pages until n of a class can be reserved. */
void cache_reclaim(struct cache *c, int32_t class, uint32_t n);

/* The prefix cache's pages of a unit, stores in order, then groups; something is done to each page
 * of K and V, or to each of a checkpoint. */
typedef void cache_page_fn(struct pages *p, uint32_t page);

static inline uint32_t *cache_unit_pages(const struct cache *c, uint32_t unit)
{
    return c->prefix.pages + (size_t)unit * c->prefix.n_rows;
}
void cache_each_page(struct cache *c, int32_t variant, uint32_t unit, bool states,
                     cache_page_fn *fn);

/* Recurrent states (cache_checkpoint.c): a new sequence's become those of a unit's checkpoint;
 * copies of a sequence's become one, if there are pages; checkpoints go until n pages are free. */
int cache_restore_states(struct cache *c, struct cache_seq *q, uint32_t unit) WARN_UNUSED;
void cache_add_checkpoint(struct cache *c, const struct cache_seq *q, uint32_t unit);
void cache_reclaim_states(struct cache *c, const struct pages *p, uint32_t n);

/* Of the first n slots of each group, slot being position: what the policy makes of their scores.
 */
int cache_rescore(struct cache *c, const struct cache_seq *q, const struct ops_kv *kv,
                  int32_t n) WARN_UNUSED;

/* Statistics of queries (cache_expect.c). Scratch, from the arena (whose base may be NULL: then
 * only counted; NULL where no policy keeps them); a new sequence's are none; and a layer's rows, as
 * they are about to attend: queries of prompts are counted, and keys scored where it is time. */
struct expect_work *cache_expect_lay(const struct geometry *s, struct memory_arena *a);
/* A group's statistics of a store, device; where the policy keeps them and evicts. */
float *cache_expect_stats(const struct cache *c, const struct cache_seq *q, int32_t store,
                          int32_t group);
int cache_expect_clear(struct cache *c, const struct cache_seq *q) WARN_UNUSED;
int cache_expect(struct cache *c, const struct kv_args *args) WARN_UNUSED;

/* heads=adaptive (cache_heads.c). Scratch, from the arena as above; NULL where no policy divides.
 * Is this cut to divide the budget? The cut that does: what `all` says, but for its budget, which
 * is the mean. And a page table of groups whose first pages are not there. */
struct heads_work *cache_heads_lay(const struct geometry *s, struct memory_arena *a);
bool cache_cuts_apart(const struct cache_seq *q, int32_t store, int32_t n_slots, int32_t budget);
int cache_cut_apart(struct cache *c, struct cache_seq *q, int32_t store,
                    const struct ops_cut *all) WARN_UNUSED;
int cache_point_first(struct cache *c, struct cache_seq *q, int32_t store) WARN_UNUSED;

/* What the policy spares at a cut, or from being overwritten by position `last`. */
void cache_guard_at(const struct cache_seq *q, int32_t store, bool cut, int32_t last,
                    struct place_guard *ret);

#endif

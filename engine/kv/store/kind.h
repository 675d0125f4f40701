/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_STORE_KIND_H
#define PIPIT_ENGINE_KV_STORE_KIND_H

/* What stores hold, as rows of data. Plan, steps, forks, prefix cache and saved sequences ask a
 * store's row and know no kind by name.
 *
 *     paged     K and V of every position, in the slot of its number
 *     windowed  the same of a sliding layer whose window the context never fills
 *     ring      K and V of the latest positions, each in the slot of its number modulo the ring's
 *     state     what a recurrent layer carries from token to token. A page holds all of it, and a
 *               sequence has two: a step reads one and writes the other, which a commit makes the
 *               one that is read. So a step may be given up and run again. */

#include <stdbool.h>
#include <stdint.h>

struct cache_store;
struct geometry_arrays;
struct geometry_store;

enum { STORE_STATES = 2 /* pages that a sequence has of a state */ };

/* What the prefix cache has of a store (prefix.h). */
enum store_keeps {
    STORE_KEEPS_NOTHING, /* what a later text would begin with is forgotten */
    STORE_KEEPS_PAGES,   /* full pages, which nobody writes any more */
    STORE_KEEPS_COPIES,  /* checkpoints: copies of the state at the ends of blocks */
};

struct store_kind {
    bool evicts;    /* a policy may drop tokens of it, choose which are read, and sum their V */
    bool appends;   /* a slot that was written is not written again, where no token is dropped */
    bool positions; /* its slots have positions under every policy */
    bool state;     /* it has a state in place of slots; all below count as if pages had slots */
    enum store_keeps keeps;
    /* Of a group, where no token is dropped: slots that may be live once n_tokens are in, the slot
     * of a position, and how many rows behind the next one may be written and undone. */
    int32_t (*slots)(const struct geometry_arrays *a, int32_t n_tokens);
    int32_t (*slot_of)(const struct geometry_arrays *a, const struct cache_store *st, int32_t pos);
    int32_t (*spare)(const struct geometry_arrays *a, int32_t n_tokens);
};

/* The kind of a store in a context of ctx positions whose steps take at most max_chunk rows of a
 * sequence; of a ring, *ret_ring slots, else 0. */
const struct store_kind *store_kind_of(const struct geometry_store *st, int32_t ctx,
                                       int32_t max_chunk, int32_t *ret_ring);

#endif

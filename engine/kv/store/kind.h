/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_STORE_KIND_H
#define PIPIT_ENGINE_KV_STORE_KIND_H

/* What stores hold, as rows of data. Plan, steps, forks, prefix cache and saved sequences ask a
 * store's row and know no kind by name.
 *
 *     paged     K and V of every position, in the slot of its number
 *     windowed  the same of a sliding layer whose window the context never fills
 *     ring      K and V of the latest positions, each in the slot of its number modulo the ring's
 */

#include <stdbool.h>
#include <stdint.h>

struct geometry_arrays;
struct geometry_store;

struct store_kind {
    bool evicts;    /* a policy may drop tokens of it, choose which are read, and sum their V */
    bool appends;   /* a slot that was written is not written again, where no token is dropped */
    bool positions; /* its slots have positions under every policy */
    bool keeps;     /* its full pages may begin other texts (prefix.h) */
    /* Of a group, where no token is dropped: slots that may be live once n_tokens are in, the slot
     * of a position, and how many rows behind the next one may be written and undone. */
    int32_t (*slots)(const struct geometry_arrays *a, int32_t n_tokens);
    int32_t (*slot_of)(const struct geometry_arrays *a, int32_t pos);
    int32_t (*spare)(const struct geometry_arrays *a, int32_t n_tokens);
};

/* The kind of a store in a context of ctx positions whose steps take at most max_chunk rows of a
 * sequence; of a ring, *ret_ring slots, else 0. */
const struct store_kind *store_kind_of(const struct geometry_store *st, int32_t ctx,
                                       int32_t max_chunk, int32_t *ret_ring);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The rows, and which of them a store has. */

#include "engine/kv/store/kind.h"

#include "engine/kv/seq/cache.h"

static int32_t paged_slots(const struct geometry_arrays *a, int32_t n_tokens)
{
    (void)a;
    return n_tokens;
}

static int32_t paged_slot_of(const struct geometry_arrays *a, const struct cache_store *st,
                             int32_t pos)
{
    (void)a;
    (void)st;
    return pos;
}

static int32_t paged_spare(const struct geometry_arrays *a, int32_t n_tokens)
{
    (void)a;
    (void)n_tokens;
    return INT32_MAX;
}

static int32_t ring_slots(const struct geometry_arrays *a, int32_t n_tokens)
{
    return n_tokens < a->ring ? n_tokens : a->ring;
}

static int32_t ring_slot_of(const struct geometry_arrays *a, const struct cache_store *st,
                            int32_t pos)
{
    (void)st;
    return pos % a->ring;
}

/* A ring that is full forgets at once. */
static int32_t ring_spare(const struct geometry_arrays *a, int32_t n_tokens)
{
    int32_t spare = a->ring - n_tokens - 1;

    return spare > 0 ? spare : 0;
}

static int32_t state_slots(const struct geometry_arrays *a, int32_t n_tokens)
{
    (void)a;
    (void)n_tokens;
    return STORE_STATES * OPS_PAGE_SLOTS;
}

/* The page that is written next. */
static int32_t state_slot_of(const struct geometry_arrays *a, const struct cache_store *st,
                             int32_t pos)
{
    (void)a;
    (void)pos;
    return (1 - st->at) * OPS_PAGE_SLOTS;
}

/* There is no third page for what a second row would leave. */
static int32_t state_spare(const struct geometry_arrays *a, int32_t n_tokens)
{
    (void)a;
    (void)n_tokens;
    return 0;
}

static const struct store_kind paged = {
    .evicts = true,
    .appends = true,
    .keeps = STORE_KEEPS_PAGES,
    .slots = paged_slots,
    .slot_of = paged_slot_of,
    .spare = paged_spare,
};

static const struct store_kind windowed = {
    .appends = true,
    .keeps = STORE_KEEPS_PAGES,
    .slots = paged_slots,
    .slot_of = paged_slot_of,
    .spare = paged_spare,
};

static const struct store_kind ring = {
    .positions = true,
    .slots = ring_slots,
    .slot_of = ring_slot_of,
    .spare = ring_spare,
};

static const struct store_kind state = {
    .state = true,
    .keeps = STORE_KEEPS_COPIES,
    .slots = state_slots,
    .slot_of = state_slot_of,
    .spare = state_spare,
};

const struct store_kind *store_kind_of(const struct geometry_store *st, int32_t ctx,
                                       int32_t max_chunk, int32_t *ret_ring)
{
    int64_t slots =
        ((int64_t)st->window + max_chunk + OPS_PAGE_SLOTS - 2) / OPS_PAGE_SLOTS * OPS_PAGE_SLOTS;

    *ret_ring = st->window && slots < ctx ? (int32_t)slots : 0;
    if (st->state_bytes) {
        return &state;
    }
    return *ret_ring ? &ring : st->window ? &windowed : &paged;
}

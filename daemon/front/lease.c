/* SPDX-License-Identifier: Apache-2.0 */
/* First fit over at most 64 ranges an arena: a linear walk over the table is quicker than anything
 * clever at this size, and a lease is granted once for many requests. Ranges are whole pages, so
 * that two leases never share one and a client may map a single lease. */

#include "daemon/front/lease.h"

#include <errno.h>
#include <string.h>

#include "base/checked.h"
#include "proto/lane/record.h"

void lease_init(struct lease_table *t, uint64_t c2e_bytes, uint64_t e2c_bytes,
                uint64_t request_bytes)
{
    memset(t, 0, sizeof(*t));
    t->arena_bytes[LANE_ARENA_C2E] = c2e_bytes;
    t->arena_bytes[LANE_ARENA_E2C] = e2c_bytes;
    t->next_generation = 2;
    t->v[LEASE_REQUEST_BUF - 1] = (struct lease){
        .length = request_bytes, .generation = 1, .arena = LANE_ARENA_C2E, .owner = LEASE_CLIENT};
}

static uint64_t end_of(const struct lease *l)
{
    return l->offset + checked_round_up(l->length, LEASE_ALIGN);
}

/* The nearest lease of the arena that begins at or after `from`; its begin, or the arena's end. */
static uint64_t next_begin(const struct lease_table *t, uint32_t arena, uint64_t from)
{
    uint64_t begin = t->arena_bytes[arena];

    for (int i = 0; i < LEASE_MAX; i++) {
        const struct lease *l = &t->v[i];

        if (l->owner != LEASE_FREE && l->arena == arena && l->offset >= from && l->offset < begin) {
            begin = l->offset;
        }
    }
    return begin;
}

/* First gap of `need` bytes: true with its offset. Always the largest gap's size. */
static bool find_gap(const struct lease_table *t, uint32_t arena, uint64_t need,
                     uint64_t *ret_offset, uint64_t *ret_largest)
{
    uint64_t from = 0;

    *ret_largest = 0;
    for (;;) {
        uint64_t begin = next_begin(t, arena, from);
        const struct lease *at = NULL;

        if (begin - from > *ret_largest) {
            *ret_largest = begin - from;
        }
        if (begin - from >= need) {
            *ret_offset = from;
            return true;
        }
        if (begin == t->arena_bytes[arena]) {
            return false;
        }
        for (int i = 0; i < LEASE_MAX; i++) {
            if (t->v[i].owner != LEASE_FREE && t->v[i].arena == arena && t->v[i].offset == begin) {
                at = &t->v[i];
            }
        }
        from = end_of(at);
    }
}

int lease_get(struct lease_table *t, uint32_t arena, uint64_t length, uint32_t *ret_buf,
              uint64_t *ret_largest)
{
    uint64_t need = checked_round_up(length, LEASE_ALIGN);
    uint64_t offset;
    int slot = -1;

    *ret_largest = 0;
    if (length == 0) {
        return -EINVAL;
    }
    for (int i = 0; i < LEASE_MAX && slot < 0; i++) {
        slot = t->v[i].owner == LEASE_FREE ? i : -1;
    }
    if (slot < 0) {
        return -EBUSY;
    }
    /* A length that wraps when rounded up is larger than any arena. */
    if (!find_gap(t, arena, need ? need : UINT64_MAX, &offset, ret_largest)) {
        return -E2BIG;
    }
    t->v[slot] = (struct lease){.offset = offset,
                                .length = length,
                                .generation = t->next_generation++,
                                .arena = (uint8_t)arena,
                                .owner = LEASE_CLIENT};
    *ret_buf = (uint32_t)slot + 1;
    return 0;
}

static struct lease *find(struct lease_table *t, uint32_t arena, uint32_t buf, uint32_t generation)
{
    struct lease *l;

    if (buf < 1 || buf > LEASE_MAX) {
        return NULL;
    }
    l = &t->v[buf - 1];
    return l->owner != LEASE_FREE && !l->put && l->arena == arena && l->generation == generation
               ? l
               : NULL;
}

int lease_put(struct lease_table *t, uint32_t arena, uint32_t buf, uint32_t generation)
{
    struct lease *l = find(t, arena, buf, generation);

    if (!l) {
        return -ENOENT;
    }
    if (buf == LEASE_REQUEST_BUF && l->generation == 1) {
        return -EPERM;
    }
    if (l->owner == LEASE_ENGINE) {
        l->put = true;
    } else {
        l->owner = LEASE_FREE;
    }
    return 0;
}

struct lease *lease_of_client(struct lease_table *t, uint32_t arena, uint32_t buf,
                              uint32_t generation)
{
    struct lease *l = find(t, arena, buf, generation);

    return l && l->owner == LEASE_CLIENT ? l : NULL;
}

void lease_lend(struct lease *l)
{
    l->owner = LEASE_ENGINE;
}

void lease_give_back(struct lease_table *t, uint32_t buf)
{
    struct lease *l = &t->v[buf - 1];

    l->owner = l->put ? LEASE_FREE : LEASE_CLIENT;
    l->put = false;
}

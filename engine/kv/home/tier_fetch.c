/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a store's slots from the file, and putting them into the staging store.
 *
 * Blocks that are wanted are read in stretches, across up to GAP blocks that are not: one request
 * for a stretch costs less than two, and where many are wanted the result is one sequential read.
 */

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "engine/kv/home/tier_impl.h"

enum { GAP = 8 };

/* Of a slot in a region. */
static uint64_t offset_of(const struct tier *t, int32_t slot)
{
    return (uint64_t)(slot / OPS_PAGE_SLOTS) * t->record +
           (uint64_t)(slot % OPS_PAGE_SLOTS) * t->slot_bytes;
}

/* Is a page of what is fetched in memory? That which the rows after it go on in is, and that which
 * they went on in, complete or not: a tail stays until two more have been begun. */
static bool in_tail(const struct fetched *f, int32_t page)
{
    return page == f->n / OPS_PAGE_SLOTS ||
           (f->from % OPS_PAGE_SLOTS != 0 && page == f->from / OPS_PAGE_SLOTS);
}

/* Marks a group's slot, and its blocks where it is neither in the pool nor in a tail. */
static void want(struct tier *t, const struct turn *turn, const struct fetched *f, int32_t group,
                 int32_t slot)
{
    uint8_t *mark = tier_marks_of(t, turn, f->seq, group) + slot;
    uint8_t *blocks = t->blocks + (size_t)f->seq * (size_t)(t->region / TIER_BLOCK);
    uint64_t at = offset_of(t, slot) + (uint64_t)group * t->group_bytes;
    int32_t set = tier_set_of(t, f->store, group);

    t->counts.n_slots++;
    if (t->pool && tier_pool_find(t->pool, f->seq, set, slot)) {
        *mark = TIER_IN_POOL;
        t->counts.n_pooled++;
        return;
    }
    *mark = TIER_IN_FILE;
    if (in_tail(f, slot / OPS_PAGE_SLOTS)) {
        return;
    }
    for (uint64_t b = at / TIER_BLOCK; b <= (at + t->group_bytes - 1) / TIER_BLOCK; b++) {
        blocks[b] = 1;
    }
}

/* Marked blocks in stretches; marks go. */
static void read_blocks(struct tier *t, int32_t seq, int32_t store, uint64_t n)
{
    uint8_t *blocks = t->blocks + (size_t)seq * (size_t)(t->region / TIER_BLOCK);

    for (uint64_t b = 0; b < n;) {
        uint64_t end = b + 1; /* behind the last marked one */

        if (!blocks[b]) {
            b++;
            continue;
        }
        for (uint64_t i = end; i < n && i <= end + GAP && i - b < TIER_MOST_BLOCKS; i++) {
            end = blocks[i] ? i + 1 : end;
        }
        memset(blocks + b, 0, end - b);
        tier_io_give(t->io, &(struct tier_job){
                                .at = tier_file_at(t, seq, store) + b * TIER_BLOCK,
                                .memory = t->turns[store & 1].bounce + (size_t)seq * t->region +
                                          b * TIER_BLOCK,
                                .bytes = (uint32_t)((end - b) * TIER_BLOCK),
                                .seq = (int16_t)seq,
                                .group = (uint8_t)(TIER_READS + (store & 1)),
                            });
        t->counts.n_reads++;
        t->counts.n_blocks += end - b;
        b = end;
    }
}

void tier_fetch(struct tier *t, int32_t seq, int32_t store, int32_t from, int32_t n,
                const struct ops_chosen *chosen, int32_t entry)
{
    struct turn *turn = &t->turns[store & 1];
    struct fetched *f = &turn->fetched[turn->n++];

    *f = (struct fetched){.seq = seq, .store = store, .from = from, .n = n};
    tier_wait_writes(t, seq, store);
    f->listed = chosen != NULL;
    for (int32_t g = 0; g < t->config.layout.n_groups; g++) {
        for (int32_t s = from; s < n && !chosen; s++) {
            want(t, turn, f, g, s);
        }
        const int32_t *slots =
            !chosen ? NULL
                    : chosen->slots + ((size_t)entry * (size_t)chosen->max_groups + (size_t)g) *
                                          (size_t)chosen->ld;

        for (int32_t i = 0; chosen && i < chosen->n[entry] && slots[i] >= 0; i++) {
            want(t, turn, f, g, slots[i]);
            if (t->pool) {
                tier_pool_list(t->pool, seq, tier_set_of(t, store, g), slots[i]);
            }
        }
    }
    read_blocks(t, seq, store, (uint64_t)(n / OPS_PAGE_SLOTS) * t->record / TIER_BLOCK);
}

/* ---- landing --------------------------------------------------------------------------------- */

/* Where a group's slot of what was fetched is. */
static const uint8_t *found(const struct tier *t, const struct turn *turn, const struct fetched *f,
                            int32_t group, int32_t slot, uint8_t mark)
{
    int32_t page = slot / OPS_PAGE_SLOTS;

    if (mark == TIER_IN_POOL) {
        return tier_pool_find(t->pool, f->seq, tier_set_of(t, f->store, group), slot);
    }
    return (in_tail(f, page)
                ? tier_tail_of(t, f->seq, f->store, page)
                : turn->bounce + (size_t)f->seq * t->region + (size_t)page * t->record) +
           (size_t)(slot % OPS_PAGE_SLOTS) * t->slot_bytes + (size_t)group * t->group_bytes;
}

/* A group's slots [s, s + n) of one page into the staging store. What was read for a choice stays
 * in the pool, where that takes it. */
static int land_run(struct tier *t, const struct turn *turn, const struct fetched *f, int32_t group,
                    int32_t s, int32_t n)
{
    const uint8_t *marks = tier_marks_of(t, turn, f->seq, group);
    bool stays = t->pool && f->listed && tier_pool_readmits(t->pool, f->seq);
    struct ops_kv kv = {0};

    for (int32_t i = 0; i < n; i++) {
        uint8_t *to = t->moved + (size_t)i * t->group_bytes;

        memcpy(to, found(t, turn, f, group, s + i, marks[s + i]), t->group_bytes);
        if (stays && marks[s + i] == TIER_IN_FILE) {
            int32_t set = tier_set_of(t, f->store, group);

            tier_pool_put(t->pool, f->seq, set, s + i, to, marks, f->n);
            tier_pool_list(t->pool, f->seq, set, s + i);
        }
    }
    tier_view(t, f->seq, &kv);
    kv.layout = &t->bare;
    kv.n_slots = s + n;
    return t->config.ops->kv_import(
        t->be, &(struct ops_kv_slots){
                   .kv = &kv, .group = group, .slot0 = s, .n_slots = n, .host = t->moved});
}

/* The next marked slot from s on, or n: most are not, so eight at a time. */
static int32_t next_marked(const uint8_t *marks, int32_t s, int32_t n)
{
    uint64_t eight = 0;

    for (; s + 8 <= n; s += 8) {
        memcpy(&eight, marks + s, sizeof(eight));
        if (eight) {
            break;
        }
    }
    while (s < n && !marks[s]) {
        s++;
    }
    return s;
}

static int land_group(struct tier *t, const struct turn *turn, const struct fetched *f,
                      int32_t group)
{
    const uint8_t *marks = tier_marks_of(t, turn, f->seq, group);
    int32_t s = next_marked(marks, f->from, f->n);
    int r = 0;

    while (!r && s < f->n) {
        int32_t end = s + 1;

        while (end < f->n && end / OPS_PAGE_SLOTS == s / OPS_PAGE_SLOTS && marks[end]) {
            end++;
        }
        r = land_run(t, turn, f, group, s, end - s);
        s = next_marked(marks, end, f->n);
    }
    return r;
}

int tier_land(struct tier *t, int32_t store)
{
    struct turn *turn = &t->turns[store & 1];
    int64_t t0 = clock_ns();
    int r = 0;

    if (turn->n == 0) {
        return 0;
    }
    tier_io_wait(t->io, TIER_READS + (store & 1));
    int64_t t1 = clock_ns();

    for (int32_t i = 0; i < turn->n; i++) {
        const struct fetched *f = &turn->fetched[i];

        assert(f->store == store);
        for (int32_t g = 0; g < t->config.layout.n_groups; g++) {
            r = r ? r : land_group(t, turn, f, g);
        }
    }
    for (int32_t i = 0; i < turn->n; i++) {
        for (int32_t g = 0; g < t->config.layout.n_groups; g++) {
            memset(tier_marks_of(t, turn, turn->fetched[i].seq, g), 0, (size_t)turn->fetched[i].n);
        }
    }
    turn->n = 0;
    t->counts.wait_ns += t1 - t0;
    t->counts.land_ns += clock_ns() - t1;
    return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence at rest on its way into a snapshot. The other way needs nothing of its own: restored
 * slots are imported into the staging store and kept as new rows are (snapshot.c).
 *
 * Whole pages come from the file, the page that is being filled from its tail; what a pool holds is
 * in one of the two as well. A snapshot goes group by group and a record has a slot's groups
 * together, so a store's records are read once, into the buffer of the store's turn, which nobody
 * else has while the sequence rests, and stay there for all groups. They come in windows of half a
 * MiB, two on their way at a time, beyond a store's end into the next one's buffer: so the disk
 * need not rest, and what a running sequence asks for waits behind no more than a MiB. */

#include <assert.h>
#include <string.h>

#include "engine/kv/home/tier.h"
#include "engine/kv/home/tier_impl.h"

enum { WINDOW_BLOCKS = 2 * TIER_MOST_BLOCKS, AT_ONCE = 2 };

/* Of every store alike. */
static int32_t whole_pages(const struct tier_saving *s)
{
    return s->n / OPS_PAGE_SLOTS;
}

static int32_t window_pages(const struct tier *t)
{
    uint64_t n = (uint64_t)WINDOW_BLOCKS * TIER_BLOCK / t->record;

    return n > 1 ? (int32_t)n : 1;
}

static int32_t windows_of_store(const struct tier *t, const struct tier_saving *s)
{
    return (whole_pages(s) + window_pages(t) - 1) / window_pages(t);
}

/* The bytes of one window, in jobs. */
static void ask(struct tier *t, int32_t seq, int32_t window)
{
    const struct tier_saving *s = &t->saving[seq];
    int32_t store = window / windows_of_store(t, s);
    int32_t page = window % windows_of_store(t, s) * window_pages(t);
    int32_t end = page + window_pages(t) < whole_pages(s) ? page + window_pages(t) : whole_pages(s);
    uint8_t *buffer = t->turns[store & 1].bounce + (size_t)seq * t->region;
    uint64_t most = (uint64_t)TIER_MOST_BLOCKS * TIER_BLOCK;

    for (uint64_t at = (uint64_t)page * t->record; at < (uint64_t)end * t->record; at += most) {
        uint64_t left = (uint64_t)end * t->record - at;

        tier_io_give(t->io, &(struct tier_job){
                                .at = tier_file_at(t, seq, store) + at,
                                .memory = buffer + at,
                                .bytes = (uint32_t)(left < most ? left : most),
                                .seq = (int16_t)seq,
                                .group = (uint8_t)(TIER_SAVES + window % AT_ONCE),
                            });
        t->counts.n_reads++;
        t->counts.n_blocks += (left < most ? left : most) / TIER_BLOCK;
    }
}

/* As many as may be on their way while `store` is being copied. */
static void ask_on(struct tier *t, int32_t seq, int32_t store)
{
    struct tier_saving *s = &t->saving[seq];
    int32_t stores = store + 2 < t->config.n_stores ? store + 2 : t->config.n_stores;

    while (s->asked < s->here + AT_ONCE && s->asked < stores * windows_of_store(t, s)) {
        ask(t, seq, s->asked++);
    }
}

/* The window with the slot; -1: it is in memory. */
static int32_t window_of(const struct tier *t, const struct tier_saving *s, int32_t store,
                         int32_t slot)
{
    int32_t page = slot / OPS_PAGE_SLOTS;

    return page < whole_pages(s) ? store * windows_of_store(t, s) + page / window_pages(t) : -1;
}

static void bring(struct tier *t, int32_t seq, int32_t store, int32_t slot)
{
    struct tier_saving *s = &t->saving[seq];
    int32_t window = window_of(t, s, store, slot);

    while (s->here <= window) {
        ask_on(t, seq, store);
        tier_io_wait(t->io, TIER_SAVES + s->here % AT_ONCE);
        s->here++;
    }
    ask_on(t, seq, store);
}

void tier_save_begin(struct tier *t, int32_t seq, int32_t n)
{
    if (tier_is_fetching(t, seq)) { /* of a step that was given up */
        tier_drop(t);
    }
    tier_wait_writes(t, seq, -1);
    t->saving[seq] = (struct tier_saving){.n = n};
    ask_on(t, seq, 0);
}

bool tier_save_waits(struct tier *t, int32_t seq, int32_t store, int32_t slot)
{
    struct tier_saving *s = &t->saving[seq];
    int32_t last = whole_pages(s) * OPS_PAGE_SLOTS - 1;
    int32_t window = last < 0 ? -1 : window_of(t, s, store, slot < last ? slot : last);

    ask_on(t, seq, store);
    while (s->here <= window && tier_io_idle(t->io, TIER_SAVES + s->here % AT_ONCE)) {
        s->here++;
        ask_on(t, seq, store);
    }
    return s->here <= window;
}

int tier_save_slots(struct tier *t, int32_t seq, int32_t store, int32_t group, int32_t slot0,
                    int32_t n, void *to)
{
    const uint8_t *buffer = t->turns[store & 1].bounce + (size_t)seq * t->region;
    struct error error;

    for (int32_t i = 0; i < n; i++) {
        int32_t page = (slot0 + i) / OPS_PAGE_SLOTS;
        const uint8_t *record = buffer + (size_t)page * t->record;

        if (page == whole_pages(&t->saving[seq])) {
            record = tier_tail_of(t, seq, store, page);
            assert(record);
        } else if (i == 0 || (slot0 + i) % OPS_PAGE_SLOTS == 0) {
            bring(t, seq, store, slot0 + i);
        }
        memcpy((uint8_t *)to + (size_t)i * t->group_bytes,
               record + (size_t)((slot0 + i) % OPS_PAGE_SLOTS) * t->slot_bytes +
                   (size_t)group * t->group_bytes,
               t->group_bytes);
    }
    return tier_io_failed(t->io, seq, &error);
}

void tier_save_end(struct tier *t, int32_t seq)
{
    struct tier_saving *s = &t->saving[seq];

    for (; s->here < s->asked; s->here++) {
        tier_io_wait(t->io, TIER_SAVES + s->here % AT_ONCE);
    }
    *s = (struct tier_saving){0};
}

/* SPDX-License-Identifier: Apache-2.0 */
/* New rows, out of the staging store into the file.
 *
 * A page is written when it is full; until then it is in `tail`. Complete pages are put together in
 * one of TIER_N_WRITES buffers, each a group of jobs. So the only ones who wait for a write are the
 * next user of the buffer and a reader of what it writes. */

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "engine/kv/home/tier_impl.h"

/* Partial keys are the last of a page. Those of a page of all groups, from the store's own into the
 * staged page or back. */
static int copy_parts(struct tier *t, int32_t seq, int32_t store, int32_t page, bool to_staging)
{
    uint64_t page_bytes = t->config.layout.page_bytes;
    struct ops_kv kv;
    int r = 0;

    if (t->part.page_bytes == 0) { /* no partial keys */
        return 0;
    }
    tier_view(t, seq, &kv);
    for (int32_t g = 0; !r && g < t->config.layout.n_groups; g++) {
        size_t at = (size_t)(g * t->max_pages + page);
        uint8_t *staged = kv.pool + at * page_bytes + page_bytes - t->part.page_bytes;
        uint8_t *own = tier_parts_of(t, seq, store) + at * t->part.page_bytes;

        r = t->config.ops->copy(t->be, to_staging ? staged : own, to_staging ? own : staged,
                                t->part.page_bytes);
    }
    return r;
}

static uint8_t *begin_tail(struct tier *t, int32_t seq, int32_t store, int32_t page,
                           int32_t page_before)
{
    size_t at = ((size_t)seq * (size_t)t->config.n_stores + (size_t)store) * 2;
    size_t i = t->tail_page[at] == page_before ? 1 : 0;

    t->tail_page[at + i] = page;
    return t->tail + (at + i) * t->record;
}

/* Slots [s, s + n) of one page, out of the staging store into memory laid out as a record. */
static int export(struct tier *t, int32_t seq, uint8_t *record, int32_t s, int32_t n)
{
    struct ops_kv kv = {0};
    int r = 0;

    tier_view(t, seq, &kv);
    kv.layout = &t->bare;
    kv.n_slots = s + n;
    for (int32_t g = 0; !r && g < t->bare.n_groups; g++) {
        uint8_t *to =
            record + (size_t)(s % OPS_PAGE_SLOTS) * t->slot_bytes + (size_t)g * t->group_bytes;

        r = t->config.ops->kv_export(
            t->be, &(struct ops_kv_slots){
                       .kv = &kv, .group = g, .slot0 = s, .n_slots = n, .host = t->moved});
        for (int32_t i = 0; !r && i < n; i++) {
            memcpy(to + (size_t)i * t->slot_bytes, t->moved + (size_t)i * t->group_bytes,
                   t->group_bytes);
        }
    }
    return r;
}

/* The same slots stay in memory as well, for the time being. A list may be waiting to land. */
static void pool_rows(struct tier *t, int32_t seq, int32_t store, const uint8_t *record, int32_t s,
                      int32_t n)
{
    for (int32_t g = 0; t->pool && g < t->config.layout.n_groups; g++) {
        const uint8_t *marks = tier_marks_of(t, &t->turns[store & 1], seq, g);

        for (int32_t i = s; i < s + n; i++) {
            tier_pool_put(t->pool, seq, tier_set_of(t, store, g), i,
                          record + (size_t)(i % OPS_PAGE_SLOTS) * t->slot_bytes +
                              (size_t)g * t->group_bytes,
                          marks, s + n - 1);
        }
    }
}

int tier_open(struct tier *t, int32_t seq, int32_t store, int32_t slot0)
{
    return slot0 % OPS_PAGE_SLOTS ? copy_parts(t, seq, store, slot0 / OPS_PAGE_SLOTS, true) : 0;
}

int tier_keep(struct tier *t, int32_t seq, int32_t store, int32_t slot0, int32_t n)
{
    int64_t t0 = clock_ns();
    int32_t first = slot0 / OPS_PAGE_SLOTS;
    int32_t end = slot0 + n;
    int32_t n_full = end / OPS_PAGE_SLOTS - first; /* pages that are complete now */
    uint8_t *tail = slot0 % OPS_PAGE_SLOTS ? tier_tail_of(t, seq, store, first) : NULL;
    uint8_t *begun = NULL;
    uint8_t *full = NULL;
    int w = t->next_write;
    int r = 0;

    assert(n <= t->config.max_chunk && (tail || slot0 % OPS_PAGE_SLOTS == 0));
    if (n_full > 0) {
        tier_io_wait(t->io, TIER_WRITES + w);
        full = t->writes + (size_t)w * tier_write_bytes(t);
    }
    if (end % OPS_PAGE_SLOTS && (n_full > 0 || !tail)) {
        begun = begin_tail(t, seq, store, end / OPS_PAGE_SLOTS, n_full > 0 ? first : -1);
    }
    for (int32_t s = slot0; !r && s < end;) {
        int32_t page = s / OPS_PAGE_SLOTS;
        int32_t to = (page + 1) * OPS_PAGE_SLOTS < end ? (page + 1) * OPS_PAGE_SLOTS : end;

        uint8_t *record = page == first && tail   ? tail
                          : page - first < n_full ? full + (size_t)(page - first) * t->record
                                                  : begun;

        r = export(t, seq, record, s, to - s);
        r = r ? r : copy_parts(t, seq, store, page, false);
        if (!r) {
            pool_rows(t, seq, store, record, s, to - s);
        }
        s = to;
    }
    if (!r && n_full > 0) {
        if (tail) { /* complete */
            memcpy(full, tail, t->record);
        }
        tier_io_give(t->io, &(struct tier_job){
                                .at = tier_file_at(t, seq, store) + (uint64_t)first * t->record,
                                .memory = full,
                                .bytes = (uint32_t)((uint64_t)n_full * t->record),
                                .seq = (int16_t)seq,
                                .group = (uint8_t)(TIER_WRITES + w),
                                .write = true,
                            });
        t->writing[w].seq = seq;
        t->writing[w].store = store;
        t->next_write = (w + 1) % TIER_N_WRITES;
        t->counts.n_written += (uint64_t)n_full * t->record;
    }
    t->counts.keep_ns += clock_ns() - t0;
    return r;
}

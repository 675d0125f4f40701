/* SPDX-License-Identifier: Apache-2.0 */
/* Records, what is fetched, and what stays.
 *
 * A record is a page of 64 slots; a slot is all its head groups in canonical form, one after the
 * other. Where a slot's heads are chosen alike, or it is a block long (8 heads of 128 dims in f16),
 * that moves fewest blocks; a page of one head group would be touched by nearly every choice.
 * Blocks that are wanted are read in stretches, across up to GAP that are not: one request for a
 * stretch costs less than one more, and where many are wanted that ends in one sequential read.
 *
 * A page is written when it is full; until then it is in `tail`. Complete pages are put together in
 * one of TIER_N_WRITES buffers, each a group of jobs, so that nobody waits for a write but who
 * needs the buffer again, or would read what it writes. */

#include "engine/kv/home/tier.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/kv/home/tier_impl.h"

enum { GAP = 8 };

/* ---- sizes ----------------------------------------------------------------------------------- */

static int32_t pages_of(int32_t slots)
{
    return (slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
}

static uint64_t whole_blocks(uint64_t bytes)
{
    return (bytes + TIER_BLOCK - 1) / TIER_BLOCK * TIER_BLOCK;
}

static uint64_t part_page_bytes(const struct ops_kv_layout *l)
{
    return (uint64_t)(l->k_heads * OPS_PAGE_SLOTS) * ops_kv_part_bytes(l);
}

static void measure(const struct tier_config *c, struct tier *t)
{
    t->config = *c;
    t->bare = c->layout;
    t->bare.part_dims = 0;
    t->part = c->layout;
    t->part.page_bytes = part_page_bytes(&c->layout);
    t->max_pages = pages_of(c->ctx);
    t->group_bytes = ops_kv_slot_bytes(&t->bare);
    t->slot_bytes = t->group_bytes * (uint64_t)c->layout.n_groups;
    t->record = whole_blocks(t->slot_bytes * OPS_PAGE_SLOTS);
    t->region = t->record * (uint64_t)t->max_pages;
}

static uint64_t write_bytes(const struct tier *t)
{
    return t->record * (uint64_t)(pages_of(t->config.max_chunk) + 1);
}

static uint64_t staging_bytes(const struct tier *t)
{
    return (uint64_t)t->config.n_seqs * (uint64_t)(t->config.layout.n_groups * t->max_pages) *
           t->config.layout.page_bytes;
}

static uint64_t parts_bytes(const struct tier *t)
{
    return (uint64_t)t->config.n_seqs * (uint64_t)t->config.n_stores *
           (uint64_t)(t->config.layout.n_groups * t->max_pages) * t->part.page_bytes;
}

static uint64_t pages_bytes(const struct tier *t)
{
    return (uint64_t)(t->config.layout.n_groups * t->max_pages) * sizeof(uint32_t);
}

/* Marks of a sequence. */
static size_t marks_bytes(const struct tier *t)
{
    return (size_t)t->config.layout.n_groups * (size_t)t->config.ctx;
}

static struct tier_pool_config pool_config(const struct tier *t)
{
    return (struct tier_pool_config){
        .n_seqs = t->config.n_seqs,
        .n_sets = t->config.n_stores * t->config.layout.n_groups,
        .n_slots = t->config.pool_slots,
        .ctx = t->config.ctx,
        .slot_bytes = t->group_bytes,
    };
}

/* Memory for direct I/O comes first and is aligned by hand. */
static size_t lay_host(struct memory_arena *a, struct tier *t)
{
    size_t n = (size_t)t->config.n_seqs;
    uint8_t *blocks =
        memory_arena_take(a, TIER_BLOCK + n * (size_t)t->config.n_stores * 2 * t->record +
                                 2 * n * t->region + TIER_N_WRITES * write_bytes(t));

    if (blocks) {
        blocks += (TIER_BLOCK - (uintptr_t)blocks % TIER_BLOCK) % TIER_BLOCK;
        t->tail = blocks;
        t->turns[0].bounce = t->tail + n * (size_t)t->config.n_stores * 2 * t->record;
        t->turns[1].bounce = t->turns[0].bounce + n * t->region;
        t->writes = t->turns[1].bounce + n * t->region;
    }
    for (int i = 0; i < 2; i++) {
        t->turns[i].wanted = memory_arena_take(a, n * marks_bytes(t));
        t->turns[i].fetched = memory_arena_take(a, 2 * n * sizeof(*t->turns[i].fetched));
    }
    t->tail_page = memory_arena_take(a, n * (size_t)t->config.n_stores * 2 * sizeof(*t->tail_page));
    t->blocks = memory_arena_take(a, n * (size_t)(t->region / TIER_BLOCK));
    t->moved = memory_arena_take(a, OPS_PAGE_SLOTS * t->group_bytes);
    t->saving = memory_arena_take(a, n * sizeof(*t->saving));
    return a->used;
}

static size_t host_bytes(const struct tier *t)
{
    struct tier copy = *t;

    return lay_host(&(struct memory_arena){0}, &copy);
}

uint64_t tier_bytes(const struct tier_config *c)
{
    struct tier t = {0};

    measure(c, &t);
    struct tier_pool_config pool = pool_config(&t);

    return memory_rounded(host_bytes(&t)) + memory_rounded(staging_bytes(&t)) +
           memory_rounded(parts_bytes(&t)) + memory_rounded(pages_bytes(&t)) +
           tier_io_bytes(c->n_seqs) + (c->pool_slots > 0 ? tier_pool_bytes(&pool) : 0);
}

uint64_t tier_file_bytes(const struct tier_config *c)
{
    struct tier t = {0};

    measure(c, &t);
    return t.region * (uint64_t)c->n_stores * (uint64_t)c->n_seqs;
}

/* Whole pages lie in the file; a chunk reads those before its first row. Of a store that is written
 * before it is read, the last chunk alone does, and takes its own rows' pages back. */
uint64_t tier_prompt_bytes(const struct tier_config *c, int32_t n_prompt, int32_t chunk, bool deep)
{
    struct tier t = {0};
    uint64_t n = 0;
    int32_t last = n_prompt > 0 ? (n_prompt - 1) / chunk * chunk : 0;

    measure(c, &t);
    for (int32_t at = deep ? last : 0; at <= last; at += chunk) {
        n += (uint64_t)(at / OPS_PAGE_SLOTS);
    }
    if (deep && n_prompt / OPS_PAGE_SLOTS > pages_of(last)) {
        n += (uint64_t)(n_prompt / OPS_PAGE_SLOTS - pages_of(last));
    }
    return n * t.record;
}

/* ---- creation -------------------------------------------------------------------------------- */

/* Nothing is being filled. */
static void forget_tails(struct tier *t, int32_t seq)
{
    size_t n = (size_t)t->config.n_stores * 2;

    for (size_t i = 0; i < n; i++) {
        t->tail_page[(size_t)seq * n + i] = -1;
    }
}

static int number_pages(struct tier *t)
{
    uint32_t n = (uint32_t)(t->config.layout.n_groups * t->max_pages);
    int r = 0;

    for (uint32_t i = 0; !r && i < n; i++) {
        r = t->config.ops->write(t->be, t->pages + i, &i, sizeof(i));
    }
    return r;
}

int tier_create(const struct tier_config *c, struct backend *be, const char *dir,
                const struct tier_calls *calls, struct tier **ret, struct error *reterr)
{
    struct tier *t = calloc(1, sizeof(*t));
    void *p[3] = {NULL};

    if (!t) {
        return error_set(reterr, -ENOMEM, "cache file: no memory");
    }
    measure(c, t);
    t->be = be;
    int r = memory_map(host_bytes(t), "cache on disk", &t->host, reterr);

    r = r ? r : c->ops->alloc(be, staging_bytes(t), "staged keys and values", &p[0], reterr);
    t->staging = p[0];
    r = r ? r : c->ops->alloc(be, parts_bytes(t), "partial keys", &p[1], reterr);
    t->parts = p[1];
    r = r ? r : c->ops->alloc(be, pages_bytes(t), "staged pages", &p[2], reterr);
    t->pages = p[2];
    struct tier_pool_config pool = pool_config(t);

    r = r || c->pool_slots == 0 ? r : tier_pool_create(&pool, &t->pool, reterr);
    r = r ? r : tier_io_create(dir, tier_file_bytes(c), c->n_seqs, calls, &t->io, reterr);
    r = r ? r : number_pages(t);
    if (r) {
        tier_destroy(t);
        return r;
    }
    (void)lay_host(&(struct memory_arena){.base = t->host, .size = host_bytes(t)}, t);
    for (int i = 0; i < TIER_N_WRITES; i++) {
        t->writing[i].seq = -1;
    }
    for (int32_t i = 0; i < c->n_seqs; i++) {
        forget_tails(t, i);
    }
    *ret = t;
    return 0;
}

void tier_destroy(struct tier *t)
{
    if (!t) {
        return;
    }
    const struct backend_ops *ops = t->config.ops;

    tier_io_destroy(t->io); /* its jobs use the memory below */
    tier_pool_destroy(t->pool);
    if (t->pages) {
        ops->free(t->be, t->pages, pages_bytes(t));
    }
    if (t->parts) {
        ops->free(t->be, t->parts, parts_bytes(t));
    }
    if (t->staging) {
        ops->free(t->be, t->staging, staging_bytes(t));
    }
    memory_unmap(t->host, host_bytes(t));
    free(t);
}

/* ---- views ----------------------------------------------------------------------------------- */

void tier_view(const struct tier *t, int32_t seq, struct ops_kv *kv)
{
    kv->layout = &t->config.layout;
    kv->pool = t->staging + (size_t)seq * (staging_bytes(t) / (uint64_t)t->config.n_seqs);
    kv->pages = t->pages;
    kv->max_pages = t->max_pages;
}

static uint8_t *parts_of(const struct tier *t, int32_t seq, int32_t store)
{
    return t->parts + ((size_t)seq * (size_t)t->config.n_stores + (size_t)store) *
                          (size_t)(t->config.layout.n_groups * t->max_pages) * t->part.page_bytes;
}

void tier_part_view(const struct tier *t, int32_t seq, int32_t store, struct ops_kv *kv)
{
    kv->layout = &t->part;
    kv->pool = parts_of(t, seq, store);
    kv->pages = t->pages;
    kv->max_pages = t->max_pages;
}

/* Partial keys are the last of a page. Those of a page of all groups, from the store's own into the
 * staged page or back. */
static int copy_parts(struct tier *t, int32_t seq, int32_t store, int32_t page, bool to_staging)
{
    uint64_t page_bytes = t->config.layout.page_bytes;
    struct ops_kv kv;
    int r = 0;

    tier_view(t, seq, &kv);
    for (int32_t g = 0; !r && g < t->config.layout.n_groups; g++) {
        size_t at = (size_t)(g * t->max_pages + page);
        uint8_t *staged = kv.pool + at * page_bytes + page_bytes - t->part.page_bytes;
        uint8_t *own = parts_of(t, seq, store) + at * t->part.page_bytes;

        r = t->config.ops->copy(t->be, to_staging ? staged : own, to_staging ? own : staged,
                                t->part.page_bytes);
    }
    return r;
}

/* Where a page is being filled. A step may be given up and run again, so the page before, of which
 * it filled the rest, stays as it was: a page that is begun takes the other place. */
uint8_t *tier_tail_of(const struct tier *t, int32_t seq, int32_t store, int32_t page)
{
    size_t at = ((size_t)seq * (size_t)t->config.n_stores + (size_t)store) * 2;
    size_t i = t->tail_page[at] == page ? 0 : 1;

    return t->tail_page[at + i] == page ? t->tail + (at + i) * t->record : NULL;
}

static uint8_t *begin_tail(struct tier *t, int32_t seq, int32_t store, int32_t page,
                           int32_t page_before)
{
    size_t at = ((size_t)seq * (size_t)t->config.n_stores + (size_t)store) * 2;
    size_t i = t->tail_page[at] == page_before ? 1 : 0;

    t->tail_page[at + i] = page;
    return t->tail + (at + i) * t->record;
}

uint64_t tier_file_at(const struct tier *t, int32_t seq, int32_t store)
{
    return ((uint64_t)seq * (uint64_t)t->config.n_stores + (uint64_t)store) * t->region;
}

/* Of a slot in a region. */
static uint64_t offset_of(const struct tier *t, int32_t slot)
{
    return (uint64_t)(slot / OPS_PAGE_SLOTS) * t->record +
           (uint64_t)(slot % OPS_PAGE_SLOTS) * t->slot_bytes;
}

/* ---- fetching -------------------------------------------------------------------------------- */

void tier_wait_writes(struct tier *t, int32_t seq, int32_t store)
{
    for (int i = 0; i < TIER_N_WRITES; i++) {
        if (t->writing[i].seq == seq && (store < 0 || t->writing[i].store == store)) {
            tier_io_wait(t->io, TIER_WRITES + i);
            t->writing[i].seq = -1;
        }
    }
}

void tier_drop(struct tier *t)
{
    for (int k = 0; k < 2; k++) {
        struct turn *turn = &t->turns[k];

        tier_io_wait(t->io, TIER_READS + k);
        for (int32_t i = 0; i < turn->n; i++) {
            memset(turn->wanted + (size_t)turn->fetched[i].seq * marks_bytes(t), 0, marks_bytes(t));
        }
        turn->n = 0;
    }
}

/* Is a page of what is fetched in memory? That which the rows after it go on in is, and that which
 * they went on in, complete or not: a tail stays until two more have been begun. */
static bool in_tail(const struct fetched *f, int32_t page)
{
    return page == f->n / OPS_PAGE_SLOTS ||
           (f->from % OPS_PAGE_SLOTS != 0 && page == f->from / OPS_PAGE_SLOTS);
}

static uint8_t *marks_of(const struct tier *t, const struct turn *turn, int32_t seq, int32_t group)
{
    return turn->wanted + (size_t)seq * marks_bytes(t) + (size_t)group * (size_t)t->config.ctx;
}

static int32_t set_of(const struct tier *t, int32_t store, int32_t group)
{
    return store * t->config.layout.n_groups + group;
}

/* Marks a group's slot, and its blocks where it is neither in the pool nor in a tail. */
static void want(struct tier *t, const struct turn *turn, const struct fetched *f, int32_t group,
                 int32_t slot)
{
    uint8_t *mark = marks_of(t, turn, f->seq, group) + slot;
    uint8_t *blocks = t->blocks + (size_t)f->seq * (size_t)(t->region / TIER_BLOCK);
    uint64_t at = offset_of(t, slot) + (uint64_t)group * t->group_bytes;
    int32_t set = set_of(t, f->store, group);

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
                tier_pool_list(t->pool, seq, set_of(t, store, g), slots[i]);
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
        return tier_pool_find(t->pool, f->seq, set_of(t, f->store, group), slot);
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
    const uint8_t *marks = marks_of(t, turn, f->seq, group);
    bool stays = t->pool && f->listed && tier_pool_readmits(t->pool, f->seq);
    struct ops_kv kv = {0};

    for (int32_t i = 0; i < n; i++) {
        uint8_t *to = t->moved + (size_t)i * t->group_bytes;

        memcpy(to, found(t, turn, f, group, s + i, marks[s + i]), t->group_bytes);
        if (stays && marks[s + i] == TIER_IN_FILE) {
            int32_t set = set_of(t, f->store, group);

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
    const uint8_t *marks = marks_of(t, turn, f->seq, group);
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
            memset(marks_of(t, turn, turn->fetched[i].seq, g), 0, (size_t)turn->fetched[i].n);
        }
    }
    turn->n = 0;
    t->counts.wait_ns += t1 - t0;
    t->counts.land_ns += clock_ns() - t1;
    return r;
}

/* ---- keeping --------------------------------------------------------------------------------- */

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
        const uint8_t *marks = marks_of(t, &t->turns[store & 1], seq, g);

        for (int32_t i = s; i < s + n; i++) {
            tier_pool_put(t->pool, seq, set_of(t, store, g), i,
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
        full = t->writes + (size_t)w * write_bytes(t);
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

/* ---- sequences
 * ----------------------------------------------------------------------------------- */

int tier_failed(struct tier *t, int32_t seq, struct error *ret)
{
    return tier_io_failed(t->io, seq, ret);
}

void tier_admit(struct tier *t, int32_t seq, const struct tier_pool_rule *rule)
{
    if (t->pool) {
        tier_pool_admit(t->pool, seq, rule);
    }
}

bool tier_is_fetching(const struct tier *t, int32_t seq)
{
    for (int k = 0; k < 2; k++) {
        for (int32_t i = 0; i < t->turns[k].n; i++) {
            if (t->turns[k].fetched[i].seq == seq) {
                return true;
            }
        }
    }
    return false;
}

void tier_release(struct tier *t, int32_t seq)
{
    if (tier_is_fetching(t, seq)) { /* of a step that was given up */
        tier_drop(t);
    }
    tier_save_end(t, seq);
    tier_wait_writes(t, seq, -1);
    forget_tails(t, seq);
    tier_io_forget(t->io, seq);
}

void tier_counts(const struct tier *t, struct tier_counts *ret)
{
    *ret = t->counts;
}

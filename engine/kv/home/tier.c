/* SPDX-License-Identifier: Apache-2.0 */
/* The file's sizes, its creation, and the sequences in it.
 *
 * A record is a page of 64 slots; a slot is all its head groups in canonical form, one after the
 * other. Where a slot's heads are chosen alike, or it is a block long (8 heads of 128 dims in f16),
 * that moves fewest blocks; a page of one head group would be touched by nearly every choice. */

#include "engine/kv/home/tier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/kv/home/tier_impl.h"

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

uint64_t tier_write_bytes(const struct tier *t)
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

size_t tier_marks_bytes(const struct tier *t)
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
                                 2 * n * t->region + TIER_N_WRITES * tier_write_bytes(t));

    if (blocks) {
        blocks += (TIER_BLOCK - (uintptr_t)blocks % TIER_BLOCK) % TIER_BLOCK;
        t->tail = blocks;
        t->turns[0].bounce = t->tail + n * (size_t)t->config.n_stores * 2 * t->record;
        t->turns[1].bounce = t->turns[0].bounce + n * t->region;
        t->writes = t->turns[1].bounce + n * t->region;
    }
    for (int i = 0; i < 2; i++) {
        t->turns[i].wanted = memory_arena_take(a, n * tier_marks_bytes(t));
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

uint8_t *tier_parts_of(const struct tier *t, int32_t seq, int32_t store)
{
    size_t n = ((size_t)seq * (size_t)t->config.n_stores + (size_t)store) *
               (size_t)(t->config.layout.n_groups * t->max_pages);

    return t->parts ? t->parts + n * t->part.page_bytes : NULL;
}

void tier_part_view(const struct tier *t, int32_t seq, int32_t store, struct ops_kv *kv)
{
    kv->layout = &t->part;
    kv->pool = tier_parts_of(t, seq, store);
    kv->pages = t->pages;
    kv->max_pages = t->max_pages;
}

/* Where a page is being filled. A step may be given up and run again, so the page before, of which
 * it filled the rest, stays as it was: a page that is begun takes the other place. */
uint8_t *tier_tail_of(const struct tier *t, int32_t seq, int32_t store, int32_t page)
{
    size_t at = ((size_t)seq * (size_t)t->config.n_stores + (size_t)store) * 2;
    size_t i = t->tail_page[at] == page ? 0 : 1;

    return t->tail_page[at + i] == page ? t->tail + (at + i) * t->record : NULL;
}

uint64_t tier_file_at(const struct tier *t, int32_t seq, int32_t store)
{
    return ((uint64_t)seq * (uint64_t)t->config.n_stores + (uint64_t)store) * t->region;
}

/* ---- sequences ------------------------------------------------------------------------------- */

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
            memset(turn->wanted + (size_t)turn->fetched[i].seq * tier_marks_bytes(t), 0,
                   tier_marks_bytes(t));
        }
        turn->n = 0;
    }
}

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

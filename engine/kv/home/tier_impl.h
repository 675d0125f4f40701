/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_HOME_TIER_IMPL_H
#define PIPIT_ENGINE_KV_HOME_TIER_IMPL_H

/* What the files of the tier share: tier.c, tier_fetch.c and tier_keep.c, which read and write in
 * steps, and tier_save.c, which exports sequences at rest. Private to them. */

#include "engine/kv/home/tier.h"

enum { TIER_MOST_BLOCKS = 64, TIER_N_WRITES = 2 }; /* blocks of one job */
/* Groups of jobs: one for each turn, one for each buffer that is written, and windows of what is
 * saved. */
enum { TIER_READS = 0, TIER_WRITES = 2, TIER_SAVES = 4 };

struct fetched {
    int32_t seq;
    int32_t store;
    int32_t from; /* slots [from, n) */
    int32_t n;
    bool listed; /* of them those that were chosen */
};

/* What is fetched for a store: those with odd numbers and those with even ones take turns. */
struct turn {
    uint8_t *bounce;         /* (n_seqs, region) */
    uint8_t *wanted;         /* (n_seqs, n_groups, ctx) enum tier_mark */
    struct fetched *fetched; /* (2 * n_seqs) what was there, and rows that are written already */
    int32_t n;
};

/* A sequence that is being saved: windows of all its stores' whole pages, in order. */
struct tier_saving {
    int32_t n;     /* slots; 0: it is not */
    int32_t asked; /* windows [0, asked) were asked for */
    int32_t here;  /* and [0, here) have come */
};

struct tier {
    struct tier_config config;
    struct backend *be;
    struct tier_io *io;
    struct tier_pool *pool;    /* NULL: no slots stay */
    struct ops_kv_layout bare; /* without partial keys, at the same addresses */
    struct ops_kv_layout part; /* partial keys alone */
    int32_t max_pages;
    uint64_t group_bytes; /* of a slot and group */
    uint64_t slot_bytes;  /* of a slot */
    uint64_t record;      /* bytes of a page in the file, whole blocks */
    uint64_t region;      /* of a sequence and store */

    uint8_t *staging; /* device (n_seqs, n_groups * max_pages, page_bytes) */
    uint8_t *parts;   /* device (n_seqs, n_stores, n_groups * max_pages, part bytes) */
    uint32_t *pages;  /* device (n_groups * max_pages): 0, 1, .. */

    void *host;         /* the arrays below */
    uint8_t *tail;      /* (n_seqs, n_stores, 2, record) pages that are being filled: */
    int32_t *tail_page; /* (n_seqs, n_stores, 2) which, -1: none */
    uint8_t *writes;    /* (TIER_N_WRITES, write_bytes) */
    uint8_t *blocks;    /* (n_seqs, region / TIER_BLOCK) */
    uint8_t *moved;     /* (OPS_PAGE_SLOTS, group_bytes) */
    struct turn turns[2];
    struct tier_saving *saving; /* (n_seqs) */
    int32_t next_write;
    struct {
        int32_t seq;
        int32_t store;
    } writing[TIER_N_WRITES]; /* sequence -1: nobody's */
    struct tier_counts counts;
};

uint64_t tier_write_bytes(const struct tier *t); /* of a buffer of `writes` */
size_t tier_marks_bytes(const struct tier *t);   /* of one sequence in `wanted` */
/* Partial keys of a store, device. */
uint8_t *tier_parts_of(const struct tier *t, int32_t seq, int32_t store);

/* A group's marks. */
static inline uint8_t *tier_marks_of(const struct tier *t, const struct turn *turn, int32_t seq,
                                     int32_t group)
{
    return turn->wanted + (size_t)seq * tier_marks_bytes(t) + (size_t)group * (size_t)t->config.ctx;
}

/* A store's head group in the pool. */
static inline int32_t tier_set_of(const struct tier *t, int32_t store, int32_t group)
{
    return store * t->config.layout.n_groups + group;
}

/* The page in memory that is being filled, or was until two more had been begun; NULL. */
uint8_t *tier_tail_of(const struct tier *t, int32_t seq, int32_t store, int32_t page);
/* Where a sequence's store begins in the file. */
uint64_t tier_file_at(const struct tier *t, int32_t seq, int32_t store);
/* Until what was written of the store, or of all of the sequence's (-1), is in the file. */
void tier_wait_writes(struct tier *t, int32_t seq, int32_t store);
/* Is something fetched for the sequence that has not landed? */
bool tier_is_fetching(const struct tier *t, int32_t seq);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_HOME_TIER_H
#define PIPIT_ENGINE_KV_HOME_TIER_H

/* K and V in a file (pool=disk): what stays of them in memory, and how a layer gets the slots that it
 * reads.
 *
 * For each sequence and store the file has a region for the whole context: pages of 64 slots, a
 * slot's heads together. Memory holds the partial keys of all slots and the page that is being
 * filled. For each sequence it also has two buffers of a region's size, into which blocks are read
 * at their offset in the region, and a staging store of ordinary pages, where slot = position.
 * Attention and the operation that writes K and V see an ordinary store, in which only the slots
 * that will be read are filled.
 *
 * A layer's turn: tier_fetch (while the layer before computes), tier_land (waits, and copies what
 * was read into the staging store), tier_open, rope_store into it, tier_keep (takes the new rows out
 * again), attention. A store lands before the next but one is fetched, because stores of odd and
 * even numbers have a buffer each. SwiftKV's deep stores are written before they are read (open,
 * rope_store, keep, one after the other), so they fetch their new rows too.
 *
 * Some slots may stay in memory as well (tier_pool.h); those are not read from the file.
 *
 * A failure belongs to its sequence (tier_failed): its attention reads stale slots from then on, and
 * the sequence must be ended. Creator: tier_create; freed by tier_destroy. One thread. */

#include "engine/kv/home/tier_io.h"
#include "engine/kv/home/tier_pool.h"
#include "kernels/backend.h"

struct tier;

struct tier_config {
    const struct backend_ops *ops;
    struct ops_kv_layout layout; /* of every store in the file, partial keys included */
    int32_t n_stores;            /* in the file */
    int32_t n_seqs;
    int32_t ctx;
    int32_t max_chunk;  /* rows that one call keeps, at most */
    int32_t pool_slots; /* of a head group that stay in memory, at most */
};

/* Since creation. */
struct tier_counts {
    uint64_t n_blocks; /* of TIER_BLOCK bytes read */
    uint64_t n_reads;
    uint64_t n_slots; /* of head groups that were asked for, */
    uint64_t n_pooled; /* and of these, in the pool */
    uint64_t n_written; /* bytes */
    int64_t wait_ns;  /* that the caller waited for reads, */
    int64_t land_ns;  /* put them into pages, */
    int64_t keep_ns;  /* and took new rows out of them */
};

uint64_t tier_bytes(const struct tier_config *c); /* memory */
uint64_t tier_file_bytes(const struct tier_config *c);
/* Bytes read of one store for a prompt in whole chunks. deep: the store is written before it is read,
 * and read by the prompt's last chunk alone. */
uint64_t tier_prompt_bytes(const struct tier_config *c, int32_t n_prompt, int32_t chunk, bool deep);

int tier_create(const struct tier_config *c, struct backend *be, const char *dir,
                const struct tier_calls *calls, struct tier **ret,
                struct error *reterr) WARN_UNUSED;
void tier_destroy(struct tier *t); /* takes NULL */

/* Fills layout, pool, pages and max_pages: of the staging store; of the partial keys of a store, by
 * its number in the file. */
void tier_view(const struct tier *t, int32_t seq, struct ops_kv *kv);
void tier_part_view(const struct tier *t, int32_t seq, int32_t store, struct ops_kv *kv);

/* A sequence is admitted; which of its slots stay in memory. */
void tier_admit(struct tier *t, int32_t seq, const struct tier_pool_rule *rule);
/* What was fetched and has not landed is given up. */
void tier_drop(struct tier *t);
/* Of slots [from, n) of the store: those of an entry of `chosen`, or all (NULL). The next row to be
 * kept, or the one kept last, is n - 1 or n. */
void tier_fetch(struct tier *t, int32_t seq, int32_t store, int32_t from, int32_t n,
                const struct ops_chosen *chosen, int32_t entry);
/* What was fetched of the store is put where attention reads it. */
int tier_land(struct tier *t, int32_t store) WARN_UNUSED;
/* Rows from slot0 on are about to be written into the staging store; rows [slot0, slot0 + n) were. */
int tier_open(struct tier *t, int32_t seq, int32_t store, int32_t slot0) WARN_UNUSED;
int tier_keep(struct tier *t, int32_t seq, int32_t store, int32_t slot0, int32_t n) WARN_UNUSED;

/* What snapshots hold of a sequence at rest with n slots a group (kernels/ops.h, canonical form):
 * stores in order, of each one group after the other, slots in order. From begin to end the sequence
 * takes part in no step. */
void tier_save_begin(struct tier *t, int32_t seq, int32_t n);
/* Would the next call wait for slots up to this one? Collects what has arrived. */
bool tier_save_waits(struct tier *t, int32_t seq, int32_t store, int32_t slot);
/* Slots [slot0, slot0 + n) of a group. Negative errno: they have been lost (tier_failed). */
int tier_save_slots(struct tier *t, int32_t seq, int32_t store, int32_t group, int32_t slot0,
                    int32_t n, void *to) WARN_UNUSED;
void tier_save_end(struct tier *t, int32_t seq); /* also where nothing has begun */

int tier_failed(struct tier *t, int32_t seq, struct error *ret);
/* The sequence is free: nothing of it is on its way any more. */
void tier_release(struct tier *t, int32_t seq);

void tier_counts(const struct tier *t, struct tier_counts *ret);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_SNAPSHOT_H
#define PIPIT_ENGINE_KV_SNAPSHOT_H

/* A sequence in one block of memory: its tokens, and of each store the slots in canonical form
 * (kernels/ops.h), positions and scores. Independent of backend, pages and seats, so it may be
 * restored elsewhere: the same model, policy and precision are all it asks for. Little-endian.
 *
 * A block may come from a disk or a client and is not trusted: snapshot_check() looks at every
 * number before anything is used, and what follows cannot write outside the sequence's slots. */

#include "engine/kv/cache.h"

/* What a snapshot says of itself. */
struct snapshot_info {
    char policy[POLICY_TEXT_MAX]; /* canonical */
    const int32_t *tokens;        /* (n_tokens) in the block */
    int32_t n_tokens;
    int32_t n_slots;
    int32_t budget;
};

uint64_t snapshot_bytes(const struct cache *c, int32_t seat);

/* identity: 64 characters that name the model and its overlays. tokens: (n_tokens of the seat).
 * buf: snapshot_bytes(). */
int snapshot_save(struct cache *c, int32_t seat, const char identity[64], const int32_t *tokens,
                  void *buf) WARN_UNUSED;

/* -EBADMSG for a broken block or another model; -ENOTSUP for a version or a layout that this cache
 * does not have. `p`: the policy that the sequence is to go on with; -EINVAL where it was saved under
 * another. */
int snapshot_check(const struct cache *c, const void *buf, size_t size, const char identity[64],
                   const struct policy *p, struct snapshot_info *ret, struct error *reterr) WARN_UNUSED;

/* The positions that a store's group held when this block was made (by this process: it is not checked
 * as above): *ret (n_slots) in the block, NULL where slot is position. -ENOENT: no such store or group. */
int snapshot_positions(const void *buf, size_t size, int32_t store, int32_t group,
                       const int32_t **ret, int32_t *ret_n) WARN_UNUSED;

/* Fills a seat that has just been sat down on with room for it; buf has passed the check. */
int snapshot_load(struct cache *c, int32_t seat, const void *buf) WARN_UNUSED;

#endif

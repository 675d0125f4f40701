/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_SNAPSHOT_H
#define PIPIT_ENGINE_KV_SNAPSHOT_H

/* A sequence as one block of bytes: its tokens, and of each store the slots in canonical form
 * (kernels/ops.h), positions and scores. Independent of backend, pages and seats, so it may be
 * restored elsewhere: the same model, policy and precision are all it asks for. Little-endian.
 *
 * A block is written and read as a stream, so that neither way takes memory of its size: what is
 * small (header, tokens, positions, scores) is held, the slots pass through a buffer.
 *
 * A block may come from a disk or a client and is not trusted, nor is its reader to say the same
 * twice: snapshot_open() copies what is small and looks at every number of the copy, and only the
 * copy is used; slots, which are read when they are loaded, may hold anything. */

#include "engine/kv/cache.h"

/* Where a block lies: all n bytes from `at` on, or a negative errno. */
struct snapshot_source {
    int (*read)(void *arg, uint64_t at, void *buf, size_t n);
    void *arg;
    uint64_t size;
};

/* Where it goes: the next n bytes. 0 or a negative errno. */
struct snapshot_sink {
    int (*write)(void *arg, const void *data, size_t n);
    void *arg;
};

/* A block that was looked at. */
struct snapshot {
    struct snapshot_source source;
    char policy[POLICY_TEXT_MAX]; /* canonical */
    const int32_t *tokens;        /* (n_tokens) */
    int32_t n_tokens;
    int32_t n_slots;
    int32_t budget;
    uint8_t *held; /* the block without its slots, and a buffer for those behind it */
    uint64_t held_bytes;
};

uint64_t snapshot_bytes(const struct cache *c, int32_t seat);

/* identity: 64 characters that name the model and its overlays. tokens: (n_tokens of the seat).
 * Writes snapshot_bytes(). -ENOMEM, or what the sink said. */
int snapshot_save(struct cache *c, int32_t seat, const char identity[64], const int32_t *tokens,
                  const struct snapshot_sink *sink) WARN_UNUSED;

/* -EBADMSG for a broken block or another model; -ENOTSUP for a version or a layout that this cache
 * does not have; -ENOMEM for a policy whose pages were not planned. `p`: the policy that the sequence is to go on with; -EINVAL where it was saved
 * under another. */
int snapshot_open(const struct cache *c, const struct snapshot_source *source,
                  const char identity[64], const struct policy *p, struct snapshot **ret,
                  struct error *reterr) WARN_UNUSED;
void snapshot_close(struct snapshot *s); /* takes NULL */

/* Fills a seat that has just been sat down on with room for it. *ret_read: what the source said, if
 * it failed; the seat must then be left. Another failure is the device's. */
int snapshot_load(struct cache *c, int32_t seat, const struct snapshot *s,
                  int *ret_read) WARN_UNUSED;

/* The positions that a store's group held when this block in memory was made (by this process: it
 * is not looked at as above): *ret (n_slots) in the block, NULL where slot is position. -ENOENT: no
 * such store or group. */
int snapshot_positions(const void *buf, size_t size, int32_t store, int32_t group,
                       const int32_t **ret, int32_t *ret_n) WARN_UNUSED;

#endif

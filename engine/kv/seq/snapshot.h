/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_SEQ_SNAPSHOT_H
#define PIPIT_ENGINE_KV_SEQ_SNAPSHOT_H

/* A sequence as one block of bytes: its tokens, and of each store the slots in canonical form
 * (kernels/ops.h), positions and scores. Independent of backend, pages and sequences, and of
 * whether K and V lie in memory or in a file, so it may be restored elsewhere: the same model,
 * policy (but for that) and precision are all it asks for. Little-endian.
 *
 * A block is written and read as a stream, so that neither way takes memory of its size. Writing is
 * in slices, as large as the caller's buffer, between which other sequences go on; reading holds
 * what is small (header, tokens, positions, scores), and the slots pass through a buffer, in
 * slices, too.
 *
 * A block may come from a disk or a client and is not trusted, nor is its reader to say the same
 * twice: snapshot_open() copies what is small and looks at every number of the copy, and only the
 * copy is used; slots, which are read when they are loaded, may hold anything. */

#include "engine/kv/policy/policy.h"

struct cache;

/* Where a block lies: all n bytes from `at` on, or a negative errno. */
struct snapshot_source {
    int (*read)(void *arg, uint64_t at, void *buf, size_t n);
    void *arg;
    uint64_t size;
};

/* A block that was looked at. */
struct snapshot {
    struct snapshot_source source;
    char policy[KV_TEXT_MAX]; /* canonical */
    const int32_t *tokens;    /* (n_tokens) */
    int32_t n_tokens;
    int32_t n_slots; /* of the store that has most of those that evict */
    int32_t *slots;  /* (n_stores) */
    int32_t *first;  /* (n_groups of all stores) as cache_seq.first, or NULL */
    int32_t budget;
    uint8_t *held; /* the block without its slots, and a buffer for those behind it */
    uint64_t held_bytes;
    /* How far it is loaded: the next slots. */
    bool begun;
    int32_t n_stores;
    int32_t store;
    int32_t group;
    int32_t slot;
    int32_t kept;     /* of a store that lies in the tier's file: slots that it has taken */
    uint64_t held_at; /* the next byte in what is held, */
    uint64_t at;      /* and in the block */
};

uint64_t snapshot_bytes(const struct cache *c, int32_t seq);

/* A block on its way out: snapshot_bytes() in all. The sequence rests until the end. */
struct snapshot_writer;

/* identity: 64 characters that name the model and its overlays. tokens: (n_tokens of the sequence),
 * kept by the caller. -ENOMEM. */
int snapshot_writer_create(struct cache *c, int32_t seq, const char identity[64],
                           const int32_t *tokens, struct snapshot_writer **ret) WARN_UNUSED;
void snapshot_writer_destroy(struct snapshot_writer *w); /* takes NULL */
/* The least buffer that snapshot_next() can go on with. */
size_t snapshot_least(const struct snapshot_writer *w);
/* Would a call of snapshot_next() with a buffer of this size wait for the tier's file? */
bool snapshot_waits(struct snapshot_writer *w, size_t size);
/* The block's next bytes, as many as fit but for a part of a slot; *ret_n 0: that was all.
 * -ENOBUFS (less than snapshot_least()), the device's error, or the tier's (kv_failed). */
int snapshot_next(struct snapshot_writer *w, void *buf, size_t size, size_t *ret_n) WARN_UNUSED;

/* -EBADMSG for a broken block or another model; -ENOTSUP for a version or a layout that this cache
 * does not have; -ENOMEM for a policy whose pages were not planned. `p`: the policy that the
 * sequence is to go on with; -EINVAL where it was saved under another. */
int snapshot_open(const struct cache *c, const struct snapshot_source *source,
                  const char identity[64], const struct policy *p, struct snapshot **ret,
                  struct error *reterr) WARN_UNUSED;
void snapshot_close(struct snapshot *s); /* takes NULL */

/* Fills a sequence that has just been admitted with room for it, at least `least` bytes a call (or
 * all that are left), until snapshot_loaded(); the sequence rests meanwhile. *ret_read: what the
 * source said, if it failed; the sequence must then be left. Another failure is the device's. */
int snapshot_load(struct cache *c, int32_t seq, struct snapshot *s, uint64_t least,
                  uint64_t *ret_n, int *ret_read) WARN_UNUSED;
static inline bool snapshot_loaded(const struct snapshot *s)
{
    return s->begun && s->store == s->n_stores;
}

/* The positions that a store's group held when this block in memory was made (by this process: it
 * is not looked at as above): *ret (n_slots) in the block, NULL where slot is position. -ENOENT: no
 * such store or group. */
int snapshot_positions(const void *buf, size_t size, int32_t store, int32_t group,
                       const int32_t **ret, int32_t *ret_n) WARN_UNUSED;

#endif

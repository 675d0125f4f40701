/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_JOURNAL_FORMAT_H
#define PIPIT_DAEMON_FRONT_JOURNAL_FORMAT_H

/* The journal's bytes, for journal.c, which writes them, and journal_adopt.c, which reads those of
 * a front that was killed. The first blocks hold
 *
 *     struct journal_super
 *     u64 begins[]         a bit a block: an entry of which clients know begins there
 *
 * A killed writer leaves what its stores in program order made. So there is one store that makes
 * each thing true, after all that belongs to it: an event's is its block's `end`, a block's is the
 * `next` before it, an entry's is its bit in `begins`, which goes first when the entry does. */

#include "daemon/front/journal.h"

#define JOURNAL_SUPER_MAGIC 0x344c4e4a54504950ull /* "PIPTJNL4" */

struct journal_super {
    uint64_t magic;
    uint32_t n_blocks;
    uint32_t n_reserved;  /* blocks of this and of `begins` */
    uint32_t n_adoptions; /* since the last front that ran for a while */
    uint32_t pad[11];
};

struct block_header {
    uint32_t next; /* block, or JOURNAL_NONE */
    uint32_t end;  /* offset behind the last event */
};

struct event_header {
    uint16_t type;
    uint16_t flags;
    uint32_t body_bytes;
};

_Static_assert(sizeof(struct journal_super) == 64, "format");
_Static_assert(sizeof(struct journal_head) % 8 == 0, "format");

/* No store before it moves behind it: the compiler's order is all that a signal can see. */
#define JOURNAL_COMMIT(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)

static inline uint8_t *journal_at(const struct journal *j, uint32_t block, uint32_t offset)
{
    return j->map + (size_t)block * JOURNAL_BLOCK + offset;
}

static inline struct block_header *journal_header(const struct journal *j, uint32_t block)
{
    return (struct block_header *)(void *)journal_at(j, block, 0);
}

static inline struct journal_super *journal_super(const struct journal *j)
{
    return (struct journal_super *)(void *)j->map;
}

static inline uint64_t *journal_begins(const struct journal *j)
{
    return (uint64_t *)(void *)(j->map + sizeof(struct journal_super));
}

static inline bool journal_is_used(const struct journal *j, uint32_t b)
{
    return j->used[b / 64] & (1ull << (b % 64));
}

static inline uint32_t journal_blocks_for(uint64_t bytes)
{
    return (uint32_t)(bytes / JOURNAL_BLOCK + (bytes % JOURNAL_BLOCK != 0));
}

/* Takes `n` blocks from `first` on for that user's slot, or gives them back. */
void journal_mark(struct journal *j, uint32_t user, uint32_t first, uint32_t n, bool used);
/* The part of a body that says something. */
uint32_t journal_body_bytes(const struct lane_record *r);
/* The event at e->end has been written: what cursors may see now. */
void journal_see(struct journal_entry *e, const struct lane_record *r);
/* Maps `fd`, of that size, which the journal then owns; the reserved blocks are taken. */
int journal_map(int fd, size_t size, struct journal *ret, struct error *reterr) WARN_UNUSED;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_JOURNAL_H
#define PIPIT_DAEMON_FRONT_JOURNAL_H

/* The front's record of requests: a memfd of fixed size, in blocks of 4 KiB. Each entry holds the
 * one copy of a request's items (which the engine maps read-only and reads) and a compact log of
 * every event it has had. The log is also the send buffer: a lane reads it with a cursor, so a
 * slow client, a RESUME and a replay all read the same bytes.
 *
 *     entry ─▶ first log block: header, head, events ... ─next─▶ block ─next─▶ block
 *          └─▶ contiguous blocks: TLVs        (└▶ contiguous blocks: token ids of a replay)
 *
 * One block is held back for every entry's last event (final), so that an answer whose log fills
 * the journal still ends truthfully. Nothing in the memfd is a pointer: a successor reads it, after
 * a front was killed (journal_format.h has the layout, and what a kill in the middle leaves).
 *
 * A LANE_ALT (and a generated token's LANE_BULK) is visible to cursors only when the token after it
 * has come, so that an engine's death between the two leaves no half token: journal_rewind() drops
 * it. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/lane/record.h"

enum { JOURNAL_BLOCK = 4096, JOURNAL_NONE = UINT32_MAX };
#define JOURNAL_MAGIC 0x334c4e4a54504950ull /* "PIPTJNL3" */

/* What a successor of this front needs to know of a request; at the start of the first log block.
 */
struct journal_head {
    uint64_t magic;
    uint64_t number;
    uint8_t id[16];
    uint32_t uid;
    uint32_t tenant_len;
    uint8_t tenant[64];
    uint32_t kind;
    uint32_t flags;
    int32_t urgency;
    uint32_t tlv_bytes;
    uint64_t tlv_offset;
    uint64_t seed;
    /* These change while the request lives: journal_head(). */
    uint32_t running; /* 1: an engine has it */
    uint32_t n_crashes;
    uint32_t stop_reason;
    uint32_t n_suspected; /* of n_crashes, those that nobody else was found guilty of */
    uint64_t model; /* whose words they are: the first half of its identity's digits; 0: not known */
    int64_t accepted_ns; /* CLOCK_MONOTONIC */
    int64_t deadline_ns; /* 0: none */
};

/* Users have slots by person (persons.h); two that share one share its limit. */
enum { JOURNAL_USERS = 256 };

struct journal {
    int fd; /* read-write, the front's */
    uint8_t *map;
    size_t size;
    uint32_t n_blocks;
    uint32_t n_reserved; /* the first blocks, which say where entries begin */
    uint32_t n_free;
    uint32_t n_entries;             /* blocks held back for last events */
    uint32_t n_used[JOURNAL_USERS]; /* blocks; one user's are at most 7/8 of all */
    uint64_t *used;                 /* bitmap; bits past n_blocks are set */
};

struct journal_cursor {
    uint32_t block;
    uint32_t offset; /* in the block */
    uint64_t seq;    /* of the event that is read next */
};

/* Cursors in a log's way, evenly apart and closer than an eighth of it: a seek walks from one. */
enum { JOURNAL_MARKS = 32, JOURNAL_MARK_FIRST = 64 };

struct journal_entry {
    uint32_t first;
    uint32_t tlv_block; /* JOURNAL_NONE without items */
    uint32_t tlv_bytes;
    uint32_t forced_block;
    uint32_t n_forced_blocks;
    uint32_t user;              /* slot in n_used */
    struct journal_cursor end;  /* where the next event goes */
    struct journal_cursor seen; /* cursors read up to here */
    struct journal_cursor marks[JOURNAL_MARKS]; /* (n_marks) */
    uint32_t n_marks;
    uint64_t mark_every; /* events */
    uint64_t n_tokens;          /* LANE_TOKEN events seen */
    uint64_t text_bytes;        /* of LANE_TOKEN and LANE_TEXT events seen */
    bool hold_bulk;             /* a generated answer: LANE_BULK belongs to the token after it */
    bool finished;
};

int journal_open(size_t size, struct journal *ret, struct error *reterr) WARN_UNUSED;
void journal_close(struct journal *j); /* takes a zeroed one */

/* A new entry with room for tlv_bytes of items at journal_tlv(). -EBUSY when it does not fit now,
 * -EDQUOT when it would take the user over 7/8 of the journal. */
int journal_begin(struct journal *j, const struct journal_head *head, uint32_t person,
                  struct journal_entry *ret) WARN_UNUSED;
/* From now on the entry is a successor's, too: clients know of it. */
void journal_commit(struct journal *j, const struct journal_entry *e);
struct journal_head *journal_head(const struct journal *j, const struct journal_entry *e);
uint8_t *journal_tlv(struct journal *j, const struct journal_entry *e);
uint64_t journal_tlv_offset(const struct journal_entry *e);
void journal_end(struct journal *j, struct journal_entry *e);

/* Numbers an event and writes it. LANE_DONE and LANE_ERROR finish the entry. -ENOSPC when the
 * journal is full, -EDQUOT when the user has 7/8 of it (never for a finishing event). */
int journal_append(struct journal *j, struct journal_entry *e, struct lane_record *r) WARN_UNUSED;

/* Forgets events that no cursor may see yet. */
void journal_rewind(struct journal *j, struct journal_entry *e);

/* A cursor before event `seq`, found in some microseconds wherever it is; false when there has not
 * been one of that number and it is not the next. */
bool journal_seek(const struct journal *j, const struct journal_entry *e, uint64_t seq,
                  struct journal_cursor *ret);

/* The next event, as it was appended: true, or false at the end. */
bool journal_read(const struct journal *j, const struct journal_entry *e, struct journal_cursor *c,
                  struct lane_record *ret);

/* Writes the token ids said so far to blocks of their own: their offset and number. -EBUSY,
 * -EDQUOT. */
int journal_forced(struct journal *j, struct journal_entry *e, uint64_t *ret_offset,
                   uint32_t *ret_n) WARN_UNUSED;

/* The journal of a front that was killed. Takes over `fd`, also after a failure. -EBADMSG with the
 * cause: it is none, of another size, or too many fronts in a row died with it; when this one has
 * run for a while, journal_steady() says that it did not. */
int journal_adopt(int fd, size_t size, struct journal *ret, struct error *reterr) WARN_UNUSED;
void journal_steady(struct journal *j);

/* Its entries, one after the other, before any journal_begin(): *at is 0 at first. Those that are
 * not sound are left out and counted. false: there are no more. */
bool journal_next(struct journal *j, uint32_t *at, struct journal_head *ret_head,
                  struct journal_entry *ret, uint32_t *ret_bad);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Entries, their logs and cursors. An event in the log is 8 bytes {type, flags, body bytes} and the
 * used part of the body, rounded up to 8: a token with its few bytes of text takes 32 bytes, not
 * 256, so an answer of 2048 tokens holds 64 KiB.
 *
 * Blocks come from a bitmap by first fit; the front is one thread, a block's contents are only ever
 * written by it, and the engine reads nothing but items and forced ids, which do not change while a
 * request runs. */

#include "daemon/front/journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "base/hot.h"
#include "daemon/front/arena.h"
#include "daemon/front/journal_format.h"

int journal_map(int fd, size_t size, struct journal *ret, struct error *reterr)
{
    struct journal j = {.fd = fd, .size = size, .n_blocks = (uint32_t)(size / JOURNAL_BLOCK)};
    size_t words = (j.n_blocks + 63) / 64;
    int rc;

    j.n_reserved = journal_blocks_for(sizeof(struct journal_super) + words * sizeof(*j.used));
    j.map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, j.fd, 0);
    if (j.map == MAP_FAILED) {
        rc = error_set_errno(reterr, -errno, "cannot map the journal of %zu bytes", size);
        close_fd(&j.fd);
        return rc;
    }
    j.used = calloc(words, sizeof(*j.used));
    if (!j.used) {
        (void)munmap(j.map, size);
        close_fd(&j.fd);
        return error_set(reterr, -ENOMEM, "no memory for the journal's bitmap");
    }
    for (size_t b = 0; b < words * 64; b++) {
        if (b < j.n_reserved || b >= j.n_blocks) {
            j.used[b / 64] |= 1ull << (b % 64);
        }
    }
    j.n_free = j.n_blocks - j.n_reserved;
    *ret = j;
    return 0;
}

int journal_open(size_t size, struct journal *ret, struct error *reterr)
{
    struct journal j;
    int fd;
    int rc = arena_memfd("pipit-journal", size, 0600, &fd, reterr);

    rc = rc ? rc : journal_map(fd, size, &j, reterr);
    if (rc) {
        return rc;
    }
    *journal_super(&j) = (struct journal_super){
        .magic = JOURNAL_SUPER_MAGIC, .n_blocks = j.n_blocks, .n_reserved = j.n_reserved};
    *ret = j;
    return 0;
}

void journal_close(struct journal *j)
{
    if (j->map) {
        (void)munmap(j->map, j->size);
        close_fd(&j->fd);
    }
    free(j->used);
    *j = (struct journal){.fd = -1};
}

void journal_mark(struct journal *j, uint32_t user, uint32_t first, uint32_t n, bool used)
{
    for (uint32_t b = first; b < first + n; b++) {
        uint64_t bit = 1ull << (b % 64);

        j->used[b / 64] = used ? j->used[b / 64] | bit : j->used[b / 64] & ~bit;
    }
    j->n_free = used ? j->n_free - n : j->n_free + n;
    j->n_used[user] += used ? n : -n;
}

/* `n` blocks in a row, leaving those that are held back. -ENOSPC; -EDQUOT where it is the user who
 * has too many. */
static int take(struct journal *j, uint32_t user, uint32_t n, bool final, uint32_t *ret)
{
    uint32_t run = 0;

    if (!final && j->n_used[user] + n > j->n_blocks - j->n_blocks / 8) {
        return -EDQUOT;
    }
    if (n > j->n_free || (!final && j->n_free - n < j->n_entries)) {
        return -ENOSPC;
    }
    for (uint32_t b = 0; b < j->n_blocks; b++) {
        if (run == 0 && b % 64 == 0 && j->used[b / 64] == UINT64_MAX) {
            b += 63;
            continue;
        }
        run = journal_is_used(j, b) ? 0 : run + 1;
        if (run == n) {
            journal_mark(j, user, b + 1 - n, n, true);
            *ret = b + 1 - n;
            return 0;
        }
    }
    return -ENOSPC;
}

int journal_begin(struct journal *j, const struct journal_head *head, uint32_t person,
                  struct journal_entry *ret)
{
    struct journal_entry e = {
        .tlv_block = JOURNAL_NONE,
        .tlv_bytes = head->tlv_bytes,
        .forced_block = JOURNAL_NONE,
        .user = person % JOURNAL_USERS,
    };
    struct journal_head h = *head;
    int rc;

    /* Counted first: the block for its last event is held back from its own first one, too. */
    j->n_entries++;
    rc = take(j, e.user, 1, false, &e.first);
    if (rc) {
        j->n_entries--;
        return rc == -EDQUOT ? rc : -EBUSY;
    }
    if (head->tlv_bytes) {
        rc = take(j, e.user, journal_blocks_for(head->tlv_bytes), false, &e.tlv_block);
        if (rc) {
            journal_end(j, &e);
            return rc == -EDQUOT ? rc : -EBUSY;
        }
        h.tlv_offset = journal_tlv_offset(&e);
    }
    h.magic = JOURNAL_MAGIC;
    memcpy(journal_at(j, e.first, sizeof(struct block_header)), &h, sizeof(h));
    e.end = (struct journal_cursor){
        .block = e.first, .offset = sizeof(struct block_header) + sizeof(h), .seq = 1};
    *journal_header(j, e.first) = (struct block_header){.next = JOURNAL_NONE, .end = e.end.offset};
    e.seen = e.end;
    *ret = e;
    return 0;
}

uint8_t *journal_tlv(struct journal *j, const struct journal_entry *e)
{
    return journal_at(j, e->tlv_block, 0);
}

uint64_t journal_tlv_offset(const struct journal_entry *e)
{
    return e->tlv_block == JOURNAL_NONE ? 0 : (uint64_t)e->tlv_block * JOURNAL_BLOCK;
}

static void drop_forced(struct journal *j, struct journal_entry *e)
{
    if (e->forced_block != JOURNAL_NONE) {
        journal_mark(j, e->user, e->forced_block, e->n_forced_blocks, false);
        e->forced_block = JOURNAL_NONE;
    }
}

static void set_begin(struct journal *j, const struct journal_entry *e, bool on)
{
    uint64_t *word = &journal_begins(j)[e->first / 64];
    uint64_t bit = 1ull << (e->first % 64);

    JOURNAL_COMMIT(*word, on ? *word | bit : *word & ~bit);
}

void journal_commit(struct journal *j, const struct journal_entry *e)
{
    set_begin(j, e, true);
}

struct journal_head *journal_head(const struct journal *j, const struct journal_entry *e)
{
    return (struct journal_head *)(void *)journal_at(j, e->first, sizeof(struct block_header));
}

void journal_end(struct journal *j, struct journal_entry *e)
{
    drop_forced(j, e);
    set_begin(j, e, false);
    if (e->tlv_block != JOURNAL_NONE) {
        journal_mark(j, e->user, e->tlv_block, journal_blocks_for(e->tlv_bytes), false);
    }
    /* A half-made entry has one block and no header yet. */
    for (uint32_t b = e->first; b != JOURNAL_NONE;) {
        uint32_t next = e->end.seq ? journal_header(j, b)->next : JOURNAL_NONE;

        journal_mark(j, e->user, b, 1, false);
        b = next;
    }
    if (!e->finished) {
        j->n_entries--;
    }
    *e = (struct journal_entry){
        .first = JOURNAL_NONE, .tlv_block = JOURNAL_NONE, .forced_block = JOURNAL_NONE};
}

HOT uint32_t journal_body_bytes(const struct lane_record *r)
{
    switch (r->h.type) {
    case LANE_TOKEN:
    case LANE_TEXT:
        return (uint32_t)offsetof(struct lane_token, text) + r->token.text_len;
    case LANE_ALT:
        return (uint32_t)offsetof(struct lane_alt, text) + r->alt.text_len;
    case LANE_ERROR:
        return (uint32_t)(offsetof(struct lane_error, text) + strlen(r->error.text) + 1);
    default:
        return r->h.size - (uint32_t)sizeof(struct lane_header);
    }
}

/* Where there are too many, every other one goes. */
static void mark(struct journal_entry *e)
{
    if (e->mark_every == 0) {
        e->mark_every = JOURNAL_MARK_FIRST;
        return;
    }
    if (e->n_marks == JOURNAL_MARKS) {
        for (uint32_t i = 0; i < JOURNAL_MARKS / 2; i++) {
            e->marks[i] = e->marks[2 * i + 1];
        }
        e->n_marks = JOURNAL_MARKS / 2;
        e->mark_every *= 2;
    }
    e->marks[e->n_marks++] = e->seen;
}

HOT void journal_see(struct journal_entry *e, const struct lane_record *r)
{
    if (r->h.type == LANE_ALT || (r->h.type == LANE_BULK && e->hold_bulk)) {
        return;
    }
    if (r->h.type == LANE_TOKEN || r->h.type == LANE_TEXT) {
        e->n_tokens += r->h.type == LANE_TOKEN;
        e->text_bytes += r->token.text_len;
    }
    e->seen = e->end;
    if (e->seen.seq >= e->mark_every * (e->n_marks + 1)) {
        mark(e);
    }
}

HOT int journal_append(struct journal *j, struct journal_entry *e, struct lane_record *r)
{
    bool final = r->h.type == LANE_DONE || r->h.type == LANE_ERROR;
    uint32_t body = journal_body_bytes(r);
    uint32_t need = (uint32_t)sizeof(struct event_header) + (uint32_t)checked_round_up(body, 8);
    struct event_header eh = {.type = r->h.type, .flags = r->h.flags, .body_bytes = body};

    if (final && e->end.seq != e->seen.seq) {
        journal_rewind(j, e);
    }
    if (JOURNAL_BLOCK - e->end.offset < need) {
        uint32_t b;
        int rc = take(j, e->user, 1, final, &b);

        if (rc) {
            return rc;
        }
        *journal_header(j, b) =
            (struct block_header){.next = JOURNAL_NONE, .end = sizeof(struct block_header)};
        JOURNAL_COMMIT(journal_header(j, e->end.block)->next, b);
        e->end.block = b;
        e->end.offset = sizeof(struct block_header);
    }
    memcpy(journal_at(j, e->end.block, e->end.offset), &eh, sizeof(eh));
    memcpy(journal_at(j, e->end.block, e->end.offset + (uint32_t)sizeof(eh)), r->bytes, body);
    e->end.offset += need;
    JOURNAL_COMMIT(journal_header(j, e->end.block)->end, e->end.offset);
    r->h.seq = e->end.seq++;
    journal_see(e, r);
    if (final && !e->finished) {
        e->finished = true;
        j->n_entries--;
    }
    return 0;
}

void journal_rewind(struct journal *j, struct journal_entry *e)
{
    uint32_t b = journal_header(j, e->seen.block)->next;

    while (b != JOURNAL_NONE) {
        uint32_t next = journal_header(j, b)->next;

        journal_mark(j, e->user, b, 1, false);
        b = next;
    }
    *journal_header(j, e->seen.block) =
        (struct block_header){.next = JOURNAL_NONE, .end = e->seen.offset};
    e->end = e->seen;
}

/* The header of the event at the cursor, which is moved to its block. */
HOT static void next_event(const struct journal *j, struct journal_cursor *c,
                           struct event_header *ret)
{
    if (c->offset >= journal_header(j, c->block)->end) {
        c->block = journal_header(j, c->block)->next;
        c->offset = sizeof(struct block_header);
    }
    memcpy(ret, journal_at(j, c->block, c->offset), sizeof(*ret));
}

HOT bool journal_read(const struct journal *j, const struct journal_entry *e,
                      struct journal_cursor *c, struct lane_record *ret)
{
    struct event_header eh;

    if (c->seq >= e->seen.seq) {
        return false;
    }
    next_event(j, c, &eh);
    lane_record_init(ret, eh.type, (const uint8_t *)NULL);
    ret->h.flags = eh.flags;
    ret->h.seq = c->seq++;
    memcpy(ret->bytes, journal_at(j, c->block, c->offset + (uint32_t)sizeof(eh)), eh.body_bytes);
    c->offset += (uint32_t)(sizeof(eh) + checked_round_up(eh.body_bytes, 8));
    return true;
}

bool journal_seek(const struct journal *j, const struct journal_entry *e, uint64_t seq,
                  struct journal_cursor *ret)
{
    struct journal_cursor c = {.block = e->first,
                               .offset = sizeof(struct block_header) + sizeof(struct journal_head),
                               .seq = 1};
    uint32_t n = e->n_marks;

    if (seq < 1 || seq > e->seen.seq) {
        return false;
    }
    if (seq == e->seen.seq) {
        *ret = e->seen;
        return true;
    }
    while (n > 0 && e->marks[n - 1].seq > seq) {
        n--;
    }
    c = n > 0 ? e->marks[n - 1] : c;
    while (c.seq < seq) {
        struct event_header eh;

        next_event(j, &c, &eh);
        c.offset += (uint32_t)(sizeof(eh) + checked_round_up(eh.body_bytes, 8));
        c.seq++;
    }
    *ret = c;
    return true;
}

int journal_forced(struct journal *j, struct journal_entry *e, uint64_t *ret_offset,
                   uint32_t *ret_n)
{
    struct journal_cursor c = {0};
    struct lane_record r;
    uint32_t n = 0;
    int rc;

    drop_forced(j, e);
    *ret_offset = 0;
    *ret_n = 0;
    if (e->n_tokens == 0) {
        return 0;
    }
    e->n_forced_blocks = journal_blocks_for(e->n_tokens * sizeof(int32_t));
    rc = take(j, e->user, e->n_forced_blocks, false, &e->forced_block);
    if (rc) {
        return rc == -EDQUOT ? rc : -EBUSY;
    }
    (void)journal_seek(j, e, 1, &c);
    while (journal_read(j, e, &c, &r)) {
        if (r.h.type == LANE_TOKEN) {
            memcpy(journal_at(j, e->forced_block, 0) + (size_t)n * sizeof(int32_t), &r.token.token,
                   sizeof(int32_t));
            n++;
        }
    }
    *ret_offset = (uint64_t)e->forced_block * JOURNAL_BLOCK;
    *ret_n = n;
    return 0;
}

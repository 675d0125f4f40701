/* SPDX-License-Identifier: Apache-2.0 */
/* The journal of a front that was killed, from systemd's file-descriptor store. Nothing in it is
 * trusted, because it may have been killed for what was done to it: every block is in range and
 * belongs to one entry only, every event is whole and a record that a front may send, and what a
 * request's head says is what a client could have asked for. An entry that fails is left out, the
 * others are taken. */

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "daemon/front/journal.h"
#include "daemon/front/journal_format.h"

enum { ADOPTIONS_MOST = 5 };

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define FLAGS (LANE_F_DETACH | LANE_F_PRINCIPAL | LANE_F_PROGRESS | LANE_F_SESSION)

int journal_adopt(int fd, size_t size, struct journal *ret, struct error *reterr)
{
    AUTO_CLOSE int owned = fd;
    struct journal_super *s;
    struct journal j;
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    int rc;

    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || seals < 0 || (seals & SEALS) != SEALS) {
        return error_set(reterr, -EBADMSG, "it is no sealed memory file");
    }
    if ((uint64_t)st.st_size != size) {
        return error_set(reterr, -EBADMSG, "it has %lld bytes, journal-bytes are %zu now",
                         (long long)st.st_size, size);
    }
    rc = journal_map(STEAL_FD(owned), size, &j, reterr);
    if (rc) {
        return rc;
    }
    s = journal_super(&j);
    if (s->magic != JOURNAL_SUPER_MAGIC || s->n_blocks != j.n_blocks ||
        s->n_reserved != j.n_reserved) {
        rc = error_set(reterr, -EBADMSG, "it does not begin as a journal of this version");
    } else if (s->n_adoptions >= ADOPTIONS_MOST) {
        rc = error_set(reterr, -EBADMSG, "%u fronts in a row died with it", s->n_adoptions);
    }
    if (rc) {
        journal_close(&j);
        return rc;
    }
    s->n_adoptions++;
    *ret = j;
    return 0;
}

void journal_steady(struct journal *j)
{
    journal_super(j)->n_adoptions = 0;
}

static bool block_is_free(const struct journal *j, uint32_t b)
{
    return b >= j->n_reserved && b < j->n_blocks && !journal_is_used(j, b);
}

static bool head_is_sound(const struct journal *j, const struct journal_head *h)
{
    uint32_t first = (uint32_t)(h->tlv_offset / JOURNAL_BLOCK);
    uint32_t n = journal_blocks_for(h->tlv_bytes);

    if (h->magic != JOURNAL_MAGIC || h->tenant_len > sizeof(h->tenant) ||
        h->kind < LANE_KIND_GENERATE || h->kind > LANE_KIND_EMBED ||
        (h->flags & ~(uint32_t)FLAGS) || h->urgency < -100 || h->urgency > 100 ||
        h->stop_reason > LANE_REASON_ERROR || h->accepted_ns < 0 || h->deadline_ns < 0) {
        return false;
    }
    if (h->tlv_bytes == 0) {
        return true;
    }
    if (h->tlv_offset % JOURNAL_BLOCK || h->tlv_offset >= j->size || n > j->n_blocks - first) {
        return false;
    }
    for (uint32_t b = first; b < first + n; b++) {
        if (!block_is_free(j, b)) {
            return false;
        }
    }
    return true;
}

/* A front of an older version wrote the same types, some with fewer fields at their end: those are
 * zero. Where a text ends a record, its length says how many bytes there are. */
static bool is_whole(const struct lane_record *r, uint32_t body_bytes)
{
    uint32_t n = journal_body_bytes(r);

    switch (r->h.type) {
    case LANE_TOKEN:
    case LANE_TEXT:
    case LANE_ALT:
    case LANE_ERROR:
        return body_bytes == n;
    default:
        return body_bytes <= n;
    }
}

/* One event at e->end, of a block that ends there. */
static bool read_event(const struct journal *j, const struct journal_head *h,
                       struct journal_entry *e, uint32_t block_end)
{
    struct event_header eh;
    struct lane_record r;
    uint32_t left = block_end - e->end.offset;
    uint32_t need;

    if (left < sizeof(eh)) {
        return false;
    }
    memcpy(&eh, journal_at(j, e->end.block, e->end.offset), sizeof(eh));
    need = (uint32_t)sizeof(eh) + (eh.body_bytes + 7) / 8 * 8;
    if (eh.body_bytes > LANE_BODY_BYTES || need > left ||
        sizeof(struct lane_header) + eh.body_bytes > lane_record_size(eh.type)) {
        return false;
    }
    lane_record_init(&r, eh.type, h->id);
    memcpy(r.bytes, journal_at(j, e->end.block, e->end.offset + (uint32_t)sizeof(eh)),
           eh.body_bytes);
    if (eh.type < LANE_ACCEPTED || eh.type > LANE_ERROR || eh.type == LANE_PROGRESS ||
        (eh.type == LANE_ACCEPTED) != (e->end.seq == 1) || e->finished ||
        lane_record_check(&r, sizeof(r), LANE_PEER_FRONT, NULL) || !is_whole(&r, eh.body_bytes)) {
        return false;
    }
    e->end.offset += need;
    e->end.seq++;
    journal_see(e, &r);
    e->finished = eh.type == LANE_DONE || eh.type == LANE_ERROR;
    return true;
}

/* Its blocks are marked as they are read: an entry that comes back to one of its own fails, too. */
static bool read_log(struct journal *j, const struct journal_head *h, struct journal_entry *e)
{
    for (;;) {
        const struct block_header *b = journal_header(j, e->end.block);
        uint32_t end = b->end;
        uint32_t next = b->next;

        if (end > JOURNAL_BLOCK || end < e->end.offset) {
            return false;
        }
        while (e->end.offset < end) {
            if (!read_event(j, h, e, end)) {
                return false;
            }
        }
        if (next == JOURNAL_NONE) {
            return e->end.seq > 1;
        }
        if (!block_is_free(j, next)) {
            return false;
        }
        journal_mark(j, e->user, next, 1, true);
        e->end.block = next;
        e->end.offset = sizeof(struct block_header);
    }
}

/* Gives back what read_log() has marked: the chain up to where it stopped. */
static void unmark(struct journal *j, struct journal_entry *e)
{
    for (uint32_t b = e->first;; b = journal_header(j, b)->next) {
        journal_mark(j, e->user, b, 1, false);
        if (b == e->end.block) {
            break;
        }
    }
}

static bool take(struct journal *j, uint32_t first, struct journal_head *ret_head,
                 struct journal_entry *ret)
{
    struct journal_head h;
    struct journal_entry e = {
        .first = first,
        .tlv_block = JOURNAL_NONE,
        .forced_block = JOURNAL_NONE,
        .end = {.block = first, .offset = sizeof(struct block_header) + sizeof(h), .seq = 1}};

    memcpy(&h, journal_at(j, first, sizeof(struct block_header)), sizeof(h));
    if (!block_is_free(j, first) || !head_is_sound(j, &h)) {
        return false;
    }
    e.user = h.uid % JOURNAL_USERS;
    e.hold_bulk = h.kind == LANE_KIND_GENERATE || h.kind == LANE_KIND_CHAT;
    e.seen = e.end;
    if (h.tlv_bytes) {
        e.tlv_block = (uint32_t)(h.tlv_offset / JOURNAL_BLOCK);
        e.tlv_bytes = h.tlv_bytes;
        if (first >= e.tlv_block && first - e.tlv_block < journal_blocks_for(h.tlv_bytes)) {
            return false;
        }
        journal_mark(j, e.user, e.tlv_block, journal_blocks_for(h.tlv_bytes), true);
    }
    journal_mark(j, e.user, first, 1, true);
    if (!read_log(j, &h, &e)) {
        unmark(j, &e);
        if (h.tlv_bytes) {
            journal_mark(j, e.user, e.tlv_block, journal_blocks_for(h.tlv_bytes), false);
        }
        return false;
    }
    j->n_entries += !e.finished;
    *ret_head = h;
    *ret = e;
    return true;
}

bool journal_next(struct journal *j, uint32_t *at, struct journal_head *ret_head,
                  struct journal_entry *ret, uint32_t *ret_bad)
{
    uint64_t *begins = journal_begins(j);

    for (; *at < j->n_blocks; (*at)++) {
        uint64_t bit = 1ull << (*at % 64);

        if (!(begins[*at / 64] & bit)) {
            continue;
        }
        if (take(j, *at, ret_head, ret)) {
            (*at)++;
            return true;
        }
        begins[*at / 64] &= ~bit;
        (*ret_bad)++;
    }
    return false;
}

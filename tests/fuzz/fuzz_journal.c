/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the journal that a front finds after the one before it was killed. The input is a list of
 * changes to a journal: its first byte says which one (bit 0: empty, or with four requests in
 * it; bit 1: of another size; bit 2: not sealed); a change is a block, an offset in it, a length
 * (16 bits each) and so many bytes.
 *
 * Promises: it is refused with -EBADMSG and a text, or everything that a front does with its
 * entries works: each event is read once and in order, items lie in it, answers go on and end, and
 * every block is free at last. An entry that was taken once is taken again by the next front, and
 * says the same; one that was left out stays out. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/front/arena.h"
#include "daemon/front/journal.h"
#include "daemon/front/journal_format.h"
#include "tests/fuzz/fail.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCKS = 24, BYTES = BLOCKS * JOURNAL_BLOCK };

static void append(struct journal *j, struct journal_entry *e, uint32_t type, int32_t index)
{
    struct lane_record r;

    lane_record_init(&r, type, NULL);
    if (type == LANE_TOKEN) {
        r.token.index = index;
        r.token.token = index;
        r.token.text_len = 12;
        memcpy(r.token.text, "text, text, ", 12);
    } else if (type == LANE_DONE) {
        r.done.reason = LANE_REASON_LENGTH;
    }
    require(journal_append(j, e, &r) == 0);
}

/* An answer under way that ends in half a token, one that has ended, one without items, and one
 * that no client knows of. */
static void fill(struct journal *j)
{
    struct journal_head head = {.number = 70, .kind = LANE_KIND_CHAT, .uid = 1000, .id = {1}};
    struct journal_entry e;

    for (int i = 0; i < 4; i++, head.number++, head.id[0]++) {
        head.tlv_bytes = i == 2 ? 0 : 5000;
        require(journal_begin(j, &head, head.uid, &e) == 0);
        e.hold_bulk = true;
        append(j, &e, LANE_ACCEPTED, 0);
        for (int t = 0; t < (i == 0 ? 130 : i == 1 ? 3 : 0); t++) {
            append(j, &e, LANE_TOKEN, t);
        }
        if (i == 0) {
            append(j, &e, LANE_ALT, 0);
        } else if (i == 1) {
            append(j, &e, LANE_DONE, 0);
        }
        if (i != 3) {
            journal_commit(j, &e);
        }
    }
}

/* -1: a call failed. */
static int make(unsigned bits)
{
    struct error err = {0};
    struct journal j;
    int fd;
    int rc;

    if (bits & 4) {
        fd = memfd_create("plain", MFD_CLOEXEC);
        require(fd >= 0 && ftruncate(fd, BYTES) == 0);
        return fd;
    }
    fail_begin(FAIL_ALL);
    rc = journal_open(BYTES, &j, &err);
    fail_end();
    if (rc) {
        require(fail_hit() && err.code == rc && err.text[0]);
        return -1;
    }
    if (bits & 1) {
        fill(&j);
    }
    fd = dup(j.fd);
    journal_close(&j);
    return fd;
}

static void change(int fd, const uint8_t *p, size_t left)
{
    while (left >= 5) {
        size_t n = (size_t)(p[3] | p[4] << 8);
        off_t at = (p[0] % BLOCKS) * JOURNAL_BLOCK + ((p[1] | p[2] << 8) % JOURNAL_BLOCK);

        p += 5;
        left -= 5;
        n = n < left ? n : left;
        n = (off_t)n < BYTES - at ? n : (size_t)(BYTES - at);
        require(pwrite(fd, p, n, at) == (ssize_t)n);
        p += n;
        left -= n;
    }
}

/* Of all that can be read of an entry. */
static uint64_t read_entry(struct journal *j, const struct journal_head *h,
                           const struct journal_entry *e)
{
    uint64_t sum = 1469598103934665603u;
    struct journal_cursor c;
    struct lane_record r;
    uint64_t n = 0;

    require(journal_seek(j, e, 1, &c));
    while (journal_read(j, e, &c, &r)) {
        n++;
        memcpy(r.h.id, h->id, sizeof(r.h.id));
        require(r.h.seq == n && (n == 1) == (r.h.type == LANE_ACCEPTED));
        require(lane_record_check(&r, sizeof(r), LANE_PEER_FRONT, NULL) == 0);
        for (size_t i = 0; i < sizeof(r); i++) {
            sum = (sum ^ ((const uint8_t *)&r)[i]) * 1099511628211u;
        }
    }
    require(n + 1 == e->seen.seq);
    for (uint64_t seq = 1; seq <= n; seq += 1 + n / 8) {
        require(journal_seek(j, e, seq, &c) && journal_read(j, e, &c, &r) && r.h.seq == seq);
    }
    require(!journal_seek(j, e, n + 2, &c) && !journal_seek(j, e, 0, &c));
    if (e->tlv_bytes) {
        require(journal_tlv_offset(e) >= j->n_reserved * JOURNAL_BLOCK &&
                journal_tlv_offset(e) <= BYTES - (uint64_t)e->tlv_bytes);
        sum ^= journal_tlv(j, e)[e->tlv_bytes - 1];
    }
    return sum;
}

static uint32_t read_all(struct journal *j, struct journal_entry *e, uint64_t *sums)
{
    struct journal_head h;
    uint32_t bad = 0;
    uint32_t at = 0;
    uint32_t n = 0;

    while (journal_next(j, &at, &h, &e[n], &bad)) {
        require(h.magic == JOURNAL_MAGIC && h.tenant_len <= sizeof(h.tenant));
        sums[n] = read_entry(j, &h, &e[n]);
        n++;
        require(n < BLOCKS);
    }
    return n;
}

/* An answer goes on as far as there is room, and ends. */
static void go_on(struct journal *j, struct journal_entry *e)
{
    struct lane_record r;
    uint64_t offset;
    uint32_t n_forced;
    int rc;

    journal_rewind(j, e);
    rc = journal_forced(j, e, &offset, &n_forced);
    require(rc == -EBUSY || rc == -EDQUOT ||
            (rc == 0 && n_forced == e->n_tokens && offset <= BYTES - n_forced * sizeof(int32_t)));
    lane_record_init(&r, LANE_TOKEN, NULL);
    rc = journal_append(j, e, &r);
    require(rc == 0 || rc == -ENOSPC || rc == -EDQUOT);
    lane_record_init(&r, LANE_DONE, NULL);
    r.done.reason = LANE_REASON_LENGTH;
    rc = journal_append(j, e, &r);
    require(rc == 0 ? e->finished : rc == -ENOSPC);
}

/* The front goes on with it: requests until there is no room, each of which can still end. */
static void fill_up(struct journal *j, struct journal_entry *e)
{
    struct journal_head head = {.kind = LANE_KIND_GENERATE, .tlv_bytes = 6000};
    struct lane_record r;
    uint32_t n = 0;

    for (int refused = 0; n < BLOCKS && refused < 2; refused += head.tlv_bytes == 0) {
        int rc = journal_begin(j, &head, n, &e[n]);

        require(rc == 0 || rc == -EBUSY || rc == -EDQUOT);
        head.tlv_bytes = rc ? 0 : head.tlv_bytes;
        n += rc == 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        lane_record_init(&r, LANE_ERROR, NULL);
        r.error.code = LANE_ERR_BUSY;
        require(journal_append(j, &e[i], &r) == 0 && e[i].finished);
        journal_end(j, &e[i]);
    }
}

static int one(const uint8_t *data, size_t size)
{
    static struct journal_entry e[BLOCKS];
    uint64_t sums[2][BLOCKS];
    struct error err = {0};
    struct journal j;
    uint32_t n;
    int again;
    int fd;
    int rc;

    if (size == 0) {
        return 0;
    }
    fd = make(data[0]);
    if (fd < 0) {
        return 0;
    }
    change(fd, data + 1, size - 1);
    again = dup(fd);
    fail_begin(FAIL_ALL);
    rc = journal_adopt(fd, data[0] & 2 ? BYTES / 2 : BYTES, &j, &err);
    fail_end();
    if (rc) {
        require(err.code == rc && (rc == -EBADMSG || fail_hit()) && err.text[0]);
        (void)close(again);
        return 0;
    }
    n = read_all(&j, e, sums[0]);
    journal_steady(&j);
    journal_close(&j);
    require(journal_adopt(again, BYTES, &j, &err) == 0);
    require(read_all(&j, e, sums[1]) == n && memcmp(sums[0], sums[1], n * sizeof(sums[0][0])) == 0);
    for (uint32_t i = 0; i < n; i++) {
        if (!e[i].finished) {
            go_on(&j, &e[i]);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        journal_end(&j, &e[i]);
    }
    require(j.n_free == BLOCKS - j.n_reserved && j.n_entries == 0);
    fill_up(&j, e);
    require(j.n_free == BLOCKS - j.n_reserved && j.n_entries == 0);
    journal_close(&j);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fail_run(data, size, one);
}

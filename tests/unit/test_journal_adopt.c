/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/front/journal.h: a journal whose front was killed is read by the next one, as far as it
 * makes sense; and whatever bytes stand in it, no entry reaches beyond it or into another.
 * PIPIT_SEED repeats a run. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/front/arena.h"
#include "daemon/front/journal.h"
#include "daemon/front/journal_format.h"

enum { BLOCKS = 24, BYTES = BLOCKS * JOURNAL_BLOCK, ROUNDS = 4000 };

static struct lane_record record(uint32_t type, int32_t index, const char *text)
{
    struct lane_record r;

    lane_record_init(&r, type, NULL);
    if (type == LANE_TOKEN) {
        r.token.index = index;
        r.token.token = 1000 + index;
        r.token.text_len = (uint16_t)strlen(text);
        memcpy(r.token.text, text, strlen(text));
    } else if (type == LANE_ALT) {
        r.alt.text_len = (uint16_t)strlen(text);
        memcpy(r.alt.text, text, strlen(text));
    } else if (type == LANE_DONE) {
        r.done.reason = LANE_REASON_LENGTH;
    } else if (type == LANE_ERROR) {
        r.error.code = LANE_ERR_BUSY;
        (void)strcpy(r.error.text, text);
    }
    return r;
}

static void append(struct journal *j, struct journal_entry *e, uint32_t type, int32_t index,
                   const char *text)
{
    struct lane_record r = record(type, index, text);

    cr_assert_eq(journal_append(j, e, &r), 0);
}

/* An answer under way with half a token, one that has ended, one that waits, and one that no client
 * knows of yet; then the front is killed. The memory file that systemd holds. */
static int leave(void)
{
    struct journal_head head = {.number = 70,
                                .kind = LANE_KIND_CHAT,
                                .uid = 1000,
                                .flags = LANE_F_PROGRESS,
                                .urgency = -5,
                                .tlv_bytes = 5000,
                                .seed = 77,
                                .id = {1}};
    struct error err = {0};
    struct journal_entry e;
    struct journal j;

    cr_assert_eq(journal_open(BYTES, &j, &err), 0, "%s", err.text);
    for (int i = 0; i < 4; i++, head.number++, head.id[0]++) {
        head.tlv_bytes = i == 2 ? 0 : 5000;
        cr_assert_eq(journal_begin(&j, &head, head.uid, &e), 0);
        e.hold_bulk = true;
        if (head.tlv_bytes) {
            memset(journal_tlv(&j, &e), 'x' + i, 5000);
        }
        append(&j, &e, LANE_ACCEPTED, 0, "");
        for (int t = 0; t < (i == 0 ? 150 : i == 1 ? 3 : 0); t++) {
            append(&j, &e, LANE_TOKEN, t, "some text of a token");
        }
        if (i == 0) {
            journal_head(&j, &e)->running = 1;
            append(&j, &e, LANE_ALT, 0, "half");
        } else if (i == 1) {
            append(&j, &e, i == 1 ? LANE_DONE : LANE_ERROR, 3, "");
        }
        if (i != 3) {
            journal_commit(&j, &e);
        }
    }
    int fd = dup(j.fd);
    journal_close(&j);
    return fd;
}

static uint32_t count_events(struct journal *j, const struct journal_entry *e)
{
    struct journal_cursor c;
    struct lane_record r;
    uint32_t n = 0;

    cr_assert(journal_seek(j, e, 1, &c));
    while (journal_read(j, e, &c, &r)) {
        n++;
        cr_assert_eq(r.h.seq, n);
    }
    return n;
}

Test(journal_adopt, finds_what_clients_know_of)
{
    struct error err = {0};
    struct journal_entry e[4];
    struct journal_head h[4];
    struct journal j;
    uint32_t bad = 0;
    uint32_t at = 0;
    uint32_t n = 0;

    cr_assert_eq(journal_adopt(leave(), BYTES, &j, &err), 0, "%s", err.text);
    while (n < 4 && journal_next(&j, &at, &h[n], &e[n], &bad)) {
        n++;
    }
    cr_assert_eq(n, 3);
    cr_assert_eq(bad, 0);
    cr_assert_eq(h[0].number, 70);
    cr_assert_eq(h[0].running, 1);
    cr_assert_eq(h[0].urgency, -5);
    cr_assert_eq(h[0].seed, 77);
    cr_assert_eq(e[0].n_tokens, 150);
    cr_assert_eq(count_events(&j, &e[0]), 151, "the half token is not seen");
    cr_assert_eq(journal_tlv(&j, &e[0])[4999], 'x');
    journal_rewind(&j, &e[0]);
    append(&j, &e[0], LANE_TOKEN, 150, "and goes on");
    append(&j, &e[0], LANE_DONE, 0, "");
    cr_assert_eq(count_events(&j, &e[0]), 153);
    cr_assert(e[1].finished);
    cr_assert_eq(count_events(&j, &e[1]), 5);
    cr_assert_eq(h[2].tlv_bytes, 0);
    cr_assert_eq(count_events(&j, &e[2]), 1);
    append(&j, &e[2], LANE_DONE, 0, "");
    for (uint32_t i = 0; i < n; i++) {
        journal_end(&j, &e[i]);
    }
    cr_assert_eq(j.n_free, BLOCKS - 1);
    cr_assert_eq(j.n_entries, 0);
    journal_close(&j);
}

/* As a front of before the package's upgrade wrote it, whose LANE_DONE had a field less. */
Test(journal_adopt, records_of_an_older_version_are_taken)
{
    enum { LESS = 8, BODY = sizeof(struct lane_done) };
    struct event_header eh;
    struct lane_record done;
    struct error err = {0};
    struct journal_entry e;
    struct journal_head h;
    struct journal j;
    uint32_t bad = 0;
    uint32_t at = 0;
    int fd = leave();

    cr_assert_eq(journal_adopt(dup(fd), BYTES, &j, &err), 0, "%s", err.text);
    do {
        cr_assert(journal_next(&j, &at, &h, &e, &bad));
    } while (!e.finished);
    uint8_t *event = journal_at(&j, e.end.block, e.end.offset - (uint32_t)sizeof(eh) - BODY);
    memcpy(&eh, event, sizeof(eh));
    cr_assert_eq(eh.type, LANE_DONE);
    cr_assert_eq(eh.body_bytes, BODY);
    eh.body_bytes -= LESS;
    memcpy(event, &eh, sizeof(eh));
    memset(event + sizeof(eh) + BODY - LESS, 0xff, LESS);
    journal_header(&j, e.end.block)->end -= LESS;
    journal_close(&j);

    cr_assert_eq(journal_adopt(fd, BYTES, &j, &err), 0, "%s", err.text);
    at = 0;
    do {
        cr_assert(journal_next(&j, &at, &h, &e, &bad));
    } while (!e.finished);
    cr_assert_eq(bad, 0);
    cr_assert_eq(count_events(&j, &e), 5);
    struct journal_cursor c;
    cr_assert(journal_seek(&j, &e, 5, &c));
    cr_assert(journal_read(&j, &e, &c, &done));
    cr_assert_eq(done.done.reason, LANE_REASON_LENGTH);
    cr_assert_eq(done.done.n_calls, 0);
    cr_assert_eq(done.done.broken, 0);
    journal_close(&j);
}

Test(journal_adopt, fronts_that_die_with_it_do_not_go_on_for_ever)
{
    struct error err = {0};
    struct journal j;
    int fd = leave();
    int n = 0;

    while (journal_adopt(dup(fd), BYTES, &j, &err) == 0) {
        cr_assert_lt(n++, 10);
        journal_close(&j);
    }
    cr_assert_eq(n, 5);
    cr_assert_neq(strstr(err.text, "in a row"), NULL, "%s", err.text);
    (void)close(fd);
    fd = leave();
    for (n = 0; n < 10; n++) {
        cr_assert_eq(journal_adopt(dup(fd), BYTES, &j, &err), 0);
        journal_steady(&j);
        journal_close(&j);
    }
}

Test(journal_adopt, another_file_is_refused)
{
    char zeros[64] = {0};
    struct error err = {0};
    struct journal j;
    int plain = memfd_create("plain", MFD_CLOEXEC);
    int empty;
    int fd = leave();

    cr_assert_eq(ftruncate(plain, BYTES), 0);
    cr_assert_eq(journal_adopt(plain, BYTES, &j, &err), -EBADMSG, "it could shrink under us");
    cr_assert_eq(journal_adopt(dup(fd), BYTES + JOURNAL_BLOCK, &j, &err), -EBADMSG);
    cr_assert_eq(journal_adopt(dup(fd), BYTES - JOURNAL_BLOCK, &j, &err), -EBADMSG);
    cr_assert_eq(arena_memfd("empty", BYTES, 0600, &empty, &err), 0);
    cr_assert_eq(journal_adopt(empty, BYTES, &j, &err), -EBADMSG);
    cr_assert_eq(pwrite(fd, zeros, 4, 8), 4);
    cr_assert_eq(journal_adopt(fd, BYTES, &j, &err), -EBADMSG, "another number of blocks");
}

/* How many entries are taken, and left out, when that word of a block has another value. */
static uint32_t taken_with(uint32_t block, uint32_t word, uint32_t value, uint32_t *ret_bad)
{
    off_t place = (off_t)block * JOURNAL_BLOCK + 4 * (off_t)word;
    struct error err = {0};
    struct journal_entry e;
    struct journal_head h;
    struct journal j;
    uint32_t at = 0;
    uint32_t n = 0;
    int fd = leave();

    *ret_bad = 0;
    cr_assert_eq(pwrite(fd, &value, 4, place), 4);
    cr_assert_eq(journal_adopt(fd, BYTES, &j, &err), 0, "%s", err.text);
    while (journal_next(&j, &at, &h, &e, ret_bad)) {
        n++;
    }
    journal_close(&j);
    return n;
}

Test(journal_adopt, torn_blocks_are_left_out)
{
    enum { NEXT, END };
    struct block_header b[2];
    uint32_t bad;
    int fd = leave();

    cr_assert_eq(taken_with(1, NEXT, 0, &bad), 2, "the answer's second block is the first of all");
    cr_assert_eq(bad, 1);
    cr_assert_eq(pread(fd, &b[0], sizeof(b[0]), JOURNAL_BLOCK), (ssize_t)sizeof(b[0]));
    cr_assert_lt(b[0].next, BLOCKS, "it has a second block");
    cr_assert_eq(pread(fd, &b[1], sizeof(b[1]), (off_t)b[0].next * JOURNAL_BLOCK),
                 (ssize_t)sizeof(b[1]));
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t block = i ? b[0].next : 1;

        cr_assert_eq(taken_with(block, END, b[i].end, &bad), 3);
        cr_assert_eq(taken_with(block, END, b[i].end - 8, &bad), 2, "half an event");
        cr_assert_eq(taken_with(block, END, b[i].end + 8, &bad), 2, "and more");
        cr_assert_eq(taken_with(block, END, 4, &bad), 2, "before the block's first event");
        cr_assert_eq(taken_with(block, END, UINT32_MAX, &bad), 2);
        cr_assert_eq(taken_with(block, NEXT, 1, &bad), 2, "a ring");
        cr_assert_eq(taken_with(block, NEXT, BLOCKS, &bad), 2);
    }
    (void)close(fd);
}

static uint64_t rng = 1;

static uint32_t draw(uint32_t n)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng >> 33) % n;
}

/* Everything that a front does with what it finds. */
static void use_all(int fd)
{
    struct error err = {0};
    struct journal_entry e[BLOCKS];
    struct journal_head h;
    struct journal j;
    uint32_t bad = 0;
    uint32_t at = 0;
    uint32_t n = 0;

    if (journal_adopt(fd, BYTES, &j, &err)) {
        return;
    }
    while (journal_next(&j, &at, &h, &e[n], &bad)) {
        n++;
        cr_assert_lt(n, BLOCKS);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t offset;
        uint32_t n_forced;

        cr_assert_eq(count_events(&j, &e[i]) + 1, e[i].seen.seq);
        if (e[i].tlv_bytes) {
            cr_assert_leq(journal_tlv_offset(&e[i]) + e[i].tlv_bytes, BYTES);
            cr_assert_geq(journal_tlv_offset(&e[i]), j.n_reserved * JOURNAL_BLOCK);
        }
        if (!e[i].finished) {
            struct lane_record r = record(LANE_DONE, 0, "");

            journal_rewind(&j, &e[i]);
            (void)!journal_forced(&j, &e[i], &offset, &n_forced);
            (void)!journal_append(&j, &e[i], &r);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        journal_end(&j, &e[i]);
    }
    cr_assert_eq(j.n_free, BLOCKS - j.n_reserved);
    journal_close(&j);
}

Test(journal_adopt, no_bytes_lead_it_astray)
{
    const char *seed = getenv("PIPIT_SEED");
    uint8_t *good;
    int from = leave();

    rng = seed ? strtoull(seed, NULL, 10) : 1;
    good = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, from, 0);
    cr_assert_neq(good, MAP_FAILED);
    for (int round = 0; round < ROUNDS; round++) {
        struct error err = {0};
        int fd;

        cr_assert_eq(arena_memfd("broken", BYTES, 0600, &fd, &err), 0);
        cr_assert_eq(pwrite(fd, good, BYTES, 0), BYTES);
        for (uint32_t k = 0; k < 1 + draw(4); k++) {
            /* Mostly where structure is: the beginnings of blocks, and small numbers. */
            uint32_t place =
                draw(2) ? draw(BLOCKS) * JOURNAL_BLOCK + 4 * draw(60) : draw(BYTES / 4) * 4;
            uint32_t value = draw(3) == 0 ? draw(BLOCKS)
                             : draw(2)    ? draw(JOURNAL_BLOCK + 64)
                                          : draw(UINT32_MAX);

            cr_assert_eq(pwrite(fd, &value, 4, place), 4);
        }
        use_all(fd);
    }
    (void)munmap(good, BYTES);
    (void)close(from);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/front/journal.h: what is appended is read back, by any cursor; a full journal still takes
 * last events; a crash's half token is forgotten; the ids of a replay. */

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/front/journal.h"

static struct journal j;
static struct journal_entry e;
static struct journal_head head = {.number = 7, .tlv_bytes = 5000};

static void begin(void)
{
    struct error err = {0};

    cr_assert_eq(journal_open(64 * JOURNAL_BLOCK, &j, &err), 0, "%s", err.text);
    cr_assert_eq(journal_begin(&j, &head, head.uid, &e), 0);
}

static struct lane_record record(uint32_t type, int32_t index, const char *text)
{
    struct lane_record r;

    lane_record_init(&r, type, NULL);
    if (type == LANE_TOKEN || type == LANE_TEXT) {
        r.token.index = index;
        r.token.token = 1000 + index;
        r.token.logprob = -0.5f;
        r.token.text_len = (uint16_t)strlen(text);
        memcpy(r.token.text, text, strlen(text));
    } else if (type == LANE_ALT) {
        r.alt.index = index;
        r.alt.text_len = (uint16_t)strlen(text);
        memcpy(r.alt.text, text, strlen(text));
    } else if (type == LANE_DONE) {
        r.done.reason = LANE_REASON_STOP;
        r.done.n_new = index;
        r.done.seed = 99;
    }
    return r;
}

static int append(uint32_t type, int32_t index, const char *text)
{
    struct lane_record r = record(type, index, text);

    return journal_append(&j, &e, &r);
}

Test(journal, items_are_contiguous_and_in_the_memfd, .init = begin)
{
    char byte = 0;

    memset(journal_tlv(&j, &e), 'x', 5000);
    cr_assert_eq(journal_tlv_offset(&e) % JOURNAL_BLOCK, 0);
    cr_assert_eq(pread(j.fd, &byte, 1, (off_t)journal_tlv_offset(&e) + 4999), 1);
    cr_assert_eq(byte, 'x');
    cr_assert_eq(j.n_free, 63 - 1 - 2, "the first block says where entries begin");
    journal_end(&j, &e);
    cr_assert_eq(j.n_free, 63);
    cr_assert_eq(j.n_entries, 0);
}

Test(journal, events_read_back_as_appended, .init = begin)
{
    struct journal_cursor c;
    struct lane_record got;
    char text[201];

    for (int i = 0; i < 500; i++) {
        memset(text, 'a' + i % 26, sizeof(text));
        text[i % 201] = '\0';
        cr_assert_eq(append(LANE_TOKEN, i, text), 0);
    }
    cr_assert_eq(append(LANE_DONE, 500, ""), 0);
    cr_assert(e.finished);
    cr_assert_eq(e.n_tokens, 500);
    for (uint64_t from = 1; from <= 502; from += 167) {
        cr_assert(journal_seek(&j, &e, from, &c));
        for (uint64_t seq = from; seq <= 501; seq++) {
            int i = (int)seq - 1;

            memset(text, 'a' + i % 26, sizeof(text));
            text[i % 201] = '\0';
            struct lane_record want =
                i < 500 ? record(LANE_TOKEN, i, text) : record(LANE_DONE, 500, "");
            want.h.seq = seq;
            cr_assert(journal_read(&j, &e, &c, &got));
            cr_assert_eq(memcmp(&got, &want, sizeof(got)), 0, "event %d", i);
        }
        cr_assert_not(journal_read(&j, &e, &c, &got));
    }
    cr_assert_not(journal_seek(&j, &e, 0, &c));
    cr_assert_not(journal_seek(&j, &e, 503, &c));
    journal_end(&j, &e);
    cr_assert_eq(j.n_free, 63);
}

Test(journal, a_full_one_still_takes_last_events, .init = begin)
{
    struct journal_entry other;
    struct journal_head small = {.number = 8, .uid = 1};
    struct lane_record done = record(LANE_DONE, 0, "");
    struct lane_record token;
    char text[201];
    int n = 0;

    memset(text, 'x', 200);
    text[200] = '\0';
    cr_assert_eq(journal_begin(&j, &small, small.uid, &other), 0);
    while (append(LANE_TOKEN, n, text) == 0) {
        n++;
    }
    cr_assert_gt(n, 800);
    cr_assert_eq(j.n_free, 6, "one user has 7/8 at most; the other has a block");
    do {
        token = record(LANE_TOKEN, 0, text);
    } while (journal_append(&j, &other, &token) == 0);
    cr_assert_eq(j.n_free, 2);
    cr_assert_eq(journal_begin(&j, &small, small.uid, &(struct journal_entry){0}), -EBUSY);
    cr_assert_eq(append(LANE_DONE, n, ""), 0);
    cr_assert_eq(journal_append(&j, &other, &done), 0);
    cr_assert_gt(done.h.seq, 1);
    journal_end(&j, &e);
    journal_end(&j, &other);
    cr_assert_eq(j.n_free, 63);
}

/* Until the entry's block has no room for a last event. */
static void fill_block(struct journal_entry *entry)
{
    uint32_t block = entry->end.block;

    while (JOURNAL_BLOCK - entry->end.offset >= 128) {
        struct lane_record token = record(LANE_TOKEN, 0, "");

        cr_assert_eq(journal_append(&j, entry, &token), 0);
    }
    cr_assert_eq(entry->end.block, block);
}

Test(journal, entries_without_items_all_get_their_last_event, .init = begin)
{
    struct journal_entry all[64];
    uint32_t n = 0;

    for (;; n++) {
        struct journal_head bare = {.number = 100 + n, .uid = n % 4};

        if (journal_begin(&j, &bare, bare.uid, &all[n])) {
            break;
        }
        fill_block(&all[n]);
    }
    cr_assert_eq(n, 29, "each needs two of the 60 blocks left, and the first entry one: %u", n);
    fill_block(&e);
    cr_assert_eq(append(LANE_DONE, 0, ""), 0);
    for (uint32_t i = 0; i < n; i++) {
        struct lane_record done = record(LANE_DONE, 0, "");

        cr_assert_eq(journal_append(&j, &all[i], &done), 0, "entry %u of %u", i, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        journal_end(&j, &all[i]);
    }
    journal_end(&j, &e);
    cr_assert_eq(j.n_free, 63);
    cr_assert_eq(j.n_entries, 0);
}

Test(journal, too_large_leaves_nothing_behind, .init = begin)
{
    struct journal_head large = {.tlv_bytes = 62 * JOURNAL_BLOCK};
    uint32_t before = j.n_free;

    cr_assert_eq(journal_begin(&j, &large, large.uid, &(struct journal_entry){0}), -EDQUOT);
    cr_assert_eq(j.n_free, before);
    cr_assert_eq(j.n_entries, 1);
}

Test(journal, half_a_token_is_invisible_and_rewound, .init = begin)
{
    struct journal_cursor c;
    struct lane_record got;
    char text[129];
    uint32_t free_before;

    memset(text, 'y', 128);
    text[128] = '\0';
    cr_assert_eq(append(LANE_TOKEN, 0, "a"), 0);
    free_before = j.n_free;
    cr_assert(journal_seek(&j, &e, 2, &c));
    for (int i = 0; i < 60; i++) {
        cr_assert_eq(append(LANE_ALT, 1, text), 0);
        cr_assert_not(journal_read(&j, &e, &c, &got));
    }
    cr_assert_lt(j.n_free, free_before);
    journal_rewind(&j, &e);
    cr_assert_eq(j.n_free, free_before);
    cr_assert_eq(append(LANE_ALT, 1, "z"), 0);
    cr_assert_eq(append(LANE_TOKEN, 1, "b"), 0);
    cr_assert(journal_read(&j, &e, &c, &got));
    cr_assert(got.h.type == LANE_ALT && got.h.seq == 2 && got.alt.text_len == 1);
    cr_assert(journal_read(&j, &e, &c, &got));
    cr_assert(got.h.type == LANE_TOKEN && got.h.seq == 3);
    cr_assert_eq(append(LANE_ALT, 2, "half"), 0);
    cr_assert_eq(append(LANE_DONE, 2, ""), 0);
    cr_assert(journal_read(&j, &e, &c, &got));
    cr_assert(got.h.type == LANE_DONE && got.h.seq == 4, "the half token is not before the end");
}

/* A seek walks from the mark before it; an event is counted by its header being read. */
Test(journal, any_place_of_a_long_log_is_found)
{
    struct journal_cursor c;
    struct lane_record got;
    struct error err = {0};
    uint64_t widest = 0;

    cr_assert_eq(journal_open(4096 * JOURNAL_BLOCK, &j, &err), 0, "%s", err.text);
    cr_assert_eq(journal_begin(&j, &head, head.uid, &e), 0);
    for (int i = 0; i < 100000; i++) {
        if (i % 5 == 0) {
            cr_assert_eq(append(LANE_ALT, i, "a"), 0);
        }
        if (i % 7777 == 0) {
            journal_rewind(&j, &e);
        }
        cr_assert_eq(append(LANE_TOKEN, i, i % 3 ? "abc" : ""), 0);
        for (uint32_t k = 0; k < e.n_marks; k++) {
            cr_assert_leq(e.marks[k].seq, e.seen.seq);
        }
    }
    cr_assert_gt(e.n_marks, JOURNAL_MARKS / 2 - 1);
    for (uint32_t k = 1; k < e.n_marks; k++) {
        uint64_t apart = e.marks[k].seq - e.marks[k - 1].seq;

        widest = apart > widest ? apart : widest;
    }
    cr_assert_leq(widest, e.seen.seq / (JOURNAL_MARKS / 4), "%llu", (unsigned long long)widest);
    cr_assert_leq(e.seen.seq - e.marks[e.n_marks - 1].seq, 2 * widest);
    for (uint64_t seq = 1; seq < e.seen.seq; seq += seq < 200 ? 1 : 997) {
        cr_assert(journal_seek(&j, &e, seq, &c));
        cr_assert(journal_read(&j, &e, &c, &got));
        cr_assert_eq(got.h.seq, seq);
    }
    cr_assert(journal_seek(&j, &e, e.seen.seq, &c));
    cr_assert_not(journal_read(&j, &e, &c, &got));
    journal_end(&j, &e);
}

Test(journal, ids_for_a_replay, .init = begin)
{
    uint64_t offset;
    uint32_t n;

    cr_assert_eq(journal_forced(&j, &e, &offset, &n), 0);
    cr_assert_eq(n, 0);
    for (int i = 0; i < 2000; i++) {
        cr_assert_eq(append(LANE_TOKEN, i, "ab"), 0);
        if (i % 3 == 0) {
            cr_assert_eq(append(LANE_TEXT, i, "more"), 0);
        }
    }
    cr_assert_eq(e.text_bytes, 2000 * 2 + 667 * 4);
    cr_assert_eq(journal_forced(&j, &e, &offset, &n), 0);
    cr_assert_eq(n, 2000);
    for (int i = 0; i < 2000; i++) {
        cr_assert_eq(((int32_t *)(void *)(j.map + offset))[i], 1000 + i);
    }
    uint32_t left = j.n_free;
    cr_assert_eq(journal_forced(&j, &e, &offset, &n), 0);
    cr_assert_eq(j.n_free, left, "the earlier ids were given back");
    journal_end(&j, &e);
    cr_assert_eq(j.n_free, 63);
}

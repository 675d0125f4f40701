/* SPDX-License-Identifier: Apache-2.0 */
/* Finds tokens that are matched as a whole before a text is tokenized: user-defined ones always,
 * control tokens only when the caller vouches for the text. Longer tokens win wherever they stand;
 * among equally long ones the leftmost. One pass over the text for each distinct length: a
 * first-byte set rejects nearly everything, a hash look-up decides the rest, and bytes already
 * taken by a longer token are skipped. */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* Searched for in texts? A SentencePiece token with U+2581 in it is reached by merging instead. */
static bool searched(const struct tok_entry *e, bool control)
{
    return e->text_len > 0 && ((e->kind == TOK_USER && !e->spaced && (control || !e->guarded)) ||
                               (control && (e->kind == TOK_CONTROL || e->kind == TOK_UNKNOWN)));
}

int tok_special_index(struct tok *t, struct error *reterr)
{
    bool have[TOK_MAX_SPECIAL + 1] = {false};
    uint16_t row_of[TOK_MAX_SPECIAL + 1] = {0};

    for (int32_t i = 0; i < t->n_vocab; i++) {
        const struct tok_entry *e = &t->entries[i];

        if (!searched(e, true)) {
            continue;
        }
        if (e->text_len > TOK_MAX_SPECIAL) {
            return error_set(reterr, -EBADMSG, "token %d: a special token of %u bytes (at most %d)",
                             i, e->text_len, TOK_MAX_SPECIAL);
        }
        have[e->text_len] = true;
    }
    for (int len = TOK_MAX_SPECIAL; len > 0; len--) {
        if (have[len]) {
            row_of[len] = (uint16_t)t->n_lengths;
            t->length[t->n_lengths++] = (uint16_t)len;
        }
    }
    for (int32_t i = 0; i < t->n_vocab; i++) {
        const struct tok_entry *e = &t->entries[i];

        if (searched(e, true)) {
            uint8_t first = (uint8_t)*tok_text_of(t, i);
            int row = row_of[e->text_len];

            t->first[row][first / 8] |= (uint8_t)(1 << first % 8);
            t->has_user[row] |= e->kind == TOK_USER && !e->guarded;
        }
    }
    return 0;
}

enum { TAKEN = 1, UNTRUSTED = 2 };

/* taken[i]: the byte belongs to a token found, or may not belong to a control token. */
struct search {
    const struct tok *t;
    const char *text;
    uint32_t len;
    bool control;
    uint8_t *taken;
    struct tok_span *spans;
    size_t n;
    size_t cap;
};

static int add(struct search *s, uint32_t off, uint32_t len, int32_t id)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 16;
        struct tok_span *larger = reallocarray(s->spans, cap, sizeof(*larger));

        if (!larger) {
            return -ENOMEM;
        }
        s->spans = larger;
        s->cap = cap;
    }
    s->spans[s->n++] = (struct tok_span){off, len, id};
    return 0;
}

/* Could a token of this row's length be in the text at all? */
static bool row_counts(const struct search *s, int row)
{
    return s->control || s->t->has_user[row];
}

static int search_length(struct search *s, int row)
{
    const uint8_t *first = s->t->first[row];
    uint32_t len = s->t->length[row];

    for (uint32_t i = 0; i + len <= s->len; i++) {
        uint8_t c = (uint8_t)s->text[i];
        int32_t id;
        int r;

        if (!(first[c / 8] >> c % 8 & 1) || memchr(s->taken + i, TAKEN, len)) {
            continue;
        }
        id = tok_map_find(&s->t->by_text, s->t, s->text + i, len);
        if (id < 0 ||
            !searched(&s->t->entries[id], s->control && !memchr(s->taken + i, UNTRUSTED, len))) {
            continue;
        }
        r = add(s, i, len, id);
        if (r < 0) {
            return r;
        }
        memset(s->taken + i, TAKEN, len);
        i += len - 1;
    }
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    uint32_t x = ((const struct tok_span *)a)->off;
    uint32_t y = ((const struct tok_span *)b)->off;

    return (x > y) - (x < y);
}

/* Puts the plain parts between the tokens found. */
static int fill(struct search *s)
{
    size_t n_found = s->n;
    uint32_t pos = 0;
    int r = 0;

    if (n_found > 0) {
        qsort(s->spans, n_found, sizeof(*s->spans), by_offset);
    }
    for (size_t i = 0; i < n_found && r == 0; i++) {
        if (s->spans[i].off > pos) {
            r = add(s, pos, s->spans[i].off - pos, -1);
        }
        pos = s->spans[i].off + s->spans[i].len;
    }
    if (r == 0 && pos < s->len) {
        r = add(s, pos, s->len - pos, -1);
    }
    if (s->n > n_found && n_found > 0) {
        qsort(s->spans, s->n, sizeof(*s->spans), by_offset);
    }
    return r;
}

static void mark(uint8_t *taken, const struct tok_part *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        memset(taken, parts[i].trusted ? 0 : UNTRUSTED, parts[i].len);
        taken += parts[i].len;
    }
}

int tok_special_split(const struct tok *t, const char *text, uint32_t len, bool control,
                      const struct tok_part *parts, size_t n_parts, struct tok_span **ret,
                      size_t *ret_n)
{
    struct search s = {.t = t, .text = text, .len = len, .control = control};
    AUTO_FREE uint8_t *taken = NULL;
    int r = 0;

    for (int row = 0; row < t->n_lengths && len > 0 && r == 0; row++) {
        if (!row_counts(&s, row)) {
            continue;
        }
        if (!taken) {
            taken = calloc(len, 1);
            s.taken = taken;
            if (taken && parts) {
                mark(taken, parts, n_parts);
            }
        }
        r = taken ? search_length(&s, row) : -ENOMEM;
    }
    if (r == 0) {
        r = fill(&s);
    }
    if (r < 0) {
        free(s.spans);
        return r;
    }
    *ret = s.spans;
    *ret_n = s.n;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece's unigram model (tokenizer model t5): ids and texts back of two small vocabularies
 * beside the package `sentencepiece` (make_unigram_vectors.py), byte-exact round trips where the
 * file allows them, and files that contradict themselves. Larger vocabularies, with T5's own rules,
 * run beside llama.cpp in bench/oracle/vocabularies.py. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/text/detok.h"
#include "engine/text/tok.h"
#include "gguf/gguf.h"
#include "tests/unit/tok_spec.h"

enum { LINE = 16384 };

static const char *data_file(const char *name)
{
    static char path[1024];

    (void)snprintf(path, sizeof(path), "%s/%s", getenv("PIPIT_TEST_DATA"), name);
    return path;
}

static struct tok *open_tok(const char *name)
{
    struct error e = {0};
    char file[64];
    struct gguf *g;
    struct tok *t;

    (void)snprintf(file, sizeof(file), "%s.gguf", name);
    cr_assert_eq(gguf_open(data_file(file), &g, &e), 0, "%s", e.text);
    cr_assert_eq(tok_create(g, &t, &e), 0, "%s", e.text);
    gguf_close(g);
    return t;
}

static size_t unhex(const char *hex, char *out)
{
    size_t n = 0;

    for (; hex[0] != '-' && hex[0]; hex += 2) {
        unsigned byte;

        cr_assert_eq(sscanf(hex, "%2x", &byte), 1);
        out[n++] = (char)byte;
    }
    return n;
}

/* The text of ids, as a client sees it. */
static size_t back(const struct tok *t, const int32_t *ids, size_t n, char *out)
{
    struct detok d;
    size_t len = 0;

    detok_init(&d, t, -1, false);
    for (size_t i = 0; i < n; i++) {
        len += detok_push(&d, ids[i], out + len);
    }
    return len + detok_flush(&d, out + len);
}

static void check_line(const struct tok *t, char *line)
{
    static char text[LINE];
    static char want[LINE];
    static char got[8 * LINE];
    char *hex = strchr(line, ' ') + 1;
    char *list = strchr(hex, ' ') + 1;
    char *again = strchr(list, ' ') + 1;
    struct error e = {0};
    int32_t *ids;
    size_t n;
    size_t i = 0;

    again[strcspn(again, "\n")] = 0;
    hex[strcspn(hex, " ")] = 0;
    list[strcspn(list, " ")] = 0;
    size_t len = unhex(hex, text);
    size_t n_want = unhex(again, want);

    cr_assert_eq(tok_encode_new(t, text, len, 0, &ids, &n, &e), 0, "%s", e.text);
    cr_assert_leq(n, tok_bound(t, len));
    for (char *p = list; *p && *p != '-'; i++) {
        cr_assert(i < n && strtol(p, &p, 10) == ids[i], "\"%.*s\": id %zu", (int)len, text, i);
        p += *p == ',';
    }
    cr_assert_eq(i, n, "\"%.*s\": %zu ids, wanted %zu", (int)len, text, n, i);
    size_t n_got = back(t, ids, n, got);

    for (i = 0; i < n; i++) { /* the package writes " ⁇ " for its unknown token, we nothing */
        n_want = tok_is_control(t, ids[i]) ? SIZE_MAX : n_want;
    }
    cr_assert(n_want == SIZE_MAX || (n_got == n_want && !memcmp(got, want, n_want)),
              "\"%.*s\" came back as \"%.*s\"", (int)len, text, (int)n_got, got);
    free(ids);
}

static void vectors(const char *name, int least)
{
    static char line[4 * LINE];
    struct tok *t = open_tok(name);
    FILE *f = fopen(data_file("unigram_vectors.txt"), "re");
    size_t len = strlen(name);
    int n = 0;

    cr_assert(f);
    while (fgets(line, sizeof(line), f)) {
        if (!strncmp(line, name, len) && line[len] == ' ') {
            check_line(t, line);
            n++;
        }
    }
    (void)fclose(f);
    cr_assert_geq(n, least);
    tok_destroy(t);
}

Test(tok_unigram, as_sentencepiece)
{
    vectors("unigram", 80);
    vectors("unigram_bytes", 80);
}

/* Of all byte strings, broken characters and U+2581 among them. */
Test(tok_unigram, texts_come_back)
{
    struct tok *t = open_tok("unigram_bytes");
    static char text[300];
    static char out[8 * LINE];

    cr_assert_str_eq(tok_model(t), "t5");
    cr_assert(tok_is_exact(t));
    for (uint32_t i = 0; i < 2000; i++) {
        size_t len = i % sizeof(text);
        struct error e = {0};
        int32_t *ids;
        size_t n;
        size_t at = 0;

        for (size_t k = 0; k < len; k++) {
            uint32_t dice[4];

            rng_philox(rng_key_make(17), (uint32_t[4]){i, (uint32_t)k, 0, 0}, dice);
            text[k] = dice[0] % 4 ? " aeth\n\xe2\x96\x81"[dice[1] % 9] : (char)dice[2];
        }
        cr_assert_eq(tok_encode_new(t, text, len, 0, &ids, &n, &e), 0, "%s", e.text);
        cr_assert_leq(n, tok_bound(t, len));
        for (size_t k = 0; k < n; k++) { /* bytes: detok makes whole characters */
            const char *piece;
            size_t size;
            bool drop;

            tok_piece(t, ids[k], &piece, &size);
            drop = size && *piece == ' ' && tok_space_after(t, k ? ids[k - 1] : -1);
            memcpy(out + at, piece + drop, size - drop);
            at += size - drop;
        }
        cr_assert(at == len && !memcmp(out, text, len), "text %u", i);
        free(ids);
    }
    tok_destroy(t);
}

Test(tok_unigram, what_a_file_may_lose)
{
    struct tok *t = open_tok("unigram");
    static const char text[] = "a\xff\xe2\x96\x81\xf0\x9f\xa6\x99";
    int32_t ids[64];
    size_t n;

    cr_assert(!tok_is_exact(t));
    cr_assert_eq(tok_encode(t, text, sizeof(text) - 1, 0, ids, 64, &n, NULL), 0);
    cr_assert_eq(ids[n - 1], 2, "one unknown token for three characters");
    cr_assert(n < 2 || ids[n - 2] != 2);
    cr_assert_eq(tok_encode(t, "a", 1, TOK_MID_TEXT, ids, 64, &n, NULL), 0);
    const char *piece;
    size_t len;

    tok_piece(t, ids[0], &piece, &len);
    cr_assert(len == 1 && *piece == 'a', "no space is put before it");
    tok_destroy(t);
}

/* ---- of the small vocabulary of tok_spec.h ----------------------------------------------------
 */

static struct tok_spec spec;

/* The spellings of a text's tokens, joined by '|'. */
static const char *spelt(const char *text)
{
    static char out[1024];
    struct error e = {0};
    struct tok *t;
    int32_t ids[128];
    size_t n;
    size_t pos = 0;

    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
    cr_assert_eq(tok_encode(t, text, strlen(text), 0, ids, 128, &n, &e), 0, "%s", e.text);
    for (size_t i = 0; i < n; i++) {
        const char *s;
        size_t len;

        tok_token_text(t, ids[i], &s, &len);
        pos += (size_t)snprintf(out + pos, sizeof(out) - pos, "%s%.*s", i ? "|" : "", (int)len, s);
    }
    out[pos] = 0;
    tok_destroy(t);
    return out;
}

Test(tok_unigram, the_best_sum)
{
    tok_spec_unigram(&spec);
    cr_assert_str_eq(spelt("ab"), " |ab", "-4 - 3");
    cr_assert_str_eq(spelt("abc"), " |a|bc", "-4 - 2 - 2, where \" |ab|c\" has -10");
    cr_assert_str_eq(spelt("aa"), " |aa", "-4 each: the token that began earlier");
    cr_assert_str_eq(spelt("abcab"), " |a|bc|ab", "-7, and -9 as one");
    cr_assert_str_eq(spelt("ca"), " ca", "-6.5, and -4 - 3 - 2");
    cr_assert_str_eq(spelt("bcbc"), " |bcbc", "an unused one counts");
    cr_assert_str_eq(spelt("auserb"), " |a|user| |b", "a space behind a user-defined one");
    cr_assert_str_eq(spelt("z"), " |z", "bytes");
    cr_assert_str_eq(spelt("\xc3\xa4\xc3\xb6"), " |\xc3\xa4|\xc3|\xb6");
    cr_assert_str_eq(spelt("  a"), " |  |a", "nothing is merged");
}

Test(tok_unigram, normal_forms)
{
    tok_spec_normal(&spec);
    cr_assert_str_eq(spelt("  a \t\n b  "), " |a| |b");
    cr_assert_str_eq(spelt(" \n "), "");
    cr_assert_str_eq(spelt("x"), "", "goes");
    cr_assert_str_eq(spelt("axb"), " |ab");
    cr_assert_str_eq(spelt("xya"), " |ab| ca",
                     "the longest entry; what it gives is cut with the rest");
    cr_assert_str_eq(spelt("AbC"), " |ab|<unk>");
    cr_assert_str_eq(spelt("zz\xff\xf0\x9f\xa6\x99z"), " |<unk>", "one for all");
    cr_assert_str_eq(spelt("zaz"), " |<unk>|a|<unk>");
    cr_assert_str_eq(spelt("\xc3\xa6"), " |\xc3\xa4");
    cr_assert_str_eq(spelt("\xc3"), " |<unk>", "half a character");
}

static void refused(const char *text)
{
    struct error e = {0};
    struct tok *t;

    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), -EBADMSG, "%s", text);
    cr_assert(strstr(e.text, text), "%s", e.text);
}

Test(tok_unigram, files_that_are_wrong)
{
    static const struct {
        const char *bytes;
        size_t n;
        bool good;
    } maps[] = {
        {"", 0, true},
        {"ab", 2, false},
        {"\4\0\0\0", 4, false},
        {"\5\0\0\0abcdef", 10, false},
        {"\xff\xff\xff\xffxy", 6, false},
        {"\0\0\0\0x", 5, true}, /* no nodes */
        {"\4\0\0\0\0\0\0\0x", 9, true},
    };
    static char long_one[400];

    for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
        tok_spec_unigram(&spec);
        spec.charsmap = maps[i].bytes;
        spec.n_charsmap = maps[i].n;
        if (maps[i].good) {
            cr_assert_str_eq(spelt("ab"), " |ab");
        } else {
            refused("precompiled_charsmap': an array of");
        }
    }
    memset(long_one + 4, 'x', sizeof(long_one) - 4);
    spec.charsmap = long_one;
    spec.n_charsmap = sizeof(long_one);
    refused("more than 256 bytes");

    tok_spec_unigram(&spec);
    spec.scores[spec.n - 1] = INFINITY;
    refused("no finite score");
    tok_spec_unigram(&spec);
    spec.n_scores = -1;
    refused("tokenizer.ggml.scores' is missing");
    tok_spec_unigram(&spec);
    spec.kinds[40] = 1; /* a byte's token that is none */
    refused("neither a token for each byte nor an unknown one");
}

/* Entries whose nodes, offsets or ends lie outside: what they would replace stays. */
Test(tok_unigram, tables_that_lead_astray)
{
    enum { ROOT = 256, LEAF = 300, NODES = 512, CHILD = ROOT | 'a', OUTSIDE = 1 << 20 };
    static uint32_t map[1 + NODES + 2];

    for (int bad = 0; bad < 5; bad++) {
        uint32_t leaf = bad == 1 ? OUTSIDE : LEAF;

        map[0] = NODES * sizeof(uint32_t);
        map[1] = (uint32_t)(bad == 2 ? OUTSIDE : ROOT) << 10;
        map[1 + CHILD] = (CHILD ^ leaf) << 10 | 1 << 8 | 'a';
        map[1 + LEAF] = (bad == 3 ? 8 : 0) | 1U << 31;
        memcpy(&map[1 + NODES], bad == 4 ? "bbbbbbbb" : "b\0bbbbb", 8);
        tok_spec_unigram(&spec);
        spec.charsmap = (const char *)map;
        spec.n_charsmap = sizeof(map);
        cr_assert_str_eq(spelt("a"), bad ? " |a" : " |b", "%d", bad);
    }
}

/* What is left of a text is bounded by the text, whatever the table makes of it. */
Test(tok_unigram, normal_forms_that_are_far_longer)
{
    static char text[100];
    struct error e = {0};
    struct tok *t;
    int32_t ids[400];
    size_t n;

    memset(text, 'a', sizeof(text));
    tok_spec_unigram(&spec);
    tok_spec_replace_a(&spec, "bbbbbbbbbbbbbbbbbbbb");
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
    cr_assert_eq(tok_encode(t, text, 3, 0, ids, 400, &n, &e), 0, "%s", e.text);
    cr_assert_leq(n, tok_bound(t, 3));
    cr_assert_eq(tok_encode(t, text, sizeof(text), 0, ids, 400, &n, &e), -E2BIG);
    cr_assert(strstr(e.text, "more than 364 bytes, three times its own"), "%s", e.text);
    tok_destroy(t);
}

/* A node that is its own child: each place of the text is searched for 256 bytes, not to its end.
 */
Test(tok_unigram, a_table_with_a_circle, .timeout = 60)
{
    enum { ROOT = 256, NODES = 512, CHILD = ROOT | 'a', LEN = 1 << 20 };
    static uint32_t map[1 + NODES + 2];
    static char text[LEN];
    struct error e = {0};
    int32_t *ids;
    struct tok *t;
    size_t n;

    map[0] = NODES * sizeof(uint32_t);
    map[1] = (uint32_t)ROOT << 10;
    map[1 + CHILD] = 'a' << 10 | 'a';
    memset(text, 'a', sizeof(text));
    tok_spec_unigram(&spec);
    spec.charsmap = (const char *)map;
    spec.n_charsmap = sizeof(map);
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
    cr_assert_eq(tok_encode_new(t, text, LEN, 0, &ids, &n, &e), 0, "%s", e.text);
    cr_assert_geq(n, LEN / 256);
    free(ids);
    tok_destroy(t);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer model gemma4 on the small vocabulary of tok_spec.h: characters spelt as
 * SentencePiece spells them, merged by ranks as byte-level BPE is. Whole vocabularies run beside
 * llama.cpp in bench/oracle/vocabularies.py. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/tok_spec.h"

static struct tok_spec spec;
static struct tok *t;

static void open_gemma4(void)
{
    struct error e = {0};

    tok_spec_gemma4(&spec);
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
}

static void close_tok(void)
{
    tok_destroy(t);
}

/* The spellings of a text's tokens, joined by '|'. */
static const char *spelt(const char *text, unsigned flags)
{
    static char out[4096];
    struct error e = {0};
    int32_t *ids;
    size_t n;
    size_t pos = 0;

    cr_assert_eq(tok_encode_new(t, text, strlen(text), flags, &ids, &n, &e), 0, "%s", e.text);
    for (size_t i = 0; i < n; i++) {
        const char *s;
        size_t len;

        tok_token_text(t, ids[i], &s, &len);
        pos += (size_t)snprintf(out + pos, sizeof(out) - pos, "%s%.*s", i ? "|" : "", (int)len, s);
    }
    out[pos] = '\0';
    free(ids);
    return out;
}

Test(tok_gemma4, merges_by_rank, .init = open_gemma4, .fini = close_tok)
{
    cr_assert_str_eq(tok_model(t), "gemma4");
    cr_assert_str_eq(spelt("abc", 0), "a|bc", "the rank of \"b c\" is lower");
    cr_assert_str_eq(spelt("abab", 0), "ab|ab");
    cr_assert_str_eq(spelt("a ab", 0), "a| |ab", "no space is put first; \"a b\" before \"_ a\"");
    cr_assert_str_eq(spelt(" a", 0), " a");
    cr_assert_str_eq(spelt("  a", 0), " | a", "\"_ a\" before \"_ _\"");
    cr_assert_str_eq(spelt("", 0), "");
}

Test(tok_gemma4, line_ends, .init = open_gemma4, .fini = close_tok)
{
    cr_assert_str_eq(spelt("a\n\na", 0), "a|\n\n|a");
    cr_assert_str_eq(spelt("\n\n\n", 0), "\n\n\n", "a run that is a token");
    cr_assert_str_eq(spelt("\n\n\n\n", 0), "\n\n|\n\n", "one that is not: by rank");
}

Test(tok_gemma4, what_is_no_token_is_bytes, .init = open_gemma4, .fini = close_tok)
{
    cr_assert_str_eq(spelt("z", 0), "z");
    cr_assert_str_eq(spelt("\xc3\xa4", 0), "\xc3\xa4", "a character that is one");
    cr_assert_str_eq(spelt("\xc3\xb6", 0), "\xc3|\xb6");
    cr_assert_str_eq(spelt("a\xff", 0), "a|\xff");
    cr_assert_str_eq(spelt("\xe2\x96\x81", 0), "\xe2|\x96|\x81", "U+2581 is no space");
    cr_assert_str_eq(spelt("<0x41>", 0), "<|0|x|4|1|>");
}

/* A marker of Gemma 4 that the file calls user-defined is text to those who read it, and yet no
 * user can write it. */
Test(tok_gemma4, guarded_tokens, .init = open_gemma4, .fini = close_tok)
{
    int32_t id = tok_spec_find(&spec, "<|channel>");
    const char *piece;
    size_t len;

    cr_assert_str_neq(spelt("<|channel>", 0), "<|channel>");
    cr_assert_str_eq(spelt("a<|channel>b", TOK_PARSE_SPECIAL), "a|<|channel>|b");
    tok_piece(t, id, &piece, &len);
    cr_assert_eq(len, strlen("<|channel>"));
    cr_assert_not(tok_is_control(t, id));
}

Test(tok_gemma4, random_bytes_come_back, .init = open_gemma4, .fini = close_tok)
{
    char text[300];

    srand(2);
    for (int i = 0; i < 2000; i++) {
        size_t len = (size_t)rand() % sizeof(text);
        struct error e = {0};
        int32_t *ids;
        size_t n;
        size_t pos = 0;

        for (size_t j = 0; j < len; j++) {
            text[j] = i % 2 ? (char)rand() : " \xe2\x96\x81\nabc<>|"[rand() % 11];
        }
        cr_assert_eq(tok_encode_new(t, text, len, 0, &ids, &n, &e), 0, "%s", e.text);
        cr_assert_leq(n, tok_bound(t, len));
        for (size_t j = 0; j < n; j++) {
            const char *piece;
            size_t size;

            tok_piece(t, ids[j], &piece, &size);
            cr_assert(size <= len - pos && !memcmp(text + pos, piece, size), "text %d", i);
            pos += size;
        }
        cr_assert_eq(pos, len);
        free(ids);
    }
}

/* Files say add_bos_token = false, and the models cannot do without. */
Test(tok_gemma4, bos_always)
{
    struct error e = {0};

    tok_spec_gemma4(&spec);
    spec.add_bos = 0;
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
    cr_assert_str_eq(spelt("a", TOK_ADD_BOS), "<bos>|a");
    tok_destroy(t);
}

static void refused(const char *what)
{
    struct error e = {0};

    cr_expect_eq(tok_spec_make(&spec, &t, NULL, &e), -EBADMSG);
    cr_expect(strstr(e.text, what), "\"%s\" does not say \"%s\"", e.text, what);
    tok_spec_gemma4(&spec);
}

Test(tok_gemma4, broken)
{
    tok_spec_gemma4(&spec);
    spec.kinds[10] = 1;
    refused("<0x07>");
    spec.merges[0] = "b q";
    refused("merge 0 names a right side");
    spec.merges[0] = "bc";
    refused("merge 0 is not two words");
    spec.n_merges = -1;
    refused("merges");
}

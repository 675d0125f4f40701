/* SPDX-License-Identifier: Apache-2.0 */
/* engine/text/tok.h on the small vocabularies of tok_spec.h: what becomes a special token and what
 * never does, BOS, spaces, bounds, time on long runs. Ids against other implementations are in
 * test_tok_vectors.c, broken vocabularies in test_tok_hostile.c. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/tok_spec.h"

static struct tok_spec spec;
static struct tok *t;

static void open_bpe(void)
{
    struct error e = {0};

    tok_spec_bpe(&spec);
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
}

static void open_spm(void)
{
    struct error e = {0};

    tok_spec_spm(&spec);
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

/* What the pieces say, with the space dropped where the encoder had put one. */
static bool comes_back(const char *text, size_t len, unsigned flags)
{
    struct error e = {0};
    int32_t *ids;
    size_t n;
    size_t pos = 0;
    int32_t prev = -1;
    bool same = true;

    cr_assert_eq(tok_encode_new(t, text, len, flags, &ids, &n, &e), 0, "%s", e.text);
    cr_assert_leq(n, tok_bound(t, len));
    for (size_t i = 0; i < n && same; i++) {
        const char *s;
        size_t size;

        tok_token_text(t, ids[i], &s, &size);
        if (size && *s == ' ' && !tok_is_control(t, ids[i]) && tok_space_after(t, prev)) {
            s++;
            size--;
        }
        same = size <= len - pos && !memcmp(text + pos, s, size);
        pos += size;
        prev = ids[i];
    }
    free(ids);
    return same && pos == len;
}

static void check_random(void)
{
    char text[300];

    srand(1);
    for (int i = 0; i < 2000; i++) {
        size_t len = (size_t)rand() % sizeof(text);

        for (size_t j = 0; j < len; j++) {
            /* Half of the texts stay with few bytes, so that merges and markers happen. */
            text[j] = i % 2 ? (char)rand() : " \xe2\x96\x81helousab<>/|_"[rand() % 18];
        }
        cr_assert(comes_back(text, len, 0), "text %d", i);
        cr_assert(comes_back(text, len, TOK_PARSE_SPECIAL), "text %d", i);
    }
}

Test(tok, bpe_merges, .init = open_bpe, .fini = close_tok)
{
    cr_assert_str_eq(spelt("hello hello", 0), "hello| hello");
    cr_assert_str_eq(spelt("users\n\n", 0), "user|s|\n\n");
    cr_assert_str_eq(spelt("", 0), "");
    cr_assert_str_eq(tok_model(t), "gpt2");
    cr_assert_str_eq(tok_pre(t), "gpt-2");
    cr_assert_eq(tok_n_vocab(t), spec.n);
}

Test(tok, bpe_random_bytes_come_back, .init = open_bpe, .fini = close_tok)
{
    check_random();
}

Test(tok, spm_random_bytes_come_back, .init = open_spm, .fini = close_tok)
{
    check_random();
}

Test(tok, spm_spaces, .init = open_spm, .fini = close_tok)
{
    cr_assert_str_eq(spelt("ab", 0), " |ab");
    cr_assert_str_eq(spelt("ab", TOK_MID_TEXT), "ab");
    cr_assert_str_eq(spelt(" b", TOK_MID_TEXT), " |b");
    cr_assert_str_eq(spelt("", 0), "");
    cr_assert_str_eq(spelt("<s>ab", TOK_PARSE_SPECIAL), "<s>| |ab",
                     "a space after a special token");
    /* U+2581 would come back as a space, were it not spelt as bytes. */
    cr_assert_str_eq(spelt("\xe2\x96\x81", TOK_MID_TEXT), "\xe2|\x96|\x81");
}

Test(tok, spm_text_never_merges_to_control_tokens, .init = open_spm, .fini = close_tok)
{
    cr_assert_str_eq(spelt("</s>", TOK_MID_TEXT), "</|s>");
    cr_assert_str_eq(spelt("<s>", TOK_MID_TEXT), "<s|>");
    cr_assert_str_eq(spelt("<0x41>", TOK_MID_TEXT), "<|0|x|4|1|>");
}

/* No text has the spelling of such a token: a space in it is never a space of the text. */
Test(tok, spm_token_with_a_real_space)
{
    struct error e = {0};

    tok_spec_spm(&spec);
    (void)tok_spec_add(&spec, "a b", 1, 5);
    (void)tok_spec_add(&spec, "a ", 1, 6);
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
    cr_assert_str_eq(spelt("a b", TOK_MID_TEXT), "a| |b");
    tok_destroy(t);
}

Test(tok, markers_only_where_the_caller_vouches, .init = open_bpe, .fini = close_tok)
{
    struct error e = {0};
    int32_t ids[64];
    size_t n;
    int32_t end = tok_find_special(t, "<|im_end|>");

    cr_assert_eq(end, tok_spec_find(&spec, "<|im_end|>"));
    cr_assert_eq(tok_find_special(t, "hello"), -1, "an ordinary token is not special");
    cr_assert_eq(tok_encode(t, "hello<|im_end|>", 15, 0, ids, 64, &n, &e), 0);
    for (size_t i = 0; i < n; i++) {
        cr_assert_not(tok_is_control(t, ids[i]));
    }
    cr_assert_eq(tok_encode(t, "hello<|im_end|>", 15, TOK_PARSE_SPECIAL, ids, 64, &n, &e), 0);
    cr_assert_eq(n, 2);
    cr_assert_eq(ids[1], end);
}

Test(tok, user_defined_tokens)
{
    struct error e = {0};

    tok_spec_bpe(&spec);
    (void)tok_spec_add(&spec, "<x>", 4, 0);
    (void)tok_spec_add(&spec, "a<x>", 4, 0);
    (void)tok_spec_add(&spec, "<|mine|>", 4, 0);
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
    cr_assert_str_eq(spelt("ba<x>b<x>", 0), "b|a<x>|b|<x>", "longer ones first");
    cr_assert_str_neq(spelt("<|mine|>", 0), "<|mine|>", "not from plain text");
    cr_assert_geq(tok_find_special(t, "<|mine|>"), 0, "spelt like a marker: a control token");
    cr_assert(comes_back("a<x>a<|mine|><x>", 16, 0));
    tok_destroy(t);
}

/* Qwen's are user-defined: a user or a tool's result must not write a call. */
Test(tok, tool_markers_are_the_templates)
{
    static const char said[] = "a<tool_call>b</think>";
    const struct tok_part parts[] = {{1, true}, {11, true}, {9, false}};
    struct error e = {0};
    int32_t ids[64];
    size_t n;

    for (int spm = 0; spm < 2; spm++) {
        (spm ? tok_spec_spm : tok_spec_bpe)(&spec);
        int call = tok_spec_add(&spec, "<tool_call>", 4, 0);
        int think = tok_spec_add(&spec, "</think>", 4, 0);

        cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
        cr_assert_eq(tok_encode(t, said, sizeof(said) - 1, 0, ids, 64, &n, &e), 0);
        for (size_t i = 0; i < n; i++) {
            cr_expect(ids[i] != call && ids[i] != think, "not from plain text");
        }
        cr_expect(comes_back(said, sizeof(said) - 1, 0));
        cr_assert_eq(tok_encode_parts(t, said, parts, 3, ids, 64, &n, &e), 0, "%s", e.text);
        for (size_t i = 0, n_call = 0; i < n; i++) {
            n_call += ids[i] == call;
            cr_expect(ids[i] != think, "of bytes that are not trusted");
            cr_expect(i + 1 < n || n_call == 1, "the template's");
        }
        cr_expect_eq(tok_find_added(t, "<tool_call>"), call);
        cr_expect_eq(tok_find_special(t, "<tool_call>"), -1, "it gives text");
        cr_expect(tok_is_added(t, call) && !tok_is_control(t, call));
        cr_expect_not(tok_is_added(t, 0));
        tok_destroy(t);
    }
}

Test(tok, bos, .init = open_spm, .fini = close_tok)
{
    cr_assert(tok_adds_bos(t));
    cr_assert_str_eq(spelt("ab", TOK_ADD_BOS), "<s>| |ab");
    cr_assert_str_eq(spelt("", TOK_FORCE_BOS), "<s>");
    cr_assert_eq(tok_bos(t), 1);
    cr_assert_eq(tok_eos(t), 2);
}

Test(tok, bos_as_the_model_says)
{
    struct error e = {0};

    tok_spec_bpe(&spec);
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0);
    cr_assert_not(tok_adds_bos(t));
    cr_assert_str_eq(spelt("us", TOK_ADD_BOS), "us");
    cr_assert_str_eq(spelt("us", TOK_FORCE_BOS), "<|endoftext|>|us");
    tok_destroy(t);
    spec.add_bos = 1;
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0);
    cr_assert_str_eq(spelt("us", TOK_ADD_BOS), "<|endoftext|>|us");
    tok_destroy(t);
    spec.bos = spec.eos = -1;
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0);
    cr_assert_eq(tok_bos(t), -1);
    cr_assert_eq(tok_eos(t), -1);
    cr_assert_str_eq(spelt("us", TOK_FORCE_BOS), "us", "no BOS to add");
    tok_destroy(t);
}

Test(tok, files_without_a_tokenizer_know_ids_alone)
{
    const char *models[] = {"test", "none", "no_vocab", NULL};
    struct error e = {0};
    const char *piece;
    int32_t ids[8];
    size_t n = 1;

    for (int i = 0; i < 4; i++) {
        tok_spec_bpe(&spec);
        spec.model = models[i];
        cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
        cr_assert_not(tok_has_text(t));
        cr_assert_eq(tok_n_vocab(t), spec.n);
        cr_assert_eq(tok_bos(t), -1);
        cr_assert_not(tok_is_end(t, spec.n - 1));
        cr_assert_not(tok_has_byte(t, 'a'));
        cr_assert_eq(tok_find_special(t, "<|im_end|>"), -1);
        tok_piece(t, 65, &piece, &n);
        cr_assert_eq(n, 0);
        cr_assert_eq(tok_encode(t, "a", 1, 0, ids, 8, &n, &e), -ENOTSUP);
        cr_assert(strstr(e.text, "takes token ids"), "%s", e.text);
        tok_destroy(t);
    }
}

Test(tok, ends, .init = open_bpe, .fini = close_tok)
{
    cr_assert(tok_is_end(t, tok_eos(t)));
    cr_assert(tok_is_end(t, tok_find_special(t, "<|im_end|>")));
    cr_assert(tok_is_end(t, tok_find_special(t, "<|eot_id|>")));
    cr_assert(tok_is_end(t, tok_find_special(t, "<end_of_turn>")));
    cr_assert_not(tok_is_end(t, tok_find_special(t, "<|im_start|>")));
    cr_assert_not(tok_is_end(t, 0));
    cr_assert_not(tok_is_end(t, -1));
    cr_assert_not(tok_is_end(t, spec.n));
}

Test(tok, pieces, .init = open_bpe, .fini = close_tok)
{
    const char *p;
    size_t len;

    tok_piece(t, tok_spec_find(&spec, "\xc4\xa0hello"), &p, &len);
    cr_assert_eq(len, 6);
    cr_assert_eq(memcmp(p, " hello", 6), 0);
    tok_piece(t, tok_find_special(t, "<|im_end|>"), &p, &len);
    cr_assert_eq(len, 0, "control tokens give no text");
    for (int32_t id = -2; id <= spec.n; id += spec.n + 2) {
        tok_piece(t, id, &p, &len);
        cr_assert_eq(len, 0);
        tok_token_text(t, id, &p, &len);
        cr_assert_eq(len, 0);
    }
}

Test(tok, capacity, .init = open_bpe, .fini = close_tok)
{
    struct error e = {0};
    int32_t ids[3] = {-7, -7, -7};
    size_t n = 0;

    cr_assert_eq(tok_encode(t, "a b c", 5, 0, ids, 2, &n, &e), -E2BIG);
    cr_assert_eq(n, 5);
    cr_assert_neq(ids[1], -7);
    cr_assert_eq(ids[2], -7, "not written past the capacity");
    cr_assert_eq(tok_encode(t, "a b c", 5, 0, NULL, 0, &n, NULL), -E2BIG);
    cr_assert_eq(n, 5);
    cr_assert_eq(tok_encode(t, "", 0, 0, NULL, 0, &n, NULL), 0);
    cr_assert_eq(n, 0);
}

Test(tok, missing_byte)
{
    struct error e = {0};
    int32_t ids[8];
    size_t n;

    tok_spec_bpe(&spec);
    spec.tokens[7] = "unreachable";
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
    cr_assert_not(tok_has_byte(t, 7));
    cr_assert(tok_has_byte(t, 8));
    cr_assert_eq(tok_encode(t, "ab\a", 3, 0, ids, 8, &n, &e), -EINVAL);
    cr_assert(strstr(e.text, "0x07") && strstr(e.text, "offset 2"), "%s", e.text);
    tok_destroy(t);
}

static double seconds(const char *text, size_t len)
{
    struct timespec a;
    struct timespec b;
    size_t n;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    cr_assert_eq(tok_encode(t, text, len, 0, NULL, 0, &n, NULL), -E2BIG);
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/* 1 MB of one thing; quadratic time would be hours. The limit is loose for sanitizers and valgrind.
 */
static void check_long_runs(void)
{
    static const char *const units[] = {"l", " ",  "\n",        "he", "ab", "\xff", "\xe4\xbd\xa0",
                                        "1", "' ", "<|im_end|>"};
    size_t len = 300000;
    char *text = malloc(len);

    cr_assert(text);
    for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
        size_t n = strlen(units[u]);

        for (size_t i = 0; i < len; i++) {
            text[i] = units[u][i % n];
        }
        cr_expect_lt(seconds(text, len), 10, "unit %zu", u);
    }
    free(text);
}

Test(tok, bpe_long_runs, .init = open_bpe, .fini = close_tok)
{
    check_long_runs();
}

Test(tok, spm_long_runs, .init = open_spm, .fini = close_tok)
{
    check_long_runs();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* engine/text/detok.h: characters across tokens, what is no UTF-8, SentencePiece's leading space.
 * The small SentencePiece vocabulary has a token for every byte, so each byte can come alone. */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/text/detok.h"
#include "tests/unit/tok_spec.h"

static struct tok_spec spec;
static struct tok *t;

static void open_spm(void)
{
    struct error e = {0};

    tok_spec_spm(&spec);
    (void)tok_spec_add(&spec, "\xf0\x9f", 1, -20);
    (void)tok_spec_add(&spec, "\xe2\x96\x81\xf0\x9f\x90", 1, -21);
    (void)tok_spec_add(&spec, "<x>", 4, 0);
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
}

static void close_tok(void)
{
    tok_destroy(t);
}

TestSuite(detok, .init = open_spm, .fini = close_tok);

static int32_t byte_token(int byte)
{
    return 3 + byte;
}

/* The bytes one by one; what each gave must be whole characters. */
static const char *feed(struct detok *d, const char *bytes, size_t len)
{
    static char out[4096];
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        size_t got = detok_push(d, byte_token((uint8_t)bytes[i]), out + n);

        cr_assert_leq(got, detok_bound(t));
        cr_assert(utf8_valid(out + n, got));
        n += got;
    }
    n += detok_flush(d, out + n);
    out[n] = '\0';
    return out;
}

#define R "\xef\xbf\xbd"

/* What Python says to bytes.decode(errors="replace"). */
Test(detok, replacement)
{
    static const struct {
        const char *in;
        const char *out;
    } rows[] = {
        {"abc", "abc"},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\xa6\x99", "\xc3\xa4\xe2\x82\xac\xf0\x9f\xa6\x99"},
        {"\x80", R},
        {"\x80\x80", R R},
        {"a\xc3", "a" R},
        {"\xc3"
         "a",
         R "a"},
        {"\xe2\x82", R},
        {"\xe2\x82"
         "a",
         R "a"},
        {"\xe2"
         "a\x82",
         R "a" R},
        {"\xf0\x9f\xa6", R},
        {"\xf0\x9f\xa6"
         "a",
         R "a"},
        {"\xf0\x9f\xf0\x9f\xa6\x99", R "\xf0\x9f\xa6\x99"},
        {"\xe2\x82\xe2\x82\xac", R "\xe2\x82\xac"},
        {"\xc0\xaf", R R},
        {"\xe0\x80\xaf", R R R},
        {"\xed\xa0\x80", R R R},
        {"\xf4\x90\x80\x80", R R R R},
        {"\xf5\x80\x80\x80", R R R R},
        {"\xff\xfe", R R},
        {"\xf0\x90\x80", R},
        {"\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", R R R "b" R "c" R R "d"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct detok d;

        detok_init(&d, t, byte_token('x'), false);
        cr_expect_str_eq(feed(&d, rows[i].in, strlen(rows[i].in)), rows[i].out, "row %zu", i);
    }
}

Test(detok, half_characters_wait)
{
    struct detok d;
    struct detok copy;
    char out[256];

    detok_init(&d, t, byte_token('x'), false);
    cr_assert_eq(detok_push(&d, tok_spec_find(&spec, "\xf0\x9f"), out), 0);
    cr_assert_eq(detok_push(&d, byte_token(0xa6), out), 0);
    copy = d;
    cr_assert_eq(detok_push(&d, byte_token(0x99), out), 4);
    cr_assert_eq(memcmp(out, "\xf0\x9f\xa6\x99", 4), 0);
    cr_assert_eq(detok_flush(&d, out), 0);
    cr_assert_eq(detok_flush(&copy, out), 3, "a copy goes on by itself");
    cr_assert_eq(detok_flush(&copy, out), 0);
}

/* However the bytes are cut into tokens, the text is the same. */
Test(detok, cuts_do_not_matter)
{
    srand(3);
    for (int round = 0; round < 2000; round++) {
        static const char alphabet[] = "\xf0\x9f\xa6\x99\xe2\x82\xac"
                                       "a\xc3\xa4\xff";
        char text[33];
        char cut[512];
        struct error e = {0};
        struct detok d;
        int32_t *ids;
        size_t n;
        size_t got = 0;

        for (int i = 0; i < 32; i++) {
            text[i] = alphabet[rand() % (int)(sizeof(alphabet) - 1)];
        }
        text[32] = '\0';
        cr_assert_eq(tok_encode_new(t, text, 32, TOK_MID_TEXT, &ids, &n, &e), 0);
        detok_init(&d, t, byte_token('x'), false);
        for (size_t i = 0; i < n; i++) {
            got += detok_push(&d, ids[i], cut + got);
        }
        got += detok_flush(&d, cut + got);
        cut[got] = '\0';
        free(ids);
        detok_init(&d, t, byte_token('x'), false);
        cr_assert_str_eq(feed(&d, text, 32), cut);
    }
}

Test(detok, leading_space)
{
    int32_t a = tok_spec_find(&spec, "\xe2\x96\x81"
                                     "a");
    int32_t spaces = tok_spec_find(&spec, "\xe2\x96\x81\xe2\x96\x81");
    struct detok d;
    char out[256];

    detok_init(&d, t, -1, false);
    cr_assert_eq(detok_push(&d, a, out), 1, "the start of a text");
    cr_assert_eq(detok_push(&d, a, out), 2, "within a text");
    detok_init(&d, t, tok_bos(t), false);
    cr_assert_eq(detok_push(&d, a, out), 1, "after BOS");
    detok_init(&d, t, a, false);
    cr_assert_eq(detok_push(&d, a, out), 2, "going on with a prompt");
    cr_assert_eq(detok_push(&d, tok_eos(t), out), 0);
    cr_assert_eq(detok_push(&d, spaces, out), 1, "one space only");
    cr_assert_eq(detok_push(&d, tok_spec_find(&spec, "<x>"), out), 3);
    cr_assert_eq(detok_push(&d, a, out), 1,
                 "after a user-defined token, where the encoder puts one");
}

Test(detok, special_tokens_shown)
{
    struct detok d;
    char out[256];

    detok_init(&d, t, byte_token('x'), true);
    cr_assert_eq(detok_push(&d, tok_eos(t), out), 4);
    cr_assert_eq(memcmp(out, "</s>", 4), 0);
    cr_assert_eq(detok_push(&d, -5, out), 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabularies that lie: every one is refused with a message that names the fault, or, where the
 * file may well say so, taken as documented. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/tok_spec.h"

static struct tok_spec s;

/* The vocabulary as bent must be refused, the text naming `what`. */
static void refused(int code, const char *what)
{
    struct error e = {0};
    struct tok *t = NULL;
    int r = tok_spec_make(&s, &t, NULL, &e);

    cr_expect_eq(r, code, "%d instead of %d (%s): %s", r, code, what, e.text);
    cr_expect(strstr(e.text, what), "\"%s\" does not say \"%s\"", e.text, what);
    if (r == 0) {
        tok_destroy(t);
    }
}

static void accepted(void)
{
    struct error e = {0};
    struct tok *t;

    cr_assert_eq(tok_spec_make(&s, &t, NULL, &e), 0, "%s", e.text);
    tok_destroy(t);
}

Test(tok_hostile, model)
{
    tok_spec_bpe(&s);
    accepted();
    s.model = "wordpiece";
    refused(-ENOTSUP, "'wordpiece'");
}

Test(tok_hostile, pre_tokenizer)
{
    tok_spec_bpe(&s);
    s.pre = "martian";
    refused(-ENOTSUP, "'martian'");
    s.pre = "";
    refused(-ENOTSUP, "''");
    s.pre = NULL;
    accepted();
}

Test(tok_hostile, array_lengths)
{
    tok_spec_bpe(&s);
    s.n_kinds--;
    refused(-EBADMSG, "token_type");
    s.n_kinds = 0;
    refused(-EBADMSG, "token_type");
    s.n_kinds = -1;
    accepted();
    tok_spec_spm(&s);
    s.n_scores--;
    refused(-EBADMSG, "scores");
    s.n_scores = -1;
    refused(-EBADMSG, "scores");
    s.n_scores = s.n;
    s.n_kinds = -1;
    refused(-EBADMSG, "<0x00>");
}

Test(tok_hostile, no_tokens)
{
    tok_spec_bpe(&s);
    s.n = 0;
    s.n_kinds = -1;
    refused(-EBADMSG, "tokens");
}

Test(tok_hostile, kinds)
{
    tok_spec_bpe(&s);
    s.kinds[5] = 7;
    refused(-EBADMSG, "token 5");
    s.kinds[5] = -1;
    refused(-EBADMSG, "token 5");
    s.kinds[5] = 0;
    accepted();
}

Test(tok_hostile, ids)
{
    tok_spec_bpe(&s);
    s.bos = s.n;
    refused(-EBADMSG, "bos_token_id");
    s.bos = UINT32_MAX;
    refused(-EBADMSG, "bos_token_id");
    s.bos = 0;
    s.eos = s.n + 1000;
    refused(-EBADMSG, "eos_token_id");
}

Test(tok_hostile, duplicates)
{
    tok_spec_bpe(&s);
    s.tokens[260] = s.tokens[100];
    refused(-EBADMSG, "token 260 is spelt like token 100");
    tok_spec_spm(&s);
    s.tokens[10] = s.tokens[9];
    refused(-EBADMSG, "token 10 is spelt like token 9");
}

Test(tok_hostile, spellings)
{
    static char longest[TOK_MAX_PIECE + 2];

    tok_spec_bpe(&s);
    memset(longest, 'x', TOK_MAX_PIECE);
    (void)tok_spec_add(&s, longest, 1, 0);
    accepted();
    longest[TOK_MAX_PIECE] = 'x';
    refused(-EBADMSG, "4097 bytes");
    tok_spec_bpe(&s);
    longest[300] = '\0';
    (void)tok_spec_add(&s, longest, 3, 0);
    refused(-EBADMSG, "special token of 300 bytes");
    tok_spec_bpe(&s);
    (void)tok_spec_add(&s, "", 1, 0);
    (void)tok_spec_add(&s, "", 3, 0);
    (void)tok_spec_add(&s, "\xff\xfe not UTF-8 \xc4", 1, 0);
    (void)tok_spec_add(&s, "\xe2\x96", 4, 0);
    accepted();
}

Test(tok_hostile, byte_tokens)
{
    tok_spec_spm(&s);
    s.tokens[3] = "<0xG0>";
    refused(-EBADMSG, "token 3 ");
    s.tokens[3] = "<0x0>";
    refused(-EBADMSG, "token 3 ");
    s.tokens[3] = "x";
    refused(-EBADMSG, "token 3 ");
    s.kinds[3] = 1;
    refused(-EBADMSG, "<0x00>");
}

Test(tok_hostile, scores)
{
    tok_spec_spm(&s);
    s.scores[8] = NAN;
    refused(-EBADMSG, "token 8 ");
    s.scores[8] = -INFINITY;
    refused(-EBADMSG, "token 8 ");
}

Test(tok_hostile, merges)
{
    static const struct {
        const char *line;
        const char *says;
    } bad[] = {
        {"", "merge 3"},
        {" ", "merge 3"},
        {"he", "merge 3"},
        {"he ", "merge 3"},
        {" he", "merge 3"},
        {"he ll x", "merge 3"},
        {"q z", "merge 3 names two tokens with a result"},
        {"zz q", "merge 3 names a left side"},
        {"q zz", "merge 3 names a right side"},
        {"h e", "merge 3 repeats merge 0"},
        {"\xff e", "merge 3"},
        {"<|im_start|> e", "merge 3"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tok_spec_bpe(&s);
        s.merges[3] = bad[i].line;
        refused(-EBADMSG, bad[i].says);
    }
    tok_spec_bpe(&s);
    s.n_merges = -1;
    refused(-EBADMSG, "merges");
    s.n_merges = 0;
    accepted();
}

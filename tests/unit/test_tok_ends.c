/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens end a generation: the file's keys, spellings, and the exceptions of families whose
 * answers have several messages. bench/oracle/vocabularies.py compares whole vocabularies. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/tok_spec.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4 };

static struct tok_spec spec;

/* Is the token with this spelling an end, in the vocabulary as bent? */
static bool ends(const char *text)
{
    struct error e = {0};
    struct tok *t;
    bool end;

    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
    end = tok_is_end(t, tok_spec_find(&spec, text));
    tok_destroy(t);
    return end;
}

Test(tok_ends, by_spelling)
{
    static const char *const texts[] = {
        "<|eom_id|>",
        "<|eot|>",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<EOT>",
        "</s>",
        "<eos>",
        "[EOT]",
        "[EOS]",
        "<|return|>",
        "<|call|>",
        "<turn|>",
        "[e~[",
        "<PAD>",
        "<|tool_response>",
        "<|fim_pad|>",
        "<reponame>",
        "<|file_sep|>",
        "<\357\275\234end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        static const int kinds[] = {CONTROL, USER, NORMAL, UNKNOWN};

        for (int j = 0; j < 4; j++) {
            tok_spec_bpe(&spec);
            (void)tok_spec_add(&spec, texts[i], kinds[j], 0);
            cr_expect_eq(ends(texts[i]), kinds[j] != NORMAL, "%s of kind %d", texts[i], kinds[j]);
        }
    }
}

Test(tok_ends, not_others)
{
    static const char *const texts[] = {"<|im_start|>", "<|start_header_id|>", "<start_of_turn>",
                                        "hello"};

    tok_spec_bpe(&spec);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        cr_expect_not(ends(texts[i]), "%s", texts[i]);
    }
}

/* <|end|> ends an answer of Phi's, and a message within one of gpt-oss' and Solar Open's. */
Test(tok_ends, messages_within_an_answer)
{
    tok_spec_bpe(&spec);
    (void)tok_spec_add(&spec, "<|end|>", CONTROL, 0);
    cr_assert(ends("<|end|>"));
    (void)tok_spec_add(&spec, "<|return|>", CONTROL, 0);
    cr_assert(ends("<|end|>"));
    (void)tok_spec_add(&spec, "<|call|>", CONTROL, 0);
    cr_assert_not(ends("<|end|>"));
    cr_assert(ends("<|return|>"));
    cr_assert(ends("<|call|>"));
    tok_spec_bpe(&spec);
    (void)tok_spec_add(&spec, "<|end|>", CONTROL, 0);
    (void)tok_spec_add(&spec, "<|flush|>", CONTROL, 0);
    cr_assert(ends("<|end|>"));
    (void)tok_spec_add(&spec, "<|calls|>", CONTROL, 0);
    cr_assert_not(ends("<|end|>"));
}

Test(tok_ends, by_key)
{
    static const char *const keys[] = {"eot", "eom", "fim_pad", "fim_rep", "fim_sep"};
    char key[64];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct error e = {0};
        struct tok *t;

        tok_spec_bpe(&spec);
        (void)snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", keys[i]);
        spec.more_key = key;
        spec.more_id = tok_spec_add(&spec, "<halt>", USER, 0);
        cr_assert(ends("<halt>"), "%s", key);
        spec.more_id = spec.n;
        cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), -EBADMSG);
        cr_assert(strstr(e.text, key), "%s", e.text);
    }
}

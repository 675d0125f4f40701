/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_UNIT_TOK_SPEC_H
#define PIPIT_TESTS_UNIT_TOK_SPEC_H

/* Small vocabularies that tests bend: a table that becomes a GGUF in a temporary file and then a
 * tokenizer. The good ones know all bytes, a few words, and the markers of every chat style. */

#include <stdint.h>

#include "engine/text/tok.h"

enum { TOK_SPEC_MAX = 400, TOK_SPEC_MAX_MERGES = 32 };

struct tok_spec {
    const char *model; /* NULL: no such key; the same for pre */
    const char *pre;
    int n;
    const char *tokens[TOK_SPEC_MAX];
    int32_t kinds[TOK_SPEC_MAX];
    float scores[TOK_SPEC_MAX];
    const char *merges[TOK_SPEC_MAX_MERGES];
    int n_merges;
    int n_kinds;  /* of the arrays in the file; -1: no such key */
    int n_scores;
    int64_t bos;  /* -1: no such key */
    int64_t eos;
    int add_bos;  /* -1: no such key */
    const char *chat_template; /* or NULL */
    const char *more_key;      /* or NULL: one more key, of a token's id */
    int64_t more_id;
    bool merge_spaces;    /* of the model t5 */
    const char *charsmap; /* or NULL */
    size_t n_charsmap;
    char letters[256][8];
};

/* Fills in a good one: 256 letters or byte tokens, then words, then markers. */
void tok_spec_bpe(struct tok_spec *s);
void tok_spec_spm(struct tok_spec *s);
void tok_spec_gemma4(struct tok_spec *s); /* SentencePiece's spellings, merged by ranks */
void tok_spec_unigram(struct tok_spec *s); /* the likeliest cut, nothing lost */
/* With rules of normalisation, spaces merged, an unknown token in place of bytes. */
void tok_spec_normal(struct tok_spec *s);
/* One rule: 'a' becomes these, at most 255 bytes. */
void tok_spec_replace_a(struct tok_spec *s, const char *by);
/* Appends a token; returns its id. */
int tok_spec_add(struct tok_spec *s, const char *text, int kind, float score);
int tok_spec_find(const struct tok_spec *s, const char *text); /* -1: none */

/* Through a file, as the daemon would. The GGUF is closed again unless ret_g is given. */
struct gguf;
int tok_spec_make(const struct tok_spec *s, struct tok **ret, struct gguf **ret_g,
                  struct error *reterr);

#endif

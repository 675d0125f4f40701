/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_TOK_H
#define PIPIT_ENGINE_TEXT_TOK_H

/* Tokenizer from a GGUF's own vocabulary: SentencePiece BPE by scores (`tokenizer.ggml.model` =
 * llama), byte-level BPE by merge ranks (gpt2; the pre-tokenizers are in tok_patterns.c), Gemma 4's
 * between the two (gemma4: spelt as the first, merged as the second), and SentencePiece's unigram
 * model (t5). The ids are those of llama.cpp and of the models' own tokenizers, but for four rules
 * of ours:
 *   - without TOK_PARSE_SPECIAL no text becomes a control token, not even by merging ("</s>");
 *   - a user-defined token that is spelt like a turn marker ("<|...|>", "<start_of_turn>") counts
 *     as a control token; one like "<|...>" or "<...|>", or that marks a tool's call or reasoning
 *     ("<tool_call>", "<think>"), keeps its text, but is found only where control tokens are;
 *   - U+2581 in a text for SentencePiece is spelt as bytes, since it would come back as a space;
 *   - bytes that are no UTF-8 are tokenized as bytes, not replaced.
 * So decode(encode(x)) == x for all bytes, with one exception: a byte-level vocabulary that lacks
 * a byte (tok_has_byte) cannot spell it, and tok_encode refuses a text that holds it. A unigram
 * vocabulary may ask for what loses more (tok_is_exact): a text's normal form, one space for many,
 * one unknown token for characters that it lacks. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct gguf;

/* Creator: tok_create; freed by tok_destroy; read-only and thread-safe in between. It copies what
 * it needs: the GGUF may be closed. */
struct tok;

enum {
    TOK_ADD_BOS = 1 << 0,       /* BOS first, if the model says so */
    TOK_FORCE_BOS = 1 << 1,     /* BOS first, if there is one */
    TOK_PARSE_SPECIAL = 1 << 2, /* the text may spell control tokens: for trusted text only */
    TOK_MID_TEXT = 1 << 3,      /* SentencePiece: no space is put before the text */
};

enum { TOK_MAX_VOCAB = 1 << 21, TOK_MAX_PIECE = 4096 /* bytes of one token */ };

/* -EBADMSG names the key or token at fault; -ENOTSUP a model or pre-tokenizer that is not here. A
 * file that has no tokenizer (no key, or "none", "no_vocab", "test") gives one that knows ids
 * alone: tok_has_text() is false, and encoding text is refused with -ENOTSUP. */
int tok_create(const struct gguf *g, struct tok **ret, struct error *reterr) WARN_UNUSED;
/* Bytes that a tokenizer of this file will hold, from the file's arrays alone. */
uint64_t tok_bytes(const struct gguf *g);
void tok_destroy(struct tok *t); /* takes NULL */

int32_t tok_n_vocab(const struct tok *t);
int32_t tok_bos(const struct tok *t);                 /* -1: none */
int32_t tok_eos(const struct tok *t);                 /* -1: none */
bool tok_adds_bos(const struct tok *t);               /* what TOK_ADD_BOS will do */
bool tok_is_end(const struct tok *t, int32_t id);     /* ends a generation: eos, eot, im_end, ... */
bool tok_is_control(const struct tok *t, int32_t id); /* gives no text */
bool tok_is_added(const struct tok *t, int32_t id);   /* user-defined: gives text, as a whole */
bool tok_has_text(const struct tok *t);
bool tok_has_byte(const struct tok *t, uint8_t byte);
bool tok_is_exact(const struct tok *t); /* is decode(encode(x)) == x? */
const char *tok_model(const struct tok *t); /* "llama", "gpt2", "gemma4", "t5" or "none" */
const char *tok_pre(const struct tok *t);   /* the pre-tokenizer's name */

size_t tok_max_piece(const struct tok *t); /* most bytes that one token may give, spelt or not */

/* The control token spelt exactly so, -1 without one. */
int32_t tok_find_special(const struct tok *t, const char *text);
/* The control or user-defined one. */
int32_t tok_find_added(const struct tok *t, const char *text);

/* Most ids that `len` bytes can give, BOS included. */
size_t tok_bound(const struct tok *t, size_t len);

/* Writes at most `cap` ids. *ret_n is the number the text has, also with -E2BIG (more than cap:
 * the first cap are written), so cap 0 counts. -ENOMEM, -EINVAL (a byte that the vocabulary lacks),
 * -E2BIG also for texts of 1 GiB and more. Time and memory grow as n log n. */
int tok_encode(const struct tok *t, const char *text, size_t len, unsigned flags, int32_t *ids,
               size_t cap, size_t *ret_n, struct error *reterr) WARN_UNUSED;
/* The same into memory of its own, to be freed by the caller; never NULL on success. */
int tok_encode_new(const struct tok *t, const char *text, size_t len, unsigned flags,
                   int32_t **ret_ids, size_t *ret_n, struct error *reterr) WARN_UNUSED;

/* A text of parts, some of which may spell control tokens: those that lie in parts that are trusted
 * are found, others are plain text. What lies between special tokens is tokenized as one text, also
 * across parts. No BOS is put. Else as tok_encode. */
struct tok_part {
    size_t len;
    bool trusted;
};
int tok_encode_parts(const struct tok *t, const char *text, const struct tok_part *parts, size_t n,
                     int32_t *ids, size_t cap, size_t *ret_n, struct error *reterr) WARN_UNUSED;

/* The bytes that a token stands for, in the tokenizer's memory: none for control tokens and ids out
 * of range. A piece may be half a character: detok.h makes text. */
void tok_piece(const struct tok *t, int32_t id, const char **ret_ptr, size_t *ret_len);
/* The same, but control tokens give their spelling: for display and logs. */
void tok_token_text(const struct tok *t, int32_t id, const char **ret_ptr, size_t *ret_len);

/* Does the encoder put a space before what follows `prev` (-1: the start of a text)? The same
 * question tells the decoder to drop it. Never true for byte-level BPE. */
bool tok_space_after(const struct tok *t, int32_t prev);

#endif

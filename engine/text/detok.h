/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_DETOK_H
#define PIPIT_ENGINE_TEXT_DETOK_H

/* Streaming detokenizer of one sequence: token ids in, complete UTF-8 out. A character that is not
 * complete yet is held back (at most 3 bytes); what can never become one turns into U+FFFD, one for
 * each maximal part of a sequence, as Python's bytes.decode(errors="replace") does; the result does
 * not depend on how the bytes were cut into tokens. SentencePiece's leading space is dropped at the
 * start of a text and after a control token, where the encoder had put it.
 *
 * A plain struct without pointers of its own but the tokenizer's: it may be copied and saved. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tok;

struct detok {
    const struct tok *tok;
    uint8_t held[4];
    uint8_t n_held;
    bool show_special; /* control tokens give their spelling */
    int32_t prev;      /* token before the next one, -1: none */
};

/* prev: the last token of the prompt that the text continues, -1 for none. */
void detok_init(struct detok *d, const struct tok *t, int32_t prev, bool show_special);

/* Most bytes that one push may give. */
size_t detok_bound(const struct tok *t);

/* Writes the complete characters to `out`, which holds detok_bound() bytes; returns their bytes. */
size_t detok_push(struct detok *d, int32_t id, char *out);

/* The end of the text: a character that never got complete becomes U+FFFD. At most 3 bytes. */
size_t detok_flush(struct detok *d, char *out);

#endif

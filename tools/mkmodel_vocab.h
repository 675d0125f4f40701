/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_MKMODEL_VOCAB_H
#define PIPIT_TOOLS_MKMODEL_VOCAB_H

/* The least tokenizer that can be served: one token a byte, four control tokens, no merges. */

#include <stdint.h>

#include "gguf/gguf.h"

enum { MKMODEL_VOCAB_MIN = 256 + 4 };

/* Writes the tokenizer.* keys for n tokens (at least MKMODEL_VOCAB_MIN; the rest is unused). */
int mkmodel_vocab_write(struct gguf_writer *w, int64_t n) WARN_UNUSED;

#endif

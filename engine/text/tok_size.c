/* SPDX-License-Identifier: Apache-2.0 */
/* What a tokenizer will hold, for the memory plan, from the file's arrays alone: the plan is made
 * before anything is loaded. It follows the allocations of tok_vocab.c, tok_map.c, tok_bpe.c,
 * tok_spm.c, tok_unigram.c and tok_charsmap.c one by one; tests/unit/test_tok_size.c compares it
 * with what the heap says. PCRE2's patterns and scratch are some tens of kilobytes and are not
 * counted. */

#include <string.h>

#include "engine/text/tok_impl.h"
#include "gguf/gguf.h"

#define TOKENS "tokenizer.ggml.tokens"

/* Elements of an array of strings; 0 where there is none. */
static size_t n_strings(const struct gguf *g, const char *key)
{
    enum gguf_type type;
    size_t n;

    return gguf_get_array(g, key, &type, &n, NULL) == 0 && type == GGUF_STRING ? n : 0;
}

/* The least power of two from 16 on that is at least `n`. */
static uint64_t table_size(uint64_t n)
{
    uint64_t size = 16;

    while (size < n) {
        size *= 2;
    }
    return size;
}

static bool is_unigram(const struct gguf *g)
{
    struct gguf_str model;

    return gguf_get_str(g, "tokenizer.ggml.model", &model, NULL) == 0 && model.len == 2 &&
           memcmp(model.ptr, "t5", 2) == 0;
}

/* Of its rules of normalisation. */
static size_t n_bytes(const struct gguf *g)
{
    enum gguf_type type;
    size_t n;

    return gguf_get_array(g, "tokenizer.ggml.precompiled_charsmap", &type, &n, NULL) == 0 ? n : 0;
}

uint64_t tok_bytes(const struct gguf *g)
{
    uint64_t n = n_strings(g, TOKENS);
    uint64_t n_merges = n_strings(g, "tokenizer.ggml.merges");
    uint64_t text = 0;

    if (n == 0 || tok_is_bare(g)) {
        return sizeof(struct tok);
    }
    for (size_t i = 0; i < n; i++) {
        text += gguf_array_str(g, TOKENS, i).len;
    }
    return sizeof(struct tok) + n * sizeof(struct tok_entry) + 2 * text +
           2 * table_size(2 * n) * sizeof(int32_t) +
           (is_unigram(g) ? n * (sizeof(int32_t) + sizeof(float)) + n_bytes(g)
            : n_merges    ? table_size(n_merges + n_merges / 2) * sizeof(struct tok_pair)
                          : n * sizeof(uint32_t));
}

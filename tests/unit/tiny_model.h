/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_UNIT_TINY_MODEL_H
#define PIPIT_TESTS_UNIT_TINY_MODEL_H

/* Random llama models of 16 dims and SwiftKV overlays of them, written where a test wants them, and
 * bent where a test wants that. */

#include <stdbool.h>
#include <stdint.h>

enum {
    TINY_VOCAB = 50,
    TINY_EMBD = 16,
    TINY_FF = 24,
    TINY_HEADS = 4,
    TINY_KV_HEADS = 2,
    TINY_DIM = 4,
    TINY_WIDE_K = 6, /* of a wide store's one head */
    TINY_WIDE_V = 5
};

enum tiny_outputs { TINY_OUTPUTS_NONE, TINY_OUTPUTS_OF_BASE, TINY_OUTPUTS_OWN };

enum tiny_words {
    TINY_WORDS_GOOD,
    TINY_WORDS_ABSENT,
    TINY_WORDS_TWICE,
    TINY_WORDS_BEYOND,
    TINY_WORDS_FEW
};

struct tiny_bend {
    const char *drop;      /* tensor that is left out, */
    const char *misshape;  /* that has one column more, */
    const char *extra;     /* that nothing reads; or NULL each */
    const char *drop_key;  /* key that is left out */
    const char *arch;      /* the file's architecture; NULL: llama */
    const char *key;       /* u32 key that is set to value */
    uint32_t value;
    int32_t exit_words;    /* an overlay's early-exit head for this many words, 0 and on, */
    enum tiny_words words; /* their list's fault */
    enum tiny_outputs outputs; /* an overlay's output projections; */
    /* a base's, from this layer on, are what an overlay's own would be; 0: none */
    int32_t own_from;
    const uint32_t *sizes; /* of an overlay's groups, ended by 0, in place of one for all */
    uint32_t longest;  /* text of which an overlay says that it was trained on; 0: it does not */
    bool wide;         /* an overlay's stores are, */
    float bad_freq;    /* and a frequency of the last is this, if not 0 */
    int32_t idle_from;     /* layers from this one on add nothing to the residual stream; 0: none */
};

void tiny_model(const char *path, int32_t n_layers, const struct tiny_bend *bend);

/* Deep layers [split, n_layers) of the base in groups. `same`: all leaders' K and V are equal.
 * group -1: the key is left out. base_sha256 NULL: the file's own. */
/* Row i of an early-exit head is the embedding's row i, and its norm is the output's: the head's
 * logits are those of the base cut off at the split. */
void tiny_overlay(const char *path, const char *base, int32_t n_layers, int32_t split,
                  int32_t group, bool same, const char *base_sha256, const struct tiny_bend *bend);

#endif

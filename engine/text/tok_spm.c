/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece's BPE: a text starts as one symbol a character; the neighbours whose concatenation
 * is the token with the best score become one, over and over, across words. A character that is no
 * token is spelt as bytes. Scores are turned into ranks when the model is loaded (the merge loop
 * knows ranks only; equal scores share one, and then the leftmost pair wins, as in the original).
 */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "gguf/gguf.h"

#define SCORES "tokenizer.ggml.scores"

struct scored {
    float score;
    int32_t id;
};

static int by_score(const void *a, const void *b)
{
    float x = ((const struct scored *)a)->score;
    float y = ((const struct scored *)b)->score;

    return (x < y) - (x > y);
}

static int load_ranks(struct tok *t, const float *scores, struct error *reterr)
{
    size_t n = (size_t)t->n_vocab;
    AUTO_FREE struct scored *order = malloc(n * sizeof(*order));
    uint32_t rank = 0;

    t->rank = malloc(n * sizeof(*t->rank));
    if (!order || !t->rank) {
        return error_set(reterr, -ENOMEM, "no memory for the scores");
    }
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (!isfinite(scores[i])) {
            return error_set(reterr, -EBADMSG, "key '%s': token %d has no finite score", SCORES, i);
        }
        order[i] = (struct scored){scores[i], i};
    }
    qsort(order, n, sizeof(*order), by_score);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && order[i].score < order[i - 1].score) {
            rank++;
        }
        t->rank[order[i].id] = rank;
    }
    return 0;
}

int tok_spm_check_bytes(const struct tok *t, struct error *reterr)
{
    for (int byte = 0; byte < 256; byte++) {
        if (t->byte_id[byte] < 0) {
            return error_set(reterr, -EBADMSG, "the vocabulary has no token for byte <0x%02X>",
                             byte);
        }
    }
    return 0;
}

int tok_spm_load(struct tok *t, const struct gguf *g, struct error *reterr)
{
    AUTO_FREE float *scores = calloc((size_t)t->n_vocab, sizeof(*scores));
    int r;

    if (!scores) {
        return error_set(reterr, -ENOMEM, "no memory for the scores");
    }
    r = gguf_array_f32(g, SCORES, scores, (size_t)t->n_vocab, reterr);
    if (r == -ENOENT) {
        return error_set(reterr, -EBADMSG, "key '%s' is missing", SCORES);
    }
    if (r < 0) {
        return r;
    }
    r = tok_spm_check_bytes(t, reterr);
    return r < 0 ? r : load_ranks(t, scores, reterr);
}

static bool pair(const struct tok *t, const char *text, const struct tok_symbol *l,
                 const struct tok_symbol *r, uint32_t *ret_rank, int32_t *ret_id)
{
    uint32_t len = l->len + r->len;
    int32_t id = len > TOK_MAX_PIECE ? -1 : tok_map_find(&t->by_piece, t, text + l->off, len);

    if (id < 0) {
        return false;
    }
    *ret_rank = t->rank[id];
    *ret_id = id;
    return true;
}

int tok_spm_merge(const struct tok *t, struct tok_merge *m, const char *text, uint32_t len,
                  tok_merge_pair *pair_of, struct tok_sink *sink)
{
    int r = 0;

    m->n_symbols = 0;
    for (uint32_t i = 0; i < len && r == 0;) {
        int size = utf8_character(text + i, len - i);
        uint32_t n = size > 0 ? (uint32_t)size : 1;

        r = tok_merge_add(m, i, n, tok_map_find(&t->by_piece, t, text + i, n));
        i += n;
    }
    if (r == 0) {
        r = tok_merge_run(m, t, text, pair_of);
    }
    for (int32_t i = 0; r == 0 && i >= 0; i = m->symbols[i].next) {
        const struct tok_symbol *s = &m->symbols[i];

        if (s->id >= 0) {
            tok_sink_put(sink, s->id);
            continue;
        }
        for (uint32_t j = 0; j < s->len; j++) {
            tok_sink_put(sink, t->byte_id[(uint8_t)text[s->off + j]]);
        }
    }
    return r;
}

int tok_spm_encode(const struct tok *t, struct tok_merge *m, const char *text, uint32_t len,
                   bool space_before, struct tok_sink *sink)
{
    AUTO_FREE char *copy = NULL;

    if (len == 0) {
        return 0;
    }
    if (space_before) {
        copy = malloc((size_t)len + 1);
        if (!copy) {
            return -ENOMEM;
        }
        copy[0] = ' ';
        memcpy(copy + 1, text, len);
        text = copy;
        len++;
    }
    return tok_spm_merge(t, m, text, len, pair, sink);
}

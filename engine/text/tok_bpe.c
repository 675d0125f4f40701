/* SPDX-License-Identifier: Apache-2.0 */
/* BPE by ranks. Byte-level: each word of the pre-tokenizer starts as one symbol a byte; the
 * neighbours with the lowest merge rank become one, over and over. The merges are a table from two
 * ids to a rank and the id of the two together, so that encoding never compares spellings. With
 * ignore_merges (llama 3) a word that is a token already is not taken apart.
 *
 * gemma4: each character starts as a symbol, a line and a run of line ends are words, a character
 * that is no token is spelt as bytes. A run of line ends that is a token is that token. */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf.h"

#define MERGES "tokenizer.ggml.merges"

enum { MAX_MERGES = 1 << 23 };

static struct tok_pair *pair_slot(const struct tok *t, uint64_t key)
{
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    uint32_t i = (uint32_t)(h >> 32) & t->pair_mask;

    while (t->pairs[i].key != UINT64_MAX && t->pairs[i].key != key) {
        i = (i + 1) & t->pair_mask;
    }
    return &t->pairs[i];
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* A side of a merge as raw bytes; <= 0: none. */
static int side(const struct tok *t, const char *text, size_t len, char *out)
{
    bool spaced;

    if (len == 0 || len > TOK_MAX_PIECE) {
        return -1;
    }
    return t->spm ? (int)tok_spm_bytes(text, len, out, &spaced) : tok_bpe_bytes(text, len, out);
}

/* One line "LEFT RIGHT" of the file. */
static int load_merge(struct tok *t, struct gguf_str line, uint32_t rank, struct error *reterr)
{
    char bytes[2 * TOK_MAX_PIECE];
    const char *gap = line.len > 1 ? memchr(line.ptr + 1, ' ', line.len - 1) : NULL;
    size_t n_first = gap ? (size_t)(gap - line.ptr) : 0;
    size_t n_second = gap ? line.len - n_first - 1 : 0;
    int n_left = side(t, line.ptr, n_first, bytes);
    int n_right = n_left > 0 ? side(t, gap + 1, n_second, bytes + n_left) : -1;

    if (n_right <= 0) {
        return error_set(reterr, -EBADMSG, "merge %u is not two %swords", rank,
                         t->spm ? "" : "byte-level ");
    }
    int32_t left = tok_map_find(&t->by_piece, t, bytes, (size_t)n_left);
    int32_t right = tok_map_find(&t->by_piece, t, bytes + n_left, (size_t)n_right);
    int32_t both = tok_map_find(&t->by_piece, t, bytes, (size_t)(n_left + n_right));
    if (left < 0 || right < 0 || both < 0) {
        return error_set(reterr, -EBADMSG, "merge %u names %s that is not in the vocabulary", rank,
                         left < 0    ? "a left side"
                         : right < 0 ? "a right side"
                                     : "two tokens with a result");
    }
    struct tok_pair *slot = pair_slot(t, pair_key(left, right));
    if (slot->key != UINT64_MAX) {
        return error_set(reterr, -EBADMSG, "merge %u repeats merge %u", rank, slot->rank);
    }
    *slot = (struct tok_pair){pair_key(left, right), rank, both};
    return 0;
}

int tok_bpe_load(struct tok *t, const struct gguf *g, struct error *reterr)
{
    enum gguf_type type;
    size_t n;
    size_t size = 16;
    int r = gguf_get_array(g, MERGES, &type, &n, reterr);

    if (r == -ENOENT) {
        return error_set(reterr, -EBADMSG, "key '%s' is missing", MERGES);
    }
    if (r < 0) {
        return r;
    }
    if (type != GGUF_STRING || n > MAX_MERGES) {
        return error_set(reterr, -EBADMSG, "key '%s': wanted are at most %d strings", MERGES,
                         MAX_MERGES);
    }
    while (size < n + n / 2) {
        size *= 2;
    }
    t->pairs = malloc(size * sizeof(*t->pairs));
    if (!t->pairs) {
        return error_set(reterr, -ENOMEM, "no memory for the merges");
    }
    memset(t->pairs, 0xff, size * sizeof(*t->pairs));
    t->pair_mask = (uint32_t)(size - 1);
    for (size_t i = 0; i < n && r == 0; i++) {
        r = load_merge(t, gguf_array_str(g, MERGES, i), (uint32_t)i, reterr);
    }
    if (t->spm) {
        return r == 0 ? tok_spm_check_bytes(t, reterr) : r;
    }
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;

        t->byte_id[byte] = tok_map_find(&t->by_piece, t, &c, 1);
    }
    return r;
}

static bool pair(const struct tok *t, const char *text, const struct tok_symbol *l,
                 const struct tok_symbol *r, uint32_t *ret_rank, int32_t *ret_id)
{
    const struct tok_pair *slot = pair_slot(t, pair_key(l->id, r->id));

    *ret_rank = slot->rank;
    *ret_id = slot->id;
    return slot->key != UINT64_MAX;
}

struct encode {
    const struct tok *t;
    struct tok_merge *merge;
    struct tok_sink *sink;
};

static int encode_word(void *arg, const char *word, uint32_t len)
{
    const struct encode *e = arg;
    struct tok_merge *m = e->merge;
    int r = 0;

    if (len == 1 || e->t->ignore_merges) {
        int32_t id = tok_map_find(&e->t->by_piece, e->t, word, len);

        if (id >= 0) {
            tok_sink_put(e->sink, id);
            return 0;
        }
    }
    m->n_symbols = 0;
    for (uint32_t i = 0; i < len && r == 0; i++) {
        r = tok_merge_add(m, i, 1, e->t->byte_id[(uint8_t)word[i]]);
    }
    if (r == 0) {
        r = tok_merge_run(m, e->t, word, pair);
    }
    for (int32_t i = 0; r == 0 && i >= 0; i = m->symbols[i].next) {
        tok_sink_put(e->sink, m->symbols[i].id);
    }
    return r;
}

/* Lines and runs of line ends, in turns. */
static int encode_lines(const struct tok *t, struct tok_merge *m, const char *text, uint32_t len,
                        struct tok_sink *sink)
{
    int r = 0;

    for (uint32_t pos = 0, n; pos < len && r == 0; pos += n) {
        int32_t id = -1;

        n = 1;
        while (pos + n < len && (text[pos + n] == '\n') == (text[pos] == '\n')) {
            n++;
        }
        if (text[pos] == '\n') {
            id = tok_map_find(&t->by_piece, t, text + pos, n);
        }
        if (id >= 0) {
            tok_sink_put(sink, id);
        } else {
            r = tok_spm_merge(t, m, text + pos, n, pair, sink);
        }
    }
    return r;
}

int tok_bpe_encode(const struct tok *t, struct tok_merge *m, const char *text, uint32_t len,
                   struct tok_sink *sink)
{
    struct encode e = {t, m, sink};
    pcre2_match_data *scratch;
    int r;

    if (t->spm) {
        return encode_lines(t, m, text, len, sink);
    }
    scratch = pcre2_match_data_create(1, NULL);
    if (!scratch) {
        return -ENOMEM;
    }
    r = tok_pre_split(&t->pre, scratch, text, len, encode_word, &e);
    pcre2_match_data_free(scratch);
    return r;
}

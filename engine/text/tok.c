/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer's life, the questions asked of it, and the outer steps of encoding: BOS, the
 * special tokens that stand in the text, and for what lies between them one of the algorithms.
 *
 * Decoding is the inverse token by token (tok_piece); what has to know the neighbours, half
 * characters and SentencePiece's leading space, is in detok.c, and asks tok_space_after() here,
 * which is the same rule that the encoder follows. */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "gguf/gguf.h"

static bool str_is(struct gguf_str s, const char *text)
{
    return s.len == strlen(text) && !memcmp(s.ptr, text, s.len);
}

/* No way from text to ids: a file without a vocabulary, or one made for tests. Ids are those of the
 * embedding's rows; no text ends, none comes out. */
static int make_bare(struct tok *t, const struct gguf *g, struct error *reterr)
{
    const struct gguf_tensor *embd = gguf_tensor_find(g, "token_embd.weight");
    enum gguf_type type;
    size_t n = 0;

    if (embd) {
        n = embd->dims[1] <= TOK_MAX_VOCAB ? (size_t)embd->dims[1] : 0;
    } else if (gguf_get_array(g, "tokenizer.ggml.tokens", &type, &n, NULL) < 0) {
        n = 0;
    }
    if (n == 0 || n > TOK_MAX_VOCAB) {
        return error_set(reterr, -EBADMSG,
                         "the file has neither a tokenizer (key 'tokenizer.ggml.model') nor an "
                         "embedding of 1 to %d tokens",
                         TOK_MAX_VOCAB);
    }
    t->bare = true;
    t->n_vocab = (int32_t)n;
    t->bos = -1;
    t->eos = -1;
    memset(t->byte_id, 0xff, sizeof(t->byte_id));
    return 0;
}

/* Key 'tokenizer.ggml.model', where it says that there is none; or no such key. */
bool tok_is_bare(const struct gguf *g)
{
    struct gguf_str model;
    int r = gguf_get_str(g, "tokenizer.ggml.model", &model, NULL);

    return r == -ENOENT || (r == 0 && (str_is(model, "test") || str_is(model, "none") ||
                                       str_is(model, "no_vocab")));
}

/* The algorithm and what it takes as given where the file says nothing. */
static int choose(struct tok *t, const struct gguf *g, struct error *reterr)
{
    struct gguf_str model;
    struct gguf_str pre = {"default", 7};
    int r = gguf_get_str(g, "tokenizer.ggml.model", &model, reterr);

    if (r < 0) {
        return r;
    }
    t->unigram = str_is(model, "t5");
    t->ranks = !t->unigram && !str_is(model, "llama");
    t->spm = !t->ranks || str_is(model, "gemma4");
    if (!t->spm && !str_is(model, "gpt2")) {
        return error_set(reterr, -ENOTSUP,
                         "tokenizer model '%.*s' (key 'tokenizer.ggml.model') is not known "
                         "(known: llama, gpt2, gemma4, t5)",
                         (int)(model.len < 64 ? model.len : 64), model.ptr);
    }
    t->space_prefix = !t->ranks && !t->unigram;
    t->add_bos = t->spm && !t->unigram;
    if (t->spm) {
        return 0;
    }
    r = gguf_get_str(g, "tokenizer.ggml.pre", &pre, reterr);
    if (r < 0 && r != -ENOENT) {
        return r;
    }
    if (str_is(pre, "gemma4")) { /* as older files name it */
        t->spm = true;
        t->add_bos = true;
        return 0;
    }
    r = tok_pre_init(&t->pre, pre.ptr, pre.len, reterr);
    t->ignore_merges = t->pre.flags & TOK_PRE_IGNORE_MERGES;
    t->add_bos = t->pre.flags & TOK_PRE_ADD_BOS;
    return r;
}

int tok_create(const struct gguf *g, struct tok **ret, struct error *reterr)
{
    struct tok *t = calloc(1, sizeof(*t));
    int r;

    if (!t) {
        return error_set(reterr, -ENOMEM, "no memory for the tokenizer");
    }
    if (tok_is_bare(g)) {
        r = make_bare(t, g, reterr);
        if (r < 0) {
            tok_destroy(t);
            return r;
        }
        *ret = t;
        return 0;
    }
    r = choose(t, g, reterr);
    if (r == 0) {
        r = tok_vocab_load(t, g, reterr);
    }
    if (r == 0) {
        r = t->ranks     ? tok_bpe_load(t, g, reterr)
            : t->unigram ? tok_unigram_load(t, g, reterr)
                         : tok_spm_load(t, g, reterr);
    }
    if (r == 0) {
        r = tok_special_index(t, reterr);
    }
    if (r < 0) {
        tok_destroy(t);
        return r;
    }
    *ret = t;
    return 0;
}

void tok_destroy(struct tok *t)
{
    if (!t) {
        return;
    }
    tok_pre_finish(&t->pre);
    tok_map_finish(&t->by_text);
    tok_map_finish(&t->by_piece);
    free(t->bytes);
    free(t->entries);
    free(t->rank);
    free(t->pairs);
    free(t->score);
    free(t->sorted);
    tok_charsmap_finish(&t->charsmap);
    free(t);
}

static const struct tok_entry *entry_of(const struct tok *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab && !t->bare ? &t->entries[id] : NULL;
}

static bool gives_no_text(const struct tok_entry *e)
{
    return e->kind == TOK_CONTROL || e->kind == TOK_UNKNOWN;
}

int32_t tok_n_vocab(const struct tok *t)
{
    return t->n_vocab;
}

int32_t tok_bos(const struct tok *t)
{
    return t->bos;
}

int32_t tok_eos(const struct tok *t)
{
    return t->eos;
}

bool tok_adds_bos(const struct tok *t)
{
    return t->add_bos;
}

bool tok_is_end(const struct tok *t, int32_t id)
{
    const struct tok_entry *e = entry_of(t, id);

    return e && e->end;
}

bool tok_is_added(const struct tok *t, int32_t id)
{
    const struct tok_entry *e = entry_of(t, id);

    return e && e->kind == TOK_USER;
}

bool tok_is_control(const struct tok *t, int32_t id)
{
    const struct tok_entry *e = entry_of(t, id);

    return e && gives_no_text(e);
}

bool tok_has_text(const struct tok *t)
{
    return !t->bare;
}

bool tok_has_byte(const struct tok *t, uint8_t byte)
{
    return t->byte_id[byte] >= 0;
}

bool tok_is_exact(const struct tok *t)
{
    return !t->unigram || (t->spells && !t->merge_spaces && t->charsmap.n_nodes == 0);
}

size_t tok_max_piece(const struct tok *t)
{
    return t->max_len;
}

const char *tok_model(const struct tok *t)
{
    return t->bare ? "none" : t->unigram ? "t5" : !t->ranks ? "llama" : t->spm ? "gemma4" : "gpt2";
}

const char *tok_pre(const struct tok *t)
{
    return t->spm || t->bare ? "default" : t->pre.name;
}

int32_t tok_find_special(const struct tok *t, const char *text)
{
    int32_t id = t->bare ? -1 : tok_map_find(&t->by_text, t, text, strlen(text));

    return id >= 0 && gives_no_text(&t->entries[id]) ? id : -1;
}

int32_t tok_find_added(const struct tok *t, const char *text)
{
    int32_t id = t->bare ? -1 : tok_map_find(&t->by_text, t, text, strlen(text));

    return id >= 0 && (gives_no_text(&t->entries[id]) || t->entries[id].kind == TOK_USER) ? id : -1;
}

size_t tok_bound(const struct tok *t, size_t len)
{
    /* A byte, of unigram's normal form where that is, is at most one token; so is the space before
     * each plain part, of which each but the first follows a special token of at least a byte. */
    return (t->unigram ? tok_normal_most(len) : len) + len / 2 + 2;
}

bool tok_space_after(const struct tok *t, int32_t prev)
{
    const struct tok_entry *e = entry_of(t, prev);

    return t->space_prefix && (!e || gives_no_text(e) || (e->kind == TOK_USER && !e->spaced));
}

void tok_piece(const struct tok *t, int32_t id, const char **ret_ptr, size_t *ret_len)
{
    const struct tok_entry *e = entry_of(t, id);

    *ret_ptr = e ? t->bytes + e->piece : "";
    *ret_len = e ? e->piece_len : 0;
}

void tok_token_text(const struct tok *t, int32_t id, const char **ret_ptr, size_t *ret_len)
{
    const struct tok_entry *e = entry_of(t, id);

    if (e && gives_no_text(e)) {
        *ret_ptr = t->bytes + e->text;
        *ret_len = e->text_len;
        return;
    }
    tok_piece(t, id, ret_ptr, ret_len);
}

/* Can the vocabulary spell every byte? Only small byte-level vocabularies lack some. */
static int check_bytes(const struct tok *t, const char *text, size_t len, struct error *reterr)
{
    for (size_t i = 0; i < len && !t->unigram; i++) {
        if (t->byte_id[(uint8_t)text[i]] < 0) {
            return error_set(
                reterr, -EINVAL,
                "byte 0x%02x at offset %zu: the model's vocabulary has no token for it",
                (unsigned)(uint8_t)text[i], i);
        }
    }
    return 0;
}

static int encode_spans(const struct tok *t, const char *text, const struct tok_span *spans,
                        size_t n, bool space_before, struct tok_sink *sink)
{
    struct tok_merge merge = {0};
    int r = 0;

    for (size_t i = 0; i < n && r == 0; i++) {
        const struct tok_span *s = &spans[i];

        if (s->id >= 0) {
            tok_sink_put(sink, s->id);
            space_before = tok_space_after(t, s->id);
        } else if (t->unigram) {
            r = tok_unigram_encode(t, text + s->off, s->len, space_before, sink);
        } else if (!t->ranks) {
            r = tok_spm_encode(t, &merge, text + s->off, s->len, space_before, sink);
        } else {
            r = tok_bpe_encode(t, &merge, text + s->off, s->len, sink);
        }
    }
    tok_merge_finish(&merge);
    return r;
}

static int encode(const struct tok *t, const char *text, size_t len, unsigned flags,
                  const struct tok_part *parts, size_t n_parts, int32_t *ids, size_t cap,
                  size_t *ret_n, struct error *reterr)
{
    struct tok_sink sink = {ids, cap, 0, tok_normal_most(len)};
    AUTO_FREE struct tok_span *spans = NULL;
    size_t n_spans;
    int r;

    if (t->bare) {
        *ret_n = 0;
        return error_set(reterr, -ENOTSUP,
                         "the model's file has no tokenizer (key 'tokenizer.ggml.model'), so it "
                         "takes token ids, not text");
    }
    if (len > TOK_MAX_TEXT) {
        *ret_n = 0;
        return error_set(reterr, -E2BIG, "the text has %zu bytes (at most %d)", len, TOK_MAX_TEXT);
    }
    r = check_bytes(t, text, len, reterr);
    if (r < 0) {
        return r;
    }
    if (t->bos >= 0 && ((flags & TOK_FORCE_BOS) || ((flags & TOK_ADD_BOS) && t->add_bos))) {
        tok_sink_put(&sink, t->bos);
    }
    r = tok_special_split(t, text, (uint32_t)len, flags & TOK_PARSE_SPECIAL, parts, n_parts, &spans,
                          &n_spans);
    if (r == 0) {
        r = encode_spans(t, text, spans, n_spans, t->space_prefix && !(flags & TOK_MID_TEXT),
                         &sink);
    }
    if (r == -E2BIG) {
        return error_set(reterr, r,
                         "the text's normal form has more than %zu bytes, three times its own",
                         tok_normal_most(len));
    }
    if (r < 0) {
        return r == -ELOOP
                   ? error_set(reterr, r,
                               "pre-tokenizer '%s': a text of %zu bytes exceeds PCRE2's limits of "
                               "a match (match_limit, depth_limit, heap_limit)",
                               t->pre.name, len)
                   : error_set(reterr, r, "no memory to tokenize %zu bytes", len);
    }
    *ret_n = sink.n;
    return sink.n <= cap
               ? 0
               : error_set(reterr, -E2BIG, "the text has %zu tokens, asked were at most %zu",
                           sink.n, cap);
}

int tok_encode(const struct tok *t, const char *text, size_t len, unsigned flags, int32_t *ids,
               size_t cap, size_t *ret_n, struct error *reterr)
{
    return encode(t, text, len, flags, NULL, 0, ids, cap, ret_n, reterr);
}

int tok_encode_parts(const struct tok *t, const char *text, const struct tok_part *parts, size_t n,
                     int32_t *ids, size_t cap, size_t *ret_n, struct error *reterr)
{
    size_t len = 0;

    for (size_t i = 0; i < n; i++) {
        len += parts[i].len;
    }
    return encode(t, text, len, TOK_PARSE_SPECIAL, parts, n, ids, cap, ret_n, reterr);
}

int tok_encode_new(const struct tok *t, const char *text, size_t len, unsigned flags,
                   int32_t **ret_ids, size_t *ret_n, struct error *reterr)
{
    AUTO_FREE int32_t *ids = NULL;
    size_t n;
    int r;

    if (len > TOK_MAX_TEXT) {
        return error_set(reterr, -E2BIG, "the text has %zu bytes (at most %d)", len, TOK_MAX_TEXT);
    }
    ids = malloc(tok_bound(t, len) * sizeof(*ids));
    if (!ids) {
        return error_set(reterr, -ENOMEM, "no memory to tokenize %zu bytes", len);
    }
    r = tok_encode(t, text, len, flags, ids, tok_bound(t, len), &n, reterr);
    if (r < 0) {
        return r;
    }
    *ret_ids = STEAL(ids);
    *ret_n = n;
    return 0;
}

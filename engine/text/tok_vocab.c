/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary's arrays: spellings and kinds out of the file, and for each token the bytes it
 * stands for. Everything is copied into one block, so the file may be closed. Nothing is believed:
 * lengths, kinds, duplicates and byte tokens are checked, and a fault names the token.
 *
 * What a spelling means depends on the algorithm:
 *   SentencePiece    U+2581 is a space; "<0x0A>" of kind byte is that byte
 *   byte-level BPE   each letter of GPT-2's alphabet is one byte; user-defined tokens are plain
 * text */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "gguf/gguf.h"

#define TOKENS "tokenizer.ggml.tokens"
#define TYPES "tokenizer.ggml.token_type"

static const char LOW_LINE[] = "\xe2\x96\x81"; /* U+2581 */

/* GPT-2's alphabet: bytes that print stand for themselves as characters, the others for U+0100 and
 * on in order. -1: the character is not in it. */
static int byte_of_letter(uint32_t cp)
{
    static const struct {
        uint8_t first;
        uint8_t last;
    } hidden[] = {{0, 32}, {127, 160}, {173, 173}};

    if (cp < 256) {
        return cp <= 32 || (cp >= 127 && cp <= 160) || cp == 173 ? -1 : (int)cp;
    }
    cp -= 256;
    for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++) {
        uint32_t n = (uint32_t)(hidden[i].last - hidden[i].first + 1);

        if (cp < n) {
            return (int)(hidden[i].first + cp);
        }
        cp -= n;
    }
    return -1;
}

int tok_bpe_bytes(const char *text, size_t len, char *out)
{
    int n = 0;

    for (size_t i = 0; i < len;) {
        uint8_t c = (uint8_t)text[i];
        int size = utf8_character(text + i, len - i);
        uint32_t cp = size == 2 ? (uint32_t)(c & 0x1f) << 6 | ((uint8_t)text[i + 1] & 0x3f) : c;
        int byte = size == 1 || size == 2 ? byte_of_letter(cp) : -1;

        if (byte < 0) {
            return -1;
        }
        out[n++] = (char)byte;
        i += (size_t)size;
    }
    return n;
}

size_t tok_spm_bytes(const char *text, size_t len, char *out, bool *ret_spaced)
{
    size_t n = 0;

    for (size_t i = 0; i < len;) {
        if (len - i >= 3 && !memcmp(text + i, LOW_LINE, 3)) {
            out[n++] = ' ';
            *ret_spaced = true;
            i += 3;
        } else {
            out[n++] = text[i++];
        }
    }
    return n;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0xHH>", or -1. */
static int byte_of_spelling(const char *text, size_t len)
{
    int high;
    int low;

    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    high = hex_digit(text[3]);
    low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Fills in a SentencePiece token; `out` is where its piece goes. */
static int spm_entry(struct tok *t, int32_t id, const char *text, char *out, struct error *reterr)
{
    struct tok_entry *e = &t->entries[id];
    bool spaced = false;
    int byte;

    switch (e->kind) {
    case TOK_BYTE:
        byte = byte_of_spelling(text, e->text_len);
        if (byte < 0) {
            return error_set(reterr, -EBADMSG, "token %d is of kind byte, but not spelt <0xHH>",
                             id);
        }
        *out = (char)byte;
        e->piece_len = 1;
        t->byte_id[byte] = id;
        return 0;
    case TOK_NORMAL:
    case TOK_UNUSED:
    case TOK_USER:
        e->piece_len = (uint16_t)tok_spm_bytes(text, e->text_len, out, &spaced);
        e->spaced = spaced;
        /* A spelling with a real space in it cannot come from a text. */
        e->merges = e->text_len > 0 && !memchr(text, ' ', e->text_len);
        return 0;
    default:
        return 0;
    }
}

static void bpe_entry(struct tok_entry *e, const char *text, char *out)
{
    int n = e->kind == TOK_CONTROL || e->kind == TOK_UNKNOWN
                ? 0
                : tok_bpe_bytes(text, e->text_len, out);

    if (e->kind == TOK_CONTROL || e->kind == TOK_UNKNOWN) {
        return;
    }
    if (n >= 0 && (e->kind != TOK_USER || (n == e->text_len && !memcmp(out, text, (size_t)n)))) {
        e->piece_len = (uint16_t)n;
        e->merges = n > 0;
        return;
    }
    memcpy(out, text, e->text_len);
    e->piece_len = e->text_len;
}

static int load_kinds(struct tok *t, const struct gguf *g, struct error *reterr)
{
    AUTO_FREE int64_t *kinds = calloc((size_t)t->n_vocab, sizeof(*kinds));
    int r;

    if (!kinds) {
        return error_set(reterr, -ENOMEM, "no memory for the vocabulary");
    }
    if (gguf_has(g, TYPES)) {
        r = gguf_array_i64(g, TYPES, kinds, (size_t)t->n_vocab, reterr);
        if (r < 0) {
            return r;
        }
    }
    for (int32_t i = 0; i < t->n_vocab; i++) {
        /* No array, or 0 (undefined) in it: an ordinary token. */
        int64_t kind = kinds[i] == 0 ? TOK_NORMAL : kinds[i];

        if (kind < TOK_NORMAL || kind > TOK_BYTE) {
            return error_set(reterr, -EBADMSG, "key '%s': token %d is of unknown kind %lld", TYPES,
                             i, (long long)kinds[i]);
        }
        t->entries[i].kind = (uint8_t)kind;
    }
    return 0;
}

/* Allocates for all spellings, and as much again for the pieces, which are never longer. */
static int measure(struct tok *t, const struct gguf *g, struct error *reterr)
{
    enum gguf_type type;
    uint64_t total = 0;
    size_t n;
    int r = gguf_get_array(g, TOKENS, &type, &n, reterr);

    if (r == -ENOENT) {
        return error_set(reterr, -EBADMSG, "key '%s' is missing", TOKENS);
    }
    if (r < 0) {
        return r;
    }
    if (type != GGUF_STRING || n == 0 || n > TOK_MAX_VOCAB) {
        return error_set(reterr, -EBADMSG, "key '%s': wanted are 1 to %d strings", TOKENS,
                         TOK_MAX_VOCAB);
    }
    for (size_t i = 0; i < n; i++) {
        size_t len = gguf_array_str(g, TOKENS, i).len;

        if (len > TOK_MAX_PIECE) {
            return error_set(reterr, -EBADMSG, "token %zu has %zu bytes (at most %d)", i, len,
                             TOK_MAX_PIECE);
        }
        total += len;
        t->max_len = len > t->max_len ? (uint16_t)len : t->max_len;
    }
    if (total > INT32_MAX) {
        return error_set(reterr, -EBADMSG, "key '%s': more than 2 GiB of text", TOKENS);
    }
    t->n_vocab = (int32_t)n;
    t->entries = calloc(n, sizeof(*t->entries));
    t->bytes = malloc(2 * (size_t)total + 1);
    if (!t->entries || !t->bytes) {
        return error_set(reterr, -ENOMEM, "no memory for the vocabulary");
    }
    return 0;
}

static int load_entries(struct tok *t, const struct gguf *g, struct error *reterr)
{
    uint32_t pos = 0;

    for (int32_t i = 0; i < t->n_vocab; i++) {
        struct gguf_str s = gguf_array_str(g, TOKENS, (size_t)i);
        struct tok_entry *e = &t->entries[i];
        int r = 0;

        e->text = pos;
        e->text_len = (uint16_t)s.len;
        memcpy(t->bytes + pos, s.ptr, s.len);
        e->piece = pos + e->text_len;
        pos = e->piece + e->text_len;
        if (e->kind == TOK_USER && tok_keys_is_marker(s.ptr, s.len)) {
            e->kind = TOK_CONTROL;
        }
        e->guarded = e->kind == TOK_USER && tok_keys_is_guarded(s.ptr, s.len);
        if (t->spm) {
            r = spm_entry(t, i, s.ptr, t->bytes + e->piece, reterr);
        } else {
            bpe_entry(e, s.ptr, t->bytes + e->piece);
        }
        if (r < 0) {
            return r;
        }
        e->merges &= !e->guarded;
    }
    return 0;
}

static int load_maps(struct tok *t, struct error *reterr)
{
    if (tok_map_init(&t->by_text, t->n_vocab, false) < 0 ||
        tok_map_init(&t->by_piece, t->n_vocab, true) < 0) {
        return error_set(reterr, -ENOMEM, "no memory for the vocabulary");
    }
    for (int32_t i = 0; i < t->n_vocab; i++) {
        const struct tok_entry *e = &t->entries[i];
        int32_t other = i;

        if (e->text_len > 0) {
            other = tok_map_add(&t->by_text, t, i);
        }
        if (e->merges && other == i) {
            other = tok_map_add(&t->by_piece, t, i);
        }
        if (other != i) {
            return error_set(reterr, -EBADMSG, "token %d is spelt like token %d", i, other);
        }
    }
    return 0;
}

int tok_vocab_load(struct tok *t, const struct gguf *g, struct error *reterr)
{
    int r = measure(t, g, reterr);

    memset(t->byte_id, 0xff, sizeof(t->byte_id));
    if (r == 0) {
        r = load_kinds(t, g, reterr);
    }
    if (r == 0) {
        /* Which tokens are BOS, EOS and so on decides their kind, so it comes before the pieces. */
        r = tok_keys_load(t, g, reterr);
    }
    if (r == 0) {
        r = load_entries(t, g, reterr);
    }
    if (r == 0) {
        r = load_maps(t, reterr);
    }
    return r;
}

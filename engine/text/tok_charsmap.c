/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece's precompiled rules of normalisation: a table that replaces the longest of its
 * entries that a text begins with. The file has it as SentencePiece does:
 *
 *     u32        bytes of the array
 *     u32[]      a double array, bit-packed (S. Kanda, 2018): the child of a node by a byte lies at
 *                the node's base XOR that byte, and its low 8 bits are the byte
 *     text       replacements, each ended by a zero
 *
 * A node that ends an entry has a leaf, whose low 31 bits are the offset of the replacement. The
 * file is not trusted: an index beyond the array ends the search, and so do TOK_MAX_SPELT bytes,
 * since nodes may form a circle. An offset beyond the text or a replacement without an end is none,
 * and one of more than TOK_MAX_SPELT bytes is refused. */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "gguf/gguf.h"

#define CHARSMAP "tokenizer.ggml.precompiled_charsmap"

/* Bytes that one byte of a text can become: the longest replacement. */
static int measure(struct tok_charsmap *m, struct error *reterr)
{
    size_t run = 0;

    for (size_t i = 0; i < m->n_text; i++) {
        run = m->text[i] ? run + 1 : 0;
        if (run > TOK_MAX_SPELT) {
            return error_set(reterr, -EBADMSG,
                             "key '%s': a replacement of more than %d bytes is not offered",
                             CHARSMAP, TOK_MAX_SPELT);
        }
        m->most = run > m->most ? run : m->most;
    }
    return 0;
}

int tok_charsmap_load(struct tok_charsmap *m, const struct gguf *g, struct error *reterr)
{
    AUTO_FREE int64_t *values = NULL;
    enum gguf_type type;
    size_t n = 0;
    int r = gguf_get_array(g, CHARSMAP, &type, &n, reterr);

    m->most = 1;
    if (r == -ENOENT || (r == 0 && n == 0)) {
        return 0;
    }
    if (r < 0) {
        return r;
    }
    if ((type != GGUF_I8 && type != GGUF_U8) || n > TOK_MAX_CHARSMAP) {
        return error_set(reterr, -EBADMSG, "key '%s': wanted are at most %d bytes", CHARSMAP,
                         TOK_MAX_CHARSMAP);
    }
    values = calloc(n, sizeof(*values));
    m->bytes = malloc(n);
    if (!values || !m->bytes) {
        return error_set(reterr, -ENOMEM, "no memory for rules of normalisation");
    }
    r = gguf_array_i64(g, CHARSMAP, values, n, reterr);
    if (r < 0) {
        return r;
    }
    for (size_t i = 0; i < n; i++) {
        m->bytes[i] = (uint8_t)values[i];
    }
    size_t array = n < 4 ? n : tok_le32(m->bytes);

    if (array % 4 || array + 4 >= n) {
        return error_set(reterr, -EBADMSG, "key '%s': an array of %zu bytes in %zu", CHARSMAP,
                         array, n);
    }
    m->n_nodes = array / 4;
    m->text = (const char *)m->bytes + 4 + array;
    m->n_text = n - 4 - array;
    return measure(m, reterr);
}

void tok_charsmap_finish(struct tok_charsmap *m)
{
    free(m->bytes);
    m->bytes = NULL;
}

static uint32_t node_at(const struct tok_charsmap *m, size_t i)
{
    return tok_le32(m->bytes + 4 + 4 * i);
}

static uint32_t base_of(uint32_t node)
{
    return (node >> 10) << ((node & 1U << 9) >> 6);
}

size_t tok_charsmap_find(const struct tok_charsmap *m, const char *text, size_t len,
                         const char **ret, size_t *ret_len)
{
    size_t found = 0;
    size_t at = m->n_nodes ? base_of(node_at(m, 0)) : 0;

    for (size_t i = 0; i < len && i < TOK_MAX_SPELT && m->n_nodes; i++) {
        uint8_t c = (uint8_t)text[i];

        at ^= c;
        if (c == 0 || at >= m->n_nodes) {
            break;
        }
        uint32_t node = node_at(m, at);

        if ((node & (1U << 31 | 0xff)) != c) {
            break;
        }
        at ^= base_of(node);
        if ((node >> 8 & 1) == 0) {
            continue;
        }
        size_t off = at < m->n_nodes ? node_at(m, at) & ((1U << 31) - 1) : m->n_text;
        const char *end = off < m->n_text ? memchr(m->text + off, 0, m->n_text - off) : NULL;

        if (end) {
            found = i + 1;
            *ret = m->text + off;
            *ret_len = (size_t)(end - *ret);
        }
    }
    return found;
}

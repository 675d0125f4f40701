/* SPDX-License-Identifier: Apache-2.0 */
/* From bytes to tables, trusting nothing: header, keys (gguf_keys.c), alignment, tensors
 * (gguf_tensors.c). Counts are held against the bytes left and against limits first. Names are
 * sorted once: that finds duplicates, makes look-ups fast, and, unlike a hash, has no bad case that
 * a file could aim at. */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "gguf/cursor.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF and this reader are little-endian");

int gguf_str_compare(struct gguf_str a, struct gguf_str b)
{
    return a.len != b.len ? (a.len > b.len) - (a.len < b.len) : memcmp(a.ptr, b.ptr, a.len);
}

uint32_t *gguf_sorted_indices(size_t n, int (*order)(const void *, const void *, void *), void *arg)
{
    uint32_t *v = malloc((n ? n : 1) * sizeof(*v));

    if (v) {
        for (size_t i = 0; i < n; i++) {
            v[i] = (uint32_t)i;
        }
        qsort_r(v, n, sizeof(*v), order, arg);
    }
    return v;
}

static int take_header(struct cursor *c)
{
    const uint8_t *magic;
    uint32_t version;
    uint64_t n_tensors;
    uint64_t n_keys;
    int r = cursor_take(c, 4, "its magic", &magic);

    if (r == 0 && memcmp(magic, "GGUF", 4) != 0) {
        return cursor_bad(c, "it does not begin with 'GGUF'");
    }
    r = r < 0 ? r : cursor_take_u32(c, "its version", &version);
    if (r == 0 && version != 3) {
        return cursor_bad(c, "version %" PRIu32 " is not offered, only 3%s", version,
                          version == 3u << 24 ? " in little-endian order" : "");
    }
    r = r < 0 ? r : cursor_take_u64(c, "its number of tensors", &n_tensors);
    r = r < 0 ? r : cursor_take_u64(c, "its number of keys", &n_keys);
    if (r < 0) {
        return r;
    }
    /* The least that a key or a description of a tensor takes. */
    uint64_t left = c->g->size - c->pos;
    if (n_keys > GGUF_MAX_KEYS || n_keys > left / 14) {
        return cursor_bad(c, "its %" PRIu64 " keys are over the limit or longer than the file",
                          n_keys);
    }
    if (n_tensors > GGUF_MAX_TENSORS || n_tensors > left / 33) {
        return cursor_bad(c, "its %" PRIu64 " tensors are over the limit or longer than the file",
                          n_tensors);
    }
    c->g->n_keys = (size_t)n_keys;
    c->g->n_tensors = (size_t)n_tensors;
    return 0;
}

static int find_alignment(struct cursor *c, uint64_t *ret)
{
    int r = gguf_get_u64(c->g, "general.alignment", 8, 1 << 20, ret, c->err);

    if (r == -ENOENT) {
        *ret = GGUF_DEFAULT_ALIGNMENT;
        return 0;
    }
    if (r == 0 && (*ret & (*ret - 1)) != 0) {
        (void)snprintf(c->where, sizeof(c->where), "key 'general.alignment'");
        return cursor_bad(c, "%" PRIu64 " is not a power of two", *ret);
    }
    return r;
}

int gguf_parse(struct gguf *g, struct error *reterr)
{
    struct cursor c = {.g = g, .where = "header", .err = reterr};
    uint64_t alignment;
    int r = take_header(&c);

    r = r < 0 ? r : gguf_keys_take(&c);
    r = r < 0 ? r : find_alignment(&c, &alignment);
    return r < 0 ? r : gguf_tensors_take(&c, alignment);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* From bytes to tables, trusting nothing. A cursor hands out ranges of the file and refuses to
 * pass its end; every count is held against the bytes that are left before anything of its size is
 * allocated, so a small file cannot ask for much memory. Everything that can be wrong ends in
 * bad(), which names where it happened: the header, key number N, the key or the tensor.
 *
 * Names are sorted once. That finds duplicates, makes look-ups fast, and, unlike a hash, has no bad
 * case that a file could aim at. Tensors are sorted by offset once, to find overlaps. */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/utf8.h"
#include "gguf/gguf_file.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF and this reader are little-endian");

struct cursor {
    struct gguf *g;
    uint64_t pos;
    char where[96]; /* "key 'general.name'" */
    struct error *err;
};

static int bad(struct cursor *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

static int bad(struct cursor *c, const char *fmt, ...)
{
    char text[160];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return error_set(c->err, -EBADMSG, "%s: %s", c->where, text);
}

static int no_memory(struct cursor *c, const char *what)
{
    return error_set(c->err, -ENOMEM, "%s: no memory for %s", c->where, what);
}

struct gguf_shown gguf_show(struct gguf_str s)
{
    struct gguf_shown r;
    size_t n = s.len < 63 ? s.len : 63;

    for (size_t i = 0; i < n; i++) {
        r.text[i] = (char)(s.ptr[i] >= 32 && s.ptr[i] < 127 ? s.ptr[i] : '?');
    }
    memcpy(r.text + n, s.len > n ? "..." : "", s.len > n ? 4 : 1);
    return r;
}

static void where_is(struct cursor *c, const char *kind, struct gguf_str name)
{
    (void)snprintf(c->where, sizeof(c->where), "%s '%s'", kind, gguf_show(name).text);
}

/* ---- taking bytes ---- */

static int take(struct cursor *c, uint64_t n, const char *what, const uint8_t **ret)
{
    if (!checked_range(c->pos, n, c->g->size)) {
        return bad(c, "the file ends inside %s (%" PRIu64 " bytes wanted, %" PRIu64 " left)", what,
                   n, c->g->size - c->pos);
    }
    *ret = c->g->data + c->pos;
    c->pos += n;
    return 0;
}

static int take_u32(struct cursor *c, const char *what, uint32_t *ret)
{
    const uint8_t *p = NULL;
    int r = take(c, sizeof(*ret), what, &p);

    *ret = 0;
    if (r == 0) {
        memcpy(ret, p, sizeof(*ret));
    }
    return r;
}

static int take_u64(struct cursor *c, const char *what, uint64_t *ret)
{
    const uint8_t *p = NULL;
    int r = take(c, sizeof(*ret), what, &p);

    *ret = 0;
    if (r == 0) {
        memcpy(ret, p, sizeof(*ret));
    }
    return r;
}

static int take_name(struct cursor *c, uint64_t max, struct gguf_str *ret)
{
    const uint8_t *p = NULL;
    uint64_t len;
    int r = take_u64(c, "the length of a name", &len);

    if (r < 0) {
        return r;
    }
    if (len == 0 || len > max) {
        return bad(c, "its name has %" PRIu64 " bytes, not 1..%" PRIu64, len, max);
    }
    r = take(c, len, "a name", &p);
    if (r < 0) {
        return r;
    }
    *ret = (struct gguf_str){(const char *)p, (size_t)len};
    return utf8_valid(ret->ptr, ret->len) ? 0 : bad(c, "its name is not valid UTF-8");
}

/* ---- keys ---- */

size_t gguf_type_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {[GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
                                    [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
                                    [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};

    return type < sizeof(bytes) ? bytes[type] : 0;
}

const char *gguf_type_name(uint32_t type)
{
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};

    return type < sizeof(names) / sizeof(names[0]) ? names[type] : "unknown type";
}

static int take_string(struct cursor *c, struct gguf_key *k)
{
    int r = take_u64(c, "the length of its string", &k->n);

    return r < 0 ? r : take(c, k->n, "its string", &k->body);
}

static int check_bools(struct cursor *c, const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (p[i] > 1) {
            return bad(c, "a bool is %u, not 0 or 1", p[i]);
        }
    }
    return 0;
}

static int take_strings(struct cursor *c, struct gguf_key *k)
{
    const uint8_t *p;
    uint64_t len;

    if (k->n > GGUF_MAX_STRINGS) {
        return bad(c, "an array of %" PRIu64 " strings is over the limit of %d", k->n,
                   GGUF_MAX_STRINGS);
    }
    if (k->n > (c->g->size - c->pos) / sizeof(uint64_t)) {
        return bad(c, "the file has no room for its %" PRIu64 " strings", k->n);
    }
    k->string_at = malloc((size_t)(k->n ? k->n : 1) * sizeof(*k->string_at));
    if (!k->string_at) {
        return no_memory(c, "an index of its strings");
    }
    for (uint64_t i = 0; i < k->n; i++) {
        k->string_at[i] = c->pos;
        int r = take_u64(c, "the length of a string of its array", &len);

        if (r == 0) {
            r = take(c, len, "a string of its array", &p);
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int take_array(struct cursor *c, struct gguf_key *k)
{
    uint32_t element;
    int r = take_u32(c, "the type of its array", &element);

    if (r == 0) {
        r = take_u64(c, "the count of its array", &k->n);
    }
    if (r < 0) {
        return r;
    }
    if (element == GGUF_ARRAY) {
        return bad(c, "an array of arrays is not offered");
    }
    if (element > GGUF_F64) {
        return bad(c, "its array has the unknown type %" PRIu32, element);
    }
    k->element = (enum gguf_type)element;
    k->body = c->g->data + c->pos;
    if (k->element == GGUF_STRING) {
        return take_strings(c, k);
    }
    if (k->n > GGUF_MAX_ARRAY) {
        return bad(c, "an array of %" PRIu64 " elements is over the limit of %d", k->n,
                   GGUF_MAX_ARRAY);
    }
    r = take(c, k->n * gguf_type_bytes(element), "its array", &k->body);
    return r == 0 && k->element == GGUF_BOOL ? check_bools(c, k->body, k->n) : r;
}

static int take_value(struct cursor *c, struct gguf_key *k)
{
    uint64_t begin = c->pos;
    int r;

    if (k->type == GGUF_STRING) {
        r = take_string(c, k);
    } else if (k->type == GGUF_ARRAY) {
        r = take_array(c, k);
    } else {
        r = take(c, gguf_type_bytes(k->type), "its value", &k->body);
        if (r == 0 && k->type == GGUF_BOOL) {
            r = check_bools(c, k->body, 1);
        }
    }
    k->raw = c->g->data + begin;
    k->raw_bytes = (size_t)(c->pos - begin);
    return r;
}

static int take_keys(struct cursor *c)
{
    struct gguf *g = c->g;
    size_t n = g->n_keys;
    uint32_t type;

    g->n_keys = 0; /* counts what is there for gguf_close() */
    g->keys = calloc(n ? n : 1, sizeof(*g->keys));
    if (!g->keys) {
        return no_memory(c, "the table of keys");
    }
    for (size_t i = 0; i < n; i++) {
        struct gguf_key *k = &g->keys[i];

        (void)snprintf(c->where, sizeof(c->where), "key %zu of %zu", i + 1, n);
        int r = take_name(c, GGUF_MAX_KEY_LEN, &k->name);
        if (r < 0) {
            return r;
        }
        where_is(c, "key", k->name);
        r = take_u32(c, "its type", &type);
        if (r < 0) {
            return r;
        }
        if (type > GGUF_F64) {
            return bad(c, "its type %" PRIu32 " is unknown", type);
        }
        k->type = (enum gguf_type)type;
        g->n_keys++;
        r = take_value(c, k);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

/* ---- tensors ---- */

static int take_dims(struct cursor *c, struct gguf_tensor *t)
{
    uint32_t n_dims;
    uint64_t n_rows = 1;
    int r = take_u32(c, "its number of dimensions", &n_dims);

    if (r < 0) {
        return r;
    }
    if (n_dims < 1 || n_dims > 4) {
        return bad(c, "it has %" PRIu32 " dimensions, not 1..4", n_dims);
    }
    t->n_dims = (int)n_dims;
    for (uint32_t i = 0; i < 4; i++) {
        t->dims[i] = 1;
        r = i < n_dims ? take_u64(c, "its dimensions", &t->dims[i]) : 0;
        if (r < 0) {
            return r;
        }
        if (t->dims[i] == 0) {
            return bad(c, "dimension %" PRIu32 " is 0", i);
        }
        if (i > 0 && !checked_mul_u64(n_rows, t->dims[i], &n_rows)) {
            return bad(c, "its dimensions multiply to more than 64 bits");
        }
    }
    t->n_bytes = n_rows; /* until the type is known */
    return 0;
}

/* Rows of whole blocks, all inside 64 bits. */
static int size_of_tensor(struct cursor *c, struct gguf_tensor *t, uint32_t type)
{
    const struct dtype_info *info = dtype_info(type);
    uint64_t row_bytes;

    if (!info) {
        return bad(c, "its element type %" PRIu32 " is not known", type);
    }
    t->type = (enum dtype)type;
    if (t->dims[0] % (uint64_t)info->block_len != 0) {
        return bad(c, "its rows of %" PRIu64 " are not whole blocks of %d (%s)", t->dims[0],
                   info->block_len, info->name);
    }
    if (!dtype_row_bytes(t->type, t->dims[0], &row_bytes) ||
        !checked_mul_u64(row_bytes, t->n_bytes, &t->n_bytes)) {
        return bad(c, "its size is more than 64 bits");
    }
    return 0;
}

/* The data's place relative to the data section goes into ret_offset. */
static int take_tensor(struct cursor *c, struct gguf_tensor *t, uint64_t alignment,
                       uint64_t *ret_offset)
{
    uint32_t type;
    int r = take_name(c, GGUF_MAX_TENSOR_NAME_LEN, &t->name);

    if (r < 0) {
        return r;
    }
    where_is(c, "tensor", t->name);
    r = take_dims(c, t);
    if (r == 0) {
        r = take_u32(c, "its element type", &type);
    }
    if (r == 0) {
        r = size_of_tensor(c, t, type);
    }
    if (r == 0) {
        r = take_u64(c, "its offset", ret_offset);
    }
    if (r < 0) {
        return r;
    }
    if (*ret_offset % alignment != 0) {
        return bad(c, "its offset %" PRIu64 " is not a multiple of the alignment %" PRIu64,
                   *ret_offset, alignment);
    }
    return 0;
}

static int by_data(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(const struct gguf_tensor *const *)b;

    return (x->data > y->data) - (x->data < y->data);
}

static int check_overlaps(struct cursor *c)
{
    struct gguf *g = c->g;
    const struct gguf_tensor **sorted = malloc((g->n_tensors ? g->n_tensors : 1) * sizeof(*sorted));
    int r = 0;

    if (!sorted) {
        return no_memory(c, "the order of its tensors");
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        sorted[i] = &g->tensors[i];
    }
    qsort(sorted, g->n_tensors, sizeof(*sorted), by_data);
    for (size_t i = 1; i < g->n_tensors && r == 0; i++) {
        const struct gguf_tensor *before = sorted[i - 1];

        if ((const uint8_t *)before->data + before->n_bytes > (const uint8_t *)sorted[i]->data) {
            where_is(c, "tensor", sorted[i]->name);
            r = bad(c, "its data overlaps that of '%s'", gguf_show(before->name).text);
        }
    }
    free(sorted);
    return r;
}

/* The section of data begins at the next multiple of the alignment after the last description. */
static int place_tensors(struct cursor *c, const uint64_t *offsets, uint64_t alignment)
{
    struct gguf *g = c->g;
    uint64_t begin = checked_round_up(c->pos, alignment);
    uint64_t at;

    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];

        where_is(c, "tensor", t->name);
        if (!checked_add_u64(begin, offsets[i], &at) || !checked_range(at, t->n_bytes, g->size)) {
            return bad(c,
                       "its data (%" PRIu64 " bytes at offset %" PRIu64
                       ") reaches beyond the end of the file",
                       t->n_bytes, offsets[i]);
        }
        t->data = g->data + at;
    }
    return check_overlaps(c);
}

static int take_tensors(struct cursor *c, uint64_t alignment)
{
    struct gguf *g = c->g;
    size_t n = g->n_tensors ? g->n_tensors : 1;
    uint64_t *offsets = malloc(n * sizeof(*offsets));
    int r = 0;

    g->tensors = calloc(n, sizeof(*g->tensors));
    if (!g->tensors || !offsets) {
        free(offsets);
        return no_memory(c, "the table of tensors");
    }
    for (size_t i = 0; i < g->n_tensors && r == 0; i++) {
        (void)snprintf(c->where, sizeof(c->where), "tensor %zu of %zu", i + 1, g->n_tensors);
        r = take_tensor(c, &g->tensors[i], alignment, &offsets[i]);
    }
    if (r == 0) {
        r = place_tensors(c, offsets, alignment);
    }
    free(offsets);
    return r;
}

/* ---- names ---- */

int gguf_str_compare(struct gguf_str a, struct gguf_str b)
{
    return a.len != b.len ? (a.len > b.len) - (a.len < b.len) : memcmp(a.ptr, b.ptr, a.len);
}

static int key_order(const void *a, const void *b, void *keys)
{
    const struct gguf_key *k = keys;

    return gguf_str_compare(k[*(const uint32_t *)a].name, k[*(const uint32_t *)b].name);
}

static int tensor_order(const void *a, const void *b, void *tensors)
{
    const struct gguf_tensor *t = tensors;

    return gguf_str_compare(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static uint32_t *sorted_indices(size_t n, int (*order)(const void *, const void *, void *),
                                void *arg)
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

static int index_keys(struct cursor *c)
{
    struct gguf *g = c->g;

    g->keys_by_name = sorted_indices(g->n_keys, key_order, g->keys);
    if (!g->keys_by_name) {
        return no_memory(c, "an index of the keys");
    }
    for (size_t i = 1; i < g->n_keys; i++) {
        if (key_order(&g->keys_by_name[i - 1], &g->keys_by_name[i], g->keys) == 0) {
            where_is(c, "key", g->keys[g->keys_by_name[i]].name);
            return bad(c, "it is there twice");
        }
    }
    return 0;
}

static int index_tensors(struct cursor *c)
{
    struct gguf *g = c->g;

    g->tensors_by_name = sorted_indices(g->n_tensors, tensor_order, g->tensors);
    if (!g->tensors_by_name) {
        return no_memory(c, "an index of the tensors");
    }
    for (size_t i = 1; i < g->n_tensors; i++) {
        if (tensor_order(&g->tensors_by_name[i - 1], &g->tensors_by_name[i], g->tensors) == 0) {
            where_is(c, "tensor", g->tensors[g->tensors_by_name[i]].name);
            return bad(c, "it is there twice");
        }
    }
    return 0;
}

/* ---- the whole ---- */

static int take_header(struct cursor *c)
{
    const uint8_t *magic;
    uint32_t version;
    uint64_t n_tensors;
    uint64_t n_keys;
    int r = take(c, 4, "its magic", &magic);

    if (r == 0 && memcmp(magic, "GGUF", 4) != 0) {
        return bad(c, "it does not begin with 'GGUF'");
    }
    r = r < 0 ? r : take_u32(c, "its version", &version);
    if (r == 0 && version != 3) {
        return bad(c, "version %" PRIu32 " is not offered, only 3%s", version,
                   version == 3u << 24 ? " in little-endian order" : "");
    }
    r = r < 0 ? r : take_u64(c, "its number of tensors", &n_tensors);
    r = r < 0 ? r : take_u64(c, "its number of keys", &n_keys);
    if (r < 0) {
        return r;
    }
    /* The least that a key or a description of a tensor takes. */
    uint64_t left = c->g->size - c->pos;
    if (n_keys > GGUF_MAX_KEYS || n_keys > left / 14) {
        return bad(c, "its %" PRIu64 " keys are over the limit or longer than the file", n_keys);
    }
    if (n_tensors > GGUF_MAX_TENSORS || n_tensors > left / 33) {
        return bad(c, "its %" PRIu64 " tensors are over the limit or longer than the file",
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
        return bad(c, "%" PRIu64 " is not a power of two", *ret);
    }
    return r;
}

int gguf_parse(struct gguf *g, struct error *reterr)
{
    struct cursor c = {.g = g, .where = "header", .err = reterr};
    uint64_t alignment;
    int r = take_header(&c);

    r = r < 0 ? r : take_keys(&c);
    r = r < 0 ? r : index_keys(&c);
    r = r < 0 ? r : find_alignment(&c, &alignment);
    r = r < 0 ? r : take_tensors(&c, alignment);
    return r < 0 ? r : index_tensors(&c);
}

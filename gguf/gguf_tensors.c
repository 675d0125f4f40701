/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptions of tensors: shapes that multiply without wrapping, rows of whole blocks, data
 * inside the file. Sorted by place once, to find overlaps, and by name once, to find duplicates. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "gguf/cursor.h"

static int take_dims(struct cursor *c, struct gguf_tensor *t)
{
    uint32_t n_dims;
    uint64_t n_rows = 1;
    int r = cursor_take_u32(c, "its number of dimensions", &n_dims);

    if (r < 0) {
        return r;
    }
    if (n_dims < 1 || n_dims > 4) {
        return cursor_bad(c, "it has %" PRIu32 " dimensions, not 1..4", n_dims);
    }
    t->n_dims = (int)n_dims;
    for (uint32_t i = 0; i < 4; i++) {
        t->dims[i] = 1;
        r = i < n_dims ? cursor_take_u64(c, "its dimensions", &t->dims[i]) : 0;
        if (r < 0) {
            return r;
        }
        if (t->dims[i] == 0) {
            return cursor_bad(c, "dimension %" PRIu32 " is 0", i);
        }
        if (i > 0 && !checked_mul_u64(n_rows, t->dims[i], &n_rows)) {
            return cursor_bad(c, "its dimensions multiply to more than 64 bits");
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
        return cursor_bad(c, "its element type %" PRIu32 " is not known", type);
    }
    t->type = (enum dtype)type;
    if (t->dims[0] % (uint64_t)info->block_len != 0) {
        return cursor_bad(c, "its rows of %" PRIu64 " are not whole blocks of %d (%s)", t->dims[0],
                          info->block_len, info->name);
    }
    if (!dtype_row_bytes(t->type, t->dims[0], &row_bytes) ||
        !checked_mul_u64(row_bytes, t->n_bytes, &t->n_bytes)) {
        return cursor_bad(c, "its size is more than 64 bits");
    }
    return 0;
}

/* The data's place relative to the data section goes into ret_offset. */
static int take_tensor(struct cursor *c, struct gguf_tensor *t, uint64_t alignment,
                       uint64_t *ret_offset)
{
    uint32_t type;
    int r = cursor_take_name(c, GGUF_MAX_TENSOR_NAME_LEN, &t->name);

    if (r < 0) {
        return r;
    }
    cursor_at(c, "tensor", t->name);
    r = take_dims(c, t);
    if (r == 0) {
        r = cursor_take_u32(c, "its element type", &type);
    }
    if (r == 0) {
        r = size_of_tensor(c, t, type);
    }
    if (r == 0) {
        r = cursor_take_u64(c, "its offset", ret_offset);
    }
    if (r < 0) {
        return r;
    }
    if (*ret_offset % alignment != 0) {
        return cursor_bad(c, "its offset %" PRIu64 " is not a multiple of the alignment %" PRIu64,
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
        return cursor_no_memory(c, "the order of its tensors");
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        sorted[i] = &g->tensors[i];
    }
    qsort(sorted, g->n_tensors, sizeof(*sorted), by_data);
    for (size_t i = 1; i < g->n_tensors && r == 0; i++) {
        const struct gguf_tensor *before = sorted[i - 1];

        if ((const uint8_t *)before->data + before->n_bytes > (const uint8_t *)sorted[i]->data) {
            cursor_at(c, "tensor", sorted[i]->name);
            r = cursor_bad(c, "its data overlaps that of '%s'", gguf_show(before->name).text);
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

        cursor_at(c, "tensor", t->name);
        if (!checked_add_u64(begin, offsets[i], &at) || !checked_range(at, t->n_bytes, g->size)) {
            return cursor_bad(c,
                              "its data (%" PRIu64 " bytes at offset %" PRIu64
                              ") reaches beyond the end of the file",
                              t->n_bytes, offsets[i]);
        }
        t->data = g->data + at;
    }
    return check_overlaps(c);
}

static int take_all(struct cursor *c, uint64_t alignment)
{
    struct gguf *g = c->g;
    size_t n = g->n_tensors ? g->n_tensors : 1;
    uint64_t *offsets = malloc(n * sizeof(*offsets));
    int r = 0;

    g->tensors = calloc(n, sizeof(*g->tensors));
    if (!g->tensors || !offsets) {
        free(offsets);
        return cursor_no_memory(c, "the table of tensors");
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

static int tensor_order(const void *a, const void *b, void *tensors)
{
    const struct gguf_tensor *t = tensors;

    return gguf_str_compare(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static int index_tensors(struct cursor *c)
{
    struct gguf *g = c->g;

    g->tensors_by_name = gguf_sorted_indices(g->n_tensors, tensor_order, g->tensors);
    if (!g->tensors_by_name) {
        return cursor_no_memory(c, "an index of the tensors");
    }
    for (size_t i = 1; i < g->n_tensors; i++) {
        if (tensor_order(&g->tensors_by_name[i - 1], &g->tensors_by_name[i], g->tensors) == 0) {
            cursor_at(c, "tensor", g->tensors[g->tensors_by_name[i]].name);
            return cursor_bad(c, "it is there twice");
        }
    }
    return 0;
}

int gguf_tensors_take(struct cursor *c, uint64_t alignment)
{
    int r = take_all(c, alignment);

    return r < 0 ? r : index_tensors(c);
}

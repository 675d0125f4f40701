/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a file: types, strings, arrays. Every count is held against the bytes that are left
 * before anything of its size is allocated, so a small file cannot ask for much memory. Strings of
 * an array are indexed here, so that a token's text costs one step later. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "gguf/cursor.h"

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
    int r = cursor_take_u64(c, "the length of its string", &k->n);

    return r < 0 ? r : cursor_take(c, k->n, "its string", &k->body);
}

static int check_bools(struct cursor *c, const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (p[i] > 1) {
            return cursor_bad(c, "a bool is %u, not 0 or 1", p[i]);
        }
    }
    return 0;
}

static int take_strings(struct cursor *c, struct gguf_key *k)
{
    const uint8_t *p;
    uint64_t len;

    if (k->n > GGUF_MAX_STRINGS) {
        return cursor_bad(c, "an array of %" PRIu64 " strings is over the limit of %d", k->n,
                          GGUF_MAX_STRINGS);
    }
    if (k->n > (c->g->size - c->pos) / sizeof(uint64_t)) {
        return cursor_bad(c, "the file has no room for its %" PRIu64 " strings", k->n);
    }
    k->string_at = malloc((size_t)(k->n ? k->n : 1) * sizeof(*k->string_at));
    if (!k->string_at) {
        return cursor_no_memory(c, "an index of its strings");
    }
    for (uint64_t i = 0; i < k->n; i++) {
        k->string_at[i] = c->pos;
        int r = cursor_take_u64(c, "the length of a string of its array", &len);

        if (r == 0) {
            r = cursor_take(c, len, "a string of its array", &p);
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
    int r = cursor_take_u32(c, "the type of its array", &element);

    if (r == 0) {
        r = cursor_take_u64(c, "the count of its array", &k->n);
    }
    if (r < 0) {
        return r;
    }
    if (element == GGUF_ARRAY) {
        return cursor_bad(c, "an array of arrays is not offered");
    }
    if (element > GGUF_F64) {
        return cursor_bad(c, "its array has the unknown type %" PRIu32, element);
    }
    k->element = (enum gguf_type)element;
    k->body = c->g->data + c->pos;
    if (k->element == GGUF_STRING) {
        return take_strings(c, k);
    }
    if (k->n > GGUF_MAX_ARRAY) {
        return cursor_bad(c, "an array of %" PRIu64 " elements is over the limit of %d", k->n,
                          GGUF_MAX_ARRAY);
    }
    r = cursor_take(c, k->n * gguf_type_bytes(element), "its array", &k->body);
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
        r = cursor_take(c, gguf_type_bytes(k->type), "its value", &k->body);
        if (r == 0 && k->type == GGUF_BOOL) {
            r = check_bools(c, k->body, 1);
        }
    }
    k->raw = c->g->data + begin;
    k->raw_bytes = (size_t)(c->pos - begin);
    return r;
}

static int take_all(struct cursor *c)
{
    struct gguf *g = c->g;
    size_t n = g->n_keys;
    uint32_t type;

    g->n_keys = 0; /* counts what is there for gguf_close() */
    g->keys = calloc(n ? n : 1, sizeof(*g->keys));
    if (!g->keys) {
        return cursor_no_memory(c, "the table of keys");
    }
    for (size_t i = 0; i < n; i++) {
        struct gguf_key *k = &g->keys[i];

        (void)snprintf(c->where, sizeof(c->where), "key %zu of %zu", i + 1, n);
        int r = cursor_take_name(c, GGUF_MAX_KEY_LEN, &k->name);
        if (r < 0) {
            return r;
        }
        cursor_at(c, "key", k->name);
        r = cursor_take_u32(c, "its type", &type);
        if (r < 0) {
            return r;
        }
        if (type > GGUF_F64) {
            return cursor_bad(c, "its type %" PRIu32 " is unknown", type);
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

static int key_order(const void *a, const void *b, void *keys)
{
    const struct gguf_key *k = keys;

    return gguf_str_compare(k[*(const uint32_t *)a].name, k[*(const uint32_t *)b].name);
}

static int index_keys(struct cursor *c)
{
    struct gguf *g = c->g;

    g->keys_by_name = gguf_sorted_indices(g->n_keys, key_order, g->keys);
    if (!g->keys_by_name) {
        return cursor_no_memory(c, "an index of the keys");
    }
    for (size_t i = 1; i < g->n_keys; i++) {
        if (key_order(&g->keys_by_name[i - 1], &g->keys_by_name[i], g->keys) == 0) {
            cursor_at(c, "key", g->keys[g->keys_by_name[i]].name);
            return cursor_bad(c, "it is there twice");
        }
    }
    return 0;
}

int gguf_keys_take(struct cursor *c)
{
    int r = take_all(c);

    return r < 0 ? r : index_keys(c);
}

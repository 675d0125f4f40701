/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the files that the tests of gguf/ open, independently of gguf_writer. */

#include "tests/unit/gguf_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct out {
    uint8_t *p;
    size_t n;
};

static void put(struct out *o, const void *data, size_t n)
{
    o->p = realloc(o->p, o->n + n + 1);
    if (!o->p) {
        abort();
    }
    memcpy(o->p + o->n, data, n);
    o->n += n;
}

static void put_u32(struct out *o, uint32_t v)
{
    put(o, &v, sizeof(v));
}

static void put_u64(struct out *o, uint64_t v)
{
    put(o, &v, sizeof(v));
}

void gguf_spec_value(struct gguf_spec_key *k, const void *value, size_t n)
{
    memcpy(k->value, value, n);
    k->n_value = n;
}

static void key(struct gguf_spec *s, const char *name, uint32_t type, const void *value, size_t n)
{
    struct gguf_spec_key *k = &s->keys[s->n_keys++];

    k->name = name;
    k->name_len = strlen(name);
    k->type = type;
    gguf_spec_value(k, value, n);
}

struct gguf_spec gguf_spec_good(void)
{
    struct gguf_spec s = {.magic = "GGUF", .version = 3, .alignment = 32};
    static const int16_t shorts[3] = {-2, 0, 7};

    key(&s, "general.alignment", 4, &(uint32_t){32}, 4);
    key(&s, "general.name", 8, "\x05\0\0\0\0\0\0\0pipit", 13);
    key(&s, "a.u8", 0, &(uint8_t){200}, 1);
    key(&s, "a.i32", 5, &(int32_t){-5}, 4);
    key(&s, "a.f32", 6, &(float){0.5f}, 4);
    key(&s, "a.f64", 12, &(double){0.25}, 8);
    key(&s, "a.bool", 7, &(uint8_t){1}, 1);
    key(&s, "a.u64", 10, &(uint64_t){1ull << 40}, 8);
    key(&s, "a.words", 9, "\x08\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0x\x02\0\0\0\0\0\0\0yz",
        31);
    uint8_t array[18] = {3, 0, 0, 0, 3};
    memcpy(array + 12, shorts, 6);
    key(&s, "a.shorts", 9, array, 18);
    s.tensors[0] = (struct gguf_spec_tensor){"a", 1, 2, {4, 3}, 0, 0};
    s.tensors[1] = (struct gguf_spec_tensor){"b", 1, 1, {32}, 8, 64};
    s.tensors[2] = (struct gguf_spec_tensor){"c.weight", 8, 1, {5}, 1, 128};
    s.n_tensors = 3;
    s.data_bytes = 138;
    return s;
}

uint8_t *gguf_spec_write(const struct gguf_spec *s, size_t *ret_size)
{
    struct out o = {0};

    put(&o, s->magic, 4);
    put_u32(&o, s->version);
    put_u64(&o, s->n_tensors);
    put_u64(&o, s->n_keys);
    for (const struct gguf_spec_key *k = s->keys; k->name; k++) {
        put_u64(&o, k->name_len);
        put(&o, k->name, strlen(k->name));
        put_u32(&o, k->type);
        put(&o, k->value, k->n_value);
    }
    for (const struct gguf_spec_tensor *t = s->tensors; t->name; t++) {
        put_u64(&o, t->name_len);
        put(&o, t->name, strlen(t->name));
        put_u32(&o, t->n_dims);
        for (uint32_t i = 0; i < t->n_dims && i < 5; i++) {
            put_u64(&o, t->dims[i]);
        }
        put_u32(&o, t->type);
        put_u64(&o, t->offset);
    }
    while (o.n % s->alignment) {
        put(&o, "", 1);
    }
    for (size_t i = 0; i < s->data_bytes; i++) {
        put(&o, &(uint8_t){(uint8_t)(i * 7)}, 1);
    }
    /* The exact size, so that a sanitizer sees a read beyond it. */
    uint8_t *exact = malloc(o.n);
    if (!exact) {
        abort();
    }
    memcpy(exact, o.p, o.n);
    free(o.p);
    *ret_size = o.n;
    return exact;
}

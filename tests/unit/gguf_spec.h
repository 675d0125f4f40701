/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_UNIT_GGUF_SPEC_H
#define PIPIT_TESTS_UNIT_GGUF_SPEC_H

/* A small GGUF file as a table that tests bend: every number in the file can be made to lie. */

#include <stddef.h>
#include <stdint.h>

struct gguf_spec_key {
    const char *name;
    uint64_t name_len; /* what the file says */
    uint32_t type;
    uint8_t value[64]; /* encoded */
    size_t n_value;
};

struct gguf_spec_tensor {
    const char *name;
    uint64_t name_len;
    uint32_t n_dims;
    uint64_t dims[5];
    uint32_t type;
    uint64_t offset;
};

struct gguf_spec {
    char magic[5];
    uint32_t version;
    uint64_t n_keys; /* what the file says; the tables below end at a NULL name */
    uint64_t n_tensors;
    struct gguf_spec_key keys[12];
    struct gguf_spec_tensor tensors[6];
    uint64_t alignment; /* where the data section really begins */
    size_t data_bytes;
};

/* A file that is right: keys of every kind, tensors a (F32, 4 x 3), b (Q8_0, 32), c (F16, 5). */
struct gguf_spec gguf_spec_good(void);

/* malloc'ed file of *ret_size bytes, exactly. */
uint8_t *gguf_spec_write(const struct gguf_spec *spec, size_t *ret_size);

void gguf_spec_value(struct gguf_spec_key *k, const void *value, size_t n);

#endif

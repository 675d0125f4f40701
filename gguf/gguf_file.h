/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_GGUF_GGUF_FILE_H
#define PIPIT_GGUF_GGUF_FILE_H

/* Inside gguf/: the opened file as tables, filled by gguf_parse() and read by gguf.c. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf/gguf.h"

enum {
    GGUF_DEFAULT_ALIGNMENT = 32,
    GGUF_MAX_KEYS = 1 << 16,
    GGUF_MAX_TENSORS = 1 << 20,
    GGUF_MAX_ARRAY = 1 << 28,   /* elements, 1 GiB of the widest kinds in use */
    GGUF_MAX_STRINGS = 1 << 24, /* strings of one array; they are indexed */
    GGUF_MAX_KEY_LEN = 65535,
    GGUF_MAX_TENSOR_NAME_LEN = 63,
};

struct gguf_key {
    struct gguf_str name;
    enum gguf_type type;
    enum gguf_type element; /* arrays only */
    uint64_t n;             /* elements of an array, bytes of a string */
    const uint8_t *raw;     /* the encoded value, from its length or count on */
    size_t raw_bytes;
    const uint8_t *body;   /* the value itself: characters, elements or the number */
    uint64_t *string_at;   /* (n) array of strings: offsets of their lengths in the file */
};

struct gguf {
    const uint8_t *data;
    size_t size;
    bool mapped; /* by gguf_open(), to be unmapped */
    char *path;
    struct gguf_key *keys; /* in the file's order */
    size_t n_keys;
    uint32_t *keys_by_name;
    struct gguf_tensor *tensors; /* in the file's order */
    size_t n_tensors;
    uint32_t *tensors_by_name;
};

/* Fills all tables of `g` from data and size. On failure g is half filled, for gguf_close(). */
int gguf_parse(struct gguf *g, struct error *reterr) WARN_UNUSED;

/* Bytes of a number or bool; 0 for strings, arrays and unknown types. */
size_t gguf_type_bytes(uint32_t type);
const char *gguf_type_name(uint32_t type); /* "u32", ... "unknown type" */

/* Orders names by length, then bytes. */
int gguf_str_compare(struct gguf_str a, struct gguf_str b);

/* A name for an error text: at most 63 bytes of it, what is not printable ASCII shown as '?'. */
struct gguf_shown {
    char text[68];
};
struct gguf_shown gguf_show(struct gguf_str s);

#endif

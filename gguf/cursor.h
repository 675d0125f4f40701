/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_GGUF_CURSOR_H
#define PIPIT_GGUF_CURSOR_H

/* Inside gguf/: a place in the file that is being parsed, and a name for it. All functions that can
 * fail return 0 or -EBADMSG (-ENOMEM) with the cause in `err`. */

#include <stdint.h>

#include "base/error.h"
#include "gguf/gguf_file.h"

struct cursor {
    struct gguf *g;
    uint64_t pos;
    char where[96]; /* "key 'general.name'" */
    struct error *err;
};

/* "WHERE: text" */
int cursor_bad(struct cursor *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
int cursor_no_memory(struct cursor *c, const char *what);

/* From here on the place is KIND 'NAME'. */
void cursor_at(struct cursor *c, const char *kind, struct gguf_str name);

/* `what` names the bytes in "the file ends inside WHAT". */
int cursor_take(struct cursor *c, uint64_t n, const char *what, const uint8_t **ret) WARN_UNUSED;
int cursor_take_u32(struct cursor *c, const char *what, uint32_t *ret) WARN_UNUSED;
int cursor_take_u64(struct cursor *c, const char *what, uint64_t *ret) WARN_UNUSED;

/* A length and so many bytes of valid UTF-8, 1..max of them. */
int cursor_take_name(struct cursor *c, uint64_t max, struct gguf_str *ret) WARN_UNUSED;

/* The parts of gguf_parse(): fill the tables of c->g and index them by name. */
int gguf_keys_take(struct cursor *c) WARN_UNUSED;
int gguf_tensors_take(struct cursor *c, uint64_t alignment) WARN_UNUSED;

/* (n) numbers 0..n-1 in the order of `order`, which gets pointers to two of them and `arg`; NULL
 * without memory. */
uint32_t *gguf_sorted_indices(size_t n, int (*order)(const void *, const void *, void *),
                              void *arg);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_GGUF_GGUF_H
#define PIPIT_GGUF_GGUF_H

/* GGUF version 3 files (the GGUF specification of ggml), read by memory map and never trusted:
 * every count, length, offset and shape is checked against the file's size, with checked
 * arithmetic, before it is used; after gguf_open() succeeded, everything returned here lies inside
 * the map. A broken file gets a message that names the key or tensor. (A file that somebody
 * truncates while it is mapped still ends the process with SIGBUS, as any mapped file does.)
 *
 * Checked: magic, version, counts against the bytes left; key and tensor names (valid UTF-8, at
 * most 65,535 and 63 bytes, no duplicates); value types, array nesting (none) and lengths; tensor
 * dims (1-4, each at least 1, product fits), a known type, rows of whole blocks, offset aligned
 * and data inside the file, no two tensors overlapping; alignment a power of two, 8 to 1 MiB. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "quant/dtype.h"

enum gguf_type {
    GGUF_U8 = 0, GGUF_I8 = 1, GGUF_U16 = 2, GGUF_I16 = 3, GGUF_U32 = 4, GGUF_I32 = 5,
    GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9, GGUF_U64 = 10, GGUF_I64 = 11,
    GGUF_F64 = 12,
};

struct gguf_str {
    const char *ptr; /* in the map, not NUL-terminated; valid UTF-8 is not promised */
    size_t len;
};

struct gguf_tensor {
    struct gguf_str name;
    enum dtype type;
    int n_dims;
    uint64_t dims[4];  /* GGUF order: dims[0] is the row length (fastest), unused ones are 1 */
    uint64_t n_bytes;
    const void *data;  /* in the map; aligned to general.alignment */
};

/* Creator: gguf_open; freed by gguf_close; read-only and thread-safe after opening. */
struct gguf;

/* path: a regular file. -ENOENT and other errno of open(2), -EBADMSG with the cause. */
int gguf_open(const char *path, struct gguf **ret, struct error *reterr) WARN_UNUSED;
/* The same over memory that stays the caller's (tests, fuzzing). */
int gguf_open_memory(const void *data, size_t size, struct gguf **ret,
                     struct error *reterr) WARN_UNUSED;
void gguf_close(struct gguf *g); /* takes NULL */

const char *gguf_path(const struct gguf *g); /* "" for memory */
uint64_t gguf_file_bytes(const struct gguf *g);
uint64_t gguf_index_bytes(const struct gguf *g); /* held beside the map */
/* Drops the file's pages from this process (madvise), e.g. once weights are repacked. */
void gguf_drop_pages(const struct gguf *g);
/* Of n bytes of the map: drops them likewise; says that they will be read here and there. */
void gguf_drop_range(const struct gguf *g, const void *data, uint64_t n);
void gguf_read_scattered(const struct gguf *g, const void *data, uint64_t n);

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name); /* NULL: none */

/* Keys. Each returns 0, -ENOENT without the key (reterr untouched: many keys are optional),
 * -EBADMSG (with key, expected and found type in reterr) for another type or a value outside the
 * asked range. Integers of every width and sign are accepted where they fit; f64 where f32 is
 * asked; NaN and infinities are not. */
bool gguf_has(const struct gguf *g, const char *key);
int gguf_get_u64(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
                 struct error *reterr) WARN_UNUSED;
int gguf_get_f32(const struct gguf *g, const char *key, float *ret,
                 struct error *reterr) WARN_UNUSED;
int gguf_get_bool(const struct gguf *g, const char *key, bool *ret,
                  struct error *reterr) WARN_UNUSED;
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *ret,
                 struct error *reterr) WARN_UNUSED;

/* Arrays: the element count, then elements by index (index checked by assert). Strings of an array
 * are indexed once at open, so access is constant time. */
int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type *ret_type, size_t *ret_n,
                   struct error *reterr) WARN_UNUSED;
struct gguf_str gguf_array_str(const struct gguf *g, const char *key_of_str_array, size_t i);
/* Copies a whole numeric array; n must equal the array's length, else -EBADMSG. */
int gguf_array_f32(const struct gguf *g, const char *key, float *dst, size_t n,
                   struct error *reterr) WARN_UNUSED;
int gguf_array_i64(const struct gguf *g, const char *key, int64_t *dst, size_t n,
                   struct error *reterr) WARN_UNUSED;

/* Iteration over keys (for copying files): name, type and the raw encoded value, a string's length
 * or an array's type and count included. */
size_t gguf_n_keys(const struct gguf *g);
void gguf_key_at(const struct gguf *g, size_t i, struct gguf_str *ret_name,
                 enum gguf_type *ret_type, const void **ret_raw, size_t *ret_raw_bytes);

/* SHA-256 of the whole file as 64 hex digits and NUL, remembered by (device, inode, size, mtime)
 * in `cache_dir`/sha256 when that is not NULL. */
int gguf_sha256(const char *path, const char *cache_dir, char ret_hex[65],
                struct error *reterr) WARN_UNUSED;

/* Writing: keys first, then tensors declared, then their data in the declared order. The file is
 * written to "PATH.tmp", fsynced and renamed by finish; abort removes it. Calls return 0 or a
 * negative errno; the first failure sticks, and finish returns it with its cause, so a caller may
 * leave checking to the end. `general.alignment` goes through u32 or raw, before the tensors.
 * create refuses a PATH that is there and is no regular file (-EISDIR: a folder, else -EINVAL). */
struct gguf_writer;
int gguf_writer_create(const char *path, struct gguf_writer **ret,
                       struct error *reterr) WARN_UNUSED;
int gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v) WARN_UNUSED;
int gguf_writer_f32(struct gguf_writer *w, const char *key, float v) WARN_UNUSED;
int gguf_writer_bool(struct gguf_writer *w, const char *key, bool v) WARN_UNUSED;
int gguf_writer_str(struct gguf_writer *w, const char *key, const char *s, size_t len) WARN_UNUSED;
int gguf_writer_array(struct gguf_writer *w, const char *key, enum gguf_type type, const void *data,
                      size_t n) WARN_UNUSED; /* numeric */
int gguf_writer_str_array(struct gguf_writer *w, const char *key, const struct gguf_str *s,
                          size_t n) WARN_UNUSED;
int gguf_writer_raw(struct gguf_writer *w, struct gguf_str key, enum gguf_type type,
                    const void *raw, size_t raw_bytes) WARN_UNUSED; /* as gguf_key_at gave it */
int gguf_writer_tensor(struct gguf_writer *w, const char *name, enum dtype type, int n_dims,
                       const uint64_t *dims) WARN_UNUSED;
/* appended, any pieces */
int gguf_writer_data(struct gguf_writer *w, const void *data, size_t bytes) WARN_UNUSED;
int gguf_writer_finish(struct gguf_writer *w, struct error *reterr) WARN_UNUSED; /* frees w */
void gguf_writer_abort(struct gguf_writer *w); /* frees w; takes NULL */

#endif

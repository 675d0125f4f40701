/* SPDX-License-Identifier: Apache-2.0 */
/* Opened GGUF files: mapping, look-ups and typed access to keys. All checks of the bytes happened
 * in gguf_parse.c; what is checked here is whether a value is what the caller asks for. Values lie
 * at any byte offset in the file and are copied out, never pointed to as numbers. */

#include "gguf/gguf.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "gguf/gguf_file.h"

/* ---- opening ---- */

static int map_file(struct gguf *g, const char *path, struct error *reterr)
{
    struct stat st;
    void *p;
    /* O_NONBLOCK: a FIFO must be refused, not waited for. */
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &st) < 0) {
        return error_set_errno(reterr, -errno, "cannot open %.150s", path);
    }
    if (!S_ISREG(st.st_mode)) {
        return error_set(reterr, -EBADMSG, "%.150s is not a regular file", path);
    }
    if (st.st_size == 0) {
        return error_set(reterr, -EBADMSG, "%.150s is empty", path);
    }
    p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        return error_set_errno(reterr, -errno, "cannot map %.150s", path);
    }
    g->data = p;
    g->size = (size_t)st.st_size;
    g->mapped = true;
    return 0;
}

int gguf_open(const char *path, struct gguf **ret, struct error *reterr)
{
    struct gguf *g = calloc(1, sizeof(*g));
    char *copy = strdup(path);
    int r;

    if (!g || !copy) {
        free(g);
        free(copy);
        return error_set(reterr, -ENOMEM, "no memory to open %.150s", path);
    }
    g->path = copy;
    r = map_file(g, path, reterr);
    if (r == 0) {
        r = gguf_parse(g, reterr);
        if (r < 0) {
            (void)error_prefix(reterr, "%.80s", path);
        }
    }
    if (r < 0) {
        gguf_close(g);
        return r;
    }
    *ret = g;
    return 0;
}

int gguf_open_memory(const void *data, size_t size, struct gguf **ret, struct error *reterr)
{
    struct gguf *g = calloc(1, sizeof(*g));
    int r;

    if (!g) {
        return error_set(reterr, -ENOMEM, "no memory to open a model");
    }
    g->data = data;
    g->size = size;
    r = gguf_parse(g, reterr);
    if (r < 0) {
        gguf_close(g);
        return r;
    }
    *ret = g;
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (!g) {
        return;
    }
    for (size_t i = 0; g->keys && i < g->n_keys; i++) {
        free(g->keys[i].string_at);
    }
    free(g->keys);
    free(g->keys_by_name);
    free(g->tensors);
    free(g->tensors_by_name);
    if (g->mapped) {
        (void)munmap((void *)g->data, g->size);
    }
    free(g->path);
    free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path ? g->path : "";
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    return g->size;
}

uint64_t gguf_index_bytes(const struct gguf *g)
{
    uint64_t sum = sizeof(*g) + g->n_keys * (sizeof(*g->keys) + sizeof(*g->keys_by_name)) +
                   g->n_tensors * (sizeof(*g->tensors) + sizeof(*g->tensors_by_name));

    for (size_t i = 0; i < g->n_keys; i++) {
        sum += g->keys[i].string_at ? g->keys[i].n * sizeof(*g->keys[i].string_at) : 0;
    }
    return sum;
}

void gguf_drop_pages(const struct gguf *g)
{
    if (g->mapped) {
        (void)madvise((void *)g->data, g->size, MADV_DONTNEED);
    }
}

/* The whole pages within n bytes of the map. */
static void advise(const struct gguf *g, const void *data, uint64_t n, int advice)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t from = (uint64_t)(uintptr_t)data;
    uint64_t to = (from + n) / page * page;

    from = (from + page - 1) / page * page;
    if (g->mapped && to > from) {
        (void)madvise((void *)(uintptr_t)from, to - from, advice);
    }
}

void gguf_drop_range(const struct gguf *g, const void *data, uint64_t n)
{
    advise(g, data, n, MADV_DONTNEED);
}

void gguf_read_scattered(const struct gguf *g, const void *data, uint64_t n)
{
    advise(g, data, n, MADV_RANDOM);
}

/* ---- tensors ---- */

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    struct gguf_str want = {name, strlen(name)};
    size_t low = 0;
    size_t high = g->n_tensors;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct gguf_tensor *t = &g->tensors[g->tensors_by_name[mid]];
        int order = gguf_str_compare(want, t->name);

        if (order == 0) {
            return t;
        }
        if (order < 0) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return NULL;
}

/* ---- keys ---- */

static const struct gguf_key *key_find(const struct gguf *g, const char *name)
{
    struct gguf_str want = {name, strlen(name)};
    size_t low = 0;
    size_t high = g->n_keys;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct gguf_key *k = &g->keys[g->keys_by_name[mid]];
        int order = gguf_str_compare(want, k->name);

        if (order == 0) {
            return k;
        }
        if (order < 0) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return NULL;
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return key_find(g, key) != NULL;
}

static int wrong_type(const struct gguf_key *k, const char *wanted, struct error *reterr)
{
    const char *found = gguf_type_name(k->type);

    if (k->type == GGUF_ARRAY) {
        return error_set(reterr, -EBADMSG, "key '%s': it is an array of %s, wanted is %s",
                         gguf_show(k->name).text, gguf_type_name(k->element), wanted);
    }
    return error_set(reterr, -EBADMSG, "key '%s': its type is %s, wanted is %s",
                     gguf_show(k->name).text, found, wanted);
}

/* A whole number of any width; `negative` values come as their 64-bit pattern. */
static bool load_integer(enum gguf_type type, const uint8_t *p, uint64_t *ret, bool *ret_negative)
{
    uint64_t u = 0;
    int shift = 64 - 8 * (int)gguf_type_bytes(type);

    switch (type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
    case GGUF_BOOL:
        memcpy(&u, p, gguf_type_bytes(type));
        *ret = u;
        *ret_negative = false;
        return true;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        memcpy(&u, p, gguf_type_bytes(type));
        *ret = (uint64_t)((int64_t)(u << shift) >> shift);
        *ret_negative = (int64_t)*ret < 0;
        return true;
    default:
        return false;
    }
}

static bool load_float(enum gguf_type type, const uint8_t *p, float *ret)
{
    double d;

    if (type == GGUF_F32) {
        memcpy(ret, p, sizeof(*ret));
        return true;
    }
    if (type == GGUF_F64) {
        memcpy(&d, p, sizeof(d));
        *ret = (float)d;
        return true;
    }
    return false;
}

int gguf_get_u64(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
                 struct error *reterr)
{
    const struct gguf_key *k = key_find(g, key);
    uint64_t v;
    bool negative;

    if (!k) {
        return -ENOENT;
    }
    if (k->type == GGUF_BOOL || !load_integer(k->type, k->body, &v, &negative)) {
        return wrong_type(k, "a whole number", reterr);
    }
    if (negative) {
        return error_set(reterr, -EBADMSG, "key '%s': %" PRId64 " is not in %" PRIu64 "..%" PRIu64,
                         key, (int64_t)v, min, max);
    }
    if (v < min || v > max) {
        return error_set(reterr, -EBADMSG, "key '%s': %" PRIu64 " is not in %" PRIu64 "..%" PRIu64,
                         key, v, min, max);
    }
    *ret = v;
    return 0;
}

int gguf_get_f32(const struct gguf *g, const char *key, float *ret, struct error *reterr)
{
    const struct gguf_key *k = key_find(g, key);
    float v;

    if (!k) {
        return -ENOENT;
    }
    if (!load_float(k->type, k->body, &v)) {
        return wrong_type(k, "f32", reterr);
    }
    if (!isfinite(v)) {
        return error_set(reterr, -EBADMSG, "key '%s': it is not a finite number", key);
    }
    *ret = v;
    return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *ret, struct error *reterr)
{
    const struct gguf_key *k = key_find(g, key);

    if (!k) {
        return -ENOENT;
    }
    if (k->type != GGUF_BOOL) {
        return wrong_type(k, "bool", reterr);
    }
    *ret = k->body[0] != 0;
    return 0;
}

int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *ret, struct error *reterr)
{
    const struct gguf_key *k = key_find(g, key);

    if (!k) {
        return -ENOENT;
    }
    if (k->type != GGUF_STRING) {
        return wrong_type(k, "string", reterr);
    }
    *ret = (struct gguf_str){(const char *)k->body, (size_t)k->n};
    return 0;
}

int gguf_get_array(const struct gguf *g, const char *key, enum gguf_type *ret_type, size_t *ret_n,
                   struct error *reterr)
{
    const struct gguf_key *k = key_find(g, key);

    if (!k) {
        return -ENOENT;
    }
    if (k->type != GGUF_ARRAY) {
        return wrong_type(k, "an array", reterr);
    }
    *ret_type = k->element;
    *ret_n = (size_t)k->n;
    return 0;
}

struct gguf_str gguf_array_str(const struct gguf *g, const char *key_of_str_array, size_t i)
{
    const struct gguf_key *k = key_find(g, key_of_str_array);
    uint64_t len;

    assert(k && k->string_at && i < k->n);
    const uint8_t *p = g->data + k->string_at[i];
    memcpy(&len, p, sizeof(len));
    return (struct gguf_str){(const char *)p + sizeof(len), (size_t)len};
}

/* The array `key` if it has n elements. */
static int array_find(const struct gguf *g, const char *key, size_t n, const struct gguf_key **ret,
                      struct error *reterr)
{
    const struct gguf_key *k = key_find(g, key);

    if (!k) {
        return -ENOENT;
    }
    if (k->type != GGUF_ARRAY) {
        return wrong_type(k, "an array", reterr);
    }
    if (k->n != n) {
        return error_set(reterr, -EBADMSG, "key '%s': it has %" PRIu64 " elements, not %zu", key,
                         k->n, n);
    }
    *ret = k;
    return 0;
}

int gguf_array_f32(const struct gguf *g, const char *key, float *dst, size_t n,
                   struct error *reterr)
{
    const struct gguf_key *k = NULL;
    int r = array_find(g, key, n, &k, reterr);

    if (r < 0) {
        return r;
    }
    size_t step = gguf_type_bytes(k->element);
    if (k->element != GGUF_F32 && k->element != GGUF_F64) {
        return wrong_type(k, "an array of f32", reterr);
    }
    for (size_t i = 0; i < n; i++) {
        (void)load_float(k->element, k->body + i * step, &dst[i]);
    }
    return 0;
}

int gguf_array_i64(const struct gguf *g, const char *key, int64_t *dst, size_t n,
                   struct error *reterr)
{
    const struct gguf_key *k = NULL;
    int r = array_find(g, key, n, &k, reterr);
    uint64_t v;
    bool negative;

    if (r < 0) {
        return r;
    }
    size_t step = gguf_type_bytes(k->element);
    for (size_t i = 0; i < n; i++) {
        if (!load_integer(k->element, k->body + i * step, &v, &negative)) {
            return wrong_type(k, "an array of whole numbers", reterr);
        }
        if (!negative && v > INT64_MAX) {
            return error_set(reterr, -EBADMSG, "key '%s': element %zu, %" PRIu64 ", is over 2^63",
                             key, i, v);
        }
        dst[i] = (int64_t)v;
    }
    return 0;
}

size_t gguf_n_keys(const struct gguf *g)
{
    return g->n_keys;
}

void gguf_key_at(const struct gguf *g, size_t i, struct gguf_str *ret_name,
                 enum gguf_type *ret_type, const void **ret_raw, size_t *ret_raw_bytes)
{
    assert(i < g->n_keys);
    *ret_name = g->keys[i].name;
    *ret_type = g->keys[i].type;
    *ret_raw = g->keys[i].raw;
    *ret_raw_bytes = g->keys[i].raw_bytes;
}

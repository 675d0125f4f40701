/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the GGUF reader: a file is refused with -EBADMSG (or -ENOMEM) and a text, or everything it
 * offers can be read: each key through each typed access, each string of an array, the first and
 * last byte of each tensor. */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gguf/gguf.h"
#include "tests/fuzz/fail.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_array(const struct gguf *g, const char *key)
{
    enum gguf_type type;
    size_t n;
    volatile char c;

    if (gguf_get_array(g, key, &type, &n, NULL) < 0) {
        return;
    }
    if (type == GGUF_STRING) {
        for (size_t i = 0; i < n; i++) {
            struct gguf_str s = gguf_array_str(g, key, i);

            c = s.len ? s.ptr[s.len - 1] : 0;
            (void)c;
        }
    } else if (n < 1 << 16) {
        float *f = malloc(n * sizeof(*f) + 1);
        int64_t *v = malloc(n * sizeof(*v) + 1);

        if (f && v) {
            require(gguf_array_f32(g, key, f, n, NULL) == 0 ||
                    gguf_array_i64(g, key, v, n, NULL) == 0 || type == GGUF_U64);
        }
        free(f);
        free(v);
    }
}

static void read_key(const struct gguf *g, size_t i)
{
    struct gguf_str name;
    struct gguf_str s;
    enum gguf_type type;
    const void *raw;
    size_t bytes;
    uint64_t u;
    float f;
    bool b;
    volatile char c;

    gguf_key_at(g, i, &name, &type, &raw, &bytes);
    c = bytes ? ((const char *)raw)[bytes - 1] : 0;
    (void)c;
    if (memchr(name.ptr, 0, name.len)) {
        return; /* not a C string */
    }
    char *key = strndup(name.ptr, name.len);
    if (!key) {
        return;
    }
    require(gguf_has(g, key));
    (void)!gguf_get_u64(g, key, 1, 100, &u, NULL);
    (void)!gguf_get_f32(g, key, &f, NULL);
    (void)!gguf_get_bool(g, key, &b, NULL);
    if (gguf_get_str(g, key, &s, NULL) == 0 && s.len) {
        c = s.ptr[s.len - 1];
    }
    read_array(g, key);
    free(key);
}

static int one(const uint8_t *data, size_t size)
{
    struct gguf *g = NULL;
    struct error e = {0};
    int r;

    fail_begin(FAIL_ALL);
    r = gguf_open_memory(data, size, &g, &e);
    fail_end();
    if (r < 0) {
        require((r == -EBADMSG || r == -ENOMEM) && e.code == r && e.text[0]);
        return 0;
    }
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        read_key(g, i);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t *p = t->data;
        volatile uint8_t c = (uint8_t)(p[0] + p[t->n_bytes - 1]);

        (void)c;
        require(p >= data && t->n_bytes <= size && p + t->n_bytes <= data + size);
    }
    gguf_close(g);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fail_run(data, size, one);
}

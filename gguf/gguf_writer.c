/* SPDX-License-Identifier: Apache-2.0 */
/* Writing GGUF: keys and descriptions of tensors gather in two buffers, because the header holds
 * their counts; the first data (or finish) writes both, then data goes straight to the file. Each
 * tensor begins at a multiple of the alignment, and the last is padded too, as readers elsewhere
 * expect. The file appears under its name only when it is complete and on disk.
 *
 * The first failure sticks: later calls return it again, finish too, so a caller may check late.
 * What the writer refuses is what the reader would refuse, names given twice excepted. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/utf8.h"
#include "gguf/gguf_file.h"

struct buffer {
    uint8_t *p;
    size_t n;
    size_t room;
};

struct gguf_writer {
    char *path;
    char *tmp_path;
    FILE *f;
    struct buffer keys;
    struct buffer tensors;
    uint64_t n_keys;
    uint64_t n_tensors;
    uint64_t alignment;
    uint64_t *sizes; /* (n_tensors) bytes of each tensor */
    uint64_t next_offset;
    bool header_written;
    uint64_t current; /* tensor whose data is being written */
    uint64_t written; /* bytes of it so far */
    int failed;       /* the first failure, or 0 */
    struct error cause;
};

static int fail(struct gguf_writer *w, int code, const char *what)
{
    if (!w->failed) {
        w->failed = code;
        (void)error_set_errno(&w->cause, code, "cannot write %.120s: %.60s", w->path, what);
    }
    return w->failed;
}

static int put(struct gguf_writer *w, struct buffer *b, const void *data, size_t n)
{
    if (w->failed || n == 0) {
        return w->failed;
    }
    if (n > SIZE_MAX / 4 - b->n) {
        return fail(w, -ENOMEM, "its header");
    }
    if (b->n + n > b->room) {
        size_t room = (b->n + n) * 2;
        uint8_t *p = realloc(b->p, room);

        if (!p) {
            return fail(w, -ENOMEM, "its header");
        }
        b->p = p;
        b->room = room;
    }
    memcpy(b->p + b->n, data, n);
    b->n += n;
    return 0;
}

static int put_u32(struct gguf_writer *w, struct buffer *b, uint32_t v)
{
    return put(w, b, &v, sizeof(v));
}

static int put_u64(struct gguf_writer *w, struct buffer *b, uint64_t v)
{
    return put(w, b, &v, sizeof(v));
}

static int put_str(struct gguf_writer *w, struct buffer *b, const char *s, size_t len)
{
    (void)put_u64(w, b, len);
    return put(w, b, s, len);
}

int gguf_writer_create(const char *path, struct gguf_writer **ret, struct error *reterr)
{
    struct gguf_writer *w;
    struct stat old;
    int fd;

    /* Renaming onto a device or a pipe would put a file in its place. */
    if (stat(path, &old) == 0 && !S_ISREG(old.st_mode)) {
        return error_set(reterr, S_ISDIR(old.st_mode) ? -EISDIR : -EINVAL,
                         "cannot write %.150s: it is there and is no regular file", path);
    }
    w = calloc(1, sizeof(*w));

    if (w) {
        w->path = strdup(path);
        if (asprintf(&w->tmp_path, "%s.tmp", path) < 0) {
            w->tmp_path = NULL;
        }
    }
    if (!w || !w->path || !w->tmp_path) {
        gguf_writer_abort(w);
        return error_set(reterr, -ENOMEM, "no memory to write %.150s", path);
    }
    w->alignment = GGUF_DEFAULT_ALIGNMENT;
    fd = open(w->tmp_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    w->f = fd < 0 ? NULL : fdopen(fd, "we");
    if (!w->f) {
        int code = errno ? -errno : -ENOMEM;

        if (fd >= 0) {
            (void)close(fd);
            (void)unlink(w->tmp_path);
        }
        gguf_writer_abort(w);
        return error_set_errno(reterr, code, "cannot create %.150s.tmp", path);
    }
    (void)setvbuf(w->f, NULL, _IOFBF, 1 << 20);
    *ret = w;
    return 0;
}

void gguf_writer_abort(struct gguf_writer *w)
{
    if (!w) {
        return;
    }
    if (w->f) {
        (void)fclose(w->f);
        (void)unlink(w->tmp_path);
    }
    free(w->path);
    free(w->tmp_path);
    free(w->keys.p);
    free(w->tensors.p);
    free(w->sizes);
    free(w);
}

/* ---- keys ---- */

static int begin_key(struct gguf_writer *w, const char *key, size_t len, enum gguf_type type)
{
    if (w->failed) {
        return w->failed;
    }
    if (w->header_written || len == 0 || len > GGUF_MAX_KEY_LEN || !utf8_valid(key, len)) {
        return fail(w, -EINVAL, "a key's name, or a key after data");
    }
    w->n_keys++;
    (void)put_str(w, &w->keys, key, len);
    return put_u32(w, &w->keys, type);
}

/* A changed alignment moves every tensor, so it comes before the first. */
static int note_alignment(struct gguf_writer *w, const char *key, size_t len, enum gguf_type type,
                          uint64_t v)
{
    static const char name[] = "general.alignment";

    if (len != sizeof(name) - 1 || memcmp(key, name, len) != 0) {
        return 0;
    }
    if (type != GGUF_U32 || v < 8 || v > 1 << 20 || (v & (v - 1)) != 0 || w->n_tensors > 0) {
        return fail(w, -EINVAL, name);
    }
    w->alignment = v;
    return 0;
}

int gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    int r = note_alignment(w, key, strlen(key), GGUF_U32, v);

    r = r < 0 ? r : begin_key(w, key, strlen(key), GGUF_U32);
    return r < 0 ? r : put_u32(w, &w->keys, v);
}

int gguf_writer_f32(struct gguf_writer *w, const char *key, float v)
{
    int r = begin_key(w, key, strlen(key), GGUF_F32);

    return r < 0 ? r : put(w, &w->keys, &v, sizeof(v));
}

int gguf_writer_bool(struct gguf_writer *w, const char *key, bool v)
{
    uint8_t byte = v;
    int r = begin_key(w, key, strlen(key), GGUF_BOOL);

    return r < 0 ? r : put(w, &w->keys, &byte, 1);
}

int gguf_writer_str(struct gguf_writer *w, const char *key, const char *s, size_t len)
{
    int r = begin_key(w, key, strlen(key), GGUF_STRING);

    return r < 0 ? r : put_str(w, &w->keys, s, len);
}

int gguf_writer_array(struct gguf_writer *w, const char *key, enum gguf_type type, const void *data,
                      size_t n)
{
    size_t bytes = gguf_type_bytes(type);
    int r;

    if (bytes == 0 || n > GGUF_MAX_ARRAY) {
        return fail(w, -EINVAL, key);
    }
    r = begin_key(w, key, strlen(key), GGUF_ARRAY);
    r = r < 0 ? r : put_u32(w, &w->keys, type);
    r = r < 0 ? r : put_u64(w, &w->keys, n);
    return r < 0 ? r : put(w, &w->keys, data, n * bytes);
}

int gguf_writer_str_array(struct gguf_writer *w, const char *key, const struct gguf_str *s,
                          size_t n)
{
    int r;

    if (n > GGUF_MAX_STRINGS) {
        return fail(w, -EINVAL, key);
    }
    r = begin_key(w, key, strlen(key), GGUF_ARRAY);
    r = r < 0 ? r : put_u32(w, &w->keys, GGUF_STRING);
    r = r < 0 ? r : put_u64(w, &w->keys, n);
    for (size_t i = 0; i < n && r == 0; i++) {
        r = put_str(w, &w->keys, s[i].ptr, s[i].len);
    }
    return r;
}

int gguf_writer_raw(struct gguf_writer *w, struct gguf_str key, enum gguf_type type,
                    const void *raw, size_t raw_bytes)
{
    uint32_t v = 0;
    int r;

    if (type == GGUF_U32 && raw_bytes == sizeof(v)) {
        memcpy(&v, raw, sizeof(v));
    }
    r = note_alignment(w, key.ptr, key.len, type, v);
    r = r < 0 ? r : begin_key(w, key.ptr, key.len, type);
    return r < 0 ? r : put(w, &w->keys, raw, raw_bytes);
}

/* ---- tensors ---- */

static int remember_size(struct gguf_writer *w, uint64_t bytes)
{
    /* Room grows at powers of two. */
    if ((w->n_tensors & (w->n_tensors - 1)) == 0) {
        size_t room = w->n_tensors ? (size_t)w->n_tensors * 2 : 1;
        uint64_t *sizes = realloc(w->sizes, room * sizeof(*sizes));

        if (!sizes) {
            return fail(w, -ENOMEM, "its table of tensors");
        }
        w->sizes = sizes;
    }
    w->sizes[w->n_tensors++] = bytes;
    return 0;
}

int gguf_writer_tensor(struct gguf_writer *w, const char *name, enum dtype type, int n_dims,
                       const uint64_t *dims)
{
    size_t len = strlen(name);
    uint64_t bytes = 0;
    uint64_t end = 0;
    bool ok = !w->header_written && len > 0 && len <= GGUF_MAX_TENSOR_NAME_LEN &&
              utf8_valid(name, len) && n_dims >= 1 && n_dims <= 4 &&
              dtype_row_bytes(type, dims[0], &bytes);

    if (w->failed) {
        return w->failed;
    }
    for (int i = 1; ok && i < n_dims; i++) {
        ok = checked_mul_u64(bytes, dims[i], &bytes);
    }
    ok = ok && bytes > 0 && checked_add_u64(w->next_offset, bytes, &end);
    end = ok ? checked_round_up(end, w->alignment) : 0;
    if (end == 0) {
        return fail(w, -EINVAL, name);
    }
    (void)put_str(w, &w->tensors, name, len);
    (void)put_u32(w, &w->tensors, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++) {
        (void)put_u64(w, &w->tensors, dims[i]);
    }
    (void)put_u32(w, &w->tensors, type);
    (void)put_u64(w, &w->tensors, w->next_offset);
    w->next_offset = end;
    return w->failed ? w->failed : remember_size(w, bytes);
}

static int write_out(struct gguf_writer *w, const void *data, size_t n)
{
    errno = 0;
    if (!w->failed && n > 0 && fwrite(data, 1, n, w->f) != n) {
        return fail(w, errno ? -errno : -EIO, "data");
    }
    return w->failed;
}

static int write_padding(struct gguf_writer *w, uint64_t written)
{
    static const uint8_t zeroes[4096];
    uint64_t n = checked_round_up(written, w->alignment) - written;

    while (n > 0 && !w->failed) {
        size_t piece = n < sizeof(zeroes) ? (size_t)n : sizeof(zeroes);

        (void)write_out(w, zeroes, piece);
        n -= piece;
    }
    return w->failed;
}

static int write_header(struct gguf_writer *w)
{
    uint32_t version = 3;

    w->header_written = true;
    (void)write_out(w, "GGUF", 4);
    (void)write_out(w, &version, sizeof(version));
    (void)write_out(w, &w->n_tensors, sizeof(w->n_tensors));
    (void)write_out(w, &w->n_keys, sizeof(w->n_keys));
    (void)write_out(w, w->keys.p, w->keys.n);
    (void)write_out(w, w->tensors.p, w->tensors.n);
    return write_padding(w, 24 + w->keys.n + w->tensors.n);
}

int gguf_writer_data(struct gguf_writer *w, const void *data, size_t bytes)
{
    const uint8_t *p = data;

    if (!w->header_written) {
        (void)write_header(w);
    }
    while (bytes > 0 && !w->failed) {
        if (w->current == w->n_tensors) {
            return fail(w, -EINVAL, "more data than its tensors hold");
        }
        uint64_t left = w->sizes[w->current] - w->written;
        size_t piece = bytes < left ? bytes : (size_t)left;

        (void)write_out(w, p, piece);
        p += piece;
        bytes -= piece;
        w->written += piece;
        if (piece == left) {
            (void)write_padding(w, w->written);
            w->current++;
            w->written = 0;
        }
    }
    return w->failed;
}

int gguf_writer_finish(struct gguf_writer *w, struct error *reterr)
{
    int r;

    if (!w->header_written) {
        (void)write_header(w);
    }
    if (w->current != w->n_tensors) {
        (void)fail(w, -EINVAL, "data of its tensors is missing");
    }
    if (!w->failed && (fflush(w->f) != 0 || fsync(fileno(w->f)) < 0)) {
        (void)fail(w, -errno, "flushing");
    }
    if (fclose(w->f) != 0) {
        (void)fail(w, -errno, "closing");
    }
    w->f = NULL;
    if (!w->failed && rename(w->tmp_path, w->path) < 0) {
        (void)fail(w, -errno, "renaming");
    }
    r = w->failed;
    if (r < 0) {
        (void)unlink(w->tmp_path);
        (void)error_set(reterr, r, "%s", w->cause.text);
    }
    gguf_writer_abort(w);
    return r;
}

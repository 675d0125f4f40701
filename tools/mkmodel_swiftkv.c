/* SPDX-License-Identifier: Apache-2.0 */
/* A SwiftKV overlay before any training: a file of a few tensors that names its base by SHA-256 and
 * turns its deep layers (from n_kv_layers on) to keys and values made from one hidden state. Groups
 * of `group` deep layers share the keys and values of their first (AcrossKV); the last may be
 * short.
 *
 * Tensors that are copied keep the base's bytes; means are encoded in the base's type where there
 * is an encoder, else in F16.
 *
 * A wide store (engine/model/tensors_wide.c) has one head of widths of its own. There are no keys
 * whose mean it could be: its tensors are random, of a deviation that keeps values as large as what
 * they are made of, in the type of the layer's q, or Q8_0 or F16 where a row is not whole blocks.
 */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/mkmodel_random.h"
#include "tools/mkmodel_write.h"

struct overlay {
    const struct gguf *base;
    struct gguf_writer *w;
    struct mkmodel_swiftkv what;
    int64_t n_layers;
    uint64_t n_heads; /* query heads; of wide stores */
    bool declaring;   /* first walk over the tensors declares, the second writes data */
    struct error *err;
};

static const struct gguf_tensor *base_tensor(struct overlay *o, int64_t layer, const char *part,
                                             const char *kind)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "blk.%" PRId64 ".%s.%s", layer, part, kind);
    const struct gguf_tensor *t = gguf_tensor_find(o->base, name);
    if (!t) {
        (void)error_set(o->err, -EBADMSG, "the base has no tensor '%s'", name);
    }
    return t;
}

static int copy(struct overlay *o, const char *name, const struct gguf_tensor *t)
{
    return o->declaring ? gguf_writer_tensor(o->w, name, t->type, t->n_dims, t->dims)
                        : gguf_writer_data(o->w, t->data, (size_t)t->n_bytes);
}

/* Adds a row of each layer [layer, end) and divides. */
static int mean_row(struct overlay *o, int64_t layer, int64_t end, const char *part,
                    const char *kind, uint64_t row, float *one, float *sum)
{
    uint64_t n = 0;

    for (int64_t j = layer; j < end; j++) {
        const struct gguf_tensor *t = base_tensor(o, j, part, kind);
        uint64_t row_bytes;

        if (!t || !dtype_row_bytes(t->type, t->dims[0], &row_bytes)) {
            return -EBADMSG;
        }
        n = t->dims[0];
        dtype_decode(t->type, (const uint8_t *)t->data + row * row_bytes, one, n);
        for (uint64_t i = 0; i < n; i++) {
            sum[i] = j == layer ? one[i] : sum[i] + one[i];
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        sum[i] /= (float)(end - layer);
    }
    return 0;
}

static int write_mean(struct overlay *o, int64_t layer, int64_t end, const char *part,
                      const char *kind, const struct gguf_tensor *first, enum dtype type)
{
    size_t n = (size_t)first->dims[0];
    uint64_t row_bytes = 0;
    float *one = malloc(n * sizeof(*one));
    float *sum = malloc(n * sizeof(*sum));
    uint8_t *out = NULL;
    int r = -ENOMEM;

    if (one && sum && dtype_row_bytes(type, n, &row_bytes)) {
        out = malloc((size_t)row_bytes);
    }
    for (uint64_t row = 0; out && row < first->dims[1]; row++) {
        r = mean_row(o, layer, end, part, kind, row, one, sum);
        r = r < 0 ? r : dtype_encode(type, sum, out, n);
        r = r < 0 ? r : gguf_writer_data(o->w, out, (size_t)row_bytes);
        if (r < 0) {
            break;
        }
    }
    free(one);
    free(sum);
    free(out);
    return r;
}

static int check_same_shape(struct overlay *o, int64_t layer, int64_t end, const char *part,
                            const char *kind, const struct gguf_tensor *first)
{
    for (int64_t j = layer + 1; j < end; j++) {
        const struct gguf_tensor *t = base_tensor(o, j, part, kind);

        if (!t) {
            return -EBADMSG;
        }
        if (memcmp(t->dims, first->dims, sizeof(t->dims)) != 0) {
            return error_set(o->err, -EBADMSG,
                             "blk.%" PRId64 ".%s.%s: its shape is not that of its group's first", j,
                             part, kind);
        }
    }
    return 0;
}

/* One kind ("weight", "bias") of the keys or values of the group that begins at `layer`. */
static int write_shared(struct overlay *o, int64_t layer, const char *part, const char *kind)
{
    int64_t end = layer + o->what.group < o->n_layers ? layer + o->what.group : o->n_layers;
    const struct gguf_tensor *first = base_tensor(o, layer, part, kind);
    char name[64];
    enum dtype type;

    (void)snprintf(name, sizeof(name), "blk.%" PRId64 ".%s_swiftkv.%s", layer, part, kind);
    if (!first) {
        return -EBADMSG;
    }
    if (end == layer + 1) {
        return copy(o, name, first);
    }
    type = dtype_info(first->type)->can_encode ? first->type : DTYPE_F16;
    if (!o->declaring) {
        return write_mean(o, layer, end, part, kind, first, type);
    }
    int r = check_same_shape(o, layer, end, part, kind, first);
    return r < 0 ? r : gguf_writer_tensor(o->w, name, type, first->n_dims, first->dims);
}

/* Its own output projection: the mean over the layers it shares keys and values with. */
static int write_output(struct overlay *o, int64_t layer)
{
    int64_t leader = layer - (layer - o->what.split) % o->what.group;
    int64_t end = leader + o->what.group < o->n_layers ? leader + o->what.group : o->n_layers;
    const struct gguf_tensor *first = base_tensor(o, leader, "attn_output", "weight");
    char name[64];
    enum dtype type;
    int r;

    (void)snprintf(name, sizeof(name), "blk.%" PRId64 ".attn_output_swiftkv.weight", layer);
    if (!first) {
        return -EBADMSG;
    }
    type = dtype_info(first->type)->can_encode ? first->type : DTYPE_F16;
    if (!o->declaring) {
        return write_mean(o, leader, end, "attn_output", "weight", first, type);
    }
    r = check_same_shape(o, leader, end, "attn_output", "weight", first);
    return r < 0 ? r : gguf_writer_tensor(o->w, name, type, first->n_dims, first->dims);
}

/* n_rows rows of n random numbers. */
static int write_random(struct overlay *o, int64_t layer, const char *part, enum dtype like,
                        uint64_t n, uint64_t n_rows)
{
    const uint64_t dims[2] = {n, n_rows};
    enum dtype type = like;
    uint64_t row_bytes;
    char name[64];

    (void)snprintf(name, sizeof(name), "blk.%" PRId64 ".%s_swiftkv.weight", layer, part);
    if (!dtype_row_bytes(type, n, &row_bytes)) {
        type = n % 32 == 0 ? DTYPE_Q8_0 : DTYPE_F16;
    }
    if (o->declaring) {
        return gguf_writer_tensor(o->w, name, type, 2, dims);
    }
    const struct mkmodel_random r = {
        .seed = o->what.seed, .name = name, .deviation = 1.0f / sqrtf((float)n)};
    float *one = malloc((size_t)n * sizeof(*one));
    uint8_t *out = dtype_row_bytes(type, n, &row_bytes) ? malloc((size_t)row_bytes) : NULL;
    int e = one && out ? 0 : -ENOMEM;

    for (uint64_t row = 0; row < n_rows && e == 0; row++) {
        e = mkmodel_random_row(&r, type, row, n, one, out);
        e = e ? e : gguf_writer_data(o->w, out, (size_t)row_bytes);
    }
    free(one);
    free(out);
    return e;
}

/* The frequencies of RoPE with its usual base, over the head's own pairs. */
static int write_freqs(struct overlay *o, int64_t layer)
{
    const uint64_t n = (uint64_t)o->what.k_dim / 2;
    float freqs[MKMODEL_MAX_HEAD / 2];
    char name[64];

    (void)snprintf(name, sizeof(name), "blk.%" PRId64 ".attn_freqs_swiftkv.weight", layer);
    for (uint64_t i = 0; i < n; i++) {
        freqs[i] = powf(10000.0f, -(float)i / (float)n);
    }
    return o->declaring ? gguf_writer_tensor(o->w, name, DTYPE_F32, 1, &n)
                        : gguf_writer_data(o->w, freqs, (size_t)n * sizeof(freqs[0]));
}

/* K and V of a group's leader, and the maps that join a layer's heads to them. */
static int write_wide(struct overlay *o, int64_t layer, const struct gguf_tensor *q)
{
    const struct gguf_tensor *out = base_tensor(o, layer, "attn_output", "weight");
    const uint64_t k_dim = (uint64_t)o->what.k_dim;
    const uint64_t v_dim = (uint64_t)o->what.v_dim;
    const uint64_t q_dim = q->dims[1] / o->n_heads;
    int r = out ? 0 : -EBADMSG;

    if (r == 0 && (layer - o->what.split) % o->what.group == 0) {
        r = write_random(o, layer, "attn_k", q->type, q->dims[0], k_dim);
        r = r ? r : write_random(o, layer, "attn_v", q->type, q->dims[0], v_dim);
        r = r ? r : write_freqs(o, layer);
    }
    r = r ? r : write_random(o, layer, "attn_q_map", q->type, q_dim, o->n_heads * k_dim);
    return r ? r : write_random(o, layer, "attn_v_map", q->type, v_dim, out->dims[0]);
}

static int walk_layer(struct overlay *o, int64_t layer)
{
    static const char *const kinds[] = {"weight", "bias"};
    char name[64];
    int r = 0;

    for (int i = 0; i < 2 && r == 0; i++) {
        (void)snprintf(name, sizeof(name), "blk.%" PRId64 ".attn_q.%s", layer, kinds[i]);
        if (i == 1 && !gguf_tensor_find(o->base, name)) {
            break; /* most architectures have no biases */
        }
        const struct gguf_tensor *q = base_tensor(o, layer, "attn_q", kinds[i]);
        (void)snprintf(name, sizeof(name), "blk.%" PRId64 ".attn_q_swiftkv.%s", layer, kinds[i]);
        r = q ? copy(o, name, q) : -EBADMSG;
        if (r == 0 && o->what.k_dim) {
            r = write_wide(o, layer, q);
        } else if (r == 0 && (layer - o->what.split) % o->what.group == 0) {
            r = write_shared(o, layer, "attn_k", kinds[i]);
            r = r < 0 ? r : write_shared(o, layer, "attn_v", kinds[i]);
        }
    }
    return r == 0 && o->what.outputs ? write_output(o, layer) : r;
}

static int walk(struct overlay *o, bool declaring)
{
    const struct gguf_tensor *norm = base_tensor(o, o->what.split, "attn_norm", "weight");
    int r;

    o->declaring = declaring;
    r = norm ? copy(o, "norm_swiftkv.weight", norm) : -EBADMSG;
    for (int64_t layer = o->what.split; layer < o->n_layers && r == 0; layer++) {
        r = walk_layer(o, layer);
    }
    return r;
}

static int write_overlay(struct overlay *o, struct gguf_str arch, const char *sha256)
{
    int r = gguf_writer_str(o->w, "general.architecture", arch.ptr, arch.len);

    r = r < 0 ? r : gguf_writer_str(o->w, "general.type", "overlay", 7);
    r = r < 0 ? r : gguf_writer_str(o->w, "pipit.overlay.base_sha256", sha256, 64);
    r = r < 0
            ? r
            : gguf_writer_u32(o->w, "pipit.swiftkv.num_key_value_layers", (uint32_t)o->what.split);
    r = r < 0
            ? r
            : gguf_writer_u32(o->w, "pipit.swiftkv.key_value_group_size", (uint32_t)o->what.group);
    if (o->what.k_dim) {
        r = r < 0 ? r : gguf_writer_u32(o->w, "pipit.swiftkv.key_length", (uint32_t)o->what.k_dim);
        r = r < 0 ? r
                  : gguf_writer_u32(o->w, "pipit.swiftkv.value_length", (uint32_t)o->what.v_dim);
    }
    r = r < 0 ? r : walk(o, true);
    return r < 0 ? r : walk(o, false);
}

static int check_wide(struct overlay *o, struct gguf_str arch)
{
    char key[128];
    int r;

    (void)snprintf(key, sizeof(key), "blk.%" PRId64 ".attn_q.bias", o->what.split);
    if (gguf_tensor_find(o->base, key)) {
        return error_set(o->err, -EINVAL, "--wide: the base has biases, of which no store is made");
    }
    (void)snprintf(key, sizeof(key), "%.*s.attention.head_count", (int)arch.len, arch.ptr);
    r = gguf_get_u64(o->base, key, 1, 4096, &o->n_heads, o->err);
    return r == -ENOENT ? error_set(o->err, -EBADMSG, "the base does not say its head_count") : r;
}

static int check_base(struct overlay *o, struct gguf_str *ret_arch)
{
    char key[128];
    uint64_t n = 0;
    int r = gguf_get_str(o->base, "general.architecture", ret_arch, o->err);

    if (r == 0) {
        (void)snprintf(key, sizeof(key), "%.*s.block_count",
                       ret_arch->len < 64 ? (int)ret_arch->len : 0, ret_arch->ptr);
        r = gguf_get_u64(o->base, key, 1, 4096, &n, o->err);
    }
    if (r == -ENOENT) {
        return error_set(o->err, -EBADMSG, "the base does not say its architecture or block_count");
    }
    if (r < 0) {
        return r;
    }
    o->n_layers = (int64_t)n;
    if (o->what.split < 1 || o->what.split >= o->n_layers) {
        return error_set(o->err, -EINVAL,
                         "--swiftkv: %" PRId64 " is not in 1..%" PRId64 " for %" PRId64 " layers",
                         o->what.split, o->n_layers - 1, o->n_layers);
    }
    if (o->what.group < 1 || o->what.group > o->n_layers - o->what.split) {
        return error_set(o->err, -EINVAL, "--group: %" PRId64 " is not in 1..%" PRId64,
                         o->what.group, o->n_layers - o->what.split);
    }
    return o->what.k_dim ? check_wide(o, *ret_arch) : 0;
}

int mkmodel_swiftkv_write(const char *base_path, const struct mkmodel_swiftkv *what,
                          const char *path, struct error *reterr)
{
    struct overlay o = {.what = *what, .err = reterr};
    struct gguf *base = NULL;
    struct gguf_str arch;
    char sha256[65];
    int r = gguf_open(base_path, &base, reterr);

    if (r < 0) {
        return r;
    }
    o.base = base;
    r = check_base(&o, &arch);
    r = r < 0 ? r : gguf_sha256(base_path, NULL, sha256, reterr);
    r = r < 0 ? r : gguf_writer_create(path, &o.w, reterr);
    if (r == 0) {
        r = write_overlay(&o, arch, sha256);
        if (r == 0) {
            r = gguf_writer_finish(o.w, reterr);
        } else {
            gguf_writer_abort(o.w);
            (void)error_set_errno(reterr, r, "cannot write %.150s", path);
        }
    }
    gguf_close(base);
    return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A skew overlay of a made model: of every layer from the third on, for every K head, the unit
 * matrix as its rotation and as its order of dims, so that partial keys are the first dims of K.
 * Random weights have no better one; what it costs to read and to rank is what any would cost. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/half.h"
#include "tools/mkmodel_write.h"

enum { FIRST_LAYER = 2, MAX_DIM = 1024, MAX_HEADS = 1024 };

struct overlay {
    struct gguf_writer *w;
    struct gguf_str arch;
    uint64_t n_layers, n_heads, dim;
    float *skew;       /* (n_heads, dim, dim) */
    uint16_t *columns; /* the same in f16 */
};

static int number(const struct gguf *base, struct gguf_str arch, const char *name, uint64_t max,
                  uint64_t *ret, struct error *reterr)
{
    char key[128];

    (void)snprintf(key, sizeof(key), "%.*s.%s", arch.len < 64 ? (int)arch.len : 0, arch.ptr, name);
    int r = gguf_get_u64(base, key, 1, max, ret, reterr);
    return r == -ENOENT ? error_set(reterr, -EBADMSG, "the base does not say its %s", name) : r;
}

static int measure(const struct gguf *base, struct overlay *o, struct error *reterr)
{
    int r = gguf_get_str(base, "general.architecture", &o->arch, reterr);

    r = r ? r : number(base, o->arch, "block_count", 4096, &o->n_layers, reterr);
    r = r ? r : number(base, o->arch, "attention.head_count_kv", MAX_HEADS, &o->n_heads, reterr);
    r = r ? r : number(base, o->arch, "attention.key_length", MAX_DIM, &o->dim, reterr);
    if (r == 0 && o->n_layers <= FIRST_LAYER) {
        return error_set(reterr, -EINVAL, "--skew: the base has %" PRIu64 " layers, no third one",
                         o->n_layers);
    }
    return r;
}

static int fill(struct overlay *o)
{
    size_t n = (size_t)(o->n_heads * o->dim * o->dim);

    o->skew = calloc(n, sizeof(*o->skew));
    o->columns = calloc(n, sizeof(*o->columns));
    for (uint64_t i = 0; o->skew && o->columns && i < o->n_heads * o->dim; i++) {
        o->skew[i * o->dim + i % o->dim] = 1;
        o->columns[i * o->dim + i % o->dim] = half_f16_from_f32(1);
    }
    return o->skew && o->columns ? 0 : -ENOMEM;
}

static int walk(const struct overlay *o, bool declaring)
{
    uint64_t dims[2] = {o->dim, o->dim * o->n_heads};
    size_t n = (size_t)(dims[0] * dims[1]);
    char name[64];
    int r = 0;

    for (uint64_t layer = FIRST_LAYER; layer < o->n_layers && r == 0; layer++) {
        if (declaring) {
            (void)snprintf(name, sizeof(name), "blk.%" PRIu64 ".attn_skew.weight", layer);
            r = gguf_writer_tensor(o->w, name, DTYPE_F32, 2, dims);
            (void)snprintf(name, sizeof(name), "blk.%" PRIu64 ".attn_columns.weight", layer);
            r = r ? r : gguf_writer_tensor(o->w, name, DTYPE_F16, 2, dims);
        } else {
            r = gguf_writer_data(o->w, o->skew, n * sizeof(*o->skew));
            r = r ? r : gguf_writer_data(o->w, o->columns, n * sizeof(*o->columns));
        }
    }
    return r;
}

static int write_overlay(const struct overlay *o, const char *sha256)
{
    int r = gguf_writer_str(o->w, "general.architecture", o->arch.ptr, o->arch.len);

    r = r ? r : gguf_writer_str(o->w, "general.type", "overlay", 7);
    r = r ? r : gguf_writer_str(o->w, "pipit.overlay.base_sha256", sha256, 64);
    r = r ? r : walk(o, true);
    return r ? r : walk(o, false);
}

int mkmodel_skew_write(const char *base_path, const char *path, struct error *reterr)
{
    struct overlay o = {0};
    struct gguf *base = NULL;
    char sha256[65];
    int r = gguf_open(base_path, &base, reterr);

    if (r < 0) {
        return r;
    }
    r = measure(base, &o, reterr);
    r = r ? r : gguf_sha256(base_path, NULL, sha256, reterr);
    if (r == 0 && fill(&o) < 0) {
        r = error_set(reterr, -ENOMEM, "no memory for a skew");
    }
    r = r ? r : gguf_writer_create(path, &o.w, reterr);
    if (r == 0) {
        r = write_overlay(&o, sha256);
        if (r == 0) {
            r = gguf_writer_finish(o.w, reterr);
        } else {
            gguf_writer_abort(o.w);
            (void)error_set_errno(reterr, r, "cannot write %.150s", path);
        }
    }
    free(o.skew);
    free(o.columns);
    gguf_close(base);
    return r;
}

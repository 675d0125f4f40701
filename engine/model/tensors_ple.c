/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that are no weight of one layer's product: the table of per-layer embeddings, which stays
 * in the file, and the layers' parts of its projection; a layer's factor; a norm's ones. */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/tensors_impl.h"

/* How many bytes n_cols values of a type are in a file; 0: no whole number of blocks. */
static uint64_t row_bytes(enum dtype type, uint64_t n_cols)
{
    const struct dtype_info *info = dtype_info(type);
    uint64_t bytes = 0;

    return info && n_cols % info->block_len == 0 && dtype_row_bytes(type, n_cols, &bytes) ? bytes
                                                                                          : 0;
}

/* The table of per-layer embeddings, which stays in the file. */
int tensors_ple_table(struct finder *f)
{
    static const char name[] = "per_layer_token_embd.weight";
    struct model *m = f->m;
    uint64_t width = (uint64_t)m->h.ple;
    uint64_t cols = width * (uint64_t)m->h.n_layers;
    const struct gguf_tensor *t = NULL;
    int r = tensors_lookup(f, name, &t);

    if (r || !t) {
        return r ? r
                 : error_set(f->reterr, -EBADMSG,
                             "tensor %s is missing, key %s.embedding_length_per_layer_input is %d",
                             name, m->arch->name, m->h.ple);
    }
    if (t->dims[0] != cols || t->dims[1] != (uint64_t)m->h.n_vocab || t->dims[2] != 1 ||
        t->dims[3] != 1) {
        return error_set(f->reterr, -EBADMSG,
                         "tensor %s is (%" PRIu64 ", %" PRIu64 "), but must be (%" PRIu64
                         ", %d): %d layers of %d",
                         name, t->dims[0], t->dims[1], cols, m->h.n_vocab, m->h.n_layers, m->h.ple);
    }
    m->ple = (struct model_ple){
        .file = f->source->base,
        .data = t->data,
        .type = t->type,
        .row_bytes = row_bytes(t->type, cols),
        .layer_bytes = row_bytes(t->type, width),
        .bytes = t->n_bytes,
    };
    for (int32_t i = 0; i < f->source->n_overlays; i++) {
        const struct gguf_tensor *o = gguf_tensor_find(f->source->overlays[i], name);

        m->ple.file = o == t ? f->source->overlays[i] : m->ple.file;
    }
    m->n_params += cols * (uint64_t)m->h.n_vocab;
    return m->ple.layer_bytes ? 0
                              : error_set(f->reterr, -ENOTSUP,
                                          "tensor %s: %d values of %s, a layer's part of a row, "
                                          "are no whole number of blocks",
                                          name, m->h.ple, dtype_info(t->type)->name);
}

/* The rows of the one projection that are a layer's, as a weight of its own. */
int tensors_ple_in(struct finder *f, int32_t il)
{
    static const char name[] = "per_layer_model_proj.weight";
    struct model *m = f->m;
    struct model_weight *w = &m->list[m->n_list];
    struct ops_weight *dst = &m->layers[il].w[LT_PLE_IN];
    uint64_t rows = (uint64_t)m->h.ple * (uint64_t)m->h.n_layers;
    const struct gguf_tensor *t = NULL;
    int r = tensors_lookup(f, name, &t);

    if (r || !t) {
        return r ? r : error_set(f->reterr, -EBADMSG, "tensor %s is missing", name);
    }
    if (t->dims[0] != (uint64_t)m->h.n_embd || t->dims[1] != rows || t->dims[2] != 1 ||
        t->dims[3] != 1 || !dtype_info(t->type)) {
        return error_set(f->reterr, -EBADMSG,
                         "tensor %s is (%" PRIu64 ", %" PRIu64 "), but must be (%d, %" PRIu64 ")",
                         name, t->dims[0], t->dims[1], m->h.n_embd, rows);
    }
    uint64_t bytes = row_bytes(t->type, t->dims[0]) * (uint64_t)m->h.ple;

    (void)snprintf(w->name, sizeof(w->name), "per_layer_model_proj.weight, layer %d", il);
    w->desc = (struct ops_weight_desc){
        .type = t->type,
        .role = OPS_ROLE_MATMUL,
        .n_rows = m->h.ple,
        .n_cols = m->h.n_embd,
        .data = (const uint8_t *)t->data + (uint64_t)il * bytes,
    };
    w->dst = dst;
    w->file_bytes = bytes;
    dst->n_cols = w->desc.n_cols;
    dst->n_rows = w->desc.n_rows;
    m->n_params += (uint64_t)m->h.ple * (uint64_t)m->h.n_embd;
    m->n_list++;
    return 0;
}

/* A scalar that the host reads: a layer's output is multiplied by it. */
int tensors_out_scale(struct finder *f, int32_t il)
{
    struct model_layer *l = &f->m->layers[il];
    const struct gguf_tensor *t = NULL;
    char name[64];
    int r;

    l->out_scale = 1.0f;
    if (!f->m->arch->out_scale) {
        return 0;
    }
    (void)snprintf(name, sizeof(name), "blk.%d.layer_output_scale.weight", il);
    r = tensors_lookup(f, name, &t);
    if (r || !t) {
        return r;
    }
    if (t->type != DTYPE_F32 || t->dims[0] != 1 || t->dims[1] != 1) {
        return error_set(f->reterr, -EBADMSG, "tensor %s must be F32 (1)", name);
    }
    memcpy(&l->out_scale, t->data, sizeof(l->out_scale));
    return isfinite(l->out_scale) ? 0
                                  : error_set(f->reterr, -EBADMSG, "tensor %s is not finite", name);
}

/* The weight of a norm that has none. */
int tensors_ones(struct finder *f)
{
    struct model *m = f->m;
    struct model_weight *w = &m->list[m->n_list];
    int32_t n = m->h.most.v_dim;

    m->ones = calloc((size_t)n, sizeof(*m->ones));
    if (!m->ones) {
        return error_set(f->reterr, -ENOMEM, "model: no memory");
    }
    for (int32_t i = 0; i < n; i++) {
        m->ones[i] = 1.0f;
    }
    (void)snprintf(w->name, sizeof(w->name), "ones");
    w->desc = (struct ops_weight_desc){
        .type = DTYPE_F32, .role = OPS_ROLE_VECTOR, .n_rows = 1, .n_cols = n, .data = m->ones};
    w->dst = &m->w[MT_ONES];
    w->file_bytes = (uint64_t)n * sizeof(float);
    m->w[MT_ONES].n_cols = n;
    m->w[MT_ONES].n_rows = 1;
    m->n_list++;
    return 0;
}

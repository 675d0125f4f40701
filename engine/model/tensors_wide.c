/* SPDX-License-Identifier: Apache-2.0 */
/* Wide stores: a deep store's heads are wider than the model's, and the query heads that read one
 * are joined to it by small matrices of their own. In a deep layer
 *
 *   attn_q_map_swiftkv.weight  (q_dim, n_q * k_dim): a head's projected query to the store's keys
 *   attn_v_map_swiftkv.weight  (v_dim, n_q * o_dim): what attention gives a head to the columns
 *                              of the output projection that are its own
 *
 * and in the store's owner attn_freqs_swiftkv.weight, f32 (k_dim / 2): the frequency by which each
 * pair of a key's dims rotates; 0: it does not. Each head's matrix is a weight by itself, which is
 * the tensor's rows in place, so that the products are the backend's ordinary ones. */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/tensors_impl.h"

/* n_q matrices of `rows` x `cols`, one behind the other. */
static int find_map(struct finder *f, int32_t il, const char *name, int32_t rows, int32_t cols,
                    struct ops_weight *dst)
{
    struct model *m = f->m;
    const struct gguf_tensor *t = NULL;
    int32_t n_q = m->h.layer[il].n_q;
    uint64_t row_bytes = 0;
    char full[64];
    int r;

    (void)snprintf(full, sizeof(full), "blk.%d.%s", il, name);
    r = tensors_lookup(f, full, &t);
    if (r < 0 || !t) {
        return r < 0 ? r : error_set(f->reterr, -EBADMSG, "tensor %s is missing", full);
    }
    if (t->dims[0] != (uint64_t)cols || t->dims[1] != (uint64_t)n_q * (uint64_t)rows ||
        t->dims[2] != 1 || t->dims[3] != 1) {
        return error_set(f->reterr, -EBADMSG,
                         "tensor %s is (%" PRIu64 ", %" PRIu64 "), but must be (%d, %d): %d "
                         "heads' maps of %d to %d",
                         full, t->dims[0], t->dims[1], cols, n_q * rows, n_q, cols, rows);
    }
    if (!dtype_info(t->type) || !dtype_row_bytes(t->type, t->dims[0], &row_bytes)) {
        return error_set(f->reterr, -ENOTSUP, "tensor %s: type %u is not offered", full,
                         (unsigned)t->type);
    }
    for (int32_t i = 0; i < n_q; i++) {
        struct model_weight *w = &m->list[m->n_list++];

        memcpy(w->name, full, sizeof(full));
        w->desc = (struct ops_weight_desc){
            .type = t->type,
            .role = OPS_ROLE_MATMUL,
            .n_rows = rows,
            .n_cols = cols,
            .data = (const uint8_t *)t->data + (uint64_t)i * (uint64_t)rows * row_bytes,
        };
        w->dst = &dst[i];
        w->file_bytes = (uint64_t)rows * row_bytes;
        dst[i].n_cols = cols;
        dst[i].n_rows = rows;
        m->n_params += (uint64_t)rows * (uint64_t)cols;
    }
    return 0;
}

int tensors_wide_q(struct finder *f, int32_t il)
{
    const struct layer_sizes *z = &f->m->h.layer[il];

    return f->m->h.wide ? find_map(f, il, "attn_q_map_swiftkv.weight", z->k_dim, z->q_dim,
                                   model_q_maps(f->m, il))
                        : 0;
}

int tensors_wide_v(struct finder *f, int32_t il)
{
    const struct layer_sizes *z = &f->m->h.layer[il];

    return f->m->h.wide ? find_map(f, il, "attn_v_map_swiftkv.weight", z->o_dim, z->v_dim,
                                   model_v_maps(f->m, il))
                        : 0;
}

int tensors_wide_rope(struct finder *f, int32_t store)
{
    struct model *m = f->m;
    const struct model_store *st = &m->stores[store];
    float *freq = m->wide_freq + (size_t)store * (size_t)(m->h.most.k_dim / 2);
    const struct gguf_tensor *t = NULL;
    char name[64];
    int r;

    (void)snprintf(name, sizeof(name), "blk.%d.attn_freqs_swiftkv.weight", st->layer);
    r = tensors_lookup(f, name, &t);
    if (r < 0 || !t) {
        return r < 0 ? r : error_set(f->reterr, -EBADMSG, "tensor %s is missing", name);
    }
    if (t->type != DTYPE_F32 || t->dims[0] != (uint64_t)(st->k_dim / 2) || t->dims[1] != 1 ||
        t->dims[2] != 1 || t->dims[3] != 1) {
        return error_set(f->reterr, -EBADMSG, "tensor %s must be %d F32, one for each pair of dims",
                         name, st->k_dim / 2);
    }
    memcpy(freq, t->data, (size_t)(st->k_dim / 2) * sizeof(*freq));
    for (int32_t i = 0; i < st->k_dim / 2; i++) {
        if (!(freq[i] >= 0.0f && freq[i] <= 1.0f)) { /* nor NaN */
            return error_set(f->reterr, -EBADMSG,
                             "tensor %s: entry %d is %g, no frequency from 0 to 1", name, i,
                             (double)freq[i]);
        }
    }
    m->wide_rope[store] = (struct ops_rope){
        .form = m->arch->rope,
        .n_dims = st->k_dim,
        .inv_freq = freq,
        .mscale = 1.0f, /* model_set_context() */
    };
    return 0;
}

/* Queries are predicted by the layer's own projection, which is not what reads a wide store. */
int tensors_wide_skew(struct finder *f, int32_t il)
{
    const struct gguf_tensor *t = NULL;
    char name[64];
    int r;

    (void)snprintf(name, sizeof(name), "blk.%d.%s", il, arch_layer_tensors[LT_SKEW].name);
    r = tensors_lookup(f, name, &t);
    return r < 0 || !t ? r
                       : error_set(f->reterr, -ENOTSUP,
                                   "%s: not offered where queries read a wide store", name);
}

int tensors_wide_reserve(struct model *m)
{
    size_t n_maps = m->h.wide ? (size_t)model_n_maps(m) : 0;

    if (n_maps == 0) {
        return 0;
    }
    m->wide_maps = calloc(n_maps, sizeof(*m->wide_maps));
    m->wide_rope = calloc((size_t)m->n_stores, sizeof(*m->wide_rope));
    m->wide_freq =
        calloc((size_t)m->n_stores * (size_t)(m->h.most.k_dim / 2), sizeof(*m->wide_freq));
    return m->wide_maps && m->wide_rope && m->wide_freq ? 0 : -ENOMEM;
}

uint64_t tensors_wide_bytes(const struct model *m)
{
    return m->h.wide ? (uint64_t)model_n_maps(m) * sizeof(*m->wide_maps) +
                           (uint64_t)m->n_stores *
                               (sizeof(*m->wide_rope) +
                                (uint64_t)(m->h.most.k_dim / 2) * sizeof(*m->wide_freq))
                     : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that lie in a larger one. Rows of a weight lie one behind the other whatever its type is,
 * so a part of them is a weight by itself, read in place; of a matrix for each expert, a part of
 * each. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/tensors_impl.h"

static bool is_there(const struct finder *f, int32_t layer, const char *tensor)
{
    char name[64];
    bool there = false;

    (void)snprintf(name, sizeof(name), "blk.%d.%s", layer, tensor);
    for (int32_t i = 0; i <= f->source->n_overlays; i++) {
        there = there || gguf_tensor_find(tensors_file(f, i), name);
    }
    return there;
}

static struct tensor_part of_qkv(const struct finder *f, int32_t layer, int at, const char *fused)
{
    int32_t size[3];
    struct tensor_part p = {.name = fused};

    for (int i = 0; i < 3; i++) {
        enum tensor_dim dims[] = {DIM_Q_OUT, DIM_K, DIM_V};

        size[i] = tensors_dim(&f->m->h, layer, dims[i]);
        p.first += i < at ? size[i] : 0;
        p.total += size[i];
    }
    p.n = size[at];
    return p;
}

struct tensor_part tensors_part(const struct finder *f, const struct tensor_row *row, int32_t layer)
{
    static const char weight[] = "attn_qkv.weight";
    static const char bias[] = "attn_qkv.bias";
    static const char experts[] = "ffn_gate_up_exps.weight";
    static const enum layer_tensor weights[] = {LT_Q, LT_K, LT_V};
    static const enum layer_tensor biases[] = {LT_Q_B, LT_K_B, LT_V_B};
    struct tensor_part none = {0};

    if (layer < 0) {
        return none;
    }
    for (int i = 0; i < 3; i++) {
        if (row == &arch_layer_tensors[weights[i]] && is_there(f, layer, weight)) {
            return of_qkv(f, layer, i, weight);
        }
        if (row == &arch_layer_tensors[biases[i]] && is_there(f, layer, bias)) {
            return of_qkv(f, layer, i, bias);
        }
    }
    if ((row == &arch_layer_tensors[LT_EXPERTS_GATE] ||
         row == &arch_layer_tensors[LT_EXPERTS_UP]) &&
        is_there(f, layer, experts)) { /* of each expert */
        int32_t n_ff = tensors_dim(&f->m->h, layer, DIM_EXPERT_FF);
        bool up = row == &arch_layer_tensors[LT_EXPERTS_UP];

        return (struct tensor_part){
            .name = experts, .first = up ? n_ff : 0, .n = n_ff, .total = 2 * n_ff};
    }
    if (f->m->arch->fused_ffn &&
        (row == &arch_layer_tensors[LT_GATE] || row == &arch_layer_tensors[LT_UP])) {
        int32_t n_ff = tensors_dim(&f->m->h, layer, DIM_FF);
        bool up = row == &arch_layer_tensors[LT_UP];

        return (struct tensor_part){.name = arch_layer_tensors[LT_UP].name,
                                    .first = up ? n_ff : 0,
                                    .n = n_ff,
                                    .total = 2 * n_ff};
    }
    return none;
}

int tensors_take_part(const struct tensor_part *p, const struct gguf_tensor *t,
                      struct model_weight *w)
{
    bool vector = w->desc.role == OPS_ROLE_VECTOR;
    uint64_t row_bytes = 0;

    if (!dtype_row_bytes(t->type, vector ? 1 : t->dims[0], &row_bytes)) {
        return -EBADMSG;
    }
    if (vector) {
        w->desc.n_cols = p->n;
    } else {
        w->desc.n_rows = p->n;
    }
    w->desc.data = (const uint8_t *)t->data + (uint64_t)p->first * row_bytes;
    w->file_bytes = (uint64_t)p->n * row_bytes * (uint64_t)ops_stack(w->desc.n_stack);
    w->desc.stack_rows = w->desc.n_stack ? p->total : 0;
    return 0;
}

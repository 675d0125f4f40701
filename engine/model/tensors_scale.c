/* SPDX-License-Identifier: Apache-2.0 */
/* Looking tensors up by name, and those that are a number: files may name a factor for what a
 * matrix gives ("blk.0.attn_q.scale" beside "blk.0.attn_q.weight"), made for formats whose blocks
 * cannot say how large they are as a whole. "input_scale", for activations in such a format, is
 * passed over. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/tensors_impl.h"

int tensors_lookup(struct finder *f, const char *name, const struct gguf_tensor **ret)
{
    const struct gguf_tensor *found = NULL;

    for (int32_t i = 0; i <= f->source->n_overlays; i++) {
        const struct gguf *g = tensors_file(f, i);
        const struct gguf_tensor *t = gguf_tensor_find(g, name);

        if (!t) {
            continue;
        }
        if (found) {
            return error_set(f->reterr, -EBADMSG,
                             "tensor %s: overlay %s may add tensors, not replace them", name,
                             gguf_path(g));
        }
        found = t;
        f->used[i][t - gguf_tensor_at(g, 0)] = true;
    }
    *ret = found;
    return 0;
}

static int find_factor(struct finder *f, int32_t il, const char *stem, const char *end,
                       const struct gguf_tensor **ret, char *name, size_t size)
{
    (void)snprintf(name, size, "blk.%d.%.*s%s", il, (int)strcspn(stem, "."), stem, end);
    return tensors_lookup(f, name, ret);
}

/* Products that the forward pass multiplies by their factor. */
static bool takes_factor(int t)
{
    return t == LT_Q || t == LT_K || t == LT_V || t == LT_O || t == LT_GATE || t == LT_UP ||
           t == LT_DOWN || t == LT_SWIFT_Q || t == LT_MIX || t == LT_Z || t == LT_ALPHA ||
           t == LT_BETA || t == LT_MIX_O;
}

/* Of gate and up: one for each expert, and all of them 1. */
static int check_expert_factors(struct finder *f, const struct gguf_tensor *t, const char *name)
{
    if (t->type != DTYPE_F32 || t->dims[0] != (uint64_t)f->m->h.n_expert || t->dims[1] != 1) {
        return error_set(f->reterr, -EBADMSG, "tensor %s must be %d F32", name, f->m->h.n_expert);
    }
    for (int32_t e = 0; e < f->m->h.n_expert; e++) {
        float scale;

        memcpy(&scale, (const uint8_t *)t->data + (size_t)e * sizeof(scale), sizeof(scale));
        if (scale != 1.0f) {
            return error_set(f->reterr, -ENOTSUP,
                             "tensor %s: the factor of expert %d is %g, and others than 1 are not "
                             "offered",
                             name, e, (double)scale);
        }
    }
    return 0;
}

int tensors_scale(struct finder *f, int32_t il, int t)
{
    struct tensor_part part = tensors_part(f, &arch_layer_tensors[t], il);
    const char *stem = part.name ? part.name : arch_tensor_name(f->m->arch, &arch_layer_tensors[t]);
    const struct gguf_tensor *found = NULL;
    bool ffn = t >= LT_FFN_NORM && t <= LT_POST_FFN_NORM;
    char name[64];
    float scale;
    int r;

    if (!stem || (t == LT_ROUTER && f->m->arch->experts_beside)) { /* its ".scale" is a norm's */
        return 0;
    }
    r = find_factor(f, il, stem, ".input_scale", &found, name, sizeof(name));
    r = r ? r : find_factor(f, il, stem, ".scale", &found, name, sizeof(name));
    if (r || !found || (ffn && !f->m->arch->ffn_scales)) {
        return r;
    }
    if (t == LT_EXPERTS_DOWN) { /* LT_EXPERTS_FACTOR */
        return 0;
    }
    if (arch_layer_tensors[t].stack) {
        return check_expert_factors(f, found, name);
    }
    if (found->type != DTYPE_F32 || found->dims[0] != 1 || found->dims[1] != 1) {
        return error_set(f->reterr, -EBADMSG, "tensor %s must be one F32", name);
    }
    memcpy(&scale, found->data, sizeof(scale));
    if (!isfinite(scale) || scale == 0.0f) {
        return error_set(f->reterr, -EBADMSG, "tensor %s is %g, but must be a number other than 0",
                         name, (double)scale);
    }
    if (scale != 1.0f && !takes_factor(t)) {
        return error_set(f->reterr, -ENOTSUP,
                         "tensor %s is %g: products of this kind have no factor", name,
                         (double)scale);
    }
    f->m->layers[il].scale[t] = scale;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Factors by which a model's RoPE frequencies are divided: Llama 3's one set (rope_freqs), or
 * LongRoPE's two, of which the context's length chooses one. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/tensors.h"

static int take(const struct gguf_tensor *t, const char *name, int32_t n, float *ret,
                struct error *reterr)
{
    if (t->type != DTYPE_F32 || t->dims[0] != (uint64_t)n || t->dims[1] != 1 || t->dims[2] != 1) {
        return error_set(reterr, -EBADMSG, "tensor %s must be F32 (%d)", name, n);
    }
    memcpy(ret, t->data, (size_t)n * sizeof(*ret));
    for (int32_t i = 0; i < n; i++) {
        if (ret[i] == 0.0f || !isfinite(ret[i])) {
            return error_set(reterr, -EBADMSG, "tensor %s: value %d is 0 or no number", name, i);
        }
    }
    return 0;
}

int tensors_rope_factors(const struct gguf *g, const struct hparams *h, int32_t n_rot, bool is_long,
                         float *factors, struct error *reterr)
{
    static const char *const names[] = {"rope_factors_short.weight", "rope_factors_long.weight"};
    const char *one = arch_model_tensors[MT_ROPE_FREQS].name;
    const struct gguf_tensor *t = gguf_tensor_find(g, one);
    const struct gguf_tensor *both[] = {gguf_tensor_find(g, names[0]),
                                        gguf_tensor_find(g, names[1])};
    int r;

    if (t && h->rope_scaling != ROPE_SCALING_LONG) {
        r = take(t, one, n_rot / 2, factors, reterr);
        return r ? r : ROPE_FACTORS_ONE;
    }
    if (!both[0] && !both[1] && h->rope_scaling != ROPE_SCALING_LONG) {
        return ROPE_FACTORS_NONE;
    }
    for (int i = 0; i < 2; i++) {
        if (!both[i]) {
            return error_set(reterr, -EBADMSG,
                             "tensor %s is missing, which LongRoPE needs beside %s", names[i],
                             names[1 - i]);
        }
        r = take(both[i], names[i], n_rot / 2, factors, reterr);
        if (r) {
            return r;
        }
    }
    r = take(both[is_long], names[is_long], n_rot / 2, factors, reterr);
    return r ? r : is_long ? ROPE_FACTORS_LONG : ROPE_FACTORS_SHORT;
}

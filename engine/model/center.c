/* SPDX-License-Identifier: Apache-2.0 */
/* A pair of dims (a, b) turned by p * f for p = 0 .. n - 1 has the mean (C a - S b, S a + C b), C
 * and S the means of cosine and sine. Pairs that turn often within the text come out near 0, the
 * slow ones near the bias itself; these are the ones that are large in Qwen2.5. Sums in double, in
 * written order: the same bits on every machine. */

#include "engine/model/center.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "engine/model/tensors.h"

enum { POSITIONS = 1024 };

static int32_t bias_of(const struct model *m, int32_t store)
{
    return m->stores[store].deep ? LT_SWIFT_K_B : LT_K_B;
}

static size_t stride(const struct model *m)
{
    return (size_t)m->h.most.n_q * (size_t)m->h.most.k_dim;
}

uint64_t center_bytes(const struct model *m)
{
    return m->centers ? (uint64_t)m->n_stores * stride(m) * sizeof(*m->centers) : 0;
}

int center_derive(struct model *m, int32_t store, struct model_weight *ret)
{
    struct ops_weight *w = m->layers[m->stores[store].layer].w;
    int32_t n = m->stores[store].n_k * m->stores[store].k_dim;

    if (!w[bias_of(m, store)].n_cols || w[LT_K_NORM].n_cols || w[LT_K_NORM_WIDE].n_cols ||
        m->h.attn_softcap > 0 || model_has_sinks(m)) {
        return 0;
    }
    if (!m->centers) {
        m->centers = calloc((size_t)m->n_stores * stride(m), sizeof(*m->centers));
        if (!m->centers) {
            return -ENOMEM;
        }
    }
    *ret = (struct model_weight){
        .desc = {.type = DTYPE_F32,
                 .role = OPS_ROLE_VECTOR,
                 .n_rows = 1,
                 .n_cols = n,
                 .data = m->centers + (size_t)store * stride(m)},
        .dst = &w[LT_CENTER],
        .file_bytes = (uint64_t)n * sizeof(float),
    };
    w[LT_CENTER].n_cols = n;
    w[LT_CENTER].n_rows = 1;
    return 1;
}

void center_turn(const struct ops_rope *rope, int32_t n, const float *x, int32_t dims, float *ret)
{
    int32_t half = rope->form == OPS_ROPE_NONE ? 0 : rope->n_dims / 2;

    for (int32_t d = 0; d < dims; d++) {
        ret[d] = x[d];
    }
    for (int32_t i = 0; i < half; i++) {
        int32_t a = rope->form == OPS_ROPE_NORM ? 2 * i : i;
        int32_t b = rope->form == OPS_ROPE_NORM ? 2 * i + 1 : i + half;
        double c = 0;
        double s = 0;

        for (int32_t p = 0; p < n; p++) {
            c += cos((double)p * (double)rope->inv_freq[i]);
            s += sin((double)p * (double)rope->inv_freq[i]);
        }
        c *= (double)rope->mscale / n;
        s *= (double)rope->mscale / n;
        ret[a] = (float)(c * (double)x[a] - s * (double)x[b]);
        ret[b] = (float)(s * (double)x[a] + c * (double)x[b]);
    }
}

static void fill_one(struct model *m, int32_t store, const float *bias)
{
    int32_t layer = m->stores[store].layer;
    int32_t d = m->stores[store].k_dim;

    for (int32_t h = 0; h < m->stores[store].n_k; h++) {
        center_turn(model_rope(m, layer), POSITIONS, bias + h * d, d,
                    m->centers + (size_t)store * stride(m) + h * d);
    }
}

/* f32 of a vector among the weights that are to be loaded; NULL: no memory. */
static float *values_of(const struct model_weight *w)
{
    float *x = calloc((size_t)w->desc.n_cols, sizeof(*x));

    if (x) {
        dtype_decode(w->desc.type, w->desc.data, x, (uint64_t)w->desc.n_cols);
    }
    return x;
}

int center_fill(struct model *m, struct error *reterr)
{
    int r = 0;

    for (int32_t s = 0; !r && s < m->n_stores; s++) {
        struct ops_weight *w = m->layers[m->stores[s].layer].w;
        const struct model_weight *center = tensors_listed(m, &w[LT_CENTER]);
        bool derived =
            center && m->centers && center->desc.data == m->centers + (size_t)s * stride(m);
        float *x =
            !center ? NULL : values_of(derived ? tensors_listed(m, &w[bias_of(m, s)]) : center);

        if (center && !x) {
            r = error_set(reterr, -ENOMEM, "model: no memory");
        }
        for (int32_t i = 0; x && !r && i < center->desc.n_cols; i++) {
            if (!isfinite(x[i])) {
                r = error_set(reterr, -EBADMSG, "tensor %s: value %d is not finite", center->name,
                              i);
            }
        }
        if (derived && !r) {
            fill_one(m, s, x);
        }
        free(x);
    }
    return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of every head against each other, in double. f16 files are off by 1e-3. */

#include "engine/model/skew.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "engine/model/tensors.h"

#define TOLERANCE 1e-2

static bool is_orthonormal(const float *a, int32_t d)
{
    for (int32_t i = 0; i < d; i++) {
        for (int32_t j = 0; j <= i; j++) {
            double dot = 0;

            for (int32_t k = 0; k < d; k++) {
                dot += (double)a[i * d + k] * (double)a[j * d + k];
            }
            if (!(fabs(dot - (i == j)) <= TOLERANCE)) {
                return false;
            }
        }
    }
    return true;
}

/* The dims of a head of the store that it belongs to; 0: it is none. */
static int32_t skew_dim(const struct model *m, const struct ops_weight *w)
{
    for (int32_t i = 0; i < m->n_stores; i++) {
        const struct ops_weight *of = m->layers[m->stores[i].layer].w;

        if (w == &of[LT_SKEW] || w == &of[LT_COLUMNS]) {
            return m->stores[i].k_dim;
        }
    }
    return 0;
}

int skew_check(const struct model *m, struct error *reterr)
{
    size_t most = (size_t)m->h.most.k_dim;
    float *a = NULL;
    int r = 0;

    for (int32_t i = 0; !r && i < m->n_list; i++) {
        const struct model_weight *w = &m->list[i];
        const uint8_t *data = w->desc.data;
        size_t d = (size_t)skew_dim(m, w->dst);
        uint64_t head_bytes;

        if (d == 0) {
            continue;
        }
        a = a ? a : malloc(most * most * sizeof(*a));
        if (!a || !dtype_row_bytes(w->desc.type, d * d, &head_bytes)) {
            r = error_set(reterr, -ENOMEM, "tensor %s: no memory", w->name);
            break;
        }
        for (int32_t h = 0; !r && h < w->desc.n_cols / (int32_t)(d * d); h++) {
            dtype_decode(w->desc.type, data + (size_t)h * head_bytes, a, d * d);
            if (!is_orthonormal(a, (int32_t)d)) {
                r = error_set(reterr, -EBADMSG,
                              "tensor %s: the rows of head %d are not orthonormal", w->name, h);
            }
        }
    }
    free(a);
    return r;
}

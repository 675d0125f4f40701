/* SPDX-License-Identifier: Apache-2.0 */
/* Let C be the mean of q q^T, with a little of its trace on the diagonal. When dim i is off by e,
 * (k - stored)^T C (k - stored) is least if each dim j before it is off by -e b[j], b the
 * coefficients of the regression of dim i on the dims before it under C. C = L D L^T has them all:
 * row i of the inverse of L (unit, lower) is -b. Sums in double, in written order: the same bits on
 * every machine.
 *
 * A rotated key is H (balance k), and its query H (q / balance): C turns alike. */

#include "engine/model/carry.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/balance.h"
#include "engine/model/tensors.h"
#include "kernels/hadamard.h"
#include "kernels/kv_round.h"

/* Of C's mean on its diagonal, so much more: the text that was read is not all there is. */
#define DAMPING 0.003

struct model_carry {
    const void *data; /* the file's; NULL: the store has none */
    enum dtype type;
};

static size_t head_values(const struct model *m, int32_t store)
{
    return (size_t)m->stores[store].k_dim * (size_t)m->stores[store].k_dim;
}

/* One weight's values: made as it is loaded, so one buffer serves all. */
static size_t buffer_values(const struct model *m)
{
    size_t most = 0;

    for (int32_t i = 0; i < m->n_stores; i++) {
        size_t n = (size_t)m->stores[i].n_k * head_values(m, i);

        most = n > most ? n : most;
    }
    return most;
}

uint64_t carry_bytes(const struct model *m)
{
    return m->carries ? (uint64_t)m->n_stores * sizeof(*m->carries) +
                            (uint64_t)buffer_values(m) * sizeof(float)
                      : 0;
}

void carry_finish(struct model *m)
{
    free(m->carries);
    free(m->carry_values);
}

int carry_check(const struct model *m, int32_t store, const struct model_weight *file,
                struct error *reterr)
{
    const struct model_store *st = &m->stores[store];
    size_t n = (size_t)st->n_k * head_values(m, store);

    if ((size_t)file->desc.n_cols != n || st->k_dim > KV_ROUND_MOST) {
        return error_set(reterr, -EBADMSG,
                         "tensor %s must hold %d K heads of %d rows, of at most %d dims",
                         file->name, st->n_k, st->k_dim, KV_ROUND_MOST);
    }
    return 0;
}

int carry_derive(struct model *m, int32_t store, struct model_weight *file, struct error *reterr)
{
    size_t n = (size_t)m->stores[store].n_k * head_values(m, store);

    m->carries = m->carries ? m->carries : calloc((size_t)m->n_stores, sizeof(*m->carries));
    m->carry_values =
        m->carry_values ? m->carry_values : calloc(buffer_values(m), sizeof(*m->carry_values));
    if (!m->carries || !m->carry_values) {
        return error_set(reterr, -ENOMEM, "model: no memory for tensor %s", file->name);
    }
    m->carries[store] = (struct model_carry){.data = file->desc.data, .type = file->desc.type};
    file->desc.type = DTYPE_F32;
    file->desc.data = m->carry_values;
    file->file_bytes = (uint64_t)n * sizeof(float);
    return 0;
}

void carry_turned(struct model *m, int32_t store, const struct model_weight *plain,
                  struct model_weight *ret)
{
    *ret = *plain;
    ret->dst = &m->layers[m->stores[store].layer].w[LT_CARRY_TURNED];
    ret->dst->n_cols = plain->desc.n_cols;
    ret->dst->n_rows = plain->desc.n_rows;
}

bool carry_is(const struct model *m, const struct model_weight *w)
{
    return m->carries && w->desc.data == m->carry_values;
}

/* C as a query of turned keys has it: rows, then columns. */
static void turn(float *c, const float *balance, int32_t d)
{
    for (int32_t side = 0; side < 2; side++) {
        for (int32_t i = 0; i < d; i++) {
            for (int32_t j = 0; j < d && balance; j++) {
                c[i * d + j] /= balance[j];
            }
            hadamard_head(c + (size_t)i * (size_t)d, d);
        }
        for (int32_t i = 0; i < d; i++) {
            for (int32_t j = 0; j < i; j++) {
                float x = c[i * d + j];

                c[i * d + j] = c[j * d + i];
                c[j * d + i] = x;
            }
        }
    }
}

/* L of C = L D L^T in l, below the diagonal; false: C is no mean of q q^T. */
static bool factor(const float *c, double *l, double *diagonal, int32_t d)
{
    double trace = 0;

    for (int32_t i = 0; i < d; i++) {
        trace += (double)c[i * d + i];
    }
    if (!(trace >= 0) || !isfinite(trace)) {
        return false;
    }
    for (int32_t i = 0; i < d; i++) {
        for (int32_t j = 0; j <= i; j++) {
            double sum = ((double)c[i * d + j] + (double)c[j * d + i]) / 2;

            for (int32_t k = 0; k < j; k++) {
                sum -= l[i * d + k] * l[j * d + k] * diagonal[k];
            }
            if (j < i) {
                l[i * d + j] = sum / diagonal[j];
            } else {
                diagonal[i] = sum + DAMPING * trace / d + 1e-30;
            }
        }
        if (!(diagonal[i] > 0) || !isfinite(diagonal[i])) {
            return false;
        }
    }
    return true;
}

/* ret: minus the inverse of L, which row by row needs the rows before. */
static void invert(const double *l, double *inverse, float *ret, int32_t d)
{
    for (int32_t i = 0; i < d; i++) {
        for (int32_t j = 0; j < d; j++) {
            double sum = i == j;

            for (int32_t k = j; k < i; k++) {
                sum -= l[i * d + k] * inverse[k * d + j];
            }
            inverse[i * d + j] = j <= i ? sum : 0;
            ret[i * d + j] = j < i ? (float)-inverse[i * d + j] : 0.0f;
        }
    }
}

static int32_t store_of(const struct model *m, const struct model_weight *w, bool *ret_turned)
{
    for (int32_t s = 0; s < m->n_stores; s++) {
        const struct ops_weight *of = m->layers[m->stores[s].layer].w;

        if (w->dst == &of[LT_CARRY] || w->dst == &of[LT_CARRY_TURNED]) {
            *ret_turned = w->dst == &of[LT_CARRY_TURNED];
            return s;
        }
    }
    return -1;
}

int carry_fill(struct model *m, const struct model_weight *w, struct error *reterr)
{
    bool turned = false;
    int32_t store = store_of(m, w, &turned);
    const struct model_carry *from = &m->carries[store];
    const float *balance = turned ? balance_of(m, store) : NULL;
    int32_t d = m->stores[store].k_dim;
    size_t n = head_values(m, store);
    double *l = calloc(2 * n + (size_t)d, sizeof(*l));
    int r = l ? 0 : error_set(reterr, -ENOMEM, "tensor %s: no memory", w->name);

    if (!r) {
        dtype_decode(from->type, from->data, m->carry_values, (uint64_t)w->desc.n_cols);
    }
    for (int32_t h = 0; !r && h < m->stores[store].n_k; h++) {
        float *c = m->carry_values + (size_t)h * n;

        if (turned) {
            turn(c, balance ? balance + (size_t)h * (size_t)d : NULL, d);
        }
        if (!factor(c, l, l + 2 * n, d)) {
            r = error_set(reterr, -EBADMSG, "tensor %s: head %d is no mean of q q^T", w->name, h);
            break;
        }
        invert(l, l + n, c, d);
    }
    free(l);
    return r;
}

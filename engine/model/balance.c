/* SPDX-License-Identifier: Apache-2.0 */
/* A rotated key is off by about the same in every dim, by a share of its length. Turned back, that
 * is the same error in dims which queries weigh lightly and in those they weigh heavily. With dim d
 * of K times b[d] and of q divided by it, a logit's error has the square (sum of b^2 K^2) (sum of
 * q^2 / b^2), which is least at b^2 = |q| / |K|.
 *
 * How large a dim of q or K is, the model file says: the squares of its row in the projection, each
 * times that of the norm's weight before it, and of its bias, summed; then the weights of a norm
 * behind it. Of a long row SAMPLES evenly spaced blocks count. RoPE mixes the dims of a pair, so a
 * pair has one factor. Sums in double, in written order, and square roots: the same bits on every
 * machine. */

#include "engine/model/balance.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "engine/model/tensors.h"

enum { BLOCK = 256, SAMPLES = 4 };

/* Of the widest store. */
static size_t stride(const struct model *m)
{
    size_t most = 0;

    for (int32_t i = 0; i < m->n_stores; i++) {
        size_t n = (size_t)m->stores[i].n_k * (size_t)m->stores[i].k_dim;

        most = n > most ? n : most;
    }
    return most;
}

uint64_t balance_bytes(const struct model *m)
{
    return m->balances ? (uint64_t)m->n_stores * stride(m) * sizeof(*m->balances) : 0;
}

int balance_derive(struct model *m, int32_t store, struct model_weight *ret)
{
    const struct model_store *st = &m->stores[store];
    struct ops_weight *w = m->layers[st->layer].w;
    const struct layer_sizes *z = &m->h.layer[st->layer];
    const struct ops_weight *q = &w[st->deep ? LT_SWIFT_Q : LT_Q];
    const struct ops_weight *k = &w[st->deep ? LT_SWIFT_K : LT_K];
    int32_t n = st->n_k * st->k_dim;

    if ((st->deep && m->h.wide) || q->n_rows != z->n_q * st->k_dim * (m->h.q_gated ? 2 : 1) ||
        k->n_rows != n || w[LT_Q_GATE].n_cols || z->n_q % st->n_k != 0 || st->k_dim % 2 != 0) {
        return 0;
    }
    if (!m->balances) {
        m->balances = calloc((size_t)m->n_stores * stride(m), sizeof(*m->balances));
        if (!m->balances) {
            return -ENOMEM;
        }
    }
    *ret = (struct model_weight){
        .desc = {.type = DTYPE_F32,
                 .role = OPS_ROLE_VECTOR,
                 .n_rows = 1,
                 .n_cols = n,
                 .data = m->balances + (size_t)store * stride(m)},
        .dst = &w[LT_BALANCE],
        .file_bytes = (uint64_t)n * sizeof(float),
    };
    for (int32_t i = 0; i < n; i++) { /* nothing changes until balance_fill(), if ever */
        m->balances[(size_t)store * stride(m) + (size_t)i] = 1.0f;
    }
    w[LT_BALANCE].n_cols = n;
    w[LT_BALANCE].n_rows = 1;
    return 1;
}

/* Values [first, first + n) of a row. */
static void decode(const struct model_weight *w, int32_t row, int32_t first, int32_t n, float *ret)
{
    const struct dtype_info *info = dtype_info(w->desc.type);
    const uint8_t *data = w->desc.data;
    uint64_t blocks = (uint64_t)row * (uint64_t)(w->desc.n_cols / info->block_len) +
                      (uint64_t)(first / info->block_len);

    dtype_decode(w->desc.type, data + blocks * (uint64_t)info->block_bytes, ret, (uint64_t)n);
}

/* What makes q or K: any may be NULL but the projection. */
struct made {
    const struct model_weight *before; /* the norm's weights */
    const struct model_weight *w;
    const struct model_weight *bias;
    const struct model_weight *norm;
    float scale;  /* of the projection; 0: 1 */
    int32_t head; /* dims */
};

static double square_of(const struct model_weight *vector, int32_t at)
{
    float x;

    decode(vector, 0, at, 1, &x);
    return (double)x * (double)x;
}

/* ret[row]: the mean square of what comes out there. */
static void squares(const struct made *p, double *ret)
{
    int32_t n_rows = p->w->desc.n_rows;
    int32_t n_cols = p->w->desc.n_cols;
    int32_t step = n_cols > SAMPLES * BLOCK ? n_cols / SAMPLES / BLOCK * BLOCK : BLOCK;
    double scale = p->scale == 0.0f ? 1 : (double)p->scale;
    float w[BLOCK];
    float g[BLOCK];

    for (int32_t row = 0; row < n_rows; row++) {
        double sum = 0;
        int32_t seen = 0;

        for (int32_t at = 0; at < n_cols; at += step) {
            int32_t n = n_cols - at < BLOCK ? n_cols - at : BLOCK;

            decode(p->w, row, at, n, w);
            if (p->before) {
                decode(p->before, 0, at, n, g);
            }
            for (int32_t i = 0; i < n; i++) {
                double x = (double)w[i] * (p->before ? (double)g[i] : 1);

                sum += x * x;
            }
            seen += n;
        }
        ret[row] = sum / seen * n_cols * scale * scale;
        if (p->bias) {
            ret[row] += square_of(p->bias, row);
        }
    }
    if (p->norm) {                        /* of a head or of all of them */
        int32_t n = p->norm->desc.n_cols; /* a head's or all heads' */

        for (int32_t at = 0; at + n <= n_rows; at += n) {
            double mean = 0;

            for (int32_t i = 0; i < n; i++) {
                mean += ret[at + i] / n;
            }
            for (int32_t i = 0; i < n && mean > 0; i++) {
                ret[at + i] *= square_of(p->norm, i) / mean;
            }
        }
    }
}

static void pair_up(const struct ops_rope *rope, double *x)
{
    int32_t half = rope->form == OPS_ROPE_NONE ? 0 : rope->n_dims / 2;

    for (int32_t i = 0; i < half; i++) {
        int32_t a = rope->form == OPS_ROPE_NORM ? 2 * i : i;
        int32_t b = rope->form == OPS_ROPE_NORM ? 2 * i + 1 : i + half;

        x[a] = (x[a] + x[b]) / 2;
        x[b] = x[a];
    }
}

/* Of heads that are each followed by a gate, the heads alone. */
static void drop_gates(double *x, int32_t n_heads, int32_t d)
{
    for (int32_t i = d; i < n_heads * d; i++) {
        x[i] = x[i / d * 2 * d + i % d];
    }
}

static int fill_one(struct model *m, int32_t store)
{
    const struct model_store *st = &m->stores[store];
    const struct model_layer *l = &m->layers[st->layer];
    const struct ops_weight *w = l->w;
    int32_t share = m->h.layer[st->layer].n_q / st->n_k;
    int32_t d = st->k_dim;
    float *ret = m->balances + (size_t)store * stride(m);
    int tq = st->deep ? LT_SWIFT_Q : LT_Q;
    int tk = st->deep ? LT_SWIFT_K : LT_K;
    struct made q = {
        .before = tensors_listed(m, &w[LT_ATTN_NORM]),
        .w = tensors_listed(m, &w[tq]),
        .bias = tensors_listed(m, &w[st->deep ? LT_SWIFT_Q_B : LT_Q_B]),
        .norm = tensors_listed(m, &w[w[LT_Q_NORM].n_cols ? LT_Q_NORM : LT_Q_NORM_WIDE]),
        .scale = l->scale[tq],
    };
    struct made k = {
        .before = st->deep ? tensors_listed(m, &m->w[MT_SWIFT_NORM]) : q.before,
        .w = tensors_listed(m, &w[tk]),
        .bias = tensors_listed(m, &w[st->deep ? LT_SWIFT_K_B : LT_K_B]),
        .norm = tensors_listed(m, &w[w[LT_K_NORM].n_cols ? LT_K_NORM : LT_K_NORM_WIDE]),
        .scale = l->scale[tk],
    };
    const struct model_weight *center = tensors_listed(m, &w[LT_CENTER]);
    int32_t n_rows = share * (m->h.q_gated ? 2 : 1) + 1;
    double *q2 = calloc((size_t)n_rows * (size_t)(st->n_k * d), sizeof(*q2));

    if (!q2) {
        return -ENOMEM;
    }
    double *k2 = q2 + (size_t)(n_rows - 1) * (size_t)(st->n_k * d);

    squares(&q, q2);
    if (m->h.q_gated) {
        drop_gates(q2, share * st->n_k, d);
    }
    squares(&k, k2);
    for (int32_t i = 0; center && i < st->n_k * d; i++) {
        k2[i] -= square_of(center, i);
    }
    for (int32_t h = 0; h < st->n_k; h++) {
        double *of_q = q2 + (size_t)(h * share) * (size_t)d;
        double *of_k = k2 + (size_t)h * (size_t)d;

        for (int32_t i = d; i < share * d; i++) {
            of_q[i % d] += of_q[i];
        }
        pair_up(model_rope(m, st->layer), of_q);
        pair_up(model_rope(m, st->layer), of_k);
        for (int32_t i = 0; i < d; i++) {
            double b = of_k[i] > 0 ? sqrt(sqrt(of_q[i] / share / of_k[i])) : 1;

            ret[h * d + i] = isfinite(b) && b > 0x1p-10 && b < 0x1p10 ? (float)b : 1.0f;
        }
    }
    free(q2);
    return 0;
}

const float *balance_of(const struct model *m, int32_t store)
{
    return m->layers[m->stores[store].layer].w[LT_BALANCE].n_cols
               ? m->balances + (size_t)store * stride(m)
               : NULL;
}

int balance_fill(struct model *m, struct error *reterr)
{
    int r = 0;

    for (int32_t s = 0; !r && s < m->n_stores && m->rotates; s++) {
        if (m->layers[m->stores[s].layer].w[LT_BALANCE].n_cols) {
            r = fill_one(m, s);
        }
    }
    return r ? error_set(reterr, r, "model: no memory") : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/expect.h"

#include <math.h>
#include <string.h>

#include "kernels/hadamard.h"

void expect_add(float *stats, float *q, int32_t n_rows, int32_t k_dim, float n, bool with_cov)
{
    const int32_t padded = expect_padded(k_dim);
    float *first = stats;
    float *sum = first + padded;
    float *products = sum + padded;

    if (n == 0) { /* it is zero less itself */
        memcpy(first, q, (size_t)padded * sizeof(*first));
        memset(sum, 0, (size_t)(padded + expect_triangle(k_dim)) * sizeof(*sum));
    }
    for (int32_t r = 0; r < n_rows; r++) {
        for (int32_t i = 0; i < k_dim; i++) {
            q[r * padded + i] -= first[i];
            sum[i] += q[r * padded + i];
        }
    }
    for (int32_t i = 0; with_cov && i < k_dim; i++) {
        for (int32_t at = 0; at <= i; at += EXPECT_LANES) {
            float *row = products + expect_row(i) + at;
            float x[EXPECT_LANES];

            memcpy(x, row, sizeof(x));
            for (int32_t r = 0; r < n_rows; r++) {
                const float d = q[r * padded + i];
                const float *other = q + r * padded + at;

                for (int32_t j = 0; j < EXPECT_LANES; j++) {
                    x[j] += d * other[j];
                }
            }
            memcpy(row, x, sizeof(x));
        }
    }
}

/* The dims of pair i. */
static void pair_of(const struct ops_rope *rope, int32_t i, int32_t *ret_a, int32_t *ret_b)
{
    *ret_a = rope->form == OPS_ROPE_NORM ? 2 * i : i;
    *ret_b = rope->form == OPS_ROPE_NORM ? 2 * i + 1 : i + rope->n_dims / 2;
}

static int32_t n_pairs(const struct ops_rope *rope)
{
    return rope->form == OPS_ROPE_NONE ? 0 : rope->n_dims / 2;
}

void expect_turn_to(const struct ops_rope *rope, int32_t pos, struct expect_turns *t)
{
    if (t->pos < 0) {
        for (int32_t i = 0; i < n_pairs(rope); i++) {
            t->step_c[i] = cos((double)rope->inv_freq[i]);
            t->step_s[i] = sin((double)rope->inv_freq[i]);
        }
    }
    if (t->pos < 0 || pos < t->pos || pos / EXPECT_ANEW != t->pos / EXPECT_ANEW) {
        t->pos = pos / EXPECT_ANEW * EXPECT_ANEW;
        for (int32_t i = 0; i < n_pairs(rope); i++) {
            t->c[i] = cos((double)t->pos * (double)rope->inv_freq[i]);
            t->s[i] = sin((double)t->pos * (double)rope->inv_freq[i]);
        }
    }
    for (; t->pos < pos; t->pos++) {
        for (int32_t i = 0; i < n_pairs(rope); i++) {
            const double c = t->c[i];

            t->c[i] = c * t->step_c[i] - t->s[i] * t->step_s[i];
            t->s[i] = c * t->step_s[i] + t->s[i] * t->step_c[i];
        }
    }
}

void expect_unrotate(const struct ops_rope *rope, const struct expect_turns *t, float *x)
{
    for (int32_t i = 0; i < n_pairs(rope); i++) {
        const float c = (float)t->c[i];
        const float s = (float)t->s[i];
        int32_t a;
        int32_t b;

        pair_of(rope, i, &a, &b);
        const float x0 = x[a];
        const float x1 = x[b];

        x[a] = x0 * c + x1 * s;
        x[b] = x1 * c - x0 * s;
    }
}

static void turn(float *a, float *b, float c, float s)
{
    const float x0 = *a;
    const float x1 = *b;

    *a = x0 * c - x1 * s;
    *b = x0 * s + x1 * c;
}

/* The square becomes R square R^T, the vector R vector. */
static void turn_all(const struct ops_rope *rope, int32_t k_dim, int32_t pos, int32_t ahead,
                     float *mean, float *square)
{
    for (int32_t i = 0; i < n_pairs(rope); i++) {
        float c;
        float s;
        int32_t a;
        int32_t b;

        pair_of(rope, i, &a, &b);
        expect_mean_turn((double)rope->inv_freq[i], pos, ahead, &c, &s);
        turn(&mean[a], &mean[b], c, s);
        for (int32_t j = 0; square && j < k_dim; j++) {
            turn(&square[a * k_dim + j], &square[b * k_dim + j], c, s);
        }
        for (int32_t j = 0; square && j < k_dim; j++) {
            turn(&square[j * k_dim + a], &square[j * k_dim + b], c, s);
        }
    }
}

/* Mean and square, times what they will be multiplied by, for keys as they are stored: with k = A y
 * + c the linear part becomes A^T (m + 2 C c) y and the square A^T C A; m.c + c.Cc is all keys'. */
static void map_keys(const struct expect_map *map, int32_t k_dim, float *mean, float *square)
{
    for (int32_t i = 0; map->center && square && i < k_dim; i++) {
        double sum = 0;

        for (int32_t j = 0; j < k_dim; j++) {
            sum += (double)square[i * k_dim + j] * (double)map->center[j];
        }
        mean[i] += (float)(2 * sum);
    }
    for (int32_t i = 0; map->balance && i < k_dim; i++) {
        mean[i] /= map->balance[i];
        for (int32_t j = 0; square && j < k_dim; j++) {
            square[i * k_dim + j] /= map->balance[i] * map->balance[j];
        }
    }
    if (!map->hadamard) {
        return;
    }
    hadamard_head(mean, k_dim);
    for (int pass = 0; square && pass < 2; pass++) {
        for (int32_t i = 0; i < k_dim; i++) {
            hadamard_head(square + (size_t)(i * k_dim), k_dim);
        }
        for (int32_t i = 0; i < k_dim; i++) {
            for (int32_t j = 0; j < i; j++) {
                const float held = square[i * k_dim + j];

                square[i * k_dim + j] = square[j * k_dim + i];
                square[j * k_dim + i] = held;
            }
        }
    }
}

void expect_future(const float *stats, float n, const struct ops_rope *rope, int32_t k_dim,
                   int32_t pos, int32_t ahead, float scale, bool with_cov,
                   const struct expect_map *map, float *square, const struct expect_query *ret)
{
    const int32_t padded = expect_padded(k_dim);
    const float *first = stats;
    const float *sum = first + padded;
    const float *products = sum + padded;

    memset(ret->mean, 0, (size_t)padded * sizeof(*ret->mean));
    for (int32_t i = 0; i < k_dim; i++) {
        ret->mean[i] = (first[i] + sum[i] / n) * scale;
    }
    for (int32_t i = 0; with_cov && i < k_dim; i++) {
        for (int32_t j = 0; j <= i; j++) {
            const float x = products[expect_row(i) + j] / n - sum[i] / n * (sum[j] / n);

            square[i * k_dim + j] = x * (scale * scale * 0.5f);
            square[j * k_dim + i] = square[i * k_dim + j];
        }
    }
    turn_all(rope, k_dim, pos, ahead, ret->mean, with_cov ? square : NULL);
    map_keys(map, k_dim, ret->mean, with_cov ? square : NULL);
    if (!with_cov) {
        return;
    }
    memset(ret->cov, 0, (size_t)expect_triangle(k_dim) * sizeof(*ret->cov));
    for (int32_t i = 0; i < k_dim; i++) {
        for (int32_t j = 0; j <= i; j++) {
            ret->cov[expect_row(i) + j] = square[i * k_dim + j] * (i == j ? 1.0f : 2.0f);
        }
    }
}

void expect_exponents(const struct expect_query *q, const float *keys, int32_t k_dim,
                      float ret[EXPECT_LANES])
{
    memset(ret, 0, EXPECT_LANES * sizeof(*ret));
    for (int32_t i = 0; i < k_dim; i++) {
        const float *row = q->cov ? q->cov + expect_row(i) : NULL;
        const float *k = keys + (size_t)i * EXPECT_LANES;
        float sum[EXPECT_LANES] = {0};

        for (int32_t j = 0; row && j <= i; j++) {
            const float w = row[j];
            const float *other = keys + (size_t)j * EXPECT_LANES;

            for (int32_t t = 0; t < EXPECT_LANES; t++) {
                sum[t] += w * other[t];
            }
        }
        for (int32_t t = 0; t < EXPECT_LANES; t++) {
            ret[t] += (q->mean[i] + sum[t]) * k[t];
        }
    }
}

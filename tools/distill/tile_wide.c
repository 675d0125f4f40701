/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over a wide store, both ways: every query head goes through a map of its own into the
 * store's key_dim and is rotated there by the store's frequencies, and what it reads, value_dim
 * wide, through another back to its 64 columns of the output projection. See tile_layer.h. */

#include "tools/distill/tile_layer.h"

static const float SCALE = 0.125F; /* the model's own: heads of 64 */

int64_t wide_there_scratch(const struct tile_layer *l)
{
    const struct rows at = queried(l);

    return l->heads * l->s * (DIM + l->key_dim + l->value_dim) * 2 + attend_scratch(&at);
}

int64_t wide_back_scratch(const struct tile_layer *l)
{
    const struct rows at = queried(l);

    return l->s * (DIM + l->key_dim + l->heads * l->value_dim) * 2 + attend_back_scratch(&at);
}

void wide_there(const struct tile_layer *l, const uint16_t *x, const uint16_t *k, const uint16_t *v,
                const struct tile_kept *kept, uint16_t *o, uint8_t *scratch)
{
    const int64_t n = l->s;
    const int64_t dim = l->key_dim;
    const int64_t wide = l->value_dim;
    const struct rows at = queried(l);
    uint16_t *spare = (uint16_t *)scratch;
    uint16_t *plain = kept->plain ? kept->plain : spare;
    uint16_t *q = kept->queries ? kept->queries : spare + l->heads * n * DIM;
    uint16_t *read = kept->read ? kept->read : spare + l->heads * n * (DIM + dim);
    uint16_t *work = spare + l->heads * n * (DIM + dim + wide);
    int64_t to[2] = {DIM, 0};

    for (int64_t h = 0; h < l->heads; h++) {
        uint16_t *mine = plain + h * n * DIM;

        product(LEFT, x, n, l->d, l->q + h * DIM * l->d, l->d * 32, DIM, mine, to, 0);
        product(TURN, mine, n, DIM, l->q_map + h * dim * DIM, DIM * 32, dim, q + h * n * dim,
                (void *)l->cosine, (void *)l->sine);
    }
    attend(&at, q, k, v, l->heads, SCALE, (struct given){read, wide, n * wide}, kept->log_sum,
           (uint8_t *)work);
    to[0] = l->heads * DIM;
    for (int64_t h = 0; h < l->heads; h++, to[1] += DIM) {
        product(LEFT, read + h * n * wide, n, wide, l->v_map + h * DIM * wide, wide * 32, DIM, o,
                to, 0);
    }
}

/* Gradients by rotated queries (n, dim) turned back, in place and as a left operand. */
static void unturn_wide(uint16_t *dq, const float *cosine, const float *sine, int64_t n,
                        int64_t dim, uint16_t *left)
{
    const int64_t half = dim / 2;

    for (int64_t r = 0; r < n; r++) {
        uint16_t *row = dq + r * dim;

        for (int64_t i = 0; i < half; i += 16) {
            __m512 a = load16(row + i);
            __m512 b = load16(row + half + i);
            __m512 c = _mm512_loadu_ps(cosine + r * half + i);
            __m512 t = _mm512_loadu_ps(sine + r * half + i);

            store16(row + i, _mm512_fmadd_ps(a, c, _mm512_mul_ps(b, t)));
            store16(row + half + i, _mm512_fmsub_ps(b, c, _mm512_mul_ps(a, t)));
        }
        for (int64_t i = 0; i < dim; i += 32) {
            memcpy(tiled(left, dim, r, i), row + i, 64);
        }
    }
}

void wide_back(const struct tile_layer *l, const uint16_t *g, const uint16_t *k, const uint16_t *v,
               const struct tile_kept *kept, const struct tile_back *back, float *dk, float *dv,
               uint16_t *left, uint8_t *scratch)
{
    const int64_t n = l->s;
    const int64_t dim = l->key_dim;
    const int64_t wide = l->value_dim;
    const struct rows at = queried(l);
    uint16_t *da = (uint16_t *)scratch;
    uint16_t *turned = da + n * DIM;
    uint16_t *dread = turned + n * dim;
    uint16_t *work = dread + l->heads * n * wide;
    int64_t to[2] = {DIM, 0};

    for (int64_t h = 0; h < l->heads; h++) {
        product(LEFT, g, n, l->d, l->o_back + h * DIM * l->d, l->d * 32, DIM, da, to, 0);
        product(PLAIN, da, n, DIM, l->v_map_back + h * DIM * wide, DIM * 32, wide,
                dread + h * n * wide, 0, 0);
        from_left(da, n, DIM, back->da + h * n * DIM);
        from_left(kept->read + h * n * wide, n, wide, back->read + h * n * wide);
        from_left(kept->plain + h * n * DIM, n, DIM, back->plain + h * n * DIM);
    }
    attend_back(&at, kept->queries, k, v, (struct given){kept->read, wide, n * wide}, kept->log_sum,
                dread, l->heads, SCALE, back->dmapped, dk, dv, (uint8_t *)work);
    to[0] = l->heads * DIM;
    for (int64_t h = 0; h < l->heads; h++, to[1] += DIM) {
        unturn_wide(back->dmapped + h * n * dim, l->cosine, l->sine, n, dim, turned);
        product(LEFT, turned, n, dim, l->q_map_back + h * dim * DIM, dim * 32, DIM, left, to, 0);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A layer both ways, whole: norm, projections, RoPE, attention, output, MLP and the residual
 * stream, which is changed in place, sequence by sequence, so that it and what lies between two
 * products stay in the L2 cache. The way there keeps, where asked, what the way back reads: the
 * states before attention and MLP, 1 / rms of both, rotated queries, attention's result, its log
 * sums, gate and up. Gradients are by the residual stream, by the stores (summed over layers) and,
 * as two factors each, by the query and the output projection; all other weights are frozen. See
 * tile.h.
 */

#include "tools/distill/tile_layer.h"

/* Rows that go through an MLP's products together: there, and back, where more is held. */
enum { BLOCK = 256, BLOCK_BACK = 128 };

/* Left operand y = x / rms(x) * w; inv (n), unless null, gets 1 / rms. */
static void rms(const float *x, const float *w, int64_t n, int64_t d, float eps, uint16_t *y,
                float *inv)
{
    for (int64_t r = 0; r < n; r++) {
        const float *row = x + r * d;
        __m512 sum = _mm512_setzero_ps();

        for (int64_t i = 0; i < d; i += 16) {
            __m512 v = _mm512_loadu_ps(row + i);

            sum = _mm512_fmadd_ps(v, v, sum);
        }
        float one = 1 / __builtin_sqrtf(_mm512_reduce_add_ps(sum) / (float)d + eps);
        __m512 f = _mm512_set1_ps(one);

        for (int64_t i = 0; i < d; i += 32) {
            __m512 a =
                _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + i), f), _mm512_loadu_ps(w + i));
            __m512 b = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + i + 16), f),
                                     _mm512_loadu_ps(w + i + 16));

            store32(tiled(y, d, r, i), a, b);
        }
        if (inv) {
            inv[r] = one;
        }
    }
}

/* dx = above + inv * (g - x * inv^2 * mean(g * x)), g = dy * w; all (n, d) f32. */
static void rms_back(const float *x, const float *w, const float *inv, const float *dy,
                     const float *above, int64_t n, int64_t d, float *dx)
{
    for (int64_t r = 0; r < n; r++) {
        __m512 sum = _mm512_setzero_ps();

        for (int64_t i = r * d; i < (r + 1) * d; i += 16) {
            __m512 g = _mm512_mul_ps(_mm512_loadu_ps(dy + i), _mm512_loadu_ps(w + i - r * d));

            sum = _mm512_fmadd_ps(g, _mm512_loadu_ps(x + i), sum);
        }
        __m512 c = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / (float)d * inv[r] * inv[r]);
        __m512 f = _mm512_set1_ps(inv[r]);

        for (int64_t i = r * d; i < (r + 1) * d; i += 16) {
            __m512 g = _mm512_mul_ps(_mm512_loadu_ps(dy + i), _mm512_loadu_ps(w + i - r * d));
            __m512 v = _mm512_fnmadd_ps(_mm512_loadu_ps(x + i), c, g);

            _mm512_storeu_ps(dx + i, _mm512_fmadd_ps(f, v, _mm512_loadu_ps(above + i)));
        }
    }
}

static void to_left(const float *x, int64_t n, int64_t d, uint16_t *y)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t i = 0; i < d; i += 32) {
            store32(tiled(y, d, r, i), _mm512_loadu_ps(x + r * d + i),
                    _mm512_loadu_ps(x + r * d + i + 16));
        }
    }
}

/* out = h + down(silu(gate(x)) * up(x)), x = rms(h). h, out (n, d) f32, out may be h; width: of
 * gate and up. inv (n) f32, gated bf16 (n, 2 * width) are kept for the way back, unless null. */
static void mlp(const float *h, int64_t n, int64_t d, int64_t width, const float *norm, float eps,
                const uint16_t *gate_up, const uint16_t *down, float *out, float *inv,
                uint16_t *gated, uint16_t *scratch)
{
    uint16_t *x = scratch;
    uint16_t *y = x + BLOCK * d;

    for (int64_t r = 0; r < n; r += BLOCK) {
        int64_t rows = n - r < BLOCK ? n - r : BLOCK;

        rms(h + r * d, norm, rows, d, eps, x, inv ? inv + r : 0);
        product(GATE, x, rows, d, gate_up, d * 32, 2 * width, y, gated ? gated + r * 2 * width : 0,
                0);
        product(ADD, y, rows, width, down, width * 32, d, out + r * d, (void *)(h + r * d), 0);
    }
}

static int64_t mlp_scratch(int64_t d, int64_t width)
{
    return BLOCK * (d + width) * 2;
}

/* The gradient by h from that by out; dh may be dout. gate_up_back (2 * width rows: gate's, then
 * up's; d columns) and down_back (d rows, width columns) packed. */
static void mlp_back(const float *dout, const float *h, const float *inv, const uint16_t *gated,
                     int64_t n, int64_t d, int64_t width, const float *norm,
                     const uint16_t *gate_up_back, const uint16_t *down_back, float *dh,
                     uint16_t *scratch)
{
    uint16_t *left = scratch;
    uint16_t *by = left + BLOCK_BACK * d;
    float *dx = (float *)(by + BLOCK_BACK * 2 * width);

    for (int64_t r = 0; r < n; r += BLOCK_BACK) {
        int64_t rows = n - r < BLOCK_BACK ? n - r : BLOCK_BACK;

        to_left(dout + r * d, rows, d, left);
        product(GATE_BACK, left, rows, d, down_back, d * 32, width, by,
                (void *)(gated + r * 2 * width), 0);
        product(F32, by, rows, 2 * width, gate_up_back, width * 64, d, dx, 0, 0);
        rms_back(h + r * d, norm, inv + r, dx, dout + r * d, rows, d, dh + r * d);
    }
}

static int64_t mlp_back_scratch(int64_t d, int64_t width)
{
    return BLOCK_BACK * (d * 6 + width * 4);
}

int64_t tile_mlp_scratch(int64_t d, int64_t width)
{
    int64_t there = mlp_scratch(d, width);
    int64_t back = mlp_back_scratch(d, width);

    return there > back ? there : back;
}

void tile_mlp(const float *h, int64_t n, int64_t d, int64_t width, const float *norm, float eps,
              const uint16_t *gate_up, const uint16_t *down, float *out, float *inv,
              uint16_t *gated, uint16_t *scratch)
{
    tiles_begin();
    mlp(h, n, d, width, norm, eps, gate_up, down, out, inv, gated, scratch);
    _mm_sfence();
    tiles_end();
}

void tile_mlp_back(const float *dout, const float *h, const float *inv, const uint16_t *gated,
                   int64_t n, int64_t d, int64_t width, const float *norm,
                   const uint16_t *gate_up_back, const uint16_t *down_back, float *dh,
                   uint16_t *scratch)
{
    tiles_begin();
    mlp_back(dout, h, inv, gated, n, d, width, norm, gate_up_back, down_back, dh, scratch);
    tiles_end();
}

int64_t tile_layer_scratch(const struct tile_layer *l)
{
    int64_t inner = l->heads * DIM;
    int64_t there = l->s * (l->d * 2 + inner * 4 + l->kv * DIM * 4);
    int64_t back = l->s * (l->d * 2 + inner * 4) + BLOCK_BACK * l->d * 4;
    const struct rows at = queried(l);
    int64_t work = attend_back_scratch(&at);
    int64_t ffn = tile_mlp_scratch(l->d, l->width);

    work = work > attend_scratch(&at) ? work : attend_scratch(&at);
    if (l->q_map) {
        int64_t one = wide_there_scratch(l);
        int64_t other = wide_back_scratch(l);

        work = one > other ? one : other;
    }
    return (there > back ? there : back) + (work > ffn ? work : ffn);
}

/* Sequences [first, end) of h (b, s, d) through the layer, in place. k, v bf16 (b, kv, keys, 64):
 * the store, unless the layer has its own. */
void tile_layer(const struct tile_layer *l, const struct tile_kept *keep, const uint16_t *k,
                const uint16_t *v, int64_t first, int64_t end, float *h, uint8_t *scratch)
{
    const int64_t s = l->s;
    const int64_t d = l->d;
    const int64_t inner = l->heads * DIM;
    const int64_t group = l->heads / l->kv;
    const float scale = 1 / __builtin_sqrtf(DIM);
    const struct rows at = queried(l);
    uint16_t *left = (uint16_t *)scratch;
    uint16_t *q = left + s * d;
    uint16_t *o = q + s * inner;
    uint16_t *own_k = o + s * inner;
    uint16_t *own_v = own_k + s * l->kv * DIM;
    uint16_t *work = own_v + s * l->kv * DIM;
    const int all = keep->mid != 0;

    tiles_begin();
    for (int64_t i = first; i < end; i++) {
        float *x = h + i * s * d;
        const uint16_t *store_k = l->k ? own_k : k + i * l->kv * l->keys * DIM;
        const uint16_t *store_v = l->k ? own_v : v + i * l->kv * l->keys * DIM;

        if (keep->state) {
            stream(keep->state + i * s * d, x, s * d * 4);
        }
        rms(x, l->attn_norm, s, d, (float)l->eps, left, all ? keep->inv_attn + i * s : 0);
        if (l->q_map) {
            const struct tile_kept mine = {
                .queries = all ? keep->queries + i * l->heads * s * l->key_dim : 0,
                .log_sum = all ? keep->log_sum + i * l->heads * s : 0,
                .plain = all ? keep->plain + i * s * inner : 0,
                .read = all ? keep->read + i * l->heads * s * l->value_dim : 0};

            wide_there(l, left, k + i * l->keys * l->key_dim, v + i * l->keys * l->value_dim, &mine,
                       o, (uint8_t *)work);
        } else {
            product(ROPE, left, s, d, l->q, d * 32, inner, q, (void *)l->cosine, (void *)l->sine);
        }
        if (l->k) {
            product(ROPE, left, s, d, l->k, d * 32, l->kv * DIM, own_k, (void *)l->cosine,
                    (void *)l->sine);
            product(HEADS, left, s, d, l->v, d * 32, l->kv * DIM, own_v, 0, 0);
        }
        for (int64_t g = 0; g < l->kv && !l->q_map; g++) {
            float *log_sum = all ? keep->log_sum + (i * l->heads + g * group) * s : 0;

            attend(&at, q + g * group * s * DIM, store_k + g * l->keys * DIM,
                   store_v + g * l->keys * DIM, group, scale,
                   (struct given){o + g * group * 2 * TILE, inner, 2 * TILE}, log_sum,
                   (uint8_t *)work);
        }
        product(ADD, o, s, inner, l->o, inner * 32, d, x, x, 0);
        if (all) {
            if (!l->q_map) {
                stream(keep->queries + i * s * inner, q, s * inner * 2);
            }
            stream(keep->out + i * s * inner, o, s * inner * 2);
            stream(keep->mid + i * s * d, x, s * d * 4);
        }
        mlp(x, s, d, l->width, l->ffn_norm, (float)l->eps, l->gate_up, l->down, x,
            all ? keep->inv_ffn + i * s : 0, all ? keep->gated + i * s * 2 * l->width : 0, work);
    }
    _mm_sfence();
    tiles_end();
}

/* Gradients by rotated heads dq (heads, s, 64), turned back: rows (s, heads * 64) and the same as a
 * left operand. */
static void unturn(const uint16_t *dq, const float *cosine, const float *sine, int64_t heads,
                   int64_t s, uint16_t *rows, uint16_t *left)
{
    for (int64_t r = 0; r < s; r++) {
        for (int64_t h = 0; h < heads; h++) {
            const uint16_t *from = dq + (h * s + r) * DIM;
            __m512 low[2];
            __m512 high[2];

            for (int64_t i = 0; i < 2; i++) {
                __m512 a = load16(from + i * 16);
                __m512 b = load16(from + 32 + i * 16);
                __m512 c = _mm512_loadu_ps(cosine + r * 32 + i * 16);
                __m512 t = _mm512_loadu_ps(sine + r * 32 + i * 16);

                low[i] = _mm512_fmadd_ps(a, c, _mm512_mul_ps(b, t));
                high[i] = _mm512_fmsub_ps(b, c, _mm512_mul_ps(a, t));
            }
            uint16_t *row = rows + (r * heads + h) * DIM;

            store32(row, low[0], low[1]);
            store32(row + 32, high[0], high[1]);
            memcpy(tiled(left, heads * DIM, r, h * DIM), row, 64);
            memcpy(tiled(left, heads * DIM, r, h * DIM + 32), row + 32, 64);
        }
    }
}

/* The way back. dh (b, s, d) f32: the gradient by the layer's output becomes that by its input (not
 * with `last`, where nobody asks for it). dk, dv f32, as the stores, are added to. */
void tile_layer_back(const struct tile_layer *l, const struct tile_kept *kept,
                     const struct tile_back *back, const uint16_t *k, const uint16_t *v,
                     int64_t first, int64_t end, int64_t last, float *dh, float *dk, float *dv,
                     uint8_t *scratch)
{
    const int64_t s = l->s;
    const int64_t d = l->d;
    const int64_t inner = l->heads * DIM;
    const int64_t group = l->heads / l->kv;
    const float scale = 1 / __builtin_sqrtf(DIM);
    const struct rows at = queried(l);
    uint16_t *left = (uint16_t *)scratch;
    uint16_t *dout = left + s * d;
    uint16_t *turned = dout + s * inner;
    float *dx = (float *)(turned + s * inner);
    uint16_t *work = (uint16_t *)(dx + BLOCK_BACK * d);

    tiles_begin();
    for (int64_t i = first; i < end; i++) {
        float *g = dh + i * s * d;
        const float *state = kept->state + i * s * d;
        const float *inv = kept->inv_attn + i * s;
        uint16_t *rows = back->dq + i * s * inner;
        uint16_t *x = back->x + i * s * d;

        mlp_back(g, kept->mid + i * s * d, kept->inv_ffn + i * s,
                 kept->gated + i * s * 2 * l->width, s, d, l->width, l->ffn_norm, l->gate_up_back,
                 l->down_back, g, work);
        to_left(g, s, d, left);
        if (back->dy) {
            from_left(left, s, d, back->dy + i * s * d);
            from_left(kept->out + i * s * inner, s, inner, back->out + i * s * inner);
        }
        if (l->q_map) {
            const int64_t at_key = i * l->heads * s * l->key_dim;
            const int64_t at_value = i * l->heads * s * l->value_dim;
            const struct tile_kept mine = {.queries = kept->queries + at_key,
                                           .log_sum = kept->log_sum + i * l->heads * s,
                                           .plain = kept->plain + i * s * inner,
                                           .read = kept->read + at_value};
            const struct tile_back by = {.dmapped = back->dmapped + at_key,
                                         .plain = back->plain + i * s * inner,
                                         .da = back->da + i * s * inner,
                                         .read = back->read + at_value};

            wide_back(l, left, k + i * l->keys * l->key_dim, v + i * l->keys * l->value_dim, &mine,
                      &by, dk + i * l->keys * l->key_dim, dv + i * l->keys * l->value_dim, dout,
                      (uint8_t *)work);
            from_left(dout, s, inner, rows);
        } else {
            product(HEADS, left, s, d, l->o_back, d * 32, inner, dout, 0, 0);
        }
        for (int64_t j = 0; j < l->kv && !l->q_map; j++) {
            int64_t heads = j * group * s * DIM;
            int64_t store = (i * l->kv + j) * l->keys * DIM;

            attend_back(
                &at, kept->queries + i * s * inner + heads, k + store, v + store,
                (struct given){kept->out + i * s * inner + j * group * 2 * TILE, inner, 2 * TILE},
                kept->log_sum + (i * l->heads + j * group) * s, dout + heads, group, scale,
                turned + heads, dk + store, dv + store, (uint8_t *)work);
        }
        if (!l->q_map) { /* attention is done with dout */
            unturn(turned, l->cosine, l->sine, l->heads, s, rows, dout);
        }
        for (int64_t r = 0; r < s; r++) {
            __m512 f = _mm512_set1_ps(inv[r]);

            for (int64_t c = 0; c < d; c += 32) {
                const float *from = state + r * d + c;
                __m512 a = _mm512_mul_ps(_mm512_loadu_ps(from), f);
                __m512 b = _mm512_mul_ps(_mm512_loadu_ps(from + 16), f);

                store32(x + r * d + c, _mm512_mul_ps(a, _mm512_loadu_ps(l->attn_norm + c)),
                        _mm512_mul_ps(b, _mm512_loadu_ps(l->attn_norm + c + 16)));
            }
        }
        if (!last) {
            for (int64_t r = 0; r < s; r += BLOCK_BACK) {
                int64_t n = s - r < BLOCK_BACK ? s - r : BLOCK_BACK;

                product(F32, dout + r * inner, n, inner, l->q_back, inner * 32, d, dx, 0, 0);
                rms_back(state + r * d, l->attn_norm, inv + r, dx, g + r * d, n, d, g + r * d);
            }
        }
    }
    tiles_end();
}

/* Row by row: weight (n) = 1 / (|t|^2 + 1e-6), and the mean over rows of |s - t|^2 * weight. */
void tile_relative(const float *s, const float *t, int64_t n, int64_t d, float *weight, float *ret)
{
    double total = 0;

    for (int64_t r = 0; r < n; r++) {
        __m512 above = _mm512_setzero_ps();
        __m512 below = _mm512_setzero_ps();

        for (int64_t i = r * d; i < (r + 1) * d; i += 16) {
            __m512 b = _mm512_loadu_ps(t + i);
            __m512 a = _mm512_sub_ps(_mm512_loadu_ps(s + i), b);

            above = _mm512_fmadd_ps(a, a, above);
            below = _mm512_fmadd_ps(b, b, below);
        }
        weight[r] = 1 / (_mm512_reduce_add_ps(below) + 1e-6f);
        total += _mm512_reduce_add_ps(above) * weight[r];
    }
    *ret = (float)(total / (double)n);
}

/* dh += factor * weight * (s - t). */
void tile_relative_back(const float *s, const float *t, const float *weight, float factor,
                        int64_t n, int64_t d, float *dh)
{
    for (int64_t r = 0; r < n; r++) {
        __m512 f = _mm512_set1_ps(factor * weight[r]);

        for (int64_t i = r * d; i < (r + 1) * d; i += 16) {
            __m512 a = _mm512_sub_ps(_mm512_loadu_ps(s + i), _mm512_loadu_ps(t + i));

            _mm512_storeu_ps(dh + i, _mm512_fmadd_ps(a, f, _mm512_loadu_ps(dh + i)));
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of a training step that are no matrix products, for bf16 on a CPU. PyTorch runs them
 * at some 3 ns an element (one thread, AVX-512 machine), as long as the products beside them; here
 * each is one loop that the compiler vectorises, in place where it can be. ops.py compiles this
 * file with the system's C compiler, calls it through ctypes, and holds the same mathematics in
 * PyTorch, which runs where there is no compiler and which tests/tools/test_distill.py compares
 * with.
 *
 * All arrays are dense. bf16 is kept as its bits. Nothing here allocates or keeps state, and rows
 * are independent, so callers may split the rows among threads. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float load(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* To the nearest, ties to even; NaN stays NaN because its payload is in the upper bits here. */
static inline uint16_t store(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* y = x / rms(x) * w; ret_inv holds 1 / rms of each row for the way back. x (n, d) f32, y (n, d)
 * bf16. */
void fused_rms(const float *x, const float *w, int64_t n, int64_t d, float eps, uint16_t *y,
               float *ret_inv)
{
    for (int64_t r = 0; r < n; r++) {
        const float *row = x + r * d;
        float sum = 0;

        for (int64_t i = 0; i < d; i++) {
            sum += row[i] * row[i];
        }
        float inv = 1 / sqrtf(sum / (float)d + eps);
        for (int64_t i = 0; i < d; i++) {
            y[r * d + i] = store(row[i] * inv * w[i]);
        }
        ret_inv[r] = inv;
    }
}

/* dx = inv * (g - x * inv^2 * mean(g * x)), g = dy * w. dy (n, d) bf16, dx (n, d) f32. */
void fused_rms_back(const float *x, const float *w, const float *inv, const uint16_t *dy, int64_t n,
                    int64_t d, float *dx)
{
    for (int64_t r = 0; r < n; r++) {
        const float *row = x + r * d;
        const uint16_t *g = dy + r * d;
        float dot = 0;

        for (int64_t i = 0; i < d; i++) {
            dot += load(g[i]) * w[i] * row[i];
        }
        float c = dot / (float)d * inv[r] * inv[r];
        for (int64_t i = 0; i < d; i++) {
            dx[r * d + i] = inv[r] * (load(g[i]) * w[i] - row[i] * c);
        }
    }
}

/* Heads out of a projection's rows, rotated: src (b, s, h * d) to dst (b, h, s, d). Element i of a
 * head pairs with i + d / 2; cosine, sine (s, d / 2). sign -1 turns back; `gather` copies the other
 * way. */
static void turn(const uint16_t *x, const float *c, const float *s, int64_t half, float sign,
                 uint16_t *y)
{
    for (int64_t i = 0; i < half; i++) {
        float a = load(x[i]);
        float b = load(x[i + half]);
        float t = s[i] * sign;

        y[i] = store(a * c[i] - b * t);
        y[i + half] = store(b * c[i] + a * t);
    }
}

void fused_rope(const uint16_t *src, const float *cosine, const float *sine, int64_t b, int64_t s,
                int64_t h, int64_t d, int32_t back, uint16_t *dst)
{
    for (int64_t i = 0; i < b; i++) {
        for (int64_t p = 0; p < s; p++) {
            for (int64_t k = 0; k < h; k++) {
                int64_t rows = ((i * s + p) * h + k) * d;
                int64_t heads = ((i * h + k) * s + p) * d;

                turn(src + (back ? heads : rows), cosine + p * d / 2, sine + p * d / 2, d / 2,
                     back ? -1.0f : 1.0f, dst + (back ? rows : heads));
            }
        }
    }
}

/* In place: a's row r is that of position r % s and becomes softmax(scale * a) over keys 0..r % s,
 * zero after. a (n, s); scratch (s). */
void fused_softmax(uint16_t *a, int64_t n, int64_t s, float scale, float *scratch)
{
    for (int64_t r = 0; r < n; r++) {
        uint16_t *row = a + r * s;
        int64_t live = r % s + 1;
        float top = -FLT_MAX;
        float sum = 0;

        for (int64_t i = 0; i < live; i++) {
            top = fmaxf(top, load(row[i]));
        }
        for (int64_t i = 0; i < live; i++) {
            float e = expf((load(row[i]) - top) * scale);

            sum += e;
            scratch[i] = e;
        }
        float inv = 1 / sum;
        for (int64_t i = 0; i < live; i++) {
            row[i] = store(scratch[i] * inv);
        }
        memset(row + live, 0, (size_t)(s - live) * sizeof(*row));
    }
}

/* In place: dp becomes the gradient of the logits before `scale`. */
void fused_softmax_back(const uint16_t *p, uint16_t *dp, int64_t n, int64_t s, float scale)
{
    for (int64_t r = 0; r < n; r++) {
        const uint16_t *row = p + r * s;
        uint16_t *grad = dp + r * s;
        int64_t live = r % s + 1;
        float dot = 0;

        for (int64_t i = 0; i < live; i++) {
            dot += load(row[i]) * load(grad[i]);
        }
        for (int64_t i = 0; i < live; i++) {
            grad[i] = store(load(row[i]) * (load(grad[i]) - dot) * scale);
        }
        memset(grad + live, 0, (size_t)(s - live) * sizeof(*grad));
    }
}

/* y = silu(g) * u, and the gradients of g and u. */
void fused_gate(const uint16_t *g, const uint16_t *u, int64_t n, uint16_t *y)
{
    for (int64_t i = 0; i < n; i++) {
        float x = load(g[i]);

        y[i] = store(x / (1 + expf(-x)) * load(u[i]));
    }
}

void fused_gate_back(const uint16_t *g, const uint16_t *u, const uint16_t *dy, int64_t n,
                     uint16_t *dg, uint16_t *du)
{
    for (int64_t i = 0; i < n; i++) {
        float x = load(g[i]);
        float sig = 1 / (1 + expf(-x));
        float grad = load(dy[i]);

        du[i] = store(grad * x * sig);
        dg[i] = store(grad * load(u[i]) * sig * (1 + x * (1 - sig)));
    }
}

/* Row by row: kl = sum p (log p - log q), p = softmax(t / T), q = softmax(s / T), and in place of s
 * its gradient, T * kl's own: q - p (times T^2 / T, left to the caller). s, t (n, v). */
void fused_kl(uint16_t *s, const uint16_t *t, int64_t n, int64_t v, float inv_t, float *ret_kl)
{
    for (int64_t r = 0; r < n; r++) {
        uint16_t *a = s + r * v;
        const uint16_t *b = t + r * v;
        float top_s = -FLT_MAX;
        float top_t = -FLT_MAX;
        float sum_s = 0;
        float sum_t = 0;
        float cross = 0;

        for (int64_t i = 0; i < v; i++) {
            top_s = fmaxf(top_s, load(a[i]));
            top_t = fmaxf(top_t, load(b[i]));
        }
        for (int64_t i = 0; i < v; i++) {
            float x = (load(a[i]) - top_s) * inv_t;
            float y = (load(b[i]) - top_t) * inv_t;
            float e = expf(y);

            sum_s += expf(x);
            sum_t += e;
            cross += e * (y - x);
        }
        float inv_s = 1 / sum_s;
        float inv_p = 1 / sum_t;
        for (int64_t i = 0; i < v; i++) {
            float q = expf((load(a[i]) - top_s) * inv_t) * inv_s;
            float p = expf((load(b[i]) - top_t) * inv_t) * inv_p;

            a[i] = store(q - p);
        }
        ret_kl[r] = cross * inv_p + logf(sum_s) - logf(sum_t);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of a layer and the KL of the head as whole passes on AMX (bf16 in, f32 sums). Products
 * of these shapes are bound by what moves between caches, not by the tile unit, so a block of rows
 * goes through all of a block's products and the work between them while it is in the L2 cache.
 *
 * Operands. Left: rows in tiles, for each 16 rows, for each 32 of k, 16 x 32 values (1 KB). Right:
 * packed once; for each 32 columns, for each 32 of k, two tiles of 16 columns, whose row r is the
 * pairs (2r, 2r + 1) of k. The 32 x 32 sums stay in four tile registers over the whole of k. Rows,
 * k and columns are multiples of 32.
 *
 * Attention is causal, heads of 64, sequences of multiples of 32; only blocks at or below the
 * diagonal are computed. The way back computes the logits again from the row's log sum, instead of
 * keeping the probabilities, and works on transposed blocks (keys by queries), of which every
 * operand of its three products is a plain or a pair-wise store.
 *
 * One thread a call; scratch is the caller's. ops.py compiles and calls it where the processor has
 * AMX; kernels of the same meaning in PyTorch are what tests/tools/test_distill.py compares with.
 */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TILE = 512, DIM = 64 };

struct tile_config {
    uint8_t palette;
    uint8_t start;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* 0, or -1 where the system grants no tile registers. */
int amx_request(void)
{
    return syscall(SYS_arch_prctl, 0x1023, 18) ? -1 : 0;
}

static void configure(void)
{
    struct tile_config c = {.palette = 1};

    for (int i = 0; i < 8; i++) {
        c.rows[i] = 16;
        c.row_bytes[i] = 64;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

static inline __m512 load16(const uint16_t *p)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

static inline void store16(uint16_t *p, __m512 v)
{
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v));
}

/* 2^x: least largest relative error over -0.5 to 0.5 of that degree, 3e-6. */
static inline __m512 exp2_16(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(x, 0);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(9.56051e-3f);

    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.591704e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4024981e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9312197e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.99999919f));
    return _mm512_scalef_ps(p, n);
}

static const float LOG2E = 1.44269504f;

static inline __m512 sigmoid16(__m512 x)
{
    __m512 e = exp2_16(_mm512_mul_ps(x, _mm512_set1_ps(-LOG2E)));

    return _mm512_div_ps(_mm512_set1_ps(1), _mm512_add_ps(e, _mm512_set1_ps(1)));
}

/* Right operand of m columns and k rows from w (m, k), rows `ld` apart: for x w^T. With `plain`
 * from w (k, m): for x w. */
void amx_pack(const uint16_t *w, int64_t ld, int64_t m, int64_t k, int64_t plain, uint16_t *dst)
{
    for (int64_t p = 0; p < m / 32; p++) {
        for (int64_t kk = 0; kk < k / 32; kk++) {
            for (int64_t h = 0; h < 2; h++) {
                for (int64_t r = 0; r < 16; r++) {
                    int64_t row = kk * 32 + 2 * r;
                    int64_t col = p * 32 + h * 16;
                    const uint16_t *s = plain ? w + row * ld + col : w + col * ld + row;
                    int64_t next = plain ? 1 : ld;
                    int64_t pair = plain ? ld : 1;

                    for (int64_t c = 0; c < 16; c++) {
                        *dst++ = s[c * next];
                        *dst++ = s[c * next + pair];
                    }
                }
            }
        }
    }
}

/* Where a left operand with k columns keeps row r, columns from col (a multiple of 16). */
static inline uint16_t *tiled(uint16_t *t, int64_t k, int64_t r, int64_t col)
{
    return t + (r / 16 * (k / 32) + col / 32) * TILE + r % 16 * 32 + col % 32;
}

static inline void store32(uint16_t *p, __m512 low, __m512 high)
{
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* Compilers know of no memory that a tile's load reads: what was stored before must be there. */
static inline void written(void)
{
    __asm__ volatile("" ::: "memory");
}

/* s = the 32 x 32 sums, four tiles of 16 x 16, of left rows (`low`: 16 rows further) and a panel.
 */
static inline void block(const uint16_t *a, const uint16_t *low, int64_t a_step, int64_t a_bytes,
                         const uint16_t *b, int64_t steps, float *s)
{
    written();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < steps; k++) {
        _tile_loadd(4, a + k * a_step, a_bytes);
        _tile_loadd(6, b + k * 2 * TILE, 64);
        _tile_loadd(7, b + k * 2 * TILE + TILE, 64);
        _tile_loadd(5, low + k * a_step, a_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, s, 64);
    _tile_stored(1, s + 256, 64);
    _tile_stored(2, s + 512, 64);
    _tile_stored(3, s + 768, 64);
}

/* What becomes of the sums of n rows and m columns:
 *   SUM        c f32 (n, m) += sum
 *   LOGITS     c bf16 (m / 32, n, 32) = sum; x f32 (n, 16) += 2^(c * *y), lane by lane
 *   F32        c f32 (n, m) = sum
 *   ADD        c f32 (n, m) = x f32 + sum
 *   GATE       columns are 16 of gate, 16 of up by turns: c, a left operand of m / 2 columns, =
 *              silu(gate) * up; x and y bf16 (n, m / 2), unless null, keep gate and up
 *   GATE_BACK  sum is the gradient by silu(gate) * up, x and y bf16 (n, m) are gate and up: c, a
 * left operand of 2 m columns, has the gradients by gate (first m) and by up */
enum mode { SUM, LOGITS, F32, ADD, GATE, GATE_BACK };

static inline __attribute__((always_inline)) void finish(enum mode mode, const float *s, int64_t i,
                                                         int64_t end, int64_t r, int64_t col,
                                                         int64_t n, int64_t m, void *c, void *x,
                                                         void *y)
{
    for (; i < end; i++) {
        const float *row = s + i / 16 * 512 + i % 16 * 16;
        __m512 a = _mm512_load_ps(row);
        __m512 b = _mm512_load_ps(row + 256);
        int64_t at = (r + i) * m + col;

        switch (mode) {
        case SUM:
            _mm512_storeu_ps((float *)c + at, _mm512_add_ps(a, _mm512_loadu_ps((float *)c + at)));
            _mm512_storeu_ps((float *)c + at + 16,
                             _mm512_add_ps(b, _mm512_loadu_ps((float *)c + at + 16)));
            break;
        case LOGITS: {
            uint16_t *line = (uint16_t *)c + (col * n + (r + i) * 32);
            __m512 f = _mm512_set1_ps(*(const float *)y);
            float *sum = (float *)x + (r + i) * 16;

            store32(line, a, b);
            a = exp2_16(_mm512_mul_ps(load16(line), f));
            b = exp2_16(_mm512_mul_ps(load16(line + 16), f));
            _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), _mm512_add_ps(a, b)));
            break;
        }
        case F32:
            _mm512_storeu_ps((float *)c + at, a);
            _mm512_storeu_ps((float *)c + at + 16, b);
            break;
        case ADD:
            _mm512_storeu_ps((float *)c + at, _mm512_add_ps(a, _mm512_loadu_ps((float *)x + at)));
            _mm512_storeu_ps((float *)c + at + 16,
                             _mm512_add_ps(b, _mm512_loadu_ps((float *)x + at + 16)));
            break;
        case GATE:
            store16(tiled(c, m / 2, r + i, col / 2),
                    _mm512_mul_ps(_mm512_mul_ps(a, sigmoid16(a)), b));
            if (x) {
                at = (r + i) * (m / 2) + col / 2;
                store16((uint16_t *)x + at, a);
                store16((uint16_t *)y + at, b);
            }
            break;
        case GATE_BACK: {
            const __m512 one = _mm512_set1_ps(1);
            __m512 by[4];

            for (int64_t h = 0; h < 2; h++) {
                __m512 d = h ? b : a;
                __m512 g = load16((uint16_t *)x + at + h * 16);
                __m512 sig = sigmoid16(g);
                __m512 slope = _mm512_mul_ps(sig, _mm512_fmadd_ps(g, _mm512_sub_ps(one, sig), one));

                by[h] = _mm512_mul_ps(_mm512_mul_ps(d, load16((uint16_t *)y + at + h * 16)), slope);
                by[2 + h] = _mm512_mul_ps(_mm512_mul_ps(d, g), sig);
            }
            store32(tiled(c, 2 * m, r + i, col), by[0], by[1]);
            store32(tiled(c, 2 * m, r + i, m + col), by[2], by[3]);
            break;
        }
        }
    }
}

/* Panels of b are `stride` values apart. The rows of one block of sums are finished between the
 * tile instructions of the next: on their own they wait for the tile unit, and it for them. */
static inline __attribute__((always_inline)) void product(enum mode mode, const uint16_t *a,
                                                          int64_t n, int64_t k, const uint16_t *b,
                                                          int64_t stride, int64_t m, void *c,
                                                          void *x, void *y)
{
    _Alignas(64) float sums[2][1024];
    const int64_t steps = k / 32;
    const int64_t each = (31 + steps) / steps;
    int64_t row = 0;
    int64_t col = 0;
    int64_t i = 32;
    int turn = 0;

    written();
    for (int64_t p = 0; p < m / 32; p++) {
        const uint16_t *panel = b + p * stride;

        for (int64_t r = 0; r < n; r += 32) {
            const uint16_t *top = a + r * k;
            const uint16_t *low = top + 16 * k;
            const float *last = sums[turn ^ 1];
            float *s = sums[turn];

            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t q = 0; q < steps; q++) {
                _tile_loadd(4, top + q * TILE, 64);
                _tile_loadd(6, panel + q * 2 * TILE, 64);
                _tile_loadd(7, panel + q * 2 * TILE + TILE, 64);
                _tile_loadd(5, low + q * TILE, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
                if (i < 32) {
                    int64_t end = i + each < 32 ? i + each : 32;

                    finish(mode, last, i, end, row, col, n, m, c, x, y);
                    i = end;
                }
            }
            _tile_stored(0, s, 64);
            _tile_stored(1, s + 256, 64);
            _tile_stored(2, s + 512, 64);
            _tile_stored(3, s + 768, 64);
            row = r;
            col = p * 32;
            i = 0;
            turn ^= 1;
        }
    }
    finish(mode, sums[turn ^ 1], 0, 32, row, col, n, m, c, x, y);
}

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

/* Rows that go through a block's products together. */
enum { BLOCK = 128 };

/* out = h + down(silu(gate(x)) * up(x)), x = rms(h). h, out (n, d) f32; width: of gate and up;
 * gate_up and down packed. inv (n) f32, g and u (n, width) bf16 are kept for the way back, unless
 * null. scratch: BLOCK * (d + width) * 2 bytes. */
void amx_mlp(const float *h, int64_t n, int64_t d, int64_t width, const float *norm, float eps,
             const uint16_t *gate_up, const uint16_t *down, float *out, float *inv, uint16_t *g,
             uint16_t *u, uint16_t *scratch)
{
    uint16_t *x = scratch;
    uint16_t *y = x + BLOCK * d;

    configure();
    for (int64_t r = 0; r < n; r += BLOCK) {
        int64_t rows = n - r < BLOCK ? n - r : BLOCK;

        rms(h + r * d, norm, rows, d, eps, x, inv ? inv + r : 0);
        product(GATE, x, rows, d, gate_up, d * 32, 2 * width, y, g ? g + r * width : 0,
                g ? u + r * width : 0);
        product(ADD, y, rows, width, down, width * 32, d, out + r * d, (void *)(h + r * d), 0);
    }
    _tile_release();
}

/* The gradient by h from that by out. gate_up_back (2 * width rows: gate's, then up's; d columns)
 * and down_back (d rows, width columns) packed. scratch: BLOCK * (d * 6 + width * 4) bytes. */
void amx_mlp_back(const float *dout, const float *h, const float *inv, const uint16_t *g,
                  const uint16_t *u, int64_t n, int64_t d, int64_t width, const float *norm,
                  const uint16_t *gate_up_back, const uint16_t *down_back, float *dh,
                  uint16_t *scratch)
{
    uint16_t *left = scratch;
    uint16_t *by = left + BLOCK * d;
    float *dx = (float *)(by + BLOCK * 2 * width);

    configure();
    for (int64_t r = 0; r < n; r += BLOCK) {
        int64_t rows = n - r < BLOCK ? n - r : BLOCK;

        to_left(dout + r * d, rows, d, left);
        product(GATE_BACK, left, rows, d, down_back, d * 32, width, by, (void *)(g + r * width),
                (void *)(u + r * width));
        product(F32, by, rows, 2 * width, gate_up_back, width * 64, d, dx, 0, 0);
        rms_back(h + r * d, norm, inv + r, dx, dout + r * d, rows, d, dh + r * d);
    }
    _tile_release();
}

/* Columns of the vocabulary whose gradients are held at once. */
enum { SLICE = 512 };

/* Row by row KL(softmax(t / T) || softmax(s / T)) and the gradient by s's state of T times it.
 * state and teacher bf16 (n, d), n a multiple of 32, are s and t before the head; head packed both
 * ways (for x head^T and x head); v words. ret_kl (n), grad (n, d) f32. No maximum is
 * taken off: logits beyond 83 T, or rows with none above -87 T, give a loss that is not finite.
 * scratch: BLOCK * (d * 4 + v * 4 + SLICE * 2 + 136) bytes. */
void amx_kl(const uint16_t *state, const uint16_t *teacher, int64_t n, int64_t d, int64_t v,
            const uint16_t *head, const uint16_t *head_back, float inv_t, float *ret_kl,
            float *grad, uint8_t *scratch)
{
    float *sum_s = (float *)scratch;
    float *sum_t = sum_s + BLOCK * 16;
    uint16_t *left = (uint16_t *)(sum_t + BLOCK * 16);
    uint16_t *diff = left + BLOCK * d;
    uint16_t *s = diff + BLOCK * SLICE;
    uint16_t *t = s + BLOCK * v;
    float factor = inv_t * LOG2E;
    const __m512 f = _mm512_set1_ps(factor);

    configure();
    memset(grad, 0, (size_t)(n * d) * sizeof(*grad));
    for (int64_t r = 0; r < n; r += BLOCK) {
        int64_t rows = n - r < BLOCK ? n - r : BLOCK;
        float scale_s[BLOCK];
        float scale_t[BLOCK];

        memset(sum_s, 0, 2 * BLOCK * 16 * sizeof(*sum_s));
        for (int64_t way = 0; way < 2; way++) {
            const uint16_t *x = (way ? teacher : state) + r * d;

            for (int64_t i = 0; i < rows; i++) {
                for (int64_t j = 0; j < d; j += 32) {
                    memcpy(tiled(left, d, i, j), x + i * d + j, 64);
                }
            }
            product(LOGITS, left, rows, d, head, d * 32, v, way ? t : s, way ? sum_t : sum_s,
                    &factor);
        }
        for (int64_t i = 0; i < rows; i++) {
            float a = _mm512_reduce_add_ps(_mm512_loadu_ps(sum_s + i * 16));
            float b = _mm512_reduce_add_ps(_mm512_loadu_ps(sum_t + i * 16));

            scale_s[i] = 1 / a;
            scale_t[i] = 1 / b;
            ret_kl[r + i] = __builtin_logf(a) - __builtin_logf(b);
        }
        memset(sum_s, 0, BLOCK * 16 * sizeof(*sum_s));
        for (int64_t at = 0; at < v; at += SLICE) {
            int64_t width = v - at < SLICE ? v - at : SLICE;

            for (int64_t p = at; p < at + width; p += 32) {
                for (int64_t i = 0; i < rows; i++) {
                    const uint16_t *a = s + p * rows + i * 32;
                    const uint16_t *b = t + p * rows + i * 32;
                    __m512 cross = _mm512_loadu_ps(sum_s + i * 16);
                    __m512 g[2];

                    for (int64_t h = 0; h < 2; h++) {
                        __m512 x = _mm512_mul_ps(load16(a + h * 16), f);
                        __m512 y = _mm512_mul_ps(load16(b + h * 16), f);
                        __m512 pt = _mm512_mul_ps(exp2_16(y), _mm512_set1_ps(scale_t[i]));

                        cross = _mm512_fmadd_ps(pt, _mm512_sub_ps(y, x), cross);
                        g[h] = _mm512_fmsub_ps(exp2_16(x), _mm512_set1_ps(scale_s[i]), pt);
                    }
                    _mm512_storeu_ps(sum_s + i * 16, cross);
                    store32(tiled(diff, width, i, p - at), g[0], g[1]);
                }
            }
            product(SUM, diff, rows, width, head_back + at * 32, v * 32, d, grad + r * d, 0, 0);
        }
        for (int64_t i = 0; i < rows; i++) {
            ret_kl[r + i] += _mm512_reduce_add_ps(_mm512_loadu_ps(sum_s + i * 16)) / LOG2E;
        }
    }
    _tile_release();
}

/* Causal attention of heads of 64. One K/V head, `heads` query heads that read it: q, o bf16
 * (heads, s, 64), k, v bf16 (s, 64); log_sum (heads, s), base 2, for the way back. scratch: s * 64
 * * 4 + 32 * s * 6 bytes. */
static void attend(const uint16_t *q, const uint16_t *k, const uint16_t *v, int64_t heads,
                   int64_t s, float scale, uint16_t *o, float *log_sum, uint8_t *scratch)
{
    uint16_t *kp = (uint16_t *)scratch;
    uint16_t *vp = kp + s * DIM;
    uint16_t *p = vp + s * DIM;
    float *logits = (float *)(p + 32 * s);
    const __m512 f = _mm512_set1_ps(scale * LOG2E);
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    _Alignas(64) float t[1024];

    amx_pack(k, DIM, s, DIM, 0, kp);
    amx_pack(v, DIM, DIM, s, 1, vp);
    for (int64_t r = 0; r < heads * s; r += 32) {
        int64_t keys = r % s + 32;
        float inv[32];

        for (int64_t c = 0; c < keys; c += 32) {
            block(q + r * DIM, q + (r + 16) * DIM, 32, DIM * 2, kp + c * DIM, DIM / 32, t);
            for (int64_t i = 0; i < 32; i++) {
                const float *row = t + i / 16 * 512 + i % 16 * 16;

                _mm512_storeu_ps(logits + i * s + c, _mm512_mul_ps(f, _mm512_load_ps(row)));
                _mm512_storeu_ps(logits + i * s + c + 16,
                                 _mm512_mul_ps(f, _mm512_load_ps(row + 256)));
            }
        }
        for (int64_t i = 0; i < 32; i++) {
            float *row = logits + i * s;
            const __m512 low = _mm512_set1_ps(-1e30f);
            __m512 top = low;
            __m512 sum = _mm512_setzero_ps();

            for (int64_t h = keys - 32; h < keys; h += 16) {
                __mmask16 live =
                    _mm512_cmple_epi32_mask(lane, _mm512_set1_epi32((int)(keys - 32 + i - h)));

                _mm512_storeu_ps(row + h,
                                 _mm512_mask_blend_ps(live, low, _mm512_loadu_ps(row + h)));
            }
            for (int64_t c = 0; c < keys; c += 16) {
                top = _mm512_max_ps(top, _mm512_loadu_ps(row + c));
            }
            top = _mm512_set1_ps(_mm512_reduce_max_ps(top));
            for (int64_t c = 0; c < keys; c += 32) {
                __m512 a = exp2_16(_mm512_sub_ps(_mm512_loadu_ps(row + c), top));
                __m512 b = exp2_16(_mm512_sub_ps(_mm512_loadu_ps(row + c + 16), top));

                sum = _mm512_add_ps(sum, _mm512_add_ps(a, b));
                store32(tiled(p, keys, i, c), a, b);
            }
            float total = _mm512_reduce_add_ps(sum);

            inv[i] = 1 / total;
            if (log_sum) {
                log_sum[r + i] = _mm512_cvtss_f32(top) + __builtin_log2f(total);
            }
        }
        for (int64_t c = 0; c < DIM; c += 32) {
            block(p, p + 16 * keys, TILE, 64, vp + c * s, keys / 32, t);
            for (int64_t i = 0; i < 32; i++) {
                const float *row = t + i / 16 * 512 + i % 16 * 16;
                __m512 one = _mm512_set1_ps(inv[i]);

                store32(o + (r + i) * DIM + c, _mm512_mul_ps(one, _mm512_load_ps(row)),
                        _mm512_mul_ps(one, _mm512_load_ps(row + 256)));
            }
        }
    }
}

/* q, o bf16 (b, kv * heads, s, 64), k, v bf16 (b, kv, s, 64); log_sum (b, kv * heads, s) or null.
 */
void amx_attention(const uint16_t *q, const uint16_t *k, const uint16_t *v, int64_t groups,
                   int64_t heads, int64_t s, float scale, uint16_t *o, float *log_sum,
                   uint8_t *scratch)
{
    configure();
    for (int64_t i = 0; i < groups; i++) {
        int64_t at = i * heads * s;

        attend(q + at * DIM, k + i * s * DIM, v + i * s * DIM, heads, s, scale, o + at * DIM,
               log_sum ? log_sum + at : 0, scratch);
    }
    _tile_release();
}

/* 16 x 16 floats turned over its diagonal, rows `from` apart, to rows of bf16 `to` apart. */
static void turned(const float *x, int64_t from, uint16_t *y, int64_t to)
{
    const __m512i at =
        _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                           _mm512_set1_epi32((int)from));

    for (int64_t i = 0; i < 16; i++) {
        store16(y + i * to, _mm512_i32gather_ps(at, x + i, 4));
    }
}

/* The way back of `attend`, one K/V head. dout, dq as q; dk, dv f32 (s, 64) get their sums.
 * scratch: s * (64 * 16 + 64 * 2) + 32 * s * 4 + s * s * 2 + s * 4 bytes, of which it leaves some.
 */
static void attend_back(const uint16_t *q, const uint16_t *k, const uint16_t *v, const uint16_t *o,
                        const float *log_sum, const uint16_t *dout, int64_t heads, int64_t s,
                        float scale, uint16_t *dq, float *dk, float *dv, uint8_t *scratch)
{
    uint16_t *q_right = (uint16_t *)scratch;
    uint16_t *q_rows = q_right + s * DIM;
    uint16_t *do_right = q_rows + s * DIM;
    uint16_t *do_rows = do_right + s * DIM;
    uint16_t *k_turned = do_rows + s * DIM;
    uint16_t *p = k_turned + s * DIM;
    uint16_t *ds = p + 32 * s;
    uint16_t *ds_right = ds + 32 * s;
    float *dot = (float *)(ds_right + s * s);
    const __m512 f = _mm512_set1_ps(scale * LOG2E);
    const __m512 by = _mm512_set1_ps(scale);
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _Alignas(64) float t[1024];
    _Alignas(64) float u[1024];

    memset(dk, 0, (size_t)(s * DIM) * sizeof(*dk));
    memset(dv, 0, (size_t)(s * DIM) * sizeof(*dv));
    for (int64_t i = 0; i < DIM; i++) {
        for (int64_t j = 0; j < s; j++) {
            k_turned[i * s + j] = k[j * DIM + i];
        }
    }
    for (int64_t head = 0; head < heads; head++) {
        const uint16_t *mine = q + head * s * DIM;
        const uint16_t *dmine = dout + head * s * DIM;
        const float *log_row = log_sum + head * s;

        amx_pack(mine, DIM, s, DIM, 0, q_right);
        amx_pack(mine, DIM, DIM, s, 1, q_rows);
        amx_pack(dmine, DIM, s, DIM, 0, do_right);
        amx_pack(dmine, DIM, DIM, s, 1, do_rows);
        for (int64_t i = 0; i < s; i++) {
            __m512 sum = _mm512_setzero_ps();

            for (int64_t j = 0; j < DIM; j += 16) {
                sum = _mm512_fmadd_ps(load16(dmine + i * DIM + j),
                                      load16(o + (head * s + i) * DIM + j), sum);
            }
            dot[i] = _mm512_reduce_add_ps(sum);
        }
        for (int64_t key = 0; key < s; key += 32) {
            int64_t width = s - key;

            for (int64_t c = key; c < s; c += 32) {
                block(k + key * DIM, k + (key + 16) * DIM, 32, DIM * 2, q_right + c * DIM, DIM / 32,
                      t);
                block(v + key * DIM, v + (key + 16) * DIM, 32, DIM * 2, do_right + c * DIM,
                      DIM / 32, u);
                for (int64_t i = 0; i < 32; i += 2) {
                    __m512 g[2][2];

                    for (int64_t e = 0; e < 2; e++) {
                        const int64_t row = (i + e) / 16 * 512 + (i + e) % 16 * 16;
                        __m512 prob[2];

                        for (int64_t h = 0; h < 2; h++) {
                            __m512 x = _mm512_fmsub_ps(f, _mm512_load_ps(t + row + h * 256),
                                                       _mm512_loadu_ps(log_row + c + h * 16));
                            __mmask16 live = 0xffff;

                            if (c == key) {
                                live = _mm512_cmpge_epi32_mask(
                                    lane, _mm512_set1_epi32((int)(i + e - h * 16)));
                            }
                            prob[h] = _mm512_maskz_mov_ps(live, exp2_16(x));
                            x = _mm512_sub_ps(_mm512_load_ps(u + row + h * 256),
                                              _mm512_loadu_ps(dot + c + h * 16));
                            g[e][h] = _mm512_mul_ps(_mm512_mul_ps(prob[h], x), by);
                        }
                        store32(tiled(p, width, i + e, c - key), prob[0], prob[1]);
                        store32(tiled(ds, width, i + e, c - key), g[e][0], g[e][1]);
                    }
                    for (int64_t h = 0; h < 2; h++) {
                        __m512i pair = (__m512i)_mm512_cvtne2ps_pbh(g[1][h], g[0][h]);

                        _mm512_storeu_si512(ds_right + c * s + key * 32 + h * TILE + i / 2 * 32,
                                            _mm512_permutexvar_epi16(mix, pair));
                    }
                }
            }
            for (int64_t c = 0; c < DIM; c += 32) {
                for (int64_t way = 0; way < 2; way++) {
                    const uint16_t *a = way ? ds : p;
                    float *to = (way ? dk : dv) + key * DIM + c;

                    block(a, a + 16 * width, TILE, 64, (way ? q_rows : do_rows) + c * s + key * 32,
                          width / 32, t);
                    for (int64_t i = 0; i < 32; i++) {
                        const float *row = t + i / 16 * 512 + i % 16 * 16;
                        float *at = to + i * DIM;

                        _mm512_storeu_ps(at,
                                         _mm512_add_ps(_mm512_loadu_ps(at), _mm512_load_ps(row)));
                        _mm512_storeu_ps(at + 16, _mm512_add_ps(_mm512_loadu_ps(at + 16),
                                                                _mm512_load_ps(row + 256)));
                    }
                }
            }
        }
        for (int64_t c = 0; c < s; c += 32) {
            for (int64_t i = 0; i < DIM; i += 32) {
                block(k_turned + i * s, k_turned + (i + 16) * s, 32, s * 2, ds_right + c * s,
                      c / 32 + 1, t);
                for (int64_t h = 0; h < 4; h++) {
                    turned(t + h * 256, 16, dq + (head * s + c + h % 2 * 16) * DIM + i + h / 2 * 16,
                           DIM);
                }
            }
        }
    }
}

/* dk and dv bf16 (b, kv, s, 64). scratch: attend_back's and s * 64 * 8 bytes. */
void amx_attention_back(const uint16_t *q, const uint16_t *k, const uint16_t *v, const uint16_t *o,
                        const float *log_sum, const uint16_t *dout, int64_t groups, int64_t heads,
                        int64_t s, float scale, uint16_t *dq, uint16_t *dk, uint16_t *dv,
                        uint8_t *scratch)
{
    float *sum_k = (float *)scratch;
    float *sum_v = sum_k + s * DIM;

    configure();
    for (int64_t i = 0; i < groups; i++) {
        int64_t at = i * heads * s;

        attend_back(q + at * DIM, k + i * s * DIM, v + i * s * DIM, o + at * DIM, log_sum + at,
                    dout + at * DIM, heads, s, scale, dq + at * DIM, sum_k, sum_v,
                    scratch + s * DIM * 8);
        for (int64_t j = 0; j < s * DIM; j += 32) {
            store32(dk + i * s * DIM + j, _mm512_loadu_ps(sum_k + j),
                    _mm512_loadu_ps(sum_k + j + 16));
            store32(dv + i * s * DIM + j, _mm512_loadu_ps(sum_v + j),
                    _mm512_loadu_ps(sum_v + j + 16));
        }
    }
    _tile_release();
}

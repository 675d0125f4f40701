/* SPDX-License-Identifier: Apache-2.0 */
/* The KL of the head, both ways. Student and teacher go through the head together, panel by panel
 * of the vocabulary, so its weights are read once for both. What is stored of a logit is its power
 * of two and not itself: that is the probability but for its row's sum, and bf16 rounds it to 2^-9
 * of itself, where a rounded logit of 20 would be off by 4 %. The powers are written past the
 * caches and read once, in order, by the way back: their difference over the sums, times the head.
 *
 * The exponents' shift is 0 for every row until a sum leaves [2^-60, 2^100]: then the block's true
 * maxima are found by another pass and the first is done again with them.
 */

#include "tools/distill/tile.h"

/* Positions that go through together, and columns of the vocabulary whose gradients are held. */
enum { ROWS = 256, SLICE = 512 };

int64_t tile_kl_scratch(int64_t d, int64_t v)
{
    return ROWS * (4 * d + 4 * v + 2 * SLICE) + ROWS * (48 + 8) * 4;
}

/* The sums of rows' lanes: sums[3 * i] of the student, then the teacher, then the cross term.
 * Whether all are fit to divide by. */
static int summed(const float *stats, int64_t n, float *sums)
{
    int fit = 1;

    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < 3; j++) {
            sums[3 * i + j] = _mm512_reduce_add_ps(_mm512_loadu_ps(stats + i * 48 + j * 16));
            fit &= j == 2 || (sums[3 * i + j] > 0x1p-60f && sums[3 * i + j] < 0x1p100f);
        }
    }
    return fit;
}

/* Row by row KL(softmax(t / T) || softmax(s / T)) and the gradient by s's state of T times it.
 * state and teacher bf16 (n, d), n a multiple of 32, are s and t before the head; head packed both
 * ways (for x head^T and x head); v words. ret_kl (n), grad (n, d) f32. */
void tile_kl(const uint16_t *state, const uint16_t *teacher, int64_t n, int64_t d, int64_t v,
             const uint16_t *head, const uint16_t *head_back, float inv_t, float *ret_kl,
             float *grad, uint8_t *scratch)
{
    uint16_t *powers = (uint16_t *)scratch;
    uint16_t *left = powers + ROWS * 2 * v;
    uint16_t *diff = left + ROWS * 2 * d;
    float *stats = (float *)(diff + ROWS * SLICE);
    float y[1 + 2 * ROWS];
    float sums[3 * ROWS];

    tiles_begin();
    memset(grad, 0, (size_t)(n * d) * sizeof(*grad));
    y[0] = inv_t * LOG2E;
    for (int64_t r = 0; r < n; r += ROWS) {
        int64_t rows = n - r < ROWS ? n - r : ROWS;

        for (int64_t i = 0; i < rows; i++) {
            int64_t at = i / 16 * 32 + i % 16;

            for (int64_t j = 0; j < d; j += 32) {
                memcpy(tiled(left, d, at, j), state + (r + i) * d + j, 64);
                memcpy(tiled(left, d, at + 16, j), teacher + (r + i) * d + j, 64);
            }
        }
        memset(y + 1, 0, 2 * ROWS * sizeof(*y));
        memset(stats, 0, ROWS * 48 * sizeof(*stats));
        product(EXP, left, 2 * rows, d, head, d * 32, v, powers, stats, y);
        if (!summed(stats, rows, sums)) {
            for (int64_t i = 0; i < ROWS * 48; i++) {
                stats[i] = -1e30f;
            }
            product(TOP, left, 2 * rows, d, head, d * 32, v, 0, stats, y);
            for (int64_t i = 0; i < 2 * rows; i++) {
                const float *lanes = stats + i / 2 * 48 + i % 2 * 16;

                y[1 + i] = _mm512_reduce_max_ps(_mm512_loadu_ps(lanes)) * y[0];
            }
            memset(stats, 0, ROWS * 48 * sizeof(*stats));
            product(EXP, left, 2 * rows, d, head, d * 32, v, powers, stats, y);
            summed(stats, rows, sums);
        }
        _mm_sfence();
        for (int64_t i = 0; i < rows; i++) {
            float *sum = sums + 3 * i;

            ret_kl[r + i] =
                sum[2] / sum[1] / LOG2E + __builtin_logf(sum[0]) - __builtin_logf(sum[1]);
            sum[0] = 1 / sum[0];
            sum[1] = 1 / sum[1];
        }
        for (int64_t at = 0; at < v; at += SLICE) {
            int64_t width = v - at < SLICE ? v - at : SLICE;

            for (int64_t p = 0; p < width; p += 32) {
                const uint16_t *from = powers + (at + p) * 2 * rows;

                for (int64_t i = 0; i < rows; i++) {
                    const uint16_t *line = from + i / 16 * 1024 + i % 16 * 32;
                    __m512 q = _mm512_set1_ps(sums[3 * i]);
                    __m512 t = _mm512_set1_ps(sums[3 * i + 1]);
                    __m512 a = _mm512_mul_ps(load16(line + 512), t);
                    __m512 b = _mm512_mul_ps(load16(line + 528), t);

                    store32(tiled(diff, width, i, p), _mm512_fmsub_ps(load16(line), q, a),
                            _mm512_fmsub_ps(load16(line + 16), q, b));
                }
            }
            product(SUM, diff, rows, width, head_back + at * 32, v * 32, d, grad + r * d, 0, 0);
        }
    }
    tiles_end();
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_FRAG_CUH
#define PIPIT_KERNELS_CUDA_FRAG_CUH

/* Quantised weights in fragment order: what each lane of a warp needs for its matrix instructions
 * lies in 16 bytes it loads at once, and a warp's load is 512 contiguous bytes.
 *
 * A tile is 16 rows; a tile's units follow each other; a unit is BLOCKS (4 or 8) blocks of 32
 * columns of the 16 rows:
 *     codes   by groups of 4 blocks. 4 bits: [half of the rows][lane] 4 words, one a block; nibbles
 *             low: elements 4t..4t+3, high: 16+4t... 8 bits: [pair of blocks][half][lane] 4 words:
 *             (block, low elements) (block, high) (next block, low) (next, high). 2 and 3 bits:
 *             none, all of them are in
 *     more    a code's other bits, [lane][half]: of element i of the half's word f = 2 block +
 * (high elements) one bit: bit f of byte i; two bits: bits 2 (f % 4).. of byte i of word f / 4.
 *             They are the code's top bits, but with a middle its bottom bits. Three bits: two,
 *             then the plane of the top one
 *     scales  by row, as the format has them, scales of 6 bits widened to 8
 * with lane = 4 g + t: rows g (half 0) and g + 8 (half 1). Rows and columns are padded with codes
 * and scales of 0. Sizes are those of the file but for scales of 6 bits (Q4_K: 148 of 144 bytes for
 * 256 columns, Q5_K 180 of 176, Q3_K 114 of 110).
 *
 * value = d q + m. Codes of the types with a middle (Q4_0, Q5_0, Q3_K, Q6_K) lie there with their
 * top bit flipped, which is q - middle in two's complement: put into the top bits of a byte it is a
 * signed byte, 2^(8 - bits) times the value, and the scale takes that power of two back. A place in
 * a table (quant/codebook.h: IQ4_NL, IQ4_XS, MXFP4) becomes the value there. */

#include "kernels/cuda/cuda.cuh"

extern "C" {
#include "quant/codebook.h"
}

/* FRAG_Q2: (row) 16 scales of 4 bits, minima above them; (row) d and dmin. */
enum frag_scales { FRAG_D, FRAG_DM, FRAG_K, FRAG_Q6, FRAG_Q2, FRAG_E8, FRAG_XS };

/* NAME, GGUF type, blocks of a unit, bits of a code, high bits, middle, kind of scales */
#define FRAG_FORMAT(NAME, TYPE_, BLOCKS_, HIGH_, CODE_, MIDDLE_, SCALES_)                          \
    struct NAME {                                                                                  \
        static constexpr int TYPE = TYPE_;                                                         \
        static constexpr int BLOCKS = BLOCKS_;                                                     \
        static constexpr int GROUPS = BLOCKS_ / 4;                                                 \
        static constexpr int HIGH = HIGH_;                                                         \
        static constexpr int CODE = CODE_;                                                         \
        static constexpr int MIDDLE = MIDDLE_;                                                     \
        static constexpr int SCALES = SCALES_;                                                     \
        static constexpr int CODE_BYTES = CODE * 256;                                              \
        static constexpr int HIGH_BYTES = HIGH * 256;                                              \
        static constexpr int HIGH_AT = GROUPS * CODE_BYTES;                                        \
        static constexpr int SCALES_AT = HIGH_AT + GROUPS * HIGH_BYTES;                            \
        static constexpr int UNIT = SCALES_AT + (SCALES == FRAG_D    ? 128                         \
                                                 : SCALES == FRAG_DM ? 256                         \
                                                 : SCALES == FRAG_K  ? 320                         \
                                                 : SCALES == FRAG_Q2 ? 320                         \
                                                 : SCALES == FRAG_E8 ? 64                          \
                                                 : SCALES == FRAG_XS ? 160                         \
                                                                     : 288);                       \
        static constexpr int COLS = BLOCKS * 32;                                                   \
    }

FRAG_FORMAT(frag_q4_0, DTYPE_Q4_0, 4, 0, 4, 8, FRAG_D);
FRAG_FORMAT(frag_q4_1, DTYPE_Q4_1, 4, 0, 4, 0, FRAG_DM);
FRAG_FORMAT(frag_q5_0, DTYPE_Q5_0, 4, 1, 4, 16, FRAG_D);
FRAG_FORMAT(frag_q5_1, DTYPE_Q5_1, 4, 1, 4, 0, FRAG_DM);
FRAG_FORMAT(frag_q8_0, DTYPE_Q8_0, 4, 0, 8, 0, FRAG_D);
FRAG_FORMAT(frag_q2_k, DTYPE_Q2_K, 8, 2, 0, 0, FRAG_Q2);
FRAG_FORMAT(frag_q3_k, DTYPE_Q3_K, 8, 3, 0, 4, FRAG_Q6);
FRAG_FORMAT(frag_q4_k, DTYPE_Q4_K, 8, 0, 4, 0, FRAG_K);
FRAG_FORMAT(frag_q5_k, DTYPE_Q5_K, 8, 1, 4, 0, FRAG_K);
FRAG_FORMAT(frag_q6_k, DTYPE_Q6_K, 8, 2, 4, 32, FRAG_Q6);
FRAG_FORMAT(frag_iq4_nl, DTYPE_IQ4_NL, 4, 0, 4, 0, FRAG_D);
FRAG_FORMAT(frag_iq4_xs, DTYPE_IQ4_XS, 8, 0, 4, 0, FRAG_XS);
FRAG_FORMAT(frag_mxfp4, DTYPE_MXFP4, 4, 0, 4, 0, FRAG_E8);

#define FRAG_TYPES(DO)                                                                             \
    DO(DTYPE_Q4_0, frag_q4_0)                                                                      \
    DO(DTYPE_Q4_1, frag_q4_1)                                                                      \
    DO(DTYPE_Q5_0, frag_q5_0)                                                                      \
    DO(DTYPE_Q5_1, frag_q5_1)                                                                      \
    DO(DTYPE_Q8_0, frag_q8_0)                                                                      \
    DO(DTYPE_Q2_K, frag_q2_k)                                                                      \
    DO(DTYPE_Q3_K, frag_q3_k)                                                                      \
    DO(DTYPE_Q4_K, frag_q4_k)                                                                      \
    DO(DTYPE_Q5_K, frag_q5_k)                                                                      \
    DO(DTYPE_Q6_K, frag_q6_k)                                                                      \
    DO(DTYPE_IQ4_NL, frag_iq4_nl)                                                                  \
    DO(DTYPE_IQ4_XS, frag_iq4_xs)                                                                  \
    DO(DTYPE_MXFP4, frag_mxfp4)

static inline __host__ __device__ uint64_t frag_units(int32_t n_cols, int32_t unit_cols)
{
    return (uint64_t)(n_cols + unit_cols - 1) / unit_cols;
}

/* Rows of 16-bit and f32 weights lie one after another, padded to 64 bytes. */
static inline uint64_t plain_pitch(uint32_t type, int32_t n_cols)
{
    return ((uint64_t)n_cols * (type == DTYPE_F32 ? 4 : 2) + 63) / 64 * 64;
}

/* ---- tables --------------------------------------------------------------------------------- */

template <typename F> CUDA_INLINE constexpr bool frag_is_looked_up(void)
{
    return F::TYPE == DTYPE_IQ4_NL || F::TYPE == DTYPE_IQ4_XS || F::TYPE == DTYPE_MXFP4;
}

/* Values 4i..4i+3 of a type's table as signed bytes. */
template <typename F> static __host__ __device__ constexpr uint32_t frag_table(int i)
{
    constexpr int iq4[16] = {CODEBOOK_IQ4(CODEBOOK_VALUE)};
    constexpr int mxfp4[16] = {CODEBOOK_MXFP4(CODEBOOK_VALUE)};
    uint32_t w = 0;

    for (int k = 0; k < 4; k++) {
        w |= (uint32_t)((F::TYPE == DTYPE_MXFP4 ? mxfp4 : iq4)[4 * i + k] & 255) << (8 * k);
    }
    return w;
}

template <typename F> CUDA_INLINE int32_t frag_lookup1(int32_t q)
{
    constexpr uint32_t t[4] = {frag_table<F>(0), frag_table<F>(1), frag_table<F>(2),
                               frag_table<F>(3)};
    uint32_t w = q < 8 ? (q < 4 ? t[0] : t[1]) : (q < 12 ? t[2] : t[3]);

    return (int8_t)(w >> (q % 4 * 8));
}

/* The values of the four nibbles in the low half of w. A permutation takes one of 8 bytes by three
 * bits; the fourth chooses between two of them. */
template <typename F> CUDA_INLINE uint32_t frag_lookup4(uint32_t w)
{
    constexpr uint32_t t[4] = {frag_table<F>(0), frag_table<F>(1), frag_table<F>(2),
                               frag_table<F>(3)};
    uint32_t at = w & 0x7777;

    return __byte_perm(__byte_perm(t[0], t[1], at), __byte_perm(t[2], t[3], at),
                       0x3210 | (w & 0x8888) >> 1);
}

/* Of eight nibbles: the low ones of the bytes, the high ones. */
template <typename F> CUDA_INLINE void frag_lookup(uint32_t w, uint32_t *ret_lo, uint32_t *ret_hi)
{
    uint32_t a = frag_lookup4<F>(w);
    uint32_t b = frag_lookup4<F>(w >> 16);

    *ret_lo = __byte_perm(a, b, 0x6420);
    *ret_hi = __byte_perm(a, b, 0x7531);
}

/* Half of 2^(e - 127). */
CUDA_INLINE float frag_e8m0(uint32_t e)
{
    return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/* ---- one element: embed and the packing kernel ---------------------------------------------- */

struct frag_at {
    int32_t row;   /* of the tile */
    int32_t block; /* of the unit */
    int32_t code;  /* byte of the unit; the nibble of `high` when codes have 4 bits */
    int32_t high;  /* 0: elements 0..15 of the block */
    int32_t more;  /* byte of the high bits */
    int32_t shift; /* in it */
    int32_t top;   /* byte of a third high bit */
    int32_t top_shift;
};

template <typename F> CUDA_INLINE struct frag_at frag_where(int32_t row, int32_t col)
{
    struct frag_at a;
    int32_t half = row % 16 / 8;
    int32_t e = col % 32;
    int32_t j = col % 128 / 32;
    int32_t group = col % F::COLS / 128;
    int32_t lane = row % 8 * 4 + e % 16 / 4;
    int32_t i = e % 4;

    a.row = row % 16;
    a.block = col % F::COLS / 32;
    a.high = e / 16;
    a.code = group * F::CODE_BYTES +
             (F::CODE == 4 ? half * 512 + lane * 16 + j * 4 + i
                           : j / 2 * 1024 + half * 512 + lane * 16 + j % 2 * 8 + a.high * 4 + i);
    a.more = F::HIGH_AT + group * F::HIGH_BYTES +
             (F::HIGH == 1 ? lane * 8 + half * 4 + i : lane * 16 + half * 8 + j / 2 * 4 + i);
    a.shift = F::HIGH == 1 ? j * 2 + a.high : (j % 2 * 2 + a.high) * 2;
    a.top = F::HIGH_AT + group * F::HIGH_BYTES + 512 + lane * 8 + half * 4 + i;
    a.top_shift = j * 2 + a.high;
    return a;
}

/* A code's nibble and the bits kept apart from it: with a middle the nibble has the top bits. */
template <typename F> CUDA_INLINE int32_t frag_nibble(int32_t q)
{
    return F::MIDDLE ? q >> F::HIGH : q & 15;
}

template <typename F> CUDA_INLINE int32_t frag_more(int32_t q)
{
    return F::MIDDLE ? q & ((1 << F::HIGH) - 1) : q >> F::CODE;
}

template <typename F> CUDA_INLINE int32_t frag_joined(int32_t nibble, int32_t more)
{
    return F::MIDDLE ? nibble << F::HIGH | more : nibble | more << F::CODE;
}

template <typename F>
CUDA_INLINE const uint8_t *frag_unit(const uint8_t *w, int32_t n_cols, int32_t row, int32_t col)
{
    return w + ((uint64_t)(row / 16) * frag_units(n_cols, F::COLS) + col / F::COLS) * F::UNIT;
}

CUDA_INLINE float frag_f16(const uint8_t *p)
{
    return f32_of_f16((uint16_t)(p[0] | p[1] << 8));
}

/* As quant/dtype.c decodes it, to the bit. */
template <typename F>
CUDA_INLINE float frag_value(const uint8_t *w, int32_t n_cols, int32_t row, int32_t col)
{
    const uint8_t *unit = frag_unit<F>(w, n_cols, row, col);
    struct frag_at a = frag_where<F>(row, col);
    const uint8_t *s = unit + F::SCALES_AT;
    int32_t q = F::CODE == 8   ? (int8_t)unit[a.code]
                : F::CODE == 4 ? unit[a.code] >> (a.high * 4) & 15
                               : 0;

    if (F::HIGH > 0) {
        int32_t more = unit[a.more] >> a.shift & (F::HIGH == 1 ? 1 : 3);

        more |= F::HIGH == 3 ? (unit[a.top] >> a.top_shift & 1) << 2 : 0;
        q = frag_joined<F>(q, more);
    }
    q = frag_is_looked_up<F>() ? frag_lookup1<F>(q) : (q ^ F::MIDDLE) - F::MIDDLE;
    if (F::SCALES == FRAG_E8) {
        return __fmul_rn(frag_e8m0(s[a.row * 4 + a.block]), (float)q);
    }
    if (F::SCALES == FRAG_XS) {
        float d = __fmul_rn(frag_f16(s + 128 + a.row * 2), (float)(int8_t)s[a.row * 8 + a.block]);

        return __fmul_rn(d, (float)q);
    }
    if (F::SCALES == FRAG_D) {
        return __fmul_rn(frag_f16(s + (a.row * 4 + a.block) * 2), (float)q);
    }
    if (F::SCALES == FRAG_DM) {
        const uint8_t *dm = s + (a.row * 4 + a.block) * 4;

        return __fadd_rn(__fmul_rn(frag_f16(dm), (float)q), frag_f16(dm + 2));
    }
    if (F::SCALES == FRAG_K) {
        float d = __fmul_rn(frag_f16(s + a.row * 4), (float)s[64 + a.row * 8 + a.block]);
        float m = __fmul_rn(frag_f16(s + a.row * 4 + 2), (float)s[192 + a.row * 8 + a.block]);

        return __fsub_rn(__fmul_rn(d, (float)q), m);
    }
    if (F::SCALES == FRAG_Q2) {
        int32_t sub = s[a.row * 16 + a.block * 2 + a.high];
        float d = __fmul_rn(frag_f16(s + 256 + a.row * 4), (float)(sub & 15));
        float m = __fmul_rn(frag_f16(s + 256 + a.row * 4 + 2), (float)(sub >> 4));

        return __fsub_rn(__fmul_rn(d, (float)q), m);
    }
    return __fmul_rn(__fmul_rn(frag_f16(s + 256 + a.row * 2),
                               (float)(int8_t)s[a.row * 16 + a.block * 2 + a.high]),
                     (float)q);
}

/* ---- what a lane needs for one group of 4 blocks -------------------------------------------- */

struct frag_codes {
    uint32_t lo[2][4];  /* [half of the rows][block]: four signed bytes, elements 4t.. */
    uint32_t hi[2][4];  /* elements 16+4t.. */
    uint32_t min[2][2]; /* Q2_K, [half of the rows]: a byte for each 16 columns, their minimum */
};

/* What frag_load's bytes are to be multiplied by. */
template <typename F> static __host__ __device__ constexpr float frag_step(void)
{
    return F::MIDDLE == 0 ? 1.0f : (float)F::MIDDLE / 128.0f;
}

/* Bits of a where the mask has ones, of b elsewhere: one instruction. */
template <uint32_t MASK> CUDA_INLINE uint32_t frag_pick(uint32_t a, uint32_t b)
{
    return (a & MASK) | (b & ~MASK);
}

CUDA_INLINE uint32_t frag_shift(uint32_t w, int left)
{
    return left >= 0 ? w << left : w >> -left;
}

/* Low (or high) nibbles of w, and word f's bits of h, as bytes. Of 2 and 3 bits h has two of each
 * byte's and w, where there is one, the third, as three bits at the top of a byte. With a middle
 * h's bits come below the nibble's, at the top of a low nibble whose other bits are 0: words f and
 * f + 4 / HIGH share what is done before the last shift. */
template <typename F> CUDA_INLINE uint32_t frag_bytes(uint32_t w, int high, uint32_t h, int f)
{
    constexpr int HALF = F::HIGH ? 4 / F::HIGH : 1; /* words of h that a low nibble serves */

    if (F::CODE == 0) {
        return F::MIDDLE ? frag_pick<0x60606060u>(frag_shift(h, 5 - f % 4 * 2),
                                                  frag_shift(w, 7 - f) & 0x80808080u)
                         : frag_shift(h, -(f % 4 * 2)) & 0x03030303u;
    }
    if (F::MIDDLE && F::HIGH) {
        uint32_t more = frag_shift(h, (HALF - 1 - f % HALF) * F::HIGH) &
                        (F::HIGH == 2 ? 0xccccccccu : 0x88888888u);

        more = f % (2 * HALF) < HALF ? more : more >> 4;
        return frag_pick<0xf0f0f0f0u>(frag_shift(w, high ? 0 : 4), more);
    }
    if (F::HIGH) {
        return (frag_shift(w, high ? -4 : 0) & 0x0f0f0f0fu) | (frag_shift(h, 4 - f) & 0x10101010u);
    }
    return F::MIDDLE ? frag_shift(w, high ? 0 : 4) & 0xf0f0f0f0u
                     : frag_shift(w, high ? -4 : 0) & 0x0f0f0f0fu;
}

/* Codes of 2 bits times their 16 columns' scale of 4 bits are bytes of at most 45, so the sum of a
 * block of 32 needs no scale; the minima are bytes of a second product with the same activations.
 */
template <typename F>
CUDA_INLINE void frag_scale_codes(const uint8_t *unit, int group, int lane, struct frag_codes *ret)
{
    const uint2 *s = reinterpret_cast<const uint2 *>(unit + F::SCALES_AT);

    for (int half = 0; half < 2; half++) {
        uint2 v = s[(lane / 4 + half * 8) * 2 + group];
        uint32_t w[2] = {v.x, v.y};

        for (int j = 0; j < 4; j++) {
            ret->lo[half][j] *= w[j / 2] >> (j % 2 * 16) & 15;
            ret->hi[half][j] *= w[j / 2] >> (j % 2 * 16 + 8) & 15;
        }
        for (int k = 0; k < 2; k++) {
            ret->min[half][k] = w[k] >> 4 & 0x0f0f0f0fu;
        }
    }
}

/* The minima of block j as a matrix instruction takes them. */
CUDA_INLINE void frag_minima(const struct frag_codes *w, int j, uint32_t ret[4])
{
    for (int half = 0; half < 2; half++) {
        ret[half] = __byte_perm(w->min[half][j / 2], 0, j % 2 ? 0x2222 : 0x0000);
        ret[2 + half] = __byte_perm(w->min[half][j / 2], 0, j % 2 ? 0x3333 : 0x1111);
    }
}

/* `unit` in global or shared memory. */
template <typename F>
CUDA_INLINE void frag_load(const uint8_t *unit, int group, int lane, struct frag_codes *ret)
{
    const uint4 *codes = reinterpret_cast<const uint4 *>(unit + group * F::CODE_BYTES) + lane;
    const uint8_t *more = unit + F::HIGH_AT + group * F::HIGH_BYTES;
    uint32_t h[2][2] = {}; /* high bits, by half */
    uint32_t top[2] = {};  /* a third one */

    if (F::HIGH == 1) {
        uint2 v = reinterpret_cast<const uint2 *>(more)[lane];

        h[0][0] = h[0][1] = v.x, h[1][0] = h[1][1] = v.y;
    } else if (F::HIGH >= 2) {
        uint4 v = reinterpret_cast<const uint4 *>(more)[lane];

        h[0][0] = v.x, h[0][1] = v.y, h[1][0] = v.z, h[1][1] = v.w;
    }
    if (F::HIGH == 3) {
        uint2 v = reinterpret_cast<const uint2 *>(more + 512)[lane];

        top[0] = v.x, top[1] = v.y;
    }
    for (int half = 0; half < 2; half++) {
        if (F::CODE == 8) {
            for (int pair = 0; pair < 2; pair++) {
                uint4 v = codes[(pair * 2 + half) * 32];

                ret->lo[half][pair * 2] = v.x, ret->hi[half][pair * 2] = v.y;
                ret->lo[half][pair * 2 + 1] = v.z, ret->hi[half][pair * 2 + 1] = v.w;
            }
            continue;
        }
        if (F::CODE == 0) {
            for (int j = 0; j < 4; j++) {
                ret->lo[half][j] = frag_bytes<F>(top[half], 0, h[half][j / 2], 2 * j);
                ret->hi[half][j] = frag_bytes<F>(top[half], 1, h[half][j / 2], 2 * j + 1);
            }
            continue;
        }
        uint4 v = codes[half * 32];
        uint32_t w[4] = {v.x, v.y, v.z, v.w};

        for (int j = 0; j < 4; j++) {
            if (frag_is_looked_up<F>()) {
                frag_lookup<F>(w[j], &ret->lo[half][j], &ret->hi[half][j]);
                continue;
            }
            ret->lo[half][j] = frag_bytes<F>(w[j], 0, h[half][j / 2], 2 * j);
            ret->hi[half][j] = frag_bytes<F>(w[j], 1, h[half][j / 2], 2 * j + 1);
        }
    }
    if (F::SCALES == FRAG_Q2) {
        frag_scale_codes<F>(unit, group, lane, ret);
    }
}

/* Scales d and offsets m of one row and the 4 blocks of a group. Q3_K, Q6_K: d alone, and the
 * scales of 16 columns as integers in `sub` (low half, high half). Q2_K: d and -dmin of the row. */
struct frag_scale {
    float d[4];
    float m[4];
    int sub[4][2];
};

template <typename F>
CUDA_INLINE void frag_scale_load(const uint8_t *unit, int group, int row, struct frag_scale *ret)
{
    const uint8_t *s = unit + F::SCALES_AT;

    if (F::SCALES == FRAG_D) {
        uint2 v = reinterpret_cast<const uint2 *>(s)[row];
        uint32_t w[2] = {v.x, v.y};

        for (int j = 0; j < 4; j++) {
            ret->d[j] = f32_of_f16((uint16_t)(w[j / 2] >> (j % 2 * 16))) * frag_step<F>();
        }
    } else if (F::SCALES == FRAG_DM) {
        uint4 v = reinterpret_cast<const uint4 *>(s)[row];
        uint32_t w[4] = {v.x, v.y, v.z, v.w};

        for (int j = 0; j < 4; j++) {
            ret->d[j] = f32_of_f16((uint16_t)w[j]);
            ret->m[j] = f32_of_f16((uint16_t)(w[j] >> 16));
        }
    } else if (F::SCALES == FRAG_K) {
        uint32_t dm = reinterpret_cast<const uint32_t *>(s)[row];
        uint32_t sc = reinterpret_cast<const uint32_t *>(s + 64)[row * 2 + group];
        uint32_t mn = reinterpret_cast<const uint32_t *>(s + 192)[row * 2 + group];
        float d = f32_of_f16((uint16_t)dm);
        float m = f32_of_f16((uint16_t)(dm >> 16));

        for (int j = 0; j < 4; j++) {
            ret->d[j] = d * (float)(sc >> (8 * j) & 255);
            ret->m[j] = -m * (float)(mn >> (8 * j) & 255);
        }
    } else if (F::SCALES == FRAG_E8) {
        uint32_t e = reinterpret_cast<const uint32_t *>(s)[row];

        for (int j = 0; j < 4; j++) {
            ret->d[j] = frag_e8m0(e >> (8 * j) & 255);
        }
    } else if (F::SCALES == FRAG_XS) {
        uint32_t sc = reinterpret_cast<const uint32_t *>(s)[row * 2 + group];
        float d = f32_of_f16(reinterpret_cast<const uint16_t *>(s + 128)[row]);

        for (int j = 0; j < 4; j++) {
            ret->d[j] = d * (float)(int8_t)(sc >> (8 * j) & 255);
        }
    } else if (F::SCALES == FRAG_Q2) {
        uint32_t dm = reinterpret_cast<const uint32_t *>(s + 256)[row];

        for (int j = 0; j < 4; j++) {
            ret->d[j] = f32_of_f16((uint16_t)dm);
            ret->m[j] = -f32_of_f16((uint16_t)(dm >> 16));
        }
    } else {
        uint2 v = reinterpret_cast<const uint2 *>(s)[row * 2 + group];
        uint32_t w[2] = {v.x, v.y};
        float d = f32_of_f16(reinterpret_cast<const uint16_t *>(s + 256)[row]) * frag_step<F>();

        for (int j = 0; j < 4; j++) {
            ret->d[j] = d;
            ret->sub[j][0] = (int8_t)(w[j / 2] >> (j % 2 * 16));
            ret->sub[j][1] = (int8_t)(w[j / 2] >> (j % 2 * 16 + 8));
        }
    }
}

/* The same of one block, to the same bits. */
struct frag_scale1 {
    float d;
    float m;
    int sub[2];
};

template <typename F>
CUDA_INLINE struct frag_scale1 frag_scale_one(const uint8_t *unit, int group, int row, int block)
{
    const uint8_t *s = unit + F::SCALES_AT;
    int at = row * F::BLOCKS + group * 4 + block;
    struct frag_scale1 r = {};

    if (F::SCALES == FRAG_D) {
        r.d = f32_of_f16(reinterpret_cast<const uint16_t *>(s)[at]) * frag_step<F>();
    } else if (F::SCALES == FRAG_DM) {
        uint32_t dm = reinterpret_cast<const uint32_t *>(s)[at];

        r.d = f32_of_f16((uint16_t)dm);
        r.m = f32_of_f16((uint16_t)(dm >> 16));
    } else if (F::SCALES == FRAG_K) {
        uint32_t dm = reinterpret_cast<const uint32_t *>(s)[row];

        r.d = f32_of_f16((uint16_t)dm) * (float)s[64 + at];
        r.m = -f32_of_f16((uint16_t)(dm >> 16)) * (float)s[192 + at];
    } else if (F::SCALES == FRAG_E8) {
        r.d = frag_e8m0(s[at]);
    } else if (F::SCALES == FRAG_XS) {
        r.d = f32_of_f16(reinterpret_cast<const uint16_t *>(s + 128)[row]) * (float)(int8_t)s[at];
    } else if (F::SCALES == FRAG_Q2) {
        uint32_t dm = reinterpret_cast<const uint32_t *>(s + 256)[row];

        r.d = f32_of_f16((uint16_t)dm);
        r.m = -f32_of_f16((uint16_t)(dm >> 16));
    } else {
        uint32_t sub = reinterpret_cast<const uint16_t *>(s)[at];

        r.d = f32_of_f16(reinterpret_cast<const uint16_t *>(s + 256)[row]) * frag_step<F>();
        r.sub[0] = (int8_t)sub;
        r.sub[1] = (int8_t)(sub >> 8);
    }
    return r;
}

/* Has the format offsets, that is, does it need the sums of the activations' blocks? */
template <typename F> CUDA_INLINE constexpr bool frag_has_offset(void)
{
    return F::SCALES == FRAG_DM || F::SCALES == FRAG_K;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_QUANT_DTYPE_H
#define PIPIT_QUANT_DTYPE_H

/* Element types of weights, with GGUF's own numbers (ggml type ids, the GGUF specification), and
 * the one definition of each block's layout. A quantised tensor's rows are whole blocks. */

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_Q4_0 = 2,
    DTYPE_Q4_1 = 3,
    DTYPE_Q5_0 = 6,
    DTYPE_Q5_1 = 7,
    DTYPE_Q8_0 = 8,
    DTYPE_Q2_K = 10,
    DTYPE_Q3_K = 11,
    DTYPE_Q4_K = 12,
    DTYPE_Q5_K = 13,
    DTYPE_Q6_K = 14,
    DTYPE_IQ4_NL = 20,
    DTYPE_IQ4_XS = 23,
    DTYPE_BF16 = 30,
    DTYPE_MXFP4 = 39,
};

struct dtype_info {
    const char *name;    /* as GGUF tools write it, "Q4_1" */
    int block_len;       /* elements a block */
    int block_bytes;
    bool can_encode;
};

/* NULL for a type this build does not know. */
const struct dtype_info *dtype_info(uint32_t type);
int dtype_from_name(const char *name); /* enum dtype, or -EINVAL; case does not matter */

/* Bytes of a row of n elements; false when n is not whole blocks or the product overflows. */
bool dtype_row_bytes(enum dtype type, uint64_t n, uint64_t *ret);

/* Blocks, little-endian, as in the file. `d`, `m` are IEEE half precision bit patterns. */
struct block_q4_0 { uint16_t d; uint8_t qs[16]; };                    /* 32: d * (q - 8) */
struct block_q4_1 { uint16_t d, m; uint8_t qs[16]; };                 /* 32: d * q + m */
struct block_q5_0 { uint16_t d; uint8_t qh[4]; uint8_t qs[16]; };     /* 32: d * (q - 16) */
struct block_q5_1 { uint16_t d, m; uint8_t qh[4]; uint8_t qs[16]; };  /* 32: d * q + m */
struct block_q8_0 { uint16_t d; int8_t qs[32]; };                     /* 32: d * q */
/* 256 */
struct block_q4_k { uint16_t d, dmin; uint8_t scales[12]; uint8_t qs[128]; };
/* 256 */
struct block_q5_k { uint16_t d, dmin; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; };
/* 256 */
struct block_q6_k { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; uint16_t d; };
/* 256: groups of 16, each with a scale (low nibble of scales[i]) and a minimum of 4 bits */
struct block_q2_k { uint8_t scales[16]; uint8_t qs[64]; uint16_t d, dmin; };
/* 256: groups of 16 with scales of 6 bits; a bit of hmask that is 0 takes 4 from its code */
struct block_q3_k { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; uint16_t d; };
/* 32: d * table[q] (quant/codebook.h) */
struct block_iq4_nl { uint16_t d; uint8_t qs[16]; };
/* 256: the same with eight scales of 6 bits */
struct block_iq4_xs { uint16_t d; uint16_t scales_h; uint8_t scales_l[4]; uint8_t qs[128]; };
/* 32: 2^(e - 128) * table[q] */
struct block_mxfp4 { uint8_t e; uint8_t qs[16]; };

static_assert(sizeof(struct block_q4_0) == 18, "packed by nature");
static_assert(sizeof(struct block_q4_1) == 20, "packed by nature");
static_assert(sizeof(struct block_q5_0) == 22, "packed by nature");
static_assert(sizeof(struct block_q5_1) == 24, "packed by nature");
static_assert(sizeof(struct block_q8_0) == 34, "packed by nature");
static_assert(sizeof(struct block_q2_k) == 84, "packed by nature");
static_assert(sizeof(struct block_q3_k) == 110, "packed by nature");
static_assert(sizeof(struct block_q4_k) == 144, "packed by nature");
static_assert(sizeof(struct block_q5_k) == 176, "packed by nature");
static_assert(sizeof(struct block_q6_k) == 210, "packed by nature");
static_assert(sizeof(struct block_iq4_nl) == 18, "packed by nature");
static_assert(sizeof(struct block_iq4_xs) == 136, "packed by nature");
static_assert(sizeof(struct block_mxfp4) == 17, "packed by nature");

/* Scale i of 16, -32..31: low nibbles in bytes 0-7 (low halves first), high pairs in bytes 8-11. */
static inline int dtype_q3_k_scale(const struct block_q3_k *b, int i)
{
    int low = b->scales[i % 8] >> (i / 8 * 4) & 15;
    int high = b->scales[8 + i % 4] >> (i / 4 * 2) & 3;

    return (low | high << 4) - 32;
}
/* The code of element j of 256: 0..3, and -4..3. */
static inline int dtype_q2_k_code(const struct block_q2_k *b, int j)
{
    return b->qs[j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3;
}
static inline int dtype_q3_k_code(const struct block_q3_k *b, int j)
{
    int low = b->qs[j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3;

    return low - (b->hmask[j % 32] >> (j / 32) & 1 ? 0 : 4);
}

/* Decode n elements (whole blocks) to f32; the definition that every kernel is checked against.
 * Bit for bit what the Python package `gguf` gives. */
void dtype_decode(enum dtype type, const void *src, float *dst, uint64_t n);

/* Encode n f32 (whole blocks). 0, -ENOTSUP for types without an encoder, -EINVAL on NaN or Inf. */
int dtype_encode(enum dtype type, const float *src, void *dst, uint64_t n)
    __attribute__((warn_unused_result));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_QUANT_DTYPE_BLOCKS_H
#define PIPIT_QUANT_DTYPE_BLOCKS_H

/* Inside quant/dtype*.c: one decoder and one encoder per block type, n_blocks blocks a call.
 * Encoders get finite numbers and answer -EINVAL when a scale or offset does not fit f16. */

#include <stdint.h>

void dtype_decode_q4_0(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_q4_1(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_q5_0(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_q5_1(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_q8_0(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_q2_k(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_q3_k(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_q4_k(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_q5_k(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_q6_k(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_iq4_nl(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_iq4_xs(const void *src, float *dst, uint64_t n_blocks);
void dtype_decode_mxfp4(const void *src, float *dst, uint64_t n_blocks);

int dtype_encode_q4_0(const float *src, void *dst, uint64_t n_blocks);
int dtype_encode_q4_1(const float *src, void *dst, uint64_t n_blocks);
int dtype_encode_q5_0(const float *src, void *dst, uint64_t n_blocks);
int dtype_encode_q5_1(const float *src, void *dst, uint64_t n_blocks);
int dtype_encode_q8_0(const float *src, void *dst, uint64_t n_blocks);
int dtype_encode_q4_k(const float *src, void *dst, uint64_t n_blocks);
int dtype_encode_q5_k(const float *src, void *dst, uint64_t n_blocks);
int dtype_encode_q6_k(const float *src, void *dst, uint64_t n_blocks);
int dtype_encode_iq4_nl(const float *src, void *dst, uint64_t n_blocks);
int dtype_encode_mxfp4(const float *src, void *dst, uint64_t n_blocks);

#endif

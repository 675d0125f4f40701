/* SPDX-License-Identifier: Apache-2.0 */
/* Decode rows by weights of 16 bits: the kernels that gemm_half.cuh is for, and
 * which one runs.
 *
 *   stream_half       8 NT tokens, prepared by matmul.cu
 *   norm_stream_half  one token, which every block normalises and cuts into
 * pieces for itself
 *   ..._store         the same of q, k and v (gemm_heads.cuh) */

#include "kernels/cuda/gemm_half.cuh"

template <bool BF16, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(NT))
    stream_half(struct gemm p, int32_t depth)
{
    stream_rows<BF16, NT, 8>(p, depth, NULL);
}

template <bool BF16, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(NT))
    stream_half_store(struct gemm p, int32_t depth, struct cuda_store store)
{
    stream_rows<BF16, NT, 4>(p, depth, &store);
}

CUDA_INLINE void load8(const float *from, float ret[8])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float4 v = reinterpret_cast<const float4 *>(from)[i];

        ret[i * 4] = v.x;
        ret[i * 4 + 1] = v.y;
        ret[i * 4 + 2] = v.z;
        ret[i * 4 + 3] = v.w;
    }
}

CUDA_INLINE void store8(const float v[8], float *to)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        reinterpret_cast<float4 *>(to)[i] = {v[i * 4], v[i * 4 + 1], v[i * 4 + 2], v[i * 4 + 3]};
    }
}

/* x (n), then zeros, to shared memory (pad): as many loads under way as
 * registers hold. */
CUDA_INLINE void take_row(const float *x, int32_t n, int32_t pad, float *to)
{
    enum { WIDE = 8, NARROW = 16 };

    if (n % 4 == 0 && reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0) {
        for (int32_t c0 = (int32_t)threadIdx.x * 4; c0 < pad; c0 += WIDE * GEMM_THREADS * 4) {
            float4 v[WIDE];

#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                int32_t c = c0 + i * GEMM_THREADS * 4;

                v[i] = {0.0f, 0.0f, 0.0f, 0.0f};
                if (c < n) {
                    v[i] = *reinterpret_cast<const float4 *>(x + c);
                }
            }
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                int32_t c = c0 + i * GEMM_THREADS * 4;

                if (c < pad) {
                    *reinterpret_cast<float4 *>(to + c) = v[i];
                }
            }
        }
        return;
    }
    for (int32_t c0 = (int32_t)threadIdx.x; c0 < pad; c0 += NARROW * GEMM_THREADS) {
        float v[NARROW];

        row_load<GEMM_THREADS, NARROW>(x, c0, n, v);
#pragma unroll
        for (int i = 0; i < NARROW; i++) {
            if (c0 + i * GEMM_THREADS < pad) {
                to[c0 + i * GEMM_THREADS] = v[i];
            }
        }
    }
}

/* A norm's weights of 8 columns; nothing where there is none, or fewer columns.
 */
CUDA_INLINE void load_weights(const struct cuda_norm &norm, int32_t c, int32_t n, float ret[8])
{
    if (norm.w && c + 8 <= n) {
        load8(norm.w + c, ret);
    }
}

/* 8 columns of the row, normed. */
CUDA_INLINE void norm8(const struct cuda_norm &norm, struct row_norm r, int32_t c, int32_t n,
                       const float w[8], float v[8])
{
    if (!norm.w) {
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (c + i < n) {
            v[i] = row_normed_by(r, v[i], c + 8 <= n ? w[i] : norm.w[c + i],
                                 norm.b ? norm.b[c + i] : 0.0f);
        }
    }
}

/* 8 columns of f32 become 8 of either piece where they lay. */
template <bool BF16> CUDA_INLINE void to_pieces(const float v[8], float scale, float *to)
{
    uint16_t half[HALF_PIECES * 8];
    uint32_t words[HALF_PIECES * 4];

    static_assert(HALF_PIECES * sizeof(uint16_t) == sizeof(float), "pieces lie where floats did");
#pragma unroll
    for (int i = 0; i < 8; i++) {
        half_pieces<BF16>(v[i] * scale, half + i, 8);
    }
#pragma unroll
    for (int i = 0; i < HALF_PIECES * 4; i++) {
        words[i] = (uint32_t)half[2 * i] | (uint32_t)half[2 * i + 1] << 16;
    }
#pragma unroll
    for (int i = 0; i < HALF_PIECES; i++) {
        reinterpret_cast<uint4 *>(to)[i] = {words[i * 4], words[i * 4 + 1], words[i * 4 + 2],
                                            words[i * 4 + 3]};
    }
}

/* 8 normed columns go back where they were: as pieces (bf16), or, as an f16 row's factor depends on
 * its largest value, as they are; returns theirs. */
template <bool BF16> CUDA_INLINE float put_normed(const float v[8], float *to)
{
    float top = 0.0f;

    if constexpr (BF16) {
        to_pieces<BF16>(v, 1.0f, to);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            top = fmaxf(top, fabsf(v[i])); /* 0 beyond the row's end */
        }
        store8(v, to);
    }
    return top;
}

/* Norm of a row in shared memory; w: the norm's weights of the thread's first 8 N columns. Returns
 * the largest value of its columns. */
template <bool BF16, int N>
CUDA_INLINE float norm_row(const struct cuda_norm &norm, struct row_norm r, int32_t n, int32_t pad,
                           const float w[N][8], float *row)
{
    float top = 0.0f;
    float v[8];

#pragma unroll
    for (int i = 0; i < N; i++) {
        int32_t c = ((int32_t)threadIdx.x + i * GEMM_THREADS) * 8;

        if (c < pad) {
            load8(row + c, v);
            norm8(norm, r, c, n, w[i], v);
            top = fmaxf(top, put_normed<BF16>(v, row + c));
        }
    }
    for (int32_t c = ((int32_t)threadIdx.x + N * GEMM_THREADS) * 8; c < pad;
         c += GEMM_THREADS * 8) {
        float late[8] = {};

        load_weights(norm, c, n, late);
        load8(row + c, v);
        norm8(norm, r, c, n, late, v);
        top = fmaxf(top, put_normed<BF16>(v, row + c));
    }
    return top;
}

/* One token, from its row as it is: every block makes the pieces for itself,
 * while its first weights are on their way. */
template <bool BF16, int MOST>
CUDA_INLINE void norm_stream_rows(const struct gemm &p, int32_t depth, const struct cuda_norm &norm,
                                  const float *x, const struct cuda_store *store)
{
    enum { EARLY = 2 };
    CUDA_SHARED(uint8_t, shared);
    float *red = reinterpret_cast<float *>(shared + ring_bytes(depth));
    float *row = red + red_of<1, true>::BYTES / sizeof(float);
    __shared__ float part[32];
    __shared__ float xe;
    struct share s = share_of<MOST>(p);
    float w[EARLY][8] = {};
    float top;
    struct ring r;

    grid_begin();
    r = ring_begin(p, s, depth, shared);
    row_norm_fetch<GEMM_THREADS>(&norm, p.n_cols);
    grid_wait();
    for (int i = 0; i < EARLY; i++) {
        load_weights(norm, ((int32_t)threadIdx.x + i * GEMM_THREADS) * 8, p.n_cols, w[i]);
    }
    take_row(x, p.n_cols, p.pad, row);
    __syncthreads(); /* row: written by all, read by all */
    top = norm_row<BF16, EARLY>(norm, row_norm_of<GEMM_THREADS>(&norm, row, p.n_cols, part),
                                p.n_cols, p.pad, w, row);
    if constexpr (!BF16) {
        float scale = half_scale(block_max(top, part, GEMM_WARPS));

        for (int32_t c = (int32_t)threadIdx.x * 8; c < p.pad; c += GEMM_THREADS * 8) {
            float v[8];

            load8(row + c, v);
            to_pieces<BF16>(v, scale, row + c);
        }
        if (threadIdx.x == 0) {
            xe = 1.0f / scale; /* a power of two: exact */
        }
    }
    __syncthreads(); /* pieces, xe: written by all, read by all */
    stream_tiles<BF16, 1, MOST, true>(
        p, s, &r, {reinterpret_cast<const uint16_t *>(row), 8, HALF_PIECES, &xe}, red, store);
}

template <bool BF16>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(1))
    norm_stream_half(struct gemm p, int32_t depth, struct cuda_norm norm, const float *x)
{
    norm_stream_rows<BF16, 8>(p, depth, norm, x, NULL);
}

template <bool BF16>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(1))
    norm_stream_half_store(struct gemm p, int32_t depth, struct cuda_norm norm, const float *x,
                           struct cuda_store store)
{
    norm_stream_rows<BF16, 4>(p, depth, norm, x, &store);
}

/* A block a multiprocessor, if there is so much to do; fills the parts' ends.
 */
static dim3 stream_grid(const struct cuda *cu, struct gemm *p)
{
    uint32_t blocks = gemm_blocks(p, 1);
    uint32_t n = (uint32_t)(p->token_end - p->token0);

    return dim3(blocks < (uint32_t)cu->n_sms ? blocks : (uint32_t)cu->n_sms,
                n <= 8 ? 1 : cuda_div_up(n, 32));
}

/* What a block needs beyond the ring: for a single token of so many columns; for up to 8 NT. */
static size_t own_bytes(int32_t pad)
{
    return red_of<1, true>::BYTES + (size_t)pad * sizeof(float);
}

/* The ring's depth, where so much is left for it; 0: not at all. */
static int32_t depth_of(const struct cuda *cu, size_t beside)
{
    int32_t depth = RING_MOST;

    while (depth > 1 && (size_t)ring_bytes(depth) + beside + 1024 /* static */ > cu->shared_max) {
        depth--;
    }
    return depth > 1 ? depth : 0;
}

bool cuda_gemm_half_fuses(const struct cuda *cu, int32_t pad)
{
    return depth_of(cu, own_bytes(pad)) > 0;
}

/* `beside`: bytes of shared memory beside the ring's. */
#define LAUNCH_STREAM(beside, kernel, ...)                                                         \
    (cuda_call_early(cu),                                                                          \
     CUDA_LAUNCH_LARGE(cu, stream_grid(cu, p), dim3(GEMM_THREADS),                                 \
                       (size_t)ring_bytes(depth_of(cu, beside)) + (beside), kernel, *p,            \
                       depth_of(cu, beside) __VA_OPT__(, ) __VA_ARGS__))

int cuda_gemm_half_fused(struct cuda *cu, struct gemm *p, bool bf16, const struct cuda_norm *norm,
                         const float *x)
{
    if (bf16) {
        LAUNCH_STREAM(own_bytes(p->pad), norm_stream_half<true>, *norm, x);
    } else {
        LAUNCH_STREAM(own_bytes(p->pad), norm_stream_half<false>, *norm, x);
    }
    return cuda_launched(cu, "norm_stream_half");
}

int cuda_gemm_half_fused_store(struct cuda *cu, struct gemm *p, bool bf16,
                               const struct cuda_norm *norm, const float *x,
                               const struct cuda_store *s)
{
    if (bf16) {
        LAUNCH_STREAM(own_bytes(p->pad), norm_stream_half_store<true>, *norm, x, *s);
    } else {
        LAUNCH_STREAM(own_bytes(p->pad), norm_stream_half_store<false>, *norm, x, *s);
    }
    return cuda_launched(cu, "norm_stream_half_store");
}

template <int NT> static constexpr size_t red_bytes = red_of<NT, false>::BYTES;

int cuda_gemm_half_store(struct cuda *cu, struct gemm *p, bool bf16, const struct cuda_store *s)
{
    bool few = p->token_end - p->token0 <= 8;

    if (few && bf16) {
        LAUNCH_STREAM(red_bytes<1>, (stream_half_store<true, 1>), *s);
    } else if (few) {
        LAUNCH_STREAM(red_bytes<1>, (stream_half_store<false, 1>), *s);
    } else if (bf16) {
        LAUNCH_STREAM(red_bytes<4>, (stream_half_store<true, 4>), *s);
    } else {
        LAUNCH_STREAM(red_bytes<4>, (stream_half_store<false, 4>), *s);
    }
    return cuda_launched(cu, "stream_half_store");
}

int cuda_gemm_half_stream(struct cuda *cu, struct gemm *p, bool bf16)
{
    bool few = p->token_end - p->token0 <= 8;

    if (few && bf16) {
        LAUNCH_STREAM(red_bytes<1>, (stream_half<true, 1>));
    } else if (few) {
        LAUNCH_STREAM(red_bytes<1>, (stream_half<false, 1>));
    } else if (bf16) {
        LAUNCH_STREAM(red_bytes<4>, (stream_half<true, 4>));
    } else {
        LAUNCH_STREAM(red_bytes<4>, (stream_half<false, 4>));
    }
    return cuda_launched(cu, "stream_half");
}

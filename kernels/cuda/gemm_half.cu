/* SPDX-License-Identifier: Apache-2.0 */
/* Decode rows by weights of 16 bits: the kernels that gemm_half.cuh is for, and which one runs.
 *
 *   stream_half       8 NT tokens, prepared by matmul.cu
 *   norm_stream_half  one token, which every block normalises and cuts into pieces for itself
 *   ..._store         the same of q, k and v (gemm_heads.cuh) */

#include "kernels/cuda/gemm_half.cuh"

template <bool BF16, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(NT)) stream_half(struct gemm p)
{
    stream_rows<BF16, NT, 8>(p, NULL);
}

template <bool BF16, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(NT))
    stream_half_store(struct gemm p, struct cuda_store store)
{
    stream_rows<BF16, NT, 4>(p, &store);
}

/* x (n), then zeros, to shared memory (pad): thread t writes columns t, t + 256, ... which is also
 * what row_norm_of has it read. */
CUDA_INLINE void take_row(const float *x, int32_t n, int32_t pad, float *to)
{
    enum { AT_ONCE = 16 };

    for (int32_t c0 = (int32_t)threadIdx.x; c0 < pad; c0 += AT_ONCE * GEMM_THREADS) {
        float v[AT_ONCE];

        row_load<GEMM_THREADS, AT_ONCE>(x, c0, n, v);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (c0 + i * GEMM_THREADS < pad) {
                to[c0 + i * GEMM_THREADS] = v[i];
            }
        }
    }
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

/* 8 columns of f32 from c on, normed, become 8 of either piece where they lie. */
template <bool BF16>
CUDA_INLINE void row_to_pieces(const struct cuda_norm &norm, struct row_norm n, int32_t n_cols,
                               float scale, int32_t c, float *row)
{
    float v[8];
    float w[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    float b[8] = {};
    uint16_t half[HALF_PIECES * 8];
    uint32_t words[HALF_PIECES * 4];

    static_assert(HALF_PIECES * sizeof(uint16_t) == sizeof(float), "pieces lie where floats did");
    load8(row + c, v);
    if (norm.w && c + 8 <= n_cols) {
        load8(norm.w + c, w);
        if (norm.b) {
            load8(norm.b + c, b);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (norm.w) {
            v[i] = c + 8 <= n_cols  ? row_normed_by(n, v[i], w[i], b[i])
                   : c + i < n_cols ? row_normed(&norm, n, v[i], c + i)
                                    : 0.0f;
        }
        half_pieces<BF16>(v[i] * scale, half + i, 8);
    }
#pragma unroll
    for (int i = 0; i < HALF_PIECES * 4; i++) {
        words[i] = (uint32_t)half[2 * i] | (uint32_t)half[2 * i + 1] << 16;
    }
#pragma unroll
    for (int i = 0; i < HALF_PIECES; i++) {
        reinterpret_cast<uint4 *>(row + c)[i] = {words[i * 4], words[i * 4 + 1], words[i * 4 + 2],
                                                 words[i * 4 + 3]};
    }
}

/* One token, from its row as it is: every block makes the pieces for itself, while its first
 * weights are on their way. */
template <bool BF16, int MOST>
CUDA_INLINE void norm_stream_rows(const struct gemm &p, const struct cuda_norm &norm,
                                  const float *x, const struct cuda_store *store)
{
    CUDA_SHARED(uint8_t, shared);
    float *red = reinterpret_cast<float *>(shared + ring_bytes);
    float *row = red + red_bytes<1>() / sizeof(float);
    __shared__ float part[32];
    __shared__ float xe;
    struct share s = share_of<MOST>(p);
    struct row_norm n;
    struct ring r;
    float scale = 1.0f;

    grid_begin();
    row_norm_fetch<GEMM_THREADS>(&norm, p.n_cols);
    r = ring_begin(p, s, reinterpret_cast<uint4 *>(shared));
    grid_wait();
    take_row(x, p.n_cols, p.pad, row);
    n = row_norm_of<GEMM_THREADS>(&norm, row, p.n_cols, part);
    if (!BF16) {
        float top = 0.0f;

        for (int32_t c = (int32_t)threadIdx.x; c < p.n_cols; c += GEMM_THREADS) {
            top = fmaxf(top, fabsf(row_normed(&norm, n, row[c], c)));
        }
        scale = half_scale(block_max(top, part, GEMM_WARPS));
        if (threadIdx.x == 0) {
            xe = 1.0f / scale; /* a power of two: exact */
        }
    }
    __syncthreads(); /* row: written by other threads than those that read it next */
    for (int32_t c = (int32_t)threadIdx.x * 8; c < p.pad; c += GEMM_THREADS * 8) {
        row_to_pieces<BF16>(norm, n, p.n_cols, scale, c, row);
    }
    __syncthreads(); /* pieces, xe: written by all, read by all */
    stream_tiles<BF16, 1, MOST>(
        p, s, &r, {reinterpret_cast<const uint16_t *>(row), 8, HALF_PIECES, &xe}, red, store);
}

template <bool BF16>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(1))
    norm_stream_half(struct gemm p, struct cuda_norm norm, const float *x)
{
    norm_stream_rows<BF16, 8>(p, norm, x, NULL);
}

template <bool BF16>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(1))
    norm_stream_half_store(struct gemm p, struct cuda_norm norm, const float *x,
                           struct cuda_store store)
{
    norm_stream_rows<BF16, 4>(p, norm, x, &store);
}

/* A block a multiprocessor, if there is so much to do; fills the parts' ends. */
static dim3 stream_grid(const struct cuda *cu, struct gemm *p)
{
    uint32_t blocks = gemm_blocks(p, 1);
    uint32_t n = (uint32_t)(p->token_end - p->token0);

    return dim3(blocks < (uint32_t)cu->n_sms ? blocks : (uint32_t)cu->n_sms,
                n <= 8 ? 1 : cuda_div_up(n, 32));
}

static size_t own_bytes(int32_t pad)
{
    return ring_bytes + red_bytes<1>() + (size_t)pad * sizeof(float);
}

bool cuda_gemm_half_fuses(const struct cuda *cu, int32_t pad)
{
    return own_bytes(pad) + 1024 /* static */ <= cu->shared_max;
}

#define LAUNCH_STREAM(shared, kernel, ...)                                                         \
    (cuda_call_early(cu),                                                                          \
     CUDA_LAUNCH_LARGE(cu, grid, dim3(GEMM_THREADS), shared, kernel, __VA_ARGS__))

int cuda_gemm_half_fused(struct cuda *cu, struct gemm *p, bool bf16, const struct cuda_norm *norm,
                         const float *x)
{
    dim3 grid = stream_grid(cu, p);

    if (bf16) {
        LAUNCH_STREAM(own_bytes(p->pad), norm_stream_half<true>, *p, *norm, x);
    } else {
        LAUNCH_STREAM(own_bytes(p->pad), norm_stream_half<false>, *p, *norm, x);
    }
    return cuda_launched(cu, "norm_stream_half");
}

int cuda_gemm_half_fused_store(struct cuda *cu, struct gemm *p, bool bf16,
                               const struct cuda_norm *norm, const float *x,
                               const struct cuda_store *s)
{
    dim3 grid = stream_grid(cu, p);

    if (bf16) {
        LAUNCH_STREAM(own_bytes(p->pad), norm_stream_half_store<true>, *p, *norm, x, *s);
    } else {
        LAUNCH_STREAM(own_bytes(p->pad), norm_stream_half_store<false>, *p, *norm, x, *s);
    }
    return cuda_launched(cu, "norm_stream_half_store");
}

int cuda_gemm_half_store(struct cuda *cu, struct gemm *p, bool bf16, const struct cuda_store *s)
{
    dim3 grid = stream_grid(cu, p);
    bool few = p->token_end - p->token0 <= 8;

    if (few && bf16) {
        LAUNCH_STREAM(ring_bytes + red_bytes<1>(), (stream_half_store<true, 1>), *p, *s);
    } else if (few) {
        LAUNCH_STREAM(ring_bytes + red_bytes<1>(), (stream_half_store<false, 1>), *p, *s);
    } else if (bf16) {
        LAUNCH_STREAM(ring_bytes + red_bytes<4>(), (stream_half_store<true, 4>), *p, *s);
    } else {
        LAUNCH_STREAM(ring_bytes + red_bytes<4>(), (stream_half_store<false, 4>), *p, *s);
    }
    return cuda_launched(cu, "stream_half_store");
}

int cuda_gemm_half_stream(struct cuda *cu, struct gemm *p, bool bf16)
{
    dim3 grid = stream_grid(cu, p);
    bool few = p->token_end - p->token0 <= 8;

    if (few && bf16) {
        LAUNCH_STREAM(ring_bytes + red_bytes<1>(), (stream_half<true, 1>), *p);
    } else if (few) {
        LAUNCH_STREAM(ring_bytes + red_bytes<1>(), (stream_half<false, 1>), *p);
    } else if (bf16) {
        LAUNCH_STREAM(ring_bytes + red_bytes<4>(), (stream_half<true, 4>), *p);
    } else {
        LAUNCH_STREAM(ring_bytes + red_bytes<4>(), (stream_half<false, 4>), *p);
    }
    return cuda_launched(cu, "stream_half");
}

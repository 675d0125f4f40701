/* SPDX-License-Identifier: Apache-2.0 */
/* Decode rows by weights of 16 bits: the kernels that gemm_half.cuh is for, and which one runs.
 *
 *   stream_half       8 NT tokens, prepared by matmul.cu
 *   stream_half_raw   up to 8 tokens by bf16, from rows as they are
 *   norm_stream_half  one token: every block forms its norm's sums for itself
 *   ..._store         the same of q, k and v (gemm_heads.cuh) */

#include "kernels/cuda/gemm_half.cuh"

template <bool BF16, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(NT))
    stream_half(struct gemm p, int32_t depth)
{
    stream_rows<BF16, NT, 8, false>(p, depth, NULL);
}

template <bool BF16, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(NT))
    stream_half_store(struct gemm p, int32_t depth, struct cuda_store store)
{
    stream_rows<BF16, NT, 4, false>(p, depth, &store);
}

CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, 2) stream_half_raw(struct gemm p, int32_t depth)
{
    stream_rows<true, 1, 8, true>(p, depth, NULL);
}

/* The largest value of a normed row. */
CUDA_INLINE float largest_of(const struct cuda_norm &norm, struct row_norm r, const float *x,
                             int32_t n, float *part)
{
    enum { N = 8 };
    float top = 0.0f;

    for (int32_t c = (int32_t)threadIdx.x; c < n; c += N * GEMM_THREADS) {
        float v[N];
        float w[N] = {};

        row_load<GEMM_THREADS, N>(x, c, n, v);
        if (norm.w) {
            row_load<GEMM_THREADS, N>(norm.w, c, n, w);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            int32_t at = c + i * GEMM_THREADS;

            if (norm.w && at < n) {
                v[i] = row_normed_by(r, v[i], w[i], norm.b ? norm.b[at] : 0.0f);
            }
            top = fmaxf(top, fabsf(v[i])); /* 0 beyond the end */
        }
    }
    return block_max(top, part, GEMM_WARPS);
}

/* One token, from its row as it is: every block forms the norm's sums for itself, while its first
 * weights are on their way. */
template <bool BF16, int MOST>
CUDA_INLINE void norm_stream_rows(const struct gemm &p, int32_t depth, const struct cuda_norm &norm,
                                  const float *x, const struct cuda_store *store)
{
    CUDA_SHARED(uint8_t, shared);
    float *red = reinterpret_cast<float *>(shared + ring_bytes<SLICE>(depth));
    __shared__ float part[32];
    struct share s = share_of(p, MOST);
    struct one_row<BF16> from = {
    };
    float xe[1] = {1.0f};
    struct ring<SLICE> r;

    grid_begin();
    r = ring_begin<SLICE>(p, s, depth, shared);
    row_norm_fetch<GEMM_THREADS>(&norm, p.n_cols);
    grid_wait();
    from.x = x;
    from.norm = norm;
    from.n_cols = p.n_cols;
    from.pieces = reinterpret_cast<uint16_t *>(red + red_of<1, true>::BYTES / sizeof(float)) +
                  threadIdx.x / WARP * SLICE * HALF_PIECES;
    from.first = r.first;
    from.end = r.end;
    begin_step(&from, r.first);
    from.by = row_norm_of<GEMM_THREADS>(&norm, x, p.n_cols, part);
    if (!BF16) {
        from.scale = half_scale(largest_of(norm, from.by, x, p.n_cols, part));
        xe[0] = 1.0f / from.scale; /* a power of two: exact */
    }
    stream_one<BF16, MOST>(p, s, &r, &from, xe, red, store);
}

/* A multiprocessor has one block of these two (alone_bytes). */
template <bool BF16>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, CUDA_ON_100(1, 2))
    norm_stream_half(struct gemm p, int32_t depth, struct cuda_norm norm, const float *x)
{
    norm_stream_rows<BF16, 8>(p, depth, norm, x, NULL);
}

template <bool BF16>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, CUDA_ON_100(1, 2))
    norm_stream_half_store(struct gemm p, int32_t depth, struct cuda_norm norm, const float *x,
                           struct cuda_store store)
{
    norm_stream_rows<BF16, 4>(p, depth, norm, x, &store);
}

/* So many blocks a multiprocessor, if there is so much to do; fills the parts' ends. */
static dim3 stream_grid(const struct cuda *cu, struct gemm *p, uint32_t each)
{
    uint32_t blocks = gemm_blocks(p, 1);
    uint32_t n = (uint32_t)(p->token_end - p->token0);
    uint32_t most = (uint32_t)cu->n_sms * each;

    return dim3(blocks < most ? blocks : most, cuda_div_up(n, 32));
}

/* The ring's depth where a block has so much beside it. */
template <int STEP> static int32_t depth_of(const struct cuda *cu, size_t beside)
{
    size_t most = (size_t)ring_bytes<STEP>(ring<STEP>::DEEP) + beside + 1024 /* static */;

    return most <= cu->shared_max ? ring<STEP>::DEEP : ring<STEP>::SHALLOW;
}

template <int NT> static constexpr size_t red_bytes = red_of<NT, false>::BYTES;
static constexpr size_t own_bytes =
    red_of<1, true>::BYTES + GEMM_WARPS * SLICE * HALF_PIECES * sizeof(uint16_t);

#define LAUNCH_STREAM(step, depth, each, beside, kernel, ...)                                      \
    (cuda_call_early(cu), CUDA_LAUNCH_LARGE(cu, stream_grid(cu, p, each), dim3(GEMM_THREADS),      \
                                            (size_t)ring_bytes<step>(depth) + (beside), kernel,    \
                                            *p, depth __VA_OPT__(, ) __VA_ARGS__))
/* Beside a single row's ring: what the block needs, and more where two such blocks would fit a
 * multiprocessor. The small grids ahead of a product (attention, its join) hold some
 * multiprocessors a little longer, and the product's last blocks would lie two on one and none on
 * others. In a probe on an H200 such a layer took 125.7 us, 113.5 with 16 KB more, and 111.9 where
 * nothing was uneven. In whole steps it is not measured. */
static size_t alone_bytes(const struct cuda *cu)
{
    size_t ring = (size_t)ring_bytes<SLICE>(depth_of<SLICE>(cu, own_bytes));
    size_t half = (cu->shared_max + 1024) / 2;

    return ring + own_bytes < half ? half - ring : own_bytes;
}

#define LAUNCH_ONE(kernel, ...)                                                                    \
    LAUNCH_STREAM(SLICE, depth_of<SLICE>(cu, own_bytes), 1, alone_bytes(cu), kernel, __VA_ARGS__)
/* Two blocks of two steps: one's loads of activations come while the other multiplies. */
#define LAUNCH_FEW(kernel, ...)                                                                    \
    LAUNCH_STREAM(SLICE, ring<SLICE>::SHALLOW, 2, red_bytes<1>, kernel, __VA_ARGS__)
#define LAUNCH_MORE(nt, kernel, ...)                                                               \
    LAUNCH_STREAM(step_of<nt>, depth_of<step_of<nt>>(cu, red_bytes<nt>), 1, red_bytes<nt>, kernel, \
                  __VA_ARGS__)

int cuda_gemm_half_fused(struct cuda *cu, struct gemm *p, bool bf16, const struct cuda_norm *norm,
                         const float *x)
{
    if (bf16) {
        LAUNCH_ONE(norm_stream_half<true>, *norm, x);
    } else {
        LAUNCH_ONE(norm_stream_half<false>, *norm, x);
    }
    return cuda_launched(cu, "norm_stream_half");
}

int cuda_gemm_half_fused_store(struct cuda *cu, struct gemm *p, bool bf16,
                               const struct cuda_norm *norm, const float *x,
                               const struct cuda_store *s)
{
    if (bf16) {
        LAUNCH_ONE(norm_stream_half_store<true>, *norm, x, *s);
    } else {
        LAUNCH_ONE(norm_stream_half_store<false>, *norm, x, *s);
    }
    return cuda_launched(cu, "norm_stream_half_store");
}

template <bool BF16>
static void launch_store(struct cuda *cu, struct gemm *p, const struct cuda_store *s)
{
    int32_t n = p->token_end - p->token0;

    if (n <= 8) {
        LAUNCH_FEW((stream_half_store<BF16, 1>), *s);
    } else if (n <= 16) {
        LAUNCH_MORE(2, (stream_half_store<BF16, 2>), *s);
    } else {
        LAUNCH_MORE(4, (stream_half_store<BF16, 4>), *s);
    }
}

int cuda_gemm_half_store(struct cuda *cu, struct gemm *p, bool bf16, const struct cuda_store *s)
{
    if (bf16) {
        launch_store<true>(cu, p, s);
    } else {
        launch_store<false>(cu, p, s);
    }
    return cuda_launched(cu, "stream_half_store");
}

int cuda_gemm_half_raw(struct cuda *cu, struct gemm *p)
{
    LAUNCH_FEW(stream_half_raw);
    return cuda_launched(cu, "stream_half_raw");
}

template <bool BF16> static void launch_stream(struct cuda *cu, struct gemm *p)
{
    int32_t n = p->token_end - p->token0;

    if (n <= 8) {
        LAUNCH_FEW((stream_half<BF16, 1>));
    } else if (n <= 16) {
        LAUNCH_MORE(2, (stream_half<BF16, 2>));
    } else {
        LAUNCH_MORE(4, (stream_half<BF16, 4>));
    }
}

int cuda_gemm_half_stream(struct cuda *cu, struct gemm *p, bool bf16)
{
    if (bf16) {
        launch_stream<true>(cu, p);
    } else {
        launch_stream<false>(cu, p);
    }
    return cuda_launched(cu, "stream_half");
}

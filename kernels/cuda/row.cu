/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on whole rows: embed, norm, gather, mul, softcap.
 *
 * One block of 256 threads a row. A norm reads its row three times (sum, squares, result), the
 * second and third time from L1; 16 loads of a thread are under way at once. Row numbers travel as
 * the launch's parameter, CUDA_IDS of them at a time: no copy, no wait. embed gives the bits of
 * quant/dtype.c: products and sums are rounded one by one, not fused. */

#include <cerrno>

#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/row.cuh"

enum { ROW_THREADS = 256 };

struct ids {
    int32_t id[CUDA_IDS];
};

/* ---- embed ---------------------------------------------------------------------------------- */

/* The token of the block's row; a draw that failed, which the host will notice, is token 0. */
CUDA_INLINE int32_t row_id(const struct ids *ids, const int32_t *drawn)
{
    int32_t id = drawn ? drawn[blockIdx.x] : ids->id[blockIdx.x];

    return id < 0 ? 0 : id;
}

template <typename F>
CUDA_KERNEL void embed_frag(struct ids ids, const int32_t *drawn, const uint8_t *w, int32_t n_cols,
                            float scale, float *y, int32_t ld)
{
    int32_t id = row_id(&ids, drawn);

    for (int32_t c = (int32_t)threadIdx.x; c < n_cols; c += ROW_THREADS) {
        y[(size_t)blockIdx.x * ld + c] = __fmul_rn(frag_value<F>(w, n_cols, id, c), scale);
    }
}

CUDA_KERNEL void embed_plain(struct ids ids, const int32_t *drawn, const uint8_t *w, int32_t type,
                             int32_t pitch, int32_t n_cols, float scale, float *y, int32_t ld)
{
    const uint8_t *row = w + (size_t)row_id(&ids, drawn) * pitch;

    for (int32_t c = (int32_t)threadIdx.x; c < n_cols; c += ROW_THREADS) {
        uint16_t half = type == DTYPE_F32 ? 0 : reinterpret_cast<const uint16_t *>(row)[c];
        float v = type == DTYPE_F32   ? reinterpret_cast<const float *>(row)[c]
                  : type == DTYPE_F16 ? f32_of_f16(half)
                                      : f32_of_bf16(half);

        y[(size_t)blockIdx.x * ld + c] = __fmul_rn(v, scale);
    }
}

static int embed_some(struct cuda *cu, const struct ops_embed *p, const struct ids *ids,
                      const int32_t *drawn, int32_t n, float *y)
{
    const uint8_t *w = static_cast<const uint8_t *>(p->w->device);
    dim3 grid((unsigned)n);

    switch (p->w->type) {
#define EMBED(TYPE, F)                                                                             \
    case TYPE:                                                                                     \
        CUDA_LAUNCH(cu, grid, dim3(ROW_THREADS), 0, embed_frag<F>, *ids, drawn, w, p->w->n_cols,   \
                    p->scale, y, p->ld);                                                           \
        break;
        FRAG_TYPES(EMBED)
#undef EMBED
    default:
        CUDA_LAUNCH(cu, grid, dim3(ROW_THREADS), 0, embed_plain, *ids, drawn, w,
                    (int32_t)p->w->type, (int32_t)plain_pitch(p->w->type, p->w->n_cols),
                    p->w->n_cols, p->scale, y, p->ld);
    }
    return cuda_launched(cu, "embed");
}

int cuda_embed(struct backend *be, const struct ops_embed *p)
{
    struct cuda *cu = cuda_of(be);
    int r = cuda_queue_step(cu, p->rows.n == p->rows.n_decode);

    for (int32_t i = 0; i < p->rows.n && r == 0; i += CUDA_IDS) {
        int32_t n = p->rows.n - i < CUDA_IDS ? p->rows.n - i : CUDA_IDS;
        struct ids ids;

        memset(&ids, 0, sizeof(ids));
        if (!p->drawn) {
            memcpy(ids.id, p->ids + i, (size_t)n * sizeof(int32_t));
        }
        r = embed_some(cu, p, &ids, p->drawn ? p->drawn + i : NULL, n,
                       p->y + (size_t)i * (size_t)p->ld);
    }
    return r;
}

/* ---- norm ----------------------------------------------------------------------------------- */

CUDA_KERNEL void norm_rows(struct cuda_norm norm, const float *x, int32_t ldx, float *y,
                           int32_t ldy, int32_t n_cols, bool add)
{
    __shared__ float part[32];
    const float *from = x + (size_t)blockIdx.x * ldx;
    float *to = y + (size_t)blockIdx.x * ldy;
    struct row_norm r;

    grid_begin();
    row_norm_fetch<ROW_THREADS>(&norm, n_cols);
    grid_wait();
    r = row_norm_of<ROW_THREADS>(&norm, from, n_cols, part);
#pragma unroll 8
    for (int32_t c = (int32_t)threadIdx.x; c < n_cols; c += ROW_THREADS) {
        float v = row_normed(&norm, r, from[c], c);

        to[c] = add ? to[c] + v : v;
    }
}

int cuda_norm(struct backend *be, const struct ops_norm_op *p)
{
    struct cuda *cu = cuda_of(be);

    if (p->n_cols > cu->limits.max_cols) {
        return -EINVAL;
    }
    if (p->rows.n == 0) {
        return 0;
    }
    CUDA_LAUNCH_EARLY(cu, dim3((unsigned)p->rows.n), dim3(ROW_THREADS), 0, norm_rows,
                      cuda_norm_of(&p->norm), p->x, p->ldx, p->y, p->ldy, p->n_cols, p->add);
    return cuda_launched(cu, "norm_rows");
}

/* ---- gather, mul, softcap ------------------------------------------------------------------- */

CUDA_KERNEL void gather_rows(struct ids ids, const float *x, int32_t ldx, float *y, int32_t ldy,
                             int32_t n_cols)
{
    const float *from = x + (size_t)ids.id[blockIdx.x] * ldx;

    grid_begin();
    grid_wait();
    for (int32_t c = (int32_t)threadIdx.x; c < n_cols; c += ROW_THREADS) {
        y[(size_t)blockIdx.x * ldy + c] = from[c];
    }
}

int cuda_gather(struct backend *be, const struct ops_gather *p)
{
    struct cuda *cu = cuda_of(be);
    int r = 0;

    for (int32_t i = 0; i < p->n_rows && r == 0; i += CUDA_IDS) {
        int32_t n = p->n_rows - i < CUDA_IDS ? p->n_rows - i : CUDA_IDS;
        struct ids ids;

        memset(&ids, 0, sizeof(ids));
        memcpy(ids.id, p->index + i, (size_t)n * sizeof(int32_t));
        CUDA_LAUNCH_EARLY(cu, dim3((unsigned)n), dim3(ROW_THREADS), 0, gather_rows, ids, p->x,
                          p->ldx, p->y + (size_t)i * (size_t)p->ldy, p->ldy, p->n_cols);
        r = cuda_launched(cu, "gather_rows");
    }
    return r;
}

CUDA_KERNEL void mul_rows(const float *x, int32_t ldx, float *y, int32_t ldy, int32_t n_cols,
                          float scale)
{
    float *row = y + (size_t)blockIdx.x * ldy;

    grid_begin();
    grid_wait();
    for (int32_t c = (int32_t)threadIdx.x; c < n_cols; c += ROW_THREADS) {
        float v = x ? __fmul_rn(row[c], x[(size_t)blockIdx.x * ldx + c]) : row[c];

        row[c] = __fmul_rn(v, scale);
    }
}

int cuda_mul(struct backend *be, const struct ops_mul *p)
{
    struct cuda *cu = cuda_of(be);

    if (p->rows.n == 0) {
        return 0;
    }
    CUDA_LAUNCH_EARLY(cu, dim3((unsigned)p->rows.n), dim3(ROW_THREADS), 0, mul_rows, p->x, p->ldx,
                      p->y, p->ldy, p->n_cols, p->scale);
    return cuda_launched(cu, "mul_rows");
}

CUDA_KERNEL void softcap_rows(float *x, int32_t ld, int32_t n_cols, float cap)
{
    float *row = x + (size_t)blockIdx.x * ld;
    int32_t c = (int32_t)(blockIdx.y * ROW_THREADS + threadIdx.x);

    grid_begin();
    grid_wait();
    if (c < n_cols) {
        row[c] = cap * tanhf(row[c] / cap);
    }
}

int cuda_softcap(struct backend *be, const struct ops_softcap *p)
{
    struct cuda *cu = cuda_of(be);

    if (p->n_rows == 0) {
        return 0;
    }
    CUDA_LAUNCH_EARLY(cu, dim3((unsigned)p->n_rows, cuda_div_up(p->n_cols, ROW_THREADS)),
                      dim3(ROW_THREADS), 0, softcap_rows, p->x, p->ld, p->n_cols, p->cap);
    return cuda_launched(cu, "softcap_rows");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Products of prompts' rows by cublasLt: which of them it multiplies, and sums that are not the
 * output yet. */

#include "kernels/cuda/cublas_calls.cuh"

#if CUDA_LT

enum { FINISH_THREADS = 256, FINISH_ROWS = 1024 /* outputs of a block */ };

struct lt_sums {
    const float *sum; /* (tokens, ld) */
    const float *up;  /* (tokens, ld_up), of a gated pair, else NULL */
    int64_t ld, ld_up;
    int32_t token0; /* of row 0 */
    int32_t part;
    bool scaled; /* by the token's factor of f16 */
};

CUDA_KERNEL void __launch_bounds__(FINISH_THREADS) lt_finish(struct gemm p, struct lt_sums s)
{
    int32_t token = s.token0 + (int32_t)blockIdx.y;
    const float *sum = s.sum + (int64_t)blockIdx.y * s.ld;
    const float *up = s.up + (int64_t)blockIdx.y * s.ld_up;
    float scale = s.scaled ? p.xe[token] : 1.0f;
    int32_t end = min((int32_t)(blockIdx.x + 1) * FINISH_ROWS, p.part[s.part].n_rows);

    for (int32_t row = (int32_t)blockIdx.x * FINISH_ROWS + (int32_t)threadIdx.x; row < end;
         row += FINISH_THREADS) {
        if (s.up) {
            gemm_finish_gated(&p, row, token, sum[row] * scale, up[row] * scale);
        } else {
            gemm_finish(&p, s.part, row, token, sum[row] * scale);
        }
    }
}

static int finish(struct cuda *cu, const struct gemm *p, const struct lt_sums &s, int32_t n)
{
    dim3 grid(cuda_div_up((uint64_t)p->part[s.part].n_rows, FINISH_ROWS), (unsigned)n);

    CUDA_LAUNCH(cu, grid, dim3(FINISH_THREADS), 0, lt_finish, *p, s);
    return cuda_launched(cu, "lt_finish");
}

/* May the library write there? At the distance of rows that its algorithm was tried with alone. */
static bool straight(const struct gemm_part *to, const struct lt_shape *s)
{
    return to->ldy == lt_sums_ld(s->n_rows) && reinterpret_cast<uintptr_t>(to->y) % LT_ALIGN == 0;
}

static int one_part(struct cuda *cu, const struct gemm *p, int part, const struct lt_shape *s)
{
    const struct gemm_part *to = &p->part[part];
    bool direct = s->bf16 && to->act == OPS_ACT_NONE && to->scale == 1.0f && !to->bias &&
                  straight(to, s);
    struct lt_sums sums = {};
    int r = 0;

    sums.sum = cu->scratch.lt_sums;
    sums.ld = lt_sums_ld(s->n_rows);
    sums.part = part;
    sums.scaled = !s->bf16;
    for (int32_t t = p->token0; t < p->token_end && r == 0; t += cu->lt->max_rows) {
        int32_t n = min(p->token_end - t, cu->lt->max_rows);
        const uint16_t *x = p->xh + (int64_t)t * p->pad;

        if (direct) {
            r = lt_product(cu, s, to->w, x, n, to->y + (int64_t)t * to->ldy, to->ldy, p->add);
            continue;
        }
        sums.token0 = t;
        r = lt_product(cu, s, to->w, x, n, cu->scratch.lt_sums, sums.ld, false);
        r = r < 0 ? r : finish(cu, p, sums, n);
    }
    return r;
}

/* The gate's sums in scratch, the up projection's where the output will be; or both in scratch. */
static int gated(struct cuda *cu, const struct gemm *p, const struct lt_shape *s)
{
    const struct gemm_part *to = &p->part[0];
    int64_t ld = lt_sums_ld(s->n_rows);
    bool direct = straight(to, s);
    int32_t most = direct ? cu->lt->max_rows : (cu->lt->max_rows + 1) / 2;
    struct lt_sums sums = {};
    int r = 0;

    sums.sum = cu->scratch.lt_sums;
    sums.ld = ld;
    sums.ld_up = direct ? to->ldy : ld;
    sums.scaled = !s->bf16;
    for (int32_t t = p->token0; t < p->token_end && r == 0; t += most) {
        int32_t n = min(p->token_end - t, most);
        const uint16_t *x = p->xh + (int64_t)t * p->pad;
        float *up = direct ? to->y + (int64_t)t * to->ldy : cu->scratch.lt_sums + most * ld;

        sums.token0 = t;
        sums.up = up;
        r = lt_product(cu, s, to->w, x, n, cu->scratch.lt_sums, ld, false);
        r = r < 0 ? r : lt_product(cu, s, p->part[1].w, x, n, up, sums.ld_up, false);
        r = r < 0 ? r : finish(cu, p, sums, n);
    }
    return r;
}

static const struct lt_shape *served(struct cuda *cu, const struct gemm *p, int part, bool bf16)
{
    const struct lt_shape *s =
        cu->lt ? lt_find(cu->lt, p->part[part].n_rows, p->n_cols, bf16) : NULL;

    return s && s->served ? s : NULL;
}

int cuda_lt_products(struct cuda *cu, struct gemm *p, bool bf16)
{
    struct gemm own = *p;
    int r = cu->lt ? cuda_queue_flush(cu) : 0;

    if (p->gated) {
        const struct lt_shape *s = served(cu, p, 0, bf16);

        return r < 0 ? r : s ? gated(cu, p, s) : cuda_gemm_half_tiles(cu, p, bf16);
    }
    own.n_parts = 0;
    for (int i = 0; i < p->n_parts && r == 0; i++) {
        const struct lt_shape *s = served(cu, p, i, bf16);

        if (s) {
            r = one_part(cu, p, i, s);
        } else {
            own.part[own.n_parts++] = p->part[i];
        }
    }
    return r < 0 || own.n_parts == 0 ? r : cuda_gemm_half_tiles(cu, &own, bf16);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* All shapes of a model's weights are tried before a plan asks what the device has free.
 *
 * What cublasLt takes of the device for its kernels and for itself is in no plan. It takes it when
 * an algorithm is first run, so each is run here, by weights of random numbers in memory that is
 * given back. What is free afterwards is free for the plan, and nothing is taken later. The
 * description says how much it was.
 *
 * Here alone shapes of several weights are tried that one product takes: q, k and v, or gate and up
 * (ops_weight_desc.joins, cublas_products.cu). */

#include "kernels/cuda/cublas_calls.cuh"

#include <cerrno>
#include <cstdlib>

#if CUDA_LT

enum { RANDOM_BYTES = 1 << 20 };

/* Numbers as those of the rows that it meets, the same again after 1 MiB. */
static int fill_random(struct cuda *cu, uint8_t *to, uint64_t bytes, bool bf16)
{
    uint64_t n = bytes < RANDOM_BYTES ? bytes : (uint64_t)RANDOM_BYTES;
    uint16_t *random = static_cast<uint16_t *>(malloc((size_t)n + 1));
    uint32_t state = 2;
    int r;

    for (uint64_t i = 0; random && i < n / 2; i++) {
        random[i] = lt_trial_number(&state, bf16);
    }
    r = random ? cu->be.ops->write(&cu->be, to, random, n) : -ENOMEM;
    for (uint64_t done = n; done < bytes && r == 0; done *= 2) {
        r = cu->be.ops->copy(&cu->be, to + done, to, done < bytes - done ? done : bytes - done);
    }
    r = r < 0 ? r : cu->be.ops->sync(&cu->be);
    free(random);
    return r;
}

static struct ops_weight weight_of(const struct ops_weight_desc *d)
{
    struct ops_weight w = {};

    w.type = d->type;
    w.role = d->role;
    w.n_stack = d->n_stack;
    w.n_rows = d->n_rows;
    w.n_cols = d->n_cols;
    return w;
}

/* A weight that stands for list[i] and those it joins, or none (no rows): values of 16 bits lie one
 * behind the other on the device where each fills whole units of memory, those of quantised ones
 * are unpacked so where a slab holds all of them. */
static struct ops_weight joined_of(const struct cuda *cu,
                                   const struct ops_weight_desc *const *list, int32_t i)
{
    struct ops_weight w = weight_of(list[i]);
    bool plain = cuda_gemm_form(w.type) != GEMM_Q8;
    int64_t n_rows = w.n_rows;
    int32_t left = list[i]->joins;

    for (int32_t k = i - 1; k >= 0 && left > 0; k--) {
        struct ops_weight other = weight_of(list[k]);

        if (other.role != OPS_ROLE_MATMUL) {
            continue;
        }
        left--;
        if (!lt_eligible(cu->lt, &other) || other.n_cols != w.n_cols ||
            (plain ? other.type != w.type : cuda_gemm_form(other.type) != GEMM_Q8) ||
            (plain && (int64_t)other.n_rows * lt_w_pad(other.n_cols) * 2 % CUDA_ALIGN != 0)) {
            return {};
        }
        n_rows += other.n_rows;
    }
    if (list[i]->joins == 0 || left > 0 || !lt_eligible(cu->lt, &w) || n_rows > INT32_MAX / 2 ||
        lt_most(cu->lt, lt_sums_ld((int32_t)n_rows)) == 0 ||
        lt_slab_rows(cu, w.type, (int32_t)n_rows, w.n_cols) < n_rows) {
        return {};
    }
    w.n_rows = (int32_t)n_rows;
    return w;
}

/* What trials use of the scratch, and the most that a weight is multiplied of at a time. */
struct room {
    uint64_t x, sums, work, weight;
};

static struct room room_for(const struct cuda *cu, const struct backend_limits *limits,
                            const struct ops_weight_desc *const *list, int32_t n)
{
    const struct cuda_scratch *s = &cu->scratch;
    struct room room = {};

    room.x = (uint64_t)s->lt_rows * (uint64_t)lt_x_pad(limits->max_cols) * sizeof(uint16_t);
    room.sums = (uint64_t)(s->lt_rows + 1) * (uint64_t)lt_sums_ld(limits->max_outputs) *
                sizeof(float);
    room.work = cu->lt->workspace;
    for (int32_t i = 0; i < n; i++) {
        for (const struct ops_weight &w : {weight_of(list[i]), joined_of(cu, list, i)}) {
            uint64_t rows = w.n_rows > 0 && lt_eligible(cu->lt, &w)
                                ? (uint64_t)lt_slab_rows(cu, w.type, w.n_rows, w.n_cols)
                                : 0;
            uint64_t bytes = rows * (uint64_t)lt_w_pad(w.n_cols) * sizeof(uint16_t);

            room.weight = bytes > room.weight ? bytes : room.weight;
        }
    }
    room.weight = (room.weight + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
    room.sums = (room.sums + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
    return room;
}

/* Weights of f16, then all others, which are bf16 then. */
static int try_all(struct cuda *cu, const struct backend_limits *limits,
                   const struct ops_weight_desc *const *list, int32_t n, uint8_t *random,
                   uint64_t random_bytes)
{
    int r = 0;

    for (int bf16 = 0; bf16 < 2; bf16++) {
        bool filled = false;

        for (int32_t i = 0; i < n && r == 0; i++) {
            struct ops_weight w = weight_of(list[i]);

            if (!lt_eligible(cu->lt, &w) || (w.type != DTYPE_F16) != (bf16 != 0) ||
                w.n_rows > limits->max_outputs || w.n_cols > limits->max_cols) {
                continue;
            }
            struct ops_weight all = joined_of(cu, list, i);

            r = filled ? 0 : fill_random(cu, random, random_bytes, bf16 != 0);
            filled = true;
            r = r < 0 ? r : lt_add(cu, &w, random, false);
            if (r == 0 && all.n_rows > 0) {
                r = lt_add(cu, &all, random, true);
            }
        }
    }
    return r;
}

static uint64_t free_now(const struct cuda *cu)
{
    size_t available = 0;
    size_t total = 0;

    if (cu->integrated || cudaMemGetInfo(&available, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return available;
}

int cuda_lt_weights_try(struct backend *be, const struct backend_limits *limits,
                        const struct ops_weight_desc *const *list, int32_t n,
                        struct error *reterr)
{
    struct cuda *cu = cuda_of(be);
    struct cuda_lt *lt = cu->lt;
    uint64_t before;
    struct room room;
    void *base = NULL;
    int r;

    if (!lt || cu->scratch_base) {
        return 0;
    }
    (void)cuda_scratch(limits, cuda_lt_held(cu), NULL, &cu->scratch); /* its sizes */
    cuda_lt_limits(cu);
    room = room_for(cu, limits, list, n);
    before = free_now(cu);
    r = room.weight == 0 ? 0
                         : be->ops->alloc(be, room.x + room.sums + room.work + room.weight,
                                          "trials of cublasLt", &base, NULL);
    if (r == 0 && base) {
        uint8_t *at = static_cast<uint8_t *>(base); /* each part is a multiple of 256 bytes */

        cu->scratch.lt_work = at;
        cu->scratch.xh = reinterpret_cast<uint16_t *>(at + room.work);
        cu->scratch.lt_sums = reinterpret_cast<float *>(at + room.work + room.x);
        r = try_all(cu, limits, list, n, at + room.work + room.x + room.sums, room.weight);
        be->ops->free(be, base, 0);
        lt->tried_rows = r == 0 ? lt->max_rows : 0;
        lt->tried_weights = cu->scratch.lt_weights;
        lt->code_bytes = free_now(cu) < before ? before - free_now(cu) : 0;
    }
    cu->scratch = {};
    lt->max_rows = 0;
    if (!cu->lost) {
        cu->news[0] = '\0';
        return 0;
    }
    return error_set(reterr, r < 0 ? r : -ENODEV, "trials of cublasLt: %s", cu->cause);
}

#endif

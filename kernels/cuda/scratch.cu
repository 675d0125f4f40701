/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch: what kernels leave for the kernels behind them. One allocation, laid out here from the
 * limits alone, so that the plan needs no device and nothing is allocated after the start.
 *
 * cuda_scratch() counts when it is given no base, and deals out addresses when it is given one;
 * both take the same way. Each part begins at a multiple of 256 bytes, and has none where the
 * limits exclude what needs it. A piece (memory.cu) may overwrite what comes before `bytes`, as
 * long as no operation runs: also between two operations of a step, which may be held up for an
 * export. So behind it lie rows that one operation leaves for the next, and counters, which
 * launches leave at zero and expect so. */

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/backend.cuh"
#include "kernels/cuda/cublas.cuh"
#include "kernels/cuda/expect.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/select.cuh"

static uint64_t at_least_one(int32_t n)
{
    return n > 0 ? (uint64_t)n : 1;
}

struct taker {
    uint8_t *base;
    uint64_t used;
};

template <typename T> static void take(struct taker *t, uint64_t n, T **ret)
{
    *ret = t->base ? reinterpret_cast<T *>(t->base + t->used) : NULL;
    t->used += cuda_round_up(n * sizeof(T), 256);
}

uint64_t cuda_scratch(const struct backend_limits *l, struct cuda_lt_use lt, uint8_t *base,
                      struct cuda_scratch *ret)
{
    struct taker t = {base, 0};
    uint64_t rows = at_least_one(cuda_prepared_rows(l));
    uint64_t cols = cuda_round_up(at_least_one(l->max_cols), 256);
    uint64_t heads = at_least_one(l->max_heads);
    uint64_t slots = cuda_round_up(at_least_one(l->max_slots), 64);
    uint64_t decode = at_least_one(l->max_decode);
    uint64_t chunks = 1;
    uint64_t observed = 0;
    uint64_t selected = 0;
    uint64_t expects = l->expect ? heads : 0;
    uint64_t dims = (uint64_t)expect_padded((int32_t)at_least_one(l->max_head_dim));
    uint64_t entries = l->max_experts > 0 ? at_least_one(cuda_entries(l)) : 0;
    uint64_t lt_rows = rows < (uint64_t)CUDA_LT_ROWS ? rows : (uint64_t)CUDA_LT_ROWS;
    uint64_t lt_weights =
        l->max_quantised < (uint64_t)CUDA_LT_SLAB ? l->max_quantised : (uint64_t)CUDA_LT_SLAB;

    for (int32_t n = 1; n < l->max_slots; n = n < 64 ? 64 : n * 2) { /* not monotonous */
        uint64_t c = cuda_div_up((uint64_t)n, (uint64_t)cuda_chunk(n));

        chunks = c > chunks ? c : chunks;
    }
    if (l->max_slots > 0) {
        uint64_t c = cuda_div_up(slots, (uint64_t)cuda_chunk(l->max_slots));

        chunks = c > chunks ? c : chunks;
    }
    if (l->max_slots > 0) {
        uint64_t c = (uint64_t)cuda_stream_chunks_most(l->max_slots);

        chunks = c > chunks ? c : chunks;
    }
    if (l->observe) { /* as many rows at once as 64 MiB hold */
        observed = ((uint64_t)64 << 20) / (heads * slots * sizeof(float));
        observed = observed < 1 ? 1 : observed > decode ? decode : observed;
    }
    lt_rows = lt.work > 0 ? lt_rows : 0;
    lt_weights = lt.work > 0 && lt.unpacks ? lt_weights : 0;
    if (l->select) {
        selected = ((uint64_t)64 << 20) / (heads * slots * sizeof(float));
        selected = selected < 1 ? 1 : selected > decode ? decode : selected;
        selected = selected < (uint64_t)CUDA_SEQS ? selected : (uint64_t)CUDA_SEQS; /* a launch's */
    }
    take(&t, rows * cols, &ret->xf);
    take(&t, 2 * rows * cols, &ret->xq);
    take(&t, rows * cols / 32, &ret->xd);
    take(&t, rows * cols / 32, &ret->xs);
    take(&t, 2 * rows * cols, &ret->xh);
    take(&t, rows, &ret->xe);
    take(&t, 2 * CUDA_CODES_BYTES(cols), &ret->row_codes);
    take(&t, decode * heads * chunks * (at_least_one(l->max_head_dim) + 4), &ret->part);
    take(&t, l->observe ? rows * heads * 2 : 0, &ret->sums);
    take(&t, observed * heads * slots, &ret->logits);
    take(&t, l->observe ? rows * heads * cuda_round_up(at_least_one(l->max_head_dim), 8) : 0,
         &ret->queries);
    take(&t, l->observe ? rows * heads : 0, &ret->query_factor);
    take(&t, selected * heads * slots, &ret->approx);
    take(&t, selected * heads * slots, &ret->mass);
    take(&t, selected * heads * (uint64_t)select_max_tiles(l->max_slots) * 2, &ret->tile);
    take(&t, selected * heads * SELECT_BINS, &ret->count);
    take(&t, selected * heads * slots, &ret->list);
    take(&t, selected * heads * 2, &ret->list_n);
    take(&t, selected * heads * 4, &ret->stats);
    take(&t, selected * heads * at_least_one(l->max_head_dim), &ret->skewed);
    take(&t, selected * heads, &ret->near);
    take(&t, (heads + 1) * slots, &ret->order);
    take(&t, heads + 1, &ret->flag);
    ret->lt_floats =
        lt_rows > 0 ? (lt_rows + 1) * cuda_round_up(at_least_one(l->max_outputs), 16) : 0;
    take(&t, ret->lt_floats, &ret->lt_sums);
    take(&t, lt.work, &ret->lt_work);
    take(&t, lt_weights, &ret->lt_slab);
    take(&t, entries * (uint64_t)(l->max_experts + 1), &ret->router);
    take(&t, entries, &ret->chosen);
    take(&t, entries, &ret->chosen_weight);
    take(&t, entries, &ret->entries);
    take(&t, entries, &ret->tiles);
    take(&t, entries * cols, &ret->hidden);
    take(&t, entries * cols, &ret->expert_out);
    take(&t, entries * cols, &ret->shared);
    take(&t, expects * dims, &ret->expect_mean);
    take(&t, expects * dims * dims, &ret->expect_square);
    take(&t, expects * 2, &ret->expect_tops);
    take(&t, (uint64_t)CUDA_SAMPLE_ROWS * CUDA_SAMPLE_GROUPS, &ret->sample_best);
    take(&t, (uint64_t)CUDA_SAMPLE_ROWS * CUDA_SAMPLE_GROUPS, &ret->sample_mass);
    take(&t, (uint64_t)CUDA_SAMPLE_ROWS * 2, &ret->sample_bounds);
    ret->bytes = t.used;
    take(&t, rows * cols, &ret->passed);
    take(&t, 3 * heads, &ret->arrived);
    take(&t, CUDA_SAMPLE_ROWS, &ret->sample_arrived);
    ret->n_observed = (int32_t)observed;
    ret->n_selected = (int32_t)selected;
    ret->lt_rows = (int32_t)lt_rows;
    ret->lt_weights = lt_weights;
    return t.used;
}

uint64_t cuda_scratch_bytes(const struct backend_config *config,
                            const struct backend_limits *limits)
{
    struct cuda_scratch plan;

    return cuda_scratch(limits, cuda_lt_planned(config), NULL, &plan) + CUDA_PINNED +
           cuda_queue_bytes() + cuda_graph_bytes() + (uint64_t)CUDA_ALLOCS * CUDA_GRAIN;
}

int cuda_reserve(struct backend *be, const struct backend_limits *limits, struct error *reterr)
{
    struct cuda *cu = cuda_of(be);
    struct cuda_scratch plan;
    struct cuda_lt_use lt = cuda_lt_held(cu);
    uint64_t bytes = cuda_scratch(limits, lt, NULL, &plan);
    void *base = NULL;
    int r = cuda_alloc(be, bytes, "scratch of the cuda backend", &base, reterr);

    if (r < 0) {
        return r;
    }
    cuda_free(be, cu->scratch_base, 0);
    cu->scratch_base = base;
    cu->limits = *limits;
    (void)cuda_scratch(limits, lt, static_cast<uint8_t *>(base), &cu->scratch);
    cuda_lt_limits(cu);
    return 0;
}

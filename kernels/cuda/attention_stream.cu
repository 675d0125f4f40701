/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of decode rows on tensor cores, for caches of one type of 16, 8 or 4 bits, or K in int8
 * beside V in fp8 or 4 bits, whose rows are whole 16 bytes. (All others: attention_decode.cu.)
 *
 * Block:  up to eight query heads of one K head, one row, one chunk of slots. Its warps take tiles
 *         of 16 slots in turn and know nothing of each other until the end.
 *
 * Tile:   Keys are the first factor of m16n8k16 (slots by dims), queries the second. Then values
 *         are the first (dims by slots), weights the second. Rows of 16 bits are read as the
 *         products want them (ldmatrix), V's turned. Of 8 and 4 bits a lane reads its part of a row
 *         of K or V as 16 bytes, because the order of slots and dims within a product is free, and
 *         pairs V's bytes of two slots. A warp copies its own tiles asynchronously, whole lines,
 *         STAGES ahead; parts of a row are swizzled so that neither reading meets in a bank.
 *
 * Ahead:  The first tiles are asked for before the kernel ahead has ended, where a cache only
 * appends: but for the newest slots it is as the step found it. On an H200 whole decode steps of
 * 1B and 8B shapes gained 0.8 to 2.8 % by that, beside slower products (docs/results/gpu.md).
 *
 * Merge:  warps in order. With several chunks a second kernel, which begins early, adds them in
 *         order: blocks that count themselves, the last of which adds, cost each block 1.2 us of a
 *         fence and a count (8,192 slots, 8 rows, on an H200: 86 us for 79).
 *
 * Measured on an H200 (8 K heads, 32 query heads of 128; bf16, fp8; us): 128 slots 5.8, 5.2; 2,048
 * slots 9.0, 8.0; 8,192 slots 16.6, 12.7; 65,536 slots 73 (80 % of the read rate), 42 (70 %).
 * Copies alone reach 93 %; by half lines of 64 bytes they reach 60 %.
 *
 * Chunks follow from n_slots and the number of K heads alone, so bits do not depend on company.
 *
 * Precision: queries are two f16 or three bf16 pieces, weights two of either; sums are f32. Codes
 * of 8 bits become f16 exactly, two a instruction; K's scales multiply logits, V's weights. Levels
 * of 4 bits are looked up by byte permutations, exactly; K's scales multiply a block's sums, V's
 * the weights, of which each block has its own, rounded once to f16.
 *
 * The latest tokens of caches of 4 bits lie in 8 bits elsewhere: chunks leave them out, another
 * block takes them (attention_latest.cuh). */

#include <cerrno>

#include "kernels/cuda/attention_join.cuh"
#include "kernels/cuda/attention_stream.cuh"

enum { LEAST = 128, AIM_BITS = 6, NOISE_THREADS = 512 };

/* ---- observed rows -------------------------------------------------------------------------- */

/* Block a row and query head: the logits that decode_stream left get their noise; the largest and 1
 * / the sum go to sums, for decode_observe. */
CUDA_KERNEL void __launch_bounds__(NOISE_THREADS) decode_noise(struct attend p)
{
    __shared__ float part[WARP];
    int32_t head = (int32_t)blockIdx.x;
    int32_t seq = (int32_t)blockIdx.y;
    const struct cuda_seq *s = &p.seqs.s[seq];
    int32_t group = attend_head_of(&p, head).group;
    float *x = p.logits + (size_t)(seq * p.n_q + head) * p.max_slots;
    float top = -INFINITY;
    float sum = 0;

    if (!attend_observed(&p, seq)) {
        return;
    }
    for (int32_t i = (int32_t)threadIdx.x; i < s->n_slots; i += NOISE_THREADS) {
        x[i] = attend_noisy(&p.observe[seq], x[i], head, 0, s->pos0, kv_pos(s, group, i));
        top = fmaxf(top, x[i]);
    }
    top = block_max(top, part, NOISE_THREADS / WARP);
    for (int32_t i = (int32_t)threadIdx.x; i < s->n_slots; i += NOISE_THREADS) {
        sum += x[i] > -INFINITY ? expf(x[i] - top) : 0.0f;
    }
    sum = block_sum(sum, part, NOISE_THREADS / WARP);
    if (threadIdx.x == 0) {
        float *sums = p.sums + (size_t)(seq * p.n_q + head) * 2;

        sums[0] = top;
        sums[1] = sum > 0 ? 1.0f / sum : 0.0f;
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

/* Chunks of a sequence: with the blocks of all K heads about one to a multiprocessor of the largest
 * devices. */
static struct stream_plan plan_of(const struct attend *p)
{
    int32_t heads = p->seqs.layout.n_groups * p->seqs.layout.k_heads;
    int32_t bits = heads >= 16 ? 3 : heads >= 8 ? 4 : heads >= 4 ? 5 : AIM_BITS;
    struct stream_plan plan = {bits, LEAST, p->n_q / heads, true};

    for (int32_t i = 0; i < p->seqs.n; i++) {
        const struct cuda_seq *s = &p->seqs.s[i];

        plan.ahead = plan.ahead && !s->slot_pos && !s->victim && s->ring == 0;
    }
    return plan;
}

bool cuda_attend_streams(const struct cuda_layout *l)
{
    bool pair = l->k_type == l->v_type || (l->k_type == OPS_KV_I8 && l->v_type == OPS_KV_FP8) ||
                kv_four(l->v_type);

    if (kv_four(l->v_type) && four_scales(l->k_dim) != four_scales(l->v_dim)) {
        return false;
    }
    return pair && l->k_type != OPS_KV_F32 && l->k_heads == l->v_heads &&
           l->k_dim <= 256 && l->v_dim <= 256 && l->k_row % 16 == 0 && l->v_row % 16 == 0 &&
           l->v_dim % 4 == 0;
}

/* Warps of a block and stages by the bytes of a row, so that two blocks fit the 227 KB of a
 * multiprocessor where they can. Short rows are not more stages but more warps: their work is less
 * the copy than what follows. */
template <int KF, int VF, int DIM>
static int launch(struct cuda *cu, struct attend *p, dim3 grid, struct stream_plan plan)
{
    using shape = stream_shape<KF, VF, DIM>;
    constexpr int N = shape::key::ROW == 256 || shape::value::FOUR ? 3 : 2;
    int warps = shape::key::ROW == 256 ? 4 : 8;

    while (warps > 1 && shape::shared(warps, N) + 1024 > cu->shared_max) {
        warps--;
    }
    CUDA_LAUNCH_LARGE_EARLY(cu, grid, dim3((unsigned)warps * WARP), shape::shared(warps, N),
                            (decode_stream<KF, VF, DIM, N>), *p, plan);
    return cuda_launched(cu, "decode_stream");
}

template <int KF, int VF>
static int launch_form(struct cuda *cu, struct attend *p, dim3 grid, struct stream_plan plan)
{
    int32_t k_dim = p->seqs.layout.k_dim;
    int32_t v_dim = p->seqs.layout.v_dim;
    int32_t dim = k_dim > v_dim ? k_dim : v_dim;

    return dim <= 64    ? launch<KF, VF, 64>(cu, p, grid, plan)
           : dim <= 128 ? launch<KF, VF, 128>(cu, p, grid, plan)
                        : launch<KF, VF, 256>(cu, p, grid, plan);
}

static int launch_type(struct cuda *cu, struct attend *p, dim3 grid, struct stream_plan plan)
{
    int32_t v_type = p->seqs.layout.v_type;

    switch (p->seqs.layout.k_type) {
    case OPS_KV_BF16:
        return launch_form<STREAM_BF16, STREAM_BF16>(cu, p, grid, plan);
    case OPS_KV_F16:
        return launch_form<STREAM_F16, STREAM_F16>(cu, p, grid, plan);
    case OPS_KV_FP8:
        return launch_form<STREAM_FP8, STREAM_FP8>(cu, p, grid, plan);
    case OPS_KV_G4:
        return launch_form<STREAM_FOUR, STREAM_FOUR>(cu, p, grid, plan);
    default:
        return v_type == OPS_KV_G4    ? launch_form<STREAM_I8, STREAM_FOUR>(cu, p, grid, plan)
               : v_type == OPS_KV_FP8 ? launch_form<STREAM_I8, STREAM_FP8>(cu, p, grid, plan)
                                      : launch_form<STREAM_I8, STREAM_I8>(cu, p, grid, plan);
    }
}

int32_t cuda_stream_chunks_most(int32_t max_slots)
{
    int32_t by_least = (max_slots + LEAST - 1) / LEAST;
    int32_t by_most = (max_slots + STREAM_CHUNK_MAX - 1) / STREAM_CHUNK_MAX;

    by_least = by_least < 1 << AIM_BITS ? by_least : 1 << AIM_BITS;
    return (by_least > by_most ? by_least : by_most) + 1; /* the latest tokens */
}

int cuda_attend_stream(struct cuda *cu, struct attend *p)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t heads = l->n_groups * l->k_heads;
    struct stream_plan plan = plan_of(p);
    int32_t most = 0;
    bool observed = false;
    dim3 grid;
    int r;

    p->n_chunks = 1;
    p->part_len = l->v_dim + 4; /* whole 16 bytes */
    for (int32_t i = 0; i < p->seqs.n; i++) {
        int32_t n = p->seqs.s[i].n_slots;
        int32_t parts = stream_parts(&p->seqs.s[i], &plan);

        p->n_chunks = parts > p->n_chunks ? parts : p->n_chunks;
        most = n > most ? n : most;
        observed = observed || (n > 0 && p->seqs.s[i].score && p->observe[i].row_first < 1);
    }
    grid = dim3((unsigned)p->n_chunks,
                (unsigned)heads * cuda_div_up((uint64_t)plan.share, STREAM_HEADS),
                (unsigned)p->seqs.n);
    r = launch_type(cu, p, grid, plan);
    if (r == 0 && p->n_chunks > 1) {
        const struct cuda_seq *s = &p->seqs.s[0];
        struct cuda_codes none = {};

        CUDA_LAUNCH_EARLY(cu, dim3((unsigned)p->n_q, (unsigned)p->seqs.n), dim3(JOIN_WARPS * WARP),
                          (size_t)(JOIN_WARPS * l->v_dim + p->n_chunks) * sizeof(float),
                          decode_join, *p, plan, none);
        if (l->v_dim % 32 == 0 && !s->v_hadamard) {
            cuda_call_offer(cu, p->out + (size_t)s->row0 * p->ldo, p->n_q * l->v_dim, NULL);
        }
        r = cuda_launched(cu, "decode_join");
    }
    if (r == 0 && observed) {
        CUDA_LAUNCH(cu, dim3((unsigned)p->n_q, (unsigned)p->seqs.n), dim3(NOISE_THREADS), 0,
                    decode_noise, *p);
        r = cuda_launched(cu, "decode_noise");
        r = r < 0 ? r : cuda_attend_observe(cu, p, most);
    }
    return r;
}

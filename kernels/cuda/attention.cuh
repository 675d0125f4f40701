/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_CUH

/* What the attention kernels share: parameters, the logit, heads and groups, the noise. */

#include "kernels/cuda/kv.cuh"

extern "C" {
#include "kernels/noise.h"
}

struct attend {
    struct cuda_seqs seqs;
    struct ops_observe observe[CUDA_SEQS]; /* row_first beyond the rows: off */
    const float *q;
    float *out;
    int32_t ldq, ldo;
    int32_t n_q;
    float scale, softcap, alibi_max;
    int32_t window;
    const float *sinks; /* (n_q) or NULL */
    /* scratch */
    float *part;
    int32_t part_len; /* floats of one chunk and head */
    int32_t n_chunks; /* of the longest sequence of this launch: strides of part */
    float *sums;      /* (rows, n_q, 2): about the largest logit, 1 / the sum of e^(x - that) */
    float *logits;    /* (sequences of the launch, n_q, max_slots) */
    uint16_t *queries; /* (rows, n_q, k_dim to a multiple of 8), of observed prefill rows */
    float *query_factor; /* (rows, n_q): what these were divided by */
    int32_t max_slots;
};

/* Where query head `head` finds its keys and values. */
struct attend_head {
    int32_t group, k_head, v_head;
};

CUDA_INLINE struct attend_head attend_head_of(const struct attend *p, int32_t head)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t n = p->n_q / l->n_groups;
    struct attend_head h;

    h.group = head / n;
    h.k_head = head % n / (n / l->k_heads);
    h.v_head = head % n / (n / l->v_heads);
    return h;
}

static inline __host__ __device__ bool attend_observed(const struct attend *p, int32_t seq)
{
    return p->seqs.s[seq].score && p->observe[seq].row_first < p->seqs.s[seq].n_rows;
}

/* Are the softmax' logits, to the policy, those of the attention itself? Then what gives rows of the
 * prefill class their output leaves their sums, and logits are times log2(e) there. */
static inline __host__ __device__ bool attend_leaves_sums(const struct attend *p, int32_t seq)
{
    const struct ops_observe *o = &p->observe[seq];

    return o->noise == OPS_NOISE_NONE && o->tau0 == 1 && o->tau_step == 0 && p->scale > 0 &&
           p->softcap <= 0 && p->alibi_max <= 0;
}

/* Can no row of [first_pos, last_pos] see a slot of [s0, s0 + n)? Where slots are positions. */
CUDA_INLINE bool attend_unseen(const struct attend *p, const struct cuda_seq *s, int32_t s0,
                               int32_t n, int32_t first_pos, int32_t last_pos)
{
    return !s->slot_pos &&
           (s0 > last_pos || (p->window > 0 && s0 + n - 1 <= first_pos - p->window));
}

/* ops_alibi_slope(). */
CUDA_INLINE float attend_slope(const struct attend *p, int32_t head)
{
    int32_t pow2 = 1;

    if (p->alibi_max <= 0) {
        return 0.0f;
    }
    while (pow2 * 2 <= p->n_q) {
        pow2 *= 2;
    }
    return (float)exp2(-(double)p->alibi_max *
                       (head < pow2 ? (double)(head + 1) : (double)(head - pow2) + 0.5) /
                       (double)pow2);
}

CUDA_INLINE float attend_logit(const struct attend *p, float dot, float slope, int32_t pos,
                               int32_t row_pos)
{
    float x = p->scale * dot;

    if (!kv_visible(pos, row_pos, p->window)) {
        return -INFINITY;
    }
    if (slope != 0) {
        x -= slope * (float)(row_pos - pos);
    }
    if (p->softcap > 0) {
        x = p->softcap * tanhf(x / p->softcap);
    }
    return fminf(fmaxf(x, -1e30f), 1e30f);
}

/* The logit that a scoring policy takes the softmax of. */
CUDA_INLINE float attend_noisy(const struct ops_observe *o, float x, int32_t head, int32_t row,
                               int32_t row_pos, int32_t pos)
{
    if (x == -INFINITY) {
        return x;
    }
    return (x + noise_draw(o, (uint32_t)head, (uint32_t)row_pos, (uint32_t)pos)) /
           (o->tau0 + (float)row * o->tau_step);
}

/* damp to the number of observed rows. */
static inline __host__ __device__ float attend_damp(const struct ops_observe *o, int32_t n_rows)
{
    float factor = 1;

    for (int32_t r = o->row_first; r < n_rows && o->damp != 1; r++) {
        factor *= o->damp;
    }
    return factor;
}

/* Partial results of one row and head, part_len floats a chunk: largest logit, sum of e^(logit -
 * largest), the same of noisy logits, sums of values. 1 / the sum of all (`at` 0, or 2: noisy), and
 * the largest. */
CUDA_INLINE float attend_merge_sums(const float *part, int32_t part_len, int32_t n, int at,
                                    float *ret_max)
{
    float top = -INFINITY;
    float sum = 0;

    for (int32_t c = 0; c < n; c++) {
        top = fmaxf(top, part[(size_t)c * part_len + at]);
    }
    for (int32_t c = 0; c < n && top > -INFINITY; c++) {
        sum += expf(part[(size_t)c * part_len + at] - top) * part[(size_t)c * part_len + at + 1];
    }
    *ret_max = top;
    return sum > 0 ? 1.0f / sum : 0.0f;
}

/* inv, 1 / the sum of e^(logit - top) over what was seen, with the head's sink in the sum. */
CUDA_INLINE float attend_with_sink(const struct attend *p, int32_t head, float top, float inv)
{
    return p->sinks && inv > 0 ? 1.0f / (1.0f / inv + expf(p->sinks[head] - top)) : inv;
}

CUDA_INLINE float attend_merge_value(const float *part, int32_t part_len, int32_t n, float top,
                                     int32_t d)
{
    float sum = 0;

    for (int32_t c = 0; c < n && top > -INFINITY; c++) {
        float w = expf(part[(size_t)c * part_len] - top);

        sum += w > 0 ? w * part[(size_t)c * part_len + 4 + d] : 0.0f;
    }
    return sum;
}

/* Of the 4 lanes that share a row of a product. */
CUDA_INLINE float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

CUDA_INLINE float quad_sum(float x)
{
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

/* Scores of rows of the decode class, from noisy logits and their sums. */
int cuda_attend_observe(struct cuda *cu, const struct attend *p, int32_t most_slots);
int cuda_attend_decode(struct cuda *cu, struct attend *p);
/* Does cuda_attend_stream() serve rows of such a cache? */
bool cuda_attend_streams(const struct cuda_layout *l);
int cuda_attend_stream(struct cuda *cu, struct attend *p);
int32_t cuda_stream_chunks_most(int32_t max_slots); /* of a sequence of up to so many */
int cuda_attend_prefill(struct cuda *cu, struct attend *p);
/* Caches of 16 and 8 bits, at most `rows` rows a sequence: what rows give; scores of sequences that
 * are observed, at most `slots` slots each. */
int cuda_attend_rows(struct cuda *cu, const struct attend *p, int32_t rows);
int cuda_attend_scores(struct cuda *cu, const struct attend *p, int32_t rows, int32_t slots);
/* The same as cuda_attend_rows() where wgmma can do it. */
bool cuda_attend_has_wgmma(const struct cuda *cu, const struct attend *p);
int cuda_attend_wgmma(struct cuda *cu, const struct attend *p, int32_t rows);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_OPS_H
#define PIPIT_KERNELS_OPS_H
/* What each operation means. A model's step is a sequence of these coarse operations on a batch of
 * rows (a row = one token of one sequence); kernels/ref/ defines them in plain C, every other
 * backend is checked against it. struct backend_ops (kernels/backend.h) is the table.
 *
 * Addresses. `void *`, `float *` and so on that are called "device" belong to the backend (got from
 * backend alloc) and are dereferenced by it alone; on CPU backends they are ordinary memory.
 * Parameter structs and the arrays they hold by value are host memory, read during the call.
 *
 * Activations are f32, row-major, rows `ld` floats apart. Outputs never alias inputs unless said.
 *
 * Batch invariance: a row's bits depend on that row's own inputs, its row class and
 * its sequence's slots only; never on the other rows, the load or the number of threads. A batch
 * holds rows of class decode first (n_decode of them), then rows of class prefill; the two classes
 * may use different arithmetic. The class belongs to the sequence's own history (prompt tokens are
 * prefill rows, generated tokens decode rows), so that a replay meets the same arithmetic.
 *
 * All calls return 0 or a negative errno; -EINVAL is our own mistake, -ENODEV a lost device. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/dtype.h"

/* ---- weights ---------------------------------------------------------------------------- */

/* How a weight will be used: decides the packed layout a backend chooses. */
enum ops_role {
    OPS_ROLE_MATMUL, /* read whole, row by row, by matmul */
    OPS_ROLE_EMBED,  /* single rows read by embed; also by matmul when embeddings are tied */
    OPS_ROLE_VECTOR, /* norm weights and biases: becomes f32 */
};

struct ops_weight_desc {
    const char *name;    /* for messages */
    enum dtype type;
    enum ops_role role : 16;
    uint32_t n_stack : 16; /* so many matrices one behind the other, an expert each; 0: 1 */
    int32_t n_rows;      /* outputs; 1 for vectors */
    int32_t n_cols;      /* inputs: the row length */
    int32_t stack_rows;  /* of data, from one matrix to the next; 0: n_rows */
    int32_t joins;       /* a matmul's parts are, in this order, so many weights of role matmul that
                            were made just before it, and it; 0: not said */
    const void *data;    /* host: rows as in the file; NULL while planning */
};

/* A prepared weight: the backend's own, made by weight_create, const afterwards. `device` is f32 (n_cols)
 * for vectors, else private to the backend. */
struct ops_weight {
    enum dtype type;
    enum ops_role role : 16;
    uint32_t n_stack : 16; /* 0: 1; only `experts` takes more */
    int32_t n_rows;
    int32_t n_cols;
    int32_t stack_rows; /* as in the desc, where the backend reads its data in place */
    const void *device;
    uint64_t bytes;      /* device bytes that this weight holds (0 when the file's map is used) */
    const void *priv;
};

/* Rows of a stack's data from one matrix to the next. */
static inline uint64_t ops_stack_rows(int32_t stack_rows, int32_t n_rows)
{
    return (uint64_t)(stack_rows ? stack_rows : n_rows);
}

static inline int32_t ops_stack(uint32_t n_stack)
{
    return n_stack > 1 ? (int32_t)n_stack : 1;
}

/* ---- rows ------------------------------------------------------------------------------- */

struct ops_rows {
    int32_t n;        /* rows in all */
    int32_t n_decode; /* the first n_decode are of class decode */
};

enum ops_norm_kind { OPS_NORM_RMS, OPS_NORM_LAYER };

/* y = norm(x) * w (+ b). RMS: x / sqrt(mean(x^2) + eps). Layer: (x - mean) / sqrt(var + eps). */
struct ops_norm {
    const struct ops_weight *w; /* NULL: no norm */
    const struct ops_weight *b; /* or NULL */
    float eps;
    enum ops_norm_kind kind;
};

struct ops_embed {
    struct ops_rows rows;
    const int32_t *ids;         /* host (n); each in [0, w->n_rows), the caller checked */
    const int32_t *drawn;       /* or device (n), what `sample` left: below 0 is taken as 0; else NULL */
    const struct ops_weight *w; /* role embed */
    float scale;                /* y = scale * row; gemma: sqrt(n_embd) */
    float *y;                   /* device (n, ld) */
    int32_t ld;
};

/* y = norm(x), or y += norm(x) when `add`. y may be x. */
struct ops_norm_op {
    struct ops_rows rows;
    struct ops_norm norm;
    const float *x; /* device (n, ldx) */
    float *y;       /* device (n, ldy) */
    int32_t ldx;
    int32_t ldy;
    int32_t n_cols;
    bool add;
};

enum ops_act {
    OPS_ACT_NONE,
    OPS_ACT_SILU,
    OPS_ACT_GELU_TANH,
    OPS_ACT_GELU_ERF,
    OPS_ACT_RELU,
    OPS_ACT_RELU_SQ, /* max(x, 0)^2 */
    OPS_ACT_SWIGLU_OAI, /* gpt-oss's; only gated: with g = min(part 0, 7) and u = part 1
                           within +-7, y0 = g sigmoid(1.702 g) (u + 1) */
};

enum { OPS_MATMUL_MAX_PARTS = 8 };

/* For each part: y = scale * x' W^T + bias_scale * bias, where x' = norm(x) (one norm, computed
 * once for all parts).
 * `gated`: exactly two parts, y0 = act(part 0) * part 1; y of part 1 is not written.
 * Otherwise each part's act applies to it, and `add` adds the result to what y holds (residual).
 * `reader`: the next matmul is by this weight alone, of y of part 0, without a norm, and nothing
 * else reads y's prefill rows. A backend may keep these in a form of its own, and leave anything in
 * their y. */
struct ops_matmul {
    struct ops_rows rows;
    struct ops_norm norm;
    const float *x; /* device (n, ldx) */
    int32_t ldx;
    int32_t n_parts;
    bool gated;
    bool add;
    struct {
        const struct ops_weight *w;    /* (n_rows, n_cols): n_cols the same for all parts */
        const struct ops_weight *bias; /* or NULL */
        float *y;                      /* device (n, ldy) */
        int32_t ldy;
        enum ops_act act;
        float scale;      /* 0: 1 */
        float bias_scale; /* 0: 1 */
    } part[OPS_MATMUL_MAX_PARTS];
    const struct ops_weight *reader; /* or NULL */
};

static inline float ops_factor(float scale)
{
    return scale == 0.0f ? 1.0f : scale;
}

/* y[i] = x[index[i]] for n_rows rows: the rows that need logits, or SwiftKV's survivors. */
struct ops_gather {
    const float *x;       /* device (*, ldx) */
    float *y;             /* device (n_rows, ldy), not aliasing x */
    const int32_t *index; /* host (n_rows) */
    int32_t n_rows;
    int32_t n_cols;
    int32_t ldx;
    int32_t ldy;
};

/* x = cap * tanh(x / cap), elementwise (gemma2's soft-capping of logits). */
struct ops_softcap {
    float *x; /* device (n_rows, ld) */
    int32_t n_rows;
    int32_t n_cols;
    int32_t ld;
    float cap;
};

/* y = y * x * scale, elementwise, rounded product by product; without x, y = y * scale. */
struct ops_mul {
    struct ops_rows rows;
    const float *x; /* device (n, ldx), or NULL */
    float *y;       /* device (n, ldy), not aliasing x */
    int32_t ldx;
    int32_t ldy;
    int32_t n_cols;
    float scale;
};

/* One token a row, drawn from its logits by the engine's sampler: greedy with temperature 0 (ties:
 * the lower id), else the top_k largest, of those in falling order the fewest whose e^(l - max) sum
 * to top_p of all of them, of those the ones with at least min_p, and one draw of
 * e^((l - max) / temperature) by rng_draw(seed, index): in falling order with top_k, in order of id
 * without (0, or n_vocab and more). Sums are of integers (weight_units), so that any number of
 * threads may make them. The same token as sampler_sample() gives without penalties. -1: a NaN or
 * +inf among the logits, or all -inf. Rows that are drawn for (ops_sample_covers): all but those
 * whose top_k is above OPS_SAMPLE_MAX_K and below n_vocab. -ENOTSUP where some row is none; the
 * host then draws. */
enum { OPS_SAMPLE_MAX_K = 1024 };

struct ops_sample_row {
    float temperature;
    float top_p; /* 1: off */
    float min_p; /* 0: off */
    int32_t top_k;
    uint64_t seed;
    uint64_t index;
};

struct ops_sample {
    const float *logits; /* device (n_rows, ld) */
    int32_t n_rows;
    int32_t n_vocab;
    int32_t ld;
    const struct ops_sample_row *rows; /* host (n_rows) */
    int32_t *ids;                      /* device (n_rows), out */
};

bool ops_sample_covers(const struct ops_sample_row *row, int32_t n_vocab);

/* ---- the cache -------------------------------------------------------------------------- */

enum { OPS_PAGE_SLOTS = 64 };
/* Positions that are read in 8 bits where a page has 4, and room for those and drafts behind. */
enum { OPS_LATEST = 32, OPS_LATEST_ENTRIES = 48 };

enum ops_kv_type {
    OPS_KV_F32,
    OPS_KV_F16,
    OPS_KV_BF16,
    OPS_KV_FP8,
    OPS_KV_I8,
    OPS_KV_Q8_0,
    OPS_KV_Q4_0,
    OPS_KV_G4 /* quant/gauss4.h */
};

/* What a page holds of K for queries that select (struct ops_select). Ranking reads some dims of every
 * slot, the attention after it every dim of some slots; no one order of bytes serves both. ONCE: K
 * as it is. 2K: a second copy in the other order. 8: a further one in fp8, and ranking sees K
 * rounded to it. Canonical slots hold no copies. */
enum ops_rank { OPS_RANK_ONCE, OPS_RANK_2K, OPS_RANK_8 };

/* One page = OPS_PAGE_SLOTS slots of one head group of one store, contiguous. A group holds
 * k_heads K heads and v_heads V heads (n_k / n_groups, n_v / n_groups, n_groups = gcd(n_k, n_v)).
 * The order of bytes inside is the backend's own. fp8 and i8 carry one f16 scale per slot and
 * head. */
struct ops_kv_layout {
    int32_t n_groups;
    int32_t k_heads; /* of one group */
    int32_t v_heads;
    int32_t k_dim;   /* of one head */
    int32_t v_dim;
    enum ops_kv_type k_type;
    enum ops_kv_type v_type;
    bool k_unrotated;  /* pos=new: K stored before RoPE, rotated as read; ref and cpu only */
    uint64_t page_bytes; /* filled by backend kv_layout(); a multiple of 64 */
    enum ops_rank rank;
    /* Partial keys, by which a layer's slots are ranked one layer ahead (struct ops_predict): of each
     * slot and K head the first part_dims values of A k, k as it reads back. 0: none. f32, f16 or fp8,
     * the last with one f16 scale per slot and K head, of these values alone.
     * Canonical slots hold none; kv_import makes them anew. */
    int32_t part_dims;
    enum ops_kv_type part_type;
    /* They lie in pages of their own, of the same numbers (ops_kv.part); page_bytes is then without them. */
    bool part_apart;
    uint64_t part_bytes; /* of such a page; filled by kv_layout() */
};

/* One sequence's slots in one store, as attention and store see it. */
struct ops_kv {
    const struct ops_kv_layout *layout;
    uint8_t *pool;         /* device: page p at pool + p * layout->page_bytes */
    const uint32_t *pages; /* device (n_groups, max_pages): which page holds slots [64i, 64i+64) */
    int32_t max_pages;
    int32_t cap;           /* slots per group for which slot_pos and score have room */
    int32_t *slot_pos;     /* device (n_groups, cap): position held, -1 empty; NULL: slot is position */
    float *score;          /* device (n_groups, cap): the policy's, or NULL */
    float *v_sum;          /* device (n_groups, v_heads, v_dim): V summed over live slots, or NULL */
    uint8_t *part;         /* device, where partial keys lie apart: page p's at part + p * layout->part_bytes;
                              NULL: none are made */
    const float *skew;     /* device (n_groups, k_heads, k_dim, k_dim): A of each K head, orthogonal;
                              where the layout has partial keys */
    /* Device (n_groups, k_heads, k_dim): taken from every key as it is stored, so that all logits
     * of a query are off by one number, which softmax does not feel. NULL: none. Not with
     * k_unrotated, nor under a softcap. */
    const float *center;
    /* Each head of K goes through a Hadamard transform (kernels/hadamard.h) as it is stored, less
     * its center, and each head of q with it: products of the two stay as they are. The same of V;
     * attention's sums go through it once more, which undoes it. What one dim has too much of is
     * then spread over all, which suits codes of even steps. k_hadamard not with k_unrotated,
     * skew or queries that select by dims. */
    bool k_hadamard;
    bool v_hadamard;
    /* Device (n_groups, k_heads, k_dim), with k_hadamard: what each dim of K is multiplied by
     * before the transform, and of q divided by. NULL: 1. */
    const float *balance;
    /* Device (n_groups, k_heads, k_dim, k_dim): what a dim's rounding error is multiplied by for
     * the dims before it (kernels/kv_round.h), for K in fp8 or 4 bits. NULL: each dim is rounded
     * alone. Only where backend_ops.rounds; attention does not look at it. Not with k_unrotated. */
    const float *carry;
    /* Device (n_groups, OPS_LATEST_ENTRIES, ops_kv_latest_bytes()): the sides that are in four bits
     * once more, in int8, position p in entry p % OPS_LATEST_ENTRIES (kernels/kv_latest.h). A query
     * looks at nothing as hard as at the tokens just before it, and there four bits lose most.
     * rope_store writes a row's entry beside its slot. A row of class decode takes from there the
     * OPS_LATEST positions up to its own, from latest_from on, that its slots hold. There are more
     * entries than that, for rows behind it that are drafts and may be undone. NULL: none. Not with
     * k_unrotated. */
    uint8_t *latest;
    int32_t latest_from;
    int32_t n_slots;       /* slots [0, n_slots) may hold live tokens, this step's included */
};

/* One sequence's share of a batch in one call. Rows [row0, row0 + n_rows) are consecutive tokens
 * at positions [pos0, pos0 + n_rows). */
struct ops_seq {
    int32_t row0;
    int32_t n_rows;
    int32_t pos0;
    int32_t slot0;         /* row i goes to slot slot0 + i, in every group (wraps at `ring`) ... */
    int32_t ring;          /* 0, or the number of slots of a ring: slot = (slot0 + i) % ring */
    const int32_t *victim; /* ... unless not NULL: device (n_groups): the one row's slot by group */
    struct ops_kv kv;
};

enum ops_rope_form { OPS_ROPE_NONE, OPS_ROPE_NORM /* pairs (2i, 2i+1) */, OPS_ROPE_NEOX /* (i, i+d/2) */ };

struct ops_rope {
    enum ops_rope_form form;
    int32_t n_dims;      /* leading dims of a head that rotate */
    /* angle of pair i at position p = p * inv_freq[i]; cos and sin times `mscale`. Llama-3 factors,
     * linear and YaRN scaling are already in the table. */
    const float *inv_freq; /* host (n_dims / 2) */
    float mscale;
};

/* q and k: optional per-head RMS norm (qwen3, gemma3), then RoPE at the row's position; q is
 * written back (divided by kv.balance and transformed under kv.k_hadamard), k (less kv.center,
 * times kv.balance, in f32; then transformed) and v (transformed under kv.v_hadamard) go to the
 * sequences' slots (converted to the layout's types as they are written), slot_pos is set where
 * there is one, score of the slot is zeroed where there is one.
 * Rows of class decode keep v_sum where there is one: what the cache held in a live slot is taken
 * from it (the slot's V as it reads back), what it now holds is added; prefill rows leave it as it is,
 * for kv_sum. A sequence has then at most one decode row a call. Partial keys are made where the
 * layout has them.
 * n_q = 0: only K and V are stored (SwiftKV's deep layers), and the sequences may be some, whose rows lie
 * one behind the other; n_k = n_v = 0: only q (AcrossKV readers). */
struct ops_rope_store {
    struct ops_rows rows;
    float *q;       /* device (n, ldq): n_q heads of k_dim */
    const float *k; /* device (n, ldk): n_k heads of k_dim */
    const float *v; /* device (n, ldv): n_v heads of v_dim */
    int32_t ldq;
    int32_t ldk;
    int32_t ldv;
    int32_t n_q;
    int32_t n_k;
    int32_t n_v;
    int32_t k_dim;
    struct ops_norm q_norm; /* w (k_dim) or NULL */
    struct ops_norm k_norm;
    struct ops_rope rope;
    const struct ops_seq *seqs; /* host (n_seqs), rows ascending, covering all rows */
    int32_t n_seqs;
};

/* What a scoring policy wants of attention. For each row and query head
 * with logits x over its visible slots, p = softmax((x + noise) / tau); then for each slot
 *     score[slot] = damp^R * score[slot] + sum over observed rows of (row_weight * sum over the
 *                   group's query heads of p)
 * with R the number of observed rows of this call, so that damp acts on what was there before; a
 * row's own age within the call is in row_weight. Slots in [0, n_slots) that a row does not see get
 * nothing from it. Accumulation in f32 over rows in order, heads in order. noise none and tau 1 is
 * H2O. The noise itself is defined in kernels/noise.h. */
enum ops_noise { OPS_NOISE_NONE, OPS_NOISE_GUMBEL, OPS_NOISE_GAUSS, OPS_NOISE_CONST };

struct ops_observe {
    enum ops_noise noise;
    bool noise_once;  /* key (seed, layer, head, key position); else the query position too */
    uint64_t seed;
    int32_t layer;    /* the reading layer */
    int32_t row_first; /* rows of the sequence before this one are not observed */
    float row_weight0; /* weight of row row_first; each later row's is row_growth times it */
    float row_growth;
    float damp;       /* 1: none */
    float tau0;       /* tau of the sequence's first row in this call, */
    float tau_step;   /* and what each row adds */
};

/* Which slots a row of class decode reads (rows of class prefill read all). In each head group:
 *
 * SPARQ (Ribar et al., 2023)
 *  1. of each K head the r dims with the largest sum of |q| over the query heads that read it (ties:
 *     the lower dim);
 *  2. approximate logits x': as below, but q.k over those dims only, times 1 / sqrt(share),
 *     share = |q| summed over those dims / over all of them (0 / 0 is 1); p' = softmax(x') over the
 *     visible slots. With scale = 1 / sqrt(k_dim) that is the paper's tau = sqrt(k_dim * share);
 *  3. the k best visible slots: those of the latest `local` positions first, then by p' summed over the
 *     group's query heads (ties: the lower position);
 *  4. out = softmax(x) v over them, x the true logits; with `mean`, a * that + (1 - a) * v_sum / number of
 *     live slots, a = p' summed over them, 1 where they are all that is visible.
 *  What observes is given x' in place of x.
 * TOPV: p = softmax(x) over all; of each V head the k slots with the largest sum of p over the query
 *  heads that read it (and the latest `local` before them); out = sum of p v over these, with `renorm`
 *  divided by the sum of their p. What observes is given x.
 *
 * GIVEN: the slots are those that `predict` listed, and the row's own. No observation. A sequence has
 *  one decode row.
 *
 * A k that covers all visible slots gives what attention without selection gives. Not with
 * k_unrotated. */
enum ops_use { OPS_USE_NONE, OPS_USE_LAST, OPS_USE_COUNT };
enum { OPS_USE_MAX = 255 };
enum ops_select_kind { OPS_SELECT_ALL, OPS_SELECT_SPARQ, OPS_SELECT_TOPV, OPS_SELECT_GIVEN };

/* What `predict` leaves, device: for sequence i of the call n[i] slots of each head group, ascending,
 * at slots[(i * max_groups + group) * ld]; in a group of which fewer rank, then -1. */
struct ops_chosen {
    int32_t *n;     /* (n_seqs) */
    int32_t *slots; /* (n_seqs, max_groups, ld) */
    int32_t *own;   /* (n_seqs, max_groups) n[i] once more, for each group: the place behind the list, as
                       ops_seq.victim says it; NULL: not wanted */
    int32_t max_groups;
    int32_t ld;
};

struct ops_select {
    enum ops_select_kind kind;
    int32_t r;     /* 1 to k_dim */
    int32_t k;     /* at least 1 */
    int32_t local; /* 0 to k */
    bool mean;     /* needs kv.v_sum */
    bool renorm;
    /* GIVEN: how many slots prediction takes (struct ops_predict), percent of those before the row: */
    int32_t count; /* this many; 0: */
    int32_t share; /* this percent; 0: */
    float alpha;   /* as many as have a logit that is at most this below the largest, */
    int32_t cap;   /* and this percent at most; */
    enum ops_use use; /* what kv.score keeps of a slot's being listed; NONE where there is no score */
    /* and which entry of `chosen` they are (attention). */
    const struct ops_chosen *chosen;
    int32_t entry;
    /* kv's pages hold the listed slots alone, as `bring` left them: slot i is the list's entry i, the
     * row's own comes behind them. kv's positions, scores and n_slots are those of all slots. Only of
     * backends that have `bring`. */
    bool packed;
};

/* K and V on their way from pages in memory of the host (alloc_mapped) to pages of the device: copies
 * beside what else runs, for which the next attention waits. What they read must have been written
 * by calls before; what they write must not be touched by calls between, but for other slots. */
struct ops_bring_seq {
    struct ops_kv from;
    struct ops_kv to; /* slot_pos, score and v_sum are not looked at */
    /* Listed: the slots that entry `entry` of `chosen` lists to slots 0, 1, ..., then, where it is not
     * negative, slot `own`. Else slots [0, n) each to its own number. */
    bool listed;
    int32_t entry;
    int32_t own;
    int32_t n; /* listed: so many at most, with `own` */
};

struct ops_bring {
    const struct ops_bring_seq *seqs; /* host (n_seqs) */
    int32_t n_seqs;
    const struct ops_chosen *chosen;
};

/* Which slots a row of class decode will read in a layer to come (Lee et al., 2024, InfiniGen), from
 * queries made of the input of the layer before. For each sequence whose select is GIVEN, one row at
 * position P. All slots [0, n_slots) but the one that the row will take (slot0, or the victim's, which
 * still holds the victim) hold positions before P, and rank:
 *  1. of each query head q' = A q, A its K head's kv.skew; logits x as in struct ops_attention, but from
 *     the first part_dims values of q' with the partial keys;
 *  2. how many: n = count, or share percent of P, or, for each query head, the slots with x >= max x -
 *     alpha, their number's mean over all n_q heads, rounded down, at most cap percent of P. At least 1
 *     and at most as many as rank; percents are rounded down;
 *  3. of each head group the n slots with the largest softmax(x), summed over the group's query heads
 *     (ties: the lower position);
 *  4. kv.score, of the slots that rank: USE_LAST, the position of the last row that listed the slot, the
 *     slot's own until one does; USE_COUNT, how often it was listed, 0 to OPS_USE_MAX: where a count would
 *     pass that, all of the group's are halved first, rounding down. */
struct ops_predict {
    struct ops_rows rows; /* all of class decode */
    const float *q;       /* device (n, ldq): rotated */
    int32_t ldq;
    int32_t n_q;
    float scale;
    float softcap;
    float alibi_max;
    const struct ops_seq *seqs;      /* host (n_seqs) */
    int32_t n_seqs;
    const struct ops_select *select; /* host (n_seqs) */
    const struct ops_chosen *chosen; /* out; entry i is sequence i's */
};

/* out = softmax(scale * q k^T [+ alibi] [capped]) v over the slots each row may see: those with
 * 0 <= slot_pos <= row position, and, with a window, slot_pos > row position - window.
 * Query head h reads K head h * n_k / n_q and V head h * n_v / n_q (contiguous groups).
 * Logits are clamped to +-1e30, and a row that sees no slot gives zeros: finite inputs give finite
 * outputs. In unrotated layouts (pos=new) the distance between a row and a slot is the number of
 * live slots of the group that lie between them, not the difference of their positions, for RoPE
 * and for ALiBi: slot s is rotated at rank(s) + D, rank = live slots with a smaller position,
 * D = P - rank(P), P = position of the sequence's last row in this call.
 * With sinks each head's softmax has one logit more, of no slot: out times 1 - its weight. What is
 * observed is without it. Not with select.
 * Long contexts are split in fixed chunks of slots that depend on n_slots only, merged in order. */
struct ops_attention {
    struct ops_rows rows;
    const float *q; /* device (n, ldq): n_q heads of k_dim, already rotated */
    float *out;     /* device (n, ldo): n_q heads of v_dim */
    int32_t ldq;
    int32_t ldo;
    int32_t n_q;
    float scale;
    float softcap;      /* 0: none */
    float alibi_max;    /* 0: none; else the bias maximum (8 for MPT) */
    int32_t window;     /* 0: none */
    const struct ops_seq *seqs; /* host (n_seqs) */
    int32_t n_seqs;
    const struct ops_observe *observe; /* host (n_seqs) or NULL; entries with row_first >= n_rows are off */
    const struct ops_select *select; /* host (n_seqs) or NULL: rows read all they see */
    const struct ops_rope *unrotated_rope; /* set by the engine; kernels: with k_unrotated */
    const struct ops_weight *sinks; /* vector (n_q) or NULL */
};

/* v_sum anew: V of slots [0, n_slots) that hold a token (slot_pos >= 0, or all). */
struct ops_kv_sum {
    const struct ops_kv *kv;
};

/* The slot that the next token overwrites, for each group: the smallest score among slots
 * [0, n_slots) whose position p satisfies sinks <= p < pos_protect; ties to the lower position.
 * Always exists: the policy's budget is larger than what it protects. */
struct ops_victim {
    const struct ops_kv *kv;
    int32_t sinks;
    int32_t pos_protect;
    bool by_position; /* window policies: the smallest position, score unused */
    bool shared;      /* one choice for all groups: scores summed over groups in order */
    int32_t *victim;  /* device (n_groups), out */
};

/* The cut at the end of a prompt: keep `budget` slots of [0, n_slots) per group: all with position
 * < sinks or >= pos_protect, then the largest scores (ties: the lower position is dropped first).
 * Survivors in slots >= budget move to dead slots < budget, both in ascending order; slot_pos,
 * score and partial keys follow; the rest becomes -1. -EINVAL: more slots must stay than the budget
 * holds. A group holds a position once, and none from pos_end on: so the cut cannot fail, and no
 * device need be asked, where the budget holds all positions < sinks and from pos_protect on. */
struct ops_cut {
    const struct ops_kv *kv;
    int32_t budget;
    int32_t sinks;
    int32_t pos_protect;
    int32_t pos_end;
    bool by_position;
    bool shared;
};

/* ---- recurrent layers ---------------------------------------------------------------------
 *
 * A row of them follows from the sequence's rows before it through a state of fixed size alone, row
 * by row: however a sequence's rows are dealt out to calls, the bits are the same. */

/* One sequence's share of a batch: rows [row0, row0 + n_rows) go on from the state `in` and leave
 * the state `out`. Each operation has a part of it, which it writes whole. */
struct ops_state {
    int32_t row0;
    int32_t n_rows;
    const uint8_t *in; /* device; NULL: zeros */
    uint8_t *out;      /* device; may be `in` */
};

enum { OPS_CONV_MAX_WIDTH = 8, OPS_DELTA_MAX_DIM = 256, OPS_DELTA_DIMS = 16 };

/* Short convolution of each channel along its sequence, with what comes before it in the state:
 *     u = x (times before); z[t][c] = sum over j of w[c][j] * u[t - width + 1 + j][c] (+ bias[c]);
 *     y = act(z) (times after)
 * State: the latest width - 1 rows of u (width - 1, n_channels), f32, the oldest first. */
struct ops_conv {
    struct ops_rows rows;
    int32_t n_channels;
    int32_t width;              /* 2 to OPS_CONV_MAX_WIDTH */
    const struct ops_weight *w; /* vector (n_channels, width) */
    const struct ops_weight *bias; /* vector (n_channels) or NULL */
    const float *x;             /* device (n, ldx) */
    const float *before;        /* device (n, ldx) or NULL */
    const float *after;         /* device (n, ldx) or NULL */
    float *y;                   /* device (n, ldy), aliasing none of them */
    int32_t ldx;
    int32_t ldy;
    enum ops_act act;           /* NONE or SILU */
    const struct ops_state *seqs; /* host (n_seqs), rows ascending, covering all rows */
    int32_t n_seqs;
    uint64_t at;                  /* bytes, where in a state this is */
};

/* The gated delta rule (Yang et al., 2024). V head h has a matrix S (k_dim, v_dim) and reads Q and
 * K head h % n_k. For each row, q and k being divided by their lengths, sqrt(|x|^2 + eps):
 *     S = S * e^(a[h] * ln(1 + e^(alpha[h] + dt[h])))
 *     S = S + k (x) sigmoid(beta[h]) * (v - k S)
 *     y = RMS norm(q S / sqrt(k_dim)) * silu(z), the norm of each head with weights w and eps
 * State: S of each V head (n_v, k_dim, v_dim), f32. */
struct ops_delta {
    struct ops_rows rows;
    int32_t n_k;   /* heads; n_v is a multiple */
    int32_t n_v;
    int32_t k_dim; /* both multiples of OPS_DELTA_DIMS, at most OPS_DELTA_MAX_DIM */
    int32_t v_dim;
    float eps;
    const struct ops_weight *a;  /* vectors (n_v) */
    const struct ops_weight *dt;
    const struct ops_weight *w;  /* vector (v_dim) */
    const float *qkv;            /* device (n, ldx): n_k heads of q, n_k of k, n_v of v */
    const float *alpha;          /* device (n, ldg): n_v */
    const float *beta;           /* device (n, ldg): n_v */
    const float *z;              /* device (n, ldz): n_v heads of v_dim */
    float *y;                    /* device (n, ldy): n_v heads of v_dim, aliasing none of them */
    int32_t ldx;
    int32_t ldg;
    int32_t ldz;
    int32_t ldy;
    const struct ops_state *seqs; /* host (n_seqs), rows ascending, covering all rows */
    int32_t n_seqs;
    uint64_t at;                  /* bytes, where in a state this is */
};

/* The state space of Mamba-2 (Dao and Gu, 2024). Head h has a matrix S (k_dim, v_dim) and reads B
 * and C of group h / (n_v / n_k). For each row, with t = ln(1 + e^(step[h] + dt[h])):
 *     S = S * e^(a[h] * t) + B (x) t * x
 *     y = RMS norm((C S + d[h] * x) * silu(z)), the norm of all heads of a group as one, with
 *         weights w and eps
 * State: S of each head (n_v, k_dim, v_dim), f32. */
struct ops_scan {
    struct ops_rows rows;
    int32_t n_k;   /* groups; n_v is a multiple */
    int32_t n_v;   /* heads */
    int32_t k_dim; /* 1 to OPS_DELTA_MAX_DIM */
    int32_t v_dim; /* a multiple of OPS_DELTA_DIMS, at most OPS_DELTA_MAX_DIM */
    float eps;
    const struct ops_weight *a;  /* vectors (n_v) */
    const struct ops_weight *dt;
    const struct ops_weight *d;
    const struct ops_weight *w;  /* vector (n_v * v_dim) */
    const float *xbc;            /* device (n, ldx): n_v heads of x, n_k of B, n_k of C */
    const float *step;           /* device (n, ldz): n_v */
    const float *z;              /* device (n, ldz): n_v heads of v_dim */
    float *y;                    /* device (n, ldy): n_v heads of v_dim, aliasing none of them */
    int32_t ldx;
    int32_t ldz;
    int32_t ldy;
    const struct ops_state *seqs; /* host (n_seqs), rows ascending, covering all rows */
    int32_t n_seqs;
    uint64_t at;                  /* bytes, where in a state this is */
};

/* y = x * sigmoid(gate), or y = x, by heads of `dim` values: head h lies at h * x_step of a row of
 * x, at h * gate_step of one of gate, at h * dim of one of y. y may be x where x_step is dim. */
struct ops_gate {
    struct ops_rows rows;
    int32_t n_heads;
    int32_t dim;
    const float *x;    /* device (n, ldx) */
    const float *gate; /* device (n, ldg), or NULL */
    float *y;          /* device (n, ldy) */
    int32_t ldx;
    int32_t ldg;
    int32_t ldy;
    int32_t x_step;
    int32_t gate_step;
};

/* Canonical form of one slot and group, for saved sequences and tests: k_heads * k_dim, then
 * v_heads * v_dim elements in their types (scales last, K's then V's), independent of backend. */
struct ops_kv_slots {
    const struct ops_kv *kv;
    int32_t group;
    int32_t slot0;
    int32_t n_slots;
    void *host; /* n_slots * ops_kv_slot_bytes(layout) */
};

/* Bytes of one slot and group in canonical form. */
uint64_t ops_kv_slot_bytes(const struct ops_kv_layout *layout);
/* Bytes of one element row of n values of a type, scales apart; and of its scale (0 or 2). */
uint64_t ops_kv_type_bytes(enum ops_kv_type type, int32_t n);
uint64_t ops_kv_scale_bytes(enum ops_kv_type type);
/* Of one slot's partial key of one K head, its scale included; 0 without partial keys. */
uint64_t ops_kv_part_bytes(const struct ops_kv_layout *layout);
/* Of how many dims one block of a type is; 1 where each is by itself. Heads are whole blocks. */
int32_t ops_kv_block_dims(enum ops_kv_type type);
const char *ops_kv_type_name(enum ops_kv_type type);
/* Is the type one whose latest tokens are kept in int8 too (ops_kv.latest)? q4_0 is llama.cpp's, to
 * be compared with, and stays as it is there. */
bool ops_kv_in_four_bits(enum ops_kv_type type);
/* Of one entry of ops_kv.latest in one group; 0 where neither side is of such a type. */
uint64_t ops_kv_latest_bytes(const struct ops_kv_layout *layout);

/* ALiBi: the bias of query head `head` on a key is -slope * (query position - key position), slopes
 * 2^(-max * (head + 1) / n_heads); for n_heads not a power of two as MPT does it. */
float ops_alibi_slope(int32_t head, int32_t n_heads, float max);

#endif

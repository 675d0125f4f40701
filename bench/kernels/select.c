/* SPDX-License-Identifier: Apache-2.0 */
/* Decode rows that select, 32 query heads on 8 of 128 in f16, by depth: SparQ (r = 32, k = 128, a
 * second copy of K by dim), top-k V (k = 128) and InfiniGen (partial keys of 38 dims, 7 % of the
 * slots, prediction and the attention that reads what it lists). Each as one figure and kernel by
 * kernel; and the sums of V that SparQ's rows need.
 *
 * Bytes are those of the cache that must be read: of the ranked dims of all slots, and of K and V
 * of the chosen ones. Between kernels, logits and probabilities of all slots go through L2; a
 * kernel that reads nothing else has these as its bytes. */

#include <stdio.h>

#include "bench/kernels/layers.h"

enum { DIM = 128, R = 32, K = 128, SMALL_K = 40, PART = 38, SHARE = 7 };

static const struct layers_heads heads = {32, 8, DIM};

struct point {
    int32_t depth;
    int n_seqs;
};

struct selecting {
    struct layers l;
    struct ops_select select[LAYERS_SEQS];
    struct ops_chosen chosen;
    struct ops_predict predict;
};

/* Bytes of a point. */
struct sizes {
    double k_row, slots, logits, masses;
    int32_t chosen; /* slots of a sequence and group */
};

static struct sizes sizes_of(const struct kbench *k, const struct point *p, bool shared)
{
    int32_t n = shared ? p->depth * SHARE / 100 : k->small ? SMALL_K : K;

    return (struct sizes){
        .k_row = 2.0 * DIM,
        .slots = (double)p->n_seqs * heads.n_k * p->depth,
        .logits = 4.0 * p->n_seqs * heads.n_q * p->depth,
        .masses = 4.0 * p->n_seqs * heads.n_k * p->depth,
        .chosen = n,
    };
}

/* One figure of a round, and its kernels. */
static int time_kernels(struct kbench *k, const char *name, kbench_round *round,
                        struct selecting *s, double bytes, const struct kbench_kernel *known,
                        struct error *e)
{
    int n = layers_pieces(k, &s->l);
    double ns;
    int r = kbench_time(k, round, s, n, &ns, e);

    if (!r) {
        kbench_print(k, name, ns, bytes, 0);
        r = kbench_kernels(k, round, s, n, name, known, e);
    }
    return r;
}

static int attend_round(struct kbench *k, void *arg, int n)
{
    return layers_attend(k, &((struct selecting *)arg)->l, n);
}

/* SparQ or top-k V. */
static int time_select(struct kbench *k, enum ops_select_kind kind, const struct point *p,
                       struct selecting *s, struct error *e)
{
    bool sparq = kind == OPS_SELECT_SPARQ;
    struct sizes z = sizes_of(k, p, false);
    double ranked = z.slots * 2 * (sparq ? R : DIM);
    double attended = (double)p->n_seqs * heads.n_k * z.chosen * z.k_row * (sparq ? 2 : 1);
    const struct kbench_kernel known[] = {{"rank", ranked},
                                          {"sum_heads", z.logits},
                                          {"choose", z.masses},
                                          {"attend_chosen", attended},
                                          {0}};
    char name[96];
    int r;

    (void)snprintf(name, sizeof(name), "attention f16, %s, depth %d, batch %d",
                   sparq ? "sparq" : "topv", p->depth, p->n_seqs);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    for (int i = 0; i < p->n_seqs; i++) {
        s->select[i] = (struct ops_select){.kind = kind, .r = R, .k = z.chosen, .local = 8};
    }
    r = layers_describe(k, &s->l, &heads, OPS_KV_F16, OPS_KV_F16,
                        sparq ? OPS_RANK_2K : OPS_RANK_ONCE, 0, e);
    r = r ? r : layers_make(k, &s->l, p->depth, p->n_seqs, (uint64_t)(ranked + attended), e);
    s->l.op.select = s->select;
    r = r ? r : time_kernels(k, name, attend_round, s, ranked + attended, known, e);
    layers_drop(k, &s->l);
    return r;
}

/* ---- sums of V ------------------------------------------------------------------------------- */

static int sums_round(struct kbench *k, void *arg, int n)
{
    struct selecting *s = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        r = k->ops->kv_sum(k->be, &(struct ops_kv_sum){.kv = &s->l.seqs[i % s->l.n][0].kv});
    }
    return r;
}

/* Once a prompt and every thousand tokens. */
static int time_sums(struct kbench *k, int32_t depth, struct selecting *s, struct error *e)
{
    uint64_t sum_bytes = (uint64_t)heads.n_k * DIM * sizeof(float);
    void *sum = NULL;
    char name[96];
    double ns;
    int r;

    (void)snprintf(name, sizeof(name), "attention f16, sparq, sums of V, depth %d", depth);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = layers_describe(k, &s->l, &heads, OPS_KV_F16, OPS_KV_F16, OPS_RANK_ONCE, 0, e);
    r = r ? r : layers_make(k, &s->l, depth, 1, 0, e);
    r = r ? r : k->ops->alloc(k->be, sum_bytes, "sums of V", &sum, e);
    for (int i = 0; i < s->l.n; i++) {
        s->l.seqs[i][0].kv.v_sum = sum;
    }
    r = r ? r : kbench_time(k, sums_round, s, layers_pieces(k, &s->l), &ns, e);
    if (!r) {
        kbench_print(k, name, ns, 2.0 * heads.n_k * depth * DIM, 0);
    }
    k->ops->free(k->be, sum, sum_bytes);
    layers_drop(k, &s->l);
    return r;
}

/* ---- InfiniGen ------------------------------------------------------------------------------- */

static int predict_round(struct kbench *k, void *arg, int n)
{
    struct selecting *s = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        s->predict.seqs = s->l.op.seqs = s->l.seqs[i % s->l.n];
        r = k->ops->predict(k->be, &s->predict);
        r = r ? r : k->ops->attention(k->be, &s->l.op);
    }
    return r;
}

/* Lists, and the matrices that make partial queries: of each layer the same. */
static int make_chosen(struct kbench *k, const struct point *p, struct selecting *s, void **skew,
                       struct error *e)
{
    uint64_t lists = (uint64_t)p->n_seqs * (uint64_t)heads.n_k;
    void *n = NULL;
    void *slots = NULL;
    int r = kbench_fill(k, (uint64_t)heads.n_k * DIM * DIM * sizeof(float), skew, e);

    r = r ? r : k->ops->alloc(k->be, (uint64_t)p->n_seqs * sizeof(int32_t), "counts", &n, e);
    r = r ? r
          : k->ops->alloc(k->be, lists * (uint64_t)p->depth * sizeof(int32_t), "lists", &slots, e);
    s->chosen =
        (struct ops_chosen){.n = n, .slots = slots, .max_groups = heads.n_k, .ld = p->depth};
    for (int i = 0; i < s->l.n; i++) {
        for (int q = 0; q < p->n_seqs; q++) {
            s->l.seqs[i][q].kv.skew = *skew;
        }
    }
    for (int i = 0; i < p->n_seqs; i++) {
        s->select[i] = (struct ops_select){
            .kind = OPS_SELECT_GIVEN, .share = SHARE, .chosen = &s->chosen, .entry = i};
    }
    return r;
}

static int time_infinigen(struct kbench *k, const struct point *p, struct selecting *s,
                          struct error *e)
{
    struct sizes z = sizes_of(k, p, true);
    double ranked = z.slots * 2 * PART;
    double attended = (double)p->n_seqs * heads.n_k * (z.chosen + 1) * z.k_row * 2;
    double turned = 4.0 * heads.n_k * PART * DIM;
    const struct kbench_kernel known[] = {{"skew_queries", turned},    {"rank_predicted", ranked},
                                          {"sum_predicted", z.logits}, {"predict", z.logits},
                                          {"attend_chosen", attended}, {0}};
    void *skew = NULL;
    char name[96];
    int r;

    (void)snprintf(name, sizeof(name), "attention f16, infinigen, depth %d, batch %d", p->depth,
                   p->n_seqs);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = layers_describe(k, &s->l, &heads, OPS_KV_F16, OPS_KV_F16, OPS_RANK_ONCE, PART, e);
    r = r ? r : layers_make(k, &s->l, p->depth, p->n_seqs, (uint64_t)(ranked + attended), e);
    r = r ? r : make_chosen(k, p, s, &skew, e);
    s->l.op.select = s->select;
    s->predict = (struct ops_predict){.rows = s->l.op.rows,
                                      .q = s->l.op.q,
                                      .ldq = s->l.op.ldq,
                                      .n_q = heads.n_q,
                                      .scale = s->l.op.scale,
                                      .n_seqs = p->n_seqs,
                                      .select = s->select,
                                      .chosen = &s->chosen};
    r = r ? r : time_kernels(k, name, predict_round, s, ranked + attended + turned, known, e);
    k->ops->free(k->be, skew, 0);
    k->ops->free(k->be, s->chosen.n, 0);
    k->ops->free(k->be, s->chosen.slots, 0);
    s->chosen = (struct ops_chosen){0};
    layers_drop(k, &s->l);
    return r;
}

int kbench_select(struct kbench *k, struct error *e)
{
    static const struct point points[] = {{2048, 1}, {8192, 1}, {8192, 8}, {65536, 1}};
    static const struct point small[] = {{300, 2}};
    static struct selecting s;
    const struct point *p = k->small ? small : points;
    size_t n = k->small ? 1 : sizeof(points) / sizeof(points[0]);
    int r = layers_open(k, &s.l, e);

    r = r ? r : time_sums(k, k->small ? 300 : 8192, &s, e);
    for (size_t i = 0; i < n && !r; i++) {
        r = time_select(k, OPS_SELECT_SPARQ, &p[i], &s, e);
        r = r ? r : time_select(k, OPS_SELECT_TOPV, &p[i], &s, e);
        r = r ? r : time_infinigen(k, &p[i], &s, e);
    }
    if (!r && !k->small) { /* more than lists of one sequence */
        r = time_select(k, OPS_SELECT_SPARQ, &(struct point){65536, LAYERS_SEQS}, &s, e);
    }
    layers_close(k, &s.l);
    return r;
}

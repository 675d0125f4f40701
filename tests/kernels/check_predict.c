/* SPDX-License-Identifier: Apache-2.0 */
/* predict, and attention over slots that were given. Three decode rows that predict and one
 * that does not; partial keys made by kv_import and by rope_store, and moved by cut; GQA, MHA,
 * several K heads in a group, ALiBi and soft-caps; every rule for how many. Lists are ascending,
 * hold the same number of slots for every group, and are the reference's but for near ties.
 *
 * A backend that has memory of its own: the same once more with pages in memory of the host and
 * partial keys apart, and what is listed brought to the device: lists and outputs are those of
 * pages on the device, bit for bit.
 *
 * The reference against itself: with all dims in f32, any rotation leaves the choice to the true
 * q.k: no slot that is left out has a larger sum of softmax(q.k) than one that is listed, to 1e-4.
 * And attention over a list of everything is attention without selection. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "tests/kernels/check_kv.h"

enum { N_SEQS = 4, SILENT = 2 };

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_FP16 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 1024,
    .max_decode = 8,
    .max_seqs = 8,
    .max_cols = 64,
    .max_outputs = 64,
    .max_heads = 32,
    .max_head_dim = 128,
    .max_slots = 8256,
    .select = true,
};

struct shape {
    struct ops_kv_layout l;
    int32_t n_q;
    int32_t pos[N_SEQS];
    struct ops_select select;
    bool stored; /* K by rope_store, not by import */
    float softcap;
    float alibi_max;
    bool pool;  /* positions in any order; the row takes a victim's slot */
    bool holes; /* and the first group has few slots that hold one */
};

/* Pages in memory of the host, partial keys apart, and where listed slots are brought to. */
struct away {
    struct ops_kv_layout layout;
    struct ops_kv staged[N_SEQS];
    void *pool[N_SEQS];
    void *part[N_SEQS];
    uint64_t pool_bytes[N_SEQS], part_bytes[N_SEQS];
    void *stage;
    uint32_t *pages; /* 0, 1, 2, ... */
    int32_t *own;
    uint64_t stage_bytes, pages_bytes, own_bytes;
};

struct inputs {
    struct check_kv kv[N_SEQS];
    struct check_buf *q;
    struct check_buf *k; /* (most rows, n_k * k_dim): what rope_store stores */
    struct check_buf *v;
    struct check_buf *out;
    struct check_buf *n;
    struct check_buf *slots;
    struct check_buf *victim; /* (n_groups) */
    int32_t ldq;
    int32_t ldk;
    int32_t ldv;
    int32_t ld;
    struct away *away; /* or NULL */
};

static int32_t most_rows(const struct shape *s)
{
    int32_t most = 0;

    for (int i = 0; i < N_SEQS; i++) {
        most = s->pos[i] > most ? s->pos[i] : most;
    }
    return most;
}

/* A pool of which nothing is kept count of is cut to two thirds before. */
static bool is_cut(const struct shape *s)
{
    return s->pool && s->select.use == OPS_USE_NONE;
}

static int32_t victim_of(int32_t group)
{
    return 5 - group;
}

/* Every other position, the latest first; counts up to the largest. */
static void scatter(const struct shape *s, struct check_kv *kv)
{
    for (int32_t i = 0; i < s->l.n_groups * kv->cap; i++) {
        int32_t slot = i % kv->cap;

        bool hole = s->holes && i < kv->cap && slot >= 9 && slot % 64 != 9;

        ((int32_t *)(void *)kv->slot_pos->init)[i] = hole ? -1 : 2 * (kv->n_slots - 1 - slot);
        ((float *)(void *)kv->score->init)[i] = (float)(slot * 37 % (OPS_USE_MAX + 1));
    }
}

static void prepare(struct check *c, const struct shape *s, struct inputs *in)
{
    int32_t rows = most_rows(s);

    *in = (struct inputs){.ldq = s->n_q * s->l.k_dim + 16,
                          .ldk = s->l.n_groups * s->l.k_heads * s->l.k_dim,
                          .ldv = s->l.n_groups * s->l.v_heads * s->l.v_dim,
                          .ld = (rows + 16) & ~15};
    for (int i = 0; i < N_SEQS; i++) {
        check_kv_make(c, &in->kv[i], &s->l, s->pos[i] + 70, s->pos[i] + 1, s->pool, s->pool);
        if (s->pool) {
            scatter(s, &in->kv[i]);
        }
    }
    in->victim = check_buf(c, "victim", (size_t)s->l.n_groups * 4);
    for (int32_t g = 0; g < s->l.n_groups; g++) {
        ((int32_t *)(void *)in->victim->init)[g] = victim_of(g);
    }
    in->q = check_buf(c, "q", (size_t)N_SEQS * (size_t)in->ldq * 4);
    in->k = check_buf(c, "k", (size_t)(s->stored ? rows : 1) * (size_t)in->ldk * 4);
    in->v = check_buf(c, "v", (size_t)(s->stored ? rows : 1) * (size_t)in->ldv * 4);
    in->out = check_buf(c, "out", (size_t)N_SEQS * (size_t)(s->n_q * s->l.v_dim) * 4);
    in->n = check_buf(c, "n", N_SEQS * 4);
    in->slots = check_buf(c, "slots", (size_t)(N_SEQS * s->l.n_groups * in->ld) * 4);
    check_fill(c, in->q, 1.5f);
    check_fill(c, in->k, 1);
    check_fill(c, in->v, 1);
}

static void store(struct check *c, const struct shape *s, const struct inputs *in,
                  const struct ops_seq *to)
{
    struct ops_seq seq = *to;
    struct ops_rope_store p = {
        .rows = {seq.pos0, 0},
        .k = check_dev(c, in->k),
        .v = check_dev(c, in->v),
        .ldk = in->ldk,
        .ldv = in->ldv,
        .n_k = s->l.n_groups * s->l.k_heads,
        .n_v = s->l.n_groups * s->l.v_heads,
        .k_dim = s->l.k_dim,
        .seqs = &seq,
        .n_seqs = 1,
    };

    seq.row0 = 0;
    seq.slot0 = 0;
    seq.n_rows = seq.pos0;
    seq.pos0 = 0;
    if (seq.n_rows > 0) {
        check_require(c->ops->rope_store(c->be, &p), "rope_store");
    }
}

static int cut(struct check *c, struct ops_kv *kv)
{
    struct ops_cut p = {
        .kv = kv, .budget = kv->n_slots * 2 / 3, .pos_protect = INT32_MAX, .pos_end = INT32_MAX};
    int r = c->ops->cut(c->be, &p);

    kv->n_slots = p.budget;
    return r;
}

/* ---- pages in memory of the host ---------------------------------------------------------------
 */

static int32_t pages_of(int32_t slots)
{
    return (slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
}

static void *device(struct check *c, uint64_t bytes, const void *content)
{
    void *p = NULL;

    check_require(c->ops->alloc(c->be, bytes, "staging", &p, NULL), "alloc");
    check_require(c->ops->write(c->be, p, content, bytes), "write");
    return p;
}

static void away_make(struct check *c, const struct shape *s, struct inputs *in, struct away *a)
{
    int32_t most = pages_of(most_rows(s) + 1) + 1;
    uint8_t *nothing;
    uint32_t *numbers;
    int32_t groups = s->l.n_groups;
    int32_t n = N_SEQS * groups * most;

    *a = (struct away){.layout = s->l};
    a->layout.part_apart = true;
    check_require(c->ops->kv_layout(&a->layout, NULL), "kv_layout");
    a->stage_bytes = (uint64_t)n * a->layout.page_bytes;
    a->pages_bytes = (uint64_t)n * sizeof(*numbers);
    a->own_bytes = (uint64_t)(N_SEQS * groups) * sizeof(int32_t);
    nothing = malloc(a->stage_bytes + a->own_bytes);
    numbers = malloc(a->pages_bytes);
    memset(nothing, 0xff, a->stage_bytes + a->own_bytes); /* NaN */
    for (int32_t i = 0; i < n; i++) {
        numbers[i] = (uint32_t)(n - 1 - i);
    }
    a->stage = device(c, a->stage_bytes, nothing);
    a->own = device(c, a->own_bytes, nothing);
    a->pages = device(c, a->pages_bytes, numbers);
    for (int i = 0; i < N_SEQS; i++) {
        uint64_t n_pages = (uint64_t)(groups * in->kv[i].max_pages) + 3;

        a->pool_bytes[i] = n_pages * a->layout.page_bytes;
        a->part_bytes[i] = n_pages * a->layout.part_bytes;
        check_require(c->ops->alloc_mapped(c->be, a->pool_bytes[i], "pages", &a->pool[i], NULL),
                      "alloc_mapped");
        check_require(c->ops->alloc(c->be, a->part_bytes[i], "partial keys", &a->part[i], NULL),
                      "alloc");
        a->staged[i] = (struct ops_kv){.layout = &a->layout,
                                       .pool = a->stage,
                                       .pages = a->pages + i * groups * most,
                                       .max_pages = most};
    }
    free(numbers);
    free(nothing);
}

static void away_free(struct check *c, struct away *a)
{
    check_require(c->ops->sync(c->be), "sync");
    for (int i = 0; i < N_SEQS; i++) {
        c->ops->free_mapped(c->be, a->pool[i], a->pool_bytes[i]);
        c->ops->free(c->be, a->part[i], a->part_bytes[i]);
    }
    c->ops->free(c->be, a->stage, a->stage_bytes);
    c->ops->free(c->be, a->own, a->own_bytes);
    c->ops->free(c->be, a->pages, a->pages_bytes);
}

/* The sequence's slots there, filled. */
static struct ops_kv away_kv(struct check *c, const struct check_kv *kv, const struct away *a,
                             int seq)
{
    struct ops_kv of = check_kv_of(c, kv);

    of.layout = &a->layout;
    of.pool = a->pool[seq];
    of.part = a->part[seq];
    for (int32_t g = 0; g < a->layout.n_groups; g++) {
        struct ops_kv_slots slots = {
            .kv = &of,
            .group = g,
            .n_slots = kv->cap,
            .host = kv->content + (size_t)(g * kv->cap) * kv->slot_bytes,
        };

        check_require(c->ops->kv_import(c->be, &slots), "kv_import");
    }
    return of;
}

/* What each sequence that lists will read: the list, and its own slot. */
static int bring(struct check *c, const struct away *a, const struct ops_seq *seqs,
                 struct ops_chosen *chosen)
{
    struct ops_bring_seq b[N_SEQS];
    struct ops_bring p = {.seqs = b, .chosen = chosen};

    for (int i = 0; i < N_SEQS; i++) {
        if (i == SILENT) {
            continue;
        }
        b[p.n_seqs++] = (struct ops_bring_seq){
            .from = seqs[i].kv,
            .to = a->staged[i],
            .listed = true,
            .entry = i,
            .own = seqs[i].slot0,
            .n = seqs[i].kv.n_slots,
        };
    }
    return c->ops->bring(c->be, &p);
}

static int call(struct check *c, const struct shape *s, struct inputs *in, bool selects)
{
    struct ops_seq seqs[N_SEQS];
    struct ops_select select[N_SEQS];
    struct ops_chosen chosen = {.n = check_dev(c, in->n),
                                .slots = check_dev(c, in->slots),
                                .own = in->away ? in->away->own : NULL,
                                .max_groups = s->l.n_groups,
                                .ld = in->ld};
    struct ops_predict p = {
        .rows = {N_SEQS, N_SEQS},
        .q = check_dev(c, in->q),
        .ldq = in->ldq,
        .n_q = s->n_q,
        .scale = 1 / sqrtf((float)s->l.k_dim),
        .softcap = s->softcap,
        .alibi_max = s->alibi_max,
        .seqs = seqs,
        .n_seqs = N_SEQS,
        .select = select,
        .chosen = &chosen,
    };
    struct ops_attention a = {
        .rows = p.rows,
        .q = p.q,
        .out = check_dev(c, in->out),
        .ldq = in->ldq,
        .ldo = s->n_q * s->l.v_dim,
        .n_q = s->n_q,
        .scale = p.scale,
        .softcap = s->softcap,
        .alibi_max = s->alibi_max,
        .seqs = seqs,
        .n_seqs = N_SEQS,
        .select = selects ? select : NULL,
    };
    int r = 0;

    for (int i = 0; i < N_SEQS; i++) {
        seqs[i] = (struct ops_seq){.row0 = i,
                                   .n_rows = 1,
                                   .pos0 = s->pool ? 2 * in->kv[i].n_slots : s->pos[i],
                                   .slot0 = s->pos[i],
                                   .victim = s->pool ? check_dev(c, in->victim) : NULL,
                                   .kv = in->away ? away_kv(c, &in->kv[i], in->away, i)
                                                  : check_kv_of(c, &in->kv[i])};
        if (s->stored) {
            store(c, s, in, &seqs[i]);
        }
        if (r == 0 && is_cut(s)) {
            r = cut(c, &seqs[i].kv);
        }
        select[i] = s->select;
        select[i].chosen = &chosen;
        select[i].entry = i;
        if (i == SILENT) {
            select[i].kind = OPS_SELECT_ALL;
        }
    }
    r = r ? r : c->ops->predict(c->be, &p);
    if (in->away) {
        r = r ? r : bring(c, in->away, seqs, &chosen);
        for (int i = 0; i < N_SEQS; i++) { /* attention finds what was brought */
            if (i != SILENT) {
                select[i].packed = true;
                seqs[i].kv.pool = in->away->staged[i].pool;
                seqs[i].kv.pages = in->away->staged[i].pages;
                seqs[i].kv.max_pages = in->away->staged[i].max_pages;
            }
        }
    }
    return r ? r : c->ops->attention(c->be, &a);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static const int32_t *list_of(const struct shape *s, const struct inputs *in, int side, int seq,
                              int32_t group)
{
    return (const int32_t *)(const void *)in->slots->out[side] +
           (size_t)(seq * s->l.n_groups + group) * (size_t)in->ld;
}

static int32_t count_of(const struct inputs *in, int side, int seq)
{
    return ((const int32_t *)(const void *)in->n->out[side])[seq];
}

/* Near ties may fall either way; the lists of most cases are equal. */
static void compare_lists(struct check *c, const struct shape *s, const struct inputs *in)
{
    for (int i = 0; i < N_SEQS; i++) {
        int32_t n = count_of(in, 1, i);
        bool short_list = false;

        if (i != SILENT && abs(n - count_of(in, 0, i)) > (s->l.part_type == OPS_KV_F32 ? 0 : 1)) {
            check_fail(c, "sequence %d: %d slots, the reference says %d", i, n, count_of(in, 0, i));
            return;
        }
        for (int32_t g = 0; g < s->l.n_groups && i != SILENT; g++) {
            const int32_t *got = list_of(s, in, 1, i, g);
            const int32_t *want = list_of(s, in, 0, i, g);
            int32_t n_other = 0;

            for (int32_t j = 0, k = 0; j < n; j++) {
                if (s->holes && g == 0 && got[j] == -1) { /* no more rank */
                    short_list = true;
                    n_other += want[j] != -1;
                    continue;
                }
                if (got[j] < 0 || got[j] >= s->pos[i] + s->pool ||
                    (s->pool && got[j] == victim_of(g)) || (j > 0 && got[j] <= got[j - 1])) {
                    check_fail(c, "sequence %d, group %d: entry %d is %d", i, g, j, got[j]);
                    return;
                }
                while (k < count_of(in, 0, i) && want[k] < got[j]) {
                    k++;
                }
                n_other += k == count_of(in, 0, i) || want[k] != got[j];
            }
            if (n_other > 1 + n / 100) {
                check_fail(c, "sequence %d, group %d: %d of %d slots are others", i, g, n_other, n);
            }
        }
        if (s->holes && i != SILENT && !short_list) {
            check_fail(c, "sequence %d: no group lists fewer than the others", i);
        }
    }
}

/* What is kept of the lists, where these are equal; a halving would show everywhere. */
static void compare_scores(struct check *c, const struct shape *s, const struct inputs *in)
{
    for (int i = 0; i < N_SEQS; i++) {
        const float *want = (const float *)(const void *)in->kv[i].score->out[0];
        const float *got = (const float *)(const void *)in->kv[i].score->out[1];
        const float *before = (const float *)(const void *)in->kv[i].score->init;
        int32_t n_other = 0;
        int32_t n_same = 0;

        for (int32_t g = 0; g < s->l.n_groups; g++) {
            for (int32_t j = 0; j < in->kv[i].n_slots; j++) {
                size_t at = (size_t)g * (size_t)in->kv[i].cap + (size_t)j;

                n_other += want[at] != got[at];
                n_same += got[at] == before[at];
                if (j == victim_of(g) && got[at] != before[at]) {
                    check_fail(c, "sequence %d, group %d: the victim's score is touched", i, g);
                }
            }
        }
        if (n_other > 2 * s->l.n_groups * (1 + count_of(in, 1, i) / 100)) {
            check_fail(c, "sequence %d: %d scores are others", i, n_other);
        }
        if (i != SILENT && n_same == s->l.n_groups * in->kv[i].n_slots) {
            check_fail(c, "sequence %d: no score has changed", i);
        }
    }
}

/* sum over the group's query heads of softmax(q.k), by canonical slots in double. */
static void exact_sums(const struct shape *s, const struct inputs *in, int seq, int32_t group,
                       double *sum)
{
    int32_t n_heads = s->n_q / s->l.n_groups;
    double *x = calloc((size_t)s->pos[seq] + 1, sizeof(*x));
    float k[512];

    for (int32_t h = 0; h < n_heads; h++) {
        const float *q = (const float *)(const void *)in->q->init + (size_t)seq * (size_t)in->ldq +
                         (size_t)(group * n_heads + h) * (size_t)s->l.k_dim;
        double all = 0;

        for (int32_t i = 0; i < s->pos[seq]; i++) {
            check_kv_decode_k(&in->kv[seq], in->kv[seq].content, group, i,
                              h / (n_heads / s->l.k_heads), k);
            x[i] = 0;
            for (int32_t d = 0; d < s->l.k_dim; d++) {
                x[i] += (double)q[d] * (double)k[d];
            }
            x[i] = exp(x[i] / sqrt((double)s->l.k_dim));
            all += x[i];
        }
        for (int32_t i = 0; i < s->pos[seq]; i++) {
            sum[i] += x[i] / all;
        }
    }
    free(x);
}

static void compare_exact(struct check *c, const struct shape *s, const struct inputs *in)
{
    for (int i = 0; i < N_SEQS; i++) {
        for (int32_t g = 0; g < s->l.n_groups && i != SILENT; g++) {
            double *sum = calloc((size_t)s->pos[i] + 1, sizeof(*sum));
            const int32_t *list = list_of(s, in, 0, i, g);
            double least = INFINITY;
            double best = 0;
            int32_t at = 0;

            exact_sums(s, in, i, g, sum);
            for (int32_t p = 0; p < s->pos[i]; p++) {
                if (at < count_of(in, 0, i) && list[at] == p) {
                    least = fmin(least, sum[p]);
                    at++;
                } else {
                    best = fmax(best, sum[p]);
                }
            }
            if (best > least * (1 + 1e-4)) {
                check_fail(c, "sequence %d, group %d: left out %g, listed %g", i, g, best, least);
            }
            free(sum);
        }
    }
}

/* What was just computed with a list of everything, without one. */
static void without(struct check *c, const struct shape *s, struct inputs *in)
{
    check_reference_again(c);
    check_require(call(c, s, in, false), "attention");
    check_same(c, "a list of all slots and none", in->out);
}

static void start_again(struct check *c, const struct check_buf *b)
{
    if (b) {
        check_require(c->ops->write(c->be, check_dev(c, b), b->init, b->bytes), b->what);
    }
}

static void same_as_before(struct check *c, const char *what, const struct check_buf *b)
{
    uint8_t *got = malloc(b->bytes);

    check_require(c->ops->read(c->be, got, check_dev(c, b), b->bytes), b->what);
    check_bits(c, what, got, b->out[1], b->bytes);
    free(got);
}

/* What was just computed, with pages in memory of the host. */
static void from_the_host(struct check *c, const struct shape *s, struct inputs *in)
{
    struct away a;
    int32_t *own;

    c->side = 1;
    c->be = c->sides[1];
    c->ops = c->be->ops;
    c->warm = true;
    away_make(c, s, in, &a);
    in->away = &a;
    for (int i = 0; i < N_SEQS; i++) {
        start_again(c, in->kv[i].slot_pos);
        start_again(c, in->kv[i].score);
    }
    start_again(c, in->out);
    start_again(c, in->n);
    start_again(c, in->slots);
    check_require(call(c, s, in, true), "with pages on the host");
    check_require(c->ops->sync(c->be), "sync");
    same_as_before(c, "lists' lengths, pages on the host", in->n);
    same_as_before(c, "lists, pages on the host", in->slots);
    same_as_before(c, "out, pages on the host", in->out);
    own = malloc(a.own_bytes);
    check_require(c->ops->read(c->be, own, a.own, a.own_bytes), "own");
    for (int32_t i = 0; i < N_SEQS * s->l.n_groups; i++) {
        int seq = i / s->l.n_groups;

        if (own[i] != (seq == SILENT ? -1 : count_of(in, 1, seq))) {
            check_fail(c, "sequence %d: its own slot goes to %d", seq, own[i]);
        }
    }
    free(own);
    away_free(c, &a);
    in->away = NULL;
}

static void predict(struct check *c, const struct shape *s)
{
    struct ops_kv_layout l = s->l;
    struct inputs in;

    if (!c->sides[1]->ops->predict || !check_kv_offered(c, &l) ||
        !check_case(c,
                    "%s %dx(%dx%d,%dx%d) q %d part %d %s pos %d,%d,%d count %d share %d alpha %g "
                    "cap %d%s softcap %g alibi %g%s%s%s use %d",
                    ops_kv_type_name(l.k_type), l.n_groups, l.k_heads, l.k_dim, l.v_heads, l.v_dim,
                    s->n_q, l.part_dims, ops_kv_type_name(l.part_type), s->pos[0], s->pos[1],
                    s->pos[3], s->select.count, s->select.share, (double)s->select.alpha,
                    s->select.cap, s->stored ? " stored" : "", (double)s->softcap,
                    (double)s->alibi_max, s->pool ? " pool" : "", is_cut(s) ? " cut" : "",
                    s->holes ? " holes" : "", (int)s->select.use)) {
        return;
    }
    prepare(c, s, &in);
    while (check_call(c)) {
        c->err = call(c, s, &in, true);
    }
    if (!c->bench) {
        bool all = s->select.count >= most_rows(s);

        compare_lists(c, s, &in);
        if (s->pool && !is_cut(s)) {
            compare_scores(c, s, &in);
        }
        if (all) { /* else a near tie would show */
            /* The row that reads all may be summed in f16, or with queries in 15 bits. */
            bool half = (l.k_type == OPS_KV_FP8 || l.v_type == OPS_KV_FP8) && check_has_half(c);
            bool bits = check_has_int_keys(c, l.k_type) || check_has_int_values(c, l.v_type);

            check_floats(c, in.out, N_SEQS, s->n_q * l.v_dim, s->n_q * l.v_dim,
                         half   ? &tol_attention_half
                         : bits ? &tol_attention_15
                                : &tol_select);
        }
        if (c->first && all) {
            without(c, s, &in);
        } else if (c->first && !s->stored && !s->pool && l.part_dims == l.k_dim &&
                   l.part_type == OPS_KV_F32 && s->softcap == 0 && s->alibi_max == 0) {
            compare_exact(c, s, &in);
        }
        if (c->sides[1]->ops->bring && !s->pool) {
            from_the_host(c, s, &in);
        }
    }
    for (int i = 0; i < N_SEQS; i++) {
        check_kv_free(&in.kv[i]);
    }
}

void check_op(struct check *c)
{
    static const struct {
        enum ops_kv_type k, v, part;
    } types[] = {{OPS_KV_F32, OPS_KV_F32, OPS_KV_F32}, {OPS_KV_F16, OPS_KV_F16, OPS_KV_F16},
                 {OPS_KV_I8, OPS_KV_FP8, OPS_KV_F16},  {OPS_KV_FP8, OPS_KV_FP8, OPS_KV_F32},
                 {OPS_KV_F16, OPS_KV_F16, OPS_KV_FP8}, {OPS_KV_FP8, OPS_KV_FP8, OPS_KV_FP8}};
    const struct ops_select alpha = {.kind = OPS_SELECT_GIVEN, .alpha = 1.5f, .cap = 100};
    const struct ops_select capped = {.kind = OPS_SELECT_GIVEN, .alpha = 4, .cap = 20};
    const struct ops_select count = {.kind = OPS_SELECT_GIVEN, .count = 37};
    const struct ops_select share = {.kind = OPS_SELECT_GIVEN, .share = 10};
    const struct ops_select last = {.kind = OPS_SELECT_GIVEN, .count = 37, .use = OPS_USE_LAST};
    const struct ops_select often = {
        .kind = OPS_SELECT_GIVEN, .alpha = 2, .cap = 30, .use = OPS_USE_COUNT};
    const struct ops_select all_used = {
        .kind = OPS_SELECT_GIVEN, .count = 9999, .use = OPS_USE_COUNT};
    const struct ops_select whole = {.kind = OPS_SELECT_GIVEN, .count = 9999};

    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        struct ops_kv_layout gqa = {.n_groups = 3,
                                    .k_heads = 1,
                                    .v_heads = 1,
                                    .k_dim = 64,
                                    .v_dim = 64,
                                    .k_type = types[t].k,
                                    .v_type = types[t].v,
                                    .part_dims = 19,
                                    .part_type = types[t].part};
        struct ops_kv_layout mha = gqa;
        struct ops_kv_layout more_k = gqa;
        struct ops_kv_layout more_v = gqa;

        mha.n_groups = 6;
        mha.part_dims = 64;
        more_k.n_groups = 2;
        more_k.k_heads = 2;
        more_k.k_dim = 24; /* no whole vectors */
        more_k.part_dims = 24;
        more_v.n_groups = 1;
        more_v.v_heads = 4;
        more_v.k_dim = 128;
        more_v.part_dims = 128; /* more rows than one pass */
        const struct shape shapes[] = {
            {gqa, 9, {300, 1, 40, 700}, alpha, false, 0, 0, false, false},
            {gqa, 9, {513, 64, 40, 127}, capped, true, 0, 0, false, false},
            {gqa, 9, {130, 63, 40, 0}, count, false, 20, 0, false, false},
            {gqa, 9, {200, 128, 40, 65}, share, true, 0, 8, false, false},
            {mha, 6, {300, 70, 40, 192}, alpha, false, 0, 0, false, false},
            {mha, 6, {300, 70, 40, 192}, count, true, 0, 0, false, false},
            {more_k, 8, {300, 70, 40, 12}, count, false, 0, 0, false, false},
            {more_v, 16, {300, 70, 40, 12}, share, false, 0, 0, false, false},
            {gqa, 9, {300, 70, 40, 12}, whole, false, 0, 0, false, false},
            {more_v, 8, {300, 70, 40, 12}, whole, true, 0, 0, false, false},
            {gqa, 9, {300, 700, 40, 65}, last, false, 0, 0, true, false},
            {gqa, 9, {300, 700, 40, 6}, often, false, 0, 8, true, false},
            {gqa, 9, {300, 700, 40, 400}, last, false, 0, 0, true, true},
            {more_k, 8, {300, 70, 40, 12}, last, false, 0, 0, true, false},
            {more_v, 8, {300, 70, 40, 12}, all_used, false, 0, 0, true, false},
            {gqa, 9, {300, 700, 40, 65}, count, false, 0, 0, true, false},
            {more_k, 8, {300, 70, 40, 12}, share, false, 0, 0, true, false},
        };

        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            predict(c, &shapes[i]);
        }
    }
}

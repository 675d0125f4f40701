/* SPDX-License-Identifier: Apache-2.0 */
/* A mixture of experts out of matmuls. All rows are normed and meet the router; each row's choice
 * is made (kernels/route.c), and rows are sorted by expert. Then each expert that has rows, in
 * ascending order: its rows are gathered (rows of class decode stay first), multiplied with gate
 * and up, and with down, and added to y with their weights. An expert's weights are thus read once
 * a batch, and a matmul's batch invariance is the mixture's. The shared expert has all rows.
 *
 * A row of class decode that is alone goes otherwise, to the same bits: its experts are read four
 * at a time, in two jobs and not eight, since each job is a wait for the threads and a stream of
 * weights that begins cold. Which weights come next is known there, not guessed.
 *
 * Scratch: x, the normed rows; some, an expert's rows, later what its down gives; h, its hidden
 * values; logits; and what was chosen, by row and by expert. */

#include <errno.h>
#include <string.h>

#include "base/checked.h"
#include "kernels/cpu/cpu.h"
#include "kernels/route.h"

enum { THREADED = 8 }; /* rows from which waking the others pays */

struct entry {
    int32_t row;
    float weight;
};

struct scratch {
    float *x;
    float *some;
    float *h;
    float *logits;
    struct route *routes;  /* (n, n_used) */
    struct entry *entries; /* (n * n_used), by expert, then by row */
    int32_t ld;
    int32_t ld_logits;
};

static int32_t round_ld(int32_t n)
{
    return (n + 15) & ~15;
}

static void *take(uint8_t *base, uint64_t *used, uint64_t bytes)
{
    void *at = base ? base + *used : NULL;

    *used += checked_round_up(bytes, 64);
    return at;
}

/* Bytes of it; with `base` where all of it lies, too. */
static uint64_t lay_out(const struct backend_limits *l, uint8_t *base, struct scratch *ret)
{
    uint64_t n = (uint64_t)l->max_rows;
    uint64_t used = 0;
    struct scratch s = {.ld = round_ld(l->max_cols), .ld_logits = round_ld(l->max_experts + 1)};
    uint64_t row = (uint64_t)s.ld * sizeof(float);

    s.x = take(base, &used, n * row);
    s.some = take(base, &used, n * row);
    s.h = take(base, &used, n * row);
    s.logits = take(base, &used, n * (uint64_t)s.ld_logits * sizeof(float));
    s.routes = take(base, &used, n * (uint64_t)l->max_experts_used * sizeof(*s.routes));
    s.entries = take(base, &used, n * (uint64_t)l->max_experts_used * sizeof(*s.entries));
    *ret = s;
    return used;
}

uint64_t cpu_experts_scratch_bytes(const struct backend_limits *limits)
{
    struct scratch s;

    return limits->max_experts > 0 ? lay_out(limits, NULL, &s) : 0;
}

struct job {
    const struct ops_experts *p;
    struct scratch s;
    int32_t n_cols;
    struct cpu *slots;        /* the backend, where experts stay in the file's map; else NULL */
    const struct entry *rows; /* of the expert at hand */
    int32_t n;
};

static void for_rows(struct cpu *cpu, struct job *job, pool_fn *fn, int32_t n)
{
    job->n = n;
    if (n < THREADED) {
        fn(job, 0, 1);
    } else {
        pool_run(cpu->pool, fn, job);
    }
}

static int32_t part_of(int32_t n, int i, int of)
{
    return (int32_t)((int64_t)n * i / of);
}

static void choose_piece(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_experts *p = job->p;
    int32_t end = part_of(job->n, tid + 1, n_threads);

    for (int32_t i = part_of(job->n, tid, n_threads); i < end; i++) {
        route_row(p, job->s.logits + (size_t)i * (size_t)job->s.ld_logits,
                  job->s.routes + (size_t)i * (size_t)p->n_used);
    }
}

static void gather_piece(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    int32_t end = part_of(job->n, tid + 1, n_threads);

    for (int32_t i = part_of(job->n, tid, n_threads); i < end; i++) {
        memcpy(job->s.some + (size_t)i * (size_t)job->s.ld,
               job->s.x + (size_t)job->rows[i].row * (size_t)job->s.ld,
               (size_t)job->n_cols * sizeof(float));
    }
}

static void add_row(const struct job *job, int32_t i, int32_t row, float weight)
{
    float *y = job->p->y + (size_t)row * (size_t)job->p->ldy;
    const float *x = job->s.some + (size_t)i * (size_t)job->s.ld;

    for (int32_t k = 0; k < job->n_cols; k++) {
        y[k] += weight * x[k];
    }
}

static void add_piece(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    int32_t end = part_of(job->n, tid + 1, n_threads);

    for (int32_t i = part_of(job->n, tid, n_threads); i < end; i++) {
        add_row(job, i, job->rows[i].row, job->rows[i].weight);
    }
}

static void add_shared_piece(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    int32_t end = part_of(job->n, tid + 1, n_threads);

    for (int32_t i = part_of(job->n, tid, n_threads); i < end; i++) {
        const float *gate = job->s.logits + (size_t)i * (size_t)job->s.ld_logits + job->p->n_expert;

        add_row(job, i, i, route_shared(job->p, *gate));
    }
}

static int norm_rows(struct backend *be, const struct job *job, const struct ops_norm *of)
{
    const struct ops_experts *p = job->p;
    struct ops_norm_op norm = {
        .rows = p->rows,
        .norm = *of,
        .x = p->x,
        .y = job->s.x,
        .ldx = p->ldx,
        .ldy = job->s.ld,
        .n_cols = job->n_cols,
    };

    return cpu_norm(be, &norm);
}

/* The router's logits, and behind them the product of the shared expert's gate. */
static int router(struct backend *be, const struct job *job)
{
    const struct ops_experts *p = job->p;
    struct ops_matmul m = {
        .rows = p->rows,
        .x = job->s.x,
        .ldx = job->s.ld,
        .n_parts = p->shared_gate ? 2 : 1,
        .part[0] = {.w = p->router,
                    .y = job->s.logits,
                    .ldy = job->s.ld_logits,
                    .scale = p->router_scale},
        .part[1] = {.w = p->shared_gate, .y = job->s.logits + p->n_expert, .ldy = job->s.ld_logits},
    };

    return cpu_matmul(be, &m);
}

/* Rows in order of their experts; first[e] is where e's begin. */
static void sort_rows(const struct job *job, int32_t *first)
{
    const struct ops_experts *p = job->p;
    int32_t n = p->rows.n * p->n_used;

    memset(first, 0, ((size_t)p->n_expert + 1) * sizeof(*first));
    for (int32_t i = 0; i < n; i++) {
        first[job->s.routes[i].expert + 1]++;
    }
    for (int32_t e = 0; e < p->n_expert; e++) {
        first[e + 1] += first[e];
    }
    for (int32_t i = n - 1; i >= 0; i--) { /* from behind: what is left of an expert's rows */
        const struct route *r = &job->s.routes[i];
        int32_t at = --first[r->expert + 1];

        job->s.entries[at] = (struct entry){i / p->n_used, r->weight};
    }
    memmove(first, first + 1, (size_t)p->n_expert * sizeof(*first));
    first[p->n_expert] = n;
}

/* Matrix e of the stack of one of p's three parts, as a weight of its own. */
static struct ops_weight one_of(const struct job *job, const struct ops_expert_part *part,
                                int32_t e)
{
    const struct ops_experts *p = job->p;
    struct ops_weight one = *part->w;
    size_t n_panels = ((size_t)one.n_rows + PANEL_ROWS - 1) / PANEL_ROWS;

    one.n_stack = 1;
    one.device = (const uint8_t *)part->w->device +
                 (size_t)e * n_panels * (size_t)panel_bytes(one.type, (uint64_t)one.n_cols);
    if (job->slots && part->w->n_stack > 1) {
        int k = part == &p->gate ? 0 : part == &p->up ? 1 : 2;

        one.device = cpu_experts_packed(job->slots, p, k, e);
    }
    return one;
}

static struct ops_weight bias_of(const struct ops_expert_part *p, int32_t e)
{
    struct ops_weight one = {0};

    if (p->bias) {
        one = *p->bias;
        one.n_cols = p->w->n_rows;
        one.device = (const float *)p->bias->device + (size_t)e * (size_t)p->w->n_rows;
    }
    return one;
}

/* some = expert e's layer of the rows in x, which may be `some`. */
static int layer(struct backend *be, const struct job *job, struct ops_rows rows, const float *x,
                 const struct ops_expert_part *gate, const struct ops_expert_part *up,
                 const struct ops_expert_part *down, int32_t e)
{
    const struct ops_weight w[] = {one_of(job, gate, e), one_of(job, up, e), one_of(job, down, e)};
    const struct ops_weight b[] = {bias_of(gate, e), bias_of(up, e), bias_of(down, e)};
    struct ops_matmul in = {
        .rows = rows,
        .x = x,
        .ldx = job->s.ld,
        .n_parts = 2,
        .gated = true,
        .part[0] = {.w = &w[0],
                    .bias = gate->bias ? &b[0] : NULL,
                    .y = job->s.h,
                    .ldy = job->s.ld,
                    .act = job->p->act},
        .part[1] = {.w = &w[1], .bias = up->bias ? &b[1] : NULL, .ldy = job->s.ld},
    };
    struct ops_matmul out = {
        .rows = rows,
        .x = job->s.h,
        .ldx = job->s.ld,
        .n_parts = 1,
        .part[0] = {.w = &w[2],
                    .bias = down->bias ? &b[2] : NULL,
                    .y = job->s.some,
                    .ldy = job->s.ld},
    };
    int r = cpu_matmul(be, &in);

    return r ? r : cpu_matmul(be, &out);
}

/* A few experts of one row. */
enum { FEW = 4 };

/* Two few at once: those at hand and those that come next. */
_Static_assert(2 * FEW <= BACKEND_LEAST_EXPERTS, "");

struct few {
    struct ops_weight w[3 * FEW];
    struct ops_weight b[3 * FEW];
    struct ops_matmul in;  /* pairs */
    struct ops_matmul out; /* row i of its x is part i's */
};

static void gather_few(const struct job *job, int32_t from, int32_t n, struct few *ret)
{
    const struct ops_expert_part *parts[] = {&job->p->gate, &job->p->up, &job->p->down};
    int32_t experts[FEW] = {0};

    *ret = (struct few){
        .in = {.rows = {1, 1}, .x = job->s.x, .ldx = job->s.ld, .n_parts = 2 * n},
        .out = {.rows = {n, n}, .x = job->s.h, .ldx = job->s.ld, .n_parts = n},
    };
    for (int32_t i = 0; i < n; i++) {
        experts[i] = job->s.routes[from + i].expert;
    }
    if (job->slots) {
        cpu_experts_fetch(job->slots, job->p, experts, n);
    }
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < 3; k++) {
            ret->w[3 * i + k] = one_of(job, parts[k], job->s.routes[from + i].expert);
            ret->b[3 * i + k] = bias_of(parts[k], job->s.routes[from + i].expert);
        }
        for (int32_t k = 0; k < 2; k++) {
            ret->in.part[2 * i + k].w = &ret->w[3 * i + k];
            ret->in.part[2 * i + k].bias = parts[k]->bias ? &ret->b[3 * i + k] : NULL;
        }
        ret->in.part[2 * i].y = job->s.h + (size_t)i * (size_t)job->s.ld;
        ret->in.part[2 * i].ldy = job->s.ld;
        ret->in.part[2 * i].act = job->p->act;
        ret->out.part[i].w = &ret->w[3 * i + 2];
        ret->out.part[i].bias = parts[2]->bias ? &ret->b[3 * i + 2] : NULL;
        ret->out.part[i].y = job->s.some; /* row i of it */
        ret->out.part[i].ldy = job->s.ld;
    }
}

/* Fetches e and those behind it that have rows, FEW in all; returns the first one beyond. */
static int32_t fetch_few(const struct job *job, const int32_t *first, int32_t e)
{
    int32_t which[FEW];
    int32_t n = 0;

    for (; e < job->p->n_expert && n < FEW; e++) {
        if (first[e + 1] > first[e]) {
            which[n++] = e;
        }
    }
    cpu_experts_fetch(job->slots, job->p, which, n);
    return e;
}

static int chosen(struct backend *be, struct job *job, const int32_t *first)
{
    const struct ops_experts *p = job->p;
    int32_t fetched = 0;
    int r = 0;

    for (int32_t e = 0; e < p->n_expert && !r; e++) {
        struct ops_rows rows = {.n = first[e + 1] - first[e]};

        if (rows.n == 0) {
            continue;
        }
        job->rows = job->s.entries + first[e];
        while (rows.n_decode < rows.n && job->rows[rows.n_decode].row < p->rows.n_decode) {
            rows.n_decode++;
        }
        for_rows(cpu_of(be), job, gather_piece, rows.n);
        if (job->slots && e >= fetched) {
            fetched = fetch_few(job, first, e);
        }
        r = layer(be, job, rows, job->s.some, &p->gate, &p->up, &p->down, e);
        if (!r) {
            for_rows(cpu_of(be), job, add_piece, rows.n);
        }
    }
    return r;
}

/* Of one row the chosen experts, FEW at a time: one job for all their gates and ups, one for their
 * downs. Sums and their order are those of `chosen`. */
static void chosen_of_row(struct cpu *cpu, struct job *job)
{
    const struct ops_experts *p = job->p;
    struct few few[2];
    int32_t n = p->n_used < FEW ? p->n_used : FEW;
    int at = 0;

    gather_few(job, 0, n, &few[0]);
    for (int32_t from = 0; from < p->n_used; from += FEW, at = !at) {
        int32_t left = p->n_used - from - FEW;

        if (left > 0) {
            gather_few(job, from + FEW, left < FEW ? left : FEW, &few[!at]);
        }
        cpu_matmul_experts(cpu, &few[at].in, &few[at].out, left > 0 ? &few[!at].in : NULL);
        for (int32_t i = 0; i < few[at].out.n_parts; i++) {
            add_row(job, i, 0, job->s.routes[from + i].weight);
        }
    }
}

int cpu_experts(struct backend *be, const struct ops_experts *p)
{
    struct cpu *cpu = cpu_of(be);
    struct job job = {.p = p};
    int32_t first[OPS_EXPERTS_MAX + 1];
    int r;

    if (!cpu->scratch || !ops_experts_valid(p, &cpu->limits)) {
        return -EINVAL;
    }
    job.slots = cpu->expert_bytes && p->down.w->n_stack > 1 ? cpu : NULL;
    if (job.slots && !cpu->expert_slots) {
        return -EINVAL;
    }
    job.n_cols = p->router->n_cols;
    (void)lay_out(
        &cpu->limits, /* the last of all scratch */
        cpu->matmul_scratch + cpu->scratch_bytes - cpu_experts_scratch_bytes(&cpu->limits), &job.s);
    r = norm_rows(be, &job, p->router_norm.w ? &p->router_norm : &p->norm);
    r = r ? r : router(be, &job);
    r = r || !p->router_norm.w ? r : norm_rows(be, &job, &p->norm);
    if (r) {
        return r;
    }
    for_rows(cpu, &job, choose_piece, p->rows.n);
    for (int32_t i = 0; i < p->rows.n && !p->add; i++) {
        memset(p->y + (size_t)i * (size_t)p->ldy, 0, (size_t)job.n_cols * sizeof(float));
    }
    if (p->rows.n == 1 && p->rows.n_decode == 1 && cpu->limits.max_rows >= FEW) {
        chosen_of_row(cpu, &job);
    } else {
        sort_rows(&job, first);
        r = chosen(be, &job, first);
    }
    if (!r && p->shared_up.w) {
        r = layer(be, &job, p->rows, job.s.x, &p->shared_gate_proj, &p->shared_up, &p->shared_down,
                  0);
        if (!r) {
            for_rows(cpu, &job, add_shared_piece, p->rows.n);
        }
    }
    return r;
}

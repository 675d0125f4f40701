/* SPDX-License-Identifier: Apache-2.0 */
/* y = act(norm(x) W^T + bias), gated or added: who does which piece.
 *
 * Two steps. First each token is normalised and quantised once for all parts; then panels of 16
 * rows meet the tokens, and each panel's end (bias, activation, gate, residual) is applied while
 * its results are in L1. Below 32 tokens a thread, matmul_few.c shares out panels. From there on
 * each thread has tokens of its own: no barrier, and their activations stay in its L2 while the
 * weights stream past once per chunk of 128 tokens. Threads are a grid of token ranges x panel
 * ranges.
 *
 * The output head (role embed) multiplies twice: with the rounded activations, and with what the
 * rounding left, rounded again. Its error goes straight into the logits, and it has few rows: the
 * second pass finds each panel in L1. On SmolLM2 mean KL to F32 fell from 2.5e-3 to 1.6e-3.
 *
 * Every output is one sum that one thread adds up in a fixed order (panel_body.h), so neither grid
 * nor batch shows in the bits. Rows of class decode and prefill use the same arithmetic, except
 * where the CPU multiplies tiles: there rows of class prefill go to matmul_tiles.c. Panel ranges
 * are cut by bytes of weights, since that is what a few tokens cost. */

#include "kernels/cpu/matmul.h"

#include <errno.h>

#include "kernels/cpu/matmul_tiles.h"

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static size_t q_bytes(size_t rows, size_t cols)
{
    return align64(rows * ((cols + PANEL_COLS - 1) / PANEL_COLS) * sizeof(struct panel_act));
}

static size_t x_bytes(size_t rows, size_t cols)
{
    return align64(rows * cols * sizeof(float));
}

static size_t thread_bytes(size_t cols)
{
    return 2 * (size_t)OUT_BYTES + x_bytes(1, cols) + q_bytes(FEW_TOKENS, cols) +
           x_bytes(FEW_TOKENS, cols);
}

uint64_t cpu_matmul_scratch_bytes(int n_threads, const struct backend_limits *limits)
{
    size_t rows = (size_t)limits->max_rows;
    size_t cols = (size_t)limits->max_cols;

    return q_bytes(rows, cols) + x_bytes(rows, cols) + (size_t)n_threads * thread_bytes(cols) +
           align64(matmul_known_jobs_bytes());
}

struct cpu_known_jobs *cpu_matmul_known_jobs(const struct cpu *cpu)
{
    uint64_t end = cpu_matmul_scratch_bytes(cpu->n_threads, &cpu->limits);

    return (void *)(cpu->matmul_scratch + end - align64(matmul_known_jobs_bytes()));
}

struct thread_scratch matmul_thread(const struct cpu *cpu, int tid)
{
    size_t rows = (size_t)cpu->limits.max_rows;
    size_t cols = (size_t)cpu->limits.max_cols;
    uint8_t *at = cpu->matmul_scratch + q_bytes(rows, cols) + x_bytes(rows, cols) +
                  (size_t)tid * thread_bytes(cols);
    struct thread_scratch s;

    s.g = (void *)at;
    s.u = (void *)(at + OUT_BYTES);
    s.row = (void *)(at + 2 * OUT_BYTES);
    s.q = (void *)((uint8_t *)s.row + x_bytes(1, cols));
    s.x = (void *)((uint8_t *)s.q + q_bytes(FEW_TOKENS, cols));
    return s;
}

float *cpu_thread_row(const struct cpu *cpu, int tid)
{
    return matmul_thread(cpu, tid).row;
}

/* What rounding left of x, rounded in its turn. `tmp` may be x. */
static void quantize_rest(const struct job *job, const float *x, const struct panel_act *q,
                          float *tmp, struct panel_act *ret)
{
    for (int32_t b = 0; b < job->n_cols / PANEL_COLS; b++) {
        for (int32_t k = 0; k < PANEL_COLS; k++) {
            tmp[b * PANEL_COLS + k] = x[b * PANEL_COLS + k] - q[b].d * (float)q[b].q[k];
        }
    }
    job->cpu->table.quantize(tmp, job->n_cols, ret);
}

/* One token: to q, to ret_x (where float weights want it) or to `rest` (where the job is fine). */
static void prepare_row(const struct job *job, int32_t row, float *tmp, struct panel_act *q,
                        struct panel_act *rest, float *ret_x)
{
    const struct cpu_table *table = &job->cpu->table;
    const struct ops_norm *norm = &job->p->norm;
    const float *x = job->p->x + (size_t)row * (size_t)job->p->ldx;

    if (norm->w) {
        float *y = job->need_x ? ret_x : tmp;
        cpu_norm_fn *fn = norm->kind == OPS_NORM_RMS ? table->norm_rms : table->norm_layer;

        fn(x, norm->w->device, norm->b ? norm->b->device : NULL, norm->eps, job->n_cols, y);
        x = y;
    }
    if (job->need_q) {
        table->quantize(x, job->n_cols, q);
    }
    if (job->fine) {
        quantize_rest(job, x, q, tmp, rest);
    }
}

/* The buffer of float rows holds the rest's blocks when the job is fine. */
static struct panel_act *rest_of(float *x)
{
    return (void *)x;
}

void matmul_prepare(const struct job *job, int32_t row0, int32_t row1, float *tmp,
                    struct panel_act *q, float *x)
{
    const size_t n_blocks = (size_t)job->n_cols / PANEL_COLS;

    for (int32_t i = row0; i < row1; i++) {
        prepare_row(job, i, tmp, q + (size_t)i * n_blocks, rest_of(x) + (size_t)i * n_blocks,
                    x + (size_t)i * (size_t)job->n_cols);
    }
}

int32_t matmul_panel_at(uint64_t target, uint64_t before, uint64_t unit_bytes, int32_t n)
{
    if (target <= before) {
        return 0;
    }
    uint64_t i = (target - before + unit_bytes - 1) / unit_bytes;
    return i < (uint64_t)n ? (int32_t)i : n;
}

struct unit_acts matmul_acts(const struct job *job, struct panel_act *q, float *x, int32_t t0)
{
    const struct ops_matmul *p = job->p;
    struct unit_acts a = {.acts[0].n_cols = job->n_cols};

    a.acts[0].ldq = (size_t)job->n_cols / PANEL_COLS;
    a.acts[0].q = q + (size_t)t0 * a.acts[0].ldq;
    a.acts[0].ldx = (size_t)(job->need_x ? job->n_cols : p->ldx);
    a.acts[0].x = (job->need_x ? x : p->x) + (size_t)t0 * a.acts[0].ldx;
    a.acts[1] = a.acts[0];
    if (job->fine) {
        a.acts[1].q = rest_of(x) + (size_t)t0 * a.acts[0].ldq;
    }
    return a;
}

/* The second pass of a fine job: g += panel . rest. */
static void add_rest(const struct thread_scratch *s, cpu_panel_fn *fn, const uint8_t *panel,
                     const struct cpu_acts *rest, int32_t n)
{
    fn(panel, rest, n, s->u);
    for (int32_t i = 0; i < n * PANEL_ROWS; i++) {
        s->g[i] += s->u[i];
    }
}

void matmul_panel(const struct job *job, const struct thread_scratch *s, const struct unit_acts *a,
                  int part, int32_t panel, int32_t t0, int32_t n)
{
    const struct ops_matmul *p = job->p;
    const struct ops_weight *w = p->part[part].w;
    const struct ops_weight *bias = p->part[part].bias;
    const int pair = matmul_pair_of(job, part);
    const int32_t row = panel * PANEL_ROWS;
    const size_t stride = (size_t)panel_bytes(w->type, (uint64_t)w->n_cols);
    const uint8_t *at = (const uint8_t *)w->device + (size_t)panel * stride;
    cpu_panel_fn *fn = cpu_table_panel(&job->cpu->table, w->type);
    struct cpu_epilogue e = {
        .g = s->g,
        .bias = bias ? (const float *)bias->device + row : NULL,
        .scale = ops_factor(p->part[part].scale),
        .bias_scale = ops_factor(p->part[part].bias_scale),
        .y = p->part[part].y + (size_t)t0 * (size_t)p->part[part].ldy + row,
        .ldy = (size_t)p->part[part].ldy,
        .n = n,
        .n_rows = w->n_rows - row < PANEL_ROWS ? w->n_rows - row : PANEL_ROWS,
        .act = p->part[part].act,
        .add = p->add,
    };

    fn(at, &a->acts[0], n, s->g);
    if (job->fine) {
        add_rest(s, fn, at, &a->acts[1], n);
    }
    if (pair >= 0) {
        const struct ops_weight *up = p->part[pair].w;
        size_t up_stride = (size_t)panel_bytes(up->type, (uint64_t)up->n_cols);

        cpu_table_panel(&job->cpu->table, up->type)(
            (const uint8_t *)up->device + (size_t)panel * up_stride, &a->acts[1], n, s->u);
        e.u = s->u;
        e.u_bias = p->part[pair].bias ? (const float *)p->part[pair].bias->device + row : NULL;
        e.u_scale = ops_factor(p->part[pair].scale);
        e.u_bias_scale = ops_factor(p->part[pair].bias_scale);
    }
    job->cpu->table.epilogue(&e);
}

uint64_t matmul_unit_bytes(const struct ops_matmul *p, int part)
{
    uint64_t bytes = panel_bytes(p->part[part].w->type, (uint64_t)p->part[part].w->n_cols);

    if (p->gated) {
        bytes += panel_bytes(p->part[1].w->type, (uint64_t)p->part[1].w->n_cols);
    }
    return bytes;
}

/* Tokens [t0, t0 + n) against the thread's share, split `i` of `of`, of all panels. */
static void run_panels(const struct job *job, const struct thread_scratch *s,
                       const struct unit_acts *a, int i, int of, int32_t t0, int32_t n)
{
    uint64_t from = job->bytes / (uint64_t)of * (uint64_t)i;
    uint64_t to = i == of - 1 ? job->bytes : job->bytes / (uint64_t)of * (uint64_t)(i + 1);
    uint64_t before = 0;

    for (int part = 0; part < matmul_n_parts(job->p); part++) {
        uint64_t unit = matmul_unit_bytes(job->p, part);
        int32_t panels = matmul_n_panels(job->p->part[part].w);
        int32_t end = matmul_panel_at(to, before, unit, panels);

        for (int32_t k = matmul_panel_at(from, before, unit, panels); k < end; k++) {
            matmul_panel(job, s, a, part, k, t0, n);
        }
        before += unit * (uint64_t)panels;
    }
}

/* Where range i of `of` begins: at whole tiles, because a tile's kernel reads all its rows. */
static int32_t cut_tokens(int64_t n, int i, int of)
{
    return i == of ? (int32_t)n : (int32_t)(n * i / of / PANEL_ROWS * PANEL_ROWS);
}

static void matmul_piece(void *arg, int tid, int n_threads)
{
    const struct job *job = arg;
    const struct ops_matmul *p = job->p;
    const struct thread_scratch s = matmul_thread(job->cpu, tid);
    const int64_t n = p->rows.n;
    const int ti = tid % job->token_splits;
    const int32_t row0 = cut_tokens(n, ti, job->token_splits);
    const int32_t row1 = cut_tokens(n, ti + 1, job->token_splits);
    struct panel_act *q = job->q;
    float *x = job->x;

    if (job->token_splits == n_threads) {
        matmul_prepare(job, row0, row1, s.row, q, x);
    } else {
        matmul_prepare(job, (int32_t)(n * tid / n_threads), (int32_t)(n * (tid + 1) / n_threads),
                       s.row, q, x);
        pool_barrier(job->cpu->pool, tid); /* orders q and x before any thread's panels */
    }
    for (int32_t t0 = row0; t0 < row1; t0 += CHUNK_TOKENS) {
        int32_t chunk = row1 - t0 < CHUNK_TOKENS ? row1 - t0 : CHUNK_TOKENS;
        struct unit_acts a = matmul_acts(job, q, x, t0);

        run_panels(job, &s, &a, tid / job->token_splits, n_threads / job->token_splits, t0, chunk);
    }
}

static int check(const struct cpu *cpu, const struct ops_matmul *p)
{
    const struct ops_weight *first = p->part[0].w;

    if (p->n_parts < 1 || p->n_parts > OPS_MATMUL_MAX_PARTS || (p->gated && p->n_parts != 2) ||
        p->rows.n < 0 || p->rows.n > cpu->limits.max_rows || !cpu->matmul_scratch) {
        return -EINVAL;
    }
    for (int i = 0; i < p->n_parts; i++) {
        const struct ops_weight *w = p->part[i].w;

        if (w->role == OPS_ROLE_VECTOR || w->n_cols != first->n_cols ||
            w->n_cols > cpu->limits.max_cols || (p->gated && w->n_rows != first->n_rows) ||
            (!p->gated && p->part[i].act == OPS_ACT_SWIGLU_OAI)) {
            return -EINVAL;
        }
    }
    return 0;
}

/* The largest number of token ranges that divides the threads and leaves each range its least. */
static int choose_token_splits(int n_threads, int32_t n)
{
    for (int s = n_threads; s > 1; s--) {
        if (n_threads % s == 0 && n / s >= SPLIT_TOKENS) {
            return s;
        }
    }
    return 1;
}

static struct job job_of(struct cpu *cpu, const struct ops_matmul *p)
{
    struct job job = {.cpu = cpu, .p = p};
    size_t rows = (size_t)cpu->limits.max_rows;

    job.n_cols = p->part[0].w->n_cols;
    for (int i = 0; i < p->n_parts; i++) {
        const struct ops_weight *w = p->part[i].w;
        bool is_float = dtype_info(w->type)->block_len == 1;

        job.need_q |= !is_float;
        job.use_x |= is_float;
        job.bytes += (uint64_t)matmul_n_panels(w) * panel_bytes(w->type, (uint64_t)w->n_cols);
    }
    job.need_x = job.use_x && p->norm.w;
    job.fine = p->part[0].w->role == OPS_ROLE_EMBED && !p->gated && !job.need_x && job.need_q;
    job.token_splits = choose_token_splits(cpu->n_threads, p->rows.n);
    job.q = (void *)cpu->matmul_scratch;
    job.x = (void *)(cpu->matmul_scratch + q_bytes(rows, (size_t)cpu->limits.max_cols));
    return job;
}

static void run_rows(struct cpu *cpu, const struct ops_matmul *p)
{
    struct job job = job_of(cpu, p);

    if (job.token_splits == 1 && p->rows.n < CHUNK_TOKENS) {
        matmul_few(&job);
    } else {
        pool_run(cpu->pool, matmul_piece, &job);
    }
}

void cpu_matmul_experts(struct cpu *cpu, const struct ops_matmul *in, const struct ops_matmul *out,
                        const struct ops_matmul *next_in)
{
    struct job first = job_of(cpu, in);
    struct job second = job_of(cpu, out);
    struct job next = {0};

    first.pairs = true;
    second.apart = true;
    matmul_few_of(&first, &second);
    if (next_in) {
        next = job_of(cpu, next_in);
        next.pairs = true;
    }
    matmul_few_of(&second, next_in ? &next : NULL);
}

int cpu_matmul(struct backend *be, const struct ops_matmul *p)
{
    struct cpu *cpu = cpu_of(be);
    int r = check(cpu, p);
    const int32_t n_decode = p->rows.n_decode < p->rows.n ? p->rows.n_decode : p->rows.n;
    struct ops_matmul part;

    if (r < 0 || p->rows.n == 0) {
        return r;
    }
    if (n_decode == p->rows.n || !cpu_tiles_serve(cpu, p)) {
        run_rows(cpu, p);
        return 0;
    }
    part = *p;
    if (n_decode > 0) {
        part.rows = (struct ops_rows){n_decode, n_decode};
        run_rows(cpu, &part);
    }
    part.rows = (struct ops_rows){p->rows.n - n_decode, 0};
    part.x += (size_t)n_decode * (size_t)p->ldx;
    for (int i = 0; i < p->n_parts; i++) {
        part.part[i].y += p->part[i].y ? (size_t)n_decode * (size_t)p->part[i].ldy : 0;
    }
    cpu_tiles_matmul(cpu, &part);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Matmul of rows of class prefill where the CPU multiplies tiles of bf16 (table_tile.h).
 *
 * Each token is normalised and rounded to bf16 once, into A tiles. Then units of two panels (of a
 * gated pair: gate and up) are unpacked to B tiles, a slice of up to SLICE_TILES of columns at a
 * time, which stay in L1 while all tokens of a thread pass from its L2; sums of several slices lie
 * in C, in memory. Where a result needs nothing more than the residual, C is y itself.
 *
 *     below SPLIT_TOKENS a thread  A tiles are shared out, barrier, then units are shared out
 *     more                         each thread has tokens of its own and unpacks all weights:
 *                                  no barrier, and its A tiles stay in its L2
 *
 * A row's sums are the same products in the same order for every grid and every number of rows, one
 * included: rows of class prefill always come here, whatever the batch, so a prompt cut anywhere
 * gives the same bits. The output head does not: it wants more than bf16 (matmul.c). */

#include "kernels/cpu/matmul_tiles.h"

#include <string.h>

enum {
    SPLIT_TOKENS = 128, /* a thread's least share when tokens are split */
    CHUNK_TOKENS = 512, /* tokens that a unit's sums are kept for */
    SLICE_TILES = 18,   /* two panels' tiles of a slice: 36 KiB of 48 KiB of L1 */
    END_TOKENS = 64,    /* of which the end (bias, activation, gate) follows while they are in L1 */
    SUM_FLOATS = CHUNK_TOKENS * PANEL_ROWS,
    B_ELEMENTS = 2 * SLICE_TILES * TILE_ELEMENTS,
};

struct job {
    const struct cpu *cpu;
    const struct ops_matmul *p;
    int32_t n;        /* tokens */
    int32_t n_tiles;  /* of a token's columns */
    int32_t n_slices; /* of about the same number of tiles */
    int32_t n_units;
    int token_splits;
    uint16_t *a; /* (n in whole tiles, n_tiles) A tiles */
};

/* One panel of a part; w NULL: the second of a unit that has only one. */
struct panel {
    const struct ops_weight *w;
    cpu_tile_panel_fn *unpack;
    int part;
    int32_t index;
};

struct thread_scratch {
    uint16_t *b;   /* (SLICE_TILES, 2) B tiles */
    float *sum[2]; /* (CHUNK_TOKENS, 16) each */
    float *row;    /* (max_cols) */
};

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static size_t tiles_of(size_t n, size_t of)
{
    return (n + of - 1) / of;
}

static size_t a_bytes(size_t rows, size_t cols)
{
    return tiles_of(rows, TILE_ROWS) * tiles_of(cols, TILE_COLS) * TILE_ELEMENTS * 2;
}

static size_t thread_bytes(size_t cols)
{
    return (size_t)B_ELEMENTS * 2 + 2 * (size_t)SUM_FLOATS * 4 + align64(cols * 4);
}

uint64_t cpu_tiles_scratch_bytes(int n_threads, const struct backend_limits *limits)
{
    return a_bytes((size_t)limits->max_rows, (size_t)limits->max_cols) +
           (size_t)n_threads * thread_bytes((size_t)limits->max_cols);
}

static struct thread_scratch thread_scratch(const struct cpu *cpu, int tid)
{
    size_t cols = (size_t)cpu->limits.max_cols;
    uint8_t *at = cpu->tiles_scratch + a_bytes((size_t)cpu->limits.max_rows, cols) +
                  (size_t)tid * thread_bytes(cols);
    struct thread_scratch s = {.b = (void *)at};

    s.sum[0] = (void *)(at + (size_t)B_ELEMENTS * 2);
    s.sum[1] = s.sum[0] + SUM_FLOATS;
    s.row = s.sum[1] + SUM_FLOATS;
    return s;
}

static cpu_tile_panel_fn *unpack_of(const struct cpu_table *t, enum dtype type)
{
    switch (type) {
    case DTYPE_F16:
        return t->tile_f16;
    case DTYPE_BF16:
        return t->tile_bf16;
    case DTYPE_Q4_0:
        return t->tile_q4_0;
    case DTYPE_Q4_1:
        return t->tile_q4_1;
    case DTYPE_Q5_0:
        return t->tile_q5_0;
    case DTYPE_Q5_1:
        return t->tile_q5_1;
    case DTYPE_Q8_0:
        return t->tile_q8_0;
    case DTYPE_Q4_K:
        return t->tile_q4_k;
    case DTYPE_Q5_K:
        return t->tile_q5_k;
    case DTYPE_Q6_K:
        return t->tile_q6_k;
    case DTYPE_IQ4_NL:
        return t->tile_iq4_nl;
    case DTYPE_IQ4_XS:
        return t->tile_iq4_xs;
    case DTYPE_MXFP4:
        return t->tile_mxfp4;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K: /* have no unpacking into tiles: panels serve them */
    case DTYPE_F32:  /* would lose two thirds of its digits */
        break;
    }
    return NULL;
}

bool cpu_tiles_serve(const struct cpu *cpu, const struct ops_matmul *p)
{
    if (!cpu->table.tile_mul || p->part[0].w->role == OPS_ROLE_EMBED) {
        return false;
    }
    for (int i = 0; i < p->n_parts; i++) {
        if (!unpack_of(&cpu->table, p->part[i].w->type)) {
            return false;
        }
    }
    return true;
}

/* ---- activations ------------------------------------------------------------------------------
 */

static void prepare(const struct job *job, int32_t row0, int32_t row1, float *tmp)
{
    const struct ops_matmul *p = job->p;
    const struct cpu_table *t = &job->cpu->table;
    const struct ops_norm *norm = &p->norm;
    const int32_t n_cols = p->part[0].w->n_cols;
    cpu_norm_fn *fn = norm->kind == OPS_NORM_RMS ? t->norm_rms : t->norm_layer;

    for (int32_t i = row0; i < row1; i++) {
        const float *x = p->x + (size_t)i * (size_t)p->ldx;
        uint16_t *a = job->a + ((size_t)(i / TILE_ROWS) * (size_t)job->n_tiles * TILE_ELEMENTS +
                                (size_t)(i % TILE_ROWS) * TILE_COLS);

        if (norm->w) {
            fn(x, norm->w->device, norm->b ? norm->b->device : NULL, norm->eps, n_cols, tmp);
            x = tmp;
        }
        t->tile_acts(x, n_cols, a);
    }
}

/* ---- units ------------------------------------------------------------------------------------
 */

static int32_t n_panels(const struct ops_weight *w)
{
    return (int32_t)(((int64_t)w->n_rows + PANEL_ROWS - 1) / PANEL_ROWS);
}

/* Panel `index`, counted through all parts. */
static struct panel panel_of(const struct job *job, int32_t index)
{
    for (int i = 0; i < job->p->n_parts; i++) {
        const struct ops_weight *w = job->p->part[i].w;
        int32_t n = n_panels(w);

        if (index < n) {
            return (struct panel){w, unpack_of(&job->cpu->table, w->type), i, index};
        }
        index -= n;
    }
    return (struct panel){0};
}

static void unit_of(const struct job *job, int32_t unit, struct panel ret[2])
{
    if (job->p->gated) {
        ret[0] = panel_of(job, unit);
        ret[1] = panel_of(job, unit + job->n_units);
    } else {
        ret[0] = panel_of(job, 2 * unit);
        ret[1] = panel_of(job, 2 * unit + 1);
    }
}

static void unpack(const struct panel *u, int32_t tile0, int32_t n, uint16_t *b)
{
    if (u->w) {
        const uint8_t *panels = u->w->device;
        size_t bytes = (size_t)panel_bytes(u->w->type, (uint64_t)u->w->n_cols);

        u->unpack(panels + (size_t)u->index * bytes, u->w->n_cols, tile0, n, b, 2 * TILE_ELEMENTS);
    }
}

/* Is the result of this panel just the sums, added to y or not? */
static bool is_plain(const struct job *job, const struct panel *u)
{
    return u->w && !job->p->gated && !job->p->part[u->part].bias &&
           job->p->part[u->part].act == OPS_ACT_NONE &&
           ops_factor(job->p->part[u->part].scale) == 1.0f &&
           u->w->n_rows - u->index * PANEL_ROWS >= PANEL_ROWS;
}

static float *y_of(const struct job *job, const struct panel *u, int32_t token)
{
    return job->p->part[u->part].y + (size_t)token * (size_t)job->p->part[u->part].ldy +
           (size_t)u->index * PANEL_ROWS;
}

/* The last, incomplete tile of tokens has its C aside. */
static void copy_rest(const struct job *job, const struct panel *u, int32_t token, int32_t n,
                      float *sum, bool out)
{
    size_t ldy = (size_t)job->p->part[u->part].ldy;
    float *y = y_of(job, u, token);

    for (int32_t i = 0; i < n; i++) {
        if (out) {
            memcpy(y + (size_t)i * ldy, sum + i * PANEL_ROWS, PANEL_ROWS * sizeof(float));
        } else {
            memcpy(sum + i * PANEL_ROWS, y + (size_t)i * ldy, PANEL_ROWS * sizeof(float));
        }
    }
}

static void multiply(const struct job *job, const struct thread_scratch *s, int32_t token,
                     int32_t n, int32_t tile0, int32_t n_k, float *const c[2], const size_t ldc[2],
                     bool add)
{
    struct cpu_tile_mul m = {
        .a = job->a +
             ((size_t)(token / TILE_ROWS) * (size_t)job->n_tiles + (size_t)tile0) * TILE_ELEMENTS,
        .lda = (size_t)job->n_tiles * TILE_ELEMENTS,
        .b = s->b,
        .n_k = n_k,
        .n_rows = n,
        .c = {c[0], c[1]},
        .ldc = {ldc[0], ldc[1]},
        .add = add,
    };

    job->cpu->table.tile_mul(&m);
}

/* Sums straight into y. */
static void plain_slice(const struct job *job, const struct thread_scratch *s,
                        const struct panel u[2], int32_t t0, int32_t n, int32_t tile0, int32_t n_k)
{
    const int32_t whole = n / TILE_ROWS * TILE_ROWS;
    const bool add = job->p->add || tile0 > 0;
    const size_t ldy[2] = {(size_t)job->p->part[u[0].part].ldy,
                           (size_t)job->p->part[u[1].part].ldy};
    const size_t ld[2] = {PANEL_ROWS, PANEL_ROWS};

    if (whole) {
        float *const y[2] = {y_of(job, &u[0], t0), y_of(job, &u[1], t0)};

        multiply(job, s, t0, whole, tile0, n_k, y, ldy, add);
    }
    if (whole < n) {
        for (int j = 0; j < 2 && add; j++) {
            copy_rest(job, &u[j], t0 + whole, n - whole, s->sum[j], false);
        }
        multiply(job, s, t0 + whole, TILE_ROWS, tile0, n_k, s->sum, ld, add);
        for (int j = 0; j < 2; j++) {
            copy_rest(job, &u[j], t0 + whole, n - whole, s->sum[j], true);
        }
    }
}

static void finish(const struct job *job, const struct panel *u, const struct panel *up,
                   const float *g, const float *gate_by, int32_t token, int32_t n)
{
    const struct ops_matmul *p = job->p;
    const struct ops_weight *bias = p->part[u->part].bias;
    const int32_t row = u->index * PANEL_ROWS;
    const int32_t left = u->w->n_rows - row;
    struct cpu_epilogue e = {
        .g = g,
        .bias = bias ? (const float *)bias->device + row : NULL,
        .scale = ops_factor(p->part[u->part].scale),
        .bias_scale = ops_factor(p->part[u->part].bias_scale),
        .y = y_of(job, u, token),
        .ldy = (size_t)p->part[u->part].ldy,
        .n = n,
        .n_rows = left < PANEL_ROWS ? left : PANEL_ROWS,
        .act = p->part[u->part].act,
        .add = p->add,
    };

    if (up) {
        const struct ops_weight *up_bias = p->part[1].bias;

        e.u = gate_by;
        e.u_bias = up_bias ? (const float *)up_bias->device + row : NULL;
        e.u_scale = ops_factor(p->part[1].scale);
        e.u_bias_scale = ops_factor(p->part[1].bias_scale);
    }
    job->cpu->table.epilogue(&e);
}

static void finish_slice(const struct job *job, const struct thread_scratch *s,
                         const struct panel u[2], int32_t t0, int32_t n, int32_t tile0, int32_t n_k)
{
    const bool last = tile0 + n_k == job->n_tiles;
    const int32_t step = last ? END_TOKENS : CHUNK_TOKENS;
    const size_t ld[2] = {PANEL_ROWS, PANEL_ROWS};

    for (int32_t t = 0; t < n; t += step) {
        int32_t m = n - t < step ? n - t : step;
        float *const c[2] = {s->sum[0] + t * PANEL_ROWS, s->sum[1] + t * PANEL_ROWS};

        multiply(job, s, t0 + t, (m + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS, tile0, n_k, c, ld,
                 tile0 > 0);
        if (!last) {
            continue;
        }
        finish(job, &u[0], job->p->gated ? &u[1] : NULL, c[0], c[1], t0 + t, m);
        if (!job->p->gated && u[1].w) {
            finish(job, &u[1], NULL, c[1], NULL, t0 + t, m);
        }
    }
}

/* Tokens [t0, t0 + n), t0 a whole number of tiles, n up to CHUNK_TOKENS. */
static void run_unit(const struct job *job, const struct thread_scratch *s, int32_t unit,
                     int32_t t0, int32_t n)
{
    struct panel u[2];

    unit_of(job, unit, u);
    const bool plain = is_plain(job, &u[0]) && is_plain(job, &u[1]);

    for (int32_t i = 0; i < job->n_slices; i++) {
        int32_t tile0 = job->n_tiles * i / job->n_slices;
        int32_t n_k = job->n_tiles * (i + 1) / job->n_slices - tile0;

        unpack(&u[0], tile0, n_k, s->b);
        unpack(&u[1], tile0, n_k, s->b + TILE_ELEMENTS);
        if (plain) {
            plain_slice(job, s, u, t0, n, tile0, n_k);
        } else {
            finish_slice(job, s, u, t0, n, tile0, n_k);
        }
    }
}

/* ---- the operation ----------------------------------------------------------------------------
 */

/* Where piece i of `of` begins, in whole tiles of tokens. */
static int32_t cut_tokens(int32_t n, int i, int of)
{
    int64_t tiles = ((int64_t)n + TILE_ROWS - 1) / TILE_ROWS;
    int64_t at = tiles * i / of * TILE_ROWS;

    return at < n ? (int32_t)at : n;
}

static void piece(void *arg, int tid, int n_threads)
{
    const struct job *job = arg;
    const struct thread_scratch s = thread_scratch(job->cpu, tid);
    const int ti = tid % job->token_splits;
    const int ui = tid / job->token_splits;
    const int unit_splits = n_threads / job->token_splits;
    const int32_t row0 = cut_tokens(job->n, ti, job->token_splits);
    const int32_t row1 = cut_tokens(job->n, ti + 1, job->token_splits);
    const int32_t end = (int32_t)((int64_t)job->n_units * (ui + 1) / unit_splits);

    if (unit_splits == 1) {
        prepare(job, row0, row1, s.row);
    } else {
        prepare(job, (int32_t)((int64_t)job->n * tid / n_threads),
                (int32_t)((int64_t)job->n * (tid + 1) / n_threads), s.row);
        pool_barrier(job->cpu->pool, tid); /* orders A tiles before any thread's units */
    }
    job->cpu->table.tile_begin();
    for (int32_t t = row0; t < row1; t += CHUNK_TOKENS) {
        int32_t n = row1 - t < CHUNK_TOKENS ? row1 - t : CHUNK_TOKENS;

        for (int32_t u = (int32_t)((int64_t)job->n_units * ui / unit_splits); u < end; u++) {
            run_unit(job, &s, u, t, n);
        }
    }
    job->cpu->table.tile_end();
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

void cpu_tiles_matmul(const struct cpu *cpu, const struct ops_matmul *p)
{
    struct job job = {
        .cpu = cpu,
        .p = p,
        .n = p->rows.n,
        .n_tiles = (p->part[0].w->n_cols + TILE_COLS - 1) / TILE_COLS,
        .a = (void *)cpu->tiles_scratch,
    };

    for (int i = 0; i < (p->gated ? 1 : p->n_parts); i++) {
        job.n_units += n_panels(p->part[i].w);
    }
    job.n_units = p->gated ? job.n_units : (job.n_units + 1) / 2;
    job.n_slices = (job.n_tiles + SLICE_TILES - 1) / SLICE_TILES;
    job.token_splits = choose_token_splits(cpu->n_threads, job.n);
    pool_run(cpu->pool, piece, &job);
}

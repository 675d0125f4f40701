/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on whole rows outside of matmul: embed, norm, gather, mul, softcap. Rows are shared
 * out among threads from a few on; a single row is done by the caller, waking nobody. */

#include <errno.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pack.h"

enum { THREADED_ROWS = 8 };

/* Row i of an operation, on thread tid. */
typedef void row_fn(const struct cpu *cpu, const void *p, int32_t i, int tid);

struct job {
    const struct cpu *cpu;
    const void *p;
    row_fn *row;
    int32_t n;
};

static void rows_piece(void *arg, int tid, int n_threads)
{
    const struct job *job = arg;
    int32_t end = (int32_t)((int64_t)job->n * (tid + 1) / n_threads);

    for (int32_t i = (int32_t)((int64_t)job->n * tid / n_threads); i < end; i++) {
        job->row(job->cpu, job->p, i, tid);
    }
}

static void for_rows(struct backend *be, int32_t n, const void *p, row_fn *row)
{
    struct job job = {.cpu = cpu_of(be), .p = p, .row = row, .n = n};

    if (n < THREADED_ROWS) {
        rows_piece(&job, 0, 1);
    } else {
        pool_run(cpu_of(be)->pool, rows_piece, &job);
    }
}

static void embed_row(const struct cpu *cpu, const void *params, int32_t i, int tid)
{
    const struct ops_embed *p = params;
    float *y = p->y + (size_t)i * (size_t)p->ld;

    (void)cpu;
    (void)tid;
    pack_decode_row(p->w->type, p->w->device, p->ids[i], p->w->n_cols, y);
    if (p->scale != 1.0f) {
        for (int32_t k = 0; k < p->w->n_cols; k++) {
            y[k] *= p->scale;
        }
    }
}

int cpu_embed(struct backend *be, const struct ops_embed *p)
{
    if (p->drawn || p->w->role != OPS_ROLE_EMBED || p->rows.n < 0 || p->ld < p->w->n_cols) {
        return -EINVAL;
    }
    for_rows(be, p->rows.n, p, embed_row);
    return 0;
}

static void norm_row(const struct cpu *cpu, const void *params, int32_t i, int tid)
{
    const struct ops_norm_op *p = params;
    const struct ops_norm *norm = &p->norm;
    const float *x = p->x + (size_t)i * (size_t)p->ldx;
    float *y = p->y + (size_t)i * (size_t)p->ldy;
    float *to = p->add ? cpu_thread_row(cpu, tid) : y;

    if (!norm->w) {
        memmove(to, x, (size_t)p->n_cols * sizeof(float));
    } else {
        cpu_norm_fn *fn = norm->kind == OPS_NORM_RMS ? cpu->table.norm_rms : cpu->table.norm_layer;

        fn(x, norm->w->device, norm->b ? norm->b->device : NULL, norm->eps, p->n_cols, to);
    }
    for (int32_t k = 0; p->add && k < p->n_cols; k++) {
        y[k] += to[k];
    }
}

int cpu_norm(struct backend *be, const struct ops_norm_op *p)
{
    struct cpu *cpu = cpu_of(be);

    if (p->rows.n < 0 || p->n_cols <= 0 ||
        (p->add && (!cpu->matmul_scratch || p->n_cols > cpu->limits.max_cols))) {
        return -EINVAL;
    }
    for_rows(be, p->rows.n, p, norm_row);
    return 0;
}

static void gather_row(const struct cpu *cpu, const void *params, int32_t i, int tid)
{
    const struct ops_gather *p = params;

    (void)cpu;
    (void)tid;
    memcpy(p->y + (size_t)i * (size_t)p->ldy, p->x + (size_t)p->index[i] * (size_t)p->ldx,
           (size_t)p->n_cols * sizeof(float));
}

int cpu_gather(struct backend *be, const struct ops_gather *p)
{
    if (p->n_rows < 0 || p->n_cols < 0) {
        return -EINVAL;
    }
    for_rows(be, p->n_rows, p, gather_row);
    return 0;
}

static void mul_row(const struct cpu *cpu, const void *params, int32_t i, int tid)
{
    const struct ops_mul *p = params;
    float *y = p->y + (size_t)i * (size_t)p->ldy;

    (void)cpu;
    (void)tid;
    for (int32_t c = 0; p->x && c < p->n_cols; c++) {
        y[c] = y[c] * p->x[(size_t)i * (size_t)p->ldx + (size_t)c] * p->scale;
    }
    for (int32_t c = 0; !p->x && c < p->n_cols; c++) {
        y[c] *= p->scale;
    }
}

int cpu_mul(struct backend *be, const struct ops_mul *p)
{
    if (p->rows.n < 0 || p->n_cols < 0) {
        return -EINVAL;
    }
    for_rows(be, p->rows.n, p, mul_row);
    return 0;
}

/* Rows are logits, so a single one is long: it is cut into pieces for the threads. */
enum { SOFTCAP_PIECE = 4096 };

static int32_t softcap_pieces(const struct ops_softcap *p)
{
    return p->n_cols / SOFTCAP_PIECE + 1;
}

static void softcap_piece(const struct cpu *cpu, const void *params, int32_t i, int tid)
{
    const struct ops_softcap *p = params;

    (void)tid;
    int32_t row = i / softcap_pieces(p);
    int32_t at = i % softcap_pieces(p) * SOFTCAP_PIECE;
    int32_t n = p->n_cols - at < SOFTCAP_PIECE ? p->n_cols - at : SOFTCAP_PIECE;

    cpu->table.softcap(p->x + (size_t)row * (size_t)p->ld + at, n, p->cap);
}

int cpu_softcap(struct backend *be, const struct ops_softcap *p)
{
    if (p->n_rows < 0 || p->n_cols < 0 || !(p->cap > 0) ||
        (int64_t)p->n_rows * softcap_pieces(p) > INT32_MAX) {
        return -EINVAL;
    }
    for_rows(be, p->n_rows * softcap_pieces(p), p, softcap_piece);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers: short convolutions, the gated delta rule, the state space of Mamba-2, gates by
 * head. Threads share out sequences' channels and heads; rows of each run in order, in pieces that
 * keep what they read in the first cache. */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum {
    CONV_PIECE = 4, /* blocks of 16 channels that a thread takes at once, */
    CONV_ROWS = 32, /* so many rows of each in turn */
};

struct job {
    const struct cpu *cpu;
    const void *p;
    struct pool_counter next;
};

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static void share_out(struct backend *be, const void *p, pool_fn *fn)
{
    struct job job = {.cpu = cpu_of(be), .p = p};

    pool_run(cpu_of(be)->pool, fn, &job);
}

/* ---- short convolution ------------------------------------------------------------------------
 */

struct conv_block {
    float w[OPS_CONV_MAX_WIDTH * 16];
    float bias[16];
    float u[OPS_CONV_MAX_WIDTH * 16];
    int32_t c;
    int32_t n;
};

static void conv_open(const struct ops_conv *p, const struct ops_state *s, struct conv_block *b)
{
    const float *w = (const float *)p->w->device + (size_t)b->c * (size_t)p->width;
    const float *in = (const float *)(const void *)(s->in ? s->in + p->at : NULL);

    memset(b->w, 0, sizeof(b->w));
    memset(b->u, 0, sizeof(b->u));
    memset(b->bias, 0, sizeof(b->bias));
    for (int32_t i = 0; p->bias && i < b->n; i++) {
        b->bias[i] = ((const float *)p->bias->device)[b->c + i];
    }
    for (int32_t j = 0; j < p->width; j++) {
        for (int32_t i = 0; i < b->n; i++) {
            b->w[j * 16 + i] = w[(size_t)i * (size_t)p->width + (size_t)j];
        }
    }
    for (int32_t j = 0; in && j + 1 < p->width; j++) {
        memcpy(b->u + (size_t)j * 16, in + (size_t)j * (size_t)p->n_channels + b->c,
               (size_t)b->n * sizeof(float));
    }
}

static void conv_close(const struct ops_conv *p, const struct ops_state *s,
                       const struct conv_block *b)
{
    float *out = (float *)(void *)(s->out + p->at);

    for (int32_t j = 0; j + 1 < p->width; j++) {
        memcpy(out + (size_t)j * (size_t)p->n_channels + b->c, b->u + (size_t)j * 16,
               (size_t)b->n * sizeof(float));
    }
}

static void conv_piece(const struct cpu *cpu, const struct ops_conv *p, const struct ops_state *s,
                       int32_t c0)
{
    struct conv_block blocks[CONV_PIECE];
    int32_t n = 0;

    for (; n < CONV_PIECE && c0 + 16 * n < p->n_channels; n++) {
        blocks[n].c = c0 + 16 * n;
        blocks[n].n = min_i32(16, p->n_channels - blocks[n].c);
        conv_open(p, s, &blocks[n]);
    }
    for (int32_t t = 0; t < s->n_rows; t += CONV_ROWS) {
        for (int32_t k = 0; k < n; k++) {
            size_t at = (size_t)(s->row0 + t) * (size_t)p->ldx + (size_t)blocks[k].c;
            struct cpu_conv c = {
                .n = min_i32(CONV_ROWS, s->n_rows - t),
                .n_channels = blocks[k].n,
                .width = p->width,
                .w = blocks[k].w,
                .bias = p->bias ? blocks[k].bias : NULL,
                .u = blocks[k].u,
                .x = p->x + at,
                .before = p->before ? p->before + at : NULL,
                .after = p->after ? p->after + at : NULL,
                .y = p->y + (size_t)(s->row0 + t) * (size_t)p->ldy + (size_t)blocks[k].c,
                .ldx = (size_t)p->ldx,
                .ldy = (size_t)p->ldy,
                .act = p->act,
            };

            cpu->table.conv(&c);
        }
    }
    for (int32_t k = 0; k < n; k++) {
        conv_close(p, s, &blocks[k]);
    }
}

static void conv_thread(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_conv *p = job->p;
    int32_t n_pieces = (p->n_channels + 16 * CONV_PIECE - 1) / (16 * CONV_PIECE);

    (void)tid;
    (void)n_threads;
    for (int i; (i = pool_counter_take(&job->next)) < p->n_seqs * n_pieces;) {
        conv_piece(job->cpu, p, &p->seqs[i / n_pieces], i % n_pieces * 16 * CONV_PIECE);
    }
}

int cpu_conv(struct backend *be, const struct ops_conv *p)
{
    if (p->width < 2 || p->width > OPS_CONV_MAX_WIDTH || p->n_channels < 1 ||
        (p->act != OPS_ACT_NONE && p->act != OPS_ACT_SILU)) {
        return -EINVAL;
    }
    share_out(be, p, conv_thread);
    return 0;
}

/* ---- gated delta rule -------------------------------------------------------------------------
 */

/* A head's rows, as the kernel takes them. */
struct delta_rows {
    float q[CPU_DELTA_ROWS * OPS_DELTA_MAX_DIM];
    float k[CPU_DELTA_ROWS * OPS_DELTA_MAX_DIM];
    float decay[CPU_DELTA_ROWS];
    float beta[CPU_DELTA_ROWS];
};

/* y = x / sqrt(|x|^2 + eps) * scale */
static void set_length(const float *x, int32_t n, float eps, float scale, float *y)
{
    float sum[16] = {0};

    for (int32_t i = 0; i < n; i += 16) {
        for (int32_t j = 0; j < 16; j++) {
            sum[j] += x[i + j] * x[i + j];
        }
    }
    for (int32_t m = 8; m > 0; m /= 2) {
        for (int32_t j = 0; j < m; j++) {
            sum[j] += sum[j + m];
        }
    }
    float by = scale / sqrtf(sum[0] + eps);

    for (int32_t i = 0; i < n; i++) {
        y[i] = x[i] * by;
    }
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

static void prepare(const struct ops_delta *p, int32_t row0, int32_t n, int32_t h,
                    struct delta_rows *ret)
{
    float a = ((const float *)p->a->device)[h];
    float dt = ((const float *)p->dt->device)[h];
    float scale = 1.0f / sqrtf((float)p->k_dim);

    for (int32_t t = 0; t < n; t++) {
        size_t row = (size_t)(row0 + t);
        const float *q = p->qkv + row * (size_t)p->ldx + (size_t)(h % p->n_k) * (size_t)p->k_dim;
        size_t gate = row * (size_t)p->ldg + (size_t)h;
        size_t to = (size_t)t * (size_t)p->k_dim;

        set_length(q, p->k_dim, p->eps, scale, ret->q + to);
        set_length(q + (size_t)p->n_k * (size_t)p->k_dim, p->k_dim, p->eps, 1.0f, ret->k + to);
        ret->decay[t] = expf(a * softplus(p->alpha[gate] + dt));
        ret->beta[t] = 1.0f / (1.0f + expf(-p->beta[gate]));
    }
}

static void delta_piece(const struct cpu *cpu, const struct ops_delta *p, int32_t row0, int32_t n,
                        int32_t h, const float *from, float *to)
{
    struct delta_rows rows;
    size_t row = (size_t)row0;
    size_t head = (size_t)h * (size_t)p->v_dim;
    float *y = p->y + row * (size_t)p->ldy + head;

    prepare(p, row0, n, h, &rows);
    struct cpu_delta d = {
        .n = n,
        .k_dim = p->k_dim,
        .v_dim = p->v_dim,
        .q = rows.q,
        .k = rows.k,
        .decay = rows.decay,
        .beta = rows.beta,
        .v = p->qkv + row * (size_t)p->ldx + 2 * (size_t)p->n_k * (size_t)p->k_dim + head,
        .y = y,
        .from = from,
        .to = to,
        .ldv = (size_t)p->ldx,
        .ldy = (size_t)p->ldy,
    };

    cpu->table.delta(&d);
    for (int32_t t = 0; t < n; t++, y += p->ldy) {
        cpu->table.norm_rms(y, p->w->device, NULL, p->eps, p->v_dim, y);
        cpu->table.gate(y, p->z + (row + (size_t)t) * (size_t)p->ldz + head, p->v_dim, true, y);
    }
}

static void delta_head(const struct cpu *cpu, const struct ops_delta *p, const struct ops_state *s,
                       int32_t h)
{
    size_t size = (size_t)p->k_dim * (size_t)p->v_dim;
    float *to = (float *)(void *)(s->out + p->at) + (size_t)h * size;
    const float *from = to;

    if (s->in) {
        from = (const float *)(const void *)(s->in + p->at) + (size_t)h * size;
    } else {
        memset(to, 0, size * sizeof(*to));
    }
    for (int32_t t = 0; t < s->n_rows; t += CPU_DELTA_ROWS) {
        delta_piece(cpu, p, s->row0 + t, min_i32(CPU_DELTA_ROWS, s->n_rows - t), h, from, to);
        from = to;
    }
}

static void delta_thread(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_delta *p = job->p;

    (void)tid;
    (void)n_threads;
    for (int i; (i = pool_counter_take(&job->next)) < p->n_seqs * p->n_v;) {
        delta_head(job->cpu, p, &p->seqs[i / p->n_v], i % p->n_v);
    }
}

int cpu_delta(struct backend *be, const struct ops_delta *p)
{
    if (p->k_dim < 1 || p->v_dim < 1 || p->k_dim % OPS_DELTA_DIMS || p->v_dim % OPS_DELTA_DIMS ||
        p->k_dim > OPS_DELTA_MAX_DIM || p->v_dim > OPS_DELTA_MAX_DIM || p->n_k < 1 ||
        p->n_v % p->n_k) {
        return -EINVAL;
    }
    share_out(be, p, delta_thread);
    return 0;
}

/* ---- state space ------------------------------------------------------------------------------
 */

static void scan_piece(const struct cpu *cpu, const struct ops_scan *p, int32_t row0, int32_t n,
                       int32_t h, const float *from, float *to)
{
    float decay[CPU_DELTA_ROWS];
    float step[CPU_DELTA_ROWS];
    size_t head = (size_t)h * (size_t)p->v_dim;
    const float *x = p->xbc + (size_t)row0 * (size_t)p->ldx;
    const float *z = p->z + (size_t)row0 * (size_t)p->ldz + head;
    const float *b =
        x + (size_t)p->n_v * (size_t)p->v_dim + (size_t)(h / (p->n_v / p->n_k)) * (size_t)p->k_dim;
    float *y = p->y + (size_t)row0 * (size_t)p->ldy + head;

    for (int32_t t = 0; t < n; t++) {
        step[t] = softplus(p->step[(size_t)(row0 + t) * (size_t)p->ldz + (size_t)h] +
                           ((const float *)p->dt->device)[h]);
        decay[t] = expf(((const float *)p->a->device)[h] * step[t]);
    }
    struct cpu_scan s = {
        .n = n,
        .k_dim = p->k_dim,
        .v_dim = p->v_dim,
        .b = b,
        .c = b + (size_t)p->n_k * (size_t)p->k_dim,
        .x = x + head,
        .decay = decay,
        .step = step,
        .d = ((const float *)p->d->device)[h],
        .y = y,
        .from = from,
        .to = to,
        .ldx = (size_t)p->ldx,
        .ldy = (size_t)p->ldy,
    };

    cpu->table.scan(&s);
    for (int32_t t = 0; t < n; t++, y += p->ldy, z += p->ldz) {
        cpu->table.gate(y, z, p->v_dim, true, y);
    }
}

static void scan_head(const struct cpu *cpu, const struct ops_scan *p, const struct ops_state *s,
                      int32_t h)
{
    size_t size = (size_t)p->k_dim * (size_t)p->v_dim;
    float *to = (float *)(void *)(s->out + p->at) + (size_t)h * size;
    const float *from = to;

    if (s->in) {
        from = (const float *)(const void *)(s->in + p->at) + (size_t)h * size;
    } else {
        memset(to, 0, size * sizeof(*to));
    }
    if (s->n_rows == 0 && from != to) {
        memcpy(to, from, size * sizeof(*to));
    }
    for (int32_t t = 0; t < s->n_rows; t += CPU_DELTA_ROWS) {
        scan_piece(cpu, p, s->row0 + t, min_i32(CPU_DELTA_ROWS, s->n_rows - t), h, from, to);
        from = to;
    }
}

static void scan_thread(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_scan *p = job->p;

    (void)tid;
    (void)n_threads;
    for (int i; (i = pool_counter_take(&job->next)) < p->n_seqs * p->n_v;) {
        scan_head(job->cpu, p, &p->seqs[i / p->n_v], i % p->n_v);
    }
}

static void scan_norm_thread(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_scan *p = job->p;
    int32_t n_cols = p->n_v / p->n_k * p->v_dim;

    for (int32_t s = 0; s < p->n_seqs; s++) {
        int64_t n = (int64_t)p->seqs[s].n_rows * p->n_k;

        for (int64_t i = n * tid / n_threads; i < n * (tid + 1) / n_threads; i++) {
            size_t at = (size_t)(i % p->n_k) * (size_t)n_cols;
            float *y = p->y + (size_t)(p->seqs[s].row0 + i / p->n_k) * (size_t)p->ldy + at;

            job->cpu->table.norm_rms(y, (const float *)p->w->device + at, NULL, p->eps, n_cols, y);
        }
    }
}

int cpu_scan(struct backend *be, const struct ops_scan *p)
{
    struct job norm = {.cpu = cpu_of(be), .p = p};

    if (p->k_dim < 1 || p->v_dim < 1 || p->v_dim % OPS_DELTA_DIMS || p->k_dim > OPS_DELTA_MAX_DIM ||
        p->v_dim > OPS_DELTA_MAX_DIM || p->n_k < 1 || p->n_v % p->n_k) {
        return -EINVAL;
    }
    share_out(be, p, scan_thread);
    if (p->rows.n < 8) { /* waking others takes longer */
        scan_norm_thread(&norm, 0, 1);
    } else {
        share_out(be, p, scan_norm_thread);
    }
    return 0;
}

/* ---- gates ------------------------------------------------------------------------------------
 */

static void gate_rows(const struct cpu *cpu, const struct ops_gate *p, int32_t first, int32_t end)
{
    for (int32_t i = first; i < end; i++) {
        size_t row = (size_t)(i / p->n_heads);
        size_t h = (size_t)(i % p->n_heads);
        const float *x = p->x + row * (size_t)p->ldx + h * (size_t)p->x_step;
        float *y = p->y + row * (size_t)p->ldy + h * (size_t)p->dim;

        if (p->gate) {
            cpu->table.gate(x, p->gate + row * (size_t)p->ldg + h * (size_t)p->gate_step, p->dim,
                            false, y);
        } else {
            memmove(y, x, (size_t)p->dim * sizeof(*y));
        }
    }
}

static void gate_thread(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_gate *p = job->p;
    int64_t n = (int64_t)p->rows.n * p->n_heads;

    gate_rows(job->cpu, p, (int32_t)(n * tid / n_threads), (int32_t)(n * (tid + 1) / n_threads));
}

int cpu_gate(struct backend *be, const struct ops_gate *p)
{
    if (p->rows.n < 8) { /* waking others takes longer */
        gate_rows(cpu_of(be), p, 0, p->rows.n * p->n_heads);
        return 0;
    }
    share_out(be, p, gate_thread);
    return 0;
}

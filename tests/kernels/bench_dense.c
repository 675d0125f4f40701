/* SPDX-License-Identifier: Apache-2.0 */
/* The matmuls of a whole model's step, in order, without its cache: tokens a second that decode
 * and prefill could reach, bytes of weights a second, and their share of what two threads can
 * read of a working set of the same size in the same run.
 *
 *     bench_dense [--type Q4_1] [--head Q8_0] [--threads N] [--mask N] [--seconds S]
 *                 [--rows N]...  (rows of a batch; several times)
 *
 * Shapes are SmolLM2-135M's. Weights are random. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/memory.h"
#include "base/pool.h"
#include "base/rng.h"
#include "kernels/backend.h"
#include "quant/half.h"

enum { LAYERS = 30, EMBD = 576, KV = 192, FF = 1536, VOCAB = 49152, MAX_ROWS = 2048 };

struct layer {
    struct ops_weight q, k, v, o, gate, up, down;
};

struct model {
    const struct backend_ops *ops;
    struct backend *be;
    struct layer layers[LAYERS];
    struct ops_weight norm;
    struct ops_weight head;
    float *x, *qkv, *ff, *logits;
    uint64_t bytes; /* of weights that a step reads */
};

/* One thread is timed by its own CPU time, which neighbours lengthen less. */
static clockid_t clock_id = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec ts;

    (void)clock_gettime(clock_id, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void must(int r, const struct error *e)
{
    if (r < 0) {
        printf("bench_dense: %s\n", e->text);
        exit(1);
    }
}

/* ---- the machine's own rate ------------------------------------------------------------------ */

struct reading {
    const uint8_t *p;
    size_t bytes;
    uint64_t sum[8 * 64];
};

/* Four streams a thread, summed so that no load can be left out. */
static void read_piece(void *arg, int tid, int n_threads)
{
    struct reading *r = arg;
    size_t piece = r->bytes / (size_t)n_threads / 4096 * 4096;
    const uint8_t *p = r->p + (size_t)tid * piece;
    size_t quarter = piece / 4;
    uint64_t sum[8] = {0};

    for (size_t i = 0; i + 64 <= quarter; i += 64) {
        for (int s = 0; s < 4; s++) {
            const uint64_t *v = (const void *)(p + (size_t)s * quarter + i);

            __builtin_prefetch((const uint8_t *)v + 4096, 0, 3);
            for (int k = 0; k < 8; k++) {
                sum[k] += v[k];
            }
        }
    }
    memcpy(&r->sum[tid * 8], sum, sizeof(sum));
}

static double read_rate(int n_threads, size_t bytes)
{
    static struct reading r;
    struct pool *pool;
    struct error e = {0};
    void *p;
    double best = 1e9;

    must(pool_create(n_threads, &pool, &e), &e);
    must(memory_map(bytes, "reading", &p, &e), &e);
    memset(p, 1, bytes);
    r.p = p;
    r.bytes = bytes;
    for (int i = 0; i < 20; i++) {
        double t = now();

        pool_run(pool, read_piece, &r);
        t = now() - t;
        best = t < best ? t : best;
    }
    memory_unmap(p, bytes);
    pool_destroy(pool);
    return (double)bytes / best;
}

/* ---- the model ------------------------------------------------------------------------------- */

static uint32_t counter;

static void make(struct model *m, struct ops_weight *w, enum dtype type, int32_t rows, int32_t cols,
                 enum ops_role role)
{
    uint64_t row_bytes = 0;
    uint8_t *data;
    float *f = calloc((size_t)cols, sizeof(float));
    struct error e = {0};

    if (!dtype_row_bytes(type, (uint64_t)cols, &row_bytes)) {
        printf("bench_dense: %d values are no whole blocks of %s\n", cols, dtype_info(type)->name);
        exit(2);
    }
    data = malloc((size_t)row_bytes * (size_t)rows);
    for (int32_t k = 0; k < cols; k++) {
        f[k] =
            role == OPS_ROLE_VECTOR ? 1.0f : (float)((int)(counter++ * 2654435761u >> 20) - 2048);
        f[k] *= role == OPS_ROLE_VECTOR ? 1.0f : 1e-5f;
    }
    if (dtype_encode(type, f, data, (uint64_t)cols) < 0) {
        memset(data, 0x21, (size_t)row_bytes); /* K-quants: small scales, any codes */
    }
    for (int32_t r = 1; r < rows; r++) {
        memcpy(data + (size_t)r * row_bytes, data, (size_t)row_bytes);
    }
    struct ops_weight_desc desc = {
        .name = "w", .type = type, .role = role, .n_rows = rows, .n_cols = cols, .data = data};
    must(m->ops->weight_create(m->be, &desc, w, &e), &e);
    m->bytes += w->bytes;
    free(data);
    free(f);
}

static void matmul(struct model *m, int32_t n, const float *x, int32_t ldx, bool norm, bool gated,
                   bool add, int parts, struct ops_weight *const *w, float *y)
{
    struct ops_matmul p = {.rows = {n, n <= 16 ? n : 0},
                           .norm = {.w = norm ? &m->norm : NULL, .eps = 1e-5f},
                           .x = x,
                           .ldx = ldx,
                           .n_parts = parts,
                           .gated = gated,
                           .add = add};
    int32_t ld = 0;

    for (int i = 0; i < parts; i++) {
        ld += gated && i ? 0 : w[i]->n_rows;
    }
    for (int i = 0; i < parts; i++) {
        p.part[i].w = w[i];
        p.part[i].y = y;
        p.part[i].ldy = ld;
        p.part[i].act = gated && i == 0 ? OPS_ACT_SILU : OPS_ACT_NONE;
        y += gated ? 0 : w[i]->n_rows;
    }
    if (m->ops->matmul(m->be, &p) < 0) {
        printf("bench_dense: matmul failed\n");
        exit(1);
    }
}

static void step(struct model *m, int32_t n, int32_t n_logits)
{
    for (int i = 0; i < LAYERS; i++) {
        struct layer *l = &m->layers[i];

        matmul(m, n, m->x, EMBD, true, false, false, 3,
               (struct ops_weight *const[]){&l->q, &l->k, &l->v}, m->qkv);
        matmul(m, n, m->qkv, EMBD + 2 * KV, false, false, true, 1,
               (struct ops_weight *const[]){&l->o}, m->x);
        matmul(m, n, m->x, EMBD, true, true, false, 2,
               (struct ops_weight *const[]){&l->gate, &l->up}, m->ff);
        matmul(m, n, m->ff, FF, false, false, true, 1, (struct ops_weight *const[]){&l->down},
               m->x);
    }
    matmul(m, n_logits, m->x, EMBD, true, false, false, 1, (struct ops_weight *const[]){&m->head},
           m->logits);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Times a thread was thrown off its CPU: a sample in which that happened measures the neighbours.
 */
static long switches(void)
{
    struct rusage u;

    (void)getrusage(RUSAGE_SELF, &u);
    return u.ru_nivcsw;
}

static void bench(struct model *m, int32_t n, double seconds, double rate)
{
    static double t[100000];
    int clean = 0;
    int count = 0;
    double start = now();
    int32_t n_logits = n <= 16 ? n : 1;

    while ((clean < 3 && now() - start < 5 * seconds) || now() - start < seconds) {
        long seen = switches();
        double a;

        for (int i = 0; i < n * EMBD; i++) {
            m->x[i] = (float)(i % 37 - 18);
        }
        a = now();
        step(m, n, n_logits);
        a = now() - a;
        if ((switches() == seen || clock_id != CLOCK_MONOTONIC) && clean < 100000) {
            t[clean++] = a;
        }
        count++;
    }
    if (clean == 0) {
        printf("rows %4d: none of %d samples undisturbed\n", n, count);
        return;
    }
    qsort(t, (size_t)clean, sizeof(t[0]), by_value);
    printf(
        "rows %4d: median %8.3f ms  %8.1f tok/s  %5.1f GB/s = %3.0f %% of reading; best %8.3f ms "
        "%8.1f tok/s; %d of %d samples undisturbed\n",
        n, t[clean / 2] * 1e3, n / t[clean / 2], (double)m->bytes / t[clean / 2] / 1e9,
        100 * (double)m->bytes / t[clean / 2] / rate, t[0] * 1e3, n / t[0], clean, count);
}

int main(int argc, char **argv)
{
    static struct model m;
    struct error e = {0};
    int type = DTYPE_Q4_1;
    int head = DTYPE_Q8_0;
    struct backend_config config = {.n_threads = 2, .cpu_mask = UINT32_MAX};
    struct backend_limits limits = {.max_rows = MAX_ROWS, .max_cols = FF, .max_outputs = VOCAB};
    double seconds = 2;
    int32_t rows[16];
    int n_rows = 0;
    char text[1024];
    double rate;

    for (int i = 1; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];

        if (strcmp(argv[i], "--type") == 0) {
            type = dtype_from_name(v);
        } else if (strcmp(argv[i], "--head") == 0) {
            head = dtype_from_name(v);
        } else if (strcmp(argv[i], "--threads") == 0) {
            config.n_threads = atoi(v);
        } else if (strcmp(argv[i], "--mask") == 0) {
            config.cpu_mask = (uint32_t)strtoul(v, NULL, 0);
        } else if (strcmp(argv[i], "--seconds") == 0) {
            seconds = atof(v);
        } else if (strcmp(argv[i], "--rows") == 0 && n_rows < 16 && atoi(v) > 0 &&
                   atoi(v) <= MAX_ROWS) {
            rows[n_rows++] = atoi(v);
        }
    }
    if (type < 0 || head < 0) {
        printf("bench_dense: unknown weight type\n");
        return 2;
    }
    if (config.n_threads == 1) {
        clock_id = CLOCK_PROCESS_CPUTIME_ID;
    }
    must(backend_find("cpu", &m.ops, &e), &e);
    must(m.ops->create(&config, &m.be, &e), &e);
    must(m.ops->reserve(m.be, &limits, &e), &e);
    make(&m, &m.norm, DTYPE_F32, 1, EMBD, OPS_ROLE_VECTOR);
    for (int i = 0; i < LAYERS; i++) {
        struct layer *l = &m.layers[i];

        make(&m, &l->q, type, EMBD, EMBD, OPS_ROLE_MATMUL);
        make(&m, &l->k, type, KV, EMBD, OPS_ROLE_MATMUL);
        make(&m, &l->v, type, KV, EMBD, OPS_ROLE_MATMUL);
        make(&m, &l->o, type, EMBD, EMBD, OPS_ROLE_MATMUL);
        make(&m, &l->gate, type, FF, EMBD, OPS_ROLE_MATMUL);
        make(&m, &l->up, type, FF, EMBD, OPS_ROLE_MATMUL);
        make(&m, &l->down, type, EMBD, FF, OPS_ROLE_MATMUL);
    }
    make(&m, &m.head, head, VOCAB, EMBD, OPS_ROLE_EMBED);
    m.x = calloc((size_t)MAX_ROWS * EMBD, sizeof(float));
    m.qkv = calloc((size_t)MAX_ROWS * (EMBD + 2 * KV), sizeof(float));
    m.ff = calloc((size_t)MAX_ROWS * FF, sizeof(float));
    m.logits = calloc((size_t)16 * VOCAB, sizeof(float));
    m.ops->describe(m.be, text, sizeof(text));
    rate = read_rate(config.n_threads, (size_t)m.bytes);
    printf("%s\nweights %.1f MB, reading them takes %.1f GB/s\n", text, (double)m.bytes / 1e6,
           rate / 1e9);
    if (n_rows == 0) {
        rows[n_rows++] = 1;
        rows[n_rows++] = 8;
        rows[n_rows++] = 512;
    }
    for (int i = 0; i < n_rows; i++) {
        bench(&m, rows[i], seconds, rate);
    }
    return 0;
}

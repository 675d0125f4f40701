/* SPDX-License-Identifier: Apache-2.0 */
/* Matmuls of few tokens: reading the weights is all that counts.
 *
 * Each thread has a share of the panels, equal in bytes, and reads it as one stream; what a thread
 * does not get to (others took its CPU) the others do. Panel kernels ask for memory far ahead
 * (panel_body.h), and beyond the end of a share with the beginning of the thread's share in the
 * next matmul: small matrices of 100 KiB a thread would else begin cold, 120 times a token. Which
 * matmul comes next the backend learns: it was the next one last time. A wrong guess costs the time
 * of some prefetches.
 *
 * Up to FEW_TOKENS tokens every thread normalises and quantises all tokens for itself, which is
 * cheaper than waiting for each other; above that tokens are shared out first. */

#include <string.h>

#include "kernels/cpu/matmul.h"

enum {
    GRAIN_BYTES = 64 << 10, /* of weights: some 5 us, and a stream's beginning is slow */
    KNOWN_JOBS = 512,       /* a power of two; a model has 4 to 5 a layer */
};

/* A job's weights in the order of reading; a gated pair is one part, found by its first weight. */
struct known_part {
    const uint8_t *w;
    uint64_t unit;   /* bytes of one unit, pairs together */
    uint64_t stride; /* from panel to panel of w */
    int32_t n;       /* units */
};

struct known_job {
    struct known_part part[OPS_MATMUL_MAX_PARTS]; /* part[0].w NULL: unused */
    int n_parts;
    uint64_t bytes;
    const struct known_job *next; /* what followed last time, or NULL */
};

struct cpu_known_jobs {
    struct known_job job[KNOWN_JOBS];
    int n;
    struct known_job *last;
    struct known_job own[2]; /* what is not learnt: the job and the one after it */
};

size_t matmul_known_jobs_bytes(void)
{
    return sizeof(struct cpu_known_jobs);
}

void cpu_matmul_forget(struct cpu *cpu)
{
    if (cpu->known_jobs) {
        memset(cpu->known_jobs, 0, sizeof(*cpu->known_jobs));
    }
}

static struct known_job *find(struct cpu_known_jobs *known, const void *w)
{
    size_t i = (size_t)((uint64_t)(uintptr_t)w * 0x9E3779B97F4A7C15u >> 32) % KNOWN_JOBS;

    while (known->job[i].part[0].w && known->job[i].part[0].w != w) {
        i = (i + 1) % KNOWN_JOBS;
    }
    if (!known->job[i].part[0].w && ++known->n > KNOWN_JOBS / 2) {
        memset(known, 0, sizeof(*known)); /* more than any model has: other models' jobs */
        known->n = 1;
    }
    return &known->job[i];
}

static void describe(const struct job *job, struct known_job *k)
{
    k->n_parts = job->pairs ? job->p->n_parts / 2 : matmul_n_parts(job->p);
    k->bytes = job->bytes;
    for (int i = 0; i < k->n_parts; i++) {
        int part = job->pairs ? 2 * i : i;
        const struct ops_weight *w = job->p->part[part].w;

        k->part[i] = (struct known_part){
            .w = w->device,
            .unit = matmul_unit_bytes(job->p, part),
            .stride = panel_bytes(w->type, (uint64_t)w->n_cols),
            .n = matmul_n_panels(w),
        };
        if (job->pairs) {
            k->part[i].unit += matmul_unit_bytes(job->p, part + 1);
        }
    }
}

/* Describes the job and notes that it follows the last one. */
static const struct known_job *learn(const struct job *job)
{
    struct cpu_known_jobs *known = job->cpu->known_jobs;
    struct known_job *k = find(known, job->p->part[0].w->device);

    describe(job, k);
    if (known->last) {
        known->last->next = k;
    }
    known->last = k;
    return k;
}

/* Units [from, to) of each part are thread `share`'s. */
struct share {
    int32_t from[OPS_MATMUL_MAX_PARTS];
    int32_t to[OPS_MATMUL_MAX_PARTS];
    int32_t n;
};

static struct share share_of(const struct known_job *k, int i, int of)
{
    uint64_t from = k->bytes / (uint64_t)of * (uint64_t)i;
    uint64_t to = i == of - 1 ? k->bytes : k->bytes / (uint64_t)of * (uint64_t)(i + 1);
    uint64_t before = 0;
    struct share s;

    memset(&s, 0, sizeof(s));
    for (int part = 0; part < k->n_parts; part++) {
        const struct known_part *p = &k->part[part];

        s.from[part] = matmul_panel_at(from, before, p->unit, p->n);
        s.to[part] = matmul_panel_at(to, before, p->unit, p->n);
        s.n += s.to[part] - s.from[part];
        before += p->unit * (uint64_t)p->n;
    }
    return s;
}

/* The share's first byte from part `part` on; NULL when it has none. */
static const uint8_t *first_byte(const struct known_job *k, const struct share *s, int part)
{
    for (; part < k->n_parts; part++) {
        if (s->from[part] < s->to[part]) {
            return k->part[part].w + (size_t)s->from[part] * k->part[part].stride;
        }
    }
    return NULL;
}

/* Where `at`'s stream goes on when its own share of the part has ended. */
static void look_ahead(struct cpu_acts *at, const uint8_t *end, const uint8_t *next)
{
    at->end = next ? end : NULL;
    at->jump = next ? (ptrdiff_t)((uintptr_t)next - (uintptr_t)end) : 0;
}

/* Of a job, the first byte of a thread's share. */
static const uint8_t *begin_of(const struct known_job *k, int tid, int n_threads)
{
    struct share s = share_of(k, tid, n_threads);

    return first_byte(k, &s, 0);
}

const uint8_t *cpu_matmul_next(const struct cpu *cpu, int tid)
{
    const struct known_job *last = cpu->known_jobs ? cpu->known_jobs->last : NULL;

    return last && last->next ? begin_of(last->next, tid, cpu->n_threads) : NULL;
}

struct few {
    const struct job *job;
    const struct known_job *known;
    const struct known_job *next; /* NULL: what followed last time */
};

static void set_streams(const struct few *f, const struct share *s, int part, bool own,
                        const uint8_t *next, struct unit_acts *a)
{
    const struct ops_matmul *p = f->job->p;
    const struct known_part *k = &f->known->part[part];
    const int second = matmul_pair_of(f->job, f->job->pairs ? 2 * part : part);
    const uint8_t *then = own ? first_byte(f->known, s, part + 1) : NULL;

    then = then ? then : next;
    look_ahead(&a->acts[0], k->w + (size_t)s->to[part] * k->stride, then);
    a->acts[1].end = a->acts[0].end;
    a->acts[1].jump = a->acts[0].jump;
    if (second >= 0) { /* the pair's second stream goes on behind what the first has asked for */
        size_t stride = (size_t)(k->unit - k->stride);

        look_ahead(&a->acts[1],
                   (const uint8_t *)p->part[second].w->device + (size_t)s->to[part] * stride,
                   then ? then + CPU_PANEL_PREFETCH : NULL);
    }
}

/* Token `i` of what begins at `first`. */
static void set_token(const struct unit_acts *first, int i, struct unit_acts *a)
{
    for (int k = 0; k < 2; k++) {
        a->acts[k].q = first->acts[k].q + (size_t)i * first->acts[k].ldq;
        a->acts[k].x = first->acts[k].x + (size_t)i * first->acts[k].ldx;
    }
}

/* What is left of a share; `next`: where the thread's own stream goes on, NULL in others' shares.
 */
static void run_share(const struct few *f, const struct thread_scratch *scratch,
                      const struct unit_acts *first, struct unit_acts *a, int tid, int share,
                      int of, const uint8_t *next)
{
    const bool own = tid == share;
    const struct known_job *k = f->known;
    const int32_t n_tokens = f->job->apart ? 1 : f->job->p->rows.n;
    struct share s = share_of(k, share, of);
    uint64_t unit = k->bytes / (uint64_t)(s.n > 0 ? s.n * of : 1) + 1;
    int32_t grain = GRAIN_BYTES / unit > 1 ? (int32_t)(GRAIN_BYTES / unit) : 1;
    int part = -1;
    int32_t before = 0; /* units of earlier parts */
    int32_t end = 0;    /* and of this one */
    int32_t n;

    for (int32_t i; (i = pool_take(f->job->cpu->pool, tid, share, s.n, grain, &n)) >= 0;) {
        for (int32_t stop = i + n; i < stop; i++) {
            while (i >= end) {
                part++;
                before = end;
                end += s.to[part] - s.from[part];
                set_streams(f, &s, part, own, next, a);
                if (f->job->apart) {
                    set_token(first, part, a);
                }
            }
            matmul_panel(f->job, scratch, a, f->job->pairs ? 2 * part : part,
                         s.from[part] + i - before, f->job->apart ? part : 0, n_tokens);
        }
    }
}

static void prepare_piece(void *arg, int tid, int n_threads)
{
    const struct few *f = arg;
    const struct thread_scratch s = matmul_thread(f->job->cpu, tid);
    const int64_t rows = f->job->p->rows.n;

    for (int i = 0; i < n_threads; i++) {
        int share = (tid + i) % n_threads;
        int32_t from = (int32_t)(rows * share / n_threads);
        int32_t to = (int32_t)(rows * (share + 1) / n_threads);
        int32_t n;

        for (int32_t k; (k = pool_take(f->job->cpu->pool, tid, share, to - from, 1, &n)) >= 0;) {
            matmul_prepare(f->job, from + k, from + k + n, s.row, f->job->q, f->job->x);
        }
    }
}

static void few_piece(void *arg, int tid, int n_threads)
{
    const struct few *f = arg;
    const struct job *job = f->job;
    const struct thread_scratch s = matmul_thread(job->cpu, tid);
    const uint8_t *next =
        f->next ? begin_of(f->next, tid, n_threads) : cpu_matmul_next(job->cpu, tid);
    struct panel_act *q = job->q;
    float *x = job->x;
    struct unit_acts first;
    struct unit_acts a;

    if (job->p->rows.n <= FEW_TOKENS) {
        q = s.q;
        x = s.x;
        matmul_prepare(job, 0, job->p->rows.n, s.row, q, x);
    }
    first = matmul_acts(job, q, x, 0);
    a = first;
    for (int i = 0; i < n_threads; i++) {
        run_share(f, &s, &first, &a, tid, (tid + i) % n_threads, n_threads, i == 0 ? next : NULL);
    }
}

void matmul_few(struct job *job)
{
    struct few f = {.job = job, .known = learn(job)};

    if (job->p->rows.n > FEW_TOKENS) {
        pool_share(job->cpu->pool, prepare_piece, &f);
    }
    pool_share(job->cpu->pool, few_piece, &f);
}

void matmul_few_of(struct job *job, const struct job *next)
{
    struct known_job *own = job->cpu->known_jobs->own;
    struct few f = {.job = job, .known = &own[0]};

    describe(job, &own[0]);
    if (next) {
        describe(next, &own[1]);
        f.next = &own[1];
    }
    pool_share(job->cpu->pool, few_piece, &f);
}

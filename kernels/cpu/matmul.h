/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_MATMUL_H
#define PIPIT_KERNELS_CPU_MATMUL_H

/* What the two ways through a matmul share: many tokens (matmul.c) and few (matmul_few.c). */

#include "kernels/cpu/cpu.h"

enum {
    FEW_TOKENS = 4,    /* up to so many, each thread prepares all for itself */
    SPLIT_TOKENS = 32, /* a thread's least share when tokens are split */
    CHUNK_TOKENS = 128,
    OUT_BYTES = CHUNK_TOKENS * PANEL_ROWS * 4,
};

/* Scratch of one thread; offsets from matmul_scratch. */
struct thread_scratch {
    float *g;            /* (CHUNK_TOKENS, 16) */
    float *u;            /* (CHUNK_TOKENS, 16) */
    float *row;          /* (max_cols) a normalised token on its way to quantisation */
    struct panel_act *q; /* (FEW_TOKENS, max_cols / 32) */
    float *x;            /* (FEW_TOKENS, max_cols) */
};

struct job {
    struct cpu *cpu;
    const struct ops_matmul *p;
    int32_t n_cols;
    bool need_q; /* a part has quantised weights */
    bool need_x; /* a part has float weights, and there is a norm */
    bool use_x;  /* a part has float weights */
    bool fine;   /* the output head: the rounding's rest goes to where float rows else lie */
    bool pairs;  /* parts two by two are gated pairs */
    bool apart;  /* part i is multiplied with token i only */
    int token_splits;
    uint64_t bytes; /* of all units' weights */
    struct panel_act *q;
    float *x;
};

/* What panels are multiplied with. acts[0]: the first panel of a unit; acts[1]: the rest of a fine
 * job, or a gated pair's second panel. */
struct unit_acts {
    struct cpu_acts acts[2];
};

struct thread_scratch matmul_thread(const struct cpu *cpu, int tid);

/* Tokens [row0, row1) to q, and to x where the job wants it. */
void matmul_prepare(const struct job *job, int32_t row0, int32_t row1, float *tmp,
                    struct panel_act *q, float *x);

/* Tokens [t0, t0 + n) of what matmul_prepare() wrote. */
struct unit_acts matmul_acts(const struct job *job, struct panel_act *q, float *x, int32_t t0);

/* One panel (of a gated pair: both) and tokens [t0, t0 + n). */
void matmul_panel(const struct job *job, const struct thread_scratch *s, const struct unit_acts *a,
                  int part, int32_t panel, int32_t t0, int32_t n);

static inline int32_t matmul_n_panels(const struct ops_weight *w)
{
    return (int32_t)(((int64_t)w->n_rows + PANEL_ROWS - 1) / PANEL_ROWS);
}

/* Units are panels; a gated job has one part, whose units are pairs. */
static inline int matmul_n_parts(const struct ops_matmul *p)
{
    return p->gated ? 1 : p->n_parts;
}

/* The part with the other panel of a pair; -1: `part` is no pair. */
static inline int matmul_pair_of(const struct job *job, int part)
{
    return job->p->gated || job->pairs ? part + 1 : -1;
}

uint64_t matmul_unit_bytes(const struct ops_matmul *p, int part);

/* Panel of a part that begins at or after byte `target` of the job; `before` bytes come first. */
int32_t matmul_panel_at(uint64_t target, uint64_t before, uint64_t unit_bytes, int32_t n);

/* matmul_few.c */
size_t matmul_known_jobs_bytes(void);
void matmul_few(struct job *job);
/* Of jobs that are not to be learnt, since their weights are others every time; `next` or NULL. */
void matmul_few_of(struct job *job, const struct job *next);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_CPU_H
#define PIPIT_KERNELS_CPU_CPU_H
/* The cpu backend from inside: its struct, and the ops that its files give to the table in cpu.c.
 * Device memory is ordinary memory. Calls return when the work is done. */

#include "base/error.h"
#include "base/memory.h"
#include "base/pool.h"
#include "kernels/backend.h"
#include "kernels/cpu/table.h"

struct cpu_known_jobs; /* matmul_few.c */
struct cpu_slab;       /* a piece of huge-page memory that holds several weights (weight.c) */
struct cpu_expert_slots; /* experts_mapped.c */

struct cpu {
    struct backend base;
    struct pool *pool;
    int n_threads;
    uint32_t flags;
    struct cpu_table table;
    struct cpu_known_jobs *known_jobs; /* in scratch */
    struct cpu_slab *slab;             /* where the next weight goes */
    void *scratch;                     /* taken by reserve */
    uint64_t scratch_bytes;
    struct backend_limits limits; /* what scratch was made for */
    uint8_t *matmul_scratch;
    uint8_t *tiles_scratch; /* matmul_tiles.c's, where table.tile_mul is */
    uint8_t *kv_scratch;
    uint64_t expert_bytes; /* as configured: stacks stay in the file's map; 0: they are packed */
    struct cpu_expert_slots *expert_slots; /* in scratch; NULL: none */
};

static inline struct cpu *cpu_of(struct backend *be)
{
    return (struct cpu *)be; /* base is the first member */
}

extern const struct backend_ops cpu_backend;

/* matmul.c, matmul_few.c, matmul_tiles.c, rows.c */
struct cpu_known_jobs *cpu_matmul_known_jobs(const struct cpu *cpu); /* in scratch, zeroed once */
/* First weights of thread `tid` in the matmul that is likely to come next, or NULL. */
const uint8_t *cpu_matmul_next(const struct cpu *cpu, int tid);
void cpu_matmul_forget(struct cpu *cpu); /* weights go away */
/* Experts of one row, at most 4: the parts of `in` are two by two gated pairs, part i of `out` is
 * multiplied with row i of its x. `next_in`: of those that come next, or NULL. */
void cpu_matmul_experts(struct cpu *cpu, const struct ops_matmul *in, const struct ops_matmul *out,
                        const struct ops_matmul *next_in);
uint64_t cpu_matmul_scratch_bytes(int n_threads, const struct backend_limits *limits);
uint64_t cpu_tiles_scratch_bytes(int n_threads, const struct backend_limits *limits);
float *cpu_thread_row(const struct cpu *cpu, int tid); /* (max_cols), scratch of a thread */
int cpu_matmul(struct backend *be, const struct ops_matmul *p);
int cpu_embed(struct backend *be, const struct ops_embed *p);
int cpu_norm(struct backend *be, const struct ops_norm_op *p);
int cpu_gather(struct backend *be, const struct ops_gather *p);
int cpu_mul(struct backend *be, const struct ops_mul *p);
int cpu_softcap(struct backend *be, const struct ops_softcap *p);

/* experts.c */
uint64_t cpu_experts_scratch_bytes(const struct backend_limits *limits);
int cpu_experts(struct backend *be, const struct ops_experts *p);

/* experts_mapped.c: experts that stay in the file's map, and slots for those in use. */
uint64_t cpu_expert_slots_bytes(const struct backend_config *config,
                                const struct backend_limits *limits);
void cpu_expert_slots_ready(struct cpu *cpu, void *at); /* zeroed, so many bytes, aligned to 64 */
void cpu_expert_slots_forget(struct cpu *cpu); /* weights go away */
/* Has these n experts of p packed, n at most half of BACKEND_LEAST_EXPERTS. They stay so while
 * as many others are fetched. */
void cpu_experts_fetch(struct cpu *cpu, const struct ops_experts *p, const int32_t *which,
                       int32_t n);
/* The panels of expert e's matrix; part 0 gate, 1 up, 2 down. */
const uint8_t *cpu_experts_packed(const struct cpu *cpu, const struct ops_experts *p, int part,
                                  int32_t e);

/* recur.c */
int cpu_conv(struct backend *be, const struct ops_conv *p);
int cpu_delta(struct backend *be, const struct ops_delta *p);
int cpu_scan(struct backend *be, const struct ops_scan *p);
int cpu_gate(struct backend *be, const struct ops_gate *p);

/* weight.c */
int cpu_weights_reserve(struct backend *be, uint64_t bytes, struct error *reterr);
uint64_t cpu_weight_bytes(const struct backend_config *config, const struct ops_weight_desc *desc);
int cpu_weight_create(struct backend *be, const struct ops_weight_desc *desc,
                      struct ops_weight *ret, struct error *reterr);
void cpu_weight_destroy(struct backend *be, struct ops_weight *w);
/* Panels of one matrix, on all threads: to has cpu_weight_bytes() of the desc. */
void cpu_weight_pack(struct cpu *cpu, const struct ops_weight_desc *desc, uint8_t *to);
void cpu_weight_finish(struct cpu *cpu); /* lets go of the current slab */

/* The cache: kv_scratch has cpu_kv_scratch_bytes(), 64-byte aligned, zeroed once. */
uint64_t cpu_kv_scratch_bytes(int n_threads, bool tiles, const struct backend_limits *limits);
/* Once, when limits and kv_scratch are set: where each thread's scratch lies (half a microsecond
 * and more to find, an operation would do it for each thread). */
void cpu_kv_scratch_ready(struct cpu *cpu);
int cpu_kv_layout(struct ops_kv_layout *layout, struct error *reterr);
int cpu_rope_store(struct backend *be, const struct ops_rope_store *p);
int cpu_attention(struct backend *be, const struct ops_attention *p);
int cpu_predict(struct backend *be, const struct ops_predict *p);
int cpu_kv_sum(struct backend *be, const struct ops_kv_sum *p);
int cpu_victim(struct backend *be, const struct ops_victim *p);
int cpu_cut(struct backend *be, const struct ops_cut *p);
int cpu_expect(struct backend *be, const struct ops_expect *p);
int cpu_kv_export(struct backend *be, const struct ops_kv_slots *p);
int cpu_kv_import(struct backend *be, const struct ops_kv_slots *p);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu backend's table: creation, description, scratch. Operations lie in the files beside this
 * one, inner kernels in the table of table.h.
 *
 * Scratch is one mapping: first what matmul and rows need, then tiles (matmul_tiles.c), then what
 * the cache's operations need, then slots of experts, last what mixtures need. Its size follows
 * from the limits and the number of threads, so the plan knows it. */

#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/cpu.h"
#include "kernels/host.h"

static int n_threads_of(const struct backend_config *config)
{
    return config->n_threads > 0 ? config->n_threads : cpu_count();
}

static uint64_t matmul_bytes(int n_threads, const struct backend_limits *limits)
{
    return checked_round_up(cpu_matmul_scratch_bytes(n_threads, limits), 64);
}

/* Without tiles, or without any rows, nothing. */
static uint64_t tiles_bytes(const struct cpu_table *t, int n_threads,
                            const struct backend_limits *limits)
{
    return t->tile_mul ? checked_round_up(cpu_tiles_scratch_bytes(n_threads, limits), 64) : 0;
}

static uint64_t kv_bytes(const struct cpu_table *t, int n_threads,
                         const struct backend_limits *limits)
{
    return checked_round_up(cpu_kv_scratch_bytes(n_threads, t->tile_qk != NULL, limits), 64);
}

static uint64_t cpu_scratch_bytes(const struct backend_config *config,
                                  const struct backend_limits *limits)
{
    int n = n_threads_of(config);
    struct cpu_table t;

    cpu_table_init(&t, cpu_flags() & config->cpu_mask);
    return matmul_bytes(n, limits) + tiles_bytes(&t, n, limits) + kv_bytes(&t, n, limits) +
           cpu_expert_slots_bytes(config, limits) + cpu_experts_scratch_bytes(limits);
}

static int cpu_reserve(struct backend *be, const struct backend_limits *limits,
                       struct error *reterr)
{
    struct cpu *cpu = cpu_of(be);
    struct backend_config config = {
        .n_threads = cpu->n_threads, .cpu_mask = cpu->flags, .expert_bytes = cpu->expert_bytes};
    uint64_t bytes = cpu_scratch_bytes(&config, limits);
    void *scratch;
    int r = memory_map((size_t)bytes, "scratch of the cpu backend", &scratch, reterr);

    if (r < 0) {
        return r;
    }
    memory_unmap(cpu->scratch, (size_t)cpu->scratch_bytes);
    cpu->scratch = scratch;
    cpu->scratch_bytes = bytes;
    cpu->limits = *limits;
    cpu->matmul_scratch = scratch;
    cpu->known_jobs = cpu_matmul_known_jobs(cpu);
    cpu->tiles_scratch = cpu->matmul_scratch + matmul_bytes(cpu->n_threads, limits);
    cpu->kv_scratch = cpu->tiles_scratch + tiles_bytes(&cpu->table, cpu->n_threads, limits);
    cpu_kv_scratch_ready(cpu);
    cpu_expert_slots_ready(cpu, cpu->kv_scratch + kv_bytes(&cpu->table, cpu->n_threads, limits));
    return 0;
}

static void cpu_destroy(struct backend *be)
{
    struct cpu *cpu = cpu_of(be);

    if (!cpu) {
        return;
    }
    cpu_weight_finish(cpu);
    pool_destroy(cpu->pool);
    memory_unmap(cpu->scratch, (size_t)cpu->scratch_bytes);
    free(cpu);
}

static int cpu_create(const struct backend_config *config, struct backend **ret,
                      struct error *reterr)
{
    struct cpu *cpu = calloc(1, sizeof(*cpu));
    int r;

    if (!cpu) {
        return error_set(reterr, -ENOMEM, "no memory for the cpu backend");
    }
    cpu->base.ops = &cpu_backend;
    cpu->n_threads = n_threads_of(config);
    cpu->flags = cpu_flags() & config->cpu_mask;
    cpu->expert_bytes = config->expert_bytes;
    cpu_table_init(&cpu->table, cpu->flags);
    r = pool_create(cpu->n_threads, &cpu->pool, reterr);
    if (r < 0) {
        cpu_destroy(&cpu->base);
        return r;
    }
    *ret = &cpu->base;
    return 0;
}

static void cpu_describe(const struct backend *be, char *buf, size_t size)
{
    const struct cpu *cpu = (const struct cpu *)be;
    size_t used = (size_t)snprintf(buf, size, "cpu:");

    for (int bit = 0; cpu_flag_name(bit); bit++) {
        if (cpu->flags & 1u << bit && used < size) {
            used += (size_t)snprintf(buf + used, size - used, " %s", cpu_flag_name(bit));
        }
    }
    if (used < size) {
        used += (size_t)snprintf(buf + used, size - used, "%s, %d threads; ",
                                 cpu->flags ? "" : " plain C", cpu->n_threads);
    }
    if (used < size) {
        cpu_table_describe(&cpu->table, buf + used, size - used);
    }
}

const struct backend_ops cpu_backend = {
    .name = "cpu",
    .selects = true,
    .in_host = true,
    .sums_by_row = true,
    .rounds = true,
    .create = cpu_create,
    .destroy = cpu_destroy,
    .describe = cpu_describe,
    .alloc = host_alloc,
    .free = host_free,
    .free_bytes = host_free_bytes,
    .write = host_write,
    .read = host_read,
    .copy = host_copy,
    .zero = host_zero,
    .sync = host_sync,
    .scratch_bytes = cpu_scratch_bytes,
    .reserve = cpu_reserve,
    .weights_reserve = cpu_weights_reserve,
    .weight_bytes = cpu_weight_bytes,
    .weight_create = cpu_weight_create,
    .weight_destroy = cpu_weight_destroy,
    .kv_layout = cpu_kv_layout,
    .embed = cpu_embed,
    .norm = cpu_norm,
    .matmul = cpu_matmul,
    .experts = cpu_experts,
    .gather = cpu_gather,
    .mul = cpu_mul,
    .softcap = cpu_softcap,
    .rope_store = cpu_rope_store,
    .attention = cpu_attention,
    .predict = cpu_predict,
    .conv = cpu_conv,
    .delta = cpu_delta,
    .scan = cpu_scan,
    .gate = cpu_gate,
    .kv_sum = cpu_kv_sum,
    .victim = cpu_victim,
    .cut = cpu_cut,
    .expect = cpu_expect,
    .kv_export = cpu_kv_export,
    .kv_import = cpu_kv_import,
};

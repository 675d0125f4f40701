/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's operations on the cpu backend. None is offered yet: kv_layout refuses every
 * combination of types, so that no caller gets as far as the others. */

#include <errno.h>

#include "kernels/cpu/cpu.h"

void cpu_table_kv_c(struct cpu_table *t)
{
    (void)t;
}

uint64_t cpu_kv_scratch_bytes(int n_threads, const struct backend_limits *limits)
{
    (void)n_threads;
    (void)limits;
    return 0;
}

int cpu_kv_layout(struct ops_kv_layout *layout, struct error *reterr)
{
    (void)layout;
    return error_set(reterr, -ENOTSUP, "the cpu backend has no cache yet");
}

int cpu_rope_store(struct backend *be, const struct ops_rope_store *p)
{
    (void)be;
    (void)p;
    return -ENOTSUP;
}

int cpu_attention(struct backend *be, const struct ops_attention *p)
{
    (void)be;
    (void)p;
    return -ENOTSUP;
}

int cpu_victim(struct backend *be, const struct ops_victim *p)
{
    (void)be;
    (void)p;
    return -ENOTSUP;
}

int cpu_cut(struct backend *be, const struct ops_cut *p)
{
    (void)be;
    (void)p;
    return -ENOTSUP;
}

int cpu_kv_export(struct backend *be, const struct ops_kv_slots *p)
{
    (void)be;
    (void)p;
    return -ENOTSUP;
}

int cpu_kv_import(struct backend *be, const struct ops_kv_slots *p)
{
    (void)be;
    (void)p;
    return -ENOTSUP;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of the cpu backend: packed once, into huge pages.
 *
 * A small model's matrices are well below 2 MiB each, and 4 KiB pages cost a third of a GEMV's
 * speed, so weights share slabs, laid one behind the other in the order of creation (which is the
 * order in which a step reads them, if the caller creates them so). A slab counts its weights and
 * goes with the last. Who knows the sum of all weights reserves one slab of just that size, so a
 * plan knows it to the byte. Weights that nobody reserved for go into slabs of 16 MiB, or, from a
 * quarter of that on, into mappings of their own.
 *
 * Only experts may stay in the file's map (experts_mapped.c). The caller may drop the file's pages
 * of all other weights after weight_create. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pack.h"

#define SLAB_BYTES ((size_t)16 << 20)

struct cpu_slab {
    uint8_t *mem;
    size_t size;
    size_t used;
    int n_weights; /* of those alive; the backend's current slab counts as one more */
};

static void slab_unref(struct cpu_slab *slab)
{
    if (slab && --slab->n_weights == 0) {
        memory_unmap(slab->mem, slab->size);
        free(slab);
    }
}

static int slab_create(size_t size, struct cpu_slab **ret, struct error *reterr)
{
    struct cpu_slab *slab = calloc(1, sizeof(*slab));
    void *mem;
    int r;

    if (!slab) {
        return error_set(reterr, -ENOMEM, "no memory for a slab of weights");
    }
    r = memory_map(size, "weights", &mem, reterr);
    if (r < 0) {
        free(slab);
        return r;
    }
    *slab = (struct cpu_slab){.mem = mem, .size = size, .n_weights = 1};
    *ret = slab;
    return 0;
}

static int new_slab(struct cpu *cpu, size_t size, struct error *reterr)
{
    struct cpu_slab *slab = NULL;
    int r = slab_create(size, &slab, reterr);

    if (r < 0) {
        return r;
    }
    slab_unref(cpu->slab);
    cpu->slab = slab;
    return 0;
}

/* Room for one weight; ret_slab is what to give to slab_unref later. */
static int take(struct cpu *cpu, size_t bytes, struct cpu_slab **ret_slab, uint8_t **ret,
                struct error *reterr)
{
    struct cpu_slab *slab = cpu->slab;
    int r;

    if (slab && slab->size - slab->used >= bytes) {
        *ret = slab->mem + slab->used;
        *ret_slab = slab;
        slab->used += bytes;
        slab->n_weights++;
        return 0;
    }
    if (bytes >= SLAB_BYTES / 4) {
        r = slab_create(bytes, &slab, reterr);
        if (r < 0) {
            return r;
        }
        slab->used = bytes;
        *ret_slab = slab;
        *ret = slab->mem;
        return 0;
    }
    r = new_slab(cpu, SLAB_BYTES, reterr);
    return r < 0 ? r : take(cpu, bytes, ret_slab, ret, reterr);
}

int cpu_weights_reserve(struct backend *be, uint64_t bytes, struct error *reterr)
{
    return bytes > 0 ? new_slab(cpu_of(be), (size_t)bytes, reterr) : 0;
}

void cpu_weight_finish(struct cpu *cpu)
{
    slab_unref(cpu->slab);
    cpu->slab = NULL;
}

/* In the file's map? */
static bool stays(uint64_t expert_bytes, const struct ops_weight_desc *desc)
{
    return expert_bytes && ops_stack(desc->n_stack) > 1;
}

uint64_t cpu_weight_bytes(const struct backend_config *config, const struct ops_weight_desc *desc)
{
    uint64_t bytes;
    uint64_t n_panels = ((uint64_t)desc->n_rows + PANEL_ROWS - 1) / PANEL_ROWS;

    if (desc->n_rows <= 0 || desc->n_cols <= 0 || stays(config ? config->expert_bytes : 0, desc)) {
        return 0;
    }
    bytes = desc->role == OPS_ROLE_VECTOR
                ? (uint64_t)desc->n_cols * sizeof(float)
                : n_panels * panel_bytes(desc->type, (uint64_t)desc->n_cols) *
                      (uint64_t)ops_stack(desc->n_stack);
    return checked_round_up(bytes, 64);
}

struct pack_job {
    const struct ops_weight_desc *desc;
    size_t row_bytes;
    uint8_t *to;
};

static void pack_piece(void *arg, int tid, int n_threads)
{
    const struct pack_job *job = arg;
    const struct ops_weight_desc *d = job->desc;
    const size_t bytes = (size_t)panel_bytes(d->type, (uint64_t)d->n_cols);
    const int64_t n_panels = ((int64_t)d->n_rows + PANEL_ROWS - 1) / PANEL_ROWS;
    const int64_t n = n_panels * ops_stack(d->n_stack); /* each matrix begins with a panel */
    const int64_t end = n * (tid + 1) / n_threads;
    const int64_t stack_rows = (int64_t)ops_stack_rows(d->stack_rows, d->n_rows);

    for (int64_t i = n * tid / n_threads; i < end; i++) {
        int64_t row = i % n_panels * PANEL_ROWS;
        int64_t rest = d->n_rows - row;
        const uint8_t *from =
            (const uint8_t *)d->data + (size_t)(i / n_panels * stack_rows + row) * job->row_bytes;

        pack_panel(d->type, from, job->row_bytes, rest < PANEL_ROWS ? (int)rest : PANEL_ROWS,
                   d->n_cols, job->to + (size_t)i * bytes);
    }
}

void cpu_weight_pack(struct cpu *cpu, const struct ops_weight_desc *desc, uint8_t *to)
{
    struct pack_job job = {.desc = desc, .to = to};
    uint64_t row_bytes;

    if (desc->n_rows % PANEL_ROWS) { /* absent rows of the last panel are 0 */
        uint64_t last = panel_bytes(desc->type, (uint64_t)desc->n_cols);

        memset(to + (uint64_t)(desc->n_rows / PANEL_ROWS) * last, 0, (size_t)last);
    }
    (void)dtype_row_bytes(desc->type, (uint64_t)desc->n_cols, &row_bytes);
    job.row_bytes = (size_t)row_bytes;
    pool_run(cpu->pool, pack_piece, &job);
}

int cpu_weight_create(struct backend *be, const struct ops_weight_desc *desc,
                      struct ops_weight *ret, struct error *reterr)
{
    struct cpu *cpu = cpu_of(be);
    uint64_t row_bytes;
    uint64_t bytes;
    struct cpu_slab *slab;
    uint8_t *to;
    int r;

    if (!dtype_info(desc->type)) {
        return error_set(reterr, -ENOTSUP, "%s: weight type %d is unknown", desc->name,
                         (int)desc->type);
    }
    if (desc->n_rows <= 0 || desc->n_cols <= 0 || !desc->data ||
        (desc->role == OPS_ROLE_VECTOR && desc->n_rows != 1) ||
        !dtype_row_bytes(desc->type, (uint64_t)desc->n_cols, &row_bytes)) {
        return error_set(reterr, -EINVAL, "%s: %d x %d of %s is not a weight", desc->name,
                         desc->n_rows, desc->n_cols, dtype_info(desc->type)->name);
    }
    if (stays(cpu->expert_bytes, desc)) {
        *ret = (struct ops_weight){.type = desc->type,
                                   .role = desc->role,
                                   .n_rows = desc->n_rows,
                                   .n_cols = desc->n_cols,
                                   .n_stack = desc->n_stack,
                                   .stack_rows = desc->stack_rows,
                                   .device = desc->data};
        return 0;
    }
    bytes = cpu_weight_bytes(NULL, desc);
    r = take(cpu, (size_t)bytes, &slab, &to, reterr);
    if (r < 0) {
        error_prefix(reterr, "%s", desc->name);
        return r;
    }
    if (desc->role == OPS_ROLE_VECTOR) {
        dtype_decode(desc->type, desc->data, (float *)(void *)to, (uint64_t)desc->n_cols);
    } else {
        cpu_weight_pack(cpu, desc, to);
    }
    *ret = (struct ops_weight){.type = desc->role == OPS_ROLE_VECTOR ? DTYPE_F32 : desc->type,
                               .role = desc->role,
                               .n_rows = desc->n_rows,
                               .n_cols = desc->n_cols,
                               .n_stack = desc->n_stack,
                               .device = to,
                               .bytes = bytes,
                               .priv = slab};
    return 0;
}

void cpu_weight_destroy(struct backend *be, struct ops_weight *w)
{
    cpu_matmul_forget(cpu_of(be));
    if (w->n_stack > 1) {
        cpu_expert_slots_forget(cpu_of(be));
    }
    slab_unref((struct cpu_slab *)(uintptr_t)w->priv); /* NULL of one that stayed */
    *w = (struct ops_weight){0};
}

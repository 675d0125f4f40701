/* SPDX-License-Identifier: Apache-2.0 */
/* The reference backend's table: creation, scratch and weights. The operations lie in the files
 * beside this one.
 *
 * Matrices stay as the file's map shows them and are decoded row by row as they are used, so a
 * prepared weight holds no memory; vectors (norms, biases) become f32 once. */

#include "kernels/ref/ref.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "kernels/expect.h"
#include "kernels/host.h"

static int n_threads_of(const struct backend_config *config)
{
    return config->n_threads > 0 ? config->n_threads : cpu_count();
}

static size_t at_least_one(int32_t n)
{
    return n > 0 ? (size_t)n : 1;
}

/* Pass 1 with `ref` NULL adds up, pass 2 hands out. */
static void lay_out(struct memory_arena *a, int n_threads, const struct backend_limits *l,
                    struct ref *ref)
{
    size_t cols = at_least_one(l->max_cols);
    size_t slots = at_least_one(l->max_slots);
    size_t dim = at_least_one(l->max_head_dim);
    size_t heads = at_least_one(l->max_heads);
    size_t pairs = l->max_heads > REF_PAIRS ? (size_t)l->max_heads : REF_PAIRS;
    size_t experts = l->max_experts > 0 ? 2 * cols + (size_t)l->max_experts : 0;
    size_t tiles = (at_least_one(l->max_rows) + REF_TILE - 1) / REF_TILE;
    float *xt = memory_arena_take(a, tiles * REF_TILE * cols * sizeof(float));
    int32_t *order = memory_arena_take(a, slots * sizeof(int32_t));
    float *score = memory_arena_take(a, slots * sizeof(float));
    uint8_t *fetched = memory_arena_take(a, BACKEND_FETCHES * BACKEND_FETCH_BYTES);

    for (int i = 0; i < n_threads; i++) {
        struct ref_thread t = {
            .w = memory_arena_take(a, (2 * cols + experts) * sizeof(float)),
            .logits = memory_arena_take(a, pairs * slots * sizeof(float)),
            .page = memory_arena_take(a, OPS_PAGE_SLOTS * dim * sizeof(float)),
            .head = memory_arena_take(a, dim * sizeof(float)),
            .p = memory_arena_take(a, slots * sizeof(float)),
            .p_sum = memory_arena_take(a, slots * sizeof(float)),
            .rank = memory_arena_take(a, slots * sizeof(int32_t)),
        };

        if (l->select) {
            t.approx = memory_arena_take(a, heads * slots * sizeof(float));
            t.order = memory_arena_take(a, slots * sizeof(int32_t));
            t.chosen = memory_arena_take(a, slots * sizeof(bool));
            t.dims = memory_arena_take(a, heads * dim * sizeof(bool));
            t.shrink = memory_arena_take(a, heads * sizeof(float));
            t.codes = memory_arena_take(a, dim);
        }

        if (ref) {
            ref->threads[i] = t;
        }
    }
    if (ref) {
        ref->xt = xt;
        ref->order = order;
        ref->score = score;
        ref->fetched = fetched;
    }
}

static uint64_t ref_scratch_bytes(const struct backend_config *config,
                                  const struct backend_limits *limits)
{
    struct memory_arena plan = {0};

    lay_out(&plan, n_threads_of(config), limits, NULL);
    return plan.used;
}

static int ref_reserve(struct backend *be, const struct backend_limits *limits,
                       struct error *reterr)
{
    struct ref *ref = (struct ref *)be;
    struct memory_arena arena = {0};
    void *scratch;
    int r;

    lay_out(&arena, ref->n_threads, limits, NULL);
    r = memory_map(arena.used, "reference backend's scratch", &scratch, reterr);
    if (r < 0) {
        return r;
    }
    memory_unmap(ref->scratch, ref->scratch_size);
    ref->scratch = scratch;
    ref->scratch_size = arena.used;
    ref->limits = *limits;
    arena = (struct memory_arena){.base = scratch, .size = ref->scratch_size};
    lay_out(&arena, ref->n_threads, limits, ref);
    return 0;
}

static void ref_destroy(struct backend *be)
{
    struct ref *ref = (struct ref *)be;

    if (!ref) {
        return;
    }
    pool_destroy(ref->pool);
    memory_unmap(ref->scratch, ref->scratch_size);
    free(ref->threads);
    free(ref);
}

static int ref_create(const struct backend_config *config, struct backend **ret,
                      struct error *reterr)
{
    struct ref *ref = calloc(1, sizeof(*ref));
    int r = -ENOMEM;

    if (!ref) {
        return error_set(reterr, -ENOMEM, "no memory for the reference backend");
    }
    ref->be.ops = &ref_backend;
    ref->n_threads = n_threads_of(config);
    ref->threads = calloc((size_t)ref->n_threads, sizeof(*ref->threads));
    if (!ref->threads) {
        error_set(reterr, r, "no memory for the reference backend");
        goto fail;
    }
    r = pool_create(ref->n_threads, &ref->pool, reterr);
    if (r < 0) {
        goto fail;
    }
    *ret = &ref->be;
    return 0;

fail:
    ref_destroy(&ref->be);
    return r;
}

static void ref_describe(const struct backend *be, char *buf, size_t size)
{
    const struct ref *ref = (const struct ref *)be;

    (void)snprintf(buf, size, "ref: plain C, %d threads", ref->n_threads);
}

static uint64_t ref_weight_bytes(const struct backend_config *config,
                                 const struct ops_weight_desc *desc)
{
    (void)config;
    return desc->role == OPS_ROLE_VECTOR ? memory_rounded((uint64_t)desc->n_cols * sizeof(float))
                                         : 0;
}

static int ref_weight_create(struct backend *be, const struct ops_weight_desc *desc,
                             struct ops_weight *ret, struct error *reterr)
{
    const void *device = desc->data;
    uint64_t bytes = ref_weight_bytes(NULL, desc);
    uint64_t row_bytes;

    (void)be;
    if (desc->n_rows < 1 || desc->n_cols < 1 || !desc->data ||
        !dtype_row_bytes(desc->type, (uint64_t)desc->n_cols, &row_bytes)) {
        return error_set(reterr, -EINVAL, "tensor \"%s\": %d x %d is no matrix of its type",
                         desc->name, desc->n_rows, desc->n_cols);
    }
    if (desc->role == OPS_ROLE_VECTOR) {
        void *vector;
        int r = memory_map((size_t)bytes, desc->name, &vector, reterr);

        if (r < 0) {
            return r;
        }
        dtype_decode(desc->type, desc->data, vector, (uint64_t)desc->n_cols);
        device = vector;
    }
    *ret = (struct ops_weight){
        .type = desc->type,
        .role = desc->role,
        .n_rows = desc->n_rows,
        .n_cols = desc->n_cols,
        .n_stack = desc->n_stack,
        .stack_rows = desc->stack_rows,
        .device = device,
        .bytes = bytes,
    };
    return 0;
}

static void ref_weight_destroy(struct backend *be, struct ops_weight *w)
{
    (void)be;
    if (w->role == OPS_ROLE_VECTOR) {
        memory_unmap((void *)w->device, (size_t)w->bytes);
    }
    *w = (struct ops_weight){0};
}

const struct backend_ops ref_backend = {
    .name = "ref",
    .selects = true,
    .in_host = true,
    .sums_by_row = true,
    .rounds = true,
    .create = ref_create,
    .destroy = ref_destroy,
    .describe = ref_describe,
    .alloc = host_alloc,
    .free = host_free,
    .free_bytes = host_free_bytes,
    .write = host_write,
    .read = host_read,
    .copy = host_copy,
    .zero = host_zero,
    .sync = host_sync,
    .scratch_bytes = ref_scratch_bytes,
    .reserve = ref_reserve,
    .weight_bytes = ref_weight_bytes,
    .weight_create = ref_weight_create,
    .weight_destroy = ref_weight_destroy,
    .kv_layout = ref_kv_layout,
    .embed = ref_embed,
    .norm = ref_norm,
    .matmul = ref_matmul,
    .experts = ref_experts,
    .gather = ref_gather,
    .mul = ref_mul,
    .softcap = ref_softcap,
    .rope_store = ref_rope_store,
    .attention = ref_attention,
    .predict = ref_predict,
    .conv = ref_conv,
    .delta = ref_delta,
    .scan = ref_scan,
    .gate = ref_gate,
    .kv_sum = ref_kv_sum,
    .victim = ref_victim,
    .cut = ref_cut,
    .expect = expect_host,
    .kv_export = ref_kv_export,
    .kv_import = ref_kv_import,
    .sample = ref_sample,
    .fetch = ref_fetch,
    .fetched = ref_fetched,
};

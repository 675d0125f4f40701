/* SPDX-License-Identifier: Apache-2.0 */
/* Between two tokens nothing is allocated: malloc and its kin are wrapped at link time and counted
 * while a running batch of every kind of policy takes its steps. Nor does anything grow: what a
 * hundred requests leave behind is what one leaves. */

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/memory.h"
#include "tests/unit/engine_run.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

static atomic_int n_allocs;

void *__wrap_malloc(size_t size)
{
    atomic_fetch_add(&n_allocs, 1);
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    atomic_fetch_add(&n_allocs, 1);
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    atomic_fetch_add(&n_allocs, 1);
    return __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&n_allocs, 1);
    return __real_aligned_alloc(alignment, size);
}

static void quiet_steps(const char *backend, const char *model, const char *kv)
{
    int32_t ids[100];
    struct run r[3];

    run_keep_prefixes = true;
    struct engine *e = run_engine(model, backend, 128, 3, kv);
    struct engine_request q = run_request(ids, 70, 40);
    uint64_t mapped;
    int n;

    run_tokens(31, engine_info(e)->n_vocab, ids, 100);
    for (int i = 0; i < 3; i++) {
        q.n_prompt = 70 + 10 * (i == 2);
        q.fork_of = i == 1 ? r[0].handle : 0; /* shares pages that are copied when one writes */
        run_submit(e, &q, &r[i]);
    }
    mapped = memory_mapped_bytes();
    cr_assert_gt(atomic_load(&n_allocs), 0, "the wrapping works");
    atomic_store(&n_allocs, 0);
    while ((n = run_step(e)) > 0) {
    }
    cr_assert_eq(atomic_load(&n_allocs), 0, "%s: %d allocations", kv, atomic_load(&n_allocs));
    cr_assert_eq(memory_mapped_bytes(), mapped);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(r[i].n_new, 40);
        cr_assert_eq(r[i].usage.n_cached, i == 1 ? 70 : 0);
        run_clear(&r[i]);
    }
    engine_destroy(e);
}

Test(engine_alloc, nothing_between_tokens)
{
    static const char *const backends[] = {"ref", "cpu"};
    static const char *const kv[] = {"full,chunk=16", "fp8+keyformer:20", "sinks:2+window:20",
                                     "h2o:20,prefill=bounded,chunk=16"};

    for (int b = 0; b < 2; b++) {
        for (size_t k = 0; k < sizeof(kv) / sizeof(kv[0]); k++) {
            quiet_steps(backends[b], "cache_model.gguf", kv[k]);
        }
        quiet_steps(backends[b], "arch_gemma3.gguf", "full");
        quiet_steps(backends[b], "arch_qwen35.gguf", "full,chunk=16");
        quiet_steps(backends[b], "arch_qwen35.gguf", "h2o:20");
        quiet_steps(backends[b], "arch_qwen35moe.gguf", "full,chunk=16");
        quiet_steps(backends[b], "arch_lfm2.gguf", "full,chunk=16");
        quiet_steps(backends[b], "arch_nemotron_h.gguf", "full,chunk=16");
        quiet_steps(backends[b], "arch_mamba2.gguf", "full,chunk=16");
    }
}

Test(engine_alloc, requests_leave_nothing_behind)
{
    int32_t ids[20];
    struct engine *e = run_engine("cache_model.gguf", "ref", 64, 2, "keyformer:20");
    struct engine_request q = run_request(ids, 20, 3);
    uint64_t mapped = memory_mapped_bytes();

    run_tokens(32, engine_info(e)->n_vocab, ids, 20);
    for (int i = 0; i < 100; i++) {
        struct run r;

        q.principal = (uint64_t)i;
        run_submit(e, &q, &r);
        run_all(e);
        cr_assert(r.done);
        run_clear(&r);
    }
    cr_assert_eq(memory_mapped_bytes(), mapped);
    engine_destroy(e);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The plan against what an engine really takes: its mapped memory to the byte, its heap to some
 * kilobytes, and what is resident, from the start and after work, to 2 %. */

#include <criterion/criterion.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sanitized.h"
#include "engine/kv/plan/plan.h"
#include "tests/unit/engine_run.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *p);

/* Bytes that this program's own calls asked for and hold (not the C library's; nor what the heap
 * adds, kilobytes more or less by the order of what was freed before). */
static _Atomic int64_t heap;

/* At the end of a block: how much was asked for, and who said so. */
struct asked {
    uint64_t size;
    uint64_t sign;
};

static uint8_t *end_of(void *p)
{
    return (uint8_t *)p + malloc_usable_size(p) - sizeof(struct asked);
}

static uint64_t sign_of(const void *p)
{
    return (uint64_t)(uintptr_t)p ^ UINT64_C(0x9e3779b97f4a7c15);
}

static void *count(void *p, size_t size)
{
    struct asked a = {size, sign_of(p)};

    if (p) {
        memcpy(end_of(p), &a, sizeof(a));
        atomic_fetch_add(&heap, (int64_t)size);
    }
    return p;
}

static void uncount(void *p)
{
    struct asked a;

    if (p && malloc_usable_size(p) >= sizeof(a)) { /* else the C library's, by a sanitizer */
        memcpy(&a, end_of(p), sizeof(a));
        atomic_fetch_sub(&heap, a.sign == sign_of(p) ? (int64_t)a.size : 0);
    }
}

void *__wrap_malloc(size_t size)
{
    return count(__real_malloc(size + sizeof(struct asked)), size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return count(__real_calloc(1, n * size + sizeof(struct asked)), n * size);
}

void *__wrap_realloc(void *p, size_t size)
{
    uncount(p);
    return count(__real_realloc(p, size + sizeof(struct asked)), size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    size_t room = alignment > sizeof(struct asked) ? alignment : sizeof(struct asked);

    return count(__real_aligned_alloc(alignment, size + room), size);
}

void __wrap_free(void *p)
{
    uncount(p);
    __real_free(p);
}

struct setting {
    const char *kv;
    const char *overlay; /* of cache_model.gguf, or NULL */
    int32_t ctx;
    int32_t n_seqs;
    int32_t batch_tokens;
    bool keep_prefixes;
    int32_t n_draft;
    bool experts_mapped;
    int32_t prompt_rows;
};

static const struct setting settings[] = {
    {"full", NULL, 128, 1, 0},
    {"full", NULL, 100, 3, 0},
    {"full", NULL, 512, 0, 0, false, 15},
    {"h2o:50%", NULL, 512, 0, 0},
    {"full", NULL, 512, 2, 0, true},
    {"full", NULL, 512, 1, 0, true, 15},
    {"full", NULL, 1000, 5, 0, false, 1},
    {"fp8", NULL, 128, 40, 0, false, 63},
    {"f32", NULL, 128, 2, 700},
    {"full", NULL, 8192, 4, 0}, /* pieces of more than 2 MiB, rounded otherwise */
    {"fp8", NULL, 128, 2, 0},
    {"fp8+keyformer:50%,prefill=dense,min=2", NULL, 128, 1, 0},
    {"fp8+keyformer:50%,prefill=layered,min=2", NULL, 1000, 5, 0},
    {"fp8+keyformer:50%,prefill=bounded,chunk=16,min=2", NULL, 128, 3, 0},
    {"keyformer:20,score=shared", NULL, 128, 2, 0},
    {"sinks:2+window:20", NULL, 128, 2, 0},
    {"recency:30,pos=new", NULL, 128, 2, 0},
    {"fp8+expected:50%,min=8", NULL, 1000, 5, 0},
    {"expected:30,prefill=bounded,chunk=16+sparq:r=4,k=9,mean=on", NULL, 128, 3, 0},
    {"full=60%;fp8+h2o:50%ctx=40%", NULL, 512, 4, 0},
    {"full,chunk=2048", NULL, 4096, 2, 0},
    {"full", "cache_swiftkv_2_1.gguf", 128, 2, 0},
    {"full", "cache_swiftkv_2_4.gguf", 128, 2, 0},
    {"full", "cache_swiftkv_2_3_outputs.gguf", 128, 2, 0},
    {"fp8+keyformer:50%,min=2,observe=8", "cache_swiftkv_2_3.gguf", 256, 3, 0},
    {"full", "cache_wide_2_2.gguf", 128, 2, 0},
    {"kv8+keyformer:50%,min=2,observe=8", "cache_wide_4_1.gguf", 256, 3, 0},
    {"sparq:r=4,k=9,mean=on,layout=rank8", NULL, 128, 2, 0},
    {"h2o:50%+sparq:r=4,k=9,mean=on", "cache_swiftkv_2_3.gguf", 256, 3, 0},
    {"infinigen:count=9", "cache_skew.gguf", 256, 3, 0},
    {"infinigen:count=9,pool=60%ctx", "cache_skew.gguf", 256, 3, 0},
    {"infinigen:count=9,pool=disk", "cache_skew.gguf", 256, 3, 0},
    {"infinigen:count=9,pool=60%ctx,full=spill", "cache_skew.gguf", 256, 3, 0},
    {"infinigen:count=9,partial8=on,pool=disk", "cache_skew.gguf", 256, 3, 0},
    {"full=50%;infinigen:count=9,pool=disk=50%", "cache_skew.gguf", 4096, 2, 0},
    {"fp8+kvzap:50%,min=8", "cache_scores.gguf", 1000, 5, 0},
    {"kvzap:30,prefill=bounded,chunk=16", "cache_scores.gguf", 128, 3, 0},
    {"snapkv:50%,heads=adaptive", NULL, 1024, 3, 0},
    {"full", NULL, 4096, 2, 0, .prompt_rows = 2048},
    {"kv8", "cache_swiftkv_2_1.gguf", 4096, 2, 0, true, 15, .prompt_rows = 2048},
    {"full=60%;fp8+h2o:50%ctx=40%", NULL, 4096, 2, 0, .prompt_rows = 2048},
};

static struct engine *create(const struct setting *s, const char *model, const char *backend)
{
    const char *overlays[1] = {s->overlay ? run_data(s->overlay) : NULL};
    struct engine_config c;
    struct engine *e = NULL;
    struct error err = {0};

    engine_config_default(&c);
    c.model_path = model;
    c.overlay_paths = overlays;
    c.n_overlays = s->overlay ? 1 : 0;
    c.backend = backend;
    c.n_threads = 1;
    c.ctx = s->ctx;
    c.n_seqs = s->n_seqs;
    c.batch_tokens = s->batch_tokens;
    c.keep_prefixes = s->keep_prefixes;
    c.n_draft = s->n_draft;
    c.prompt_rows = s->prompt_rows;
    c.kv = s->kv;
    c.experts = s->experts_mapped ? ENGINE_EXPERTS_MAPPED : ENGINE_EXPERTS_HELD;
    c.tier_dir = "/tmp";
    c.extra_bytes = 12345;
    c.extra_seq_bytes = 100;
    c.memory_bytes = UINT64_C(1) << 40;
    cr_assert_eq(engine_create(&c, NULL, NULL, &e, &err), 0, "%s: %s", s->kv, err.text);
    return e;
}

/* The engine's own structs (the policies that status tells of take 5 KiB, the cpu backend's table
 * of kernels more than 1) and the files' paths. */
enum { HEAP_SLACK = 22 << 10 };

/* Returns how many bytes more lie on the heap than planned; 0 where not all is heap. */
static int64_t compare(const struct setting *s, const char *model, const char *backend)
{
    uint64_t mapped = memory_mapped_bytes();
    int64_t held = atomic_load(&heap);
    struct engine *e = create(s, model, backend);
    const struct plan *p = engine_plan_of(e);
    uint64_t said = p->total_bytes - p->lane_bytes;
    int64_t more = 0;

    mapped = memory_mapped_bytes() - mapped;
    held = atomic_load(&heap) - held;
    cr_assert_eq(p->lane_bytes, 12345 + 100 * (uint64_t)p->n_seqs);
    cr_assert(s->prompt_rows == 0 || p->prompt_rows == s->prompt_rows, "%s", s->kv);
    cr_assert_eq(mapped, said - p->index_bytes, "%s, %s, %s: %zu bytes planned, %zu taken", backend,
                 s->kv, s->overlay ? s->overlay : "no overlay", (size_t)(said - p->index_bytes),
                 (size_t)mapped);
    if (mapped < (2 << 20)) { /* else some of it is no heap */
        more = held - (int64_t)said;
        cr_assert(more >= 0 && more <= HEAP_SLACK, "%s: %zu bytes planned, %zd on the heap", s->kv,
                  (size_t)said, (ssize_t)held);
    }
    engine_destroy(e);
    return more;
}

Test(plan_taken, to_the_byte)
{
    static const char *const backends[] = {"ref", "cpu"};
    char model[512];

    (void)snprintf(model, sizeof(model), "%s", run_data("cache_model.gguf"));
    for (int b = 0; b < 2; b++) {
        for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
            (void)compare(&settings[i], model, backends[b]);
        }
    }
}

Test(plan_taken, experts_that_stay_in_the_file)
{
    char model[512];
    uint64_t weights = 0;

    for (int i = 0; i < 4; i++) {
        const struct setting s = {"full", NULL, 128, 2, 0, .experts_mapped = i % 2 > 0};

        (void)snprintf(model, sizeof(model), "%s",
                       run_data(i < 2 ? "arch_qwen3moe.gguf" : "arch_nemotron_h_moe.gguf"));
        struct engine *e = create(&s, model, "cpu");
        const struct plan *p = engine_plan_of(e);

        cr_assert_eq(p->file_expert_bytes > 0, i % 2 > 0);
        cr_assert_eq(p->experts_bytes > 0, i % 2 == 0);
        cr_assert_eq(p->mapped_bytes, 0, "what is read and let go is in no sum");
        cr_assert(i % 2 == 0 || p->weights_bytes < weights);
        weights = p->weights_bytes;
        engine_destroy(e);
        (void)compare(&s, model, "cpu");
    }
}

static uint64_t total(const char *kv, int32_t n_draft)
{
    const struct setting s = {kv, NULL, 512, 2, 0, false, n_draft};
    char model[512];

    (void)snprintf(model, sizeof(model), "%s", run_data("cache_model.gguf"));
    struct engine *e = create(&s, model, "cpu");
    uint64_t bytes = engine_plan_of(e)->total_bytes;

    engine_destroy(e);
    return bytes;
}

/* A policy under which no row can be drafted takes no memory for it; one part of a mix is enough.
 */
Test(plan_taken, drafts_only_where_they_can_be_made)
{
    static const struct {
        const char *kv;
        bool drafts;
    } cases[] = {
        {"full", true},
        {"fp8", true},
        {"full=60%;fp8+h2o:50%ctx=40%", true},
        {"sinks:2+window:20", false},
        {"h2o:50%", false},
        {"fp8+keyformer:50%,min=2", false},
        {"recency:30,pos=new", false},
        {"sparq:r=4,k=9", false},
        {"topv:20", false},
        {"window:20=50%;h2o:24=50%", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_assert_eq(total(cases[i].kv, 15) > total(cases[i].kv, 0), cases[i].drafts, "%s",
                     cases[i].kv);
    }
}

/* A table that stays in the file is told apart; what may be resident of it counts as a map. */
Test(plan_taken, per_layer_embeddings_stay_in_the_file)
{
    const struct setting s = {"full", NULL, 128, 1, 0};
    char model[512];

    (void)snprintf(model, sizeof(model), "%s", run_data("arch_gemma4_e.gguf"));
    struct engine *e = create(&s, model, "cpu");
    const struct plan *p = engine_plan_of(e);

    cr_assert_gt(p->rows_bytes, 40000);
    cr_assert_eq(p->mapped_bytes, p->rows_bytes, "a table this small may be resident whole");
    cr_assert_lt(p->weights_bytes + p->rows_bytes, 345312, "each is counted once");
    engine_destroy(e);
    (void)snprintf(model, sizeof(model), "%s", run_data("arch_gemma4_dense.gguf"));
    e = create(&s, model, "cpu");
    cr_assert_eq(engine_plan_of(e)->rows_bytes, 0);
    engine_destroy(e);
}

Test(plan_taken, an_overlays_index_counts)
{
    const struct setting without = {"full", NULL, 128, 2, 0};
    const struct setting with = {"full", "cache_swiftkv_2_1.gguf", 128, 2, 0};
    char model[512];

    (void)snprintf(model, sizeof(model), "%s", run_data("cache_model.gguf"));
    cr_assert_lt(compare(&with, model, "ref"), compare(&without, model, "ref") + 1000,
                 "its index has 1528 bytes");
}

/* Weights of more than 2 MiB, and a large tokenizer. */
Test(plan_taken, a_real_model)
{
    static const struct setting real[] = {
        {"full", NULL, 2048, 4, 0, false, 15},
        {"fp8+keyformer:50%", NULL, 2048, 4, 0},
    };
    const char *model = getenv("PIPIT_SMOLLM2");

    if (!model) {
        cr_skip_test("PIPIT_SMOLLM2 is not set");
    }
    (void)compare(&real[0], model, "cpu");
    (void)compare(&real[1], model, "cpu");
}

/* A sliding window's rings, layers of experts, a file with a tokenizer, recurrent layers' states
 * and checkpoints. */
Test(plan_taken, other_models)
{
    static const char *const models[] = {
        "arch_gemma3.gguf",        "arch_qwen3.gguf",      "arch_qwen3moe.gguf",
        "arch_qwen2moe.gguf",      "arch_gpt_oss.gguf",    "arch_glm4moe.gguf",
        "stories260K.gguf",        "arch_qwen35.gguf",     "arch_qwen35_list.gguf",
        "arch_qwen35moe.gguf",     "arch_lfm2.gguf",       "arch_gemma4_moe.gguf",
        "arch_granitehybrid.gguf", "arch_nemotron_h.gguf", "arch_nemotron_h_moe.gguf"};
    static const int more[] = {3, 4, 11, 14, 17};
    char model[512];

    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        for (size_t k = 0; i > 4 && k < sizeof(more) / sizeof(more[0]); k++) {
            (void)snprintf(model, sizeof(model), "%s", run_data(models[i]));
            (void)compare(&settings[more[k]], model, "cpu");
        }
        (void)snprintf(model, sizeof(model), "%s", run_data(models[i]));
        (void)compare(&settings[1], model, "ref");
        (void)compare(&settings[1], model, "cpu");
        (void)compare(&settings[6], model, "cpu");
    }
}

/* All layers are recurrent; with kept prefixes, whose index has a size of its own there, and in a
 * context that only it and the tokens' list grow with. */
Test(plan_taken, a_model_without_keys)
{
    static const int some[] = {0, 1, 2, 4, 5, 6, 7, 9, 10, 20};
    const struct setting longest = {"full", NULL, 1 << 17, 2, 0, true};
    char model[512];

    for (size_t k = 0; k < sizeof(some) / sizeof(some[0]); k++) {
        (void)snprintf(model, sizeof(model), "%s", run_data("arch_mamba2.gguf"));
        (void)compare(&settings[some[k]], model, "ref");
        (void)compare(&settings[some[k]], model, "cpu");
    }
    (void)compare(&longest, model, "cpu");
}

static uint64_t resident(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[128];
    unsigned long kb = 0;

    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "RssAnon: %lu kB", &kb) == 1) {
            break;
        }
    }
    if (f) {
        (void)fclose(f);
    }
    return (uint64_t)kb << 10;
}

static void near_plan(const char *when, const struct plan *p, uint64_t before)
{
    double said = (double)(p->total_bytes - p->lane_bytes);
    double is = (double)(resident() - before);

    cr_assert_float_eq(is / said, 1.0, 0.02, "%s: %.0f bytes planned, %.0f resident", when, said,
                       is);
}

/* 40 MiB of cache and scratch. The same is done with a real model by bench/memory.sh. */
Test(plan_taken, is_resident_from_start_to_end)
{
    const struct setting s = {"fp8+keyformer:50%", NULL, 65536, 4, 0};
    int32_t ids[600];
    struct run r[4];
    char model[512];

#if SANITIZED
    cr_skip_test("a sanitizer's own memory is in the way");
#endif
    (void)snprintf(model, sizeof(model), "%s", run_data("cache_model.gguf"));
    (void)malloc_trim(0);
    uint64_t before = resident();
    struct engine *e = create(&s, model, "cpu");
    const struct plan *p = engine_plan_of(e);

    cr_assert_gt(p->total_bytes, 30 << 20, "large enough for 2 %% to mean something");
    near_plan("loaded", p, before);
    run_tokens(51, engine_info(e)->n_vocab, ids, 600);
    for (int i = 0; i < 4; i++) {
        struct engine_request q = run_request(ids, 400 + 50 * i, 100);

        q.logits_rows = 0;
        run_submit(e, &q, &r[i]);
    }
    for (int n = 0; run_step(e) > 0; n++) {
        if (n % 32 == 0) {
            near_plan("running", p, before);
        }
    }
    near_plan("idle again", p, before);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(r[i].n_new, 100);
        run_clear(&r[i]);
    }
    engine_destroy(e);
}

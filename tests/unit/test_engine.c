/* SPDX-License-Identifier: Apache-2.0 */
/* engine/engine.h: a request's life on small models. Results that must not depend on company, on
 * chunks or on interruptions are compared to the bit. */

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/kv/plan/plan.h"
#include "tests/turn.h"
#include "tests/unit/engine_run.h"

static const char *const backends[] = {"ref", "cpu"};

#define FOR_BACKENDS(suite, name)                                                                  \
    ParameterizedTestParameters(suite, name)                                                       \
    {                                                                                              \
        static int index[2] = {0, 1};                                                              \
        return cr_make_param_array(int, index, 2);                                                 \
    }                                                                                              \
    ParameterizedTest(int *be, suite, name)

FOR_BACKENDS(engine, tells_the_story)
{
    struct engine *e = run_engine("stories260K.gguf", backends[*be], 512, 1, NULL);
    int32_t bos = 1;
    struct engine_request q = run_request(&bos, 1, 200);
    struct run r;
    FILE *f = fopen(run_data("stories260K.ids"), "r");
    int32_t id;

    cr_assert(f);
    run_submit(e, &q, &r);
    run_all(e);
    cr_assert_eq(r.n_new, 200);
    cr_assert_eq(r.reason, ENGINE_LENGTH);
    for (int i = 0; i < 200 && fscanf(f, "%d", &id) == 1; i++) {
        cr_assert_eq(r.tokens[i], id, "token %d is %d, not %d", i, r.tokens[i], id);
    }
    (void)fclose(f);
    cr_assert_eq(r.usage.n_prompt, 1);
    cr_assert_eq(r.usage.n_new, 200);
    cr_assert_gt(r.usage.kv_bytes, 0);
    run_clear(&r);
    engine_destroy(e);
}

enum { N = 5 };

/* Texts of different lengths, some longer than a chunk; the last one is scored. */
static void submit_many(struct engine *e, struct run *r, int only, const char *kv)
{
    static const int32_t n_prompt[N] = {3, 40, 100, 7, 60};
    int32_t ids[128];

    for (int i = 0; i < N; i++) {
        if (only >= 0 && i != only) {
            continue;
        }
        run_tokens((uint64_t)i + 10, engine_info(e)->n_vocab, ids, n_prompt[i]);
        struct engine_request q = run_request(ids, n_prompt[i], 12);

        q.kv = kv;
        q.principal = (uint64_t)i % 2;
        if (i == N - 1) {
            q.kind = ENGINE_SCORE;
            q.logits_rows = 0;
            q.score_first = 5;
        }
        run_submit(e, &q, &r[i]);
    }
}

static void company(const char *backend, const char *model, const char *overlay, const char *kv)
{
    if (!takes_turn()) {
        return;
    }

    struct run alone[N];
    struct run together[N];
    struct engine *e = run_engine_overlay(model, overlay, backend, 128, N, kv);

    for (int i = 0; i < N; i++) {
        submit_many(e, alone, i, NULL);
        run_all(e);
    }
    submit_many(e, together, -1, NULL);
    run_all(e);
    for (int i = 0; i < N; i++) {
        cr_assert(alone[i].done && together[i].done);
        cr_assert(run_same(&alone[i], &together[i]), "%s %s: text %d differs in company", model, kv,
                  i);
        cr_assert_eq(alone[i].usage.n_evicted, together[i].usage.n_evicted);
        run_clear(&alone[i]);
        run_clear(&together[i]);
    }
    engine_destroy(e);
}

FOR_BACKENDS(engine, computes_the_same_alone_and_in_company)
{
    const char *b = backends[*be];

    company(b, "arch_llama.gguf", NULL, "full,chunk=16");
    company(b, "arch_gemma3.gguf", NULL, "full");
    company(b, "arch_qwen3.gguf", NULL, "fp8+full");
    company(b, "arch_qwen35.gguf", NULL, "full,chunk=16");
    company(b, "arch_qwen35.gguf", NULL, "kv8+keyformer:20,chunk=16");
    company(b, "arch_qwen35_list.gguf", NULL, "window:20,chunk=16");
    company(b, "arch_qwen35moe.gguf", NULL, "full");
    company(b, "arch_lfm2.gguf", NULL, "fp8+full,chunk=16");
    company(b, "arch_granitehybrid.gguf", NULL, "full,chunk=16");
    company(b, "arch_nemotron_h.gguf", NULL, "keyformer:20,chunk=16");
    company(b, "arch_nemotron_h_moe.gguf", NULL, "fp8+full,chunk=16");
    company(b, "arch_mamba2.gguf", NULL, "full,chunk=16");
    company(b, "cache_model.gguf", NULL, "keyformer:20,recent=30%,chunk=32");
    company(b, "cache_model.gguf", NULL, "sinks:2+h2o:24,prefill=bounded,chunk=8");
    company(b, "cache_model.gguf", NULL, "recency:20");
    company(b, "cache_model.gguf", NULL, "kv8+expected:20,every=5,chunk=32");
    company(b, "arch_gemma3.gguf", NULL, "expected:20,every=5,chunk=16,prefill=bounded");
    company(b, "cache_model.gguf", "cache_scores.gguf", "kv8+kvzap:20,window=5,chunk=32");
    company(b, "cache_model.gguf", "cache_scores.gguf", "kvzap:20,chunk=8,prefill=bounded");
    company(b, "cache_model.gguf", "cache_swiftkv_2_3.gguf",
            "kv8+keyformer:20,noise=fresh,chunk=16,prefill=dense");
}

FOR_BACKENDS(engine, interrupted_steps_change_nothing)
{
    static const char *const kv[] = {"full,chunk=16", "keyformer:20,recent=30%,chunk=16",
                                     "window:20,chunk=16", "expected:20,every=3,chunk=16"};

    for (size_t k = 0; k < 2 * sizeof(kv) / sizeof(kv[0]); k++) {
        struct run plain[N];
        struct run broken[N];
        struct engine *e = run_engine(k % 2 ? "arch_qwen35.gguf" : "cache_model.gguf",
                                      backends[*be], 128, N, kv[k / 2]);
        int n = 1;

        submit_many(e, plain, -1, NULL);
        run_all(e);
        submit_many(e, broken, -1, NULL);
        for (int i = 0; n > 0; i++) {
            if (i % 2 == 0) {
                engine_interrupt(e); /* the step does nothing, or stops at its next operation */
            }
            n = run_step(e);
            cr_assert_lt(i, 10000);
        }
        for (int i = 0; i < N; i++) {
            cr_assert(broken[i].done);
            cr_assert(run_same(&plain[i], &broken[i]), "%s: text %d differs", kv[k], i);
            run_clear(&plain[i]);
            run_clear(&broken[i]);
        }
        engine_destroy(e);
    }
}

Test(engine, chunks_change_nothing_on_ref)
{
    int32_t ids[120];
    struct run whole;
    struct engine *e = run_engine("arch_gemma3.gguf", "ref", 256, 1, "f32");

    run_tokens(3, engine_info(e)->n_vocab, ids, 120);
    struct engine_request q = run_request(ids, 120, 8);

    run_submit(e, &q, &whole);
    run_all(e);
    cr_assert_eq(whole.n_progress, 1);
    for (int chunk = 1; chunk < 120; chunk += 17) {
        struct run r;
        char kv[64];

        (void)snprintf(kv, sizeof(kv), "f32+full,chunk=%d", chunk);
        q.kv = kv;
        run_submit(e, &q, &r);
        run_all(e);
        cr_assert_eq(r.n_progress, (120 + chunk - 1) / chunk);
        cr_assert(run_same(&whole, &r), "chunks of %d differ", chunk);
        run_clear(&r);
    }
    run_clear(&whole);
    engine_destroy(e);
}

/* A budget that nothing exceeds: no policy may change a bit. */
FOR_BACKENDS(engine, ample_budgets_equal_the_full_cache)
{
    static const char *const kv[] = {"window:110",         "h2o:110",
                                     "keyformer:110",      "recency:110",
                                     "sinks:4+window:106", "keyformer:110,prefill=bounded,chunk=8"};
    int32_t ids[90];
    struct run full;
    struct engine *e = run_engine("cache_model.gguf", backends[*be], 128, 1, "full,chunk=8");

    run_tokens(4, engine_info(e)->n_vocab, ids, 90);
    struct engine_request q = run_request(ids, 90, 20);

    run_submit(e, &q, &full);
    run_all(e);
    engine_destroy(e);
    for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
        struct run r;

        e = run_engine("cache_model.gguf", backends[*be], 128, 1, kv[i]);
        run_submit(e, &q, &r);
        run_all(e);
        cr_assert(strcmp(backends[*be], "ref") != 0 || run_same(&full, &r), "%s differs", kv[i]);
        cr_assert_eq(memcmp(full.tokens, r.tokens, sizeof(r.tokens)), 0, "%s differs", kv[i]);
        cr_assert_eq(r.usage.n_evicted, 0);
        run_clear(&r);
        engine_destroy(e);
    }
    run_clear(&full);
}

static void generate(const char *backend, const char *model, const char *overlay, const char *kv,
                     struct run *r)
{
    int32_t ids[110];
    struct engine *e = run_engine_overlay(model, overlay, backend, 128, 2, kv);
    struct engine_counters c;

    run_tokens(21, engine_info(e)->n_vocab, ids, 110);
    struct engine_request q = run_request(ids, 110, 18);

    run_submit(e, &q, r);
    run_all(e);
    cr_assert_eq(r->progress, 110);
    engine_counters(e, &c);
    cr_assert_eq(c.kv_bytes_used, 0);
    engine_destroy(e);
}

FOR_BACKENDS(engine, threads_change_nothing)
{
    struct run one;
    struct run three;

    generate(backends[*be], "cache_model.gguf", "cache_swiftkv_2_3.gguf", "fp8+h2o:40", &one);
    run_threads = 3;
    generate(backends[*be], "cache_model.gguf", "cache_swiftkv_2_3.gguf", "fp8+h2o:40", &three);
    cr_assert(run_same(&one, &three));
    run_clear(&one);
    run_clear(&three);
}

/* Layer by layer or all layers at once: the same bits. */
FOR_BACKENDS(engine, layered_equals_dense)
{
    static const struct {
        const char *model;
        const char *overlay;
        const char *kv;
    } cases[] = {
        {"cache_model.gguf", NULL, "keyformer:20,recent=30%,chunk=32"},
        {"cache_model.gguf", NULL, "fp8+sinks:2+window:30,chunk=512"},
        {"cache_model.gguf", NULL, "keyformer:20,mode=as-shipped,chunk=32"},
        {"cache_model.gguf", NULL, "recency:20,observe=40,chunk=32"},
        {"cache_model.gguf", "cache_swiftkv_2_1.gguf", "h2o:20,observe=50,chunk=32"},
        {"cache_model.gguf", "cache_swiftkv_2_3.gguf", "keyformer:20,noise=fresh,chunk=16"},
        {"cache_model.gguf", "cache_swiftkv_2_4.gguf", "window:20,chunk=32"},
        {"cache_model.gguf", NULL, "fp8+expected:20,every=5,chunk=32"},
        {"cache_model.gguf", "cache_scores.gguf", "fp8+kvzap:20,window=4,chunk=32"},
        {"arch_gemma3.gguf", NULL, "h2o:50,chunk=32"},
        {"arch_gemma3.gguf", NULL, "expected:50,every=5,chunk=32"},
        {"arch_qwen35.gguf", NULL, "h2o:50,chunk=32"},
        {"arch_qwen35_list.gguf", NULL, "keyformer:20,chunk=32"},
        {"arch_lfm2.gguf", NULL, "window:20,chunk=32"},
        {"arch_nemotron_h.gguf", NULL, "h2o:50,chunk=32"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct run dense;
        struct run layered;
        char kv[128];

        (void)snprintf(kv, sizeof(kv), "%s,prefill=dense", cases[i].kv);
        generate(backends[*be], cases[i].model, cases[i].overlay, kv, &dense);
        (void)snprintf(kv, sizeof(kv), "%s,prefill=layered", cases[i].kv);
        generate(backends[*be], cases[i].model, cases[i].overlay, kv, &layered);
        cr_assert(run_same(&dense, &layered), "%s differs", kv);
        cr_assert_eq(dense.usage.n_evicted, layered.usage.n_evicted);
        cr_assert_eq(dense.usage.n_slots, layered.usage.n_slots);
        run_clear(&dense);
        run_clear(&layered);
    }
}

Test(engine, evicting_policies_hold_their_budget)
{
    int32_t ids[100];
    struct run r;
    struct engine *e = run_engine("cache_model.gguf", "ref", 128, 1, "h2o:20");
    struct engine_counters c;

    run_tokens(5, engine_info(e)->n_vocab, ids, 100);
    struct engine_request q = run_request(ids, 100, 20);

    run_submit(e, &q, &r);
    run_all(e);
    /* Each store and group holds 20 slots in one page; 119 tokens were fed. */
    int64_t groups = (int64_t)(r.usage.n_slots / 20);

    cr_assert_eq(r.usage.n_slots, groups * 20);
    cr_assert_eq(r.usage.n_evicted, groups * (119 - 20));
    cr_assert_lt(r.usage.kv_bytes, r.usage.kv_bytes_full);
    engine_counters(e, &c);
    cr_assert_eq(c.kv_bytes_used, 0, "all pages are free again");
    cr_assert_eq(c.n_evicted, (uint64_t)r.usage.n_evicted);
    run_clear(&r);
    engine_destroy(e);
}

/* The authors' code never changes its key tokens; the paper's algorithm does. With damping the
 * latter lets go of what only the prompt wanted; with a damping of 1 and few new tokens both may
 * agree, which is why that is no test. */
Test(engine, as_shipped_is_frozen_and_paper_is_not)
{
    struct run frozen;
    struct run damped;
    struct run paper;

    generate("ref", "cache_model.gguf", NULL, "keyformer:20,mode=as-shipped,noise=once", &frozen);
    generate("ref", "cache_model.gguf", NULL, "keyformer:20,mode=as-shipped,noise=once,damp=0.5",
             &damped);
    generate("ref", "cache_model.gguf", NULL, "keyformer:20,noise=once,damp=0.5", &paper);
    cr_assert(run_same(&frozen, &damped), "nothing is scored after the prompt");
    cr_assert_not(run_same(&frozen, &paper));
    cr_assert_eq(frozen.usage.n_slots, paper.usage.n_slots);
    run_clear(&frozen);
    run_clear(&damped);
    run_clear(&paper);
}

Test(engine, constant_noise_chooses_as_none)
{
    int32_t ids[100];
    struct run a;
    struct run b;
    struct engine *e =
        run_engine("cache_model.gguf", "ref", 128, 2, "keyformer:20,noise=none,tau=1..2");

    run_tokens(6, engine_info(e)->n_vocab, ids, 100);
    struct engine_request q = run_request(ids, 100, 25);

    run_submit(e, &q, &a);
    q.kv = "keyformer:20,noise=const,tau=1..2";
    run_submit(e, &q, &b);
    run_all(e);
    cr_assert(run_same(&a, &b));
    run_clear(&a);
    run_clear(&b);
    engine_destroy(e);
}

Test(engine, two_policies_at_once)
{
    int32_t ids[100];
    struct run a;
    struct run b;
    struct engine *e =
        run_engine("cache_model.gguf", "ref", 128, 2, "full=60%;fp8+keyformer:20=40%");

    run_tokens(7, engine_info(e)->n_vocab, ids, 100);
    struct engine_request q = run_request(ids, 100, 10);

    run_submit(e, &q, &a);
    q.kv = "fp8+keyformer:20";
    run_submit(e, &q, &b);
    run_all(e);
    cr_assert_eq(a.usage.n_evicted, 0);
    cr_assert_gt(b.usage.n_evicted, 0);
    cr_assert_lt(b.usage.kv_bytes, a.usage.kv_bytes / 2);
    run_clear(&a);
    run_clear(&b);

    struct error err = {0};
    uint64_t h;

    q.kv = "kv8";
    cr_assert_eq(engine_submit(e, &q, &h, &err), -ENOMEM);
    cr_assert(strstr(err.text, "no pages with keys in i8 and values"), "%s", err.text);
    err.code = 0;
    q.kv = "streaming:64";
    cr_assert_eq(engine_submit(e, &q, &h, &err), -ENOMEM);
    cr_assert(strstr(err.text, "without positions (streaming"), "%s", err.text);
    err.code = 0;
    q.kv = "fp8+window:120";
    cr_assert_eq(engine_submit(e, &q, &h, &err), -ENOMEM);
    err.code = 0;
    q.kv = "fp8+bogus";
    cr_assert_eq(engine_submit(e, &q, &h, &err), -EINVAL);
    cr_assert(strstr(err.text, "character 5"), "%s", err.text);
    engine_destroy(e);
}

/* 16 deep layers or 1, with or without skipping: the last logits are those of all rows running. */
Test(engine, swiftkv_skips_without_a_trace)
{
    int32_t ids[80];
    struct run skipped;
    struct run scored;
    struct engine *e =
        run_engine_overlay("cache_model.gguf", "cache_swiftkv_2_3.gguf", "ref", 128, 1, "f32");

    run_tokens(8, engine_info(e)->n_vocab, ids, 80);
    struct engine_request q = run_request(ids, 79, 1);

    q.forced = ids + 79; /* its distribution is what a skipped prompt gives */
    q.n_forced = 1;
    run_submit(e, &q, &skipped);
    run_all(e);
    q = run_request(ids, 80, 0); /* scoring from position 0 runs all rows through all layers */
    q.kind = ENGINE_SCORE;
    q.logits_rows = 0;
    run_submit(e, &q, &scored);
    run_all(e);
    cr_assert_eq(scored.n_scored, 79);
    cr_assert_eq(skipped.logprobs[0], scored.logprobs[78], "%a %a", (double)skipped.logprobs[0],
                 (double)scored.logprobs[78]);
    run_clear(&skipped);
    run_clear(&scored);
    engine_destroy(e);
}

Test(engine, scores_through_a_window_of_rows)
{
    int32_t ids[60];
    struct run whole;
    struct run windowed;
    struct engine *e = run_engine("arch_llama.gguf", "ref", 128, 2, "full,chunk=20");

    run_tokens(9, engine_info(e)->n_vocab, ids, 60);
    struct engine_request q = run_request(ids, 60, 0);

    q.kind = ENGINE_SCORE;
    q.score_first = 3;
    q.logits_rows = 0;
    run_submit(e, &q, &whole);
    run_all(e);
    q.logits_rows = 7;
    run_submit(e, &q, &windowed);
    run_all(e);
    cr_assert_eq(windowed.n_scored, 0, "no credit, no rows");
    cr_assert_not(windowed.done);
    for (int64_t credit = 7; !windowed.done; credit += 3) {
        cr_assert_eq(engine_score_credit(e, windowed.handle, credit), 0);
        run_all(e);
        cr_assert_eq(windowed.n_scored, credit < 56 ? credit : 56);
    }
    cr_assert_eq(memcmp(whole.logprobs, windowed.logprobs, sizeof(whole.logprobs)), 0);
    run_clear(&whole);
    run_clear(&windowed);
    engine_destroy(e);
}

/* A scored text whose reader has no room holds up other such texts, and nobody else. */
Test(engine, a_stalled_reader_holds_up_nobody_else)
{
    int32_t ids[60];
    struct run stalled;
    struct run second;
    struct run plain;
    struct engine *e = run_engine("arch_llama.gguf", "ref", 128, 3, NULL);

    run_tokens(15, engine_info(e)->n_vocab, ids, 60);
    struct engine_request q = run_request(ids, 60, 0);

    q.kind = ENGINE_SCORE;
    q.logits_rows = 7;
    run_submit(e, &q, &stalled);
    run_submit(e, &q, &second);
    q = run_request(ids, 60, 5);
    run_submit(e, &q, &plain);
    run_all(e);
    cr_assert(plain.done && !stalled.done && !second.done);
    cr_assert_eq(engine_cancel(e, stalled.handle, ENGINE_CANCELLED), 0);
    (void)run_step(e);
    cr_assert(stalled.done);
    cr_assert_eq(engine_score_credit(e, second.handle, 7), 0);
    run_all(e);
    cr_assert_eq(second.n_scored, 7);
    run_clear(&stalled);
    run_clear(&second);
    run_clear(&plain);
    engine_destroy(e);
}

Test(engine, forced_tokens_replay_exactly)
{
    int32_t ids[50];
    struct run first;
    struct run again;
    struct engine *e =
        run_engine("cache_model.gguf", "ref", 128, 1, "keyformer:20,recent=30%,chunk=16");

    run_tokens(11, engine_info(e)->n_vocab, ids, 50);
    struct engine_request q = run_request(ids, 50, 30);

    q.sampler.temperature = 1;
    q.sampler.seed = 99;
    q.sampler.penalty_window = 64;
    q.sampler.repeat_penalty = 1.1f;
    run_submit(e, &q, &first);
    run_all(e);
    q.forced = first.tokens;
    q.n_forced = 17;
    q.report_forced = false;
    run_submit(e, &q, &again);
    run_all(e);
    cr_assert_eq(again.n_new, 30 - 17);
    cr_assert_eq(memcmp(again.tokens, first.tokens + 17, 13 * sizeof(int32_t)), 0);
    run_clear(&first);
    run_clear(&again);
    engine_destroy(e);
}

Test(engine, cancels_waiting_and_running)
{
    int32_t ids[100];
    struct run r[3];
    struct engine *e = run_engine("cache_model.gguf", "ref", 128, 1, NULL);
    struct engine_counters c;

    run_tokens(12, engine_info(e)->n_vocab, ids, 100);
    struct engine_request q = run_request(ids, 60, 50);

    for (int i = 0; i < 3; i++) {
        run_submit(e, &q, &r[i]);
    }
    (void)run_step(e);
    engine_counters(e, &c);
    cr_assert_eq(c.n_running, 1);
    cr_assert_eq(c.n_queued, 2);
    cr_assert_eq(engine_cancel(e, r[1].handle, ENGINE_CANCELLED), 0);
    (void)run_step(e);
    cr_assert(r[1].done && r[1].reason == ENGINE_CANCELLED && r[1].n_new == 0);
    cr_assert_eq(engine_cancel(e, r[0].handle, ENGINE_STOP), 0);
    run_all(e);
    cr_assert(r[0].done && r[0].reason == ENGINE_STOP && r[0].n_new < 50);
    cr_assert(r[2].done && r[2].reason == ENGINE_LENGTH && r[2].n_new == 50);
    cr_assert_eq(engine_cancel(e, r[2].handle, ENGINE_STOP), -ENOENT);
    engine_counters(e, &c);
    cr_assert_eq(c.kv_bytes_used, 0);
    for (int i = 0; i < 3; i++) {
        run_clear(&r[i]);
    }
    engine_destroy(e);
}

static void *interrupt_soon(void *arg)
{
    struct engine *e = arg;
    static int turn;
    struct timespec t = {.tv_nsec = 1000 * (20 + 67 * (turn++ % 24))};

    (void)nanosleep(&t, NULL);
    engine_interrupt(e);
    return NULL;
}

/* A long prompt joins a sequence that is answering, is stopped somewhere in its batch, and
 * cancelled: the other one gets what it would have got. */
static void cancel_somewhere(struct engine *e, const struct run *plain,
                             const struct engine_request *q, int32_t *ids)
{
    struct engine_request longer = *q;
    struct run kept;
    struct run gone;
    pthread_t thread;

    run_submit(e, q, &kept);
    for (int i = 0; i < 5; i++) {
        (void)run_step(e);
    }
    longer.prompt = ids;
    longer.n_prompt = 100;
    run_submit(e, &longer, &gone);
    cr_assert_eq(pthread_create(&thread, NULL, interrupt_soon, e), 0);
    (void)run_step(e);
    cr_assert_eq(engine_cancel(e, gone.handle, ENGINE_CANCELLED), 0);
    (void)run_step(e);
    cr_assert(gone.done, "told at once");
    run_all(e);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert(run_same(plain, &kept));
    run_clear(&kept);
    run_clear(&gone);
}

FOR_BACKENDS(engine, cancel_in_an_interrupted_batch)
{
    static const char *const kv[] = {"full,chunk=128", "window:24,chunk=128", "h2o:24,chunk=128"};

    for (int k = 0; k < 3; k++) {
        int32_t ids[100];
        struct run plain;
        struct engine *e = run_engine("cache_model.gguf", backends[*be], 128, 2, kv[k]);

        run_tokens(13, engine_info(e)->n_vocab, ids, 100);
        struct engine_request q = run_request(ids, 30, 40);

        run_submit(e, &q, &plain);
        run_all(e);
        for (int i = 0; i < 24; i++) {
            cancel_somewhere(e, &plain, &q, ids);
        }
        run_clear(&plain);
        engine_destroy(e);
    }
}

/* A step that begins, and does nothing. */
static void interrupted_step(struct engine *e)
{
    engine_interrupt(e);
    cr_assert_gt(run_step(e), 0);
}

/* Requests that are cancelled in turn, each while it is in a step: the one beside them goes on with
 * the batch that was begun, which the next request is not in. */
Test(engine, cancels_in_turn_let_steps_end)
{
    int32_t ids[100];
    struct run kept;
    struct run gone[4];
    struct engine *e = run_engine("cache_model.gguf", "ref", 128, 3, NULL);

    run_tokens(14, engine_info(e)->n_vocab, ids, 100);
    struct engine_request q = run_request(ids, 30, 60);
    struct engine_request few = run_request(ids + 30, 1, 60);
    struct engine_request many = run_request(ids + 30, 20, 60);

    run_submit(e, &q, &kept);
    while (kept.n_new < 3) {
        (void)run_step(e);
    }
    for (int i = 0; i < 10; i++) {
        int32_t before = kept.n_new;

        run_submit(e, &few, &gone[0]);
        interrupted_step(e);
        cr_assert_eq(engine_cancel(e, gone[0].handle, ENGINE_CANCELLED), 0);
        run_submit(e, &few, &gone[1]);
        (void)run_step(e);
        cr_assert(gone[0].done);
        cr_assert_eq(kept.n_new, before + 1);
        cr_assert_eq(gone[1].n_new, 0, "not in the batch that was taken up");

        run_submit(e, &many, &gone[2]);
        interrupted_step(e);
        cr_assert_eq(engine_cancel(e, gone[1].handle, ENGINE_CANCELLED), 0);
        cr_assert_eq(engine_cancel(e, gone[2].handle, ENGINE_CANCELLED), 0);
        run_submit(e, &many, &gone[3]);
        interrupted_step(e); /* built anew: most of it was cancelled */
        cr_assert(gone[1].done && gone[2].done);
        cr_assert_eq(engine_cancel(e, gone[3].handle, ENGINE_CANCELLED), 0);
        run_clear(&gone[1]);
        run_submit(e, &many, &gone[1]);
        (void)run_step(e);
        cr_assert(gone[3].done);
        cr_assert_eq(kept.n_new, before + 2);
        cr_assert_eq(gone[1].n_new + gone[1].n_progress, 0, "not built anew twice running");
        cr_assert_eq(engine_cancel(e, gone[1].handle, ENGINE_CANCELLED), 0);
        (void)run_step(e);
        for (int k = 0; k < 4; k++) {
            run_clear(&gone[k]);
        }
    }
    run_all(e);
    cr_assert(kept.done && kept.n_new == 60);
    run_clear(&kept);
    engine_destroy(e);
}

Test(engine, turns_go_round_principals)
{
    int32_t ids[4] = {1, 2, 3, 4};
    struct run r[6];
    struct engine *e = run_engine("cache_model.gguf", "ref", 64, 1, NULL);
    struct engine_request q = run_request(ids, 4, 2);
    int order[6];
    int n = 0;

    for (int i = 0; i < 6; i++) {
        q.principal = i < 4 ? 1 : 2;          /* four of one, then two of another */
        q.urgency = i == 3 || i == 5 ? 5 : 0; /* the last of each is urgent */
        run_submit(e, &q, &r[i]);
    }
    while (run_step(e) > 0 || n < 6) {
        for (int i = 0; i < 6; i++) {
            bool known = false;

            for (int k = 0; k < n; k++) {
                known = known || order[k] == i;
            }
            if (r[i].done && !known) {
                order[n++] = i;
            }
        }
    }
    static const int want[6] = {3, 5, 0, 4, 1, 2};

    for (int i = 0; i < 6; i++) {
        cr_assert_eq(order[i], want[i], "place %d: request %d", i, order[i]);
        run_clear(&r[i]);
    }
    engine_destroy(e);
}

Test(engine, refuses_bad_requests)
{
    int32_t ids[70] = {1, 2, 3};
    struct engine *e = run_engine("cache_model.gguf", "ref", 64, 1, NULL);
    struct engine_request good = run_request(ids, 3, 4);
    struct engine_request q;
    struct error err;
    uint64_t h;

#define REFUSED(change, expected, holds)                                                           \
    do {                                                                                           \
        q = good;                                                                                  \
        err.code = 0;                                                                              \
        change;                                                                                    \
        cr_assert_eq(engine_submit(e, &q, &h, &err), expected);                                    \
        cr_assert(strstr(err.text, holds), "%s", err.text);                                        \
    } while (0)

    REFUSED(q.n_prompt = 0, -EINVAL, "at least one");
    REFUSED(q.n_prompt = 64, -EMSGSIZE, "64");
    REFUSED(ids[1] = -1, -EINVAL, "token -1");
    REFUSED(ids[1] = engine_info(e)->n_vocab, -EINVAL, "must be from 0 to");
    ids[1] = 2;
    REFUSED(q.urgency = 101, -EINVAL, "-100 to 100");
    REFUSED(q.sampler.temperature = NAN, -EINVAL, "temperature");
    REFUSED(q.kind = ENGINE_SCORE; q.score_first = 3, -EINVAL, "score_first");
    REFUSED(q.kv = "full,chunk=5000", -ENOMEM, "chunk");
    cr_assert_eq(engine_step(e, NULL, NULL), 0, "nothing was queued");
    engine_destroy(e);
}

Test(engine, ends_at_the_context)
{
    int32_t ids[10];
    struct run r;
    struct engine *e = run_engine("cache_model.gguf", "ref", 32, 1, NULL);

    run_tokens(14, engine_info(e)->n_vocab, ids, 10);
    struct engine_request q = run_request(ids, 10, 0);

    run_submit(e, &q, &r);
    run_all(e);
    cr_assert_eq(r.reason, ENGINE_CONTEXT);
    cr_assert_eq(r.n_new, 22);
    run_clear(&r);
    engine_destroy(e);
}

Test(engine, plan_equals_what_is_taken)
{
    struct engine_config c;
    struct plan plan;
    struct error err = {0};
    struct engine *e = run_engine("cache_model.gguf", "ref", 128, 3, "fp8+h2o:50%,min=20");
    struct engine_counters k;

    engine_config_default(&c);
    c.model_path = run_data("cache_model.gguf");
    c.backend = "ref";
    c.n_threads = run_threads;
    c.ctx = 128;
    c.n_seqs = 3;
    c.kv = "fp8+h2o:50%,min=20";
    cr_assert_eq(engine_plan(&c, &plan, &err), 0, "%s", err.text);
    cr_assert_eq(plan.total_bytes, engine_plan_of(e)->total_bytes);
    engine_counters(e, &k);
    cr_assert_leq(plan.kv_bytes, k.kv_bytes_total);
    cr_assert_geq(plan.kv_bytes + plan.prefill_peak_bytes, k.kv_bytes_total);
    c.memory_bytes = plan.total_bytes / 2;
    cr_assert_eq(engine_plan(&c, &plan, &err), -ENOMEM);
    engine_destroy(e);
}

Test(engine, heartbeat_moves)
{
    int32_t ids[4] = {1, 2, 3, 4};
    struct run r;
    struct engine *e = run_engine("cache_model.gguf", "ref", 64, 1, NULL);
    struct engine_request q = run_request(ids, 4, 4);
    int64_t t0;
    int64_t t1;
    int64_t longest;

    engine_heartbeat(e, &t0, &longest);
    run_submit(e, &q, &r);
    run_all(e);
    engine_heartbeat(e, &t1, &longest);
    cr_assert_gt(t1, t0);
    cr_assert_gt(longest, 0);
    run_clear(&r);
    engine_destroy(e);
}

/* With as many sequences as memory and threads allow: the step has room for all of them beside a
 * chunk, so a prompt that is read layer by layer beside them has the bits that it has alone. */
Test(engine, a_chosen_number_of_sequences_changes_no_bit)
{
    enum { N_TALKERS = 7, N_PROMPT = 1000 };
    static int32_t ids[N_PROMPT];
    static struct run talkers[N_TALKERS];
    struct run beside;
    struct run alone;

    run_threads = 4;
    struct engine *e = run_engine("stories260K.gguf", "cpu", 1100, 0, NULL);

    cr_assert_eq(engine_info(e)->n_seqs, N_TALKERS + 1);
    run_tokens(3, engine_info(e)->n_vocab, ids, N_PROMPT);
    for (int i = 0; i < N_TALKERS; i++) {
        struct engine_request q = run_request(ids + 9 * i, 8, 100);

        run_submit(e, &q, &talkers[i]);
    }
    while (talkers[N_TALKERS - 1].n_new < 3) {
        (void)run_step(e);
    }
    struct engine_request q = run_request(ids, N_PROMPT, 3);

    run_submit(e, &q, &beside);
    run_all(e);
    run_submit(e, &q, &alone);
    run_all(e);
    cr_assert(run_same(&beside, &alone), "a prompt depends on its company");
    run_clear(&beside);
    run_clear(&alone);
    for (int i = 0; i < N_TALKERS; i++) {
        run_clear(&talkers[i]);
    }
    engine_destroy(e);
}

/* Whole chunks of a patient prompt have room beside a patient answer, and do not wait for its end.
 */
Test(engine, a_chosen_number_of_sequences_starves_no_prompt)
{
    static int32_t ids[600];
    struct run talker;
    struct run patient;
    struct engine *e = run_engine("stories260K.gguf", "cpu", 1100, 0, NULL);
    struct engine_request talk = run_request(ids, 8, 200);
    struct engine_request q = run_request(ids, 600, 2);

    run_tokens(4, engine_info(e)->n_vocab, ids, 600);
    cr_assert_geq(engine_info(e)->n_seqs, 2);
    q.urgency = talk.urgency = -1;
    run_submit(e, &talk, &talker);
    while (talker.n_new < 3) {
        (void)run_step(e);
    }
    run_submit(e, &q, &patient);
    while (!patient.done) {
        (void)run_step(e);
    }
    cr_assert_lt(talker.n_new, 150, "%d tokens were written first", talker.n_new);
    run_all(e);
    run_clear(&talker);
    run_clear(&patient);
    engine_destroy(e);
}

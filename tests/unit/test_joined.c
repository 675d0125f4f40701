/* SPDX-License-Identifier: Apache-2.0 */
/* Several chunks of a prompt in one step: a text says, to the bit, what it says when a step takes
 * one chunk; kept prompts are found at the same chunks; prompts take turns; who decodes waits for
 * no more than before; a cancel leaves nothing behind. What the plan has for it is in test_plan.c
 * and test_plan_taken.c, the CUDA backend's side in tests/cuda/test_joined.c. */

#include <criterion/criterion.h>
#include <string.h>

#include "engine/kv/plan/plan.h"
#include "tests/unit/engine_run.h"

enum { CTX = 2560, LONG = 2300, N_NEW = 6, CHUNK = 512, JOINED = 2048 };

static const char *const backends[] = {"ref", "cpu"};

static int32_t ids[CTX];

static struct engine *open_engine(const char *model, const char *overlay, const char *backend,
                                  int32_t n_seqs, const char *kv, int32_t prompt_rows)
{
    run_cpu_mask = UINT32_MAX;
    run_prompt_rows = prompt_rows;
    struct engine *e = run_engine_overlay(model, overlay, backend, CTX, n_seqs, kv);

    run_prompt_rows = 0;
    run_tokens(7, engine_info(e)->n_vocab, ids, CTX);
    return e;
}

static int32_t rows_planned(const struct engine *e)
{
    return engine_plan_of(e)->prompt_rows;
}

static struct engine_counters counters(const struct engine *e)
{
    struct engine_counters c;

    engine_counters(e, &c);
    return c;
}

/* The first n tokens, alone; how many steps it took. */
static uint64_t run_long(struct engine *e, int32_t n, struct run *r)
{
    struct engine_request q = run_request(ids, n, N_NEW);
    uint64_t before = counters(e).n_steps;

    run_submit(e, &q, r);
    run_all(e);
    cr_assert_eq(r->n_new, N_NEW, "%s", r->error.text);
    return counters(e).n_steps - before;
}

Test(joined, same_bits)
{
    static const struct {
        const char *model;
        const char *overlay;
        const char *kv;
        bool by_ref; /* small enough for it */
    } cases[] = {
        {"stories260K.gguf", NULL, "full", false},
        {"heads_32.gguf", NULL, "kv4", false},
        {"cache_model.gguf", NULL, "sparq:r=4,k=64,mean=on", true},
        {"cache_model.gguf", "cache_swiftkv_2_1.gguf", "full", true},
        {"cache_model.gguf", "cache_swiftkv_2_3.gguf", "fp8", true},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int b = cases[i].by_ref ? 0 : 1; b < 2; b++) {
            struct run want;
            struct run got;
            struct engine *e =
                open_engine(cases[i].model, cases[i].overlay, backends[b], 1, cases[i].kv, 0);

            cr_assert_eq(rows_planned(e), CHUNK, "not unless asked for, by these backends");
            cr_assert_eq(run_long(e, LONG, &want), 5 + N_NEW - 1);
            cr_assert_eq(want.n_progress, 5);
            engine_destroy(e);
            e = open_engine(cases[i].model, cases[i].overlay, backends[b], 1, cases[i].kv, JOINED);
            cr_assert_eq(rows_planned(e), JOINED);
            cr_assert_eq(run_long(e, LONG, &got), 2 + N_NEW - 1, "%s", cases[i].kv);
            cr_assert_eq(got.n_progress, 2);
            cr_assert(run_same(&got, &want), "%s, %s", backends[b], cases[i].kv);
            engine_destroy(e);
            run_clear(&want);
            run_clear(&got);
        }
    }
}

/* Of prompts that are read in joined steps whole chunks are kept, not whole steps. */
Test(joined, kept_by_chunks)
{
    struct run r[3];

    run_keep_prefixes = true;
    for (int i = 0; i < 2; i++) {
        struct engine *e = open_engine("stories260K.gguf", NULL, "cpu", 2, "full", i ? JOINED : 0);

        (void)run_long(e, LONG, &r[2]);
        run_clear(&r[2]);
        ids[1100] ^= 1;
        uint64_t steps = run_long(e, LONG, &r[i]);

        cr_assert_eq(r[i].usage.n_cached, 1024);
        cr_assert_eq(steps, (i ? 1 : 3) + N_NEW - 1, "1276 tokens, from within a step's share");
        engine_destroy(e);
    }
    cr_assert(run_same(&r[0], &r[1]));
    run_keep_prefixes = false;
    run_clear(&r[0]);
    run_clear(&r[1]);
}

/* What may not be joined: rings and states, evicting policies, a file. */
Test(joined, chunk_by_chunk)
{
    static const struct {
        const char *model;
        const char *overlay;
        const char *kv;
        int32_t rows;
    } cases[] = {
        {"arch_gemma3.gguf", NULL, "full", CHUNK},
        {"arch_qwen35.gguf", NULL, "full", CHUNK},
        {"arch_lfm2.gguf", NULL, "full", CHUNK},
        {"cache_model.gguf", NULL, "h2o:50%,prefill=dense", CHUNK},
        {"cache_model.gguf", NULL, "sinks:4+window:64", CHUNK},
        {"cache_model.gguf", "cache_skew.gguf", "infinigen:count=9,pool=disk", CHUNK},
        {"cache_model.gguf", "cache_skew.gguf", "infinigen:count=9", JOINED},
        {"cache_model.gguf", NULL, "full,chunk=1024", JOINED},
        {"cache_model.gguf", NULL, "full,chunk=1536", 1536},
        {"cache_model.gguf", NULL, "full=60%;fp8+h2o:50%ctx=40%", JOINED},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine *e =
            open_engine(cases[i].model, cases[i].overlay, "ref", 2, cases[i].kv, JOINED);

        cr_assert_eq(rows_planned(e), cases[i].rows, "%s %s: %d", cases[i].model, cases[i].kv,
                     rows_planned(e));
        engine_destroy(e);
    }
}

/* Of a mix, each text by its own policy. */
Test(joined, by_the_texts_policy)
{
    struct engine *e = open_engine("cache_model.gguf", NULL, "cpu", 2,
                                   "full=60%;h2o:50%ctx,prefill=dense=40%", JOINED);
    struct engine_request q = run_request(ids, LONG, N_NEW);
    struct run r;

    for (int i = 0; i < 2; i++) {
        q.kv = i ? "h2o:50%ctx,prefill=dense" : NULL;
        run_submit(e, &q, &r);
        run_all(e);
        cr_assert_eq(r.n_new, N_NEW, "%s", r.error.text);
        cr_assert_eq(r.n_progress, i ? 5 : 2);
        run_clear(&r);
    }
    engine_destroy(e);
}

/* Hidden states of rows that are scored as credit comes have place for a chunk. */
Test(joined, scored_by_credit)
{
    struct run r[2];

    for (int i = 0; i < 2; i++) {
        struct engine *e = open_engine("cache_model.gguf", NULL, "cpu", 1, "full", i ? JOINED : 0);
        struct engine_request q = run_request(ids, LONG, 0);

        q.kind = ENGINE_SCORE;
        q.score_first = LONG - RUN_MAX_SCORED;
        q.logits_rows = RUN_MAX_NEW;
        run_submit(e, &q, &r[i]);
        cr_assert_eq(engine_score_credit(e, r[i].handle, LONG), 0);
        run_all(e);
        cr_assert_eq(r[i].n_scored, RUN_MAX_SCORED - 1, "%s", r[i].error.text);
        cr_assert_eq(r[i].n_progress, 5);
        engine_destroy(e);
    }
    cr_assert(run_same(&r[0], &r[1]));
    run_clear(&r[0]);
    run_clear(&r[1]);
}

/* A step with several chunks is one prompt's: of one user the first's, of several in turns. */
Test(joined, prompts_take_turns)
{
    struct run want[3];
    struct run got[3];
    struct engine *e = open_engine("cache_model.gguf", NULL, "cpu", 3, "full", JOINED);

    for (int i = 0; i < 3; i++) {
        (void)run_long(e, LONG - 900 * i, &want[i]);
    }
    for (int i = 0; i < 3; i++) {
        struct engine_request q = run_request(ids, LONG - 900 * i, N_NEW);

        q.principal = i == 2 ? 2 : 1;
        run_submit(e, &q, &got[i]);
    }
    (void)run_step(e);
    cr_assert_eq(got[0].progress, JOINED);
    cr_assert_eq(got[1].progress, 0);
    cr_assert_eq(got[2].progress, 0);
    (void)run_step(e);
    cr_assert_eq(got[0].progress, JOINED);
    cr_assert_eq(got[1].progress, 0);
    cr_assert(got[2].n_new == 1 || got[2].progress > 0, "the other user's turn");
    run_all(e);
    for (int i = 0; i < 3; i++) {
        cr_assert(run_same(&got[i], &want[i]), "%d", i);
        run_clear(&got[i]);
        run_clear(&want[i]);
    }
    engine_destroy(e);
}

/* Lines of a batch do not ride in the step of a prompt that is waited for. */
Test(joined, batches_wait)
{
    struct run background[2];
    struct run urgent;
    struct engine *e = open_engine("cache_model.gguf", NULL, "cpu", 3, "full", JOINED);
    struct engine_request q = run_request(ids, LONG, N_NEW);

    q.urgency = -1;
    for (int i = 0; i < 2; i++) {
        run_submit(e, &q, &background[i]);
    }
    q.urgency = 0;
    run_submit(e, &q, &urgent);
    (void)run_step(e);
    cr_assert_eq(urgent.progress, JOINED);
    cr_assert_eq(background[0].progress, 0);
    cr_assert_eq(background[1].progress, 0);
    run_all(e);
    cr_assert(run_same(&urgent, &background[0]));
    for (int i = 0; i < 2; i++) {
        run_clear(&background[i]);
    }
    run_clear(&urgent);
    engine_destroy(e);
}

/* Beside somebody whose next token is waited for a step reads no more than a chunk, and never one
 * without a token for him; beside lines of a batch it reads as much as alone. */
Test(joined, beside_those_who_decode)
{
    for (int i = 0; i < 2; i++) {
        struct engine *e = open_engine("cache_model.gguf", NULL, "cpu", 2, "full", JOINED);
        struct engine_request q = run_request(ids, 20, 200);
        struct run decodes;
        struct run reads;
        int32_t most = 0;

        q.urgency = i ? -1 : 0;
        q.logits_rows = 0;
        run_submit(e, &q, &decodes);
        (void)run_step(e);
        q = run_request(ids, LONG, N_NEW);
        run_submit(e, &q, &reads);
        while (!decodes.done && reads.n_new == 0) {
            int32_t said = decodes.n_new;
            uint64_t before = counters(e).n_prompt_tokens;

            (void)run_step(e);
            int32_t n = (int32_t)(counters(e).n_prompt_tokens - before);

            cr_assert(decodes.n_new > said, "a token each step");
            most = n > most ? n : most;
        }
        cr_assert(i ? most == JOINED : most <= CHUNK, "%d tokens of the prompt in a step", most);
        run_all(e);
        run_clear(&decodes);
        run_clear(&reads);
        engine_destroy(e);
    }
}

/* Between steps and within one; the other text has the bits that it has alone. */
Test(joined, cancelled)
{
    struct run want;
    struct run gone;
    struct run got;
    struct engine *e = open_engine("cache_model.gguf", NULL, "cpu", 2, "full", JOINED);
    struct engine_request q = run_request(ids, LONG, N_NEW);

    (void)run_long(e, LONG, &want);
    run_submit(e, &q, &gone);
    (void)run_step(e);
    cr_assert_eq(gone.progress, JOINED);
    cr_assert_eq(engine_cancel(e, gone.handle, ENGINE_CANCELLED), 0);
    cr_assert_eq(run_step(e), 0);
    cr_assert(gone.done && gone.reason == ENGINE_CANCELLED);
    cr_assert_eq(counters(e).kv_bytes_used, 0);
    run_clear(&gone);

    run_submit(e, &q, &gone);
    run_submit(e, &q, &got);
    engine_interrupt(e);
    (void)run_step(e);
    cr_assert_eq(gone.progress, 0, "its step is held up");
    cr_assert_eq(engine_cancel(e, gone.handle, ENGINE_CANCELLED), 0);
    run_all(e);
    cr_assert(gone.done && gone.reason == ENGINE_CANCELLED && gone.n_progress == 0);
    cr_assert(run_same(&got, &want));
    cr_assert_eq(counters(e).kv_bytes_used, 0);
    run_clear(&gone);
    run_clear(&got);
    run_clear(&want);
    engine_destroy(e);
}

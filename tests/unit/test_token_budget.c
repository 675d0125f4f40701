/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts that are read in slices, or layer by layer in units, while others decode: what is learnt
 * from times, and that no bit of any answer depends on where a prompt was cut. */

#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "engine/sched/token_budget.h"
#include "tests/unit/engine_run.h"

/* A prompt of n rows beside one decode row; a step takes plain + fixed + n row. The rows of the
 * last whole budget. */
static int32_t settle(struct token_budget *s, double plain, double fixed, double row, int32_t n,
                      int32_t *ret_most_plain)
{
    int32_t at = 0;
    int32_t in_a_row = 0;

    while (n > 0) {
        int32_t room = token_budget_room(s, 1);

        room = room < n ? room : n;
        token_budget_add(s, 1, room, room ? plain + fixed + room * row : plain);
        in_a_row = room ? 0 : in_a_row + 1;
        *ret_most_plain = in_a_row > *ret_most_plain ? in_a_row : *ret_most_plain;
        n -= room;
        at = n > 0 && room > 0 ? room : at;
    }
    return at;
}

Test(token_budget, twice_a_plain_step)
{
    struct token_budget s = {0};
    int32_t most_plain = 0;

    cr_assert_eq(token_budget_room(&s, 0), INT32_MAX, "nobody waits");
    cr_assert_eq(token_budget_room(&s, 1), 0, "a plain step first");
    /* A row costs a fortieth of a plain step, whatever their number. */
    int32_t n = settle(&s, 4e6, 0, 1e5, 20000, &most_plain);

    cr_assert(n >= 24 && n <= 48, "%d rows", n);
    cr_assert_leq(most_plain, 1);
}

Test(token_budget, half_the_speed_at_least)
{
    struct token_budget s = {0};
    int32_t most_plain = 0;

    /* At full speed a row takes 0.5 ms; each slice goes through the keys, 25 ms. */
    token_budget_add(&s, 0, 512, 512 * 5e5 + 25e6);
    int32_t n = settle(&s, 4e6, 25e6, 5e5, 20000, &most_plain);
    double row = (25e6 + n * 5e5) / n;

    cr_assert(row > 0.6 * 2 * 5.5e5 && row < 1.4 * 2 * 5.5e5, "%d rows, %.0f ns each", n, row);
    cr_assert_leq(most_plain, 1);
}

Test(token_budget, forgets_what_was_off)
{
    struct token_budget s = {0};
    int32_t most_plain = 0;

    /* A plain step that took four times as long, */
    (void)settle(&s, 4e6, 0, 1e5, 20000, &most_plain);
    token_budget_add(&s, 1, 0, 16e6);
    int32_t n = settle(&s, 4e6, 0, 1e5, 40000, &most_plain);

    cr_assert(n >= 24 && n <= 56, "%d rows", n);
    /* and sixteen who decode, with steps of 49 ms, of whom one stays. */
    for (int i = 0; i < 200; i++) {
        int32_t room = token_budget_room(&s, 16);

        token_budget_add(&s, 16, room, 49e6 + room * 1e5);
    }
    n = settle(&s, 4e6, 0, 1e5, 60000, &most_plain);
    cr_assert(n >= 24 && n <= 56, "%d rows", n);
    cr_assert_leq(most_plain, 1);
    /* One lucky sample after another. */
    s.full_ns = 1e3;
    n = settle(&s, 4e6, 0, 1e5, 400000, &most_plain);
    cr_assert(n < 256, "%d rows", n);
}

Test(token_budget, steps_that_are_never_measured_hold_no_prompt_up)
{
    struct token_budget s = {0};
    int32_t n_none = 0;

    for (int i = 0; i < 100; i++) {
        n_none += token_budget_room(&s, 1) == 0;
    }
    cr_assert_leq(n_none, 50);
}

Test(token_budget, goes_on_when_crowds_change)
{
    struct token_budget s = {0};
    int32_t n_none = 0;

    for (int i = 0; i < 1000; i++) { /* another number of decode rows in each step */
        int32_t crowd = 1 << i % BUDGET_CROWDS;
        int32_t room = token_budget_room(&s, crowd);

        n_none += room == 0;
        token_budget_add(&s, crowd, room, 4e6 + room * 1e5);
    }
    cr_assert_leq(n_none, 1000 / 2, "prompts stand still");
}

/* A chunk of 512 rows through one layer in units, beside steps that take plain; a row of the i-th
 * quarter takes row * (1 + i / 8), a unit `fixed` beside its rows. ns a step; of the budget what
 * was used. */
static double units_beside(struct token_budget *s, double plain, double fixed, double row,
                           int32_t n_steps, double *ret_longest, double *ret_used)
{
    int32_t at = 0;
    double spent = 0;
    double given = 0;

    *ret_longest = 0;
    for (int32_t i = 0; i < n_steps; i++) {
        double left;
        double step = plain;
        bool opens = true;

        token_budget_add(s, 1, 0, plain);
        left = token_budget_ns(s, 1, plain);
        given += left;
        for (bool rests = token_budget_rests(s, 1); !rests;) {
            struct token_budget_unit u = {BUDGET_LAYER, at * BUDGET_QUARTERS / 512, 16, 512 - at};
            int32_t n = token_budget_piece(s, u, left, opens);

            u.least = u.least < u.most ? u.least : u.most;
            if (n == 0) {
                break;
            }
            cr_assert(n >= u.least && n <= u.most, "%d rows of %d", n, u.most);
            double ns = fixed + n * row * (1 + u.quarter / 8.0);

            token_budget_add_piece(s, u, n, ns);
            at = (at + n) % 512;
            left -= ns;
            step += ns;
            opens = false;
        }
        spent += step - plain;
        /* what is not known yet is tried with few rows */
        *ret_longest = i > 20 && step > *ret_longest ? step : *ret_longest;
    }
    *ret_used = spent / given;
    return spent;
}

Test(token_budget, units_fill_a_second_step)
{
    static const double rows[] = {1e3, 1e4, 5e4, 2e5};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct token_budget s = {0};
        double longest;
        double used;

        (void)units_beside(&s, 5e6, 1e5, rows[i], 2000, &longest, &used);
        cr_expect_lt(longest, 2 * 5e6, "rows of %.0f ns: a step of %.0f", rows[i], longest);
        cr_expect_gt(used, 0.7, "rows of %.0f ns: %.2f of the budget", rows[i], used);
    }
    /* A unit that takes longer whatever its rows are goes on all the same. */
    struct token_budget slow = {0};
    double longest;
    double used;

    cr_expect_gt(units_beside(&slow, 1e5, 1e6, 1e5, 100, &longest, &used), 99 * 1e6);
}

/* Steps are as long as the target, where that is longer than two plain ones. */
Test(token_budget, units_fill_the_target)
{
    static const double rows[] = {1e3, 1e4, 5e4, 2e5};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct token_budget s = {.target_ns = 60e6};
        double longest;
        double used;

        (void)units_beside(&s, 18e6, 1e5, rows[i], 2000, &longest, &used);
        cr_expect_lt(longest, 75e6, "rows of %.0f ns: a step of %.0f", rows[i], longest);
        cr_expect_gt(longest, 50e6, "rows of %.0f ns: a step of %.0f", rows[i], longest);
        cr_expect_gt(used, 0.7, "rows of %.0f ns: %.2f of the budget", rows[i], used);
    }
    struct token_budget slow = {.target_ns = 60e6}; /* a plain step of 100 ms */
    double longest;
    double used;

    (void)units_beside(&slow, 100e6, 1e5, 5e4, 2000, &longest, &used);
    cr_expect(longest > 120e6 && longest < 200e6, "a step of %.0f", longest);
    /* Rows in batches, too. */
    struct token_budget rides = {.target_ns = 60e6};
    int32_t most_plain = 0;
    int32_t n = settle(&rides, 4e6, 0, 5e5, 40000, &most_plain);

    cr_expect(n >= 80 && n <= 144, "%d rows", n);
}

Test(token_budget, budget_is_of_plain_steps)
{
    struct token_budget s = {0};
    struct token_budget_unit u = {BUDGET_LAYER, 0, 16, 512};

    cr_expect(isinf(token_budget_ns(&s, 0, 0)), "nobody waits");
    cr_expect_eq(token_budget_ns(&s, 1, 0), 0, "nothing is known");
    cr_expect_eq(token_budget_piece(&s, u, 0, true), 16);
    cr_expect_eq(token_budget_piece(&s, u, INFINITY, false), 512);
    token_budget_add(&s, 1, 0, 1e6);
    double first = token_budget_ns(&s, 1, 1e6);

    cr_expect(first > 0.5e6 && first <= 1e6);
    for (int i = 0; i < 1000; i++) { /* steps that units have slowed down are no measure */
        token_budget_add_piece(&s, u, 16, 1e5);
        token_budget_add(&s, 1, 0, 3e6);
    }
    cr_expect_eq(token_budget_ns(&s, 1, 1e6), first);
    cr_expect_eq(token_budget_ns(&s, 1, 3e6), 0, "this one was slow");
}

/* ---- engines: one talks, a long prompt comes --------------------------------------------------
 */

enum { CTX = 400, N_PROMPT = 330, N_NEW = 30, N_LONG = 120, N_EMBD_MAX = 256 };

struct setting {
    const char *model;
    const char *overlay;
    const char *kv;
    int32_t ctx;
    int32_t n_prompt;
};

static int32_t ids[N_PROMPT];
static float hidden[2][N_PROMPT * N_EMBD_MAX];

static int32_t talker_urgency;

static struct engine *start(const struct setting *of, const char *backend, struct run *talker)
{
    struct engine *e = run_engine_overlay(of->model, of->overlay, backend, of->ctx, 2, of->kv);
    int32_t n_vocab = engine_info(e)->n_vocab;
    int32_t first[8];

    run_tokens(1, n_vocab, first, 8);
    run_tokens(2, n_vocab, ids, of->n_prompt);
    struct engine_request talk = run_request(first, 8, of->ctx > 200 ? N_LONG : of->ctx - 10);

    talk.urgency = talker_urgency;
    run_submit(e, &talk, talker);
    while (talker->n_new < 5) {
        (void)run_step(e);
    }
    return e;
}

/* Steps that the talker's tokens came in until the request said something, interrupted now and
 * then. */
static int32_t steps_until(struct engine *e, const struct run *talker, const struct run *r)
{
    int32_t before = talker->n_new;
    int32_t n = 0;

    while (r->n_new == 0 && r->n_scored == 0 && r->n_hidden == 0 && !r->done) {
        if (++n % 5 == 0) {
            engine_interrupt(e);
        }
        (void)run_step(e);
    }
    return talker->n_new - before;
}

/* The prompt is three chunks or more. Plain steps are short: they leave time for few units, though
 * under a sanitizer for a whole chunk of 32 rows. */
static bool steps_are_right(const struct setting *of, int32_t steps)
{
    return run_gap_target_ms || talker_urgency < 0 ? steps <= 3
                                                   : steps >= (of->n_prompt > 128 ? 4 : 3);
}

/* An engine whose talker talks, and `ask` has begun to answer. A plain step during which other
 * programs have the CPU looks long and leaves time for more units: it may be tried again. */
static struct engine *start_both(const struct setting *of, const char *backend,
                                 const struct engine_request *ask, struct run *talker,
                                 struct run *beside)
{
    enum { TRIES = 3 };

    for (int i = 1;; i++) {
        struct engine *e = start(of, backend, talker);

        run_submit(e, ask, beside);
        int32_t steps = steps_until(e, talker, beside);

        if (i == TRIES || steps_are_right(of, steps)) {
            cr_expect(steps_are_right(of, steps), "%s, %s: %d steps", backend, of->kv, steps);
            return e;
        }
        run_all(e);
        run_clear(talker);
        run_clear(beside);
        engine_destroy(e);
    }
}

static void compare(const struct setting *of, const char *backend, struct engine_request ask)
{
    static struct run talker, alone, beside, quiet;

    ask.prompt = ids;
    ask.n_prompt = of->n_prompt;
    ask.hidden = ask.kind == ENGINE_EMBED ? hidden[0] : NULL;
    struct engine *e = start_both(of, backend, &ask, &talker, &beside);

    run_all(e);
    cr_expect_eq(beside.progress, of->n_prompt);
    memset(hidden[1], 0, sizeof(hidden[1]));
    ask.hidden = ask.kind == ENGINE_EMBED ? hidden[1] : NULL;
    run_submit(e, &ask, &alone);
    run_all(e);
    cr_expect(run_same(&alone, &beside), "%s, %s, kind %d: the answer depends on its company",
              backend, of->kv, ask.kind);
    cr_expect_eq(alone.usage.n_evicted, beside.usage.n_evicted);
    cr_expect_eq(alone.n_hidden, beside.n_hidden);
    cr_expect(memcmp(hidden[0], hidden[1],
                     (size_t)alone.n_hidden * (size_t)engine_info(e)->n_embd * sizeof(float)) == 0,
              "%s, %s: hidden states depend on their company", backend, of->kv);
    engine_destroy(e);
    /* Nor does the talker's. */
    e = start(of, backend, &quiet);
    run_all(e);
    cr_expect(run_same(&talker, &quiet), "%s, %s: the talker hears it", backend, of->kv);
    run_clear(&talker);
    run_clear(&alone);
    run_clear(&beside);
    run_clear(&quiet);
    engine_destroy(e);
}

static const struct engine_request *generate(void)
{
    static struct engine_request q;

    q = run_request(NULL, 0, N_NEW);
    return &q;
}

Test(token_budget, no_bit_depends_on_it)
{
    static const char *const of[] = {
        "full,chunk=128",
        "fp8+window:50%,chunk=128",
        "kv8+sinks:4+window:50%,chunk=128",
        "h2o:50%,chunk=128",
        "h2o:50%,chunk=128,prefill=dense",
        "keyformer:50%,chunk=128,prefill=dense",
        "recency:50%,chunk=128,observe=200,prefill=dense", /* up to the first row observed */
        "recency:50%,chunk=128,observe=330,prefill=dense", /* weights from a call's first row */
        "keyformer:50%,chunk=128",                         /* layer by layer */
        "recency:50%,chunk=128,observe=200",
        "keyformer:50%,chunk=128,prefill=bounded",
        "recency:50%,chunk=128,prefill=bounded",
        "expected:50%,chunk=128",
        "kv8+expected:50%,chunk=128,prefill=bounded",
        "full,chunk=128+sparq:r=4,k=32,local=8",
        "h2o:50%,chunk=128,score=shared,prefill=dense",
    };

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        const struct setting on = {"stories260K.gguf", NULL, of[i], CTX, N_PROMPT};

        if (i % 4 == 0) {
            compare(&on, "ref", *generate());
        }
        compare(&on, "cpu", *generate());
    }
}

/* A target above what the prompt takes: one step reads it all, without a change in any bit. */
Test(token_budget, target_is_used_up)
{
    static const struct setting of[] = {
        {"stories260K.gguf", NULL, "full,chunk=128", CTX, N_PROMPT},
        {"stories260K.gguf", NULL, "keyformer:50%,chunk=128,prefill=dense", CTX, N_PROMPT},
        {"stories260K.gguf", NULL, "keyformer:50%,chunk=128", CTX, N_PROMPT},
        {"cache_model.gguf", "cache_swiftkv_2_3.gguf", "full,chunk=32", 128, 100},
    };

    run_gap_target_ms = 100000;
    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        compare(&of[i], "cpu", *generate());
    }
}

/* Nobody is in a hurry: whole chunks ride beside the decode rows. */
Test(token_budget, patient_ones_read_whole_chunks)
{
    static const struct setting of[] = {
        {"stories260K.gguf", NULL, "full,chunk=128", CTX, N_PROMPT},
        {"stories260K.gguf", NULL, "h2o:50%,chunk=128,prefill=dense", CTX, N_PROMPT},
        {"cache_model.gguf", "cache_swiftkv_2_3.gguf", "full,chunk=128", 128, 100},
    };

    talker_urgency = -1;
    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        compare(&of[i], "cpu", *generate());
    }
}

/* SwiftKV's split, sliding windows, augmented queries. */
Test(token_budget, no_bit_of_other_models_depends_on_it)
{
    static const struct setting of[] = {
        {"cache_model.gguf", "cache_swiftkv_2_3.gguf", "full,chunk=32", 128, 100},
        {"cache_model.gguf", "cache_swiftkv_2_4.gguf", "fp8+full,chunk=32", 128, 100},
        {"cache_model.gguf", "cache_swiftkv_2_1.gguf", "keyformer:40,chunk=32", 128, 100},
        {"cache_model.gguf", "cache_swiftkv_2_3.gguf",
         "recency:40,observe=20,chunk=32,prefill=dense", 128, 100},
        {"arch_gemma3.gguf", NULL, "full,chunk=32", 128, 100},
        {"arch_sigma.gguf", NULL, "full,chunk=32", 128, 100},
        {"arch_qwen35.gguf", NULL, "full,chunk=32", CTX, N_PROMPT},
        {"arch_qwen35_list.gguf", NULL, "h2o:40,chunk=32", CTX, N_PROMPT},
    };

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        struct engine_request score = run_request(NULL, 0, 0);

        score.kind = ENGINE_SCORE;
        score.logits_rows = 0;
        score.score_first = 20;
        compare(&of[i], i % 2 ? "cpu" : "ref", *generate());
        compare(&of[i], "cpu", *generate());
        if (i != 2) { /* beyond the split scores need a dense prefill */
            compare(&of[i], "cpu", score);
        }
    }
}

Test(token_budget, scores_and_embeddings_too)
{
    static const struct setting of[] = {
        {"stories260K.gguf", NULL, "full,chunk=128", CTX, N_PROMPT},
        {"stories260K.gguf", NULL, "kv8+full,chunk=64", CTX, N_PROMPT},
        {"cache_model.gguf", "cache_swiftkv_2_3.gguf", "full,chunk=32", 128, 100},
    };

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        struct engine_request q = run_request(NULL, 0, 0);

        q.logits_rows = 0;
        q.kind = ENGINE_SCORE;
        compare(&of[i], "cpu", q);
        q.score_first = of[i].n_prompt - 1; /* nothing to score */
        compare(&of[i], "cpu", q);
        q.score_first = 0;
        q.kind = ENGINE_EMBED;
        for (q.pool = ENGINE_POOL_MEAN; q.pool <= ENGINE_POOL_NONE; q.pool++) {
            q.unit = !q.unit;
            compare(&of[i], "cpu", q);
        }
    }
}

/* Scored rows with their logits wait for credit: they are set aside a chunk at a time. */
Test(token_budget, rows_that_are_set_aside)
{
    static const struct setting of = {"stories260K.gguf", NULL, "full,chunk=128", CTX, N_PROMPT};
    static struct run talker, r[2];

    for (int i = 0; i < 2; i++) {
        struct engine *e = start(&of, "cpu", &talker);
        struct engine_request q = run_request(ids, N_PROMPT, 0);

        if (i == 1) {
            run_all(e); /* alone */
        }
        q.kind = ENGINE_SCORE;
        q.score_first = N_PROMPT - 200;
        q.logits_rows = 4;
        run_submit(e, &q, &r[i]);
        while (!r[i].done) {
            (void)run_step(e);
            if (!r[i].done) {
                (void)engine_score_credit(e, r[i].handle, r[i].n_scored + 4);
            }
        }
        cr_expect_eq(r[i].n_scored, 199);
        run_all(e);
        run_clear(&talker);
        engine_destroy(e);
    }
    cr_expect(memcmp(r[0].logprobs, r[1].logprobs, 199 * sizeof(float)) == 0);
    run_clear(&r[0]);
    run_clear(&r[1]);
}

static uint64_t bytes_used(struct engine *e)
{
    struct engine_counters c;

    engine_counters(e, &c);
    return c.kv_bytes_used;
}

/* A cancel between the units of a chunk, after every number of steps that its prompt takes. */
static void cancel(const char *kv)
{
    const struct setting of = {"stories260K.gguf", NULL, kv, CTX, N_PROMPT};
    static struct run talker, quiet, gone, alone, after;
    struct engine *e = start(&of, "cpu", &talker);
    struct engine_request ask = run_request(ids, N_PROMPT, 4);
    int32_t n_mid = 0;

    for (int32_t n = 1; n <= 12 && !talker.done; n++) {
        uint64_t used = bytes_used(e);
        int32_t said = talker.n_new;

        run_submit(e, &ask, &gone);
        for (int32_t i = 0; i < n && gone.n_new == 0; i++) {
            if (i == n - 1 && n % 2) {
                engine_interrupt(e);
            }
            (void)run_step(e);
        }
        n_mid += gone.n_new == 0;
        cr_expect(n == 1 || bytes_used(e) > used, "%s: %d steps took no pages", kv, n);
        cr_expect(!gone.done && engine_cancel(e, gone.handle, ENGINE_CANCELLED) == 0);
        (void)run_step(e);
        cr_expect(gone.done && gone.reason == ENGINE_CANCELLED, "%s: after %d steps", kv, n);
        cr_expect_leq(bytes_used(e), used + 2 * (uint64_t)(talker.n_new - said) * 4096,
                      "%s: pages are held after %d steps", kv, n);
        run_clear(&gone);
    }
    cr_expect_gt(n_mid, 3, "%s: its prompt was never half read", kv);
    if (!talker.done) {
        run_submit(e, &ask, &after); /* beside */
    }
    run_all(e);
    uint64_t used = bytes_used(e);

    cr_expect_eq(used, 0, "%s: %llu bytes are still held", kv, (unsigned long long)used);
    run_submit(e, &ask, &alone);
    run_all(e);
    cr_expect(!after.done || run_same(&after, &alone), "%s", kv);
    engine_destroy(e);
    e = start(&of, "cpu", &quiet);
    run_all(e);
    cr_expect(run_same(&talker, &quiet), "%s: the talker hears it", kv);
    run_clear(&talker);
    run_clear(&quiet);
    run_clear(&alone);
    run_clear(&after);
    engine_destroy(e);
}

Test(token_budget, cancel_between_units)
{
    cancel("full,chunk=128");
    cancel("keyformer:50%,chunk=128");
    cancel("keyformer:50%,chunk=128,prefill=dense");
    cancel("recency:50%,chunk=128,prefill=bounded");
}

/* The engine's clock, as the time that its one thread has computed for: a step then takes as long
 * as what it does, also where other processes have the processor meanwhile. (By the wall a plain
 * step under load may take as long as ten, and the budget that is learnt from it holds several
 * units.) */
static atomic_bool clock_computes;

int __real_clock_gettime(clockid_t which, struct timespec *ret);
int __wrap_clock_gettime(clockid_t which, struct timespec *ret);

int __wrap_clock_gettime(clockid_t which, struct timespec *ret)
{
    bool computes = atomic_load(&clock_computes);

    return __real_clock_gettime(computes ? CLOCK_THREAD_CPUTIME_ID : which, ret);
}

/* A chunk is hurried for who waits for it; the layered prompt beside it gets no more of such a step
 * than of any other: it opens one unit at most, of a chunk and a layer. Whenever the urgent one
 * comes. */
Test(token_budget, no_hurry_for_another)
{
    static struct run talker, chunk, layered, urgent;
    static const char *const kv[] = {"full,chunk=128", "keyformer:50%,chunk=128"};
    int32_t n_layers = 5;
    int32_t most = 0;

    atomic_store(&clock_computes, true);
    for (int begun = 2; begun < 10; begun++) {
        struct engine *e = run_engine("stories260K.gguf", "cpu", CTX, 4,
                                      "full,chunk=128=50%;keyformer:50%,chunk=128=50%");

        run_tokens(2, engine_info(e)->n_vocab, ids, N_PROMPT);
        struct engine_request q = run_request(ids + 9, 8, N_LONG);

        q.kv = kv[0];
        run_submit(e, &q, &talker);
        while (talker.n_new < 5) {
            (void)run_step(e);
        }
        q = run_request(ids, N_PROMPT, 6);
        q.kv = kv[0];
        run_submit(e, &q, &chunk);
        q.kv = kv[1];
        run_submit(e, &q, &layered);
        for (int i = 0; i < begun; i++) {
            (void)run_step(e);
        }
        q = run_request(ids + 1, N_PROMPT / 2, 6);
        q.kv = kv[0];
        q.urgency = 1;
        run_submit(e, &q, &urgent);
        while (urgent.n_new == 0 && talker.n_new < N_LONG) {
            int32_t before = layered.progress;

            (void)run_step(e);
            most = layered.progress - before > most ? layered.progress - before : most;
        }
        run_all(e);
        run_clear(&talker);
        run_clear(&chunk);
        run_clear(&layered);
        run_clear(&urgent);
        engine_destroy(e);
    }
    cr_expect_gt(most, 0);
    cr_expect_leq(most, 128 / n_layers + 1);
}

/* Two prompts at once, one of them layer by layer throughout, and one that is urgent. */
Test(token_budget, several_prompts)
{
    static struct run talker, r[3], alone[3];
    static const char *const kv[] = {"full,chunk=128", "keyformer:50%,chunk=128", "full,chunk=128"};
    struct engine *e = run_engine("stories260K.gguf", "cpu", CTX, 4,
                                  "full,chunk=128=50%;keyformer:50%,chunk=128=50%");
    int32_t n_vocab = engine_info(e)->n_vocab;

    run_tokens(2, n_vocab, ids, N_PROMPT);
    for (int i = 0; i < 3; i++) {
        struct engine_request q = run_request(ids + i, N_PROMPT - 10 * i, 6);

        q.kv = kv[i];
        run_submit(e, &q, &alone[i]);
        run_all(e);
    }
    struct engine_request talk = run_request(ids + 9, 8, N_LONG);

    talk.kv = kv[0];
    run_submit(e, &talk, &talker);
    while (talker.n_new < 5) {
        (void)run_step(e);
    }
    for (int i = 0; i < 3; i++) {
        struct engine_request q = run_request(ids + i, N_PROMPT - 10 * i, 6);

        q.kv = kv[i];
        q.urgency = i == 2;
        run_submit(e, &q, &r[i]);
        if (i == 1) {
            (void)run_step(e); /* both have begun */
            (void)run_step(e);
        }
    }
    while (r[2].n_new == 0) {
        (void)run_step(e);
    }
    cr_expect_eq(r[0].n_new, 0, "the urgent one came first");
    run_all(e);
    for (int i = 0; i < 3; i++) {
        cr_expect(run_same(&r[i], &alone[i]), "%d", i);
        run_clear(&r[i]);
        run_clear(&alone[i]);
    }
    run_clear(&talker);
    engine_destroy(e);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the early-exit head proposes (exit:draft) changes nothing but the number of steps: tokens
 * and log-probabilities to the bit, usage and saved sequences, whether the head knows nothing
 * (random models), much (deep layers that add nothing: the head is the model's own, but for one
 * word) or is never sure. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv/plan/plan.h"
#include "engine/sched/draft_rounds.h"
#include "tests/unit/engine_run.h"
#include "tests/unit/tiny_model.h"

enum {
    LAYERS = 6,
    SPLIT = 2,
    WORDS = TINY_VOCAB - 1,
    PROMPT = 30,
    NEW = 60,
    MAX_SEQS = 4,
    N_DRAFT = 5
};

struct outcome {
    struct run r[MAX_SEQS];
    void *saved[MAX_SEQS];
    size_t saved_size[MAX_SEQS];
    uint64_t middle[MAX_SEQS]; /* hash of the state at some tokens */
    struct engine_counters c;
};

struct setting {
    const char *backend;
    const char *kv;
    int32_t n_seqs;
    float temperature;
};

static char dir[] = "/tmp/test-exit-draft-XXXXXX";
static char base[64];
static char overlay[64];
static struct engine *engine;
static struct outcome *out;
static int interrupt_every;
static const char *kv_of[MAX_SEQS]; /* a sequence's own policy */

/* idle: deep layers from this one on add nothing. */
static void make(int32_t idle, int32_t words)
{
    const struct tiny_bend bend = {.exit_words = words, .idle_from = idle};

    tiny_model(base, LAYERS, &bend);
    tiny_overlay(overlay, base, LAYERS, SPLIT, 2, false, NULL, &bend);
}

static void set_up(void)
{
    cr_assert(mkdtemp(dir));
    (void)snprintf(base, sizeof(base), "%s/base.gguf", dir);
    (void)snprintf(overlay, sizeof(overlay), "%s/overlay.gguf", dir);
}

static void tear_down(void)
{
    (void)unlink(base);
    (void)unlink(overlay);
    (void)rmdir(dir);
}

TestSuite(exit_draft, .init = set_up, .fini = tear_down);

static void on_event(void *arg, const struct engine_event *ev)
{
    struct run *r = ev->user;
    size_t i = (size_t)(r - out->r);
    int *n_events = arg;
    struct error e = {0};
    void *saved = NULL;
    size_t size = 0;

    if (interrupt_every && ++*n_events % interrupt_every == 0) {
        engine_interrupt(engine);
    }
    if (ev->type == ENGINE_EV_TOKEN) {
        r->tokens[r->n_new] = ev->token;
        r->logprobs[r->n_new++] = ev->logprob;
    }
    if (ev->type == ENGINE_EV_DONE) {
        r->done = true;
        r->usage = ev->usage;
    }
    if (ev->type == ENGINE_EV_DONE || (ev->type == ENGINE_EV_TOKEN && r->n_new % 7 == 0)) {
        cr_assert_eq(engine_save(engine, r->handle, &saved, &size, &e), 0, "%s", e.text);
        for (size_t k = 0; k < size; k++) {
            out->middle[i] =
                (out->middle[i] ^ ((const uint8_t *)saved)[k]) * UINT64_C(0x100000001b3);
        }
        out->saved[i] = ev->type == ENGINE_EV_DONE ? saved : NULL;
        out->saved_size[i] = size;
        if (ev->type != ENGINE_EV_DONE) {
            free(saved);
        }
    }
}

/* Prompts of different lengths; the last one comes when the others decode. */
static struct outcome *play(const struct setting *s, int32_t n_draft)
{
    struct outcome *o = calloc(1, sizeof(*o));
    int32_t ids[MAX_SEQS][PROMPT];
    int n_events = 0;
    int n_steps = 0;

    cr_assert(o);
    out = o;
    run_draft = n_draft;
    engine = run_engine_overlay(base, overlay, s->backend, 128, s->n_seqs, s->kv);
    for (int32_t i = 0, left = 1; i < s->n_seqs || left > 0;) {
        if (i < s->n_seqs && (i + 1 < s->n_seqs || n_steps > 9 || i == 0)) {
            run_tokens((uint64_t)(70 + i), TINY_VOCAB, ids[i], PROMPT);
            struct engine_request q = run_request(ids[i], PROMPT - 3 * i, NEW - 7 * i);

            q.logits_rows = 0;
            q.kv = kv_of[i];
            q.sampler.temperature = s->temperature;
            q.sampler.repeat_penalty = s->temperature > 0 ? 1.02f : 1;
            q.sampler.seed = (uint64_t)(5 + i);
            run_submit(engine, &q, &o->r[i++]);
        }
        left = engine_step(engine, on_event, &n_events);
        cr_assert_geq(left, 0);
        n_steps++;
    }
    engine_counters(engine, &o->c);
    cr_assert_eq(o->c.kv_bytes_used, 0, "all pages are back");
    engine_destroy(engine);
    run_draft = 0;
    return o;
}

static void drop(struct outcome *o)
{
    for (int i = 0; i < MAX_SEQS; i++) {
        run_clear(&o->r[i]);
        free(o->saved[i]);
    }
    free(o);
}

static void same(const struct setting *s, const struct outcome *a, const struct outcome *b)
{
    char what[160];

    (void)snprintf(what, sizeof(what), "%s, %s, %d sequences, temperature %.1f", s->backend, s->kv,
                   s->n_seqs, (double)s->temperature);
    for (int32_t i = 0; i < s->n_seqs; i++) {
        const struct run *x = &a->r[i];
        const struct run *y = &b->r[i];

        cr_assert(x->done && y->done && x->n_new == y->n_new, "%s", what);
        for (int32_t k = 0; k < x->n_new; k++) {
            cr_assert_eq(x->tokens[k], y->tokens[k], "%s: sequence %d, token %d", what, i, k);
        }
        cr_assert_eq(memcmp(x->logprobs, y->logprobs, sizeof(x->logprobs)), 0, "%s", what);
        cr_assert_eq(x->usage.kv_bytes, y->usage.kv_bytes, "%s", what);
        cr_assert_eq(x->usage.n_slots, y->usage.n_slots, "%s", what);
        cr_assert_eq(x->usage.n_exited, y->usage.n_exited, "%s", what);
        cr_assert_eq(a->saved_size[i], b->saved_size[i], "%s", what);
        cr_assert_eq(memcmp(a->saved[i], b->saved[i], a->saved_size[i]), 0, "%s: saved", what);
        cr_assert_eq(a->middle[i], b->middle[i], "%s: saved in between", what);
    }
}

/* Without and with; of what is proposed a share from `least` to `most` comes. */
static void check(const struct setting *s, double least, double most)
{
    struct outcome *plain = play(s, 0);
    struct outcome *drafted = play(s, N_DRAFT);
    double n = (double)drafted->c.n_drafted;

    same(s, plain, drafted);
    cr_assert_eq(plain->c.n_drafted, 0);
    cr_assert_gt(n, 20);
    cr_assert_leq((double)drafted->c.n_accepted, n * most, "%g of %g",
                  (double)drafted->c.n_accepted, n);
    cr_assert_geq((double)drafted->c.n_accepted, n * least, "%g of %g",
                  (double)drafted->c.n_accepted, n);
    /* How many steps others take beside a prompt depends on time. */
    cr_assert(s->n_seqs > 1 || drafted->c.n_steps < plain->c.n_steps);
    drop(drafted);
    drop(plain);
}

static void check_all(const char *kv, double least, double most)
{
    static const char *const backends[] = {"ref", "cpu"};

    for (int b = 0; b < 2; b++) {
        for (int32_t n = 1; n <= MAX_SEQS; n += 3) {
            check(&(struct setting){backends[b], kv, n, 0}, least, most);
            check(&(struct setting){backends[b], kv, n, 0.3f}, 0, most);
        }
    }
}

Test(exit_draft, a_head_that_is_right)
{
    make(SPLIT, WORDS);
    check_all("f16+exit:draft", 0.7, 1);
}

Test(exit_draft, a_head_that_knows_nothing)
{
    make(0, WORDS);
    check_all("f16+exit:draft", 0, 0.5);
}

Test(exit_draft, in_other_precisions)
{
    static const char *const kv[] = {"f32+exit:draft", "fp8+exit:draft", "kv8+exit:draft"};

    make(LAYERS - 1, WORDS);
    for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
        check(&(struct setting){"cpu", kv[i], 3, 0}, 0, 1);
    }
}

/* With few words the head often says "another": then nothing is proposed, and nothing else changes.
 */
Test(exit_draft, another_word_is_not_proposed)
{
    const struct setting s = {"ref", "f32+exit:draft", 2, 0};

    make(SPLIT, 8);
    struct outcome *plain = play(&s, 0);
    struct outcome *drafted = play(&s, N_DRAFT);

    same(&s, plain, drafted);
    cr_assert_gt(drafted->c.n_drafted, 0);
    cr_assert_lt(drafted->c.n_drafted, N_DRAFT * drafted->c.n_steps / 2);
    drop(drafted);
    drop(plain);
}

/* Steps that are cut short between two operations, and between two rounds. */
Test(exit_draft, interrupted)
{
    static const char *const backends[] = {"ref", "cpu"};

    make(SPLIT, WORDS);
    for (int b = 0; b < 2; b++) {
        const struct setting s = {backends[b], "f16+exit:draft", MAX_SEQS, 0.3f};
        struct outcome *plain = play(&s, 0);

        interrupt_every = 2;
        struct outcome *drafted = play(&s, N_DRAFT);

        interrupt_every = 0;
        same(&s, plain, drafted);
        cr_assert_gt(drafted->c.n_drafted, 20);
        drop(drafted);
        drop(plain);
    }
}

/* Beside sequences that exit early, score, or look their drafts up. */
Test(exit_draft, in_mixed_company)
{
    static const char mix[] = "f32+exit:draft=25%;f32+exit:0.3=25%;f32+h2o:50%,min=8=25%;f32=25%";
    const struct setting s = {"ref", mix, MAX_SEQS, 0};

    make(SPLIT, WORDS);
    kv_of[1] = "f32+exit:0.3";
    kv_of[2] = "f32+h2o:50%,min=8";
    kv_of[3] = "f32";
    struct outcome *plain = play(&s, 0);
    struct outcome *drafted = play(&s, N_DRAFT);

    memset(kv_of, 0, sizeof(kv_of));
    same(&s, plain, drafted);
    cr_assert_gt(drafted->r[0].usage.n_accepted, 5);
    cr_assert_eq(drafted->r[1].usage.n_drafted, 0);
    cr_assert_gt(drafted->r[1].usage.n_exited, 5);
    cr_assert_eq(drafted->r[2].usage.n_drafted, 0);
    drop(drafted);
    drop(plain);
}

/* As without the word: what it proposes is verified, so it has no say. */
Test(exit_draft, says_what_the_model_says)
{
    const struct setting with = {"cpu", "f16+exit:draft", 1, 0};
    const struct setting without = {"cpu", "f16", 1, 0};

    make(SPLIT, WORDS);
    struct outcome *a = play(&with, N_DRAFT);
    struct outcome *b = play(&without, 0);

    cr_assert_eq(memcmp(a->r[0].tokens, b->r[0].tokens, sizeof(a->r[0].tokens)), 0);
    cr_assert_eq(memcmp(a->r[0].logprobs, b->r[0].logprobs, sizeof(a->r[0].logprobs)), 0);
    cr_assert_lt(a->c.n_steps * 2, b->c.n_steps, "%zu steps, %zu without", (size_t)a->c.n_steps,
                 (size_t)b->c.n_steps);
    drop(a);
    drop(b);
}

/* Without a head it is refused, at the start and for a request. */
Test(exit_draft, refused_without_a_head)
{
    struct engine_config c;
    struct engine *e;
    struct error err = {0};
    const char *over = overlay;
    int32_t prompt[PROMPT];
    uint64_t handle;

    tiny_model(base, LAYERS, NULL);
    tiny_overlay(overlay, base, LAYERS, SPLIT, 2, false, NULL, NULL);
    engine_config_default(&c);
    c.model_path = base;
    c.overlay_paths = &over;
    c.n_overlays = 1;
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = 128;
    c.kv = "f16+exit:draft";
    cr_assert_eq(engine_create(&c, NULL, NULL, &e, &err), -ENOTSUP);
    cr_assert(strstr(err.text, "this one's brings none"), "%s", err.text);
    c.kv = "f16";
    cr_assert_eq(engine_create(&c, NULL, NULL, &e, &err), 0, "%s", err.text);
    run_tokens(3, TINY_VOCAB, prompt, PROMPT);
    struct engine_request q = run_request(prompt, PROMPT, 3);

    q.kv = "f16+exit:draft";
    q.logits_rows = 0;
    cr_assert_eq(engine_submit(e, &q, &handle, &err), -ENOTSUP);
    engine_destroy(e);
}

/* The plan knows what rounds need. */
Test(exit_draft, is_planned)
{
    struct engine *with;
    struct engine *without;

    make(SPLIT, WORDS);
    run_draft = N_DRAFT;
    with = run_engine_overlay(base, overlay, "ref", 128, 2, "f16+exit:draft");
    run_draft = 0;
    without = run_engine_overlay(base, overlay, "ref", 128, 2, "f16+exit:draft");
    cr_assert_gt(engine_plan_of(with)->scratch_bytes, engine_plan_of(without)->scratch_bytes);
    engine_destroy(with);
    engine_destroy(without);
}

static int32_t rounds(float sure, float right, double round_cost, int32_t room)
{
    double of[9] = {0};
    int64_t at[9] = {0};
    struct draft_rounds d = {.cost = {.n_rows = 8, .of = of, .at = at}};
    const struct draft_sure c = {.asked = 1, .sure = sure, .tried = 1, .right = right};
    const struct draft_sure *all[1] = {&c};

    for (int i = 0; i < DRAFT_COST_PLAIN; i++) {
        draft_cost_add(&d.cost, 0, 1000);
    }
    draft_cost_add(&d.cost, 1, 1000 * (1 + round_cost));
    return draft_rounds_choose(&d, all, &room, 1, 1, 8);
}

Test(exit_draft, as_many_rounds_as_are_worth_it)
{
    cr_assert_eq(rounds(1, 1, 0.5, 8), 8);       /* always right: 9 tokens in 5 */
    cr_assert_eq(rounds(1, 1, 0.5, 3), 3);       /* no room for more */
    cr_assert_eq(rounds(1, 0.4f, 0.5, 8), 0);    /* 1.4 tokens in 1.5 */
    cr_assert_eq(rounds(1, 0.7f, 0.5, 8), 1);    /* 1.7 / 1.5, and then 2.19 / 2 */
    cr_assert_eq(rounds(0.3f, 0.9f, 0.5, 8), 5); /* only where it is sure: 1.27 / 1.15, and on */
    cr_assert_eq(rounds(0.3f, 0.4f, 0.5, 8), 0);
    cr_assert_eq(rounds(1, 0.9f, 1, 8), 0); /* a round as dear as a step */
}

/* Where it does not pay the head is asked again after some steps, for one token. */
Test(exit_draft, tries_again)
{
    double of[9] = {0};
    int64_t at[9] = {0};
    struct draft_rounds d = {.cost = {.n_rows = 8, .of = of, .at = at}};
    struct draft_sure c;
    const struct draft_sure *all[1] = {&c};
    int32_t room = 8;
    int n = 0;

    draft_sure_init(&c);
    cr_assert_gt(draft_rounds_choose(&d, all, &room, 1, 1, 8), 0, "unknown, so it is tried");
    for (int i = 0; i < 100; i++) {
        draft_sure_asked(&c, 1, false);
        draft_sure_tried(&c, false);
    }
    draft_cost_add(&d.cost, 0, 1000);
    draft_cost_add(&d.cost, 0, 1000);
    draft_cost_add(&d.cost, 0, 1000);
    draft_cost_add(&d.cost, 1, 1500);
    for (int i = 0; i < 2 * DRAFT_ROUNDS_AGAIN; i++) {
        int32_t r = draft_rounds_choose(&d, all, &room, 1, 1, 8);

        cr_assert_leq(r, 1);
        n += r;
    }
    cr_assert_eq(n, 2);
}

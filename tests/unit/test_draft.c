/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts change nothing but the number of steps: tokens and log-probabilities to the bit, usage and
 * saved sequences, greedy and drawn, alone and in company; under policies that drafts do not suit
 * there are none. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/unit/engine_run.h"

enum { MAX_SEQS = 4, MAX_PROMPT = 600, N_DRAFT = 7 };

struct setting {
    const char *model;
    const char *backend;
    const char *kv;
    int32_t n_seqs;
    float temperature;
    int32_t n_prompt;
    int32_t n_new;
    int32_t ctx;
};

struct outcome {
    struct run r[MAX_SEQS];
    void *saved[MAX_SEQS]; /* as of the DONE event */
    size_t saved_size[MAX_SEQS];
    uint64_t middle[MAX_SEQS]; /* hash of the state at each token */
    struct engine_counters c;
    uint64_t used[RUN_MAX_NEW]; /* the one sequence's bytes between two steps, by its new tokens */
};

static struct engine *engine;
static struct outcome *out;
static int interrupt_every;

static uint64_t hash(uint64_t h, const void *p, size_t n)
{
    const uint8_t *b = p;

    for (size_t i = 0; i < n; i++) {
        h = (h ^ b[i]) * UINT64_C(0x100000001b3);
    }
    return h;
}

/* Keeps what run_submit()'s own callback would, and the sequence's state. */
static void on_event(void *arg, const struct engine_event *ev)
{
    struct run *r = ev->user;
    size_t i = (size_t)(r - out->r);
    struct error e = {0};
    void *saved = NULL;
    size_t size = 0;
    int *n_events = arg;

    if (interrupt_every && ++*n_events % interrupt_every == 0) {
        engine_interrupt(engine);
    }
    if (ev->type == ENGINE_EV_TOKEN) {
        r->tokens[r->n_new] = ev->token;
        r->logprobs[r->n_new++] = ev->logprob;
    }
    if (ev->type == ENGINE_EV_DONE) {
        r->done = true;
        r->reason = ev->reason;
        r->usage = ev->usage;
    }
    if (ev->type == ENGINE_EV_DONE || (ev->type == ENGINE_EV_TOKEN && r->n_new % 9 == 0)) {
        cr_assert_eq(engine_save(engine, r->handle, &saved, &size, &e), 0, "%s", e.text);
        out->middle[i] = hash(out->middle[i], saved, size);
        if (ev->type == ENGINE_EV_DONE) {
            out->saved[i] = saved;
            out->saved_size[i] = size;
        } else {
            free(saved);
        }
    }
}

/* Prompts that repeat themselves in part, of different lengths; the last one comes late. */
static struct outcome *play(const struct setting *s, int32_t n_draft)
{
    struct outcome *o = calloc(1, sizeof(*o));
    int32_t ids[MAX_SEQS][MAX_PROMPT];
    int32_t half = s->n_prompt / 2;
    int n_events = 0;
    int n_steps = 0;

    cr_assert(o);
    out = o;
    run_draft = n_draft;
    engine = run_engine(s->model, s->backend, s->ctx, s->n_seqs, s->kv);
    for (int32_t i = 0; i < s->n_seqs; i++) {
        run_tokens((uint64_t)(40 + i), engine_info(engine)->n_vocab, ids[i], s->n_prompt);
        memcpy(ids[i] + half, ids[i], (size_t)half * sizeof(ids[i][0]));
    }
    for (int32_t i = 0, left = 1; i < s->n_seqs || left > 0;) {
        if (i < s->n_seqs && (i + 1 < s->n_seqs || n_steps > 20 || i == 0)) {
            struct engine_request q = run_request(ids[i], s->n_prompt - 5 * i, s->n_new - 11 * i);

            q.logits_rows = 0;
            q.sampler.temperature = s->temperature;
            q.sampler.repeat_penalty = s->temperature > 0 ? 1.02f : 1;
            q.sampler.seed = (uint64_t)(5 + i);
            run_submit(engine, &q, &o->r[i++]);
        }
        left = engine_step(engine, on_event, &n_events);
        cr_assert_geq(left, 0);
        n_steps++;
        engine_counters(engine, &o->c);
        if (s->n_seqs == 1 && !interrupt_every && !o->r[0].done) {
            o->used[o->r[0].n_new] = o->c.kv_bytes_used;
        }
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

    (void)snprintf(what, sizeof(what), "%s, %s, %s, %d sequences, temperature %.1f", s->model,
                   s->backend, s->kv ? s->kv : "full", s->n_seqs, (double)s->temperature);
    for (int32_t n = 1; n < RUN_MAX_NEW; n++) {
        cr_assert(a->used[n] == b->used[n] || a->used[n] == 0 || b->used[n] == 0,
                  "%s: bytes held after %d tokens", what, n);
    }
    for (int32_t i = 0; i < s->n_seqs; i++) {
        const struct run *x = &a->r[i];
        const struct run *y = &b->r[i];

        cr_assert(x->done && y->done && x->n_new == y->n_new && x->reason == y->reason, "%s", what);
        for (int32_t k = 0; k < x->n_new; k++) {
            cr_assert_eq(x->tokens[k], y->tokens[k], "%s: sequence %d, token %d", what, i, k);
        }
        cr_assert_eq(memcmp(x->logprobs, y->logprobs, sizeof(x->logprobs)), 0, "%s", what);
        cr_assert_eq(x->usage.kv_bytes, y->usage.kv_bytes, "%s", what);
        cr_assert_eq(x->usage.n_slots, y->usage.n_slots, "%s", what);
        cr_assert_eq(a->saved_size[i], b->saved_size[i], "%s", what);
        cr_assert_eq(memcmp(a->saved[i], b->saved[i], a->saved_size[i]), 0, "%s: saved", what);
        cr_assert_eq(a->middle[i], b->middle[i], "%s: saved in between", what);
    }
}

/* Without and with. `drafts`: there are some, right ones and wrong ones. */
static void check(const struct setting *s, bool drafts)
{
    struct outcome *plain = play(s, 0);
    struct outcome *drafted = play(s, N_DRAFT);

    same(s, plain, drafted);
    cr_assert_eq(plain->c.n_drafted, 0);
    if (drafts) {
        cr_assert_gt(drafted->c.n_accepted, 5, "%s %s: %zu of %zu", s->model, s->backend,
                     (size_t)drafted->c.n_accepted, (size_t)drafted->c.n_drafted);
        cr_assert_gt(drafted->c.n_drafted, drafted->c.n_accepted);
        cr_assert_lt(drafted->c.n_steps, plain->c.n_steps);
    } else {
        cr_assert_eq(drafted->c.n_drafted, 0, "%s", s->kv);
    }
    drop(drafted);
    drop(plain);
}

/* Steps that are cut short between two operations. */
Test(draft, interrupted)
{
    const struct setting s = {"stories260K.gguf", "cpu", NULL, 4, 0.3f, 60, 80, 160};
    struct outcome *plain = play(&s, 0);

    interrupt_every = 3;
    struct outcome *drafted = play(&s, N_DRAFT);

    interrupt_every = 0;
    same(&s, plain, drafted);
    cr_assert_gt(drafted->c.n_drafted, 0);
    drop(drafted);
    drop(plain);
}

Test(draft, changes_nothing)
{
    static const char *const backends[] = {"ref", "cpu"};

    for (int b = 0; b < 2; b++) {
        int32_t n_new = b ? 110 : 70;

        for (int32_t n = 1; n <= MAX_SEQS; n += 3) {
            check(&(struct setting){"stories260K.gguf", backends[b], NULL, n, 0, 60, n_new, 180},
                  true);
            check(&(struct setting){"stories260K.gguf", backends[b], NULL, n, 0.3f, 60, n_new, 180},
                  true);
        }
    }
}

Test(draft, in_other_precisions)
{
    static const char *const kv[] = {"f32", "bf16", "fp8", "kv8", "k16v8"};

    for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
        check(&(struct setting){"stories260K.gguf", "cpu", kv[i], 2, 0.3f, 60, 100, 180}, true);
    }
}

/* Sliding layers' rings (window and chunk, 576 slots): before they are full, and no more from then
 * on. */
Test(draft, rings)
{
    check(&(struct setting){"arch_gemma3.gguf", "cpu", NULL, 1, 0, 60, 90, 700}, true);
    check(&(struct setting){"arch_gemma3.gguf", "cpu", NULL, 1, 0, 500, 100, 700}, true);
    check(&(struct setting){"arch_gemma3.gguf", "cpu", NULL, 1, 0, 590, 20, 700}, false);
}

Test(draft, not_where_rows_would_count)
{
    static const char *const kv[] = {"window:64",          "h2o:50%,min=8", "keyformer:50%,min=8",
                                     "recency:40,pos=new", "topv:20",       "sparq:r=4,k=30"};

    for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
        check(&(struct setting){"stories260K.gguf", "cpu", kv[i], 2, 0, 60, 40, 120}, false);
    }
}

/* What is known need not be guessed: a replay takes fewer steps, and says the same. */
Test(draft, forced_tokens)
{
    static struct run want;
    static struct run got;
    int32_t ids[40];
    struct engine_counters c[2];

    for (int k = 0; k < 2; k++) {
        run_draft = k ? N_DRAFT : 0;
        struct engine *e = run_engine("stories260K.gguf", "cpu", 256, 1, NULL);

        run_tokens(3, engine_info(e)->n_vocab, ids, 40);
        struct engine_request q = run_request(ids, 40, 130);

        q.logits_rows = 0;
        if (k) {
            q.forced = want.tokens;
            q.n_forced = 100;
        }
        run_submit(e, &q, k ? &got : &want);
        run_all(e);
        engine_counters(e, &c[k]);
        engine_destroy(e);
    }
    run_draft = 0;
    cr_assert_eq(got.n_new, 130);
    cr_assert_eq(memcmp(want.tokens, got.tokens, sizeof(want.tokens)), 0);
    cr_assert_eq(memcmp(want.logprobs, got.logprobs, sizeof(want.logprobs)), 0);
    cr_assert_lt(c[1].n_steps, 50, "%zu steps, %zu without drafts", (size_t)c[1].n_steps,
                 (size_t)c[0].n_steps);
    run_clear(&want);
    run_clear(&got);
}

/* Who asks for none, or for logits, has none; more than was planned cannot be had. */
Test(draft, only_who_wants_them)
{
    static struct run r[3];
    int32_t ids[60];

    run_draft = 3;
    struct engine *e = run_engine("stories260K.gguf", "cpu", 256, 3, NULL);

    run_tokens(3, engine_info(e)->n_vocab, ids, 30);
    memcpy(ids + 30, ids, sizeof(ids) / 2);
    for (int i = 0; i < 3; i++) {
        struct engine_request q = run_request(ids, 60, 100);

        q.logits_rows = i == 1 ? q.logits_rows : 0;
        q.n_draft = i == 0 ? 0 : 1000;
        run_submit(e, &q, &r[i]);
    }
    run_all(e);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(memcmp(r[i].logprobs, r[0].logprobs, sizeof(r[0].logprobs)), 0);
        cr_assert_eq(r[i].usage.n_drafted > 0, i == 2, "%d: %d", i, r[i].usage.n_drafted);
        run_clear(&r[i]);
    }
    engine_destroy(e);
    run_draft = 0;
}

/* A fork taken between two steps of a sequence that drafts. */
Test(draft, forks)
{
    static struct run want;
    static struct run r[2];
    int32_t ids[60];

    for (int k = 0; k < 2; k++) {
        run_draft = k ? N_DRAFT : 0;
        struct engine *e = run_engine("stories260K.gguf", "cpu", 256, 2, NULL);

        run_tokens(3, engine_info(e)->n_vocab, ids, 30);
        memcpy(ids + 30, ids, sizeof(ids) / 2);
        struct engine_request q = run_request(ids, 60, 150);

        q.logits_rows = 0;
        run_submit(e, &q, k ? &r[0] : &want);
        while (k && r[0].n_new < 70) {
            (void)run_step(e);
        }
        if (k) {
            q.fork_of = r[0].handle;
            q.forced = r[0].tokens;
            q.n_forced = r[0].n_new;
            q.report_forced = false;
            run_submit(e, &q, &r[1]);
        }
        run_all(e);
        engine_destroy(e);
    }
    run_draft = 0;
    cr_assert_eq(r[0].n_new, 150);
    cr_assert_eq(memcmp(r[0].logprobs, want.logprobs, sizeof(want.logprobs)), 0);
    cr_assert_gt(r[1].n_new, 10);
    cr_assert_eq(memcmp(r[1].tokens, want.tokens + 150 - r[1].n_new,
                        (size_t)r[1].n_new * sizeof(r[1].tokens[0])),
                 0);
    cr_assert_eq(memcmp(r[1].logprobs, want.logprobs + 150 - r[1].n_new,
                        (size_t)r[1].n_new * sizeof(r[1].logprobs[0])),
                 0);
    run_clear(&want);
    run_clear(&r[0]);
    run_clear(&r[1]);
}

Test(draft, a_real_model, .timeout = 120)
{
    const char *model = getenv("PIPIT_SMOLLM2");

    if (!model) {
        cr_skip_test("PIPIT_SMOLLM2 is not set");
    }
    check(&(struct setting){model, "cpu", NULL, 1, 0.6f, 100, 90, 512}, true);
    check(&(struct setting){model, "cpu", "fp8", 4, 0.6f, 100, 60, 512}, true);
}

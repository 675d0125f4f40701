/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts change nothing but the number of steps: tokens and log-probabilities to the bit, usage and
 * saved sequences, greedy and drawn, alone and in company; under policies that drafts do not suit
 * there are none. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sanitized.h"
#include "engine/sched/draft_cost.h"
#include "tests/turn.h"
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
    if (!takes_turn()) {
        return;
    }

    struct outcome *plain = play(s, 0);
    struct outcome *drafted = play(s, N_DRAFT);

    same(s, plain, drafted);
    cr_assert_eq(plain->c.n_drafted, 0);
    if (drafts) {
        cr_assert_gt(drafted->c.n_accepted, 5, "%s %s: %zu of %zu", s->model, s->backend,
                     (size_t)drafted->c.n_accepted, (size_t)drafted->c.n_drafted);
        cr_assert_gt(drafted->c.n_drafted, drafted->c.n_accepted);
        /* How many steps others take beside a prompt depends on time. */
        cr_assert(s->n_seqs > 1 || drafted->c.n_steps < plain->c.n_steps);
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
    check(&(struct setting){"heads_32.gguf", "cpu", "kv4", 2, 0, 60, 100, 180}, true);
    check(&(struct setting){"heads_32.gguf", "ref", "k8v4", 2, 0, 60, 100, 180}, true);
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

/* Who asks for none, or for logits, has none; more than was planned cannot be had, nor less than
 * none. */
Test(draft, only_who_wants_them)
{
    static const int32_t wanted[4] = {0, 1000, 1000, -1};
    static struct run r[4];
    int32_t ids[60];
    int32_t most = 0;

    run_draft = 3;
    struct engine *e = run_engine("stories260K.gguf", "cpu", 256, 4, NULL);

    run_tokens(3, engine_info(e)->n_vocab, ids, 30);
    memcpy(ids + 30, ids, sizeof(ids) / 2);
    for (int i = 0; i < 4; i++) {
        struct engine_request q = run_request(ids, 60, 100);

        q.logits_rows = i == 1 ? q.logits_rows : 0;
        q.n_draft = wanted[i];
        run_submit(e, &q, &r[i]);
    }
    for (int32_t before = 0; run_step(e) > 0; before = r[2].n_new) {
        most = r[2].n_new - before > most ? r[2].n_new - before : most;
    }
    cr_assert(most > 1 && most <= 1 + run_draft, "%d tokens in a step", most);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(memcmp(r[i].logprobs, r[0].logprobs, sizeof(r[0].logprobs)), 0);
        cr_assert_eq(r[i].usage.n_drafted > 0, i == 2, "%d: %d", i, r[i].usage.n_drafted);
        run_clear(&r[i]);
    }
    engine_destroy(e);
    run_draft = 0;
}

struct ending {
    struct run *first; /* ends after its n-th token */
    int32_t n;
    struct engine *e;
    int32_t in_step; /* tokens of `first` in this step */
    int32_t last;    /* of them in the step that ended it */
};

static void on_event_ending(void *arg, const struct engine_event *ev)
{
    struct ending *x = arg;
    struct run *r = ev->user;

    if (ev->type == ENGINE_EV_DONE) {
        r->done = true;
        r->reason = ev->reason;
    }
    if (ev->type != ENGINE_EV_TOKEN) {
        return;
    }
    r->tokens[r->n_new] = ev->token;
    r->logprobs[r->n_new++] = ev->logprob;
    x->in_step += r == x->first;
    if (r == x->first && r->n_new == x->n) {
        x->last = x->in_step;
        cr_assert_eq(engine_cancel(x->e, r->handle, ENGINE_STOP), 0);
    }
}

/* The user stops a request at a token that came with others in one step (a stop string): none comes
 * after it, though more were drafted; the other sequence does not notice. */
Test(draft, stopped_inside_a_draft)
{
    static struct run want[2];
    static struct run r[2];
    int32_t ids[60];
    int n_inside = 0;

    for (int32_t stop = 0; stop < 24; stop++) { /* 0: what they say without drafts, to the end */
        struct run *out_of = stop ? r : want;
        struct engine_counters c;

        run_draft = stop ? N_DRAFT : 0;
        struct engine *e = run_engine("stories260K.gguf", "cpu", 256, 2, NULL);
        struct ending x = {.first = &out_of[0], .n = stop ? 70 + stop : INT32_MAX, .e = e};

        run_tokens(3, engine_info(e)->n_vocab, ids, 30);
        memcpy(ids + 30, ids, sizeof(ids) / 2);
        for (int i = 0; i < 2; i++) {
            struct engine_request q = run_request(ids, 60 - i, 120);

            q.logits_rows = 0;
            run_submit(e, &q, &out_of[i]);
        }
        do {
            x.in_step = 0;
        } while (engine_step(e, on_event_ending, &x) > 0);
        engine_counters(e, &c);
        cr_assert_eq(c.kv_bytes_used, 0, "all pages are back");
        engine_destroy(e);
        for (int i = 0; stop && i < 2; i++) {
            int32_t n = i == 0 ? x.n : 120;

            cr_assert(r[i].done && r[i].n_new == n, "%d: %d tokens", i, r[i].n_new);
            cr_assert_eq(r[i].reason, i == 0 ? ENGINE_STOP : ENGINE_LENGTH);
            cr_assert_eq(memcmp(r[i].tokens, want[i].tokens, (size_t)n * sizeof(int32_t)), 0);
            cr_assert_eq(memcmp(r[i].logprobs, want[i].logprobs, (size_t)n * sizeof(float)), 0);
            run_clear(&r[i]);
        }
        n_inside += x.last > 1;
    }
    cr_assert_gt(n_inside, 5, "stopped at a token that was not its step's first");
    run_draft = 0;
    run_clear(&want[0]);
    run_clear(&want[1]);
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

enum { N_COST = 16 };

struct costs {
    struct draft_cost c;
    double of[N_COST + 1];
    int64_t at[N_COST + 1];
};

static void costs_begin(struct costs *k, int n_plain)
{
    *k = (struct costs){.c = {.n_rows = N_COST}};
    k->c.of = k->of;
    k->c.at = k->at;
    for (int i = 0; i < n_plain; i++) {
        draft_cost_add(&k->c, 0, 1000);
    }
}

/* Each row: the plain step's three times, then steps of n rows; what a step of `ask` rows then
 * costs. */
Test(draft, costs_from_times)
{
    static const struct {
        double plain[3];
        struct {
            int32_t n;
            double ns;
        } step[3];
        int32_t ask;
        double cost;
    } cases[] = {
        {{1000, 1000, 1000}, {{0, 0}}, 4, 1.2},                /* nothing is known: assumed */
        {{1000, 1000, 1000}, {{4, 1800}}, 4, 1.8},             /* what was measured */
        {{1000, 1000, 1000}, {{4, 1800}}, 2, 1.4},             /* between it and none */
        {{1000, 1000, 1000}, {{4, 1800}}, 8, 2.6},             /* beyond it */
        {{1000, 1000, 1000}, {{4, 1400}, {8, 2600}}, 6, 2.0},  /* between two */
        {{9000, 1000, 1000}, {{4, 1800}}, 4, 1.8},             /* one plain step in a bad moment: */
        {{1000, 9000, 1000}, {{4, 1800}}, 4, 1.8},             /* drafts do not seem free */
        {{1000, 1000, 9000}, {{4, 1800}}, 4, 1.8},             /* whichever it is */
        {{1000, 100, 1000}, {{4, 1800}}, 4, 1.8},              /* nor dear */
        {{1000, 1000, 1000}, {{4, 90000}}, 4, 2.4},            /* a first sample in a bad moment */
        {{1000, 1000, 1000}, {{4, 2000}, {4, 3000}}, 4, 2.2},  /* a fifth of the way up, */
        {{1000, 1000, 1000}, {{4, 2000}, {4, 1000}}, 4, 1.8},  /* as of the way down */
        {{1000, 1000, 1000}, {{4, 2000}, {4, 90000}}, 4, 2.4}, /* as if twice what is known */
        {{1000, 1000, 1000}, {{4, 500}}, 4, 1},                /* more rows cost no less */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct costs k;

        costs_begin(&k, 0);
        for (int j = 0; j < 3; j++) {
            cr_assert(draft_cost_wants_plain(&k.c));
            draft_cost_add(&k.c, 0, cases[i].plain[j]);
        }
        cr_assert(!draft_cost_wants_plain(&k.c));
        for (int j = 0; j < 3 && cases[i].step[j].n; j++) {
            draft_cost_add(&k.c, cases[i].step[j].n, cases[i].step[j].ns);
        }
        cr_assert_float_eq(draft_cost_of(&k.c, cases[i].ask), cases[i].cost, 1e-9, "case %zu: %f",
                           i, draft_cost_of(&k.c, cases[i].ask));
    }
}

Test(draft, costs_are_forgotten_and_anew)
{
    struct costs k;

    costs_begin(&k, 3);
    draft_cost_add(&k.c, 4, 2000);
    for (int i = 0; i < DRAFT_COST_AGE - 1; i++) { /* other numbers do not keep it alive */
        cr_assert_float_eq(draft_cost_of(&k.c, 4), 2, 1e-9, "step %d", i);
        draft_cost_add(&k.c, i % 2 ? 1 : 0, 1000);
    }
    cr_assert_float_eq(draft_cost_of(&k.c, 4), 1, 1e-9, "goes by one row's now");

    /* Steps with drafts, and then one without. */
    costs_begin(&k, 3);
    for (int i = 0; i < DRAFT_COST_EVERY; i++) {
        cr_assert(!draft_cost_wants_plain(&k.c));
        draft_cost_add(&k.c, 2, 1200);
    }
    cr_assert(draft_cost_wants_plain(&k.c));
    draft_cost_add(&k.c, 0, 1000);
    cr_assert(!draft_cost_wants_plain(&k.c));

    /* Others decode: no ratio to the time of those before; ratios stay. */
    draft_cost_anew(&k.c);
    cr_assert(draft_cost_wants_plain(&k.c));
    draft_cost_add(&k.c, 2, 90000);
    cr_assert_float_eq(draft_cost_of(&k.c, 2), 1.2, 1e-9);
}

Test(draft, a_real_model)
{
    const char *model = getenv("PIPIT_SMOLLM2");

#if SANITIZED
    model = NULL; /* minutes, and the same code as with the small one */
#endif
    if (!model) {
        cr_skip_test("PIPIT_SMOLLM2 is not set, or this is a sanitizer's build");
    }
    check(&(struct setting){model, "cpu", NULL, 1, 0.6f, 100, 90, 512}, true);
    check(&(struct setting){model, "cpu", "fp8", 4, 0.6f, 100, 60, 512}, true);
}

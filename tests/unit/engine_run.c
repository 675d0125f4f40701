/* SPDX-License-Identifier: Apache-2.0 */
/* Running requests in tests: events are written into the run that their user points to. */

#include "tests/unit/engine_run.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

int run_threads =
    1; /* two cores are often busy with other tests, and spinning threads then crawl */

bool run_keep_prefixes;

int32_t run_draft;
uint32_t run_cpu_mask = UINT32_MAX;

int32_t run_gap_target_ms;

int32_t run_prompt_rows;

const struct tier_calls *run_tier_calls;

const char *run_overlay_below;

const char *run_data(const char *name)
{
    static char path[4][512];
    static int next;
    char *p = path[next++ % 4];
    const char *dir = getenv("PIPIT_TEST_DATA");

    if (name[0] == '/') {
        return name;
    }
    (void)snprintf(p, sizeof(path[0]), "%s/%s", dir ? dir : "tests/data", name);
    return p;
}

struct engine *run_engine_overlay(const char *model, const char *overlay, const char *backend,
                                  int32_t ctx, int32_t n_seqs, const char *kv)
{
    struct engine_config c;
    struct engine *e = NULL;
    struct error err = {0};
    const char *overlays[2] = {NULL};

    engine_config_default(&c);
    c.model_path = run_data(model);
    c.overlay_paths = overlays;
    if (run_overlay_below) {
        overlays[c.n_overlays++] = run_data(run_overlay_below);
    }
    if (overlay) {
        overlays[c.n_overlays++] = run_data(overlay);
    }
    c.backend = backend;
    c.n_threads = run_threads;
    c.ctx = ctx;
    c.n_seqs = n_seqs;
    c.kv = kv;
    c.keep_prefixes = run_keep_prefixes;
    c.n_draft = run_draft;
    c.cpu_mask = run_cpu_mask;
    c.gap_target_ms = run_gap_target_ms;
    c.prompt_rows = run_prompt_rows;
    c.tier_dir = "/tmp";
    c.tier_calls = run_tier_calls;
    c.draft_always = run_draft > 0;
    int r = engine_create(&c, NULL, NULL, &e, &err);

    if (r == -ENOTSUP && strcmp(backend, "ref") != 0) {
        cr_skip_test("backend %s: %s", backend, err.text);
    }
    cr_assert_eq(r, 0, "%s: %s", model, err.text);
    return e;
}

struct engine *run_engine(const char *model, const char *backend, int32_t ctx, int32_t n_seqs,
                          const char *kv)
{
    return run_engine_overlay(model, NULL, backend, ctx, n_seqs, kv);
}

struct engine_request run_request(const int32_t *prompt, int32_t n_prompt, int32_t n_new)
{
    struct engine_request q = {
        .kind = ENGINE_GENERATE,
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_tokens = n_new,
        .ignore_end = true,
        .report_forced = true,
        .n_draft = run_draft,
        .sampler = sampler_params_default(),
        .logits_rows = RUN_MAX_NEW,
    };

    q.sampler.temperature = 0;
    q.sampler.n_logprobs = 0;
    return q;
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct run *r = ev->user;

    (void)arg;
    cr_assert(!r->done, "an event after DONE");
    switch (ev->type) {
    case ENGINE_EV_PROGRESS:
        cr_assert_gt(ev->n_done, r->progress);
        r->progress = ev->n_done;
        r->n_progress++;
        break;
    case ENGINE_EV_TOKEN:
        cr_assert_lt(r->n_new, RUN_MAX_NEW);
        r->tokens[r->n_new] = ev->token;
        r->logprobs[r->n_new++] = ev->logprob;
        break;
    case ENGINE_EV_SCORE:
        cr_assert_eq(ev->index, r->n_scored);
        cr_assert_leq(r->n_scored + ev->n_done, RUN_MAX_SCORED);
        for (int32_t i = 0; i < ev->n_done; i++) {
            r->logprobs[r->n_scored++] = ev->logprobs[i];
        }
        break;
    case ENGINE_EV_HIDDEN:
        r->n_hidden += ev->n_done;
        break;
    case ENGINE_EV_DONE:
        r->done = true;
        r->reason = ev->reason;
        r->error = ev->error;
        r->usage = ev->usage;
        break;
    }
}

void run_submit(struct engine *e, const struct engine_request *q, struct run *r)
{
    struct engine_request own = *q;
    struct error err = {0};

    memset(r, 0, sizeof(*r));
    r->n_vocab = engine_info(e)->n_vocab;
    r->logits = calloc((size_t)RUN_MAX_NEW * (size_t)r->n_vocab, sizeof(float));
    cr_assert(r->logits);
    own.user = r;
    own.logits = own.logits_rows ? r->logits : NULL;
    cr_assert_eq(engine_submit(e, &own, &r->handle, &err), 0, "%s", err.text);
}

int run_step(struct engine *e)
{
    int n = engine_step(e, on_event, NULL);

    cr_assert_geq(n, 0, "engine_step: %d", n);
    return n;
}

void run_all(struct engine *e)
{
    while (run_step(e) > 0) {
    }
}

void run_clear(struct run *r)
{
    free(r->logits);
    r->logits = NULL;
}

bool run_same(const struct run *a, const struct run *b)
{
    return a->n_new == b->n_new && a->n_scored == b->n_scored &&
           memcmp(a->tokens, b->tokens, (size_t)a->n_new * sizeof(*a->tokens)) == 0 &&
           memcmp(a->logits, b->logits,
                  (size_t)a->n_new * (size_t)a->n_vocab * sizeof(*a->logits)) == 0 &&
           memcmp(a->logprobs, b->logprobs, sizeof(a->logprobs)) == 0;
}

void run_tokens(uint64_t seed, int32_t n_vocab, int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        uint32_t counter[4] = {(uint32_t)i, 0, 0, 0};
        uint32_t out[4];

        rng_philox(rng_key_make(seed), counter, out);
        ids[i] = (int32_t)(out[0] % (uint32_t)n_vocab);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One engine under measurement. A depth is reached by made-up K and V (engine_request.synthetic),
 * so that 32k tokens take a second and not minutes; --real reads them. From there each
 * engine_step() is one decode step of all sequences, timed by itself: one that was disturbed is
 * then one step, not a whole sample. */

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "bench/speed/bench.h"

enum { WARM_UP = 3, MAX_STEPS = 4096 };

/* The sample under way. */
struct sample {
    int n_steps; /* wanted */
    int n;       /* of them ended */
    int n_clean;
    int n_tokens; /* of the step under way */
    int64_t began_ns;
    long switches;
    double all[MAX_STEPS];
    double clean[MAX_STEPS];
};

struct runner {
    struct runner_config config;
    struct engine *e;
    int32_t *tokens; /* (ctx) */
    uint64_t handle[BENCH_MAX_BATCH];
    int n_first; /* sequences that gave their first token */
    int64_t first_ns;
    int n_done;
    int n_left;
    struct error error;
    struct sample sample;
};

static void begin_sample(struct runner *r, int n_steps)
{
    struct sample *s = &r->sample;

    s->n_steps = n_steps < MAX_STEPS ? n_steps : MAX_STEPS;
    s->n = 0;
    s->n_clean = 0;
    s->n_tokens = 0;
    s->switches = bench_switches();
    s->began_ns = clock_ns();
}

/* A token was said: the last one of a step ends it. */
static void count_token(struct runner *r)
{
    struct sample *s = &r->sample;

    if (s->n >= s->n_steps || ++s->n_tokens < r->config.n_batch) {
        return;
    }
    int64_t now = clock_ns();
    long switches = bench_switches();

    s->all[s->n] = (double)(now - s->began_ns);
    if (switches == s->switches) {
        s->clean[s->n_clean++] = s->all[s->n];
    }
    s->n_tokens = 0;
    s->began_ns = now;
    s->switches = switches;
    if (++s->n == s->n_steps) {
        engine_notice(r->e);
    }
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct runner *r = arg;

    if (ev->type == ENGINE_EV_TOKEN) {
        if (ev->index == 0) {
            r->n_first++;
            r->first_ns = clock_ns();
        }
        count_token(r);
    } else if (ev->type == ENGINE_EV_DONE) {
        r->n_done++;
        if (ev->reason == ENGINE_ERROR) {
            r->error = ev->error;
        }
    }
}

int runner_create(const struct runner_config *c, struct runner **ret, struct error *reterr)
{
    struct runner *r = calloc(1, sizeof(*r));
    int err;

    if (!r) {
        return error_set(reterr, -ENOMEM, "no memory");
    }
    r->config = *c;
    err = engine_create(&c->engine, NULL, NULL, &r->e, reterr);
    if (!err) {
        r->tokens = calloc((size_t)engine_info(r->e)->ctx, sizeof(*r->tokens));
        err = r->tokens ? 0 : error_set(reterr, -ENOMEM, "no memory for prompts");
    }
    if (err) {
        runner_destroy(r);
        return err;
    }
    for (int32_t i = 0; i < engine_info(r->e)->ctx; i++) {
        uint32_t bits[4];

        rng_philox(rng_key_make(1), (uint32_t[4]){(uint32_t)i, 0, 0, 0}, bits);
        r->tokens[i] = (int32_t)(bits[0] % (uint32_t)engine_info(r->e)->n_vocab);
    }
    *ret = r;
    return 0;
}

void runner_destroy(struct runner *r)
{
    if (r) {
        engine_destroy(r->e);
        free(r->tokens);
        free(r);
    }
}

struct engine *runner_engine(const struct runner *r)
{
    return r->e;
}

static int submit(struct runner *r, const struct engine_request *like, struct error *reterr)
{
    r->n_first = 0;
    r->n_done = 0;
    r->error = (struct error){0};
    for (int i = 0; i < r->config.n_batch; i++) {
        int err = engine_submit(r->e, like, &r->handle[i], reterr);

        if (err) {
            return err;
        }
    }
    return 0;
}

static int step(struct runner *r, struct error *reterr)
{
    r->n_left = engine_step(r->e, on_event, r);
    if (r->n_left < 0) {
        return error_set_errno(reterr, r->n_left, "engine_step");
    }
    if (r->error.code) {
        *reterr = r->error;
        return r->error.code;
    }
    return 0;
}

static struct engine_request request(const struct runner *r, int32_t n_prompt, int32_t n_new)
{
    struct engine_request q = {
        .kind = ENGINE_GENERATE,
        .prompt = r->tokens,
        .n_prompt = n_prompt,
        .max_tokens = n_new,
        .ignore_end = true,
        .unsaved = true,
        .principal = 1,
        .sampler = sampler_params_default(),
    };

    q.sampler.temperature = 0;
    return q;
}

/* Steps until the sample has all of its own. */
static int run_sample(struct runner *r, int n_steps, struct error *reterr)
{
    int err = 0;

    begin_sample(r, n_steps);
    while (!err && r->sample.n < r->sample.n_steps) {
        err = step(r, reterr);
        if (!err && r->n_left == 0 && r->sample.n < r->sample.n_steps) {
            err = error_set(reterr, -EPROTO, "the sequences ended after %d of %d decode steps",
                            r->sample.n, r->sample.n_steps);
        }
    }
    return err;
}

int runner_prefill(struct runner *r, int32_t n_prompt, double *ret_ns, bool *ret_clean,
                   struct error *reterr)
{
    struct engine_request q = request(r, n_prompt, 1);
    long before = bench_switches();
    int64_t t = clock_ns();
    int err = submit(r, &q, reterr);

    do {
        err = err ? err : step(r, reterr);
    } while (!err && r->n_left > 0);
    *ret_clean = bench_switches() == before;
    *ret_ns = (double)(r->first_ns - t);
    return err;
}

int runner_begin(struct runner *r, int32_t depth, int32_t n_new, struct error *reterr)
{
    struct engine_request q = request(r, depth, n_new + WARM_UP + 2);
    int err;

    if (!r->config.real) {
        q.synthetic = true;
        q.forced = r->tokens;
        q.n_forced = 1;
    }
    err = submit(r, &q, reterr);
    while (!err && r->config.real && r->n_first < r->config.n_batch) {
        err = step(r, reterr);
    }
    return err ? err : run_sample(r, WARM_UP, reterr);
}

int runner_steps(struct runner *r, int n_steps, double *ret_ns, bool *ret_clean,
                 struct error *reterr)
{
    struct sample *s = &r->sample;
    int err = run_sample(r, n_steps, reterr);

    if (err) {
        return err;
    }
    *ret_clean = s->n_clean >= (s->n + 1) / 2;
    *ret_ns = *ret_clean ? bench_median(s->clean, s->n_clean) : bench_median(s->all, s->n);
    return 0;
}

int runner_end(struct runner *r, struct error *reterr)
{
    int err = 0;

    for (int i = 0; i < r->config.n_batch; i++) {
        (void)engine_cancel(r->e, r->handle[i], ENGINE_CANCELLED);
    }
    do {
        err = step(r, reterr);
    } while (!err && r->n_left > 0);
    return err;
}

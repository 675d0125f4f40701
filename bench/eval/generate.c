/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts in, answers out. All prompts under all policies of a page class are one queue, so that
 * the engine's batches stay full (engines.h); an answer's text is collected by the streaming
 * detokenizer as its tokens come. */

#include "bench/eval/generate.h"

#include <errno.h>
#include <limits.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "bench/eval/engines.h"
#include "bench/eval/prompts.h"
#include "engine/text/detok.h"
#include "engine/text/tok.h"

struct policy_answers;

struct answer {
    struct policy_answers *policy;
    const struct prompt *prompt;
    int32_t n_told; /* forced tokens with their probabilities */
    double logprob; /* of those that are scored, the sum */
    bool unlikely;  /* one of them was not the likeliest */
    struct detok detok;
    char *text;
    size_t len;
    size_t cap;
    enum engine_reason reason;
    struct engine_usage usage;
};

struct policy_answers {
    struct run *run;
    const char *kv;
    struct answer *v; /* (prompts) */
    int n_done;
};

struct run {
    const struct prompts *list;
    struct engine *e;
    FILE *out;
    struct error error;
    int err;
};

static int add_scores(json_t *o, const struct prompt *p, const struct answer *a)
{
    return json_object_set_new(o, "logprob", json_real(a->logprob)) ||
           json_object_set_new(o, "n_scored", json_integer(p->n_forced - p->n_given)) ||
           json_object_set_new(o, "likeliest", json_boolean(!a->unlikely));
}

static int write_answer(const struct run *r, const struct prompt *p, const struct answer *a)
{
    static const char *const reasons[] = {"stop", "length", "context", "cancelled", "error"};
    const struct engine_usage *u = &a->usage;
    json_t *o = json_pack(
        "{s:s, s:s, s:s%, s:i, s:i, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:i, s:i, s:i}", "id",
        p->id, "policy", a->policy->kv, "text", a->text ? a->text : "", a->len, "n_prompt",
        (int)u->n_prompt, "n_new", (int)u->n_new, "reason", reasons[a->reason], "kv_bytes",
        (json_int_t)u->kv_bytes, "kv_bytes_full", (json_int_t)u->kv_bytes_full, "n_slots",
        (json_int_t)u->n_slots, "n_evicted", (json_int_t)u->n_evicted, "tokens_per_step",
        engines_tokens_read(r->e, u), "prefill_ms", (double)u->prefill_ns * 1e-6, "decode_ms",
        (double)u->decode_ns * 1e-6, "n_drafted", (int)u->n_drafted, "n_accepted",
        (int)u->n_accepted, "n_exited", (int)u->n_exited);
    int err = !o || (p->n_forced && add_scores(o, p, a)) || json_dumpf(o, r->out, JSON_COMPACT) ||
                      fputc('\n', r->out) == EOF
                  ? -EIO
                  : 0;

    json_decref(o);
    return err;
}

static void write_policy(struct run *r, const struct policy_answers *p)
{
    for (int i = 0; i < r->list->n && !r->err; i++) {
        r->err = write_answer(r, &r->list->v[i], &p->v[i]);
        free(p->v[i].text);
        p->v[i].text = NULL;
    }
    if (!r->err && fflush(r->out)) {
        r->err = -EIO;
    }
    if (r->err) {
        (void)error_set(&r->error, r->err, "cannot write the answers");
    }
}

static void add_token(struct run *r, struct answer *a, int32_t token)
{
    const struct tok *tok = engine_tok(r->e);
    size_t need = a->len + detok_bound(tok) + 8;

    if (need > a->cap) {
        char *text = realloc(a->text, need * 2);

        if (!text) {
            r->err = error_set(&r->error, -ENOMEM, "no memory for the answers");
            return;
        }
        a->text = text;
        a->cap = need * 2;
    }
    a->len += detok_push(&a->detok, token, a->text + a->len);
}

static void add_forced(struct run *r, struct answer *a, const struct engine_event *ev)
{
    if (ev->index != a->n_told++ && !r->err) {
        r->err = error_set(&r->error, -EPROTO, "a forced token was not told");
    }
    if (ev->index >= a->prompt->n_given) {
        a->logprob += (double)ev->logprob;
        a->unlikely = a->unlikely || ev->n_alts < 1 || ev->alts[0].token != ev->token;
    }
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct answer *a = ev->user;
    struct policy_answers *p = a->policy;
    struct run *r = p->run;

    (void)arg;
    if (ev->type == ENGINE_EV_TOKEN && a->prompt->n_forced) {
        add_forced(r, a, ev);
    } else if (ev->type == ENGINE_EV_TOKEN && !tok_is_end(engine_tok(r->e), ev->token) && !r->err) {
        add_token(r, a, ev->token);
    } else if (ev->type == ENGINE_EV_DONE) {
        a->reason = ev->reason;
        a->usage = ev->usage;
        if (ev->reason == ENGINE_ERROR && !r->err) {
            r->err = ev->error.code;
            r->error = ev->error;
        }
        if (++p->n_done % 10 == 0 || p->n_done == r->list->n) {
            (void)fprintf(stderr, "pipit-eval: %s: %d of %d prompts\n", p->kv, p->n_done,
                          r->list->n);
        }
        if (p->n_done == r->list->n && !r->err) {
            write_policy(r, p);
        }
    }
}

/* Lines [from, to) of `order`, the lines of scored ones as forks of their first. */
static int submit(struct run *r, struct policy_answers *p, const int *order, int from, int to,
                  struct error *reterr)
{
    uint64_t first = 0;
    int err = 0;

    for (int i = from; i < to && !err; i++) {
        const struct prompt *in = &r->list->v[order[i]];
        struct answer *a = &p->v[order[i]];
        struct engine_request q = {.kind = ENGINE_GENERATE,
                                   .prompt = in->tokens,
                                   .n_prompt = in->n_tokens,
                                   .max_tokens = in->max_tokens,
                                   .n_draft = in->n_draft,
                                   .kv = p->kv,
                                   .principal = 1,
                                   .user = a};
        uint64_t handle;

        a->policy = p;
        a->prompt = in;
        detok_init(&a->detok, engine_tok(r->e), in->tokens[in->n_tokens - 1], false);
        q.sampler = sampler_params_default();
        q.sampler.temperature = in->temperature;
        if (in->n_forced) {
            q.forced = in->tokens + in->n_tokens;
            q.n_forced = in->n_forced;
            q.report_forced = q.ignore_end = true;
            q.sampler.n_logprobs = 1;
            q.fork_of = first;
        }
        err = engine_submit(r->e, &q, &handle, reterr);
        first = first ? first : handle;
        if (err) {
            (void)error_prefix(reterr, "policy %s, prompt %s", p->kv, in->id);
        }
    }
    return err;
}

static int drain(struct run *r, struct error *reterr)
{
    int left = 1;

    while (!r->err && left > 0) {
        left = engine_step(r->e, on_event, NULL);
    }
    if (r->err || left < 0) {
        *reterr = r->error;
    }
    return r->err ? r->err : left;
}

/* Scored lines go in waves of one family, as many as the engine seats: the first reads the prompt,
 * the others join it there. Lines of a wave are about as long as each other (by_length), so that
 * its batch stays full. */
static int score_lines(struct run *r, struct policy_answers *p, const int *order,
                       struct error *reterr)
{
    int most = engine_info(r->e)->n_seqs;
    int err = 0;

    for (int from = 0, to; from < r->list->n && !err; from = to) {
        to = from + 1;
        while (to < r->list->n && to - from < most &&
               r->list->v[order[to]].family == r->list->v[order[from]].family) {
            to++;
        }
        err = submit(r, p, order, from, to, reterr);
        err = err ? err : drain(r, reterr);
    }
    return err;
}

static int by_length(const void *a, const void *b, void *arg)
{
    const struct prompts *list = arg;
    int i = *(const int *)a;
    int j = *(const int *)b;
    const struct prompt *x = &list->v[i];
    const struct prompt *y = &list->v[j];

    return x->family != y->family       ? x->family - y->family
           : x->n_forced != y->n_forced ? x->n_forced - y->n_forced
                                        : i - j;
}

/* All policies of class k of the engines. */
static int run_class(struct run *r, const struct engines *engines, int k, struct policy_answers *p,
                     int n_kv, const int *order, struct error *reterr)
{
    bool scored = r->list->n && r->list->v[0].n_forced;
    int err = 0;

    for (int i = 0; i < n_kv && !err; i++) {
        if (engines->of[i] == k) {
            err = scored ? score_lines(r, &p[i], order, reterr)
                         : submit(r, &p[i], order, 0, r->list->n, reterr);
        }
    }
    return err ? err : drain(r, reterr);
}

int generate_run(const struct generate_job *job, struct error *reterr)
{
    struct engines engines;
    struct prompts list = {0};
    struct run r = {.list = &list, .out = job->out};
    AUTO_FREE struct policy_answers *p = calloc((size_t)job->n_kv, sizeof(*p));
    AUTO_FREE int *order = NULL;
    int err = engines_open(&job->engine, NULL, job->kv, job->n_kv, INT_MAX, &engines, reterr);

    if (!err && !p) {
        err = error_set(reterr, -ENOMEM, "no memory for the answers");
    }
    if (!err) {
        err = prompts_load(engines.open, job->path, job->chat_template, &list, reterr);
    }
    order = calloc((size_t)list.n + 1, sizeof(*order));
    for (int i = 0; i < job->n_kv && !err; i++) {
        p[i] = (struct policy_answers){.run = &r, .kv = job->kv[i]};
        p[i].v = calloc((size_t)list.n, sizeof(*p[i].v));
        err = p[i].v && order ? 0 : error_set(reterr, -ENOMEM, "no memory for the answers");
    }
    for (int i = 0; i < list.n && !err; i++) {
        order[i] = i;
    }
    if (!err && list.n && list.v[0].n_forced) {
        qsort_r(order, (size_t)list.n, sizeof(*order), by_length, &list);
    }
    for (int k = 0; k < engines.n && !err; k++) {
        err = engines_use(&engines, k, &r.e, reterr);
        err = err ? err : run_class(&r, &engines, k, p, job->n_kv, order, reterr);
    }
    engines_close(&engines); /* requests that an error left go with it */
    for (int i = 0; p && i < job->n_kv; i++) {
        for (int j = 0; p[i].v && j < list.n; j++) {
            free(p[i].v[j].text);
        }
        free(p[i].v);
    }
    prompts_clear(&list);
    return err;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that arrive at random (exponential gaps, seeded) at an engine whose keys and values may
 * take so many bytes: how many sequences sit at once, tokens a second in all, time to the first
 * token (from arrival, so waiting for a place counts), time of each further one, and the gaps
 * between two tokens of an answer.
 *
 * All policies get the same arrivals. Rate 0: all are there at the start, which gives the largest
 * throughput; or, with clients, each asks again when its answer is over. */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "bench/speed/bench.h"
#include "engine/kv/plan/plan.h"

enum { MAX_SEQS = 256 };

struct arrival {
    int64_t at_ns;
    int64_t first_ns;
    int64_t last_ns;
    int n_new;
};

struct serving {
    const struct serve_config *c;
    struct engine *e;
    int32_t *tokens; /* (n_prompt + n_requests): each request begins one token later */
    struct arrival *a;
    double *v;   /* (n_requests) scratch */
    float *gaps; /* ms (n_requests * n_new) */
    int n_gaps;
    int n_in;
    int n_done;
    struct error error;
};

static void on_event(void *arg, const struct engine_event *ev)
{
    struct serving *s = arg;
    struct arrival *a = ev->user;

    if (ev->type == ENGINE_EV_TOKEN) {
        int64_t now = clock_ns();

        if (ev->index > 0) {
            s->gaps[s->n_gaps++] = (float)(now - a->last_ns) / 1e6f;
        }
        a->last_ns = now;
        a->first_ns = ev->index == 0 ? now : a->first_ns;
        a->n_new++;
    } else if (ev->type == ENGINE_EV_DONE) {
        s->n_done++;
        if (ev->reason == ENGINE_ERROR) {
            s->error = ev->error;
        }
    }
}

static float uniform(uint32_t i, uint32_t stream)
{
    uint32_t out[4];

    rng_philox(rng_key_make(7), (uint32_t[4]){i, stream, 0, 0}, out);
    return rng_uniform(out[0]);
}

/* As many sequences as the bytes hold. */
static int places(const struct serve_config *c, struct engine_config *ec, struct error *e)
{
    struct plan p;
    int err = engine_plan(ec, &p, e);

    if (err) {
        return err;
    }
    uint64_t n = p.seq_bytes ? c->kv_bytes / p.seq_bytes : 0;
    uint64_t most = (uint64_t)(c->n_requests < MAX_SEQS ? c->n_requests : MAX_SEQS);

    if (n == 0) {
        return error_set(e, -ENOMEM,
                         "%s: one sequence needs %" PRIu64 " bytes of keys and values, %" PRIu64
                         " are given",
                         c->label, p.seq_bytes, c->kv_bytes);
    }
    ec->n_seqs = (int32_t)(n < most ? n : most);
    ec->n_seqs = c->n_clients ? c->n_clients : ec->n_seqs;
    return 0;
}

static int32_t n_prompt(const struct serve_config *c, int i)
{
    return c->n_long && i == c->n_requests / 2 ? c->n_long : c->n_prompt;
}

static int submit(struct serving *s, int i, struct error *e)
{
    struct engine_request q = {
        .kind = ENGINE_GENERATE,
        .prompt = s->tokens + i,
        .n_prompt = n_prompt(s->c, i),
        .urgency = s->c->urgency,
        .max_tokens = s->c->n_new,
        .ignore_end = true,
        .unsaved = true,
        .sampler = sampler_params_default(),
        .principal = 1,
        .user = &s->a[i],
    };
    uint64_t handle;

    q.sampler.temperature = 0;
    return engine_submit(s->e, &q, &handle, e);
}

static void pause_until(int64_t at_ns)
{
    int64_t left = at_ns - clock_ns();
    struct timespec t = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};

    if (left > 0) {
        (void)nanosleep(&t, NULL);
    }
}

/* Is it the next request's time? */
static bool arrives(struct serving *s)
{
    int64_t now = clock_ns();

    if (s->n_in == s->c->n_requests) {
        return false;
    }
    if (s->c->n_clients) {
        s->a[s->n_in].at_ns = now;
        return s->n_in - s->n_done < s->c->n_clients;
    }
    return s->a[s->n_in].at_ns <= now;
}

static int serve_all(struct serving *s, double rate, struct error *e)
{
    int64_t t = clock_ns();

    s->n_done = 0;
    s->n_in = 0;
    s->n_gaps = 0;
    for (int i = 0; i < s->c->n_requests; i++) {
        s->a[i] = (struct arrival){.at_ns = t};
        t += rate > 0 ? (int64_t)(-1e9 * log(uniform((uint32_t)i, 0)) / rate) : 0;
    }
    while (s->n_done < s->c->n_requests) {
        for (; arrives(s); s->n_in++) {
            int err = submit(s, s->n_in, e);

            if (err) {
                return err;
            }
        }
        int left = engine_step(s->e, on_event, s);

        if (left < 0) {
            return error_set_errno(e, left, "engine_step");
        }
        if (s->error.code) {
            *e = s->error;
            return e->code;
        }
        if (left == 0 && s->n_in < s->c->n_requests) {
            pause_until(s->a[s->n_in].at_ns);
        }
    }
    return 0;
}

/* Sorts the scratch: the median and the 95th percentile. */
static void quantiles(double *v, int n, double *ret_median, double *ret_p95)
{
    *ret_median = bench_median(v, n);
    *ret_p95 = v[(int)(0.95 * (n - 1) + 0.5)];
}

static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;

    return x < y ? -1 : x > y;
}

/* The gap that `share` of all are no longer than; they are sorted. */
static double gap_at(const struct serving *s, double share)
{
    return s->n_gaps ? (double)s->gaps[(int)(share * (s->n_gaps - 1) + 0.5)] : 0;
}

static void print_rate(struct serving *s, double rate)
{
    const struct serve_config *c = s->c;
    int n = c->n_requests;
    int64_t end = 0;
    double ttft[2];
    double tpot[2];

    for (int i = 0; i < n; i++) {
        end = s->a[i].last_ns > end ? s->a[i].last_ns : end;
        s->v[i] = (double)(s->a[i].first_ns - s->a[i].at_ns) / 1e6;
    }
    quantiles(s->v, n, &ttft[0], &ttft[1]);
    for (int i = 0; i < n; i++) {
        s->v[i] = (double)(s->a[i].last_ns - s->a[i].first_ns) / 1e6 / (c->n_new - 1);
    }
    quantiles(s->v, n, &tpot[0], &tpot[1]);
    qsort(s->gaps, (size_t)s->n_gaps, sizeof(*s->gaps), compare_float);
    double seconds = (double)(end - s->a[0].at_ns) / 1e9;

    printf("\"%s\",%" PRIu64 ",%" PRIu64 ",%d,%d,%d,%d,%g,%.1f,%.1f,%.1f,%.1f,%.2f,%.2f,%.2f,"
           "%.1f,%.1f,%.1f\n",
           c->label, c->kv_bytes, engine_plan_of(s->e)->seq_bytes, engine_info(s->e)->n_seqs, n,
           c->n_prompt, c->n_new, rate, (double)n * (c->n_prompt + c->n_new) / seconds,
           (double)n * c->n_new / seconds, ttft[0], ttft[1], tpot[0], tpot[1], seconds,
           gap_at(s, 0.5), gap_at(s, 0.99), gap_at(s, 1));
    (void)fflush(stdout);
}

static int each_rate(struct serving *s, struct error *e)
{
    const char *text = s->c->rates;
    int err = 0;

    while (*text && !err) {
        char *end;
        double rate = strtod(text, &end);

        if (end == text || !(rate >= 0) || (*end && *end != ',')) {
            return error_set(e, -EINVAL, "'%s' is no list of rates", text);
        }
        err = serve_all(s, rate, e);
        if (!err) {
            print_rate(s, rate);
        }
        text = *end ? end + 1 : end;
    }
    return err;
}

int serve_run(const struct serve_config *c, struct error *reterr)
{
    struct serving s = {.c = c};
    struct engine_config ec = c->engine;
    int32_t longest = c->n_long > c->n_prompt ? c->n_long : c->n_prompt;
    int n_tokens = longest + c->n_requests;
    int err;

    ec.ctx = longest + c->n_new;
    ec.n_seqs = 1;
    err = places(c, &ec, reterr);
    err = err ? err : engine_create(&ec, NULL, NULL, &s.e, reterr);
    if (err) {
        return err;
    }
    s.tokens = calloc((size_t)n_tokens, sizeof(*s.tokens));
    s.a = calloc((size_t)c->n_requests, sizeof(*s.a));
    s.v = calloc((size_t)c->n_requests, sizeof(*s.v));
    s.gaps = calloc((size_t)c->n_requests * (size_t)c->n_new, sizeof(*s.gaps));
    if (!s.tokens || !s.a || !s.v || !s.gaps) {
        err = error_set(reterr, -ENOMEM, "no memory for %d requests", c->n_requests);
    }
    for (int i = 0; !err && i < n_tokens; i++) {
        s.tokens[i] = (int32_t)(uniform((uint32_t)i, 1) * (float)engine_info(s.e)->n_vocab);
    }
    if (!err && c->header) {
        printf("kv,kv_memory,sequence_bytes,sequences,requests,prompt,answer,rate,total_tok_s,"
               "new_tok_s,ttft_ms,ttft_p95_ms,tpot_ms,tpot_p95_ms,seconds,gap_ms,gap_p99_ms,"
               "gap_most_ms\n");
    }
    err = err ? err : each_rate(&s, reterr);
    free(s.gaps);
    free(s.v);
    free(s.a);
    free(s.tokens);
    engine_destroy(s.e);
    return err;
}

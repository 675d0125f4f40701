/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-bench: how fast one model is on one backend, as CSV on stdout.
 *
 * Each figure is made the way a user meets it: a prompt of the asked length is submitted to the
 * engine and its steps are timed. `prefill N`: from submit to the first token. `decode D`: from the
 * first token after a prompt of D to the last of -n tokens, per token. With --batch B the same
 * prompt length runs in B sequences at once and decode counts all their tokens.
 *
 * Repeats are interleaved over all figures, so that a change in the machine's speed meets all of
 * them, and medians with the spread are printed. Samples during which the kernel took the CPU away
 * from the worker (involuntary context switches) are marked and left out when cleaner ones exist.
 */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/options.h"
#include "base/rng.h"
#include "engine/engine.h"

enum { MAX_POINTS = 32, MAX_REPEATS = 64, MAX_BATCH = 64 };

struct config {
    char *model;
    struct option_list overlays;
    char *backend;
    int64_t threads;
    char *kv;
    char *prefill;
    char *depth;
    int64_t batch;
    int64_t n_new;
    int64_t repeats;
    int64_t ctx;
    bool header;
    bool help;
};

#define ROW(field) offsetof(struct config, field)

/* clang-format off */
static const struct option_row rows[] = {
    {"model", 'm', OPTION_STRING, ROW(model), .metavar = "FILE", .help = "the model, a GGUF file"},
    {"overlay", 0, OPTION_LIST, ROW(overlays), .metavar = "FILE", .help = "a GGUF that adds tensors; repeats"},
    {"backend", 0, OPTION_STRING, ROW(backend), .fallback = "cpu", .metavar = "NAME", .help = "ref, cpu, cuda or auto"},
    {"threads", 't', OPTION_INT, ROW(threads), 0, 1024, .fallback = "0", .help = "0: all this process may use"},
    {"kv", 0, OPTION_STRING, ROW(kv), .fallback = "full", .metavar = "POLICY", .help = "the cache policy"},
    {"prefill", 'p', OPTION_STRING, ROW(prefill), .fallback = "512", .metavar = "N,N...", .help = "prompt lengths to time; empty: none"},
    {"depth", 'd', OPTION_STRING, ROW(depth), .fallback = "0", .metavar = "N,N...", .help = "depths at which decode is timed; empty: none"},
    {"batch", 'b', OPTION_INT, ROW(batch), 1, MAX_BATCH, .fallback = "1", .help = "sequences at once"},
    {"n-new", 'n', OPTION_INT, ROW(n_new), 2, 100000, .fallback = "64", .help = "tokens decoded at each depth"},
    {"repeats", 'r', OPTION_INT, ROW(repeats), 1, MAX_REPEATS, .fallback = "5"},
    {"ctx", 'c', OPTION_INT, ROW(ctx), 0, 1 << 20, .fallback = "0", .help = "context; 0: as long as the figures need"},
    {"header", 0, OPTION_FLAG, ROW(header), .fallback = "yes", .help = "print the CSV header"},
    {"help", 'h', OPTION_FLAG, ROW(help), .flags = OPTION_ARGV_ONLY},
};
/* clang-format on */

static const struct option_table table = {rows, sizeof(rows) / sizeof(rows[0]),
                                          "pipit-bench --model FILE [OPTION]...",
                                          "Times prefill and decode of a model and prints CSV.", 0};

struct point {
    bool decode;
    int n_prompt;
    double tok_s[MAX_REPEATS];
    bool clean[MAX_REPEATS];
};

struct run {
    struct engine *e;
    int32_t *prompt;
    int n_batch;
    int n_new;
    int64_t submit_ns;
    int64_t first_ns; /* when the last sequence gave its first token */
    int64_t last_ns;
    int n_first;
    int n_tokens_after; /* tokens given after first_ns */
    int n_done;
    int err;
    struct error error;
};

static void on_event(void *arg, const struct engine_event *ev)
{
    struct run *r = arg;

    if (ev->type == ENGINE_EV_TOKEN) {
        r->last_ns = clock_ns();
        if (r->n_first == r->n_batch) {
            r->n_tokens_after++;
        }
        if (ev->index == 0 && ++r->n_first == r->n_batch) {
            r->first_ns = r->last_ns;
        }
    } else if (ev->type == ENGINE_EV_DONE) {
        r->n_done++;
        if (ev->reason == ENGINE_ERROR) {
            r->err = ev->error.code;
            r->error = ev->error;
        }
    }
}

static int run_once(struct run *r, int n_prompt, int n_new, const char *kv, struct error *reterr)
{
    r->n_first = r->n_tokens_after = r->n_done = 0;
    r->submit_ns = clock_ns();
    for (int i = 0; i < r->n_batch; i++) {
        struct engine_request q = {.kind = ENGINE_GENERATE,
                                   .prompt = r->prompt,
                                   .n_prompt = n_prompt,
                                   .max_tokens = n_new,
                                   .ignore_end = true,
                                   .principal = 1,
                                   .kv = kv};
        uint64_t handle;

        q.sampler = sampler_params_default();
        q.sampler.temperature = 0;
        int err = engine_submit(r->e, &q, &handle, reterr);
        if (err) {
            return err;
        }
    }
    int left;
    do {
        left = engine_step(r->e, on_event, r);
    } while (left > 0);
    if (r->err) {
        *reterr = r->error;
        return r->err;
    }
    return left;
}

static int parse_list(const char *text, bool decode, struct point *points, int *n, struct error *e)
{
    while (*text) {
        char *end;
        long v = strtol(text, &end, 10);

        if (end == text || v < 0 || v > 1 << 20 || (*end && *end != ',') || *n == MAX_POINTS) {
            return error_set(e, -EINVAL, "'%s' is no list of at most %d lengths", text, MAX_POINTS);
        }
        memset(&points[*n], 0, sizeof(points[*n]));
        points[*n].decode = decode;
        points[(*n)++].n_prompt = v > 0 ? (int)v : 1;
        text = *end ? end + 1 : end;
    }
    return 0;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void print_point(const struct config *c, const struct engine_info *info, struct point *p)
{
    double v[MAX_REPEATS];
    int n = 0;

    for (int pass = 0; pass < 2 && n == 0; pass++) {
        for (int i = 0; i < c->repeats; i++) {
            if (p->clean[i] || pass == 1) {
                v[n++] = p->tok_s[i];
            }
        }
    }
    int n_clean = 0;
    for (int i = 0; i < c->repeats; i++) {
        n_clean += p->clean[i];
    }
    qsort(v, (size_t)n, sizeof(v[0]), compare_double);
    printf("%s,\"%s\",%s,%d,%d,%.1f,%.1f,%.1f,%d,%d\n", info->model_name, info->kv,
           p->decode ? "decode" : "prefill", p->n_prompt, (int)c->batch, v[n / 2], v[0], v[n - 1],
           (int)c->repeats, n_clean);
    (void)fflush(stdout);
}

static long involuntary(void)
{
    struct rusage u;

    (void)getrusage(RUSAGE_SELF, &u);
    return u.ru_nivcsw;
}

static int bench(const struct config *c, struct error *e)
{
    static struct point points[MAX_POINTS];
    int n_points = 0;
    int longest = 0;
    struct engine_config ec;
    struct run r = {.n_batch = (int)c->batch, .n_new = (int)c->n_new};
    int err = parse_list(c->prefill, false, points, &n_points, e);

    if (!err) {
        err = parse_list(c->depth, true, points, &n_points, e);
    }
    if (err) {
        return err;
    }
    for (int i = 0; i < n_points; i++) {
        int need = points[i].n_prompt + (points[i].decode ? (int)c->n_new : 1);

        longest = need > longest ? need : longest;
    }
    engine_config_default(&ec);
    ec.model_path = c->model;
    ec.overlay_paths = (const char *const *)c->overlays.v;
    ec.n_overlays = (int)c->overlays.n;
    ec.backend = c->backend;
    ec.n_threads = (int)c->threads;
    ec.kv = c->kv;
    ec.n_seqs = (int)c->batch;
    ec.ctx = c->ctx ? (int32_t)c->ctx : longest + 1;
    err = engine_create(&ec, NULL, NULL, &r.e, e);
    if (err) {
        return err;
    }
    const struct engine_info *info = engine_info(r.e);
    (void)fprintf(stderr, "pipit-bench: %s\n", info->backend);
    r.prompt = calloc((size_t)longest, sizeof(*r.prompt));
    if (!r.prompt) {
        engine_destroy(r.e);
        return error_set(e, -ENOMEM, "no memory for the prompt");
    }
    for (int i = 0; i < longest; i++) {
        uint32_t counter[4] = {(uint32_t)i, 0, 0, 0};
        uint32_t bits[4];

        rng_philox(rng_key_make(1), counter, bits);
        r.prompt[i] = (int32_t)(bits[0] % (uint32_t)info->n_vocab);
    }
    err = run_once(&r, 16 < longest ? 16 : 1, 2, NULL, e); /* warm up */
    for (int rep = 0; rep < c->repeats && !err; rep++) {
        for (int i = 0; i < n_points && !err; i++) {
            struct point *p = &points[i];
            long before = involuntary();

            err = run_once(&r, p->n_prompt, p->decode ? r.n_new : 1, NULL, e);
            p->clean[rep] = involuntary() == before;
            p->tok_s[rep] =
                p->decode ? 1e9 * r.n_tokens_after / (double)(r.last_ns - r.first_ns)
                          : 1e9 * p->n_prompt * r.n_batch / (double)(r.first_ns - r.submit_ns);
        }
    }
    if (!err && c->header) {
        printf("model,kv,what,tokens,batch,tok_s,tok_s_min,tok_s_max,repeats,clean\n");
    }
    for (int i = 0; i < n_points && !err; i++) {
        print_point(c, info, &points[i]);
    }
    free(r.prompt);
    engine_destroy(r.e);
    return err;
}

int main(int argc, char **argv)
{
    struct config c = {0};
    struct error e = {0};
    int rc = 0;

    if (options_load(&table, &c, argc, argv, NULL, NULL, NULL, &e)) {
        rc = 2;
    } else if (c.help) {
        char *help = options_help(&table);

        (void)fputs(help ? help : "", stdout);
        free(help);
    } else if (!c.model) {
        (void)error_set(&e, -EINVAL, "--model is needed");
        rc = 2;
    } else {
        int err = bench(&c, &e);

        rc = !err ? 0 : err == -EINVAL ? 2 : err == -ENOMEM ? 4 : 6;
    }
    if (rc) {
        (void)fprintf(stderr, "pipit-bench: %s\n", e.text);
    }
    options_clear(&table, &c);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the device under a whole engine, over the fake run-time library: each is an errno with
 * a cause, ends what it must and nothing else, and leaves nothing behind.
 *
 *     test_cuda_host_faults MODULE FOLDER */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/cuda/fake_engine.h"
#include "tests/turn.h"

/* What probing says of a device that cannot be used, and creating a backend on it. */
static void unusable(struct fake_device d, const char *want)
{
    struct backend_config config = {0};
    const struct backend_ops *ops = NULL;
    struct backend *be = NULL;
    struct error e = {0};

    fake.start(&d);
    expect(backend_find(fake_path, &ops, &e) == -ENODEV || d.no_code, "probed: %s", want);
    expect(d.no_code || strstr(e.text, want), "\"%s\" says \"%s\"", e.text, want);
    e = (struct error){0};
    expect(fake.ops->create(&config, &be, &e) == -ENODEV, "created: %s", want);
    expect(strstr(e.text, want) != NULL, "\"%s\" says \"%s\"", e.text, want);
    expect_clean(want);
}

static void devices(void)
{
    struct fake_device d = fake_devices[SM_90];

    d.n_devices = 0;
    unusable(d, "no CUDA device");
    d.driver = 0;
    unusable(d, "no NVIDIA driver is loaded");
    d = fake_devices[SM_90];
    d.driver = 12000;
    unusable(d, "the driver offers CUDA 12.0, this build needs 13.0");
    d = fake_devices[SM_90];
    d.major = 7;
    d.minor = 5;
    unusable(d, "sm_75, this build needs sm_80");
    d.major = 8;
    d.minor = 0; /* the module was made for 86, 87, 89, 90, 100, 120 */
    unusable(d, "sm_80, this build has code for sm_86,87");
    d.minor = 8; /* its kind takes no other's binary */
    unusable(d, "sm_88, this build has code for sm_86,87");
    d = fake_devices[SM_90];
    d.no_code = 1;
    unusable(d, "this build has code for sm_86,87");
}

/* Memory that is not there at the start, and that another process takes between plan and
 * allocation. */
static void memory(void)
{
    struct fake_device d = fake_devices[SM_90];
    struct engine *e = NULL;
    struct error err = {0};
    int n = 0;
    bool pending;

    d.memory = 32 << 20;
    fake.start(&d);
    expect(fake_engine("stories260K", "full", 3, &e, &err) == -ENOMEM, "a small device");
    expect(strstr(err.text, "MiB of the device") && strstr(err.text, "32 MiB are free"), "%s",
           err.text);
    expect_clean("a small device");
    do {
        err = (struct error){0};
        fake.start(&fake_devices[SM_90]);
        fake.fail(++n, 2);
        int r = fake_engine("stories260K", "h2o:64", 2, &e, &err);

        pending = fake.pending();
        fake.fail(0, 0);
        expect(r == 0 || ((r == -ENOMEM || r == -ENODEV) && err.text[0]), "call %d: %d, %s", n, r,
               err.text);
        if (r == 0) {
            engine_destroy(e);
        }
        expect_clean("out of memory at the start");
    } while (!pending && n < 1000);
    expect(n > 20 && n < 1000, "%d calls", n);
}

/* A device that is lost in any call of a running batch ends the engine with -ENODEV. */
static void lost(int code)
{
    int n_failures = 0;
    int n = 0;
    bool pending;

    do {
        struct engine *e = NULL;
        struct error err = {0};
        char news[256] = "";
        int r = 0;

        fake.start(&fake_devices[SM_90]);
        expect(fake_engine("stories260K", "full", 1, &e, &err) == 0, "%s", err.text);
        if (!e) {
            return;
        }
        n += n < 20 ? 1 : 37;
        fake.fail(n, code);
        r = fake_run(e, 1);
        pending = fake.pending();
        n_failures += r < 0;
        expect(r == 0 || r == -ENODEV, "%d at call %d: %d", code, n, r);
        expect(pending || r == -ENODEV, "%d at call %d is not noticed", code, n);
        expect(r == 0 || (engine_news(e, news, sizeof(news)) && strstr(news, "is lost: ") &&
                          strstr(news, "CUDA error")),
               "%d at call %d: \"%s\" is said", code, n, news);
        fake.fail(0, 0);
        engine_destroy(e);
        expect_clean("a lost device");
    } while (!pending && n < 5000);
    expect(n_failures > 0 && n < 5000, "%d: failed %d times", code, n_failures);
}

/* ---- refusals ------------------------------------------------------------------------------- */

enum { SAID = 4, REQUESTS = 2 };

/* What the device ran for each request, and what was said meanwhile. */
struct heard {
    uint64_t sum[REQUESTS];
    int n_ran[REQUESTS];
    int n_graphs[REQUESTS]; /* launched; those with early edges */
    int n_early[REQUESTS];
    char said[SAID][256];
    int n_said;
};

static int run_heard(struct engine *e, struct heard *h)
{
    const struct fake_call *c;
    int n;
    struct error err = {0};
    int r = 1;

    for (int i = 0; i < REQUESTS && r > 0; i++) {
        fake.log_clear();
        expect(fake_submit(e, &err) == 0, "submit: %s", err.text);
        do {
            r = engine_step(e, fake_ignore, NULL);
            h->n_said += h->n_said < SAID && engine_news(e, h->said[h->n_said], sizeof(h->said[0]));
        } while (r > 0);
        h->sum[i] = fake.ran(&h->n_ran[i]);
        h->n_graphs[i] = fake_count(FAKE_GRAPH_LAUNCH);
        c = fake.log(&n);
        for (int k = 0; k < n; k++) {
            h->n_early[i] += c[k].kind == FAKE_GRAPH_LAUNCH && c[k].n_early > 0;
        }
        r = r == 0 && i + 1 < REQUESTS ? 1 : r;
    }
    return r;
}

struct refusal {
    enum fake_kind kind;
    const char *call;
};

/* The driver refuses such calls with `code`, the first or each: a graph's cost no step, and the
 * device runs what it would have run. The first costs programmatic edges if there are any, the next
 * one graphs. */
static void refused_graph(int device, const char *model, const char *kv, const struct heard *want,
                          const struct refusal *f, int code, bool always)
{
    if (!takes_turn()) {
        return;
    }

    bool edges = fake_devices[device].major >= 9;
    bool graphs = f->kind == FAKE_EARLY || (edges && !always); /* in the end */
    int n_news = !edges ? f->kind != FAKE_EARLY : graphs ? 1 : 2;
    struct heard h = {0};
    struct engine *e = NULL;
    struct error err = {0};
    char what[128];
    char cause[80];
    int r;

    (void)snprintf(what, sizeof(what), "%s, sm_%d: %s is refused with %d%s", kv,
                   fake_devices[device].major * 10, f->call, code, always ? ", always" : "");
    (void)snprintf(cause, sizeof(cause), "(%s: CUDA error %d)", f->call, code);
    fake.start(&fake_devices[device]);
    expect(fake_engine(model, kv, 1, &e, &err) == 0, "%s", err.text);
    if (!e) {
        return;
    }
    fake.refuse(f->kind, code, always ? 1 << 30 : 1);
    r = run_heard(e, &h);
    expect(r == 0, "%s: %d", what, r);
    /* the engine asks behind some steps: of two refusals the second may be all it hears */
    expect(h.n_said <= n_news && h.n_said >= (n_news > 0), "%s: %d news", what, h.n_said);
    for (int i = 0; i < h.n_said; i++) {
        bool last = i + 1 == h.n_said;

        expect(strstr(h.said[i], cause) != NULL, "%s: \"%s\" is said", what, h.said[i]);
        expect(strstr(h.said[i], last && !graphs ? "kernel by kernel" : "begin early") != NULL,
               "%s: \"%s\" is said", what, h.said[i]);
    }
    for (int i = 0; i < REQUESTS; i++) {
        expect(h.n_ran[i] == want->n_ran[i] && h.sum[i] == want->sum[i],
               "%s: request %d: not the %d launches of before: %d", what, i, want->n_ran[i],
               h.n_ran[i]);
    }
    expect((h.n_graphs[1] > 0) == graphs, "%s: %d graphs afterwards", what, h.n_graphs[1]);
    expect(h.n_early[1] == 0, "%s: %d graphs with early edges afterwards", what, h.n_early[1]);
    engine_destroy(e);
    expect_clean(what);
}

/* A kernel that is refused by itself ends the step, with its name. */
static void refused_kernel(int code)
{
    struct heard h = {0};
    struct engine *e = NULL;
    struct error err = {0};
    char cause[80];
    int r;

    (void)snprintf(cause, sizeof(cause), "CUDA embed_plain: CUDA error %d", code);
    fake.start(&fake_devices[SM_90]);
    expect(fake_engine("stories260K", "full", 1, &e, &err) == 0, "%s", err.text);
    if (!e) {
        return;
    }
    fake.refuse(FAKE_LAUNCH, code, 1);
    r = run_heard(e, &h);
    expect(r == (code == 801 ? -EIO : -EINVAL), "a kernel is refused with %d: %d", code, r);
    expect(h.n_said == 1 && strcmp(h.said[0], cause) == 0, "a kernel is refused with %d: \"%s\"",
           code, h.said[0]);
    engine_destroy(e);
    expect_clean("a refused kernel");
}

/* Whichever call of a running batch is refused: the step ends with a named cause, or goes on as if
 * nothing had been, and something is said. */
static void refused_anywhere(const char *model, const char *kv, const struct heard *want, int code)
{
    if (!takes_turn()) {
        return;
    }

    int n_ended = 0;
    int n_went_on = 0;
    int n = 0;
    bool pending;

    do {
        struct heard h = {0};
        struct engine *e = NULL;
        struct error err = {0};
        int r;

        fake.start(&fake_devices[SM_90]);
        expect(fake_engine(model, kv, 1, &e, &err) == 0, "%s", err.text);
        if (!e) {
            return;
        }
        n += n < 20 ? 1 : 17;
        fake.fail(n, code);
        r = run_heard(e, &h);
        pending = fake.pending();
        fake.fail(0, 0);
        expect(r == 0 || r == (code == 801 ? -EIO : -EINVAL), "%s: %d at call %d: %d", kv, code, n,
               r);
        expect(pending || (h.n_said == 1 && strstr(h.said[0], "CUDA error")),
               "%s: %d at call %d: %d news, \"%s\"", kv, code, n, h.n_said, h.said[0]);
        expect(r < 0 || memcmp(h.sum, want->sum, sizeof(h.sum)) == 0,
               "%s: %d at call %d: other launches", kv, code, n);
        n_ended += r < 0;
        n_went_on += r == 0 && !pending;
        engine_destroy(e);
        expect_clean("a refused call");
    } while (!pending && n < 5000);
    expect(n_ended > 0 && n_went_on > 0 && n < 5000, "%s: %d: %d ended, %d went on", kv, code,
           n_ended, n_went_on);
    printf("%s: %d at any call: %d ended, %d went on\n", kv, code, n_ended, n_went_on);
}

/* At the start it is the engine's error. */
static void refused_at_start(int code)
{
    bool pending;
    int n = 0;

    do {
        struct engine *e = NULL;
        struct error err = {0};
        int r;

        fake.start(&fake_devices[SM_90]);
        n += n < 20 ? 1 : 37;
        fake.fail(n, code);
        r = fake_engine("stories260K", "full", 1, &e, &err);
        pending = fake.pending();
        fake.fail(0, 0);
        expect(pending ? r == 0 : r < 0 && err.text[0], "%d at call %d of the start: %d, \"%s\"",
               code, n, r, err.text);
        if (r == 0) {
            engine_destroy(e);
        }
        expect_clean("refused at the start");
    } while (!pending && n < 1000);
    expect(n > 20 && n < 1000, "%d calls", n);
}

static void refusals(void)
{
    static const struct refusal calls[] = {
        {FAKE_NODE, "cudaGraphAddKernelNode"},  {FAKE_EARLY, "cudaGraphAddDependencies"},
        {FAKE_GRAPH, "cudaGraphInstantiate"},   {FAKE_CHANGE, "cudaGraphExecKernelNodeSetParams"},
        {FAKE_GRAPH_LAUNCH, "cudaGraphLaunch"},
    };
    static const struct {
        int device;
        const char *model, *kv;
    } engines[] = {{SM_90, "stories260K", "full"},
                   {SM_86, "stories260K", "full"},
                   {SM_90, "cache_model", "infinigen:count=9,pool=host"}}; /* of two branches */
    static const int codes[] = {1, 801};

    for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++) {
        struct heard want = {0};
        struct engine *e = NULL;
        struct error err = {0};

        fake.start(&fake_devices[engines[i].device]);
        expect(fake_engine(engines[i].model, engines[i].kv, 1, &e, &err) == 0, "%s", err.text);
        if (!e) {
            continue;
        }
        expect(run_heard(e, &want) == 0 && want.n_said == 0, "\"%s\" is said", want.said[0]);
        expect(want.n_graphs[1] > 0, "%s: no graphs", engines[i].kv);
        expect(want.n_early[1] == (engines[i].device == SM_90 ? want.n_graphs[1] : 0),
               "%s: %d of %d graphs begin early", engines[i].kv, want.n_early[1], want.n_graphs[1]);
        engine_destroy(e);
        expect_clean("nothing refused");
        for (size_t k = 0; k < 2 * 2 * sizeof(calls) / sizeof(calls[0]); k++) {
            refused_graph(engines[i].device, engines[i].model, engines[i].kv, &want, &calls[k / 4],
                          codes[k % 2], k / 2 % 2);
        }
        for (int k = 0; k < 2 && engines[i].device == SM_90; k++) {
            refused_anywhere(engines[i].model, engines[i].kv, &want, codes[k]);
        }
    }
    for (int k = 0; k < 2; k++) {
        refused_kernel(codes[k]);
        refused_at_start(codes[k]);
    }
}

/* ---- memory, later -------------------------------------------------------------------------- */

struct ends {
    int n_done, n_errors;
    struct error error;
};

static void count_end(void *arg, const struct engine_event *ev)
{
    struct ends *ends = arg;

    if (ev->type == ENGINE_EV_DONE) {
        ends->n_done++;
        ends->n_errors += ev->reason == ENGINE_ERROR;
        if (ev->reason == ENGINE_ERROR) {
            ends->error = ev->error;
        }
    }
}

/* Three requests of one principal, of which the last forks the first. */
static int three(struct engine *e, uint64_t principal, struct ends *ends)
{
    int32_t prompt[FAKE_PROMPT];
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = prompt,
                               .n_prompt = FAKE_PROMPT,
                               .max_tokens = FAKE_NEW + 24, /* into a second page */
                               .ignore_end = true,
                               .unsaved = true, /* under any policy steps are begun ahead */
                               .principal = principal,
                               .sampler = sampler_params_default()};
    uint64_t handle[3] = {0};
    struct error err = {0};
    int r = 0;

    *ends = (struct ends){0};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < FAKE_PROMPT; k++) {
            prompt[k] = 1 + (k + (i == 1)) % 20;
        }
        q.fork_of = i == 2 ? handle[0] : 0;
        expect(engine_submit(e, &q, &handle[i], &err) == 0, "submit: %s", err.text);
    }
    while ((r = engine_step(e, count_end, ends)) > 0) {
    }
    return r;
}

/* Memory that another process takes while requests run: whichever call has none, those that run end
 * with an error that says so, or go on; nobody keeps a page, and the next ones have answers. */
static void memory_later(const char *model, const char *kv)
{
    if (!takes_turn()) {
        return;
    }

    struct engine_counters c;
    struct engine *e = NULL;
    struct error err = {0};
    struct ends ends;
    int n_errors = 0;
    int tries = 0;
    int n = 0;
    bool pending = false;

    fake.start(&fake_devices[SM_90]);
    for (; !pending && tries < 400; tries++) {
        if (tries % 50 == 0) { /* a graph that was refused is not tried again */
            engine_destroy(e);
            e = NULL;
            expect(fake_engine(model, kv, 3, &e, &err) == 0, "%s", err.text);
        }
        if (!e) {
            return;
        }
        expect(three(e, 1, &ends) == 0 && ends.n_errors == 0, "%s: before: %s", kv,
               ends.error.text);
        n += n < 150 ? 1 : 37;
        fake.log_clear();
        fake.fail(n, 2);
        expect(three(e, 2, &ends) == 0, "%s: call %d ends a step", kv, n);
        pending = fake.pending();
        fake.fail(0, 0);
        expect(ends.n_done == 3, "%s: call %d: %d of 3 end", kv, n, ends.n_done);
        expect(ends.n_errors == 0 || strstr(ends.error.text, "memory"), "%s: \"%s\"", kv,
               ends.error.text);
        n_errors += ends.n_errors > 0;
        engine_counters(e, &c);
        expect(c.kv_bytes_used == 0, "%s: call %d: %llu bytes are still held", kv, n,
               (unsigned long long)c.kv_bytes_used);
        expect(three(e, 3, &ends) == 0 && ends.n_errors == 0 && ends.n_done == 3,
               "%s: call %d: the next ones: %s", kv, n, ends.error.text);
        fake.log_clear();
    }
    expect(n_errors > 10, "%s: %d errors", kv, n_errors);
    printf("%s, %s: %d calls without memory, %d ended requests\n", model, kv, tries, n_errors);
    engine_destroy(e);
    expect_clean("memory taken later");
}

static void count_token(void *arg, const struct engine_event *ev)
{
    *(int *)arg += ev->type == ENGINE_EV_TOKEN;
}

/* Memory that is gone as a step is begun ahead: the token before it, which is drawn and on its way,
 * is said all the same. Only the calls that bring a token lose some: an event behind its copy, and
 * the wait for that. */
static void drawn_is_said(void)
{
    enum { TOKENS = 1 /* drawn by the host, of the prompt */ + FAKE_NEW - 1 };
    const struct fake_call *c;
    struct engine *e = NULL;
    struct error err = {0};
    int n_said = 0;
    int n_lost = 0;
    bool pending = false;

    for (int n = 1; !pending && n < 1000; n++) {
        int n_tokens = 0;
        int n_drawn = 1;
        int n_calls;
        int r;

        fake.start(&fake_devices[SM_90]);
        expect(fake_engine("stories260K", "full", 1, &e, &err) == 0, "%s", err.text);
        if (!e) {
            return;
        }
        expect(fake_submit(e, &err) == 0 && engine_step(e, count_token, &n_tokens) > 0, "a prompt");
        fake.log_clear();
        fake.fail(n, 2);
        do {
            r = engine_step(e, count_token, &n_tokens);
        } while (r > 0);
        pending = fake.pending();
        fake.fail(0, 0);
        expect(r == 0, "call %d ends a step: %d", n, r);
        c = fake.log(&n_calls);
        for (int i = 0; i < n_calls; i++) {
            n_drawn += c[i].kind == FAKE_READ && c[i].bytes == sizeof(int32_t);
        }
        expect(n_tokens <= n_drawn && n_tokens >= n_drawn - 2, "call %d: %d tokens of %d", n,
               n_tokens, n_drawn);
        n_said += n_tokens == n_drawn && n_tokens > 1 && n_tokens < TOKENS;
        n_lost += n_tokens < n_drawn;
        engine_destroy(e);
        e = NULL;
        expect_clean("memory gone ahead");
    }
    expect(n_said >= FAKE_NEW - 2, "%d ends with all tokens said", n_said);
    expect(n_lost <= 2 * (FAKE_NEW - 1), "%d ends lose tokens", n_lost);
    printf("memory gone as a step is begun: %d ends, all said; %d ends, some lost\n", n_said,
           n_lost);
}

int main(int argc, char **argv)
{
    /* sticky: an illegal address, ECC, a launch failure, time out, unknown */
    static const int sticky[] = {700, 214, 719, 702, 999};

    if (argc != 3) {
        (void)fprintf(stderr, "usage: test_cuda_host_faults MODULE FOLDER\n");
        return 2;
    }
    fake_folder = argv[2];
    fake_open(argv[1]);
    devices();
    memory();
    for (size_t i = 0; i < sizeof(sticky) / sizeof(sticky[0]); i++) {
        lost(sticky[i]);
    }
    refusals();
    drawn_is_said();
    memory_later("stories260K", "kv8+h2o:64");
    memory_later("stories260K", "full");
    memory_later("stories260K", "keyformer:50%");
    memory_later("arch_gemma3", "full");
    memory_later("cache_model", "infinigen:count=9");
    memory_later("cache_model", "infinigen:count=9,pool=host");
    printf("%d failed\n", n_failed);
    return n_failed > 0;
}

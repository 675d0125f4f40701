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

/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens drawn by the backend, steps begun before they are known, against the host's sampler and
 * one step at a time: the same tokens and the same ends, whatever ends a text, whoever interrupts,
 * cancels, or comes in the midst; and a text saved as it ends goes on as one saved the other way.
 *
 *     test_async_step BACKEND FOLDER [few | order]   (BACKEND may be a module's path)
 *
 * few: the first two, short. order: also the one that overwrites slots, where order.cc sees it. */

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine.h"
#include "engine/text/tok.h"

enum { MAX_REQUESTS = 4, MAX_NEW = 200, N_PROMPT = 9, PAGE = 64 };

struct scenario {
    const char *name;
    const char *model;
    const char *kv;
    int n_requests;
    int n_seqs;
    int n_new;
    float temperature;
    bool sampled_apart;  /* each request with a top_k and temperature of its own */
    bool ends;           /* end tokens end texts */
    int cancel_at;       /* the first request's token from whose event it is cancelled; 0: none */
    int other_at;        /* and from whose event the second is */
    int interrupt_every; /* tokens */
    int interrupt_us;    /* another thread does it after so many, again and again */
    int notice_every;
    bool unsaved;    /* nobody saves the first one's text */
    bool late;       /* the last request comes while others run */
    bool host_row;   /* the first one's log-probabilities are wanted: nothing is drawn ahead */
    bool ahead;      /* steps are begun ahead */
    bool overwrites; /* a step writes slots that it found full: not to be read before it waits */
};

struct answer {
    uint64_t handle;
    int32_t tokens[MAX_NEW];
    int n;
    bool done;
    enum engine_reason reason;
    int32_t usage_new;
    uint64_t kv_bytes;
    int64_t n_slots;
    void *saved;
    size_t saved_size;
};

struct run {
    const struct scenario *sc;
    struct engine *e;
    struct answer a[MAX_REQUESTS];
    int n_events;
    atomic_bool over;
};

static const char *backend, *folder;
static int n_failed, n_passed;

static void expect(bool ok, const struct scenario *sc, const char *what, long got, long want)
{
    n_passed += ok;
    if (!ok) {
        n_failed++;
        printf("FAILED: %s: %s: %ld, not %ld\n", sc->name, what, got, want);
    }
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct run *run = arg;
    const struct scenario *sc = run->sc;
    struct answer *a = ev->user;
    struct error err = {0};

    if (ev->type == ENGINE_EV_TOKEN) {
        a->tokens[a->n++] = ev->token;
        run->n_events++;
        if (sc->cancel_at && a == &run->a[0] && a->n == sc->cancel_at) {
            (void)engine_cancel(run->e, a->handle, ENGINE_STOP);
        }
        if (sc->other_at && a == &run->a[0] && a->n == sc->other_at) {
            (void)engine_cancel(run->e, run->a[1].handle, ENGINE_CANCELLED);
        }
        if (sc->interrupt_every && run->n_events % sc->interrupt_every == 0) {
            engine_interrupt(run->e);
        }
        if (sc->notice_every && run->n_events % sc->notice_every == 0) {
            engine_notice(run->e);
        }
    } else if (ev->type == ENGINE_EV_DONE) {
        a->done = true;
        a->reason = ev->reason;
        a->usage_new = ev->usage.n_new;
        a->kv_bytes = ev->usage.kv_bytes;
        a->n_slots = ev->usage.n_slots;
        if (a == &run->a[0] && ev->reason != ENGINE_ERROR && ev->reason != ENGINE_CANCELLED) {
            int rc = engine_save(run->e, a->handle, &a->saved, &a->saved_size, &err);

            expect(rc == (sc->unsaved ? -EINVAL : 0), sc, err.text, rc, 0);
        }
    }
}

static struct engine_request request(const struct scenario *sc, int i, int32_t *prompt)
{
    /* Who begins later, since a prompt is read beside others by the clock, must not be left alone.
     */
    int32_t shorter = sc->host_row ? 20 : sc->n_new > 20 ? 3 : 0;
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = prompt,
                               .n_prompt = N_PROMPT,
                               .max_tokens = sc->n_new - shorter * i,
                               .ignore_end = !sc->ends,
                               .unsaved = sc->unsaved,
                               .sampler = sampler_params_default()};

    for (int k = 0; k < N_PROMPT; k++) {
        prompt[k] = 1 + (k * 7 + i * 11) % 40;
    }
    q.sampler.temperature = sc->temperature;
    q.sampler.seed = 77 + (uint64_t)i;
    if (sc->sampled_apart) {
        q.sampler.top_k = i % 3 == 2 ? 0 : 5 + 9 * i; /* 0: of all tokens */
        q.sampler.temperature = i == 1 ? 0 : 0.7f + 0.4f * (float)i;
    }
    q.sampler.n_logprobs = sc->host_row && i == 0 ? 0 : -1;
    return q;
}

static void submit(struct run *run, int i)
{
    int32_t prompt[N_PROMPT];
    struct engine_request q = request(run->sc, i, prompt);
    struct error err = {0};

    q.user = &run->a[i];
    expect(engine_submit(run->e, &q, &run->a[i].handle, &err) == 0, run->sc, err.text, 0, 0);
}

/* What the text that was saved says next, drawn by the host. */
static int32_t goes_on(struct run *run, struct answer *next)
{
    struct answer *a = &run->a[0];
    int32_t prompt[N_PROMPT];
    struct engine_request q = request(run->sc, 0, prompt);
    struct error err = {0};

    q.user = next;
    q.forced = a->tokens;
    q.n_forced = a->n;
    q.max_tokens = a->n + 5;
    q.ignore_end = true;
    q.saved = a->saved;
    q.saved_size = a->saved_size;
    expect(engine_submit(run->e, &q, &next->handle, &err) == 0, run->sc, err.text, 0, 0);
    while (engine_step(run->e, on_event, run) > 0) {
    }
    return next->n;
}

static void *interrupts(void *arg)
{
    struct run *run = arg;
    const struct timespec pause = {.tv_nsec = run->sc->interrupt_us * 1000L};

    while (!atomic_load(&run->over)) {
        engine_interrupt(run->e);
        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

static uint64_t run_with(struct run *run, enum engine_draw draw, struct answer *next)
{
    const struct scenario *sc = run->sc;
    struct engine_counters c = {0};
    struct engine_config config;
    struct error err = {0};
    char path[512];
    pthread_t thread;
    int n_steps = 0;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, sc->model);
    engine_config_default(&config);
    config.model_path = path;
    config.backend = backend;
    config.n_threads = 1;
    config.ctx = 256;
    config.n_seqs = sc->n_seqs;
    config.kv = sc->kv;
    config.draw = draw;
    if (engine_create(&config, NULL, NULL, &run->e, &err) < 0) {
        expect(false, sc, err.text, 0, 0);
        return 0;
    }
    for (int i = 0; i < sc->n_requests - sc->late; i++) {
        submit(run, i);
    }
    if (sc->interrupt_us && pthread_create(&thread, NULL, interrupts, run) != 0) {
        expect(false, sc, "a thread", 0, 0);
        return 0;
    }
    for (int n = 1; n > 0 || (sc->late && n_steps < 4); n_steps++) {
        if (sc->late && n_steps == 3) {
            submit(run, sc->n_requests - 1);
        }
        n = engine_step(run->e, on_event, run);
        expect(n >= 0, sc, "a step", n, 0);
    }
    atomic_store(&run->over, true);
    if (sc->interrupt_us) {
        (void)pthread_join(thread, NULL);
    }
    engine_counters(run->e, &c);
    expect(c.kv_bytes_used == 0, sc, "pages that nobody holds", (long)c.kv_bytes_used, 0);
    if (run->a[0].saved) {
        (void)goes_on(run, next);
        free(run->a[0].saved);
    }
    engine_counters(run->e, &c);
    expect(c.kv_bytes_used == 0, sc, "pages that nobody holds at the end", (long)c.kv_bytes_used,
           0);
    engine_destroy(run->e);
    return c.n_async_steps;
}

static void compare(const struct scenario *sc)
{
    static struct run host, device;
    static struct answer next_host, next_device;
    uint64_t n_async_steps;
    int n_ended = 0;

    memset(&host, 0, sizeof(host));
    memset(&device, 0, sizeof(device));
    memset(&next_host, 0, sizeof(next_host));
    memset(&next_device, 0, sizeof(next_device));
    host.sc = device.sc = sc;
    expect(run_with(&host, ENGINE_DRAW_HOST, &next_host) == 0, sc, "ahead, by the host", 1, 0);
    n_async_steps = run_with(&device, ENGINE_DRAW_DEVICE, &next_device);
    expect((n_async_steps > 0) == sc->ahead || sc->interrupt_us, sc, "steps begun ahead",
           (long)n_async_steps, sc->ahead);
    for (int i = 0; i < sc->n_requests; i++) {
        n_ended += device.a[i].reason == ENGINE_STOP;
    }
    expect(!sc->ends || n_ended > 0, sc, "texts that end", n_ended, 1);
    for (int i = 0; i < sc->n_requests; i++) {
        const struct answer *a = &host.a[i];
        const struct answer *b = &device.a[i];
        bool cut = sc->other_at && i == 1; /* cancelled by another: how far it got is its luck */
        int n = a->n < b->n ? a->n : b->n;

        expect(a->done && b->done, sc, "both end", b->done, 1);
        expect(cut || a->n == b->n, sc, "tokens", b->n, a->n);
        expect(memcmp(a->tokens, b->tokens, (size_t)n * sizeof(int32_t)) == 0, sc, "their ids", i,
               i);
        expect(a->reason == b->reason, sc, "the reason", b->reason, a->reason);
        expect(cut || a->usage_new == b->usage_new, sc, "tokens counted", b->usage_new,
               a->usage_new);
        expect(cut || a->kv_bytes == b->kv_bytes, sc, "bytes counted", (long)b->kv_bytes,
               (long)a->kv_bytes);
        expect(cut || a->n_slots == b->n_slots, sc, "slots counted", (long)b->n_slots,
               (long)a->n_slots);
    }
    expect(next_host.n == next_device.n &&
               memcmp(next_host.tokens, next_device.tokens, sizeof(next_host.tokens)) == 0,
           sc, "what a saved text says next", next_device.n, next_host.n);
}

int main(int argc, char **argv)
{
    static const struct scenario all[] = {
        {.name = "greedy", .n_requests = 1, .n_new = 12, .ahead = true},
        {.name = "drawn", .n_requests = 2, .n_new = 12, .temperature = 1, .ahead = true},
        {.name = "fp8",
         .kv = "fp8",
         .n_requests = 1,
         .n_new = 100,
         .temperature = 1,
         .ahead = true},
        {.name = "apart", .n_requests = 3, .n_new = 90, .sampled_apart = true, .ahead = true},
        {.name = "end tokens",
         .n_requests = 4,
         .n_new = 200,
         .temperature = 4,
         .ends = true,
         .model = "heads_32.gguf",
         .ahead = true},
        {.name = "stopped from its event",
         .n_requests = 2,
         .n_new = 90,
         .temperature = 1,
         .cancel_at = 65,
         .ahead = true},
        {.name = "stopped at a page's end",
         .n_requests = 2,
         .n_new = 90,
         .temperature = 1,
         .cancel_at = PAGE - N_PROMPT + 1,
         .ahead = true},
        {.name = "stopped a slot later",
         .n_requests = 1,
         .n_new = 90,
         .cancel_at = PAGE - N_PROMPT + 2,
         .ahead = true},
        {.name = "another one cancelled",
         .n_requests = 2,
         .n_new = 60,
         .other_at = 20,
         .ahead = true},
        {.name = "interrupted",
         .n_requests = 2,
         .n_new = 70,
         .temperature = 1,
         .interrupt_every = 3,
         .cancel_at = 66,
         .ahead = true},
        {.name = "interrupted within steps",
         .n_requests = 4,
         .n_new = 200,
         .temperature = 4,
         .ends = true,
         .model = "heads_32.gguf",
         .interrupt_us = 400,
         .ahead = true},
        {.name = "evicting, interrupted within steps",
         .kv = "h2o:30",
         .n_requests = 4,
         .n_new = 200,
         .temperature = 4,
         .ends = true,
         .model = "heads_32.gguf",
         .interrupt_us = 400,
         .unsaved = true,
         .ahead = true},
        {.name = "knocked", .n_requests = 2, .n_new = 40, .notice_every = 5, .ahead = true},
        {.name = "more than places",
         .n_requests = 4,
         .n_seqs = 2,
         .n_new = 40,
         .temperature = 1,
         .ahead = true},
        {.name = "one comes late",
         .n_requests = 3,
         .n_new = 80,
         .temperature = 1,
         .late = true,
         .ahead = true},
        {.name = "evicting", .kv = "h2o:48", .n_requests = 2, .n_new = 60, .temperature = 1},
        {.name = "evicting, unsaved",
         .kv = "h2o:48",
         .n_requests = 2,
         .n_new = 60,
         .temperature = 1,
         .unsaved = true,
         .ahead = true,
         .overwrites = true},
        {.name = "evicting, unsaved, end tokens",
         .kv = "keyformer:40",
         .n_requests = 4,
         .n_new = 200,
         .temperature = 4,
         .ends = true,
         .model = "heads_32.gguf",
         .unsaved = true,
         .ahead = true},
        {.name = "evicting, stopped at a page's end",
         .kv = "kv8+recency:100",
         .n_requests = 2,
         .n_new = 90,
         .temperature = 1,
         .cancel_at = PAGE - N_PROMPT + 1,
         .unsaved = true,
         .ahead = true},
        {.name = "evicting, interrupted",
         .kv = "h2o:40",
         .n_requests = 2,
         .n_new = 70,
         .temperature = 1,
         .interrupt_every = 3,
         .cancel_at = 66,
         .unsaved = true,
         .ahead = true},
        {.name = "evicting, more than places",
         .kv = "recency:32",
         .n_requests = 4,
         .n_seqs = 2,
         .n_new = 60,
         .temperature = 1,
         .unsaved = true,
         .ahead = true},
        {.name = "evicting, scored behind the step",
         .kv = "expected:40,every=3",
         .n_requests = 2,
         .n_new = 60,
         .temperature = 1,
         .unsaved = true,
         .ahead = true},
        {.name = "selecting", .kv = "sparq:r=4,k=16", .n_requests = 2, .n_new = 60},
        {.name = "selecting, unsaved",
         .kv = "sparq:r=4,k=16",
         .n_requests = 2,
         .n_new = 60,
         .cancel_at = 41,
         .unsaved = true,
         .ahead = true},
        {.name = "log-probabilities", .n_requests = 2, .n_new = 30, .host_row = true},
        {.name = "rings",
         .model = "arch_gemma3.gguf",
         .n_requests = 1,
         .n_new = 60,
         .temperature = 1,
         .ahead = true},
        {.name = "SwiftKV's model alone",
         .model = "cache_model.gguf",
         .n_requests = 2,
         .n_new = 50,
         .temperature = 1,
         .ahead = true},
    };
    size_t n = sizeof(all) / sizeof(all[0]);

    if (argc < 3) {
        (void)fprintf(stderr, "usage: test_async_step BACKEND FOLDER [few | order]\n");
        return 2;
    }
    backend = argv[1];
    folder = argv[2];
    for (size_t i = 0; i < n; i++) {
        struct scenario sc = all[i];
        bool whole = argc <= 3 || (sc.overwrites && strcmp(argv[3], "order") == 0);

        if (!whole && i >= 2) {
            continue;
        }
        sc.model = sc.model ? sc.model : argc > 3 ? "arch_llama.gguf" : "stories260K.gguf";
        sc.n_seqs = sc.n_seqs ? sc.n_seqs : 4;
        sc.n_new = whole ? sc.n_new : 7;
        compare(&sc);
    }
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* ms between the tokens of running sequences while another's long prompt is read, by the engine
 * alone: without clients and processes, which stall.py has. Beside it what tokens are apart before
 * and after the prompt (the sequences grow meanwhile), and how long the prompt takes then and
 * alone.
 *
 * gaps MODEL [POLICY [THREADS [PROMPT [RUNNING [DEPTH [OVERLAY]]]]]] */

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/engine.h"

enum { CTX = 8192, RUNNING_MAX = 8, PLAIN = 150, GAPS = 8192 };

struct seen {
    int32_t n_new;
    bool done;
};

static double gaps[GAPS];

static void on_event(void *arg, const struct engine_event *ev)
{
    struct seen *s = ev->user;

    s->n_new += ev->type == ENGINE_EV_TOKEN;
    s->done = s->done || ev->type == ENGINE_EV_DONE;
}

static void step(struct engine *e)
{
    if (engine_step(e, on_event, NULL) < 0) {
        fprintf(stderr, "a step failed\n");
        exit(1);
    }
}

static int32_t number(int argc, char **argv, int i, int32_t otherwise)
{
    return argc > i ? atoi(argv[i]) : otherwise;
}

static void submit(struct engine *e, uint64_t seed, int32_t n, int32_t n_new, struct seen *s)
{
    static int32_t ids[CTX];
    struct engine_request q = {
        .prompt = ids,
        .n_prompt = n,
        .max_tokens = n_new,
        .ignore_end = true,
        .sampler = sampler_params_default(),
        .user = s,
    };
    struct error err = {0};
    uint64_t handle;

    for (int32_t i = 0; i < n; i++) {
        uint32_t counter[4] = {(uint32_t)i, 0, 0, 0};
        uint32_t out[4];

        rng_philox(rng_key_make(seed), counter, out);
        ids[i] = (int32_t)(out[0] % (uint32_t)engine_info(e)->n_vocab);
    }
    q.sampler.temperature = 0;
    *s = (struct seen){0};
    if (engine_submit(e, &q, &handle, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
}

static int compare(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

static double show(const char *name, int32_t n, double plain)
{
    static const double at[] = {0.5, 0.9, 0.99, 1};

    qsort(gaps, (size_t)n, sizeof(*gaps), compare);
    printf("%-7s n %5d  p50, p90, p99, largest:", name, n);
    for (int i = 0; i < 4; i++) {
        printf(" %6.2f", gaps[(int32_t)(at[i] * (n - 1))]);
    }
    for (int i = 0; plain > 0 && i < 4; i++) {
        printf("%s%.2f", i ? " " : " ms; to plain: ", gaps[(int32_t)(at[i] * (n - 1))] / plain);
    }
    puts(plain > 0 ? "" : " ms");
    return gaps[n / 2];
}

/* Gaps until the prompt's end, or so many of them. */
static int32_t watch(struct engine *e, const struct seen *talker, const struct seen *prompt,
                     int32_t n)
{
    int64_t last = clock_ns();
    int32_t said = talker->n_new;
    int32_t i = 0;

    while (i < n && !(prompt && prompt->done)) {
        step(e);
        if (talker->n_new > said) {
            int64_t now = clock_ns();

            gaps[i++] = (double)(now - last) / 1e6;
            last = now;
            said = talker->n_new;
        }
    }
    return i;
}

int main(int argc, char **argv)
{
    static double besides[GAPS];
    struct seen talker[RUNNING_MAX];
    struct seen prompt;
    struct engine_config c;
    struct engine *e = NULL;
    struct error err = {0};
    int32_t n_prompt = number(argc, argv, 4, 4000);
    int32_t n_running = number(argc, argv, 5, 2);
    int32_t depth = number(argc, argv, 6, 500);

    engine_config_default(&c);
    c.model_path = argc > 1 ? argv[1] : "";
    c.backend = "cpu";
    c.kv = argc > 2 ? argv[2] : "full";
    c.n_threads = number(argc, argv, 3, 1);
    c.ctx = n_prompt + depth + 2000;
    c.n_seqs = n_running + 1;
    c.overlay_paths = (const char *const *)argv + 7;
    c.n_overlays = argc > 7;
    if (n_running < 1 || n_running > RUNNING_MAX || n_prompt < 1 || depth < 1 || c.ctx > CTX ||
        engine_create(&c, NULL, NULL, &e, &err)) {
        fprintf(stderr, "%s\n", err.text[0] ? err.text : "what is asked for is out of range");
        return 1;
    }
    int64_t t0 = clock_ns();

    submit(e, 1, n_prompt, 1, &prompt);
    while (!prompt.done) {
        step(e);
    }
    double alone = (double)(clock_ns() - t0) / 1e9;

    for (int32_t i = 0; i < n_running; i++) {
        submit(e, (uint64_t)i + 2, depth, c.ctx - depth, &talker[i]);
    }
    while (talker[n_running - 1].n_new < 5 || talker[0].n_new < 5) {
        step(e);
    }
    double plain = show("before", watch(e, &talker[0], NULL, PLAIN), 0);

    t0 = clock_ns();
    submit(e, 99, n_prompt, 1, &prompt);
    int32_t n = watch(e, &talker[0], &prompt, GAPS);
    double beside = (double)(clock_ns() - t0) / 1e9;

    for (int32_t i = 0; i < n; i++) {
        besides[i] = gaps[i];
    }
    plain = (plain + show("after", watch(e, &talker[0], NULL, PLAIN), 0)) / 2;
    for (int32_t i = 0; i < n; i++) {
        gaps[i] = besides[i];
    }
    (void)show("beside", n, plain);
    printf("%s: the prompt took %.2f s alone, %.2f s beside (%.2f)\n", c.kv, alone, beside,
           beside / alone);
    engine_destroy(e);
    return 0;
}

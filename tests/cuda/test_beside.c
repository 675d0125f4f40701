/* SPDX-License-Identifier: Apache-2.0 */
/* InfiniGen's pool in the host's memory with company: one text decodes while another's prompt is
 * read in chunks, so that a batch holds rows that read what a list names beside rows that read a
 * whole store, each from its own part of staging. Every logit of both is that of pages on the
 * device, bit for bit, and that of either text alone.
 *
 *     test_beside BACKEND FOLDER   (BACKEND may be a module's path) */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { N_TEXTS = 2, N_PROMPT_A = 12, N_PROMPT_B = 90, MAX_NEW = 14, NEW_B = 5, N_VOCAB = 300 };

struct text {
    uint64_t handle;
    float row[N_VOCAB]; /* the engine writes the newest here */
    float all[MAX_NEW][N_VOCAB];
    int n;
    bool done;
};

struct run {
    struct text text[N_TEXTS];
    int n_between; /* tokens of the first between the second's submission and its first */
};

static const char *backend, *folder;
static int n_failed;

static void expect(bool ok, const char *kv, const char *what, long n)
{
    if (!ok) {
        n_failed++;
        printf("FAILED: %s: %s: %ld\n", kv, what, n);
    }
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct run *run = arg;
    struct text *t = ev->user;
    const struct text *second = &run->text[1];

    if (ev->type == ENGINE_EV_TOKEN && t->n < MAX_NEW) {
        memcpy(t->all[t->n++], t->row, sizeof(t->row));
        run->n_between += t == &run->text[0] && second->handle && second->n == 0;
    } else if (ev->type == ENGINE_EV_DONE) {
        t->done = ev->reason == ENGINE_LENGTH;
        if (!t->done) {
            printf("%s\n", ev->error.text);
        }
    }
}

static void submit(struct engine *e, struct run *run, int i)
{
    int32_t prompt[N_PROMPT_B];
    struct text *t = &run->text[i];
    struct error err = {0};
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = prompt,
                               .n_prompt = i == 0 ? N_PROMPT_A : N_PROMPT_B,
                               .max_tokens = i == 0 ? MAX_NEW : NEW_B,
                               .ignore_end = true,
                               .sampler = sampler_params_default(),
                               .principal = 1,
                               .user = t,
                               .logits = t->row,
                               .logits_rows = 1};

    for (int32_t k = 0; k < q.n_prompt; k++) {
        prompt[k] = 1 + (k * 37 + k * k * 5 + i * 101) % (N_VOCAB - 1);
    }
    q.sampler.temperature = 0;
    expect(engine_submit(e, &q, &t->handle, &err) == 0, err.text, "submit", i);
}

/* Texts [first, end), the second one when the first has said a few tokens. */
static void run_with(const char *kv, int first, int end, struct run *run)
{
    char path[2][512];
    const char *overlays[1] = {path[1]};
    struct engine_config config;
    struct engine *e = NULL;
    struct error err = {0};

    memset(run, 0, sizeof(*run));
    (void)snprintf(path[0], sizeof(path[0]), "%s/cache_model.gguf", folder);
    (void)snprintf(path[1], sizeof(path[1]), "%s/cache_skew.gguf", folder);
    engine_config_default(&config);
    config.model_path = path[0];
    config.overlay_paths = overlays;
    config.n_overlays = 1;
    config.backend = backend;
    config.n_threads = 1;
    config.ctx = 128;
    config.n_seqs = 3;
    config.kv = kv;
    if (engine_create(&config, NULL, NULL, &e, &err) < 0) {
        expect(false, kv, err.text, 0);
        return;
    }
    submit(e, run, first);
    for (int n = 1; n > 0;) {
        n = engine_step(e, on_event, run);
        expect(n >= 0, kv, "a step", n);
        if (end > first + 1 && !run->text[1].handle && run->text[0].n >= 3) {
            submit(e, run, 1);
            n = 1;
        }
    }
    for (int i = first; i < end; i++) {
        expect(run->text[i].done && run->text[i].n == (i == 0 ? MAX_NEW : NEW_B), kv,
               "tokens of a text", run->text[i].n);
    }
    engine_destroy(e);
}

static void same(const char *kv, const char *what, const struct run *a, const struct run *b, int i)
{
    for (int k = 0; k < a->text[i].n; k++) {
        if (memcmp(a->text[i].all[k], b->text[i].all[k], sizeof(a->text[i].all[k])) != 0) {
            printf("text %d ", i);
            expect(false, kv, what, k);
            return;
        }
    }
}

int main(int argc, char **argv)
{
    static const char on_device[] = "fp8+full,chunk=24+infinigen:share=30%,partial8=on";
    static const char kv[] = "fp8+full,chunk=24+infinigen:share=30%,partial8=on,pool=host";
    static struct run device, host, alone;

    if (argc < 3) {
        (void)fprintf(stderr, "usage: test_beside BACKEND FOLDER\n");
        return 2;
    }
    backend = argv[1];
    folder = argv[2];
    run_with(on_device, 0, N_TEXTS, &device);
    run_with(kv, 0, N_TEXTS, &host);
    expect(host.n_between >= 2, kv, "tokens of the first while the second's prompt is read",
           host.n_between);
    for (int t = 0; t < N_TEXTS; t++) {
        same(kv, "other logits than with pages on the device, token", &host, &device, t);
        run_with(kv, t, t + 1, &alone);
        same(kv, "other logits than alone, token", &host, &alone, t);
    }
    printf("%d failed\n", n_failed);
    return n_failed > 0;
}

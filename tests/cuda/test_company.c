/* SPDX-License-Identifier: Apache-2.0 */
/* A decode row alone, whose activations the kernels ahead leave in 8 bits, and the same row beside
 * others, for which a kernel of its own makes them: every logit is the same, bit for bit. The text
 * is long enough that attention's chunks become two on the way.
 *
 *     test_company BACKEND MODEL   (BACKEND may be a module's path) */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { N_TEXTS = 2, N_PROMPT = 125, N_NEW = 7, N_VOCAB = 300 };

struct text {
    float row[N_VOCAB]; /* the engine writes the newest here */
    float all[N_NEW][N_VOCAB];
    int n;
};

static const char *backend, *model;

static void on_event(void *arg, const struct engine_event *ev)
{
    struct text *t = ev->user;

    (void)arg;
    if (ev->type == ENGINE_EV_TOKEN && t->n < N_NEW) {
        memcpy(t->all[t->n++], t->row, sizeof(t->row));
    } else if (ev->type == ENGINE_EV_DONE && ev->reason != ENGINE_LENGTH) {
        printf("%s\n", ev->error.text);
    }
}

static int submit(struct engine *e, struct text *t, int i)
{
    int32_t prompt[N_PROMPT];
    struct error err = {0};
    uint64_t handle;
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = prompt,
                               .n_prompt = N_PROMPT,
                               .max_tokens = N_NEW,
                               .ignore_end = true,
                               .sampler = sampler_params_default(),
                               .principal = 1,
                               .user = t,
                               .logits = t->row,
                               .logits_rows = 1};

    for (int32_t k = 0; k < q.n_prompt; k++) {
        prompt[k] = 1 + (k * 37 + k * k * 5 + i * 101) % (N_VOCAB - 50);
    }
    q.sampler.temperature = 0;
    int r = engine_submit(e, &q, &handle, &err);

    if (r < 0) {
        printf("%s\n", err.text);
    }
    return r;
}

/* The first n texts at once; false: not to their end. */
static bool run(int n, struct text *texts)
{
    struct engine_config config;
    struct engine *e = NULL;
    struct error err = {0};
    bool ok = true;
    int r = 1;

    memset(texts, 0, (size_t)n * sizeof(*texts));
    engine_config_default(&config);
    config.model_path = model;
    config.backend = backend;
    config.n_threads = 1;
    config.ctx = 256;
    config.n_seqs = N_TEXTS;
    config.kv = "f16";
    if (engine_create(&config, NULL, NULL, &e, &err) < 0) {
        printf("%s\n", err.text);
        return false;
    }
    for (int i = 0; i < n; i++) {
        ok = submit(e, &texts[i], i) == 0 && ok;
    }
    while (ok && r > 0) {
        r = engine_step(e, on_event, NULL);
    }
    for (int i = 0; i < n; i++) {
        ok = ok && r == 0 && texts[i].n == N_NEW;
    }
    engine_destroy(e);
    return ok;
}

int main(int argc, char **argv)
{
    static struct text alone[1], beside[N_TEXTS];

    if (argc < 3) {
        (void)fprintf(stderr, "usage: test_company BACKEND MODEL\n");
        return 2;
    }
    backend = argv[1];
    model = argv[2];
    if (!run(1, alone) || !run(N_TEXTS, beside)) {
        printf("FAILED: a text did not end\n");
        return 1;
    }
    for (int k = 0; k < N_NEW; k++) {
        if (memcmp(alone[0].all[k], beside[0].all[k], sizeof(alone[0].all[k])) != 0) {
            printf("FAILED: other logits in company, token %d\n", k);
            return 1;
        }
    }
    return 0;
}

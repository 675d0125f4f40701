/* SPDX-License-Identifier: Apache-2.0 */
/* Engines over the fake run-time library: one line a test. */

#include "tests/cuda/fake_engine.h"

#include <stdio.h>
#include <string.h>

const char *fake_folder;
int32_t fake_ctx = 256;

int fake_engine(const char *model, const char *kv, int32_t n_seqs, struct engine **ret,
                struct error *e)
{
    static char path[512];
    static char overlay[512];
    static const char *const overlays[] = {overlay};
    struct engine_config c;

    (void)snprintf(path, sizeof(path), "%s/%s.gguf", fake_folder, model);
    (void)snprintf(overlay, sizeof(overlay), "%s/cache_skew.gguf", fake_folder);
    engine_config_default(&c);
    c.model_path = path;
    c.overlay_paths = overlays;
    c.n_overlays = strstr(kv, "infinigen") != NULL;
    c.backend = fake_path;
    c.kv = kv;
    c.ctx = fake_ctx;
    c.n_seqs = n_seqs;
    c.n_threads = 1;
    return engine_create(&c, NULL, NULL, ret, e);
}

void fake_ignore(void *arg, const struct engine_event *ev)
{
    (void)arg;
    (void)ev;
}

int fake_submit(struct engine *e, struct error *err)
{
    int32_t prompt[FAKE_PROMPT];
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = prompt,
                               .n_prompt = FAKE_PROMPT,
                               .max_tokens = FAKE_NEW,
                               .ignore_end = true,
                               .sampler = sampler_params_default()};
    uint64_t handle;

    for (int i = 0; i < FAKE_PROMPT; i++) {
        prompt[i] = 1 + i % 20;
    }
    q.sampler.temperature = 0;
    return engine_submit(e, &q, &handle, err);
}

int fake_run(struct engine *e, int n_requests)
{
    struct error err = {0};
    int r = 0;

    for (int i = 0; i < n_requests && r == 0; i++) {
        r = fake_submit(e, &err);
        expect(r == 0, "submit: %s", err.text);
    }
    while (r >= 0 && (r = engine_step(e, fake_ignore, NULL)) > 0) {
    }
    return r;
}

int fake_count(enum fake_kind kind)
{
    const struct fake_call *c;
    int n;
    int sum = 0;

    c = fake.log(&n);
    for (int i = 0; i < n; i++) {
        sum += c[i].kind == kind;
    }
    return sum;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of a decode step of a quantised dense model, over the fake run-time library: a layer
 * takes six. Its activations in 8 bits are made by the kernels that make the activations; only the
 * first layer's and the head's have a kernel of their own, and attention's output while there is
 * one chunk of slots, where no join is. Beside another row each product has one; from nine rows on
 * products are other kernels, and heads are stored behind them.
 *
 *     test_cuda_codes MODULE MODEL   (three layers, one type of 256 columns) */

#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/cuda/fake_open.h"

enum { LAYERS = 3, N_NEW = 12, MOST = 64 };

static void ignore(void *arg, const struct engine_event *ev)
{
    (void)arg;
    (void)ev;
}

static int submit(struct engine *e, int32_t n_prompt)
{
    int32_t prompt[256];
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = prompt,
                               .n_prompt = n_prompt,
                               .max_tokens = N_NEW,
                               .ignore_end = true,
                               .sampler = sampler_params_default()};
    struct error err = {0};
    uint64_t handle;

    for (int i = 0; i < n_prompt; i++) {
        prompt[i] = 1 + i % 200;
    }
    q.sampler.temperature = 0;
    int r = engine_submit(e, &q, &handle, &err);

    expect(r == 0, "submit: %s", err.text);
    return r;
}

/* The kernels of the last graph that was made, in order; returns how many. */
static int nodes(const char *ret[MOST])
{
    const struct fake_call *c;
    int n_nodes = 0;
    bool open = false;
    int n;

    c = fake.log(&n);
    for (int i = 0; i < n; i++) {
        if (c[i].kind == FAKE_NODE) {
            n_nodes = open ? n_nodes : 0;
            open = true;
            if (n_nodes < MOST) {
                ret[n_nodes] = c[i].name;
            }
            n_nodes++;
        }
        open = open && c[i].kind != FAKE_GRAPH;
    }
    return n_nodes;
}

static void step_of(const char *model, int n_texts, int32_t n_prompt, const char *const *layer,
                    int n_layer, const char *head)
{
    const char *const last[] = {"gather_rows", "prepare_rows", head, "sample_rows"};
    bool alone = n_texts == 1;
    const char *want[MOST] = {"embed_frag"};
    int n_want = 1;
    const char *have[MOST];
    struct engine_config config;
    struct engine *e = NULL;
    struct error err = {0};
    int n;

    if (alone) {
        want[n_want++] = "prepare_rows"; /* of what `embed` gives */
    }
    for (int i = 0; i < LAYERS * n_layer; i++) {
        want[n_want++] = layer[i % n_layer];
    }
    for (int i = 0; i < 4; i++) {
        want[n_want++] = last[i];
    }
    fake.start(&fake_devices[SM_90]);
    engine_config_default(&config);
    config.model_path = model;
    config.backend = fake_path;
    config.kv = "f16";
    config.ctx = 256;
    config.n_seqs = n_texts;
    config.n_threads = 1;
    expect(engine_create(&config, NULL, NULL, &e, &err) == 0, "%s", err.text);
    if (!e) {
        return;
    }
    fake.log_clear();
    for (int i = 0; i < n_texts; i++) {
        (void)submit(e, n_prompt);
    }
    while ((n = engine_step(e, ignore, NULL)) > 0) {
    }
    expect(n == 0, "a step: %d", n);
    n = nodes(have);
    expect(n == n_want, "%d rows at %d: %d kernels of %d", n_texts, n_prompt, n, n_want);
    for (int i = 0; i < n && i < n_want; i++) {
        size_t length = strlen(want[i]);
        const char *name = have[i] + (have[i][0] == '(');

        expect(strncmp(name, want[i], length) == 0 && strchr("<", name[length]),
               "%d rows at %d: kernel %d is %s, not %s", n_texts, n_prompt, i, have[i], want[i]);
    }
    engine_destroy(e);
    expect_clean("a step of a quantised model");
}

int main(int argc, char **argv)
{
    static const char *const deep[] = {"row_q_store", "decode_stream", "decode_join",
                                       "row_q",       "row_q",         "row_q"};
    static const char *const shallow[] = {"row_q_store", "decode_stream", "prepare_rows",
                                          "row_q",       "row_q",         "row_q"};
    static const char *const wide[] = {
        "prepare_rows", "stream_q_store", "decode_stream", "decode_join",  "prepare_rows",
        "stream_q",     "prepare_rows",   "stream_q",      "prepare_rows", "stream_q"};
    static const char *const eight[] = {"prepare_rows", "stream_q_store", "decode_stream",
                                        "prepare_rows", "stream_q",       "prepare_rows",
                                        "stream_q",     "prepare_rows",   "stream_q"};
    static const char *const nine[] = {
        "prepare_rows", "stream_q_few", "rope_store",   "decode_stream", "prepare_rows",
        "stream_q_few", "prepare_rows", "stream_q_few", "prepare_rows",  "stream_q_few"};

    if (argc < 3) {
        (void)fprintf(stderr, "usage: test_cuda_codes MODULE MODEL\n");
        return 2;
    }
    fake_open(argv[1]);
    step_of(argv[2], 1, 140, deep, 6, "row_q_exact");
    step_of(argv[2], 1, 40, shallow, 6, "row_q_exact");
    step_of(argv[2], 2, 140, wide, 10, "stream_q");
    step_of(argv[2], 8, 40, eight, 9, "stream_q");
    step_of(argv[2], 9, 40, nine, 10, "stream_q_few");
    printf("%d failed\n", n_failed);
    return n_failed > 0;
}

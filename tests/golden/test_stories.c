/* SPDX-License-Identifier: Apache-2.0 */
/* The stories model continues an empty text greedily: 200 steps must give llama2.c's text byte for
 * byte (tests/data/stories260K.txt, made by an independent NumPy implementation,
 * tests/golden/make_stories.py).
 *
 *     test_stories FOLDER BACKEND [CPU MASK in hex] */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/text/detok.h"
#include "engine/text/tok.h"

struct run {
    const struct tok *tok;
    struct detok detok;
    char text[8192];
    size_t len;
    struct error error;
};

static void on_event(void *arg, const struct engine_event *ev)
{
    struct run *r = arg;

    if (ev->type == ENGINE_EV_TOKEN && r->len + detok_bound(r->tok) < sizeof(r->text)) {
        r->len += detok_push(&r->detok, ev->token, r->text + r->len);
    } else if (ev->type == ENGINE_EV_DONE) {
        r->error = ev->error;
    }
}

int main(int argc, char **argv)
{
    static struct run r;
    char path[512];
    char want[8192];
    struct engine_config c;
    struct engine *e;
    struct error err = {0};
    uint64_t handle;

    if (argc < 3) {
        (void)fprintf(stderr, "usage: test_stories FOLDER BACKEND [MASK]\n");
        return 2;
    }
    (void)snprintf(path, sizeof(path), "%s/stories260K.txt", argv[1]);
    FILE *f = fopen(path, "rb");
    size_t n_want = f ? fread(want, 1, sizeof(want), f) : 0;

    if (!f || fclose(f) || n_want == 0) {
        (void)fprintf(stderr, "cannot read %s\n", path);
        return 1;
    }
    (void)snprintf(path, sizeof(path), "%s/stories260K.gguf", argv[1]);
    engine_config_default(&c);
    c.model_path = path;
    c.backend = argv[2];
    c.n_threads = 2;
    c.kv = "f32";
    if (argc > 3) {
        c.cpu_mask = (uint32_t)strtoul(argv[3], NULL, 16);
    }
    if (engine_create(&c, NULL, NULL, &e, &err)) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    r.tok = engine_tok(e);
    int32_t bos = tok_bos(r.tok);
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = &bos,
                               .n_prompt = 1,
                               .max_tokens = 200,
                               .sampler = sampler_params_default(),
                               .principal = 1};

    q.sampler.temperature = 0;
    detok_init(&r.detok, r.tok, bos, false);
    if (engine_submit(e, &q, &handle, &err)) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    while (engine_step(e, on_event, &r) > 0) {
    }
    /* The file may end with a line break of its own. */
    if (n_want == r.len + 1 && want[n_want - 1] == '\n') {
        n_want--;
    }
    size_t same = 0;
    while (same < n_want && same < r.len && want[same] == r.text[same]) {
        same++;
    }
    printf("%s: %zu of %zu bytes the same, %zu written%s%s\n", engine_info(e)->backend, same,
           n_want, r.len, r.error.code ? ": " : "", r.error.text);
    engine_destroy(e);
    return same != n_want || r.len != n_want;
}

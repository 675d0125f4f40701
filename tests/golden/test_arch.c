/* SPDX-License-Identifier: Apache-2.0 */
/* The architectures against the package `transformers`: each arch_NAME.gguf is a tiny random model,
 * arch_NAME.vec a text and the logits of its positions (make_arch_vectors.py). The engine scores
 * the text in three ways, which must agree with the vectors: as one scored prompt (chunks of 512,
 * logits through a window of five rows), in chunks of 7, and the second half token by token.
 * On `ref` to 1e-4 of the row's largest magnitude, on `cpu` to 2e-3 (attention's exponential is a
 * polynomial there).
 *
 * Exits 77 while a backend has no cache (-ENOTSUP).
 *
 *     test_arch FOLDER BACKEND [N] [NAME]...
 *
 * NAMEs: only these. N: one model of so many, beginning with number $PIPIT_PHASE modulo N. */

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/turn.h"

enum { WINDOW = 5 };

struct vec {
    int32_t n_tokens;
    int32_t first;
    int32_t n_vocab;
    int32_t *ids;  /* (n_tokens) */
    float *logits; /* (n_tokens - first, n_vocab) */
};

struct run {
    const struct vec *v;
    float *window; /* (WINDOW, n_vocab) */
    int32_t pos0;  /* of row 0 */
    double worst;
    int32_t n_rows;
    bool failed;
};

static bool read_vec(const char *path, struct vec *v)
{
    char magic[4];
    int32_t head[3];
    FILE *f = fopen(path, "rb");
    bool ok = f && fread(magic, 1, 4, f) == 4 && memcmp(magic, "PARC", 4) == 0 &&
              fread(head, 4, 3, f) == 3;

    memset(v, 0, sizeof(*v));
    if (ok) {
        *v = (struct vec){.n_tokens = head[0], .first = head[1], .n_vocab = head[2]};
        size_t n = (size_t)(v->n_tokens - v->first) * (size_t)v->n_vocab;

        v->ids = calloc((size_t)v->n_tokens, sizeof(*v->ids));
        v->logits = calloc(n, sizeof(*v->logits));
        ok = v->ids && v->logits &&
             fread(v->ids, 4, (size_t)v->n_tokens, f) == (size_t)v->n_tokens &&
             fread(v->logits, 4, n, f) == n;
    }
    if (f) {
        (void)fclose(f);
    }
    return ok;
}

static void compare(struct run *r, int32_t pos, const float *got)
{
    const struct vec *v = r->v;
    const float *want = v->logits + (size_t)(pos - v->first) * (size_t)v->n_vocab;
    double largest = 0;
    double diff = 0;

    if (pos < v->first) {
        return;
    }
    for (int32_t i = 0; i < v->n_vocab; i++) {
        double d = fabs((double)want[i] - (double)got[i]);

        largest = fmax(largest, fabs((double)want[i]));
        diff = isfinite(d) ? fmax(diff, d) : INFINITY;
    }
    r->n_rows++;
    r->worst = fmax(r->worst, diff / largest);
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct run *r = arg;
    size_t n = (size_t)r->v->n_vocab;

    if (ev->type == ENGINE_EV_SCORE) {
        for (int32_t i = 0; i < ev->n_done; i++) {
            compare(r, r->pos0 + ev->index + i, r->window + (size_t)((ev->index + i) % WINDOW) * n);
        }
    } else if (ev->type == ENGINE_EV_TOKEN) {
        compare(r, r->pos0 + ev->index, r->window + (size_t)(ev->index % WINDOW) * n);
    } else if (ev->type == ENGINE_EV_DONE && ev->reason == ENGINE_ERROR) {
        (void)fprintf(stderr, "%s\n", ev->error.text);
        r->failed = true;
    }
}

/* n_prompt of the text's tokens as a prompt; the rest, if any, as forced new tokens. */
static bool run_once(const char *model, const char *backend, const char *kv, int32_t n_prompt,
                     struct run *r)
{
    const struct vec *v = r->v;
    bool scored = n_prompt == v->n_tokens;
    struct engine_config c;
    struct engine *e = NULL;
    struct error err = {0};
    uint64_t handle;

    engine_config_default(&c);
    c.model_path = model;
    c.backend = backend;
    c.n_threads = 1;
    c.ctx = 1024;
    c.kv = kv;
    int ret = engine_create(&c, NULL, NULL, &e, &err);

    if (ret) {
        (void)fprintf(stderr, "%s: %s\n", model, err.text);
        if (ret == -ENOTSUP && strcmp(backend, "ref") != 0) {
            exit(77);
        }
        return false;
    }
    struct engine_request q = {
        .kind = scored ? ENGINE_SCORE : ENGINE_GENERATE,
        .prompt = v->ids,
        .n_prompt = n_prompt,
        .forced = v->ids + n_prompt,
        .n_forced = v->n_tokens - n_prompt,
        .report_forced = true,
        .max_tokens = v->n_tokens - n_prompt,
        .sampler = sampler_params_default(),
        .logits = r->window,
        .logits_rows = WINDOW,
        .score_first = scored ? v->first : 0,
    };

    r->pos0 = scored ? v->first : n_prompt - 1;
    if (engine_submit(e, &q, &handle, &err)) {
        (void)fprintf(stderr, "%s: %s\n", model, err.text);
        engine_destroy(e);
        return false;
    }
    do {
        (void)engine_score_credit(e, handle, r->n_rows + WINDOW);
    } while (engine_step(e, on_event, r) > 0 || (scored && r->n_rows < v->n_tokens - 1 - v->first));
    engine_destroy(e);
    return !r->failed;
}

static int run_model(const char *folder, const char *name, const char *backend)
{
    static const struct {
        const char *what;
        const char *kv;
        bool forced;
    } ways[] = {{"scored", "f32", false},
                {"chunks of 7", "f32+full,chunk=7", false},
                {"decoded", "f32", true}};
    double limit = strcmp(backend, "ref") == 0 ? 1e-4 : 2e-3;
    char path[512];
    struct vec v;
    int bad = 0;

    (void)snprintf(path, sizeof(path), "%s/%.*s.vec", folder, (int)strlen(name) - 5, name);
    if (!read_vec(path, &v)) {
        (void)fprintf(stderr, "%s: not a vector file\n", path);
        return 1;
    }
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        int32_t half = v.first + (v.n_tokens - v.first) / 2;
        int32_t n_prompt = ways[i].forced ? half : v.n_tokens;
        struct run r = {.v = &v};

        r.window = calloc(WINDOW * (size_t)v.n_vocab, sizeof(float));
        bool ok = r.window && run_once(path, backend, ways[i].kv, n_prompt, &r);

        int32_t want = ways[i].forced ? v.n_tokens - half : v.n_tokens - 1 - v.first;

        ok = ok && r.n_rows == want && r.worst <= limit;
        printf("%s %-22s %-12s worst %.2e of %d rows\n", ok ? "ok    " : "FAILED", name,
               ways[i].what, r.worst, r.n_rows);
        bad += !ok;
        free(r.window);
    }
    free(v.ids);
    free(v.logits);
    return bad;
}

/* No names want every model. */
static bool is_wanted(const char *name, size_t len, char *const *names)
{
    for (char *const *n = names; *n; n++) {
        if (strlen(*n) == len && strncmp(*n, name, len) == 0) {
            return true;
        }
    }
    return !*names;
}

int main(int argc, char **argv)
{
    struct dirent **names;
    int n = 0;
    int bad = 0;
    int seen = 0;
    int every = argc > 3 ? atoi(argv[3]) : 0;
    char **wanted = argv + (every > 0 ? 4 : 3);

    if (argc < 3) {
        (void)fprintf(stderr, "usage: test_arch FOLDER BACKEND [N] [NAME]...\n");
        return 2;
    }
    every = every > 0 ? every : 1;
    int begin = turn_begin(every);

    if (every > 1) {
        printf("one model of %d: PIPIT_PHASE=%d\n", every, begin);
    }
    int n_names = scandir(argv[1], &names, NULL, alphasort);

    for (int i = 0; i < n_names; i++) {
        size_t len = strlen(names[i]->d_name);

        if (len > 10 && strncmp(names[i]->d_name, "arch_", 5) == 0 &&
            strcmp(names[i]->d_name + len - 5, ".gguf") == 0 &&
            is_wanted(names[i]->d_name + 5, len - 10, wanted) && seen++ % every == begin) {
            n++;
            bad += run_model(argv[1], names[i]->d_name, argv[2]);
        }
        free(names[i]);
    }
    if (n_names >= 0) {
        free(names);
    }
    printf("%d models, %d failures\n", n, bad);
    return n == 0 || bad > 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens of a prompt stay, by the scores of int8 or bf16 arithmetic (`cpu`) and by those of
 * f32
 * (`ref`): the share of kept positions that are the same, over all stores and groups. Near-ties
 * fall differently, so per-step victims agree less (about 80 %); what a prompt keeps must agree to
 * 97 %.
 *
 *     test_keepset FILE.topk POLICY [TEXT N]     the model: $PIPIT_SMOLLM2, else exit 77
 *
 * The prompt is the tokens of FILE.topk, or the first N of a text file. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/kv/seq/snapshot.h"
#include "engine/text/tok.h"

#define AT_LEAST 0.97

struct side {
    struct engine *e;
    uint64_t handle;
    void *saved;
    size_t size;
    struct error error;
};

static void on_event(void *arg, const struct engine_event *ev)
{
    struct side *s = arg;

    if (ev->type == ENGINE_EV_TOKEN && !s->saved) {
        if (engine_save(s->e, s->handle, &s->saved, &s->size, &s->error)) {
            s->saved = NULL;
        }
    } else if (ev->type == ENGINE_EV_DONE && ev->error.code) {
        s->error = ev->error;
    }
}

static bool run(struct side *s, const int32_t *ids, int32_t n, const char *kv)
{
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = ids,
                               .n_prompt = n,
                               .max_tokens = 2,
                               .ignore_end = true,
                               .sampler = sampler_params_default(),
                               .kv = kv,
                               .principal = 1};

    if (engine_submit(s->e, &q, &s->handle, &s->error)) {
        return false;
    }
    while (engine_step(s->e, on_event, s) > 0) {
    }
    return s->saved != NULL;
}

static bool create(struct side *s, const char *backend, const char *model, int32_t ctx,
                   const char *kv)
{
    struct engine_config c;

    engine_config_default(&c);
    c.model_path = model;
    c.backend = backend;
    c.n_threads = 2;
    c.ctx = ctx;
    c.n_seqs = 1;
    c.kv = kv;
    return engine_create(&c, NULL, NULL, &s->e, &s->error) == 0;
}

/* How many of a's positions b has too. */
static int32_t common(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b, uint8_t *mark,
                      int32_t n_tokens)
{
    int32_t n = 0;

    memset(mark, 0, (size_t)n_tokens);
    for (int32_t i = 0; i < n_a; i++) {
        if (a[i] >= 0 && a[i] < n_tokens) {
            mark[a[i]] = 1;
        }
    }
    for (int32_t i = 0; i < n_b; i++) {
        n += b[i] >= 0 && b[i] < n_tokens && mark[b[i]];
    }
    return n;
}

static bool compare(const struct side *a, const struct side *b, int32_t n_tokens, double *ret_all,
                    double *ret_worst, int64_t *ret_kept)
{
    uint8_t *mark = malloc((size_t)n_tokens);
    int64_t kept = 0;
    int64_t same = 0;
    double worst = 1;

    for (int32_t store = 0; mark && store < 1000; store++) {
        for (int32_t group = 0;; group++) {
            const int32_t *pa;
            const int32_t *pb;
            int32_t n_a;
            int32_t n_b;
            int32_t n;

            if (snapshot_positions(a->saved, a->size, store, group, &pa, &n_a) ||
                snapshot_positions(b->saved, b->size, store, group, &pb, &n_b) || !pa || !pb) {
                break;
            }
            n = common(pa, n_a, pb, n_b, mark, n_tokens);
            kept += n_a;
            same += n;
            worst = (double)n / n_a < worst ? (double)n / n_a : worst;
        }
    }
    free(mark);
    *ret_kept = kept;
    *ret_all = kept ? (double)same / (double)kept : 0;
    *ret_worst = worst;
    return kept > 0;
}

static int32_t *topk_tokens(const char *path, int32_t *ret_n)
{
    FILE *f = fopen(path, "rb");
    int32_t head[3];
    char magic[4];
    int32_t *ids = NULL;

    if (f && fread(magic, 1, 4, f) == 4 && fread(head, 4, 3, f) == 3) {
        *ret_n = head[0];
        ids = calloc((size_t)head[0], sizeof(*ids));
        if (ids && fread(ids, 4, (size_t)head[0], f) != (size_t)head[0]) {
            *ret_n = 0;
        }
    }
    if (f) {
        (void)fclose(f);
    }
    return ids;
}

static int32_t *text_tokens(const struct engine *e, const char *path, int32_t n)
{
    size_t size = (size_t)n * 16;
    char *text = malloc(size);
    FILE *f = fopen(path, "rb");
    int32_t *ids = NULL;
    struct error err;
    size_t got = 0;

    if (f && text) {
        size = fread(text, 1, size, f);
        if (tok_encode_new(engine_tok(e), text, size, 0, &ids, &got, &err) || got < (size_t)n) {
            free(ids);
            ids = NULL;
        }
    }
    if (f) {
        (void)fclose(f);
    }
    free(text);
    return ids;
}

int main(int argc, char **argv)
{
    const char *model = getenv("PIPIT_SMOLLM2");
    struct side a = {0};
    struct side b = {0};
    double all = 0;
    double worst = 0;
    int64_t kept = 0;
    int32_t n = 0;

    if (argc != 3 && argc != 5) {
        (void)fprintf(stderr, "usage: test_keepset FILE.topk POLICY [TEXT N]\n");
        return 2;
    }
    if (!model || !*model) {
        printf("PIPIT_SMOLLM2 is not set: what a prompt keeps is not compared\n");
        return 77;
    }
    int32_t *ids = argc == 3 ? topk_tokens(argv[1], &n) : NULL;

    n = argc == 5 ? atoi(argv[4]) : n;
    if (!create(&a, "ref", model, n + 8, argv[2]) || !create(&b, "cpu", model, n + 8, argv[2])) {
        printf("%s%s\n", a.error.text, b.error.text);
        return 1;
    }
    ids = ids ? ids : text_tokens(a.e, argv[3], n);
    bool ok = ids && run(&a, ids, n, argv[2]) && run(&b, ids, n, argv[2]) &&
              compare(&a, &b, n, &all, &worst, &kept);

    printf(
        "%s, %d tokens: of %lld kept slots %.2f %% are the same, in the worst group %.2f %%%s%s\n",
        argv[2], n, (long long)kept, 100 * all, 100 * worst, a.error.text, b.error.text);
    free(a.saved);
    free(b.saved);
    free(ids);
    engine_destroy(a.e);
    engine_destroy(b.e);
    return !(ok && all >= AT_LEAST);
}

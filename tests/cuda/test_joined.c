/* SPDX-License-Identifier: Apache-2.0 */
/* Several chunks of a prompt in one step of a card: the plan has room for them, or says that it has
 * not and takes one; every logit is the same bit for bit, and kept prompts are as long; beside a
 * decoding text a step reads no more than before.
 *
 *     test_joined BACKEND MODEL [bits|kv4|plans|beside]   (BACKEND may be a module's path) */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/kv/plan/plan.h"

enum {
    N_PROMPT = 1600,
    SHARED = 1100,
    CTX = 2304,
    N_NEW = 3,
    N_VOCAB = 300,
    CHUNK = 512,
    JOINED = 2048
};

struct text {
    float row[N_VOCAB]; /* the engine writes the newest here */
    float all[N_NEW][N_VOCAB];
    int n;
    int n_progress;
    int n_cached;
    bool done;
};

static const char *backend, *model;
static int n_failed;

#define expect(what, ...)                                                                          \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            printf("FAILED: " __VA_ARGS__);                                                        \
            printf(" (line %d)\n", __LINE__);                                                      \
            n_failed++;                                                                            \
        }                                                                                          \
    } while (0)

static void on_event(void *arg, const struct engine_event *ev)
{
    struct text *t = ev->user;

    (void)arg;
    if (ev->type == ENGINE_EV_PROGRESS) {
        t->n_progress++;
    } else if (ev->type == ENGINE_EV_TOKEN) {
        if (t->n < N_NEW) {
            memcpy(t->all[t->n], t->row, sizeof(t->row));
        }
        t->n++;
    } else if (ev->type == ENGINE_EV_DONE) {
        t->done = true;
        t->n_cached = ev->usage.n_cached;
        expect(ev->reason == ENGINE_LENGTH, "%s", ev->error.text);
    }
}

static struct engine_config config_of(const char *kv, int32_t n_seqs, int32_t prompt_rows)
{
    struct engine_config c;

    engine_config_default(&c);
    c.model_path = model;
    c.backend = backend;
    c.n_threads = 1;
    c.ctx = CTX;
    c.n_seqs = n_seqs;
    c.kv = kv;
    c.prompt_rows = prompt_rows;
    c.keep_prefixes = true;
    return c;
}

static struct engine *create(const struct engine_config *c)
{
    struct engine *e = NULL;
    struct error err = {0};

    if (engine_create(c, NULL, NULL, &e, &err) < 0) {
        printf("FAILED: %s: %s\n", c->kv, err.text);
        exit(1);
    }
    return e;
}

/* The same text for all, but for its tokens from `differs` on. */
static void submit(struct engine *e, struct text *t, int32_t n, int32_t n_new, int32_t differs,
                   bool logits)
{
    static int32_t prompt[CTX];
    struct error err = {0};
    uint64_t handle;
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = prompt,
                               .n_prompt = n,
                               .max_tokens = n_new,
                               .ignore_end = true,
                               .sampler = sampler_params_default(),
                               .principal = 1,
                               .user = t,
                               .logits = logits ? t->row : NULL,
                               .logits_rows = 1};

    for (int32_t k = 0; k < n; k++) {
        prompt[k] = 1 + (k * 37 + k % 91 * k % 13 * 5 + (k >= differs)) % (N_VOCAB - 50);
    }
    q.sampler.temperature = 0;
    memset(t, 0, sizeof(*t));
    expect(engine_submit(e, &q, &handle, &err) == 0, "%s", err.text);
}

static void run(struct engine *e)
{
    while (engine_step(e, on_event, NULL) > 0) {
    }
}

/* A text, then one that begins like it. */
static void texts(const char *kv, int32_t prompt_rows, struct text ret[2])
{
    struct engine_config c = config_of(kv, 1, prompt_rows);
    struct engine *e = create(&c);

    for (int i = 0; i < 2; i++) {
        submit(e, &ret[i], N_PROMPT, N_NEW, i ? SHARED : CTX, true);
        run(e);
        expect(ret[i].done && ret[i].n == N_NEW, "%s: a text did not end", kv);
    }
    engine_destroy(e);
}

static void same_bits(const char *kv)
{
    static struct text chunks[2];
    static struct text joined[2];

    texts(kv, 1, chunks);
    texts(kv, 0, joined);
    expect(chunks[0].n_progress == 4 && joined[0].n_progress == 1, "%s: %d and %d steps", kv,
           chunks[0].n_progress, joined[0].n_progress);
    for (int i = 0; i < 2; i++) {
        expect(chunks[i].n_cached == i * 2 * CHUNK && joined[i].n_cached == i * 2 * CHUNK,
               "%s: %d and %d tokens were kept", kv, chunks[i].n_cached, joined[i].n_cached);
        for (int k = 0; k < N_NEW; k++) {
            expect(memcmp(chunks[i].all[k], joined[i].all[k], sizeof(chunks[i].all[k])) == 0,
                   "%s: other logits, text %d, token %d", kv, i, k);
        }
    }
}

static bool says(const struct plan *p, const char *what)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    plan_print_table(p, f);
    (void)fclose(f);
    bool found = strstr(text, what) != NULL;

    free(text);
    return found;
}

/* On a card there are two sums, which --memory bounds both. */
static void plans(void)
{
    struct engine_config c = config_of("full", 1, 0);
    struct error err = {0};
    struct plan joined;
    struct plan less;

    expect(engine_plan(&c, &joined, &err) == 0, "%s", err.text);
    expect(joined.device_available_bytes > 0 && joined.prompt_rows == JOINED, "%d rows",
           joined.prompt_rows);
    expect(says(&joined, "by 2048 tokens a step"), "the plan does not say it");
    c.memory_bytes = joined.total_bytes - joined.host_bytes;
    expect(engine_plan(&c, &less, &err) == 0, "%s", err.text);
    expect(less.prompt_rows == JOINED && less.total_bytes == joined.total_bytes, "just enough");
    c.memory_bytes--;
    expect(engine_plan(&c, &less, &err) == 0, "%s", err.text);
    expect(less.prompt_rows == CHUNK &&
               less.total_bytes + joined.joined_bytes == joined.total_bytes,
           "a byte is lacking: %d rows, %llu and %llu bytes", less.prompt_rows,
           (unsigned long long)less.total_bytes, (unsigned long long)joined.total_bytes);
    expect(less.max_ctx >= CTX, "the context does not suffer");
    expect(says(&less, "by 512 tokens a step; 2048, which is faster, takes"), "it does not say so");

    /* An engine of such a plan runs. */
    static struct text t;
    struct engine *e = create(&c);

    submit(e, &t, CHUNK + 8, 1, CTX, false);
    run(e);
    expect(t.done && t.n_progress == 2, "%d steps of a chunk", t.n_progress);
    engine_destroy(e);
    c.memory_bytes = 0;
    c.batch_tokens = 600;
    expect(engine_plan(&c, &less, &err) == 0, "%s", err.text);
    expect(less.prompt_rows == CHUNK && less.total_bytes < joined.total_bytes, "600 rows a step");
}

static void beside(void)
{
    struct engine_config c = config_of("full", 2, 0);
    static struct text decodes;
    static struct text reads;
    struct engine *e = create(&c);
    struct engine_counters before;
    struct engine_counters now;
    int n = 0;

    submit(e, &decodes, 8, CTX - 8, CTX, false);
    (void)engine_step(e, on_event, NULL);
    submit(e, &reads, N_PROMPT, 1, 4, false);
    for (; !reads.done && n < 200; n++) {
        int said = decodes.n;

        engine_counters(e, &before);
        engine_notice(e); /* else the device runs ahead */
        (void)engine_step(e, on_event, NULL);
        engine_counters(e, &now);
        expect(now.n_prompt_tokens - before.n_prompt_tokens <= CHUNK, "%llu rows of a prompt",
               (unsigned long long)(now.n_prompt_tokens - before.n_prompt_tokens));
        expect(decodes.n > said, "a step without a token");
    }
    expect(reads.done && !decodes.done && n >= 4, "it was read, in %d steps", n);
    engine_destroy(e);
}

static bool has_turn(int argc, char **argv, const char *part)
{
    return argc == 3 || strcmp(argv[3], part) == 0;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        (void)fprintf(stderr, "usage: test_joined BACKEND MODEL [PART]\n");
        return 2;
    }
    backend = argv[1];
    model = argv[2];
    if (has_turn(argc, argv, "bits")) {
        same_bits("f16");
    }
    if (has_turn(argc, argv, "kv4")) {
        same_bits("kv4");
    }
    if (has_turn(argc, argv, "plans")) {
        plans();
    }
    if (has_turn(argc, argv, "beside")) {
        beside();
    }
    printf("%d failed\n", n_failed);
    return n_failed > 0;
}

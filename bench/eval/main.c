/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-eval: what a cache policy costs in quality, on one model and one text.
 *
 * The text is cut into chunks of --ctx tokens (each beginning with the model's BOS where it wants
 * one) and the second half of each chunk is scored, in prefill or in decode mode (score.h). For
 * each policy: perplexity, and against the first policy of the list mean and 99th-percentile KL
 * divergence of the next-token distributions and the share of rows with the same top token.
 *
 * Every policy gets an engine of its own over the same mapped file; chunks go through all engines
 * in turn, so only one batch of the first policy's logits is held. */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/options.h"
#include "bench/eval/generate.h"
#include "bench/eval/npy.h"
#include "bench/eval/score.h"
#include "engine/engine.h"
#include "engine/text/tok.h"

enum { MAX_POLICIES = 64, WINDOW = 64 };

struct config {
    char *model;
    struct option_list overlays;
    char *text;
    int64_t ctx;
    int64_t chunks;
    struct option_list kv;
    int mode;
    char *backend;
    int64_t threads;
    int64_t cpu_mask;
    int64_t batch;
    char *dump;
    char *prompts;
    char *out;
    bool help;
};

#define ROW(field) offsetof(struct config, field)

static const char *const modes[] = {"prefill", "decode", NULL};

/* clang-format off */
static const struct option_row rows[] = {
    {"model", 'm', OPTION_STRING, ROW(model), .metavar = "FILE", .help = "the model, a GGUF file"},
    {"overlay", 0, OPTION_LIST, ROW(overlays), .metavar = "FILE", .help = "a GGUF that adds tensors; repeats"},
    {"text", 0, OPTION_STRING, ROW(text), .metavar = "FILE", .help = "UTF-8 text to score"},
    {"ctx", 'c', OPTION_INT, ROW(ctx), 16, 1 << 20, .fallback = "2048", .help = "tokens of a chunk; the second half is scored"},
    {"chunks", 'n', OPTION_INT, ROW(chunks), 1, 100000, .fallback = "20", .help = "chunks from the text's start"},
    {"kv", 0, OPTION_LIST, ROW(kv), .metavar = "POLICY", .help = "a cache policy; repeats; the first is what the others are compared with (full)"},
    {"mode", 0, OPTION_ENUM, ROW(mode), .words = modes, .fallback = "prefill", .help = "how the scored half is fed"},
    {"backend", 0, OPTION_STRING, ROW(backend), .fallback = "cpu", .metavar = "NAME", .help = "ref, cpu, cuda or auto"},
    {"threads", 't', OPTION_INT, ROW(threads), 0, 1024, .fallback = "0", .help = "0: all this process may use"},
    {"cpu-mask", 0, OPTION_INT, ROW(cpu_mask), 0, UINT32_MAX, .fallback = "4294967295", .help = "CPU flags allowed, a sum of base/cpu.h's bits (0: plain C, 1: AVX2, 3: AVX-512 without VNNI)"},
    {"batch", 'b', OPTION_INT, ROW(batch), 1, 64, .fallback = "1", .help = "chunks at once"},
    {"dump", 0, OPTION_STRING, ROW(dump), .metavar = "FILE.npy", .help = "write the first policy's logits, f32 (rows, vocabulary)"},
    {"prompts", 0, OPTION_STRING, ROW(prompts), .metavar = "FILE.jsonl", .help = "instead of a text: prompts to answer greedily, JSON lines (bench/eval/generate.h)"},
    {"out", 'o', OPTION_STRING, ROW(out), .metavar = "FILE.jsonl", .help = "where answers go; else stdout"},
    {"help", 'h', OPTION_FLAG, ROW(help), .flags = OPTION_ARGV_ONLY},
};
/* clang-format on */

static const struct option_table table = {
    rows, sizeof(rows) / sizeof(rows[0]), "pipit-eval --model FILE --text FILE [OPTION]...",
    "Scores a text, or answers prompts, under one or more cache policies.", 0};

struct policy {
    const char *kv;
    struct engine *e;
    double nll;
    int64_t n_rows;
    int64_t n_same;
    double *kl; /* (chunks * rows) */
    uint64_t kv_bytes;
    int64_t ns;
};

struct eval {
    const struct config *c;
    struct policy p[MAX_POLICIES];
    int n_policies;
    int32_t *tokens; /* (chunks, ctx) */
    int n_vocab;
    int first;
    int rows;         /* of a chunk */
    float *reference; /* (batch * rows, n_vocab): the first policy's, when there are others */
    float *window;
    struct npy *dump;
    int current; /* policy being run */
    struct error error;
    int err;
};

static int read_file(const char *path, char **ret, size_t *ret_len, struct error *reterr)
{
    AUTO_FREE char *buf = NULL;
    struct stat st;
    FILE *f = fopen(path, "rb");

    if (!f) {
        return error_set_errno(reterr, -errno, "cannot read %s", path);
    }
    if (fstat(fileno(f), &st) || !S_ISREG(st.st_mode)) {
        (void)fclose(f);
        return error_set(reterr, -EINVAL, "%s is no regular file", path);
    }
    size_t len = (size_t)st.st_size;

    buf = malloc(len + 1);
    if (!buf || fread(buf, 1, len, f) != len) {
        (void)fclose(f);
        return error_set(reterr, -EIO, "cannot read %s", path);
    }
    (void)fclose(f);
    *ret = STEAL(buf);
    *ret_len = len;
    return 0;
}

/* The text's tokens as (chunks, ctx), each chunk beginning with BOS where the model adds one. */
static int load_tokens(struct eval *v, const struct tok *tok, struct error *reterr)
{
    AUTO_FREE char *text = NULL;
    AUTO_FREE int32_t *ids = NULL;
    size_t len = 0;
    size_t n;
    size_t need = (size_t)v->c->chunks * (size_t)v->c->ctx;
    int err = read_file(v->c->text, &text, &len, reterr);

    if (err) {
        return err;
    }
    ids = calloc(len + 2, sizeof(*ids));
    v->tokens = calloc(need, sizeof(*v->tokens));
    if (!ids || !v->tokens) {
        return error_set(reterr, -ENOMEM, "no memory for the text's tokens");
    }
    err = tok_encode(tok, text, len, TOK_ADD_BOS, ids, len + 2, &n, reterr);
    if (err) {
        return err;
    }
    if (n < need) {
        return error_set(reterr, -EINVAL, "%s has %zu tokens: at most %zu chunks of %" PRId64,
                         v->c->text, n, n / (size_t)v->c->ctx, v->c->ctx);
    }
    memcpy(v->tokens, ids, need * sizeof(*ids));
    if (ids[0] == tok_bos(tok)) {
        for (int64_t i = 0; i < v->c->chunks; i++) {
            v->tokens[i * v->c->ctx] = ids[0];
        }
    }
    return 0;
}

static void on_row(void *arg, int chunk, int row, const float *logits, float logprob)
{
    struct eval *v = arg;
    struct policy *p = &v->p[v->current];

    p->nll -= (double)logprob;
    if (v->current == 0) {
        if (v->dump && !v->err) {
            v->err = npy_write(v->dump, logits, 1, &v->error);
        }
        if (v->reference) {
            memcpy(v->reference + ((int64_t)chunk * v->rows + row) * v->n_vocab, logits,
                   (size_t)v->n_vocab * sizeof(*logits));
        }
    } else {
        const float *ref = v->reference + ((int64_t)chunk * v->rows + row) * v->n_vocab;

        p->kl[p->n_rows] = score_kl(ref, logits, v->n_vocab);
        p->n_same += score_argmax(ref, v->n_vocab) == score_argmax(logits, v->n_vocab);
    }
    p->n_rows++;
}

static int open_policies(struct eval *v, struct error *reterr)
{
    const struct config *c = v->c;

    v->n_policies = c->kv.n ? (int)c->kv.n : 1;
    if (v->n_policies > MAX_POLICIES) {
        return error_set(reterr, -EINVAL, "at most %d policies", MAX_POLICIES);
    }
    for (int i = 0; i < v->n_policies; i++) {
        struct policy *p = &v->p[i];
        struct engine_config ec;

        p->kv = c->kv.n ? c->kv.v[i] : "full";
        engine_config_default(&ec);
        ec.model_path = c->model;
        ec.overlay_paths = (const char *const *)c->overlays.v;
        ec.n_overlays = (int)c->overlays.n;
        ec.backend = c->backend;
        ec.n_threads = (int)c->threads;
        ec.cpu_mask = (uint32_t)c->cpu_mask;
        ec.kv = p->kv;
        ec.n_seqs = (int)c->batch;
        ec.ctx = (int32_t)c->ctx;
        int err = engine_create(&ec, NULL, NULL, &p->e, reterr);
        if (err) {
            (void)error_prefix(reterr, "policy %s", p->kv);
            return err;
        }
        p->kl = calloc((size_t)(c->chunks * v->rows), sizeof(*p->kl));
        if (!p->kl) {
            return error_set(reterr, -ENOMEM, "no memory for the figures");
        }
    }
    return 0;
}

static int run_batch(struct eval *v, int64_t at, int n, struct error *reterr)
{
    struct score_chunk chunks[64];
    struct score_result results[64];

    for (int i = 0; i < n; i++) {
        chunks[i] = (struct score_chunk){v->tokens + (at + i) * v->c->ctx, (int32_t)v->c->ctx,
                                         (int32_t)v->first};
    }
    for (v->current = 0; v->current < v->n_policies; v->current++) {
        struct policy *p = &v->p[v->current];
        int64_t t0 = clock_ns();
        int err = score_run(p->e, v->c->mode == 1, chunks, n, v->window, WINDOW, NULL, on_row, v,
                            results, reterr);

        if (err) {
            return err;
        }
        p->ns += clock_ns() - t0;
        p->kv_bytes = results[0].usage.kv_bytes;
    }
    (void)fprintf(stderr, "pipit-eval: %" PRId64 " of %" PRId64 " chunks, perplexity %.4f\n",
                  at + n, v->c->chunks, exp(v->p[0].nll / (double)v->p[0].n_rows));
    return v->err ? (*reterr = v->error, v->err) : 0;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void report(struct eval *v)
{
    printf("policy,mode,ctx,chunks,rows,perplexity,mean_kl,p99_kl,same_top1,kv_bytes,seconds\n");
    for (int i = 0; i < v->n_policies; i++) {
        struct policy *p = &v->p[i];
        double kl = 0;

        for (int64_t j = 0; j < p->n_rows; j++) {
            kl += p->kl[j];
        }
        qsort(p->kl, (size_t)p->n_rows, sizeof(*p->kl), compare_double);
        printf("\"%s\",%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%.4f,%.6f,%.6f,%.4f,%" PRIu64
               ",%.1f\n",
               p->kv, modes[v->c->mode], v->c->ctx, v->c->chunks, p->n_rows,
               exp(p->nll / (double)p->n_rows), i ? kl / (double)p->n_rows : 0.0,
               i ? p->kl[p->n_rows * 99 / 100] : 0.0,
               i ? (double)p->n_same / (double)p->n_rows : 1.0, p->kv_bytes, (double)p->ns * 1e-9);
    }
}

static int eval(const struct config *c, struct error *e)
{
    static struct eval v;
    int err;

    v.c = c;
    v.first = (int)c->ctx / 2;
    v.rows = (int)c->ctx - 1 - v.first;
    err = open_policies(&v, e);
    if (!err) {
        v.n_vocab = engine_info(v.p[0].e)->n_vocab;
        err = load_tokens(&v, engine_tok(v.p[0].e), e);
    }
    if (!err && c->dump) {
        err = c->batch > 1 ? error_set(e, -EINVAL, "--dump needs --batch 1")
                           : npy_create(c->dump, c->chunks * v.rows, v.n_vocab, &v.dump, e);
    }
    if (!err) {
        size_t row_bytes = (size_t)v.n_vocab * sizeof(float);

        v.window = malloc((size_t)c->batch * WINDOW * row_bytes);
        if (v.n_policies > 1) {
            v.reference = malloc((size_t)c->batch * (size_t)v.rows * row_bytes);
        }
        if (!v.window || (v.n_policies > 1 && !v.reference)) {
            err = error_set(e, -ENOMEM, "no memory for the logits");
        }
    }
    for (int64_t at = 0; at < c->chunks && !err; at += c->batch) {
        int64_t left = c->chunks - at;

        err = run_batch(&v, at, (int)(left < c->batch ? left : c->batch), e);
    }
    if (!err) {
        report(&v);
    }
    int err_dump = npy_finish(v.dump, err ? NULL : e);

    for (int i = 0; i < v.n_policies; i++) {
        engine_destroy(v.p[i].e);
        free(v.p[i].kl);
    }
    free(v.window);
    free(v.reference);
    free(v.tokens);
    return err ? err : err_dump;
}

/* Answers of every policy, one engine after the other. */
static int answer(const struct config *c, struct error *e)
{
    static struct eval v;
    struct generate_list list = {0};
    FILE *out = c->out ? fopen(c->out, "w") : stdout;
    int err;

    if (!out) {
        return error_set_errno(e, -errno, "cannot write %s", c->out);
    }
    v.c = c;
    err = open_policies(&v, e);
    if (!err) {
        err = generate_load(v.p[0].e, c->prompts, &list, e);
    }
    for (int i = 0; i < v.n_policies && !err; i++) {
        err = generate_run(v.p[i].e, &list, (int)c->batch, v.p[i].kv, out, e);
    }
    if (c->out && fclose(out) && !err) {
        err = error_set_errno(e, -errno, "cannot write %s", c->out);
    }
    generate_clear(&list);
    for (int i = 0; i < v.n_policies; i++) {
        engine_destroy(v.p[i].e);
        free(v.p[i].kl);
    }
    return err;
}

int main(int argc, char **argv)
{
    struct config c = {0};
    struct error e = {0};
    int rc = 0;

    if (options_load(&table, &c, argc, argv, NULL, NULL, NULL, &e)) {
        rc = 2;
    } else if (c.help) {
        char *help = options_help(&table);

        (void)fputs(help ? help : "", stdout);
        free(help);
    } else if (!c.model || !c.text == !c.prompts) {
        (void)error_set(&e, -EINVAL, "--model and one of --text and --prompts are needed");
        rc = 2;
    } else {
        int err = c.prompts ? answer(&c, &e) : eval(&c, &e);

        rc = !err ? 0 : err == -EINVAL ? 2 : err == -ENOMEM ? 4 : 6;
    }
    if (rc) {
        (void)fprintf(stderr, "pipit-eval: %s\n", e.text);
    }
    options_clear(&table, &c);
    return rc;
}

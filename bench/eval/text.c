/* SPDX-License-Identifier: Apache-2.0 */
/* The first policy goes through as many chunks as its logits may be held of; then all others go
 * through the same chunks, those of one page class in one queue, so that batches stay full
 * whatever their policies (engines.h). Then the next chunks. */

#include "bench/eval/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "bench/eval/engines.h"
#include "bench/eval/input.h"
#include "bench/eval/interval.h"
#include "bench/eval/npy.h"
#include "bench/eval/score.h"
#include "engine/text/tok.h"

/* Rows whose logits a scored prompt may have waiting. */
enum { PREFILL_WINDOW = 64 };

/* A policy and what it scored. */
struct scored {
    const char *kv;
    double *nll; /* (n_chunks), sums */
    float *kl;   /* (n_chunks, rows) */
    int64_t n_rows;
    int64_t n_same;
    int n_done;
    uint64_t kv_bytes;
    double tokens_read;
};

/* One sequence: what score_run()'s chunk number stands for. */
struct pair {
    int policy;
    int chunk;
};

struct eval {
    const struct text_job *job;
    struct engines engines;
    struct scored *p;
    int32_t *tokens; /* (n_chunks, ctx) */
    int n_vocab;
    int first;
    int rows; /* of a chunk */
    int held; /* chunks whose reference is held, from held_at */
    int held_at;
    float *reference; /* (held, rows, n_vocab) */
    double *log_sum;  /* (held, rows) */
    struct pair *pairs;
    struct engine *engine; /* that runs now */
    struct npy *dump;
    struct error error;
    int err;
};

/* The text's tokens as (chunks, ctx), each chunk beginning with BOS where the model adds one. */
static int load_tokens(struct eval *v, const struct tok *tok, struct error *reterr)
{
    const struct text_job *job = v->job;
    AUTO_FREE char *text = NULL;
    AUTO_FREE int32_t *ids = NULL;
    size_t len = 0;
    size_t n;
    size_t need = (size_t)job->n_chunks * (size_t)job->ctx;
    int err = input_file(job->path, &text, &len, reterr);

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
        return error_set(reterr, -EINVAL, "%s has %zu tokens: at most %zu chunks of %" PRId32,
                         job->path, n, n / (size_t)job->ctx, job->ctx);
    }
    memcpy(v->tokens, ids, need * sizeof(*ids));
    if (ids[0] == tok_bos(tok)) {
        for (int i = 0; i < job->n_chunks; i++) {
            v->tokens[(int64_t)i * job->ctx] = ids[0];
        }
    }
    return 0;
}

static int make_room(struct eval *v, struct error *reterr)
{
    const struct text_job *job = v->job;
    uint64_t chunk_bytes = (uint64_t)v->rows * (uint64_t)v->n_vocab * sizeof(float);
    uint64_t n = job->reference_bytes / chunk_bytes;

    v->held = n < 1 ? 1 : n > (uint64_t)job->n_chunks ? job->n_chunks : (int)n;
    if (job->n_kv > 1) {
        v->reference = malloc((size_t)v->held * chunk_bytes);
        v->log_sum = malloc((size_t)v->held * (size_t)v->rows * sizeof(*v->log_sum));
    }
    v->pairs = calloc((size_t)v->held * (size_t)job->n_kv, sizeof(*v->pairs));
    v->p = calloc((size_t)job->n_kv, sizeof(*v->p));
    if (!v->pairs || !v->p || (job->n_kv > 1 && (!v->reference || !v->log_sum))) {
        return error_set(reterr, -ENOMEM, "no memory for the logits");
    }
    for (int i = 0; i < job->n_kv; i++) {
        struct scored *p = &v->p[i];

        p->kv = job->kv[i];
        p->nll = calloc((size_t)job->n_chunks, sizeof(*p->nll));
        p->kl = calloc((size_t)job->n_chunks * (size_t)v->rows, sizeof(*p->kl));
        if (!p->nll || !p->kl) {
            return error_set(reterr, -ENOMEM, "no memory for the figures");
        }
    }
    return 0;
}

static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;

    return x < y ? -1 : x > y;
}

/* The chunks' means, of KL and of the negative log-likelihood: two columns. */
static void print_chunks(FILE *f, const double *nll, const double *kl, int n)
{
    for (int c = 0; c < n; c++) {
        (void)fprintf(f, "%c%.6f", c ? ' ' : ',', nll[c]);
    }
    for (int c = 0; c < n; c++) {
        (void)fprintf(f, "%c%.6f", c ? ' ' : ',', kl[c]);
    }
}

/* A policy's line. Perplexity above the first policy's is told in percent, from the chunks' paired
 * differences of log-likelihood. */
static int report(const struct eval *v, struct scored *p)
{
    const struct text_job *job = v->job;
    const int n = job->n_chunks;
    AUTO_FREE double *room = calloc((size_t)n * 3, sizeof(*room));
    double *nll = room;
    double *kl = room + n;
    double *more = room + 2 * (int64_t)n;

    if (!room) {
        return -ENOMEM;
    }
    for (int c = 0; c < n; c++) {
        for (int i = 0; i < v->rows; i++) {
            kl[c] += (double)p->kl[(int64_t)c * v->rows + i] / v->rows;
        }
        nll[c] = p->nll[c] / v->rows;
        more[c] = nll[c] - v->p[0].nll[c] / v->rows;
    }
    struct interval i_nll = interval_of(nll, n);
    struct interval i_kl = interval_of(kl, n);
    struct interval i_more = interval_of(more, n);

    qsort(p->kl, (size_t)p->n_rows, sizeof(*p->kl), compare_float);
    (void)fprintf(job->out,
                  "\"%s\",%s,%" PRId32 ",%d,%" PRId64 ",%.4f,%.6f,%.6f,%.4f,%" PRIu64 ",%.1f",
                  p->kv, job->decode ? "decode" : "prefill", job->ctx, n, p->n_rows,
                  exp(i_nll.mean), i_kl.mean, (double)p->kl[p->n_rows * 99 / 100],
                  (double)p->n_same / (double)p->n_rows, p->kv_bytes, p->tokens_read / n);
    print_chunks(job->out, nll, kl, n);
    (void)fprintf(job->out, ",%.3f,%.3f,%s,%.6f\n", 100 * expm1(i_more.mean),
                  100 * exp(i_more.mean) * i_more.half, interval_word(i_more), i_kl.half);
    (void)fflush(job->out);
    return 0;
}

static void on_row(void *arg, int at, int row, const float *logits, float logprob)
{
    struct eval *v = arg;
    const struct pair *pair = &v->pairs[at];
    struct scored *p = &v->p[pair->policy];
    int64_t held = (int64_t)(pair->chunk - v->held_at) * v->rows + row;

    /* The engine has summed this row already. */
    int32_t next = v->tokens[(int64_t)pair->chunk * v->job->ctx + v->first + row + 1];
    double log_sum = (double)logits[next] - (double)logprob;

    p->nll[pair->chunk] -= (double)logprob;
    p->n_rows++;
    if (pair->policy == 0) {
        if (v->dump && !v->err) {
            v->err = npy_write(v->dump, logits, 1, &v->error);
        }
        if (v->reference) {
            memcpy(v->reference + held * v->n_vocab, logits, (size_t)v->n_vocab * sizeof(*logits));
            v->log_sum[held] = log_sum;
        }
        p->n_same++;
    } else {
        const float *ref = v->reference + held * v->n_vocab;
        double kl = score_kl(ref, v->log_sum[held], logits, log_sum, v->n_vocab);

        p->kl[(int64_t)pair->chunk * v->rows + row] = (float)kl;
        p->n_same += score_argmax(ref, v->n_vocab) == score_argmax(logits, v->n_vocab);
    }
}

static void on_done(void *arg, int at, const struct engine_usage *usage)
{
    struct eval *v = arg;
    struct scored *p = &v->p[v->pairs[at].policy];

    p->kv_bytes = usage->kv_bytes;
    p->tokens_read += v->job->decode ? engines_tokens_read(v->engine, usage) : 0;
    p->n_done++;
    (void)fprintf(stderr, "pipit-eval: %s: %d of %d chunks\n", p->kv, p->n_done, v->job->n_chunks);
    if (p->n_done == v->job->n_chunks && report(v, p) && !v->err) {
        v->err = error_set(&v->error, -ENOMEM, "no memory for the figures");
    }
}

/* Chunks [at, at + n) under policies [first, last) that use engine k. */
static int run(struct eval *v, int k, int first, int last, int at, int n, struct error *reterr)
{
    const struct text_job *job = v->job;
    int window = job->decode ? 1 : PREFILL_WINDOW;
    int n_pairs = 0;

    for (int i = first; i < last; i++) {
        for (int c = at; v->engines.of[i] == k && c < at + n; c++) {
            v->pairs[n_pairs++] = (struct pair){i, c};
        }
    }
    /* What scores a prompt has a window of logits each, so no more than run at once. */
    int most = job->decode ? n_pairs : job->engine.n_seqs;
    size_t row_bytes = (size_t)v->n_vocab * sizeof(float);
    AUTO_FREE struct score_chunk *chunks = calloc((size_t)most + 1, sizeof(*chunks));
    AUTO_FREE float *buffer = malloc((size_t)most * (size_t)window * row_bytes + 1);
    struct pair *all = v->pairs;
    int err = 0;

    if (!chunks || !buffer) {
        return error_set(reterr, -ENOMEM, "no memory for the logits");
    }
    if (n_pairs > 0) {
        err = engines_use(&v->engines, k, &v->engine, reterr);
    }
    for (int i = 0; i < n_pairs && !err; i += most, v->pairs += most) {
        int now = n_pairs - i < most ? n_pairs - i : most;

        for (int j = 0; j < now; j++) {
            const struct pair *pair = &v->pairs[j];

            chunks[j] = (struct score_chunk){v->tokens + (int64_t)pair->chunk * job->ctx, job->ctx,
                                             v->first, v->p[pair->policy].kv};
        }
        err = score_run(v->engine, job->decode, chunks, now, buffer, window, on_row, on_done, v,
                        reterr);
    }
    v->pairs = all;
    return err;
}

static int run_all(struct eval *v, struct error *reterr)
{
    const struct text_job *job = v->job;
    int err = 0;

    for (int at = 0; at < job->n_chunks && !err; at += v->held) {
        int n = job->n_chunks - at < v->held ? job->n_chunks - at : v->held;

        v->held_at = at;
        err = run(v, v->engines.of[0], 0, 1, at, n, reterr);
        for (int k = 0; k < v->engines.n && !err; k++) {
            err = run(v, k, 1, job->n_kv, at, n, reterr);
        }
    }
    if (!err && v->err) {
        *reterr = v->error;
    }
    return err ? err : v->err;
}

static void finish(struct eval *v)
{
    for (int i = 0; v->p && i < v->job->n_kv; i++) {
        free(v->p[i].nll);
        free(v->p[i].kl);
    }
    free(v->p);
    free(v->pairs);
    free(v->reference);
    free(v->log_sum);
    free(v->tokens);
    engines_close(&v->engines);
}

static int use_ids(struct eval *v, struct text_job *job, struct error *reterr)
{
    int err = input_ids(job->ids, &v->tokens, &job->ctx, reterr);

    if (err) {
        return err;
    }
    v->first = job->first;
    job->n_chunks = 1;
    job->engine.ctx = job->ctx;
    return job->first < job->ctx - 1
               ? 0
               : error_set(reterr, -EINVAL, "%s has %" PRId32 " ids, the first is to be %" PRId32,
                           job->ids, job->ctx - 1, job->first);
}

/* The list of policies with what they are compared with before them. */
static int put_first(struct text_job *job, const char ***ret, struct error *reterr)
{
    const char **kv = calloc((size_t)job->n_kv + 1, sizeof(*kv));

    if (!kv) {
        return error_set(reterr, -ENOMEM, "no memory for the policies");
    }
    kv[0] = job->against->kv;
    memcpy(kv + 1, job->kv, (size_t)job->n_kv * sizeof(*kv));
    job->kv = kv;
    job->n_kv++;
    *ret = kv;
    return 0;
}

/* Rows of two models can be compared where their tokens have the same ids. */
static int same_tokens(struct eval *v, struct error *reterr)
{
    const struct text_job *job = v->job;
    AUTO_FREE int32_t *first = v->tokens;
    int err;

    v->tokens = NULL;
    err = engines_use(&v->engines, v->engines.of[1], &v->engine, reterr);
    if (err) {
        return err;
    }
    if (engine_info(v->engine)->n_vocab != v->n_vocab) {
        return error_set(reterr, -EINVAL, "%s has %d tokens, %s has %d: they cannot be compared",
                         job->against->model_path, v->n_vocab, job->engine.model_path,
                         engine_info(v->engine)->n_vocab);
    }
    if (job->ids) {
        v->tokens = STEAL(first);
        return 0;
    }
    err = load_tokens(v, engine_tok(v->engine), reterr);
    if (!err && memcmp(first, v->tokens, (size_t)job->n_chunks * (size_t)job->ctx * 4) != 0) {
        err = error_set(reterr, -EINVAL, "%s and %s make different tokens of %s",
                        job->against->model_path, job->engine.model_path, job->path);
    }
    return err;
}

int text_run(const struct text_job *wanted, struct error *reterr)
{
    struct text_job own = *wanted;
    const struct text_job *job = &own;
    struct eval v = {.job = job, .first = job->ctx / 2};
    AUTO_FREE const char **kv = NULL;
    int err = job->ids ? use_ids(&v, &own, reterr) : 0;

    if (!err && job->against) {
        err = put_first(&own, &kv, reterr);
    }
    err = err ? err
              : engines_open(&job->engine, job->against, job->kv, job->n_kv, job->n_chunks,
                             &v.engines, reterr);
    v.rows = job->ctx - 1 - v.first;
    if (!err) {
        v.n_vocab = engine_info(v.engines.open)->n_vocab;
        err = job->ids ? 0 : load_tokens(&v, engine_tok(v.engines.open), reterr);
    }
    if (!err && job->against) {
        err = same_tokens(&v, reterr);
    }
    if (!err) {
        err = make_room(&v, reterr);
    }
    if (!err && job->dump) {
        err = job->engine.n_seqs > 1 ? error_set(reterr, -EINVAL, "--dump needs --batch 1")
                                     : npy_create(job->dump, (int64_t)job->n_chunks * v.rows,
                                                  v.n_vocab, &v.dump, reterr);
    }
    if (!err) {
        (void)fputs("policy,mode,ctx,chunks,rows,perplexity,mean_kl,p99_kl,same_top1,kv_bytes,"
                    "tokens_per_step,chunk_nll,chunk_kl,more_percent,more_95,differs,kl_95\n",
                    job->out);
        err = run_all(&v, reterr);
    }
    int err_dump = npy_finish(v.dump, err ? NULL : reterr);

    finish(&v);
    return err ? err : err_dump;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A tapped run (tools/tapped.h): of attention the queries are added up before it runs, of a layer's
 * query projection the input is the layer's. Keys are read from the cache when all is done. */

#include "tools/skew_run.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/kv/seq/cache.h"
#include "engine/text/tok.h"
#include "kernels/kv_round.h"
#include "tools/tapped.h"

enum { REPORTED_ROWS = 16 };

struct run {
    struct tapped t;
    struct skew_sums *sums;
    /* report: */
    bool reports;
    float *before;  /* (TAPPED_CHUNK, n_embd): input of the layer before */
    double *cosine; /* (n_layers): sums over rows */
    bool counts;    /* reach */
    bool means;     /* skew_job.means */
    int64_t n_rows;
    float *k;       /* (n_tokens, d): of one head */
    double *weight; /* (n_tokens) */
};

static struct run *tap; /* operations are told their backend only */

/* ---- taps -------------------------------------------------------------------------------------
 */

static void add_query(const float *q, int32_t d, double *qq, double *size)
{
    for (int32_t i = 0; i < d; i++) {
        for (int32_t j = 0; j < d; j++) {
            qq[i * d + j] += (double)q[i] * (double)q[j];
        }
        size[i] += fabs((double)q[i]);
    }
}

static void add_queries(struct run *r, const struct ops_attention *p, int32_t store)
{
    const struct model_store *st = &r->t.m->stores[store];
    size_t d = (size_t)st->k_dim;

    for (int32_t row = 0; row < p->rows.n; row++) {
        for (int32_t h = 0; h < p->n_q; h++) {
            size_t k = (size_t)(h / (p->n_q / st->n_k));

            add_query(p->q + (size_t)row * (size_t)p->ldq + (size_t)h * d, st->k_dim,
                      skew_qq(r->sums, store) + k * d * d, skew_size(r->sums, store) + k * d);
        }
    }
    r->sums->queries[store] += (double)p->rows.n * p->n_q / st->n_k;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x < y) - (x > y);
}

/* Keys of one head and store into r->k. */
static int fetch_keys(struct run *r, const struct ops_kv *kv, int32_t head, int32_t n)
{
    size_t d = (size_t)kv->layout->k_dim;
    int e = 0;

    for (int32_t i = 0; !e && i < n; i++) {
        const float *key;

        e = tapped_key(&r->t, kv, head, i, &key);
        memcpy(r->k + (size_t)i * d, key, d * sizeof(*key));
    }
    return e;
}

/* Keys that hold 0.9 of a row's weight, for some rows of the last chunk. */
static int count_keys(struct run *r, const struct ops_attention *p)
{
    const struct ops_seq *seq = &p->seqs[0];
    int64_t n_keys = 0;
    int64_t n_counts = 0;
    int32_t share = p->n_q / (seq->kv.layout->n_groups * seq->kv.layout->k_heads);
    size_t d = (size_t)seq->kv.layout->k_dim;

    for (int32_t h = 0; h < p->n_q; h++) {
        int e = h % share ? 0 : fetch_keys(r, &seq->kv, h / share, seq->pos0 + seq->n_rows);

        if (e) {
            return e;
        }
        for (int32_t row = seq->n_rows % REPORTED_ROWS; row < seq->n_rows;
             row += seq->n_rows / REPORTED_ROWS + 1) {
            const float *q = p->q + (size_t)row * (size_t)p->ldq + (size_t)h * d;
            int32_t n = seq->pos0 + row + 1;
            double max = -INFINITY;
            double sum = 0;
            double part = 0;
            int32_t count = 0;

            for (int32_t s = 0; s < n; s++) {
                double x = 0;

                for (size_t i = 0; i < d; i++) {
                    x += (double)q[i] * (double)r->k[(size_t)s * d + i];
                }
                r->weight[s] = x * (double)p->scale;
                max = fmax(max, r->weight[s]);
            }
            for (int32_t s = 0; s < n; s++) {
                r->weight[s] = exp(r->weight[s] - max);
                sum += r->weight[s];
            }
            qsort(r->weight, (size_t)n, sizeof(*r->weight), by_size);
            while (part < 0.9 * sum) {
                part += r->weight[count++];
            }
            n_keys += count;
            n_counts++;
        }
    }
    r->sums->reach[r->t.layer] = (double)n_keys / (double)n_counts;
    return 0;
}

static int tap_attention(struct backend *be, const struct ops_attention *p)
{
    int32_t store = tap->t.m->layers[tap->t.layer].store;
    int e = 0;

    if (tap->means ? skew_has_queries(tap->t.m, store) : skew_wanted(tap->t.m, store)) {
        add_queries(tap, p, store);
    }
    if (tap->counts && tap->t.pos0 + TAPPED_CHUNK >= tap->t.n_all &&
        !tap->t.m->layers[tap->t.layer].local) {
        e = count_keys(tap, p);
    }
    tap->t.layer++;
    return e ? e : tap->t.ops->attention(be, p);
}

static int tap_matmul(struct backend *be, const struct ops_matmul *p)
{
    int32_t layer = tap->t.layer;
    int32_t n = tap->t.m->h.n_embd;

    if (tap->reports && layer < tap->t.m->h.n_layers &&
        p->part[0].w ==
            &tap->t.m->layers[layer].w[tap->t.m->layers[layer].deep ? LT_SWIFT_Q : LT_Q]) {
        for (int32_t row = 0; row < p->rows.n; row++) {
            const float *x = p->x + (size_t)row * (size_t)p->ldx;
            float *before = tap->before + (size_t)row * (size_t)n;
            double xx = 0;
            double xy = 0;
            double yy = 0;

            for (int32_t i = 0; i < n; i++) {
                xx += (double)x[i] * (double)x[i];
                xy += (double)x[i] * (double)before[i];
                yy += (double)before[i] * (double)before[i];
            }
            tap->cosine[layer] += layer ? xy / sqrt(xx * yy) : 0;
            memcpy(before, x, (size_t)n * sizeof(float));
        }
        tap->n_rows += layer == 0 ? p->rows.n : 0;
    }
    return tap->t.ops->matmul(be, p);
}

/* ---- the run ----------------------------------------------------------------------------------
 */

static int add_keys(struct run *r, int32_t n_tokens, struct error *reterr)
{
    int e = 0;

    for (int32_t s = 0; s < r->t.m->n_stores; s++) {
        struct ops_kv kv = cache_store_kv(r->t.cache, r->t.seq, s);
        size_t d = (size_t)r->t.m->stores[s].k_dim;

        for (int32_t h = 0; !e && h < r->t.m->stores[s].n_k && skew_wanted(r->t.m, s); h++) {
            double *size = skew_size(r->sums, s) + (size_t)h * d;

            e = fetch_keys(r, &kv, h, n_tokens);
            for (size_t i = 0; i < d * (size_t)n_tokens; i++) {
                size[i % d] += fabs((double)r->k[i]);
            }
        }
    }
    return e ? error_set_errno(reterr, e, "cannot read the cache") : 0;
}

/* The mean key of every head and store; of a ring, over what it holds. */
static int average_keys(struct run *r, int32_t n_tokens, struct error *reterr)
{
    int e = 0;

    for (int32_t s = 0; s < r->t.m->n_stores; s++) {
        struct ops_kv kv = cache_store_kv(r->t.cache, r->t.seq, s);
        int32_t n = kv.slot_pos && kv.cap < n_tokens ? kv.cap : n_tokens;
        size_t d = (size_t)r->t.m->stores[s].k_dim;

        for (int32_t h = 0; !e && h < r->t.m->stores[s].n_k; h++) {
            double *mean = skew_mean(r->sums, s) + (size_t)h * d;

            e = fetch_keys(r, &kv, h, n);
            for (size_t i = 0; i < d * (size_t)n; i++) {
                mean[i % d] += (double)r->k[i] / n;
            }
        }
    }
    return e ? error_set_errno(reterr, e, "cannot read the cache") : 0;
}

static void print_report(const struct run *r, FILE *out)
{
    (void)fprintf(out, "layer  cosine with the layer before's input  keys for 0.9 of the weight\n");
    for (int32_t il = 0; il < r->t.m->h.n_layers; il++) {
        double keys = r->sums->reach[il];

        if (il == 0) {
            (void)fprintf(out, "%5d  %38s  %27.1f\n", il, "", keys);
        } else {
            (void)fprintf(out, "%5d  %38.4f  %27.1f\n", il, r->cosine[il] / (double)r->n_rows,
                          keys);
        }
    }
}

static void finish(struct run *r)
{
    tapped_finish(&r->t);
    free(r->before);
    free(r->cosine);
    free(r->k);
    free(r->weight);
    tap = NULL;
}

/* The text's first tokens, beginning with BOS where the model wants it. */
static int tokenize(const struct skew_model *m, const char *text, size_t len, int32_t n_tokens,
                    int32_t **ret, struct error *reterr)
{
    struct tok *tok = NULL;
    size_t n = 0;
    int e = tok_create(m->base, &tok, reterr);

    e = e ? e : tok_encode_new(tok, text, len, TOK_ADD_BOS, ret, &n, reterr);
    tok_destroy(tok);
    if (!e && n < (size_t)n_tokens) {
        free(*ret);
        *ret = NULL;
        e = error_set(reterr, -EINVAL, "the text has %zu tokens, %d are needed", n, n_tokens);
    }
    return e;
}

int skew_run(struct skew_model *model, const struct skew_job *job, const char *text, size_t len,
             struct skew_sums *ret, struct error *reterr)
{
    struct model *m = model->model;
    struct run r = {.t.m = m,
                    .sums = ret,
                    .reports = job->report != NULL,
                    .counts = job->report || job->means,
                    .means = job->means};
    size_t n_stores = (size_t)m->n_stores;
    size_t squares = 1;
    size_t rows = 1;
    int32_t *ids = NULL;
    int e;

    for (size_t i = 0; i < n_stores; i++) {
        size_t d = (size_t)m->stores[i].k_dim;
        size_t n = (size_t)m->stores[i].n_k * d;

        squares = n * d > squares ? n * d : squares;
        rows = n > rows ? n : rows;
    }
    *ret = (struct skew_sums){
        .qq = calloc(n_stores * squares, sizeof(*ret->qq)),
        .mean = calloc(n_stores * rows, sizeof(*ret->mean)),
        .size = calloc(n_stores * rows, sizeof(*ret->size)),
        .queries = calloc(n_stores, sizeof(*ret->queries)),
        .reach = calloc((size_t)m->h.n_layers, sizeof(*ret->reach)),
        .squares = squares,
        .rows = rows,
    };
    r.before = calloc((size_t)TAPPED_CHUNK * (size_t)m->h.n_embd, sizeof(*r.before));
    r.cosine = calloc((size_t)m->h.n_layers, sizeof(*r.cosine));
    r.k = calloc((size_t)job->n_tokens * (size_t)m->h.most.k_dim, sizeof(*r.k));
    r.weight = calloc((size_t)job->n_tokens, sizeof(*r.weight));
    tap = &r;
    e = ret->qq && ret->queries && ret->mean && ret->size && ret->reach && r.before && r.cosine &&
                r.k && r.weight
            ? 0
            : error_set(reterr, -ENOMEM, "no memory");
    e = e ? e : tokenize(model, text, len, job->n_tokens, &ids, reterr);
    e = e ? e : tapped_make(&r.t, job->n_tokens, job->n_threads, tap_attention, tap_matmul, reterr);
    e = e ? e : tapped_feed(&r.t, ids, reterr);
    e = e ? e : (job->means ? average_keys : add_keys)(&r, job->n_tokens, reterr);
    if (!e && job->report) {
        print_report(&r, job->report);
    }
    free(ids);
    finish(&r);
    model->model = NULL;
    return e;
}

void skew_sums_finish(struct skew_sums *s)
{
    free(s->qq);
    free(s->queries);
    free(s->mean);
    free(s->size);
    free(s->reach);
    *s = (struct skew_sums){0};
}

bool skew_wanted(const struct model *m, int32_t store)
{
    return geometry_is_predictable(m->stores[store].layer, m->stores[store].window);
}

bool skew_has_queries(const struct model *m, int32_t store)
{
    const struct model_store *st = &m->stores[store];

    return st->state_bytes == 0 && st->k_dim <= KV_ROUND_MOST;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The model runs as ever, on the backend cpu with an f32 cache, but through a table of operations
 * in which two are taps: attention, whose queries are added up before it runs, and the product of a
 * layer's query projection, whose input is the layer's. Layers run in order, so a count tells
 * which. Keys are read from the cache when all is done. */

#include "tools/skew_run.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/kv/seq/cache.h"
#include "engine/model/forward.h"
#include "engine/text/tok.h"
#include "kernels/kv_round.h"

enum { CHUNK = 512, REPORTED_ROWS = 16 };

struct run {
    struct model *m;
    const struct backend_ops *ops; /* the backend's own */
    struct backend_ops tapped;
    struct backend *be;
    struct geometry_store *stores;
    struct cache *cache;
    struct forward *forward;
    int32_t seq;
    int32_t layer; /* whose attention runs next */
    struct skew_sums *sums;
    /* report: */
    bool reports;
    bool last;      /* chunk */
    float *before;  /* (CHUNK, n_embd): input of the layer before */
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
    const struct model *m = r->m;
    size_t d = (size_t)m->h.most.k_dim;

    for (int32_t row = 0; row < p->rows.n; row++) {
        for (int32_t h = 0; h < p->n_q; h++) {
            size_t at = (size_t)store * (size_t)r->sums->heads +
                        (size_t)(h / (p->n_q / m->stores[store].n_k));

            add_query(p->q + (size_t)row * (size_t)p->ldq + (size_t)h * d, m->h.most.k_dim,
                      r->sums->qq + at * d * d, r->sums->size + at * d);
        }
    }
    r->sums->queries[store] += (double)p->rows.n * p->n_q / m->stores[store].n_k;
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
    const struct ops_kv_layout *l = kv->layout;
    size_t d = (size_t)l->k_dim;
    uint8_t *slot = malloc(ops_kv_slot_bytes(l));
    int e = slot ? 0 : -ENOMEM;

    for (int32_t i = 0; !e && i < n; i++) {
        struct ops_kv_slots p = {
            .kv = kv, .group = head / l->k_heads, .slot0 = i, .n_slots = 1, .host = slot};

        e = r->ops->kv_export(r->be, &p);
        memcpy(r->k + (size_t)i * d, slot + (size_t)(head % l->k_heads) * d * sizeof(float),
               d * sizeof(float));
    }
    free(slot);
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
    r->sums->reach[r->layer] = (double)n_keys / (double)n_counts;
    return 0;
}

static int tap_attention(struct backend *be, const struct ops_attention *p)
{
    int32_t store = tap->m->layers[tap->layer].store;
    int e = 0;

    if (tap->means ? skew_has_queries(tap->m, store) : skew_wanted(tap->m, store)) {
        add_queries(tap, p, store);
    }
    if (tap->counts && tap->last && !tap->m->layers[tap->layer].local) {
        e = count_keys(tap, p);
    }
    tap->layer++;
    return e ? e : tap->ops->attention(be, p);
}

static int tap_matmul(struct backend *be, const struct ops_matmul *p)
{
    int32_t layer = tap->layer;
    int32_t n = tap->m->h.n_embd;

    if (tap->reports && layer < tap->m->h.n_layers &&
        p->part[0].w == &tap->m->layers[layer].w[tap->m->layers[layer].deep ? LT_SWIFT_Q : LT_Q]) {
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
    return tap->ops->matmul(be, p);
}

/* ---- the run ----------------------------------------------------------------------------------
 */

static int make(struct run *r, int32_t n_tokens, int n_threads, atomic_int *interrupt,
                struct error *reterr)
{
    struct model *m = r->m;
    struct backend_config config = {.n_threads = n_threads, .cpu_mask = UINT32_MAX};
    struct backend_limits limits = {
        .max_rows = CHUNK, .max_decode = 1, .max_seqs = 1, .max_slots = n_tokens};
    struct forward_limits fl = {.max_rows = CHUNK, .max_seqs = 1, .max_logits = 1};
    struct geometry_config sc = {.ops = &r->tapped,
                                 .n_stores = m->n_stores,
                                 .ctx = n_tokens,
                                 .n_seqs = 1,
                                 .max_chunk = CHUNK,
                                 .n_q = m->h.most.n_q};
    struct geometry geometry = {0};
    int e = backend_find("cpu", &r->ops, reterr);

    e = e ? e : policy_parse_mix("f32", &sc.mix, reterr);
    e = e ? e : r->ops->create(&config, &r->be, reterr);
    if (e) {
        return e;
    }
    r->tapped = *r->ops;
    r->tapped.attention = tap_attention;
    r->tapped.matmul = tap_matmul;
    for (int32_t i = 0; i < m->n_stores; i++) {
        r->stores[i] = (struct geometry_store){.layer = m->stores[i].layer,
                                               .n_k = m->stores[i].n_k,
                                               .n_v = m->stores[i].n_v,
                                               .k_dim = m->stores[i].k_dim,
                                               .v_dim = m->stores[i].v_dim,
                                               .window = m->stores[i].window,
                                               .deep = m->stores[i].deep};
    }
    sc.stores = r->stores;
    model_limits(m, &limits);
    e = geometry_make(&sc, &geometry, reterr);
    e = e ? e : kv_create(&geometry, r->be, &r->cache, reterr);
    e = e ? e : r->ops->reserve(r->be, &limits, reterr);
    e = e ? e : model_load(m, &r->tapped, r->be, &config, NULL, NULL, reterr);
    return e ? e : forward_create(m, &fl, interrupt, &r->forward, reterr);
}

static int feed(struct run *r, const int32_t *ids, int32_t n_tokens, struct error *reterr)
{
    struct geometry_text text = {.n_prompt = n_tokens, .n_tokens = n_tokens};
    int e;

    r->seq = kv_admit(r->cache, &kv_mix(r->cache)->part[0].policy, 1, &text, ids, 0);
    e = r->seq < 0 ? r->seq : 0;
    for (int32_t pos = 0; !e && pos < n_tokens; pos += CHUNK) {
        int32_t n = n_tokens - pos < CHUNK ? n_tokens - pos : CHUNK;
        struct kv_rows rows = {.seq = r->seq,
                               .n_rows = n,
                               .pos0 = pos,
                               .n_beyond = n,
                               .chunk_pos0 = pos,
                               .chunk_rows = n};
        struct forward_batch b = {
            .kv = r->cache, .rows = {n, 0}, .ids = ids + pos, .n_seqs = 1, .seqs = &rows};

        e = kv_step_prepare(r->cache, r->seq, n);
        if (e) {
            break;
        }
        r->layer = 0;
        r->last = pos + CHUNK >= n_tokens;
        kv_step_begin(r->cache);
        kv_step_add(r->cache, &rows);
        forward_begin(r->forward, &b);
        e = forward_run(r->forward);
        kv_step_commit(r->cache, r->seq, n);
    }
    return e ? error_set_errno(reterr, e, "the model did not run") : 0;
}

static int add_keys(struct run *r, int32_t n_tokens, struct error *reterr)
{
    size_t d = (size_t)r->m->h.most.k_dim;
    int e = 0;

    for (int32_t s = 0; s < r->m->n_stores; s++) {
        struct ops_kv kv = cache_store_kv(r->cache, r->seq, s);

        for (int32_t h = 0; !e && h < r->m->stores[s].n_k && skew_wanted(r->m, s); h++) {
            double *size = r->sums->size + ((size_t)s * (size_t)r->sums->heads + (size_t)h) * d;

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
    size_t d = (size_t)r->m->h.most.k_dim;
    int e = 0;

    for (int32_t s = 0; s < r->m->n_stores; s++) {
        struct ops_kv kv = cache_store_kv(r->cache, r->seq, s);
        int32_t n = kv.slot_pos && kv.cap < n_tokens ? kv.cap : n_tokens;

        for (int32_t h = 0; !e && h < r->m->stores[s].n_k; h++) {
            double *mean = r->sums->mean + ((size_t)s * (size_t)r->sums->heads + (size_t)h) * d;

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
    for (int32_t il = 0; il < r->m->h.n_layers; il++) {
        double keys = r->sums->reach[il];

        if (il == 0) {
            (void)fprintf(out, "%5d  %38s  %27.1f\n", il, "", keys);
        } else {
            (void)fprintf(out, "%5d  %38.4f  %27.1f\n", il, r->cosine[il] / (double)r->n_rows,
                          keys);
        }
    }
}

static void finish(struct run *r, struct skew_model *m)
{
    forward_destroy(r->forward);
    kv_destroy(r->cache);
    model_close(m->model);
    m->model = NULL;
    if (r->be) {
        r->ops->destroy(r->be);
    }
    free(r->stores);
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
    struct run r = {.m = m,
                    .sums = ret,
                    .reports = job->report != NULL,
                    .counts = job->report || job->means,
                    .means = job->means};
    atomic_int interrupt = 0;
    size_t d = (size_t)m->h.most.k_dim;
    size_t n_heads = 1;
    int32_t *ids = NULL;
    int e;

    for (int32_t i = 0; i < m->n_stores; i++) {
        n_heads = (size_t)m->stores[i].n_k > n_heads ? (size_t)m->stores[i].n_k : n_heads;
    }
    *ret = (struct skew_sums){
        .qq = calloc((size_t)m->n_stores * n_heads * d * d, sizeof(*ret->qq)),
        .queries = calloc((size_t)m->n_stores, sizeof(*ret->queries)),
        .mean = calloc((size_t)m->n_stores * n_heads * d, sizeof(*ret->mean)),
        .size = calloc((size_t)m->n_stores * n_heads * d, sizeof(*ret->size)),
        .reach = calloc((size_t)m->h.n_layers, sizeof(*ret->reach)),
        .heads = (int32_t)n_heads,
    };
    r.stores = calloc((size_t)m->n_stores, sizeof(*r.stores));
    r.before = calloc((size_t)CHUNK * (size_t)m->h.n_embd, sizeof(*r.before));
    r.cosine = calloc((size_t)m->h.n_layers, sizeof(*r.cosine));
    r.k = calloc((size_t)job->n_tokens * d, sizeof(*r.k));
    r.weight = calloc((size_t)job->n_tokens, sizeof(*r.weight));
    tap = &r;
    e = ret->qq && ret->queries && ret->mean && ret->size && ret->reach && r.stores && r.before &&
                r.cosine && r.k && r.weight
            ? 0
            : error_set(reterr, -ENOMEM, "no memory");
    e = e ? e : tokenize(model, text, len, job->n_tokens, &ids, reterr);
    e = e ? e : make(&r, job->n_tokens, job->n_threads, &interrupt, reterr);
    e = e ? e : feed(&r, ids, job->n_tokens, reterr);
    e = e ? e : (job->means ? average_keys : add_keys)(&r, job->n_tokens, reterr);
    if (!e && job->report) {
        print_report(&r, job->report);
    }
    free(ids);
    finish(&r, model);
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

    return st->state_bytes == 0 && !st->deep && st->k_dim == m->h.most.k_dim &&
           st->k_dim <= KV_ROUND_MOST;
}

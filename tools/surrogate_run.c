/* SPDX-License-Identifier: Apache-2.0 */
/* A tapped run (tools/tapped.h): of a layer's query projection the normed input is kept, of
 * attention the queries of the second reading are weighed against all keys. */

#include "tools/surrogate_run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/seq/cache.h"
#include "engine/model/tensors.h"
#include "tools/tapped.h"

struct run {
    struct tapped t;
    const struct surrogate_job *job;
    int32_t first; /* position of the first reading, */
    int32_t again; /* and of the second */
    float *x;      /* (n_layers, n_text, n_embd): of the first reading */
    float *best;   /* (n_layers, n_q, n_text) */
    float *gram;   /* (n_layers, n_q, v_dim, v_dim): Wo^T Wo of a head */
    float *normed; /* (TAPPED_CHUNK, n_embd) */
    float *length; /* (TAPPED_CHUNK): of its rows */
    float *k;      /* (k_dim, n_all): of one head */
    float *weight; /* (n_all) */
    float *y;      /* (n_text, n_k) */
};

static struct run *tap; /* operations are told their backend only */

static bool wanted(const struct model *m, int32_t layer)
{
    return m->layers[layer].owner && !m->layers[layer].local;
}

/* Keys of one head of positions [0, n), dim by dim. */
static int fetch_keys(struct run *r, const struct ops_kv *kv, int32_t head, int32_t n)
{
    int e = 0;

    for (int32_t i = 0; !e && i < n; i++) {
        const float *key;

        e = tapped_key(&r->t, kv, head, i, &key);
        for (int32_t j = 0; j < kv->layout->k_dim; j++) {
            r->k[(size_t)j * (size_t)r->t.n_all + (size_t)i] = key[j];
        }
    }
    return e;
}

/* What one query of the second reading gives to the first's slots. */
static void weigh(struct run *r, const float *q, int32_t d, float scale, float length, int32_t n,
                  float *best)
{
    float max = -INFINITY;
    float sum = 0;
    float *w = r->weight;

    memset(w, 0, (size_t)n * sizeof(*w));
    for (int32_t j = 0; j < d; j++) {
        const float *k = r->k + (size_t)j * (size_t)r->t.n_all;
        float x = q[j] * scale;

        for (int32_t s = 0; s < n; s++) {
            w[s] += x * k[s];
        }
    }
    for (int32_t s = 0; s < n; s++) {
        max = w[s] > max ? w[s] : max;
    }
    for (int32_t s = 0; s < n; s++) {
        w[s] = expf(w[s] - max);
        sum += w[s];
    }
    float f = 1.0f / (sum * length);

    for (int32_t s = 0; s < r->job->n_text; s++) {
        float x = w[r->first + s] * f;

        best[s] = x > best[s] ? x : best[s];
    }
}

static int weigh_rows(struct run *r, const struct ops_attention *p)
{
    const struct ops_seq *seq = &p->seqs[0];
    const struct ops_kv_layout *l = seq->kv.layout;
    int32_t d = l->k_dim;
    int32_t share = p->n_q / (l->n_groups * l->k_heads);
    int32_t n_text = r->job->n_text;

    for (int32_t h = 0; h < p->n_q; h++) {
        int e = h % share ? 0 : fetch_keys(r, &seq->kv, h / share, seq->pos0 + seq->n_rows);
        float *best = r->best + ((size_t)r->t.layer * (size_t)p->n_q + (size_t)h) * (size_t)n_text;

        if (e) {
            return e;
        }
        for (int32_t row = 0; row < seq->n_rows; row++) {
            int32_t pos = seq->pos0 + row;

            if (pos >= r->again && pos < r->again + n_text) {
                weigh(r, p->q + (size_t)row * (size_t)p->ldq + (size_t)h * (size_t)d, d, p->scale,
                      r->length[row], pos + 1, best);
            }
        }
    }
    return 0;
}

static int tap_attention(struct backend *be, const struct ops_attention *p)
{
    int e = 0;

    if (wanted(tap->t.m, tap->t.layer) && tap->t.pos0 + p->rows.n > tap->again) {
        e = weigh_rows(tap, p);
    }
    tap->t.layer++;
    return e ? e : tap->t.ops->attention(be, p);
}

/* Keeps the rows' normed inputs. */
static int keep_inputs(struct run *r, const struct ops_matmul *p)
{
    int32_t n = r->t.m->h.n_embd;
    struct ops_norm_op norm = {.rows = p->rows,
                               .norm = p->norm,
                               .x = p->x,
                               .y = r->normed,
                               .ldx = p->ldx,
                               .ldy = n,
                               .n_cols = n};
    int e = p->norm.w ? r->t.ops->norm(r->t.be, &norm) : 0;

    for (int32_t row = 0; !e && row < p->rows.n; row++) {
        float *x = r->normed + (size_t)row * (size_t)n;
        int32_t at = r->t.pos0 + row - r->first;
        double sum = 0;

        if (!p->norm.w) {
            memcpy(x, p->x + (size_t)row * (size_t)p->ldx, (size_t)n * sizeof(*x));
        }
        for (int32_t i = 0; i < n; i++) {
            sum += (double)x[i] * (double)x[i];
        }
        r->length[row] = (float)sqrt(sum);
        if (at >= 0 && at < r->job->n_text) {
            memcpy(r->x + ((size_t)r->t.layer * (size_t)r->job->n_text + (size_t)at) * (size_t)n, x,
                   (size_t)n * sizeof(*x));
        }
    }
    return e;
}

static int tap_matmul(struct backend *be, const struct ops_matmul *p)
{
    const struct model *m = tap->t.m;
    int e = 0;

    if (tap->t.layer < m->h.n_layers && wanted(m, tap->t.layer) &&
        p->part[0].w == &m->layers[tap->t.layer].w[LT_Q]) {
        e = keep_inputs(tap, p);
    }
    return e ? e : tap->t.ops->matmul(be, p);
}

/* ---- the run ----------------------------------------------------------------------------------
 */

/* Wo^T Wo of each head: |Wo v|^2 = v G v. */
static int make_grams(struct run *r, struct error *reterr)
{
    const struct model *m = r->t.m;
    size_t vd = (size_t)m->h.most.v_dim;
    float *row = NULL;

    for (int32_t i = 0; i < m->n_list; i++) {
        const struct model_weight *w = &m->list[i];
        int32_t il = 0;
        uint64_t row_bytes = 0;

        while (il < m->h.n_layers && w->dst != &m->layers[il].w[LT_O]) {
            il++;
        }
        if (il == m->h.n_layers || !wanted(m, il)) {
            continue;
        }
        size_t n_q = (size_t)w->desc.n_cols / vd;

        row = row ? row : calloc((size_t)w->desc.n_cols, sizeof(*row));
        if (!row || !dtype_row_bytes(w->desc.type, (uint64_t)w->desc.n_cols, &row_bytes)) {
            free(row);
            return error_set(reterr, -ENOMEM, "no memory");
        }
        for (int32_t o = 0; o < w->desc.n_rows; o++) {
            dtype_decode(w->desc.type, (const uint8_t *)w->desc.data + (uint64_t)o * row_bytes, row,
                         (uint64_t)w->desc.n_cols);
            for (size_t h = 0; h < n_q; h++) {
                float *g = r->gram + ((size_t)il * n_q + h) * vd * vd;
                const float *v = row + h * vd;

                for (size_t a = 0; a < vd; a++) {
                    for (size_t b = 0; b < vd; b++) {
                        g[a * vd + b] += v[a] * v[b];
                    }
                }
            }
        }
    }
    free(row);
    return 0;
}

/* The scores of a layer's K heads, from what queries gave and the lengths of Wo v. */
static int score_layer(struct run *r, int32_t layer)
{
    const struct model *m = r->t.m;
    struct ops_kv kv = cache_store_kv(r->t.cache, r->t.seq, m->layers[layer].store);
    const struct ops_kv_layout *l = kv.layout;
    int32_t n_text = r->job->n_text;
    int32_t n_q = m->h.most.n_q;
    int32_t n_k = l->n_groups * l->k_heads;
    int32_t n_v = l->n_groups * l->v_heads;
    int32_t vd = l->v_dim;

    for (int32_t i = 0; i < n_text; i++) {
        for (int32_t k = 0; k < n_k; k++) {
            r->y[i * n_k + k] = 0;
        }
        for (int32_t h = 0; h < n_q; h++) {
            const float *v;
            int e = tapped_value(&r->t, &kv, h * n_v / n_q, r->first + i, &v);
            const float *g =
                r->gram + ((size_t)layer * (size_t)n_q + (size_t)h) * (size_t)(vd * vd);
            double sum = 0;

            if (e) {
                return e;
            }
            for (int32_t a = 0; a < vd; a++) {
                for (int32_t b = 0; b < vd; b++) {
                    sum += (double)(g[a * vd + b] * v[a] * v[b]);
                }
            }
            float w =
                r->best[((size_t)layer * (size_t)n_q + (size_t)h) * (size_t)n_text + (size_t)i] *
                (float)sqrt(sum);
            float *y = &r->y[i * n_k + h * n_k / n_q];

            *y = w > *y ? w : *y;
        }
        for (int32_t k = 0; k < n_k; k++) {
            r->y[i * n_k + k] = logf(fmaxf(r->y[i * n_k + k], 1e-20f));
        }
    }
    return 0;
}

static int read_text(struct run *r, int32_t text, int32_t *ids, struct error *reterr)
{
    const struct surrogate_job *job = r->job;
    const struct model *m = r->t.m;
    const int32_t *from = job->ids + (size_t)text * (size_t)job->n_text;

    ids[0] = job->bos;
    memcpy(ids + r->first, from, (size_t)job->n_text * sizeof(*ids));
    memcpy(ids + r->first + job->n_text, job->ask, (size_t)job->n_ask * sizeof(*ids));
    memcpy(ids + r->again, from, (size_t)job->n_text * sizeof(*ids));
    memset(r->best, 0,
           (size_t)m->h.n_layers * (size_t)m->h.most.n_q * (size_t)job->n_text * sizeof(*r->best));
    int e = tapped_feed(&r->t, ids, reterr);

    for (int32_t il = 0; !e && il < m->h.n_layers; il++) {
        if (!wanted(m, il)) {
            continue;
        }
        e = score_layer(r, il);
        e = e ? e
              : job->take(job->arg, text, il,
                          r->x + (size_t)il * (size_t)job->n_text * (size_t)m->h.n_embd, r->y);
        e = e ? error_set_errno(reterr, e, "cannot take the scores") : 0;
    }
    if (r->t.seq >= 0) {
        kv_release(r->t.cache, r->t.seq);
    }
    return e;
}

static void finish(struct run *r)
{
    tapped_finish(&r->t);
    free(r->x);
    free(r->best);
    free(r->gram);
    free(r->normed);
    free(r->length);
    free(r->k);
    free(r->weight);
    free(r->y);
    tap = NULL;
}

int surrogate_run(struct model *m, const struct surrogate_job *job, struct error *reterr)
{
    struct run r = {.t.m = m, .job = job, .first = job->bos >= 0 ? 1 : 0};
    size_t layers = (size_t)m->h.n_layers;
    size_t n_embd = (size_t)m->h.n_embd;
    size_t n_text = (size_t)job->n_text;
    size_t n_q = (size_t)m->h.most.n_q;
    size_t vd = (size_t)m->h.most.v_dim;
    int32_t *ids;
    int e;

    r.again = r.first + job->n_text + job->n_ask;
    int32_t n_all = r.again + job->n_text;

    ids = calloc((size_t)n_all, sizeof(*ids));
    r.x = calloc(layers * n_text * n_embd, sizeof(*r.x));
    r.best = calloc(layers * n_q * n_text, sizeof(*r.best));
    r.gram = calloc(layers * n_q * vd * vd, sizeof(*r.gram));
    r.normed = calloc(TAPPED_CHUNK * n_embd, sizeof(*r.normed));
    r.length = calloc(TAPPED_CHUNK, sizeof(*r.length));
    r.k = calloc((size_t)m->h.most.k_dim * (size_t)n_all, sizeof(*r.k));
    r.weight = calloc((size_t)n_all, sizeof(*r.weight));
    r.y = calloc(n_text * n_q, sizeof(*r.y));
    tap = &r;
    e = ids && r.x && r.best && r.gram && r.normed && r.length && r.k && r.weight && r.y
            ? 0
            : error_set(reterr, -ENOMEM, "no memory");
    e = e ? e : make_grams(&r, reterr);
    e = e ? e : tapped_make(&r.t, n_all, job->n_threads, tap_attention, tap_matmul, reterr);
    for (int32_t i = 0; !e && i < job->n_texts; i++) {
        e = read_text(&r, i, ids, reterr);
    }
    free(ids);
    finish(&r);
    return e;
}

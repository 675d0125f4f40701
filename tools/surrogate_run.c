/* SPDX-License-Identifier: Apache-2.0 */
/* The model runs as ever, on the backend cpu with an f32 cache, but through a table of operations
 * in which two are taps: the product of a layer's query projection, whose normed input is kept, and
 * attention, of whose queries those of the second reading are weighed against all keys. Layers run
 * in order, so a count tells which. */

#include "tools/surrogate_run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/seq/cache.h"
#include "engine/model/forward.h"
#include "engine/model/tensors.h"

enum { CHUNK = 512 };

struct run {
    struct model *m;
    const struct surrogate_job *job;
    const struct backend_ops *ops; /* the backend's own */
    struct backend_ops tapped;
    struct backend *be;
    struct geometry_store *stores;
    struct cache *cache;
    struct forward *forward;
    int32_t seq;
    int32_t layer; /* whose attention runs next */
    int32_t pos0;  /* of the chunk */
    int32_t first; /* position of the first reading, */
    int32_t again; /* and of the second */
    int32_t n_all; /* positions */
    float *x;      /* (n_layers, n_text, n_embd): of the first reading */
    float *best;   /* (n_layers, n_q, n_text) */
    float *gram;   /* (n_layers, n_q, v_dim, v_dim): Wo^T Wo of a head */
    float *normed; /* (CHUNK, n_embd) */
    float *length; /* (CHUNK): of its rows */
    float *k;      /* (k_dim, n_all): of one head */
    float *weight; /* (n_all) */
    float *y;      /* (n_text, n_k) */
    uint8_t *slot;
};

static struct run *tap; /* operations are told their backend only */

static bool wanted(const struct model *m, int32_t layer)
{
    return m->layers[layer].owner && !m->layers[layer].local;
}

/* Keys of one head of positions [0, n), dim by dim. */
static int fetch_keys(struct run *r, const struct ops_kv *kv, int32_t head, int32_t n)
{
    const struct ops_kv_layout *l = kv->layout;
    int32_t d = l->k_dim;

    for (int32_t i = 0; i < n; i++) {
        struct ops_kv_slots p = {
            .kv = kv, .group = head / l->k_heads, .slot0 = i, .n_slots = 1, .host = r->slot};
        int e = r->ops->kv_export(r->be, &p);
        const float *k = (const float *)(const void *)r->slot + head % l->k_heads * d;

        if (e) {
            return e;
        }
        for (int32_t j = 0; j < d; j++) {
            r->k[(size_t)j * (size_t)r->n_all + (size_t)i] = k[j];
        }
    }
    return 0;
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
        const float *k = r->k + (size_t)j * (size_t)r->n_all;
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
        float *best = r->best + ((size_t)r->layer * (size_t)p->n_q + (size_t)h) * (size_t)n_text;

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

    if (wanted(tap->m, tap->layer) && tap->pos0 + p->rows.n > tap->again) {
        e = weigh_rows(tap, p);
    }
    tap->layer++;
    return e ? e : tap->ops->attention(be, p);
}

/* Keeps the rows' normed inputs. */
static int keep_inputs(struct run *r, const struct ops_matmul *p)
{
    int32_t n = r->m->h.n_embd;
    struct ops_norm_op norm = {.rows = p->rows,
                               .norm = p->norm,
                               .x = p->x,
                               .y = r->normed,
                               .ldx = p->ldx,
                               .ldy = n,
                               .n_cols = n};
    int e = p->norm.w ? r->ops->norm(r->be, &norm) : 0;

    for (int32_t row = 0; !e && row < p->rows.n; row++) {
        float *x = r->normed + (size_t)row * (size_t)n;
        int32_t at = r->pos0 + row - r->first;
        double sum = 0;

        if (!p->norm.w) {
            memcpy(x, p->x + (size_t)row * (size_t)p->ldx, (size_t)n * sizeof(*x));
        }
        for (int32_t i = 0; i < n; i++) {
            sum += (double)x[i] * (double)x[i];
        }
        r->length[row] = (float)sqrt(sum);
        if (at >= 0 && at < r->job->n_text) {
            memcpy(r->x + ((size_t)r->layer * (size_t)r->job->n_text + (size_t)at) * (size_t)n, x,
                   (size_t)n * sizeof(*x));
        }
    }
    return e;
}

static int tap_matmul(struct backend *be, const struct ops_matmul *p)
{
    const struct model *m = tap->m;
    int e = 0;

    if (tap->layer < m->h.n_layers && wanted(m, tap->layer) &&
        p->part[0].w == &m->layers[tap->layer].w[LT_Q]) {
        e = keep_inputs(tap, p);
    }
    return e ? e : tap->ops->matmul(be, p);
}

/* ---- the run ----------------------------------------------------------------------------------
 */

static int make(struct run *r, atomic_int *interrupt, struct error *reterr)
{
    struct model *m = r->m;
    struct backend_config config = {.n_threads = r->job->n_threads, .cpu_mask = UINT32_MAX};
    struct backend_limits limits = {
        .max_rows = CHUNK, .max_decode = 1, .max_seqs = 1, .max_slots = r->n_all};
    struct forward_limits fl = {.max_rows = CHUNK, .max_seqs = 1, .max_logits = 1};
    struct geometry_config sc = {.ops = &r->tapped,
                                 .n_stores = m->n_stores,
                                 .ctx = r->n_all,
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

/* Wo^T Wo of each head: |Wo v|^2 = v G v. */
static int make_grams(struct run *r, struct error *reterr)
{
    const struct model *m = r->m;
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

static int feed(struct run *r, const int32_t *ids, struct error *reterr)
{
    struct geometry_text text = {.n_prompt = r->n_all, .n_tokens = r->n_all};
    int e;

    r->seq = kv_admit(r->cache, &kv_mix(r->cache)->part[0].policy, 1, &text, ids, 0);
    e = r->seq < 0 ? r->seq : 0;
    for (int32_t pos = 0; !e && pos < r->n_all; pos += CHUNK) {
        int32_t n = r->n_all - pos < CHUNK ? r->n_all - pos : CHUNK;
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
        r->pos0 = pos;
        kv_step_begin(r->cache);
        kv_step_add(r->cache, &rows);
        forward_begin(r->forward, &b);
        e = forward_run(r->forward);
        kv_step_commit(r->cache, r->seq, n);
    }
    return e ? error_set_errno(reterr, e, "the model did not run") : 0;
}

/* The scores of a layer's K heads, from what queries gave and the lengths of Wo v. */
static int score_layer(struct run *r, int32_t layer)
{
    const struct model *m = r->m;
    struct ops_kv kv = cache_store_kv(r->cache, r->seq, m->layers[layer].store);
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
            int32_t vh = h * n_v / n_q;
            struct ops_kv_slots p = {.kv = &kv,
                                     .group = vh / l->v_heads,
                                     .slot0 = r->first + i,
                                     .n_slots = 1,
                                     .host = r->slot};
            int e = r->ops->kv_export(r->be, &p);
            const float *v =
                (const float *)(const void *)r->slot + l->k_heads * l->k_dim + vh % l->v_heads * vd;
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
    const struct model *m = r->m;
    const int32_t *from = job->ids + (size_t)text * (size_t)job->n_text;

    ids[0] = job->bos;
    memcpy(ids + r->first, from, (size_t)job->n_text * sizeof(*ids));
    memcpy(ids + r->first + job->n_text, job->ask, (size_t)job->n_ask * sizeof(*ids));
    memcpy(ids + r->again, from, (size_t)job->n_text * sizeof(*ids));
    memset(r->best, 0,
           (size_t)m->h.n_layers * (size_t)m->h.most.n_q * (size_t)job->n_text * sizeof(*r->best));
    int e = feed(r, ids, reterr);

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
    if (r->seq >= 0) {
        kv_release(r->cache, r->seq);
    }
    return e;
}

static void finish(struct run *r)
{
    forward_destroy(r->forward);
    kv_destroy(r->cache);
    model_close(r->m);
    if (r->be) {
        r->ops->destroy(r->be);
    }
    free(r->stores);
    free(r->x);
    free(r->best);
    free(r->gram);
    free(r->normed);
    free(r->length);
    free(r->k);
    free(r->weight);
    free(r->y);
    free(r->slot);
    tap = NULL;
}

int surrogate_run(struct model *m, const struct surrogate_job *job, struct error *reterr)
{
    struct run r = {.m = m, .job = job, .first = job->bos >= 0 ? 1 : 0, .seq = -1};
    atomic_int interrupt = 0;
    size_t layers = (size_t)m->h.n_layers;
    size_t n_embd = (size_t)m->h.n_embd;
    size_t n_text = (size_t)job->n_text;
    size_t n_q = (size_t)m->h.most.n_q;
    size_t vd = (size_t)m->h.most.v_dim;
    int32_t *ids;
    int e;

    r.again = r.first + job->n_text + job->n_ask;
    r.n_all = r.again + job->n_text;
    ids = calloc((size_t)r.n_all, sizeof(*ids));
    r.stores = calloc((size_t)m->n_stores, sizeof(*r.stores));
    r.x = calloc(layers * n_text * n_embd, sizeof(*r.x));
    r.best = calloc(layers * n_q * n_text, sizeof(*r.best));
    r.gram = calloc(layers * n_q * vd * vd, sizeof(*r.gram));
    r.normed = calloc(CHUNK * n_embd, sizeof(*r.normed));
    r.length = calloc(CHUNK, sizeof(*r.length));
    r.k = calloc((size_t)m->h.most.k_dim * (size_t)r.n_all, sizeof(*r.k));
    r.weight = calloc((size_t)r.n_all, sizeof(*r.weight));
    r.y = calloc(n_text * n_q, sizeof(*r.y));
    r.slot = malloc(2 * n_q * (size_t)(m->h.most.k_dim + m->h.most.v_dim) * sizeof(float));
    tap = &r;
    e = ids && r.stores && r.x && r.best && r.gram && r.normed && r.length && r.k && r.weight &&
                r.y && r.slot
            ? 0
            : error_set(reterr, -ENOMEM, "no memory");
    e = e ? e : make_grams(&r, reterr);
    e = e ? e : make(&r, &interrupt, reterr);
    for (int32_t i = 0; !e && i < job->n_texts; i++) {
        e = read_text(&r, i, ids, reterr);
    }
    free(ids);
    finish(&r);
    return e;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/tapped.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/kv/seq/cache.h"
#include "engine/model/forward.h"

/* Stores as the model has them, and room for a slot of any. */
static int list_stores(struct tapped *t)
{
    const struct model *m = t->m;
    size_t most = 0;

    t->stores = calloc((size_t)m->n_stores, sizeof(*t->stores));
    for (int32_t i = 0; t->stores && i < m->n_stores; i++) {
        const struct model_store *s = &m->stores[i];
        size_t n = (size_t)s->n_k * (size_t)s->k_dim + (size_t)s->n_v * (size_t)s->v_dim;

        most = n > most ? n : most;
        t->stores[i] = (struct geometry_store){.layer = s->layer,
                                               .n_k = s->n_k,
                                               .n_v = s->n_v,
                                               .k_dim = s->k_dim,
                                               .v_dim = s->v_dim,
                                               .window = s->window,
                                               .deep = s->deep};
    }
    t->slot = malloc(most * sizeof(float));
    return t->stores && t->slot ? 0 : -ENOMEM;
}

int tapped_make(struct tapped *t, int32_t n_all, int n_threads, tapped_attention *attention,
                tapped_matmul *matmul, struct error *reterr)
{
    struct model *m = t->m;
    struct backend_config config = {.n_threads = n_threads, .cpu_mask = UINT32_MAX};
    struct backend_limits limits = {
        .max_rows = TAPPED_CHUNK, .max_decode = 1, .max_seqs = 1, .max_slots = n_all};
    struct forward_limits fl = {.max_rows = TAPPED_CHUNK, .max_seqs = 1, .max_logits = 1};
    struct geometry_config sc = {.ops = &t->table,
                                 .n_stores = m->n_stores,
                                 .ctx = n_all,
                                 .n_seqs = 1,
                                 .max_chunk = TAPPED_CHUNK,
                                 .n_q = m->h.most.n_q};
    struct geometry geometry = {0};

    t->n_all = n_all;
    t->seq = -1;
    if (list_stores(t)) {
        return error_set(reterr, -ENOMEM, "no memory");
    }
    int e = backend_find("cpu", &t->ops, reterr);

    e = e ? e : policy_parse_mix("f32", &sc.mix, reterr);
    e = e ? e : t->ops->create(&config, &t->be, reterr);
    if (e) {
        return e;
    }
    t->table = *t->ops;
    t->table.attention = attention;
    t->table.matmul = matmul;
    sc.stores = t->stores;
    model_limits(m, &limits);
    e = geometry_make(&sc, &geometry, reterr);
    e = e ? e : kv_create(&geometry, t->be, &t->cache, reterr);
    e = e ? e : t->ops->reserve(t->be, &limits, reterr);
    e = e ? e : model_load(m, &t->table, t->be, &config, NULL, NULL, reterr);
    return e ? e : forward_create(m, &fl, &t->interrupt, &t->forward, reterr);
}

static int feed_chunk(struct tapped *t, const int32_t *ids, int32_t pos, int32_t n)
{
    struct kv_rows rows = {
        .seq = t->seq, .n_rows = n, .pos0 = pos, .n_beyond = n, .chunk_pos0 = pos, .chunk_rows = n};
    struct forward_batch b = {
        .kv = t->cache, .rows = {n, 0}, .ids = ids + pos, .n_seqs = 1, .seqs = &rows};
    int e = kv_step_prepare(t->cache, t->seq, n);

    if (e) {
        return e;
    }
    t->layer = 0;
    t->pos0 = pos;
    kv_step_begin(t->cache);
    kv_step_add(t->cache, &rows);
    forward_begin(t->forward, &b);
    e = forward_run(t->forward);
    kv_step_commit(t->cache, t->seq, n);
    return e;
}

int tapped_feed(struct tapped *t, const int32_t *ids, struct error *reterr)
{
    struct geometry_text text = {.n_prompt = t->n_all, .n_tokens = t->n_all};
    int e;

    t->seq = kv_admit(t->cache, &kv_mix(t->cache)->part[0].policy, 1, &text, ids, 0);
    e = t->seq < 0 ? t->seq : 0;
    for (int32_t pos = 0; !e && pos < t->n_all; pos += TAPPED_CHUNK) {
        e = feed_chunk(t, ids, pos, t->n_all - pos < TAPPED_CHUNK ? t->n_all - pos : TAPPED_CHUNK);
    }
    return e ? error_set_errno(reterr, e, "the model did not run") : 0;
}

/* A slot of a head group: its K heads, then its V heads. */
static int export_slot(struct tapped *t, const struct ops_kv *kv, int32_t group, int32_t slot,
                       const float **ret)
{
    struct ops_kv_slots p = {
        .kv = kv, .group = group, .slot0 = slot, .n_slots = 1, .host = t->slot};

    *ret = (const float *)(const void *)t->slot;
    return t->ops->kv_export(t->be, &p);
}

int tapped_key(struct tapped *t, const struct ops_kv *kv, int32_t head, int32_t slot,
               const float **ret)
{
    const struct ops_kv_layout *l = kv->layout;
    int e = export_slot(t, kv, head / l->k_heads, slot, ret);

    *ret += head % l->k_heads * l->k_dim;
    return e;
}

int tapped_value(struct tapped *t, const struct ops_kv *kv, int32_t head, int32_t slot,
                 const float **ret)
{
    const struct ops_kv_layout *l = kv->layout;
    int e = export_slot(t, kv, head / l->v_heads, slot, ret);

    *ret += l->k_heads * l->k_dim + head % l->v_heads * l->v_dim;
    return e;
}

void tapped_finish(struct tapped *t)
{
    forward_destroy(t->forward);
    kv_destroy(t->cache);
    model_close(t->m);
    if (t->be) {
        t->ops->destroy(t->be);
    }
    free(t->stores);
    free(t->slot);
}

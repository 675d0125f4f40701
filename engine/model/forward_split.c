/* SPDX-License-Identifier: Apache-2.0 */
/* SwiftKV's split: the deep stores' K and V of all rows, four stores a product, and which rows go
 * on. */

#include "engine/model/forward_layer.h"

/* K and V of deep stores [s0, s1) for all rows, one product. */
static int deep_project(struct forward *f, int32_t s0, int32_t s1)
{
    const struct model *m = f->m;
    struct ops_matmul p = {
        .rows = f->rows,
        .norm = norm_of(f, &m->w[MT_SWIFT_NORM], &(struct ops_weight){0}),
        .x = f->cur.p,
        .ldx = f->cur.ld,
    };
    float *y = f->deep.p;

    for (int32_t s = s0; s < s1; s++) {
        const struct model_store *st = &m->stores[s];
        const struct ops_weight *w = m->layers[st->layer].w;

        add_part(&p, &w[LT_SWIFT_K], &w[LT_SWIFT_K_B], y, f->deep.ld, OPS_ACT_NONE);
        y += round_ld(st->n_k * st->k_dim);
        add_part(&p, &w[LT_SWIFT_V], &w[LT_SWIFT_V_B], y, f->deep.ld, OPS_ACT_NONE);
        y += round_ld(st->n_v * st->v_dim);
    }
    return f->ops->matmul(f->be, &p);
}

static int deep_store(struct forward *f, int32_t s, const float *k)
{
    const struct model *m = f->m;
    const struct model_store *st = &m->stores[s];
    struct ops_rope_store p = {
        .rows = f->rows,
        .k = k,
        .v = k + round_ld(st->n_k * st->k_dim),
        .ldk = f->deep.ld,
        .ldv = f->deep.ld,
        .n_k = st->n_k,
        .n_v = st->n_v,
        .k_dim = st->k_dim,
        .k_norm = head_norm(f, &m->layers[st->layer].w[LT_K_NORM]),
        .rope = *rope_of(f, st->layer),
    };
    struct kv_args args = kv_args_of(f, st->layer);

    args.store_rows = &p;
    return kv_layer(f->b.kv, KV_STORE, &args);
}

int forward_step_deep_kv(struct forward *f, int32_t first_store)
{
    const struct model *m = f->m;
    int32_t end = first_store + DEEP_STORES < m->n_stores ? first_store + DEEP_STORES : m->n_stores;
    const float *k = f->deep.p;
    int r = deep_project(f, first_store, end);

    for (int32_t s = first_store; !r && s < end; s++) {
        const struct model_store *st = &m->stores[s];

        r = deep_store(f, s, k);
        k += round_ld(st->n_k * st->k_dim) + round_ld(st->n_v * st->v_dim);
    }
    return r;
}

int forward_step_one_deep_kv(struct forward *f, int32_t store)
{
    int r = deep_project(f, store, store + 1);

    return r ? r : deep_store(f, store, f->deep.p);
}

/* Only rows that need logits, or that a policy wants observed, go on; and of those that may exit,
 * the ones of which the head is not sure. Not before all that the head is to propose has come as
 * far. */
int forward_step_survivors(struct forward *f, int32_t layer)
{
    struct ops_gather p = {
        .x = f->x.p,
        .y = f->y.p,
        .index = f->index,
        .n_cols = f->m->h.n_embd,
        .ldx = f->cur.ld,
        .ldy = f->y.ld,
    };
    int32_t n = 0;
    int32_t n_decode = 0;
    bool again = false;
    int r = f->again ? 0 : forward_exit_choose(f);

    r = r || !f->b.propose ? r : forward_rounds_next(f, &again);
    if (r || again) {
        return r ? r : FORWARD_ROUND;
    }
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        const struct kv_rows *s = &f->b.seqs[i];
        int32_t lost = s->n_rows - f->ran[i]; /* not proposed */
        int32_t keep = f->exit_row[i] >= 0 ? 0 : s->n_beyond - lost;

        f->first[i] = f->ran[i] - keep;
        f->count[i] = keep;
        f->row0[i] = n;
        for (int32_t j = s->row0 + f->first[i]; j < s->row0 + f->ran[i]; j++) {
            n_decode += j < f->b.rows.n_decode;
            f->index[n++] = f->b.propose ? f->place[j] : j;
        }
    }
    p.n_rows = n;
    r = n ? f->ops->gather(f->be, &p) : 0;
    if (!r) {
        f->rows = (struct ops_rows){.n = n, .n_decode = n_decode};
        f->cur = f->y;
        f->beyond = true;
        f->viewed = true;
    }
    return r;
}

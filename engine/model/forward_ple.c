/* SPDX-License-Identifier: Apache-2.0 */
/* Per-layer embeddings: what a layer adds to its output from its part of the tokens' rows (ple.h).
 *
 *     e = sqrt(width) row + norm(in x0 / sqrt(n_embd))     x0: the tokens' embeddings, scaled
 *     x += norm(proj(act(gate x) * e / sqrt(2)))
 *
 * Each layer's part is made in the layer, so that one layer can be run alone and buffers are a
 * part wide. The division by sqrt(n_embd) only matters beside the norm's eps, and is done there. */

#include <math.h>

#include "engine/model/forward_layer.h"
#include "engine/model/ple.h"

void forward_ple_place(const struct model *m, const struct forward_limits *l,
                       struct memory_arena *a, struct forward *f)
{
    int32_t n = m->h.ple ? l->max_rows : 0;

    place(a, &f->x0, n, m->h.n_embd);
    place(a, &f->ple, n, m->h.ple);
    place(a, &f->ple_gate, n, m->h.ple);
}

void forward_ple_place_host(const struct model *m, const struct forward_limits *l,
                            struct memory_arena *a, struct forward *f)
{
    size_t n = m->h.ple ? (size_t)l->max_rows : 0;

    f->ple_host = memory_arena_take(a, n * (size_t)round_ld(m->h.ple) * sizeof(*f->ple_host));
}

/* The layer's part of the table's rows, to the device. */
static int read_rows(struct forward *f, int32_t layer)
{
    ple_read(&f->m->ple, layer, f->b.ids, f->rows.n, sqrtf((float)f->m->h.ple), f->m->h.ple,
             f->ple_host, f->ple.ld);
    return f->ops->write(f->be, f->ple.p, f->ple_host,
                         (uint64_t)f->rows.n * (uint64_t)f->ple.ld * sizeof(float));
}

int forward_step_ple_in(struct forward *f, int32_t layer)
{
    const struct model *m = f->m;
    const struct ops_weight *w = m->layers[layer].w;
    struct ops_matmul in = {.rows = f->rows, .x = f->x0.p, .ldx = f->x0.ld};
    struct ops_norm_op join = {
        .rows = f->rows,
        .norm = {.w = &m->w[MT_PLE_NORM],
                 .eps = m->h.norm_eps * (float)m->h.n_embd,
                 .kind = OPS_NORM_RMS},
        .x = f->ple_gate.p,
        .y = f->ple.p,
        .ldx = f->ple_gate.ld,
        .ldy = f->ple.ld,
        .n_cols = m->h.ple,
        .add = true,
    };
    bool alone = f->b.part == FORWARD_LAYER;
    int r = layer == 0 || alone ? forward_embed(f, f->x0) : 0;

    add_part(&in, &w[LT_PLE_IN], &(struct ops_weight){0}, f->ple_gate.p, f->ple_gate.ld,
             OPS_ACT_NONE);
    r = r ? r : read_rows(f, layer);
    r = r ? r : f->ops->matmul(f->be, &in);
    return r ? r : f->ops->norm(f->be, &join);
}

int forward_step_ple_out(struct forward *f, int32_t layer)
{
    const struct model *m = f->m;
    const struct ops_weight *w = m->layers[layer].w;
    struct ops_matmul gate = {.rows = f->rows, .x = f->cur.p, .ldx = f->cur.ld};
    struct ops_matmul proj = {.rows = f->rows, .x = f->ple_gate.p, .ldx = f->ple_gate.ld};
    struct ops_mul mul = {
        .rows = f->rows,
        .x = f->ple.p,
        .y = f->ple_gate.p,
        .ldx = f->ple.ld,
        .ldy = f->ple_gate.ld,
        .n_cols = m->h.ple,
        .scale = sqrtf(0.5f),
    };
    struct ops_norm_op add = {
        .rows = f->rows,
        .norm = norm_of(f, &w[LT_PLE_NORM], &(struct ops_weight){0}),
        .x = f->t.p,
        .y = f->cur.p,
        .ldx = f->t.ld,
        .ldy = f->cur.ld,
        .n_cols = m->h.n_embd,
        .add = true,
    };

    add_part(&gate, &w[LT_PLE_GATE], &(struct ops_weight){0}, f->ple_gate.p, f->ple_gate.ld,
             m->arch->act);
    int r = f->ops->matmul(f->be, &gate);

    add_part(&proj, &w[LT_PLE_PROJ], &(struct ops_weight){0}, f->t.p, f->t.ld, OPS_ACT_NONE);
    r = r ? r : f->ops->mul(f->be, &mul);
    r = r ? r : f->ops->matmul(f->be, &proj);
    return r ? r : f->ops->norm(f->be, &add);
}

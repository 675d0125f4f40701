/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions of recurrent layers (the gated delta rule or a state space behind a short
 * convolution, or a convolution between two gates), and of attention whose queries come with gates.
 *
 * A row needs one buffer more than attention has: Q, K and V of all heads as one go to `mix`, their
 * convolution to the FFN's `h`, z to `q`, the inputs of decay and learning to `k`, what comes out
 * to `att`. Of a state space all of a row is in `mix`. The states are the cache's. */

#include "engine/model/forward_layer.h"

struct forward_recur_widths forward_recur_widths(const struct model *m)
{
    const struct recur_sizes *z = &m->h.recur;
    struct forward_recur_widths w = {0};

    if (m->h.q_gated) {
        w.mix = 2 * forward_q_width(m);
    }
    if (m->h.has_recurrent) {
        w.att = z->n_out;
        w.mix = max_i32(w.mix, z->n_in);
    }
    if (m->arch->recurrence == ARCH_RECUR_DELTA) {
        w.q = z->n_out;
        w.k = round_ld(z->n_v) + z->n_v;
    }
    w.h = z->n_v > 0 ? z->n_channels : 0;
    return w;
}

/* The states of a layer, for the sequences of the step. */
static int states_of(struct forward *f, int32_t layer, const struct ops_state **ret, int32_t *ret_n)
{
    struct kv_args args = kv_args_of(f, layer);

    return kv_states(f->b.kv, &args, ret, ret_n);
}

/* Queries to where those without gates are. */
int forward_step_q_split(struct forward *f, int32_t layer)
{
    const struct layer_sizes *z = &f->m->h.layer[layer];
    struct ops_gate p = {
        .rows = f->rows,
        .n_heads = z->n_q,
        .dim = z->k_dim,
        .x = f->mix.p,
        .y = f->q.p,
        .ldx = f->mix.ld,
        .ldy = f->q.ld,
        .x_step = 2 * z->k_dim,
    };

    return f->ops->gate(f->be, &p);
}

int forward_step_att_gate(struct forward *f, int32_t layer)
{
    const struct layer_sizes *z = &f->m->h.layer[layer];
    struct ops_gate p = {
        .rows = f->rows,
        .n_heads = z->n_q,
        .dim = z->v_dim,
        .x = f->att.p,
        .gate = f->mix.p + z->k_dim,
        .y = f->att.p,
        .ldx = f->att.ld,
        .ldg = f->mix.ld,
        .ldy = f->att.ld,
        .x_step = z->v_dim,
        .gate_step = 2 * z->k_dim,
    };

    return f->ops->gate(f->be, &p);
}

/* All that a recurrent layer makes of its input. */
int forward_step_mix(struct forward *f, int32_t layer)
{
    const struct model_layer *l = &f->m->layers[layer];
    struct ops_matmul p = {
        .rows = f->rows,
        .norm = norm_of(f, &l->w[LT_ATTN_NORM], &l->w[LT_ATTN_NORM_B]),
        .x = f->cur.p,
        .ldx = f->cur.ld,
    };
    float *beta = f->k.p + round_ld(f->m->h.recur.n_v);

    add_layer_part(&p, l, LT_MIX, LT_Q_B, f->mix.p, f->mix.ld, OPS_ACT_NONE, 0);
    if (f->m->arch->recurrence != ARCH_RECUR_DELTA) {
        return f->ops->matmul(f->be, &p);
    }
    add_layer_part(&p, l, LT_Z, LT_Q_B, f->q.p, f->q.ld, OPS_ACT_NONE, 0);
    add_layer_part(&p, l, LT_ALPHA, LT_Q_B, f->k.p, f->k.ld, OPS_ACT_NONE, 0);
    add_layer_part(&p, l, LT_BETA, LT_Q_B, beta, f->k.ld, OPS_ACT_NONE, 0);
    return f->ops->matmul(f->be, &p);
}

/* Of Q, K and V, or (behind the gate) of x, B and C. */
int forward_step_conv(struct forward *f, int32_t layer)
{
    const struct recur_sizes *z = &f->m->h.recur;
    bool scan = f->m->arch->recurrence == ARCH_RECUR_SCAN;
    struct ops_conv p = {
        .rows = f->rows,
        .n_channels = z->n_channels,
        .width = z->width,
        .w = &f->m->layers[layer].w[LT_CONV],
        .bias = model_opt(&f->m->layers[layer].w[LT_CONV_B]),
        .x = f->mix.p + (scan ? z->n_out : 0),
        .y = f->h.p,
        .ldx = f->mix.ld,
        .ldy = f->h.ld,
        .act = OPS_ACT_SILU,
    };
    int r = states_of(f, layer, &p.seqs, &p.n_seqs);

    return r ? r : f->ops->conv(f->be, &p);
}

/* The gate before, the one after, then what is convolved between them. */
int forward_step_gated_conv(struct forward *f, int32_t layer)
{
    const struct recur_sizes *z = &f->m->h.recur;
    struct ops_conv p = {
        .rows = f->rows,
        .n_channels = z->n_channels,
        .width = z->width,
        .w = &f->m->layers[layer].w[LT_CONV],
        .x = f->mix.p + 2 * (size_t)z->n_channels,
        .before = f->mix.p,
        .after = f->mix.p + z->n_channels,
        .y = f->att.p,
        .ldx = f->mix.ld,
        .ldy = f->att.ld,
        .act = OPS_ACT_NONE,
    };
    int r = states_of(f, layer, &p.seqs, &p.n_seqs);

    return r ? r : f->ops->conv(f->be, &p);
}

int forward_step_scan(struct forward *f, int32_t layer)
{
    const struct recur_sizes *z = &f->m->h.recur;
    const struct ops_weight *w = f->m->layers[layer].w;
    struct ops_scan p = {
        .rows = f->rows,
        .n_k = z->n_k,
        .n_v = z->n_v,
        .k_dim = z->k_dim,
        .v_dim = z->v_dim,
        .eps = f->m->h.norm_eps,
        .a = &w[LT_SCAN_DECAY],
        .dt = &w[LT_DECAY_B],
        .d = &w[LT_SCAN_SKIP],
        .w = &w[LT_SCAN_NORM],
        .xbc = f->h.p,
        .step = f->mix.p + z->n_out + z->n_channels,
        .z = f->mix.p,
        .y = f->att.p,
        .ldx = f->h.ld,
        .ldz = f->mix.ld,
        .ldy = f->att.ld,
        .at = z->delta_at,
    };
    int r = states_of(f, layer, &p.seqs, &p.n_seqs);

    return r ? r : f->ops->scan(f->be, &p);
}

int forward_step_delta(struct forward *f, int32_t layer)
{
    const struct recur_sizes *z = &f->m->h.recur;
    const struct ops_weight *w = f->m->layers[layer].w;
    struct ops_delta p = {
        .rows = f->rows,
        .n_k = z->n_k,
        .n_v = z->n_v,
        .k_dim = z->k_dim,
        .v_dim = z->v_dim,
        .eps = f->m->h.norm_eps,
        .a = &w[LT_DECAY],
        .dt = &w[LT_DECAY_B],
        .w = &w[LT_MIX_NORM],
        .qkv = f->h.p,
        .alpha = f->k.p,
        .beta = f->k.p + round_ld(z->n_v),
        .z = f->q.p,
        .y = f->att.p,
        .ldx = f->h.ld,
        .ldg = f->k.ld,
        .ldz = f->q.ld,
        .ldy = f->att.ld,
        .at = z->delta_at,
    };
    int r = states_of(f, layer, &p.seqs, &p.n_seqs);

    return r ? r : f->ops->delta(f->be, &p);
}

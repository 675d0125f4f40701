/* SPDX-License-Identifier: Apache-2.0 */
/* Hyperparameters of mixtures of experts: which layers have one, how many experts it has and how
 * many of them a row, how wide these and the shared one are, and how the router weighs them. Keys
 * that a family's other implementations do not read are not read here either. */

#include <errno.h>

#include "engine/model/hparams_impl.h"
#include "kernels/ops_experts.h"

/* Layers from leading_dense_block_count on, of them every interleave_moe_layer_step-th; where a
 * layer is one of three, those that are FFNs. */
static void read_layers(struct reader *r, const struct arch *arch, struct hparams *h)
{
    int32_t lead = 0;
    int32_t step = 1;

    if (arch->experts_lead) {
        lead = hparams_i32(r, "leading_dense_block_count", 0, HPARAMS_MAX_LAYERS, 0);
    }
    if (arch->experts_step) {
        step = hparams_i32(r, "interleave_moe_layer_step", 1, HPARAMS_MAX_LAYERS, 1);
    }
    for (int32_t i = 0; !r->rc && i < h->n_layers; i++) {
        bool ffn = !arch->single || h->layer[i].bare;

        h->layer[i].experts = ffn && i >= lead && (i + 1) % step == 0;
    }
}

static void read_experts_widths(struct reader *r, const struct arch *arch, struct hparams *h)
{
    int32_t n_ff[HPARAMS_MAX_LAYERS] = {0};

    if (!arch->experts_whole) {
        hparams_list(r, "expert_feed_forward_length", 0, 1 << 20, 0, h->n_layers, n_ff);
    }
    for (int32_t i = 0; !r->rc && i < h->n_layers; i++) {
        struct layer_sizes *l = &h->layer[i];

        if (arch->single && !l->bare) {
            continue;
        }
        l->n_ff_expert = n_ff[i] ? n_ff[i] : arch->experts_whole ? l->n_ff : l->n_ff / h->n_used;
        if (l->n_ff_expert == 0) {
            r->rc = error_set(r->reterr, -EBADMSG,
                              "key %s.feed_forward_length is %d, too little for %d experts",
                              r->prefix, l->n_ff, h->n_used);
        }
    }
}

static void read_shared_width(struct reader *r, const struct arch *arch, struct hparams *h)
{
    bool must = (arch->required & LT_BIT(LT_SHARED_UP)) != 0;

    if (!((arch->required | arch->optional) & LT_BIT(LT_SHARED_UP))) {
        return;
    }
    if (arch->shared_counted) {
        int32_t width = h->layer[h->n_layers - 1].n_ff_expert;

        h->n_ff_shared =
            hparams_i32(r, "expert_shared_count", must ? 1 : 0, 1 << 10, must ? REQUIRED : 0);
        if (!r->rc && h->n_ff_shared > (1 << 20) / width) {
            r->rc = error_set(r->reterr, -ENOTSUP, "key %s.expert_shared_count is %d, too large",
                              r->prefix, h->n_ff_shared);
        }
        h->n_ff_shared *= width;
        return;
    }
    h->n_ff_shared = hparams_i32(r, "expert_shared_feed_forward_length", 0, 1 << 20, 0);
    if (h->n_ff_shared == 0 && must) {
        h->n_ff_shared = h->layer[0].n_ff;
    }
}

/* expert_gating_func: 1 is a softmax, 2 a sigmoid of each, as in llama.cpp. */
static void read_router(struct reader *r, const struct arch *arch, struct hparams *h)
{
    char key[96];

    h->router = arch->router;
    h->experts_normed = arch->experts_normed;
    if (arch->router_key) {
        int32_t kind = hparams_i32(r, "expert_gating_func", 0, 1 << 10, 0);

        if (kind == 1 || kind == 2) {
            h->router = kind == 2 ? OPS_ROUTER_SIGMOID : OPS_ROUTER_SOFTMAX;
        } else if (!r->rc && kind != 0) {
            r->rc = error_set(r->reterr, -ENOTSUP,
                              "key %s.expert_gating_func is %d: only 1 (softmax) and 2 (sigmoid) "
                              "are offered",
                              r->prefix, kind);
        }
    }
    if (arch->weights_keys && !r->rc) {
        hparams_key(r, "expert_weights_norm", key, sizeof(key));
        if (gguf_has(r->g, key)) {
            r->rc = gguf_get_bool(r->g, key, &h->experts_normed, r->reterr);
        }
        h->experts_scale = hparams_f32(r, "expert_weights_scale", 0.0f, 1e4f, 0.0f);
    }
}

void hparams_experts(struct reader *r, const struct arch *arch, struct hparams *h)
{
    const bool always = (arch->required & LT_BIT(LT_ROUTER)) != 0;
    int32_t n = hparams_i32(r, "expert_count", always ? 1 : 0, 1 << 20, always ? REQUIRED : 0);

    if (r->rc || n == 0) {
        return;
    }
    if (!arch->experts || n > OPS_EXPERTS_MAX) {
        r->rc = error_set(r->reterr, -ENOTSUP,
                          "key %s.expert_count is %d: at most %d experts are offered for this "
                          "architecture",
                          r->prefix, n, arch->experts ? OPS_EXPERTS_MAX : 0);
        return;
    }
    h->n_expert = n;
    h->n_used = hparams_i32(r, "expert_used_count", 1,
                            n < OPS_EXPERTS_MAX_USED ? n : OPS_EXPERTS_MAX_USED, REQUIRED);
    if (hparams_i32(r, "expert_group_count", 0, 1 << 20, 0) > 1) {
        r->rc =
            error_set(r->reterr, -ENOTSUP,
                      "key %s.expert_group_count: experts in groups are not offered", r->prefix);
    }
    read_layers(r, arch, h);
    read_experts_widths(r, arch, h);
    read_router(r, arch, h);
    if (!r->rc) {
        read_shared_width(r, arch, h);
    }
}

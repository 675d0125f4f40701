/* SPDX-License-Identifier: Apache-2.0 */
/* Every tensor of the model, looked up by name, checked for type and shape, and listed in the
 * order in which a step reads them: a backend that repacks weights lays them out as one stream.
 *
 * `finder` marks what it has used, so that at the end anything left over can be named. */

#include "engine/model/tensors.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/tensors_impl.h"

/* 0 for a side that the file decides. Of the model's own tensors (layer < 0) those of the largest
 * layer, which none of them has. */
int32_t tensors_dim(const struct hparams *h, int32_t layer, enum tensor_dim d)
{
    const struct layer_sizes *l = layer < 0 ? &h->most : &h->layer[layer];

    switch (d) {
    case DIM_1:
        return 1;
    case DIM_EMBD:
        return h->n_embd;
    case DIM_VOCAB:
        return h->n_vocab;
    case DIM_FF:
        return l->n_ff;
    case DIM_EXPERTS:
        return h->n_expert;
    case DIM_EXPERT_FF:
        return l->n_ff_expert;
    case DIM_SHARED_FF:
        return h->n_ff_shared;
    case DIM_AUG_Q:
        return h->aug_q;
    case DIM_Q:
        return l->n_q * l->q_dim;
    case DIM_K:
        return l->n_k * l->k_dim;
    case DIM_V:
        return l->n_v * l->v_dim;
    case DIM_ATT:
        return l->n_q * l->o_dim;
    case DIM_K_HEADS:
        return l->n_k;
    case DIM_HEADS:
        return l->n_q;
    case DIM_HEAD:
        return l->k_dim;
    case DIM_ROT2:
        return l->n_rot / 2;
    case DIM_Q_OUT:
        return l->n_q * l->q_dim * (h->q_gated ? 2 : 1);
    case DIM_PLE:
        return h->ple;
    case DIM_MIX:
        return h->recur.n_in;
    case DIM_CHANNELS:
        return h->recur.n_channels;
    case DIM_MIX_V:
        return h->recur.n_out;
    case DIM_MIX_N:
        return h->recur.n_v;
    case DIM_MIX_HEAD:
        return h->recur.v_dim;
    case DIM_GROUPS:
        return h->recur.n_k;
    case DIM_GROUP:
        return h->recur.n_k ? h->recur.n_out / h->recur.n_k : 0;
    case DIM_WIDTH:
        return h->recur.width;
    case DIM_DEEP_K:
    case DIM_DEEP_V:
    case DIM_EXIT:
        break;
    }
    return 0;
}

/* The heads of a deep K or V of `size` values; 0 where they are no whole, fitting number. */
static int32_t deep_heads(const struct layer_sizes *l, enum tensor_dim d, uint64_t size)
{
    uint64_t dim = (uint64_t)(d == DIM_DEEP_K ? l->k_dim : l->v_dim);

    if (size == 0 || size % dim || size / dim > (uint64_t)l->n_q ||
        (uint64_t)l->n_q % (size / dim)) {
        return 0;
    }
    return (int32_t)(size / dim);
}

static int check_shape(struct finder *f, const char *name, const struct gguf_tensor *t,
                       const struct tensor_row *row, int32_t layer, const struct tensor_part *part)
{
    const struct layer_sizes *l = layer < 0 ? &f->m->h.most : &f->m->h.layer[layer];
    uint64_t cols = (uint64_t)tensors_dim(&f->m->h, layer, row->cols);
    uint64_t rows = (uint64_t)tensors_dim(&f->m->h, layer, row->rows);
    uint64_t n_stack = row->stack ? (uint64_t)f->m->h.n_expert : 1;

    if (part->name && row->role == OPS_ROLE_VECTOR) {
        cols = (uint64_t)part->total;
    } else if (part->name) {
        rows = (uint64_t)part->total;
    }
    if (row->rows == DIM_EXIT) {
        rows = t->dims[1];
        if (rows < 2 || rows > (uint64_t)f->m->h.n_vocab) {
            return error_set(f->reterr, -EBADMSG,
                             "tensor %s has %" PRIu64 " rows: some words' and one for the others', "
                             "2 to %d",
                             name, rows, f->m->h.n_vocab);
        }
    }
    if (row->rows == DIM_DEEP_K || row->rows == DIM_DEEP_V) {
        rows = deep_heads(l, row->rows, t->dims[1]) ? t->dims[1] : 0;
    }
    if (row->cols == DIM_DEEP_K || row->cols == DIM_DEEP_V) {
        cols = deep_heads(l, row->cols, t->dims[0]) ? t->dims[0] : 0;
    }
    if ((row->rows == DIM_AUG_Q || row->cols == DIM_AUG_Q) && f->m->h.aug_q == 0) {
        return error_set(f->reterr, -EBADMSG,
                         "tensor %s is there, key %s.attention.aug_q_length is missing", name,
                         f->m->arch->name);
    }
    if (rows == 0 || cols == 0) {
        return error_set(f->reterr, -EBADMSG,
                         "tensor %s is (%" PRIu64 ", %" PRIu64
                         "), not a whole number of heads that divides %d query heads",
                         name, t->dims[0], t->dims[1], l->n_q);
    }
    if (row->stack && t->dims[2] != n_stack) {
        return error_set(f->reterr, -EBADMSG,
                         "tensor %s has %" PRIu64 " matrices, but %" PRIu64
                         " experts need one each",
                         name, t->dims[2], n_stack);
    }
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != n_stack || t->dims[3] != 1) {
        return error_set(f->reterr, -EBADMSG,
                         "tensor %s is (%" PRIu64 ", %" PRIu64 "%s), but must be (%" PRIu64
                         ", %" PRIu64 ")",
                         name, t->dims[0], t->dims[1], t->n_dims > 2 ? ", ..." : "", cols, rows);
    }
    if (!dtype_info(t->type)) {
        return error_set(f->reterr, -ENOTSUP, "tensor %s: type %u is not offered", name,
                         (unsigned)t->type);
    }
    if (row->role == OPS_ROLE_VECTOR && t->type != DTYPE_F32 && t->type != DTYPE_F16 &&
        t->type != DTYPE_BF16) {
        return error_set(f->reterr, -EBADMSG, "tensor %s is %s, but must be F32, F16 or BF16", name,
                         dtype_info(t->type)->name);
    }
    return 0;
}

static int look_up(struct finder *f, int32_t layer, const char *name, struct model_weight *w,
                   const struct gguf_tensor **ret)
{
    if (layer >= 0) {
        (void)snprintf(w->name, sizeof(w->name), "blk.%d.%s", layer, name);
    } else {
        (void)snprintf(w->name, sizeof(w->name), "%s", name);
    }
    return tensors_lookup(f, w->name, ret);
}

int tensors_find_one(struct finder *f, const struct tensor_row *row, int32_t layer, bool required,
                     struct ops_weight *dst)
{
    struct model *m = f->m;
    const struct gguf_tensor *t = NULL;
    struct model_weight *w = &m->list[m->n_list];
    struct tensor_part part = tensors_part(f, row, layer);
    const char *name = part.name ? part.name : arch_tensor_name(m->arch, row);
    int r;

    r = look_up(f, layer, name, w, &t);
    if (!r && !t && !part.name && name != row->name) { /* some files of the family do not */
        r = look_up(f, layer, row->name, w, &t);
        r = r || t ? r : look_up(f, layer, name, w, &t);
    }
    if (r) {
        return r;
    }
    if (!t) {
        return required ? error_set(f->reterr, -EBADMSG, "tensor %s is missing", w->name) : 0;
    }
    r = check_shape(f, w->name, t, row, layer, &part);
    if (r) {
        return r;
    }
    w->desc = (struct ops_weight_desc){
        .type = t->type,
        .role = row->role,
        .n_rows = (int32_t)t->dims[1],
        .n_cols = (int32_t)t->dims[0],
        .n_stack = row->stack ? (uint16_t)t->dims[2] : 0,
        .data = t->data,
    };
    if (row->role == OPS_ROLE_VECTOR) { /* a skew has rows too */
        w->desc.n_cols *= w->desc.n_rows;
        w->desc.n_rows = 1;
    }
    w->dst = dst;
    w->file_bytes = t->n_bytes;
    if (part.name) {
        r = tensors_take_part(&part, t, w);
        if (r) {
            return error_set(f->reterr, r, "tensor %s cannot be cut", w->name);
        }
    }
    dst->n_cols = w->desc.n_cols;
    dst->n_rows = w->desc.n_rows;
    dst->n_stack = w->desc.n_stack;
    m->n_params +=
        (uint64_t)w->desc.n_cols * (uint64_t)w->desc.n_rows * (uint64_t)ops_stack(w->desc.n_stack);
    m->n_list++;
    return 1;
}

static int find_global(struct finder *f, enum model_tensor t, bool required)
{
    int r = tensors_find_one(f, &arch_model_tensors[t], -1, required, &f->m->w[t]);

    return r < 0 ? r : 0;
}

/* One FFN, or experts with or without a shared one, or both. */
static void ffn_sets(const struct model *m, int32_t il, layer_set *required, layer_set *optional)
{
    const layer_set biases = LT_BIT(LT_GATE_B) | LT_BIT(LT_UP_B) | LT_BIT(LT_DOWN_B);
    const layer_set one = LT_BIT(LT_GATE) | LT_BIT(LT_UP) | LT_BIT(LT_DOWN);
    const layer_set experts = LT_BIT(LT_ROUTER) | LT_BIT(LT_EXPERTS_GATE) | LT_BIT(LT_EXPERTS_UP) |
                              LT_BIT(LT_EXPERTS_DOWN);
    const layer_set expert_biases = LT_BIT(LT_ROUTER_B) | LT_BIT(LT_EXPERTS_GATE_B) |
                                    LT_BIT(LT_EXPERTS_UP_B) | LT_BIT(LT_EXPERTS_DOWN_B);
    const layer_set shared = LT_BIT(LT_SHARED_GATE) | LT_BIT(LT_SHARED_UP) | LT_BIT(LT_SHARED_DOWN);
    const layer_set beside = LT_BIT(LT_ROUTER_NORM) | LT_BIT(LT_EXPERTS_NORM) |
                             LT_BIT(LT_POST_BESIDE_NORM) | LT_BIT(LT_POST_EXPERTS_NORM);
    layer_set gone;

    if (m->h.layer[il].experts) {
        bool both = m->arch->experts_beside;

        gone = (both ? 0 : one | biases | beside) | (m->h.n_ff_shared > 0 ? 0 : shared);
        *required |= experts | (m->h.n_ff_shared > 0 ? shared : 0) | (both ? beside : 0);
        *optional |= m->arch->ffn_scales ? LT_BIT(LT_EXPERTS_FACTOR) : 0;
    } else {
        gone = experts | expert_biases | shared | beside | LT_BIT(LT_SHARED_ROUTER);
        *required |= *required & experts ? one : 0;
    }
    gone |= m->arch->gated ? 0 : LT_BIT(LT_GATE) | LT_BIT(LT_EXPERTS_GATE) | LT_BIT(LT_SHARED_GATE);
    *required &= ~gone;
    *optional &= ~gone;
}

/* Which of a layer's tensors must and may be there, SwiftKV taken into account. */
static void layer_sets(const struct model *m, int32_t il, layer_set *ret_required,
                       layer_set *ret_optional)
{
    static const enum layer_tensor of_input[] = {LT_Q, LT_Q_B, LT_K, LT_K_B, LT_V, LT_V_B};
    const struct model_layer *l = &m->layers[il];
    bool recurrent = m->h.layer[il].recurrent;
    layer_set required = recurrent ? m->arch->recur_required : m->arch->required;
    layer_set optional = recurrent ? m->arch->recur_optional : m->arch->optional;

    if (m->h.layer[il].bare) {
        required = LT_BIT(LT_ATTN_NORM) | LT_BIT(LT_UP) | LT_BIT(LT_DOWN) |
                   (m->arch->gated ? LT_BIT(LT_GATE) : 0) |
                   (m->h.layer[il].experts ? LT_BIT(LT_ROUTER_B) : 0);
        optional = LT_BIT(LT_UP_B) | LT_BIT(LT_DOWN_B);
    }
    if (m->h.aug_q > 0) {
        layer_set aug = LT_BIT(LT_Q_GATE) | LT_BIT(LT_Q_UP) | LT_BIT(LT_Q_DOWN);

        required |= optional & aug;
        optional &= ~aug;
    }
    ffn_sets(m, il, &required, &optional);
    if (m->h.ple > 0) {
        required |= LT_BIT(LT_PLE_GATE) | LT_BIT(LT_PLE_PROJ) | LT_BIT(LT_PLE_NORM);
    }
    if (m->h.layer[il].reads != il && !m->h.layer[il].bare) { /* what an earlier layer has stored */
        layer_set stored = LT_BIT(LT_K) | LT_BIT(LT_V) | LT_BIT(LT_K_NORM);

        required &= ~stored;
        optional &= ~stored;
    }
    for (int i = 0; i < 6 && l->deep; i++) {
        enum layer_tensor t = of_input[i];
        layer_set bit = LT_BIT(t);
        layer_set swift =
            l->owner || t == LT_Q || t == LT_Q_B ? LT_BIT((int)LT_SWIFT_Q + (int)t - (int)LT_Q) : 0;

        optional |= optional & bit ? swift : 0;
        required |= required & bit ? swift : 0;
        optional &= ~bit;
        required &= ~bit;
    }
    if (l->deep && !l->owner) { /* deep keys take the leader's k-norm */
        optional |= required & LT_BIT(LT_K_NORM);
        required &= ~LT_BIT(LT_K_NORM);
    }
    *ret_required = required;
    *ret_optional = optional;
}

/* A deep layer's own output projection, if the overlay brings one: > 0. All layers of a store or
 * none: they were made for the same V. */
static int find_own_output(struct finder *f, int32_t il)
{
    const struct tensor_row *row = &arch_layer_tensors[LT_SWIFT_O];
    struct model_layer *l = &f->m->layers[il];
    struct model_store *st = &f->m->stores[l->store];
    int r = tensors_find_one(f, row, il, false, &l->w[LT_O]);

    if (r >= 0 && l->owner) {
        st->own_output = r > 0;
    }
    if (r < 0 || (r > 0) == st->own_output) {
        return r;
    }
    return error_set(f->reterr, -EBADMSG,
                     "blk.%d.%s is %s, that of layer %d, whose keys and values it shares, is %s",
                     il, row->name, r > 0 ? "there" : "missing", st->layer,
                     r > 0 ? "missing" : "there");
}

static int find_layer(struct finder *f, int32_t il, int first, int last)
{
    struct model_layer *l = &f->m->layers[il];
    layer_set required;
    layer_set optional;

    layer_sets(f->m, il, &required, &optional);
    for (int t = first; t <= last; t++) {
        layer_set bit = LT_BIT(t);

        if (!((required | optional) & bit)) {
            continue;
        }
        int r = 0;
        bool own = false;

        if (t == LT_O && l->deep) {
            r = find_own_output(f, il);
            own = r > 0; /* the base's factor is not of this one */
        }
        if (r == 0) {
            r = tensors_find_one(f, &arch_layer_tensors[t], il, (required & bit) != 0, &l->w[t]);
        }
        if (r > 0 && !own && arch_layer_tensors[t].role == OPS_ROLE_MATMUL) {
            r = tensors_scale(f, il, t);
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

/* What layers of some families have beside the tensors of their row. */
static int find_more(struct finder *f, int32_t il)
{
    struct model_layer *l = &f->m->layers[il];
    int r = f->m->h.ple ? tensors_ple_in(f, il) : 0;

    l->v_is_k = l->owner && !l->deep && !f->m->h.layer[il].recurrent && l->w[LT_V].n_cols == 0;
    if (!r && l->v_is_k && f->m->h.layer[il].k_dim != f->m->h.layer[il].v_dim) {
        r = error_set(f->reterr, -EBADMSG,
                      "tensor blk.%d.attn_v.weight is missing, and V heads of %d dims cannot be K "
                      "heads of %d",
                      il, f->m->h.layer[il].v_dim, f->m->h.layer[il].k_dim);
    }
    return r ? r : tensors_out_scale(f, il);
}

/* The words that rows of the early-exit head stand for. */
static int find_exit_words(struct finder *f)
{
    static const char key[] = "pipit.exit.words";
    struct model *m = f->m;
    size_t n = (size_t)m->w[MT_EXIT_HEAD].n_rows - 1;
    const struct gguf *g = NULL;
    int64_t *ids;
    int r;

    for (int32_t i = 0; i <= f->source->n_overlays; i++) {
        g = gguf_has(tensors_file(f, i), key) ? tensors_file(f, i) : g;
    }
    if (!g) {
        return error_set(f->reterr, -EBADMSG, "key %s is missing, exit_head.weight is there", key);
    }
    ids = calloc(n, sizeof(*ids));
    m->exit_words = calloc(n, sizeof(*m->exit_words));
    r = ids && m->exit_words ? gguf_array_i64(g, key, ids, n, f->reterr) : -ENOMEM;
    for (size_t i = 0; !r && i < n; i++) {
        if (ids[i] < 0 || ids[i] >= m->h.n_vocab || (i > 0 && ids[i] <= ids[i - 1])) {
            r = error_set(f->reterr, -EBADMSG,
                          "key %s: entry %zu is no token id above the one before", key, i);
            break;
        }
        m->exit_words[i] = (int32_t)ids[i];
    }
    free(ids);
    return r == -ENOMEM ? error_set(f->reterr, r, "model: no memory") : r;
}

/* Both tensors of the early-exit head, or none. */
static int find_exit(struct finder *f)
{
    int r = find_global(f, MT_EXIT_HEAD, false);

    if (r || !model_can_exit(f->m)) {
        return r;
    }
    r = find_global(f, MT_EXIT_NORM, true);
    return r ? r : find_exit_words(f);
}

/* The norm of the split and every deep K and V: one batched product in a step. */
static int find_split(struct finder *f)
{
    struct model *m = f->m;
    int r = find_global(f, MT_SWIFT_NORM, true);

    for (int32_t s = 0; !r && s < m->n_stores; s++) {
        struct model_store *st = &m->stores[s];

        if (!st->deep) {
            continue;
        }
        r = find_layer(f, st->layer, LT_SWIFT_K, LT_SWIFT_V_B);
        if (!r) {
            const struct ops_weight *w = m->layers[st->layer].w;

            const struct layer_sizes *l = &m->h.layer[st->layer];

            st->n_k = deep_heads(l, DIM_DEEP_K, (uint64_t)w[LT_SWIFT_K].n_rows);
            st->n_v = deep_heads(l, DIM_DEEP_V, (uint64_t)w[LT_SWIFT_V].n_rows);
            if ((w[LT_SWIFT_K_B].n_cols && w[LT_SWIFT_K_B].n_cols != st->n_k * st->k_dim) ||
                (w[LT_SWIFT_V_B].n_cols && w[LT_SWIFT_V_B].n_cols != st->n_v * st->v_dim)) {
                r = error_set(f->reterr, -EBADMSG,
                              "layer %d: the biases of its deep K and V do not match their weights",
                              st->layer);
            }
        }
        r = !r && m->h.wide ? tensors_wide_rope(f, s) : r;
    }
    return r ? r : find_exit(f);
}

/* A layer's tensor itself, or a factor that files may have beside it (tensors_scale.c). */
static bool is_of(const char *name, enum layer_tensor t)
{
    const char *of = arch_layer_tensors[t].name;
    size_t stem = strcspn(of, ".");

    return strcmp(name, of) == 0 ||
           (strncmp(name, of, stem) == 0 &&
            (strcmp(name + stem, ".scale") == 0 || strcmp(name + stem, ".input_scale") == 0));
}

static bool is_leftover(const struct model *m, const char *name)
{
    int layer = -1;
    int at = 0;

    if (sscanf(name, "blk.%d.%n", &layer, &at) != 1 || at == 0 || layer < 0 ||
        layer >= m->h.n_layers + m->h.n_unused) {
        return false;
    }
    if (layer >= m->h.n_layers) { /* predicts more than one token ahead */
        return true;
    }
    if (m->h.layer[layer].reads != layer) {
        return is_of(name + at, LT_K) || is_of(name + at, LT_V) || is_of(name + at, LT_K_NORM);
    }
    if (layer < m->h.swift_layers) {
        return false;
    }
    for (int t = LT_Q; t <= LT_V_B; t++) {
        if (is_of(name + at, (enum layer_tensor)t)) {
            return true;
        }
    }
    return is_of(name + at, LT_K_NORM) || is_of(name + at, LT_O);
}

/* Of one of the model's own products, and not 1. */
static bool is_factor(const struct gguf_tensor *t, const char *name)
{
    size_t len = strlen(name);
    float scale = 0.0f;

    if (strncmp(name, "blk.", 4) == 0 || len < 6 || strcmp(name + len - 6, ".scale") != 0) {
        return false;
    }
    if (t->type == DTYPE_F32 && t->n_bytes == sizeof(scale)) {
        memcpy(&scale, t->data, sizeof(scale));
    }
    return scale != 1.0f;
}

/* What no one has used: refused in a layer of the base, and anywhere in an overlay. */
static int check_unused(struct finder *f)
{
    for (int32_t i = 0; i <= f->source->n_overlays; i++) {
        const struct gguf *g = tensors_file(f, i);

        for (size_t k = 0; k < gguf_n_tensors(g); k++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, k);
            char name[64];
            size_t len = t->name.len < sizeof(name) - 1 ? t->name.len : sizeof(name) - 1;

            if (f->used[i][k]) {
                continue;
            }
            memcpy(name, t->name.ptr, len);
            name[len] = 0;
            if (i > 0) {
                return error_set(f->reterr, -EBADMSG, "overlay %s: nothing reads tensor %s",
                                 gguf_path(g), name);
            }
            if (strncmp(name, "blk.", 4) == 0 && !is_leftover(f->m, name)) {
                return error_set(f->reterr, -ENOTSUP,
                                 "tensor %s is not part of architecture %s as this build knows it",
                                 name, f->m->arch->name);
            }
            if (is_factor(t, name)) {
                return error_set(f->reterr, -ENOTSUP,
                                 "tensor %s: nothing multiplies by it in architecture %s", name,
                                 f->m->arch->name);
            }
        }
    }
    return 0;
}

static int find_all(struct finder *f)
{
    struct model *m = f->m;
    const struct gguf_tensor *rope = NULL;
    int r = find_global(f, MT_EMBED, true);

    if (!r) {
        r = tensors_lookup(f, arch_model_tensors[MT_ROPE_FREQS].name, &rope);
    }
    if (!r && m->h.ple) {
        r = tensors_ple_table(f);
        r = r ? r : find_global(f, MT_PLE_NORM, true);
    }
    r = !r && m->arch->v_norm ? tensors_ones(f) : r;
    for (int32_t il = 0; !r && il < m->h.n_layers; il++) {
        if (il == m->h.swift_layers) {
            r = find_split(f);
        }
        if (!r && m->layers[il].deep) {
            /* attn_norm, then q of its own, then the rest; K and V were read at the split. */
            r = find_layer(f, il, LT_ATTN_NORM, LT_ATTN_NORM_B);
            if (!r) {
                r = find_layer(f, il, LT_SWIFT_Q, LT_SWIFT_Q_B);
            }
            r = r ? r : tensors_wide_q(f, il);
            r = r ? r : tensors_wide_v(f, il);
            if (!r) {
                r = find_layer(f, il, LT_Q_GATE, LT_POST_FFN_NORM);
            }
        } else if (!r) {
            r = find_layer(f, il, LT_ATTN_NORM, LT_PLE_NORM);
        }
        r = r ? r : find_more(f, il);
    }
    if (!r) {
        r = find_global(f, MT_OUTPUT_NORM, true);
    }
    if (!r) {
        r = find_global(f, MT_OUTPUT_NORM_B, m->arch->norm == OPS_NORM_LAYER);
    }
    if (!r) {
        r = find_global(f, MT_OUTPUT, false);
    }
    if (!r) {
        r = find_global(f, MT_OUTPUT_B, false);
    }
    r = r ? r : tensors_cache(f);
    return r ? r : check_unused(f);
}

const struct model_weight *tensors_listed(const struct model *m, const struct ops_weight *dst)
{
    for (int32_t i = 0; i < m->n_list && dst->n_cols; i++) {
        if (m->list[i].dst == dst) {
            return &m->list[i];
        }
    }
    return NULL;
}

/* V is a part of the matmul of q and k, up of that of the gate. */
static void mark_joined(struct model *m)
{
    for (int32_t i = 0; i < m->n_list; i++) {
        const struct ops_weight *w = m->list[i].dst;
        const struct model_layer *l = m->layers;

        while (l < m->layers + m->h.n_layers && w != &l->w[LT_V] && w != &l->w[LT_UP]) {
            l++;
        }
        if (l < m->layers + m->h.n_layers && w == &l->w[LT_V]) {
            m->list[i].desc.joins = 2;
        } else if (l < m->layers + m->h.n_layers && l->w[LT_GATE].n_cols) {
            m->list[i].desc.joins = 1;
        }
    }
}

int tensors_find(const struct model_source *source, struct model *m, struct error *reterr)
{
    struct finder f = {.source = source, .m = m, .reterr = reterr};
    int r = 0;

    if (source->n_overlays > MODEL_MAX_OVERLAYS) {
        return error_set(reterr, -E2BIG, "%d overlays, at most %d are offered", source->n_overlays,
                         MODEL_MAX_OVERLAYS);
    }
    f.cap = MT_COUNT + m->h.n_layers * LT_COUNT + 1 + (m->h.wide ? model_n_maps(m) : 0);
    m->list = calloc((size_t)f.cap, sizeof(*m->list));
    r = m->list ? tensors_wide_reserve(m) : -ENOMEM;
    for (int32_t i = 0; !r && i <= source->n_overlays; i++) {
        f.used[i] = calloc(gguf_n_tensors(tensors_file(&f, i)) + 1, sizeof(bool));
        r = f.used[i] ? 0 : -ENOMEM;
    }
    r = r ? error_set(reterr, r, "model: no memory for the list of tensors") : find_all(&f);
    for (int32_t i = 0; i <= source->n_overlays; i++) {
        free(f.used[i]);
    }
    if (m->n_list > 0) {
        struct model_weight *list =
            realloc(m->list, (size_t)m->n_list * sizeof(*list)); /* smaller */

        m->list = list ? list : m->list;
    }
    for (int32_t i = 0; i < m->n_list; i++) {
        m->list[i].desc.name = m->list[i].name;
    }
    mark_joined(m);
    return r;
}

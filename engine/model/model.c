/* SPDX-License-Identifier: Apache-2.0 */
/* Opening: the architecture's row, the hyperparameters, which layer owns which store, and every
 * tensor by name, type and shape; all of it before a byte of weights is read.
 *
 * A tensor is looked for in the base, then in the overlays; two files that both have it are
 * refused, so an overlay can only add. Tensors of a layer that nothing reads are refused by name
 * (a file that holds more than this build computes would answer wrongly and in silence), with
 * exceptions: K and V of layers that read an earlier layer's; and of deep layers, the teacher's
 * q, k, v and k norm that published SwiftKV checkpoints still carry, and the output projection in
 * whose place an overlay's own is read. */

#include "engine/model/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/kv/kv.h"
#include "engine/model/balance.h"
#include "engine/model/carry.h"
#include "engine/model/center.h"
#include "engine/model/rope.h"
#include "engine/model/skew.h"
#include "engine/model/tensors.h"

static const char swift_layers_key[] = "pipit.swiftkv.num_key_value_layers";
static const char weights_key[] = "pipit.cache.layer_weights";
static const char swift_sizes_key[] = "pipit.swiftkv.key_value_group_sizes";

static int find_arch(const struct gguf *g, const struct arch **ret, struct error *reterr)
{
    struct gguf_str s;
    char name[64];
    char known[96];
    int r = 0;

    if (gguf_has(g, "pipit.overlay.base_sha256")) {
        return error_set(reterr, -EBADMSG,
                         "this is an overlay, not a model: give --model its base, and it to "
                         "--overlay");
    }
    r = gguf_get_str(g, "general.architecture", &s, reterr);
    if (r < 0) {
        return error_set(reterr, r == -ENOENT ? -EBADMSG : r,
                         "key general.architecture is missing");
    }
    if (s.len >= sizeof(name)) {
        return error_set(reterr, -ENOTSUP, "key general.architecture holds an unknown name");
    }
    memcpy(name, s.ptr, s.len);
    name[s.len] = 0;
    *ret = arch_find(name);
    if (!*ret) {
        arch_names(known, sizeof(known));
        return error_set(reterr, -ENOTSUP,
                         "architecture %s is not offered; this build knows %s (guide/install.md)",
                         name, known);
    }
    return 0;
}

/* An overlay names the base, and the overlays it builds on, by SHA-256. */
static int check_overlay(const struct model_source *s, int32_t i, struct error *reterr)
{
    const struct gguf *g = s->overlays[i];
    const char *key = "pipit.overlay.builds_on";
    enum gguf_type type;
    struct gguf_str sha;
    size_t n = 0;
    int r = gguf_get_str(g, "pipit.overlay.base_sha256", &sha, reterr);

    if (r < 0) {
        return error_set(reterr, -EBADMSG,
                         "%s is no overlay: key pipit.overlay.base_sha256 is missing",
                         gguf_path(g));
    }
    if (!s->base_sha256 || sha.len != 64 || memcmp(sha.ptr, s->base_sha256, 64) != 0) {
        return error_set(
            reterr, -EBADMSG,
            "overlay %s was made for another base file (SHA-256 %.*s..., this one is %.16s...)",
            gguf_path(g), (int)(sha.len < 16 ? sha.len : 16), sha.ptr,
            s->base_sha256 ? s->base_sha256 : "unknown");
    }
    if (!gguf_has(g, key)) {
        return 0;
    }
    r = gguf_get_array(g, key, &type, &n, reterr);
    if (r < 0 || type != GGUF_STRING) {
        return error_set(reterr, -EBADMSG, "overlay %s: key %s is no list of strings", gguf_path(g),
                         key);
    }
    for (size_t k = 0; k < n; k++) {
        bool found = false;

        sha = gguf_array_str(g, key, k);
        for (int32_t j = 0; j < i && !found; j++) {
            found = sha.len == 64 && memcmp(sha.ptr, s->overlay_sha256[j], 64) == 0;
        }
        if (!found) {
            return error_set(reterr, -EBADMSG,
                             "overlay %s builds on another overlay (SHA-256 %.*s) that does not "
                             "come before it",
                             gguf_path(g), (int)(sha.len < 64 ? sha.len : 64), sha.ptr);
        }
    }
    return 0;
}

static const struct gguf *find_swift(const struct model_source *s)
{
    for (int32_t i = s->n_overlays - 1; i >= 0; i--) {
        if (gguf_has(s->overlays[i], swift_layers_key)) {
            return s->overlays[i];
        }
    }
    return gguf_has(s->base, swift_layers_key) ? s->base : NULL;
}

/* Deep layers in groups of sizes of their own; the first of each owns the store. */
static int read_sizes(struct model *m, const struct gguf *swift, struct error *reterr)
{
    int32_t n_deep = m->h.n_layers - m->h.swift_layers;
    int64_t sizes[HPARAMS_MAX_LAYERS];
    int32_t at = m->h.swift_layers;
    enum gguf_type type;
    size_t n = 0;
    int r = gguf_get_array(swift, swift_sizes_key, &type, &n, reterr);

    if (r < 0 || gguf_has(swift, "pipit.swiftkv.key_value_group_size")) {
        return error_set(reterr, -EBADMSG, "key %s must be a list, and the only key of group sizes",
                         swift_sizes_key);
    }
    r = n <= (size_t)n_deep ? gguf_array_i64(swift, swift_sizes_key, sizes, n, reterr) : -EBADMSG;
    for (size_t i = 0; !r && i < n; i++) {
        if (sizes[i] < 1 || sizes[i] > m->h.n_layers - at) {
            r = -EBADMSG;
            break;
        }
        m->layers[at].owner = true;
        at += (int32_t)sizes[i];
    }
    return !r && at == m->h.n_layers
               ? 0
               : error_set(reterr, -EBADMSG,
                           "key %s must list whole numbers from 1 on whose sum is %d, the layers "
                           "beyond the split",
                           swift_sizes_key, n_deep);
}

/* Which layers own a store. */
static int find_owners(struct model *m, const struct gguf *swift, struct error *reterr)
{
    bool sizes = swift && gguf_has(swift, swift_sizes_key);
    const struct hparams *h = &m->h;

    for (int32_t il = 0; il < h->n_layers; il++) {
        bool first = !sizes && (il - h->swift_layers) % h->swift_group == 0;

        m->layers[il].owner = h->layer[il].reads == il && (il < h->swift_layers || first);
    }
    return sizes ? read_sizes(m, swift, reterr) : 0;
}

/* Each owner's store, and who reads it. */
static void lay_stores(struct model *m)
{
    const struct hparams *h = &m->h;

    m->n_stores = 0;
    for (int32_t il = 0; il < h->n_layers; il++) {
        struct model_layer *l = &m->layers[il];

        l->deep = il >= h->swift_layers;
        l->local = h->layer[il].window > 0;
        if (l->owner) {
            m->stores[m->n_stores++] = (struct model_store){
                .layer = il,
                .n_k = h->layer[il].n_k,
                .n_v = h->layer[il].n_v,
                .k_dim = h->layer[il].k_dim,
                .v_dim = h->layer[il].v_dim,
                .window = h->layer[il].window,
                .state_bytes = h->layer[il].recurrent ? h->recur.state_bytes : 0,
                .deep = l->deep,
            };
        }
        l->store = h->layer[il].reads < il ? m->layers[h->layer[il].reads].store : m->n_stores - 1;
    }
}

/* What `pipit-calibrate` measured of each layer, for layers=measured. The last overlay counts. */
static int read_weights(const struct model_source *s, struct model *m, struct error *reterr)
{
    const struct gguf *g = gguf_has(s->base, weights_key) ? s->base : NULL;
    float weights[HPARAMS_MAX_LAYERS];
    float most = 0;
    int r;

    for (int32_t i = 0; i < s->n_overlays; i++) {
        g = gguf_has(s->overlays[i], weights_key) ? s->overlays[i] : g;
    }
    r = g ? gguf_array_f32(g, weights_key, weights, (size_t)m->h.n_layers, reterr) : 0;
    if (r || !g) {
        return r;
    }
    for (int32_t il = 0; il < m->h.n_layers; il++) {
        if (!isfinite(weights[il]) || weights[il] < 0) {
            return error_set(reterr, -EBADMSG, "key %s: %g is no weight of layer %d", weights_key,
                             (double)weights[il], il);
        }
        most = weights[il] > most ? weights[il] : most;
    }
    for (int32_t i = 0; i < m->n_stores && most > 0; i++) {
        m->stores[i].weight =
            (int32_t)((double)weights[m->stores[i].layer] / (double)most * LAYER_WEIGHT_MOST);
    }
    return 0;
}

/* AcrossKV groups of sliding and global layers together have no meaning: one store, two reaches. */
static int check_groups(const struct model *m, struct error *reterr)
{
    for (int32_t il = m->h.swift_layers; il < m->h.n_layers; il++) {
        const struct model_layer *l = &m->layers[il];

        if (l->local != m->layers[m->stores[l->store].layer].local) {
            return error_set(reterr, -ENOTSUP,
                             "layer %d slides and layer %d does not, so they cannot share a store",
                             l->local ? il : m->stores[l->store].layer,
                             l->local ? m->stores[l->store].layer : il);
        }
    }
    return 0;
}

/* Dims that rotate in sliding or in global layers; the other kind's where the model has none. */
static int32_t n_rot_of(const struct hparams *h, bool local)
{
    for (int32_t i = 0; i < h->n_layers; i++) {
        if (!h->layer[i].recurrent && (h->layer[i].window > 0) == local) {
            return h->layer[i].n_rot;
        }
    }
    return h->most.n_rot;
}

int model_set_context(struct model *m, const struct gguf *base, int32_t ctx, struct error *reterr)
{
    const struct hparams *h = &m->h;
    int32_t n_rot = n_rot_of(h, false);
    int32_t n_local = n_rot_of(h, true);
    float table[HPARAMS_MAX_HEAD_DIM / 2];
    const float *factors = NULL;
    int r = tensors_rope_factors(base, h, n_rot, ctx > h->rope_orig_ctx, table, reterr);

    if (r < 0) {
        return r;
    }
    if (h->temperature > 0 && ctx > h->rope_orig_ctx) {
        return error_set(reterr, -ENOTSUP,
                         "key %s.attention.temperature_scale: queries beyond position %d have a "
                         "temperature, which is not offered; a context of %d is",
                         m->arch->name, h->rope_orig_ctx, h->rope_orig_ctx);
    }
    m->long_rope = r == ROPE_FACTORS_LONG;
    factors = r != ROPE_FACTORS_NONE ? table : NULL;
    m->rope.op = (struct ops_rope){
        .form = m->arch->rope,
        .n_dims = n_rot,
        .inv_freq = m->rope.inv_freq,
        .mscale = rope_table(h, n_rot, h->rope_base, true, factors, m->rope.inv_freq),
    };
    factors = m->arch->window_scaled && n_local == n_rot ? factors : NULL;
    m->rope_local.op = (struct ops_rope){
        .form = m->arch->rope,
        .n_dims = n_local,
        .inv_freq = m->rope_local.inv_freq,
        .mscale = rope_table(h, n_local, h->rope_base_window, m->arch->window_scaled, factors,
                             m->rope_local.inv_freq),
    };
    for (int32_t i = 0; i < m->n_stores && h->wide; i++) {
        m->wide_rope[i].mscale = m->rope.op.mscale;
    }
    m->rope_none = (struct ops_rope){.form = OPS_ROPE_NONE, .mscale = 1.0f};
    return 0;
}

int model_open(const struct model_source *source, struct model **ret, struct error *reterr)
{
    struct model *m = calloc(1, sizeof(*m));
    int r;

    if (!m) {
        return error_set(reterr, -ENOMEM, "model: no memory");
    }
    r = find_arch(source->base, &m->arch, reterr);
    for (int32_t i = 0; !r && i < source->n_overlays; i++) {
        r = check_overlay(source, i, reterr);
    }
    if (!r) {
        r = hparams_read(source->base, find_swift(source), m->arch, &m->h, reterr);
    }
    if (r) {
        goto fail;
    }
    m->base = source->base;
    m->stores = calloc((size_t)m->h.n_layers, sizeof(*m->stores));
    m->layers = calloc((size_t)m->h.n_layers, sizeof(*m->layers));
    if (!m->stores || !m->layers) {
        r = error_set(reterr, -ENOMEM, "model: no memory");
        goto fail;
    }
    r = find_owners(m, find_swift(source), reterr);
    if (!r) {
        lay_stores(m);
        r = check_groups(m, reterr);
    }
    r = r ? r : read_weights(source, m, reterr);
    if (!r) {
        r = tensors_find(source, m, reterr);
    }
    if (!r) {
        r = model_set_context(m, source->base, 0, reterr);
    }
    if (r) {
        goto fail;
    }
    *ret = m;
    return 0;
fail:
    model_close(m);
    return r;
}

void model_close(struct model *m)
{
    if (!m) {
        return;
    }
    for (int32_t i = m->n_list - 1; i >= 0 && m->be; i--) {
        if (m->list[i].loaded) {
            m->ops->weight_destroy(m->be, m->list[i].dst);
        }
    }
    free(m->list);
    free(m->exit_words);
    free(m->centers);
    free(m->balances);
    carry_finish(m);
    free(m->ones);
    free(m->wide_maps);
    free(m->wide_rope);
    free(m->wide_freq);
    free(m->layers);
    free(m->stores);
    hparams_finish(&m->h);
    free(m);
}

uint64_t model_table_bytes(const struct model *m)
{
    uint64_t words = model_can_exit(m) ? (uint64_t)m->w[MT_EXIT_HEAD].n_rows - 1 : 0;

    return sizeof(*m) + balance_bytes(m) + carry_bytes(m) + center_bytes(m) +
           tensors_wide_bytes(m) + (uint64_t)m->n_list * sizeof(*m->list) +
           words * sizeof(*m->exit_words) +
           (uint64_t)m->h.n_layers *
               (sizeof(*m->layers) + sizeof(*m->stores) + sizeof(*m->h.layer));
}

/* Experts that stay in the file count in neither sum: they are read as they are needed. */
static bool stays(const struct backend_config *config, const struct model_weight *w)
{
    return config->expert_bytes > 0 && w->desc.n_stack > 1;
}

void model_weight_bytes(const struct model *m, const struct backend_ops *ops,
                        const struct backend_config *config, uint64_t *ret_held,
                        uint64_t *ret_mapped)
{
    uint64_t held = 0;
    uint64_t mapped = 0;

    for (int32_t i = 0; i < m->n_list; i++) {
        uint64_t b = ops->weight_bytes(config, &m->list[i].desc);

        held += b;
        mapped += b || stays(config, &m->list[i]) ? 0 : m->list[i].file_bytes;
    }
    *ret_held = ops->weights_reserve ? memory_rounded(held) : held;
    *ret_mapped = mapped;
}

uint64_t model_expert_bytes(const struct model *m, const struct backend_ops *ops,
                            const struct backend_config *config)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < m->n_list; i++) {
        uint64_t b = m->list[i].desc.n_stack ? ops->weight_bytes(config, &m->list[i].desc) : 0;

        sum += m->list[i].desc.n_stack && b == 0 ? m->list[i].file_bytes : b;
    }
    return sum;
}

/* Of an expert: LT_EXPERTS_GATE, _UP or _DOWN; LT_COUNT where it is something else. */
static int expert_part(const struct model *m, const struct model_weight *w)
{
    size_t at;

    if (w->desc.n_stack <= 1) {
        return LT_COUNT;
    }
    at = (size_t)((const char *)w->dst - (const char *)m->layers) % sizeof(*m->layers);
    return (int)((at - offsetof(struct model_layer, w)) / sizeof(*w->dst));
}

uint64_t model_one_expert_bytes(const struct model *m, const struct backend_ops *ops)
{
    const struct backend_config held = {0};
    uint64_t most[LT_COUNT + 1] = {0};

    for (int32_t i = 0; i < m->n_list; i++) {
        int part = expert_part(m, &m->list[i]);
        struct ops_weight_desc one = m->list[i].desc;
        uint64_t bytes;

        one.n_stack = 0;
        bytes = part < LT_COUNT ? ops->weight_bytes(&held, &one) : 0;
        most[part] = bytes > most[part] ? bytes : most[part];
    }
    return most[LT_EXPERTS_GATE] + most[LT_EXPERTS_UP] + most[LT_EXPERTS_DOWN];
}

uint64_t model_n_experts(const struct model *m)
{
    uint64_t n = 0;

    for (int32_t i = 0; i < m->n_list; i++) {
        n += expert_part(m, &m->list[i]) == LT_EXPERTS_DOWN ? m->list[i].desc.n_stack : 0;
    }
    return n;
}

void model_drop_experts(const struct model *m, int32_t layer)
{
    for (int i = LT_EXPERTS_GATE; i <= LT_EXPERTS_DOWN && m->experts_mapped; i++) {
        const struct ops_weight *w = &m->layers[layer].w[i];
        uint64_t row;

        if (w->n_stack > 1 && dtype_row_bytes(w->type, (uint64_t)w->n_cols, &row)) {
            gguf_drop_range(m->base, w->device,
                            row * ops_stack_rows(w->stack_rows, w->n_rows) * w->n_stack);
        }
    }
}

const char *model_lacks(const struct model *m, const struct backend_ops *ops)
{
    const struct {
        const char *name;
        bool needed;
        bool there;
    } all[] = {
        {"experts", m->h.n_expert > 0, ops->experts},
        {"conv", m->h.has_recurrent, ops->conv},
        {"delta", m->h.has_recurrent && m->arch->recurrence == ARCH_RECUR_DELTA, ops->delta},
        {"scan", m->h.has_recurrent && m->arch->recurrence == ARCH_RECUR_SCAN, ops->scan},
        {"gate", m->h.q_gated, ops->gate},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i].needed && !all[i].there) {
            return all[i].name;
        }
    }
    return NULL;
}

const char *model_lacks_type(const struct model *m, const struct backend_ops *ops,
                             enum dtype *ret_type)
{
    for (int32_t i = 0; i < m->n_list; i++) {
        const struct ops_weight_desc *d = &m->list[i].desc;

        if (ops->lacks_types >> d->type & 1) {
            *ret_type = d->type;
            return d->name;
        }
    }
    return NULL;
}

void model_limits(const struct model *m, struct backend_limits *ret)
{
    const struct hparams *h = &m->h;

    ret->max_heads = h->most.n_q;
    ret->max_head_dim = h->most.k_dim > h->most.v_dim ? h->most.k_dim : h->most.v_dim;
    ret->max_experts = (int16_t)h->n_expert;
    ret->max_experts_used = (int16_t)h->n_used;
    ret->max_cols = 0;
    ret->max_outputs = 0;
    ret->max_quantised = 0;
    for (int32_t i = 0; i < m->n_list; i++) {
        const struct ops_weight_desc *d = &m->list[i].desc;

        uint64_t n = (uint64_t)d->n_rows * (uint64_t)d->n_cols;

        if (d->role == OPS_ROLE_VECTOR) {
            continue;
        }
        if (d->n_cols > ret->max_cols) {
            ret->max_cols = d->n_cols;
        }
        if (m->list[i].dst == &m->w[MT_OUTPUT] || m->list[i].dst == &m->w[MT_EMBED]) {
            continue;
        }
        if (d->n_rows > ret->max_outputs) {
            ret->max_outputs = d->n_rows;
        }
        if (n > ret->max_quantised && dtype_info(d->type)->block_len > 1 && d->n_stack <= 1) {
            ret->max_quantised = n;
        }
    }
}

int model_try(const struct model *m, const struct backend_ops *ops, struct backend *be,
              const struct backend_limits *limits, struct error *reterr)
{
    const struct ops_weight_desc **list;
    int r;

    if (!ops->weights_try) {
        return 0;
    }
    list = calloc((size_t)m->n_list + 1, sizeof(*list));
    if (!list) {
        return error_set(reterr, -ENOMEM, "model: no memory");
    }
    for (int32_t i = 0; i < m->n_list; i++) {
        list[i] = &m->list[i].desc;
    }
    r = ops->weights_try(be, limits, list, m->n_list, reterr);
    free(list);
    return r;
}

int model_load(struct model *m, const struct backend_ops *ops, struct backend *be,
               const struct backend_config *config, bool (*progress)(void *arg, float done),
               void *arg, struct error *reterr)
{
    uint64_t total = 1;
    uint64_t done = 0;
    uint64_t held = 0;

    int r = skew_check(m, reterr);

    r = r ? r : center_fill(m, reterr);
    r = r ? r : balance_fill(m, reterr);
    if (r) {
        return r;
    }
    m->ops = ops;
    m->be = be;
    m->experts_mapped = config->expert_bytes > 0;
    if (m->ple.data) {
        gguf_read_scattered(m->ple.file, m->ple.data, m->ple.bytes);
    }
    for (int32_t i = 0; i < m->n_list; i++) {
        total += m->list[i].file_bytes;
        held += ops->weight_bytes(config, &m->list[i].desc);
    }
    if (ops->weights_reserve) {
        r = ops->weights_reserve(be, held, reterr);

        if (r < 0) {
            return r;
        }
    }
    for (int32_t i = 0; i < m->n_list; i++) {
        struct model_weight *w = &m->list[i];

        r = carry_is(m, w) ? carry_fill(m, w, reterr) : 0;
        r = r ? r : ops->weight_create(be, &w->desc, w->dst, reterr);
        if (r < 0) {
            return r;
        }
        w->loaded = true;
        done += w->file_bytes;
        if (progress && (i % 16 == 15 || i == m->n_list - 1) &&
            !progress(arg, (float)((double)done / (double)total))) {
            return error_set(reterr, -ECANCELED, "loading was stopped");
        }
    }
    return 0;
}

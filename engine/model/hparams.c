/* SPDX-License-Identifier: Apache-2.0 */
/* Hyperparameters from GGUF keys "ARCH.name".
 *
 * Each value has a range, chosen so that products of two of them stay inside int32 and of three
 * inside int64; what a file says beyond that is refused by name. Relations between values (heads
 * divide, rotated dims even and within a head) are checked here too, so that forward.c and the
 * kernels may assume them. The reader is sticky: after the first error the rest does nothing. */

#include "engine/model/hparams.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/hparams_impl.h"

static void key_name(const struct reader *r, const char *name, char *buf, size_t size)
{
    (void)snprintf(buf, size, "%s.%s", r->prefix, name);
}

static int32_t read_i32(struct reader *r, const char *name, int32_t min, int32_t max,
                        int32_t absent)
{
    char key[96];
    uint64_t v = 0;

    if (r->rc) {
        return min;
    }
    key_name(r, name, key, sizeof(key));
    if (!gguf_has(r->g, key)) {
        if (absent == REQUIRED) {
            r->rc = error_set(r->reterr, -EBADMSG, "key %s is missing", key);
            return min;
        }
        return absent;
    }
    r->rc = gguf_get_u64(r->g, key, (uint64_t)min, (uint64_t)max, &v, r->reterr);
    return r->rc ? min : (int32_t)v;
}

static float read_f32(struct reader *r, const char *name, float min, float max, float absent)
{
    char key[96];
    float v = 0;

    if (r->rc) {
        return min;
    }
    key_name(r, name, key, sizeof(key));
    if (!gguf_has(r->g, key)) {
        if (isnan(absent)) {
            r->rc = error_set(r->reterr, -EBADMSG, "key %s is missing", key);
            return min;
        }
        return absent;
    }
    r->rc = gguf_get_f32(r->g, key, &v, r->reterr);
    if (!r->rc && !(v >= min && v <= max)) {
        r->rc = error_set(r->reterr, -EBADMSG, "key %s is %g, but must be from %g to %g", key,
                          (double)v, (double)min, (double)max);
    }
    return r->rc ? min : v;
}

/* Keys whose 0 says that the model has no such thing, as if the key were absent: what is saved from
 * a loaded model holds every key that its writer knows. */
static int32_t read_i32_or_none(struct reader *r, const char *name, int32_t max, int32_t absent)
{
    int32_t v = read_i32(r, name, 0, max, 0);

    return v ? v : absent;
}

static float read_f32_or_none(struct reader *r, const char *name, float min, float max,
                              float absent)
{
    float v = read_f32(r, name, 0.0f, max, 0.0f);

    if (!r->rc && v != 0.0f && v < min) {
        r->rc =
            error_set(r->reterr, -EBADMSG, "key %s.%s is %g, but must be 0 (none) or from %g to %g",
                      r->prefix, name, (double)v, (double)min, (double)max);
    }
    return r->rc || v == 0.0f ? absent : v;
}

static bool type_is(struct gguf_str s, const char *word)
{
    return s.len == strlen(word) && memcmp(s.ptr, word, s.len) == 0;
}

/* A number for each layer: a list, of which n are taken, or one for all; where it is 0 or absent,
 * `absent`. Layers that are left out have entries too. */
static void read_list(struct reader *r, const char *name, int32_t min, int32_t max, int32_t absent,
                      int32_t n, int32_t *ret)
{
    char key[96];
    int64_t v[HPARAMS_MAX_LAYERS];
    enum gguf_type type;
    size_t len = 0;
    size_t unused = r->n_unused;

    key_name(r, name, key, sizeof(key));
    if (r->rc || !gguf_has(r->g, key) ||
        gguf_get_array(r->g, key, &type, &len, &(struct error){0}) < 0) {
        bool none = absent != REQUIRED && min > 0; /* is what 0 says */
        int32_t one =
            none ? read_i32_or_none(r, name, max, absent) : read_i32(r, name, min, max, absent);

        for (int32_t i = 0; i < n; i++) {
            ret[i] = one;
        }
        return;
    }
    unused = len == (size_t)n ? 0 : unused;
    r->rc = gguf_array_i64(r->g, key, v, (size_t)n + unused, r->reterr);
    for (int32_t i = 0; !r->rc && i < n; i++) {
        v[i] = v[i] == 0 && min > 0 && absent != REQUIRED ? absent : v[i];
        if (v[i] < min || v[i] > max) {
            r->rc = error_set(r->reterr, -EBADMSG,
                              "key %s: entry %d is %lld, but must be from %d to %d", key, i,
                              (long long)v[i], min, max);
        }
        ret[i] = (int32_t)v[i];
    }
}

/* For hparams_recur.c. */
float hparams_f32(struct reader *r, const char *name, float min, float max, float absent)
{
    return read_f32(r, name, min, max, absent);
}

void hparams_key(const struct reader *r, const char *name, char *buf, size_t size)
{
    key_name(r, name, buf, size);
}

int32_t hparams_i32(struct reader *r, const char *name, int32_t min, int32_t max, int32_t absent)
{
    return read_i32(r, name, min, max, absent);
}

void hparams_list(struct reader *r, const char *name, int32_t min, int32_t max, int32_t absent,
                  int32_t n, int32_t *ret)
{
    read_list(r, name, min, max, absent, n, ret);
}

static void read_scaling(struct reader *r, struct hparams *h)
{
    char key[96];
    struct gguf_str type = {"linear", 6};

    key_name(r, "rope.scaling.factor", key, sizeof(key));
    h->rope_factor = gguf_has(r->g, key)
                         ? read_f32_or_none(r, "rope.scaling.factor", 0.01f, 1024.0f, 1.0f)
                         : read_f32_or_none(r, "rope.scale_linear", 0.01f, 1024.0f, 1.0f);
    h->rope_orig_ctx = read_i32_or_none(r, "rope.scaling.original_context_length", HPARAMS_MAX_CTX,
                                        h->n_ctx_train);
    h->rope_attn_factor = read_f32_or_none(r, "rope.scaling.attn_factor", 0.01f, 100.0f, 1.0f);
    h->rope_beta_fast = read_f32_or_none(r, "rope.scaling.yarn_beta_fast", 0.01f, 1e4f, 32.0f);
    h->rope_beta_slow = read_f32_or_none(r, "rope.scaling.yarn_beta_slow", 0.01f, 1e4f, 1.0f);
    key_name(r, "rope.scaling.type", key, sizeof(key));
    if (!r->rc && gguf_has(r->g, key)) {
        r->rc = gguf_get_str(r->g, key, &type, r->reterr);
    }
    if (r->rc) {
        return;
    }
    h->rope_log_mul = read_f32(r, "rope.scaling.yarn_log_multiplier", 0.0f, 100.0f, 0.0f);
    if (type_is(type, "none")) {
        h->rope_scaling = ROPE_SCALING_NONE;
        h->rope_factor = 1.0f;
    } else if (type_is(type, "linear")) {
        h->rope_scaling = h->rope_factor == 1.0f ? ROPE_SCALING_NONE : ROPE_SCALING_LINEAR;
    } else if (type_is(type, "yarn")) {
        h->rope_scaling = ROPE_SCALING_YARN;
    } else if (type_is(type, "longrope")) {
        h->rope_scaling = ROPE_SCALING_LONG;
    } else {
        r->rc = error_set(r->reterr, -ENOTSUP,
                          "key %s: only none, linear, yarn and longrope are offered", key);
    }
}

/* Which layers slide, and how far they see: every window_period-th does not, or the file lists
 * them. */
static void read_window(struct reader *r, const struct arch *arch, struct hparams *h)
{
    static const char pattern[] = "attention.sliding_window_pattern";
    int32_t slides[HPARAMS_MAX_LAYERS] = {0};
    char key[96];
    enum gguf_type type;
    size_t n;
    int32_t window;

    h->rope_base_window = arch->window_rope_base > 0 ? arch->window_rope_base : h->rope_base;
    if (arch->window_period == 0 || r->rc ||
        (arch->window_layers && arch->window_layers != h->n_layers)) {
        return;
    }
    h->rope_base_window =
        read_f32_or_none(r, "rope.freq_base_swa", 1.0f, 1e9f, h->rope_base_window);
    window = read_i32_or_none(r, "attention.sliding_window", HPARAMS_MAX_CTX, arch->window);
    key_name(r, pattern, key, sizeof(key));
    if (gguf_has(r->g, key) && gguf_get_array(r->g, key, &type, &n, &(struct error){0}) >= 0) {
        read_list(r, pattern, 0, 1, 0, h->n_layers, slides);
    } else {
        int32_t period = read_i32(r, pattern, 1, HPARAMS_MAX_LAYERS, arch->window_period);

        if (arch->window_period == REQUIRED && !r->rc) {
            r->rc = error_set(r->reterr, -EBADMSG, "key %s must be a list of %d numbers", key,
                              h->n_layers);
        }

        for (int32_t i = 0; i < h->n_layers; i++) {
            slides[i] = (i + 1) % period != 0;
        }
    }
    for (int32_t i = 0; i < h->n_layers && !r->rc; i++) {
        h->layer[i].window = slides[i] && !h->layer[i].recurrent ? window : 0;
        if (slides[i] && window == 0 && arch->window_period == REQUIRED) {
            r->rc = error_set(r->reterr, -EBADMSG,
                              "key %s says that layer %d slides, but %s.attention.sliding_window "
                              "is missing",
                              key, i, r->prefix);
        }
    }
}

/* Numbers of heads, layer by layer. */
static void read_counts(struct reader *r, const struct arch *arch, struct hparams *h)
{
    bool some = arch->recurrence == ARCH_RECUR_CONV || /* layers have none, and say so */
                arch->recurrence == ARCH_RECUR_SCAN;
    int32_t n_q[HPARAMS_MAX_LAYERS] = {0};
    int32_t n_k[HPARAMS_MAX_LAYERS] = {0};
    int32_t n_v = 0;

    if (some) {
        read_list(r, "attention.head_count", 0, HPARAMS_MAX_HEADS, REQUIRED, h->n_layers, n_q);
    } else {
        n_q[0] = read_i32(r, "attention.head_count", 1, HPARAMS_MAX_HEADS, REQUIRED);
    }

    if (arch->diff_kv) {
        read_list(r, "attention.head_count_k", 1, HPARAMS_MAX_HEADS, REQUIRED, h->n_layers, n_k);
        n_v = read_i32(r, "attention.head_count_v", 1, HPARAMS_MAX_HEADS, REQUIRED);
        h->aug_q = read_i32(r, "attention.aug_q_length", 0, 1 << 20, 0);
    } else {
        read_list(r, "attention.head_count_kv", !some, HPARAMS_MAX_HEADS, n_q[0], h->n_layers, n_k);
    }
    for (int32_t i = 0; !r->rc && i < h->n_layers; i++) {
        struct layer_sizes *l = &h->layer[i];

        if (l->recurrent || l->bare) {
            continue;
        }
        l->n_q = n_q[some ? i : 0];
        l->n_k = n_k[i];
        l->n_v = n_v ? n_v : n_k[i];
        if (l->n_q == 0) {
            r->rc = error_set(r->reterr, -EBADMSG,
                              "key %s.attention.head_count: layer %d has %d K heads and no queries",
                              r->prefix, i, l->n_k);
        } else if (l->n_q % l->n_k || l->n_q % l->n_v) {
            r->rc = error_set(r->reterr, -EBADMSG,
                              "%d query heads are no multiple of %d K heads and %d V heads", l->n_q,
                              l->n_k, l->n_v);
        }
    }
}

/* Sizes of heads, of sliding layers those of keys that end in _swa where the file has them. */
static void read_heads(struct reader *r, const struct arch *arch, struct hparams *h)
{
    const int32_t most = HPARAMS_MAX_HEAD_DIM;
    int32_t n_q = hparams_first(h)->n_q;
    int32_t even = h->n_embd % n_q ? 0 : h->n_embd / n_q;
    int32_t k_dim = read_i32_or_none(r, "attention.key_length", most, even);
    int32_t v_dim = read_i32_or_none(r, "attention.value_length", most, k_dim);
    int32_t k_swa = read_i32_or_none(r, "attention.key_length_swa", most, k_dim);
    int32_t v_swa = read_i32_or_none(r, "attention.value_length_swa", most, v_dim);
    int32_t n_rot = 0;
    int32_t n_rot_swa = 0;

    if (!r->rc && k_dim == 0) {
        r->rc = error_set(r->reterr, -EBADMSG,
                          "key %s.attention.key_length is missing, and %d is no multiple of %d "
                          "heads",
                          r->prefix, h->n_embd, n_q);
    }
    if (arch->rope != OPS_ROPE_NONE) {
        n_rot = read_i32_or_none(r, "rope.dimension_count", most, k_dim);
        n_rot_swa =
            read_i32_or_none(r, "rope.dimension_count_swa", most, k_swa < n_rot ? k_swa : n_rot);
    }
    for (int32_t i = 0; !r->rc && i < h->n_layers; i++) {
        struct layer_sizes *l = &h->layer[i];
        bool local = l->window > 0;

        if (l->recurrent || l->bare) {
            continue;
        }
        l->k_dim = local ? k_swa : k_dim;
        l->v_dim = local ? v_swa : v_dim;
        l->n_rot = local ? n_rot_swa : n_rot;
        if (l->n_rot % 2 || l->n_rot > l->k_dim) {
            r->rc = error_set(r->reterr, -EBADMSG,
                              "key %s.rope.dimension_count%s is %d, but must be even and at most "
                              "%d",
                              r->prefix, local ? "_swa" : "", l->n_rot, l->k_dim);
        }
        /* One head of at most 1024 dims: the default of key_length has not been checked yet. */
        if (!r->rc && l->k_dim > HPARAMS_MAX_HEAD_DIM) {
            r->rc = error_set(r->reterr, -EBADMSG, "heads of %d dims, at most %d are offered",
                              l->k_dim, HPARAMS_MAX_HEAD_DIM);
        }
    }
}

/* Which layers rotate queries and keys. */
static void read_rotation(struct reader *r, const struct arch *arch, struct hparams *h)
{
    bool all = true;
    bool slides = false;
    char key[96];

    key_name(r, "rope.scaling.finetuned", key, sizeof(key));
    if (!r->rc && arch->rope_switch && gguf_has(r->g, key)) {
        r->rc = gguf_get_bool(r->g, key, &all, r->reterr);
    }
    for (int32_t i = 0; i < h->n_layers; i++) {
        slides = slides || h->layer[i].window > 0;
    }
    for (int32_t i = 0; i < h->n_layers; i++) {
        bool skipped = arch->no_rope_period && (i + 1) % arch->no_rope_period == 0;
        bool global = arch->rope_local_only && slides && h->layer[i].window == 0;
        bool none = h->layer[i].recurrent || h->layer[i].bare || arch->rope == OPS_ROPE_NONE;

        h->layer[i].rotates = all && !skipped && !global && !none;
    }
}

static void read_widths(struct reader *r, const struct arch *arch, struct hparams *h)
{
    static const char name[] = "feed_forward_length";
    static const char of_experts[] = "expert_feed_forward_length";
    int32_t n_ff[HPARAMS_MAX_LAYERS] = {0};
    char key[96];

    key_name(r, name, key, sizeof(key));
    bool only = !gguf_has(r->g, key) && (arch->required & LT_BIT(LT_ROUTER)); /* no other FFN */

    if (arch->recurrent) {
        return;
    }

    read_list(r, only ? of_experts : name, arch->single ? 0 : 1, 1 << 20, REQUIRED, h->n_layers,
              n_ff);
    for (int32_t i = 0; i < h->n_layers; i++) {
        h->layer[i].n_ff = n_ff[i];
    }
}

/* The last layers may read K and V of the last layer of their kind before them. */
static void read_shared(struct reader *r, const struct arch *arch, struct hparams *h)
{
    static const char name[] = "attention.shared_kv_layers";
    int32_t n = !arch->shared_kv ? 0 : read_i32(r, name, 0, h->n_layers - 1, 0);
    int32_t first = h->n_layers - n;

    h->shared = n > 0;
    for (int32_t i = 0; !r->rc && i < h->n_layers; i++) {
        int32_t from = i < first ? i : first - 1;

        while (from >= 0 && (h->layer[from].window > 0) != (h->layer[i].window > 0)) {
            from--;
        }
        h->layer[i].reads = h->layer[i].bare && i > 0 ? h->layer[i - 1].reads : from;
        if (from < 0) {
            r->rc =
                error_set(r->reterr, -EBADMSG,
                          "key %s.%s is %d, but no layer before layer %d is of its kind (%s)",
                          r->prefix, name, n, first, h->layer[i].window > 0 ? "sliding" : "global");
        }
    }
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* What follows from all layers, and must fit among them. */
static void sum_up(struct reader *r, struct hparams *h)
{
    struct layer_sizes *most = &h->most;

    for (int32_t i = 0; !r->rc && i < h->n_layers; i++) {
        const struct layer_sizes *l = &h->layer[i];
        const struct layer_sizes *first = hparams_first(h);

        most->n_q = larger(most->n_q, l->n_q);
        most->n_k = larger(most->n_k, l->n_k);
        most->n_v = larger(most->n_v, l->n_v);
        most->k_dim = larger(most->k_dim, l->k_dim);
        most->v_dim = larger(most->v_dim, l->v_dim);
        most->n_rot = larger(most->n_rot, l->n_rot);
        most->n_ff = larger(most->n_ff, l->n_ff);
        most->window = larger(most->window, l->window);
        if (l->recurrent || l->bare) {
            continue;
        }
        h->uneven = h->uneven || l->n_q != first->n_q || l->n_k != first->n_k ||
                    l->n_v != first->n_v || l->k_dim != first->k_dim || l->v_dim != first->v_dim;
        if (h->q_gated && l->k_dim != l->v_dim) {
            r->rc = error_set(r->reterr, -EBADMSG,
                              "key %s.attention.value_length is %d, but queries and their gates "
                              "have heads of %d (attention.key_length)",
                              r->prefix, l->v_dim, l->k_dim);
        }
    }
    if (!r->rc && h->swift_layers < h->n_layers &&
        (h->uneven || h->shared || h->ple || h->has_recurrent || h->q_gated)) {
        r->rc = error_set(r->reterr, -ENOTSUP, "SwiftKV is not offered for models whose layers %s",
                          h->has_recurrent || h->q_gated ? "are recurrent or gated"
                          : h->uneven                    ? "have different heads"
                          : h->shared                    ? "share keys and values already"
                                                         : "read embeddings of their own");
    }
}

static void read_swift(struct reader *r, const struct gguf *swift, struct hparams *h)
{
    h->swift_layers = h->n_layers;
    h->swift_group = 1;
    if (!swift || r->rc) {
        return;
    }
    struct reader s = {.g = swift, .prefix = "pipit.swiftkv", .reterr = r->reterr};

    h->swift_layers = read_i32(&s, "num_key_value_layers", 1, h->n_layers, REQUIRED);
    h->swift_group = read_i32(&s, "key_value_group_size", 1, HPARAMS_MAX_LAYERS, 1);

    int32_t longest = read_i32(&s, "context_length", 1, HPARAMS_MAX_CTX, h->n_ctx_train);

    h->n_ctx_train = longest < h->n_ctx_train ? longest : h->n_ctx_train;
    r->rc = s.rc;
}

/* Wide stores. Behind all that reads the model's own heads, logits' scale among it. */
/* Do all layers from the split on rotate by one table, and read all positions? */
static bool deep_alike(const struct hparams *h)
{
    for (int32_t i = h->swift_layers; i < h->n_layers; i++) {
        if (!h->layer[i].rotates || h->layer[i].window > 0) {
            return false;
        }
    }
    return true;
}

static int read_wide(const struct gguf *swift, const struct arch *arch, struct hparams *h,
                     struct error *reterr)
{
    struct reader s = {.g = swift, .prefix = "pipit.swiftkv", .reterr = reterr};
    const layer_set norms = LT_BIT(LT_Q_NORM) | LT_BIT(LT_K_NORM) | LT_BIT(LT_Q_NORM_WIDE);
    int32_t k_dim;
    int32_t v_dim;

    for (int32_t i = 0; i < h->n_layers; i++) {
        h->layer[i].q_dim = h->layer[i].k_dim;
        h->layer[i].o_dim = h->layer[i].v_dim;
    }
    if (!swift || h->swift_layers == h->n_layers) {
        return 0;
    }
    k_dim = read_i32(&s, "key_length", 2, HPARAMS_MAX_HEAD_DIM, 0);
    v_dim = read_i32(&s, "value_length", 2, HPARAMS_MAX_HEAD_DIM, 0);
    if (s.rc || (k_dim == 0 && v_dim == 0)) {
        return s.rc;
    }
    if (k_dim == 0 || v_dim == 0 || k_dim % 2 != 0) {
        return error_set(reterr, -EBADMSG,
                         "keys pipit.swiftkv.key_length and value_length are %d and %d: wide "
                         "stores need both, the first even",
                         k_dim, v_dim);
    }
    if (arch->rope == OPS_ROPE_NONE || !deep_alike(h) || h->rope_scaling == ROPE_SCALING_LONG ||
        h->alibi_max > 0 || ((arch->required | arch->optional) & norms) || h->aug_q > 0 ||
        arch->v_norm) {
        return error_set(reterr, -ENOTSUP,
                         "key pipit.swiftkv.key_length: wide stores are not offered for models "
                         "that slide, norm or augment queries and keys, or do not rotate them by "
                         "one table");
    }
    h->wide = true;
    for (int32_t i = h->swift_layers; i < h->n_layers; i++) {
        struct layer_sizes *l = &h->layer[i];

        l->n_k = 1; /* the files decide how many, as of every deep store */
        l->n_v = 1;
        l->k_dim = k_dim;
        l->v_dim = v_dim;
        l->n_rot = k_dim;
    }
    h->most.k_dim = larger(h->most.k_dim, k_dim);
    h->most.v_dim = larger(h->most.v_dim, v_dim);
    h->most.n_rot = larger(h->most.n_rot, k_dim);
    return 0;
}

/* Some files of a family with RMS norms have the other norms' key. */
static void read_eps(struct reader *r, const struct arch *arch, struct hparams *h)
{
    static const char rms[] = "attention.layer_norm_rms_epsilon";
    static const char other[] = "attention.layer_norm_epsilon";
    char key[96];

    key_name(r, rms, key, sizeof(key));
    bool named = arch->norm == OPS_NORM_RMS && (!arch->single || gguf_has(r->g, key));

    h->norm_eps = read_f32(r, named ? rms : other, 0.0f, 1.0f, NAN);
}

static void read_all(struct reader *r, const struct gguf *swift, const struct arch *arch,
                     struct hparams *h)
{
    h->embed_scale = arch->embed_scaled ? sqrtf((float)h->n_embd) : 1.0f;
    read_eps(r, arch, h);
    h->rope_base = read_f32_or_none(r, "rope.freq_base", 1.0f, 1e9f, 10000.0f);
    h->q_gated = arch->q_gated;
    hparams_recurrent(r, arch, h);
    hparams_recur(r, arch, h);
    if (!arch->recurrent) {
        read_counts(r, arch, h);
    }
    read_scaling(r, h);
    read_window(r, arch, h);
    if (!r->rc && !arch->recurrent) {
        read_heads(r, arch, h);
        hparams_sections(r, arch, h);
    }
    read_rotation(r, arch, h);
    read_widths(r, arch, h);
    read_shared(r, arch, h);
    if (arch->per_layer) {
        h->ple = read_i32_or_none(r, "embedding_length_per_layer_input", 1 << 16, 0);
    }
    if (arch->caps_attn) { /* others' files may say what nobody applies */
        h->attn_softcap = read_f32(r, "attn_logit_softcapping", 0.0f, 1e4f, arch->attn_softcap);
    }
    if (arch->caps_logits) {
        h->final_softcap = read_f32(r, "final_logit_softcapping", 0.0f, 1e4f, arch->final_softcap);
    }
    h->attn_scale = read_f32(r, "attention.scale", 0.0f, 1e4f, 0.0f);
    if (arch->temperature) {
        h->temperature = read_f32(r, "attention.temperature_scale", 0.0f, 100.0f, 0.0f);
    }
    if (arch->multipliers) {
        float divisor = read_f32_or_none(r, "logit_scale", 1e-4f, 1e6f, 1.0f);

        h->logit_scale = 1.0f / divisor;
        h->residual_scale = read_f32(r, "residual_scale", 0.0f, 1e4f, 0.0f);
        h->embed_scale = read_f32_or_none(r, "embedding_scale", 1e-4f, 1e6f, 1.0f);
    }
    hparams_experts(r, arch, h);
    read_swift(r, swift, h);
    sum_up(r, h);
}

int hparams_read(const struct gguf *g, const struct gguf *swift, const struct arch *arch,
                 struct hparams *ret, struct error *reterr)
{
    struct reader r = {.g = g, .prefix = arch->name, .reterr = reterr};
    struct hparams h = {.alibi_max = arch->alibi_max};
    const struct gguf_tensor *embd = gguf_tensor_find(g, "token_embd.weight");

    if (!embd || embd->dims[1] > INT32_MAX / 2) {
        return error_set(reterr, -EBADMSG, "tensor token_embd.weight is missing or too large");
    }
    h.n_layers = read_i32(&r, "block_count", 1, HPARAMS_MAX_LAYERS, REQUIRED);
    h.n_ctx_train = read_i32(&r, "context_length", 1, HPARAMS_MAX_CTX, REQUIRED);
    h.n_embd = read_i32(&r, "embedding_length", 1, 1 << 16, REQUIRED);
    h.n_vocab = (int32_t)embd->dims[1]; /* padded files say less in vocab_size */
    if (!r.rc && arch->predictors) {
        h.n_unused = read_i32(&r, "nextn_predict_layers", 0, h.n_layers - 1, 0);
        h.n_layers -= h.n_unused;
        r.n_unused = (size_t)h.n_unused;
    }
    if (r.rc) {
        return r.rc;
    }
    h.layer = calloc((size_t)h.n_layers, sizeof(*h.layer));
    if (!h.layer) {
        return error_set(reterr, -ENOMEM, "model: no memory");
    }
    read_all(&r, swift, arch, &h);
    if (r.rc) {
        hparams_finish(&h);
        return r.rc;
    }
    if (arch->attn_scale > 0.0f) {
        h.attn_scale = arch->attn_scale;
    }
    if (h.attn_scale == 0.0f && arch->even_split_layers == h.n_layers) {
        h.attn_scale = 1.0f / sqrtf((float)h.n_embd / (float)h.most.n_q);
    }
    for (int32_t i = 0; i < h.n_layers; i++) {
        float k_dim = (float)(h.layer[i].k_dim ? h.layer[i].k_dim : 1);

        h.layer[i].attn_scale = h.attn_scale > 0 ? h.attn_scale : 1.0f / sqrtf(k_dim);
    }
    int rc = read_wide(swift, arch, &h, reterr);

    if (rc) {
        hparams_finish(&h);
        return rc;
    }
    *ret = h;
    return 0;
}

void hparams_finish(struct hparams *h)
{
    free(h->layer);
    h->layer = NULL;
}

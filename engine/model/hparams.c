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
#include <string.h>

struct reader {
    const struct gguf *g;
    const char *prefix;
    struct error *reterr;
    int rc;
};

enum { REQUIRED = -1 };

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
    if (type_is(type, "none")) {
        h->rope_scaling = ROPE_SCALING_NONE;
        h->rope_factor = 1.0f;
    } else if (type_is(type, "linear")) {
        h->rope_scaling = h->rope_factor == 1.0f ? ROPE_SCALING_NONE : ROPE_SCALING_LINEAR;
    } else if (type_is(type, "yarn")) {
        h->rope_scaling = ROPE_SCALING_YARN;
    } else {
        r->rc =
            error_set(r->reterr, -ENOTSUP, "key %s: only none, linear and yarn are offered", key);
    }
}

static void read_heads(struct reader *r, const struct arch *arch, struct hparams *h)
{
    h->n_q = read_i32(r, "attention.head_count", 1, HPARAMS_MAX_HEADS, REQUIRED);
    if (arch->diff_kv) {
        h->n_k = read_i32(r, "attention.head_count_k", 1, HPARAMS_MAX_HEADS, REQUIRED);
        h->n_v = read_i32(r, "attention.head_count_v", 1, HPARAMS_MAX_HEADS, REQUIRED);
        h->aug_q = read_i32(r, "attention.aug_q_length", 0, 1 << 20, 0);
    } else {
        h->n_k = read_i32(r, "attention.head_count_kv", 1, HPARAMS_MAX_HEADS, h->n_q);
        h->n_v = h->n_k;
    }
    if (!r->rc && (h->n_q % h->n_k || h->n_q % h->n_v)) {
        r->rc = error_set(r->reterr, -EBADMSG,
                          "%d query heads are no multiple of %d K heads and %d V heads", h->n_q,
                          h->n_k, h->n_v);
        return;
    }
    if (r->rc) {
        return;
    }
    h->k_dim = read_i32_or_none(r, "attention.key_length", HPARAMS_MAX_HEAD_DIM,
                                h->n_embd % h->n_q ? 0 : h->n_embd / h->n_q);
    h->v_dim = read_i32_or_none(r, "attention.value_length", HPARAMS_MAX_HEAD_DIM, h->k_dim);
    if (!r->rc && h->k_dim == 0) {
        r->rc = error_set(r->reterr, -EBADMSG,
                          "key %s.attention.key_length is missing, and %d is no multiple of %d "
                          "heads",
                          r->prefix, h->n_embd, h->n_q);
    }
    h->n_rot = 0;
    if (arch->rope != OPS_ROPE_NONE) {
        h->n_rot = read_i32_or_none(r, "rope.dimension_count", HPARAMS_MAX_HEAD_DIM, h->k_dim);
    }
    if (!r->rc && (h->n_rot % 2 || h->n_rot > h->k_dim)) {
        r->rc = error_set(r->reterr, -EBADMSG,
                          "key %s.rope.dimension_count is %d, but must be even and at most %d",
                          r->prefix, h->n_rot, h->k_dim);
    }
    /* One head of at most 1024 dims: the default of key_length has not been checked yet. */
    if (!r->rc && h->k_dim > HPARAMS_MAX_HEAD_DIM) {
        r->rc = error_set(r->reterr, -EBADMSG, "heads of %d dims, at most %d are offered", h->k_dim,
                          HPARAMS_MAX_HEAD_DIM);
    }
}

static void read_window(struct reader *r, const struct arch *arch, struct hparams *h)
{
    h->rope_base_window = arch->window_rope_base > 0 ? read_f32(r, "rope.freq_base_swa", 1.0f, 1e9f,
                                                                arch->window_rope_base)
                                                     : h->rope_base;
    if (arch->window_period == 0) {
        return;
    }
    h->window = read_i32(r, "attention.sliding_window", 0, HPARAMS_MAX_CTX, 0);
    h->window_period =
        read_i32(r, "attention.sliding_window_pattern", 1, HPARAMS_MAX_LAYERS, arch->window_period);
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
    r->rc = s.rc;
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
    h.n_ff = read_i32(&r, "feed_forward_length", 1, 1 << 20, REQUIRED);
    h.n_vocab = (int32_t)embd->dims[1]; /* padded files say less in vocab_size */
    read_heads(&r, arch, &h);
    h.norm_eps = read_f32(&r,
                          arch->norm == OPS_NORM_RMS ? "attention.layer_norm_rms_epsilon"
                                                     : "attention.layer_norm_epsilon",
                          0.0f, 1.0f, NAN);
    h.rope_base = read_f32_or_none(&r, "rope.freq_base", 1.0f, 1e9f, 10000.0f);
    read_scaling(&r, &h);
    read_window(&r, arch, &h);
    if (arch->caps_attn) { /* others' files may say what nobody applies */
        h.attn_softcap = read_f32(&r, "attn_logit_softcapping", 0.0f, 1e4f, 0.0f);
    }
    if (arch->caps_logits) {
        h.final_softcap = read_f32(&r, "final_logit_softcapping", 0.0f, 1e4f, 0.0f);
    }
    h.attn_scale = read_f32(&r, "attention.scale", 0.0f, 1e4f, 0.0f);
    if (read_i32(&r, "expert_count", 0, 1 << 20, 0) > 0) {
        r.rc = error_set(reterr, -ENOTSUP, "models with experts are not offered");
    }
    read_swift(&r, swift, &h);
    if (r.rc) {
        return r.rc;
    }
    if (h.attn_scale == 0.0f) {
        /* gemma3's 27B alone scales by the width of an even split of the embedding; its files
         * have no key for it, so the shape has to tell. */
        bool even_split = strcmp(arch->name, "gemma3") == 0 && h.n_layers == 62;
        float width = even_split ? (float)h.n_embd / (float)h.n_q : (float)h.k_dim;

        h.attn_scale = 1.0f / sqrtf(width);
    }
    h.embed_scale = arch->embed_scaled ? sqrtf((float)h.n_embd) : 1.0f;
    *ret = h;
    return 0;
}

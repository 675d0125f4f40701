/* SPDX-License-Identifier: Apache-2.0 */
/* Hyperparameters of models with recurrent layers (qwen35, lfm2, granitehybrid, nemotron_h,
 * mamba2): which layers these are, their heads, the short convolution, and what a state of them
 * takes. */

#include <errno.h>

#include "engine/model/hparams_impl.h"

static bool has(const struct reader *r, const char *name)
{
    char key[96];

    hparams_key(r, name, key, sizeof(key));
    return gguf_has(r->g, key);
}

static bool has_list(const struct reader *r, const char *name)
{
    char key[96];
    enum gguf_type type;
    size_t n;

    hparams_key(r, name, key, sizeof(key));
    return gguf_has(r->g, key) && gguf_get_array(r->g, key, &type, &n, &(struct error){0}) >= 0;
}

/* Those without K and V. */
static void of_conv(struct reader *r, int32_t n, int32_t *ret, const char **ret_key)
{
    *ret_key = "attention.head_count_kv";
    hparams_list(r, *ret_key, 0, HPARAMS_MAX_HEADS, REQUIRED, n, ret);
    for (int32_t i = 0; i < n; i++) {
        ret[i] = ret[i] == 0;
    }
}

/* The file lists them, or says that every n-th is not one; one that says neither may list numbers
 * of K and V heads. *ret_key: by which key. */
static void of_delta(struct reader *r, int32_t n, int32_t *ret, const char **ret_key)
{
    static const char list[] = "attention.recurrent_layers";
    static const char interval[] = "full_attention_interval";

    *ret_key = has(r, list) ? list : interval;
    if (*ret_key == list) {
        hparams_list(r, list, 0, 1, REQUIRED, n, ret);
        return;
    }
    if (!has(r, interval) && has_list(r, "attention.head_count_kv")) {
        of_conv(r, n, ret, ret_key);
        return;
    }
    int32_t period = hparams_i32(r, interval, 1, HPARAMS_MAX_LAYERS, 4);

    for (int32_t i = 0; i < n; i++) {
        ret[i] = (i + 1) % period != 0;
    }
}

/* Where layers are one of three, those without K and V may be FFNs alone. */
static void find_bare(struct reader *r, struct hparams *h, int32_t *is)
{
    static const char name[] = "feed_forward_length";
    int32_t n_ff[HPARAMS_MAX_LAYERS] = {0};

    hparams_list(r, name, 0, 1 << 20, REQUIRED, h->n_layers, n_ff);
    for (int32_t i = 0; i < h->n_layers; i++) {
        h->layer[i].bare = n_ff[i] > 0;
        is[i] = is[i] && !h->layer[i].bare;
    }
    if (!r->rc && h->layer[0].bare) {
        r->rc = error_set(r->reterr, -ENOTSUP,
                          "key %s.%s: models whose first layer is an FFN are not offered",
                          r->prefix, name);
    }
}

void hparams_recurrent(struct reader *r, const struct arch *arch, struct hparams *h)
{
    int32_t is[HPARAMS_MAX_LAYERS] = {0};
    const char *key = "";
    int32_t n = 0;

    if (arch->recurrence == ARCH_RECUR_NONE || r->rc) {
        return;
    }
    if (arch->recurrent) {
        for (int32_t i = 0; i < h->n_layers; i++) {
            is[i] = 1;
        }
    } else if (arch->recurrence == ARCH_RECUR_DELTA) {
        of_delta(r, h->n_layers, is, &key);
    } else {
        of_conv(r, h->n_layers, is, &key);
    }
    if (arch->single && !arch->recurrent) {
        find_bare(r, h, is);
    }
    for (int32_t i = 0; i < h->n_layers; i++) {
        h->layer[i].recurrent = is[i] != 0;
        h->has_recurrent = h->has_recurrent || is[i];
        n += is[i] || h->layer[i].bare;
    }
    if (!r->rc && n == h->n_layers && !arch->recurrent) {
        r->rc = error_set(r->reterr, -ENOTSUP,
                          "key %s.%s: all of %d layers are recurrent; models without attention are "
                          "not offered in this architecture",
                          r->prefix, key, n);
    }
}

/* Sizes that must fit each other, in a file that has them all. */
static int check_delta(const struct reader *r, const struct recur_sizes *z, int32_t inner)
{
    if (z->n_v % z->n_k) {
        return error_set(r->reterr, -EBADMSG,
                         "key %s.ssm.time_step_rank is %d, but must be a multiple of "
                         "%s.ssm.group_count, %d",
                         r->prefix, z->n_v, r->prefix, z->n_k);
    }
    if (z->k_dim % OPS_DELTA_DIMS) {
        return error_set(r->reterr, -ENOTSUP,
                         "key %s.ssm.state_size is %d: only multiples of %d are offered", r->prefix,
                         z->k_dim, OPS_DELTA_DIMS);
    }
    if (inner != z->n_v * z->v_dim) {
        return error_set(r->reterr, -EBADMSG,
                         "key %s.ssm.inner_size is %d, but %d heads (ssm.time_step_rank) of %d "
                         "(ssm.state_size) have %d",
                         r->prefix, inner, z->n_v, z->v_dim, z->n_v * z->v_dim);
    }
    return 0;
}

/* V head h reads K head h modulo their number. Checkpoints have them in groups; a converter that
 * left them so may say it. */
static void check_order(struct reader *r)
{
    char key[96];
    bool in_turn = true;

    hparams_key(r, "ssm.v_head_reordered", key, sizeof(key));
    if (!r->rc && gguf_has(r->g, key)) {
        r->rc = gguf_get_bool(r->g, key, &in_turn, r->reterr);
    }
    if (!r->rc && !in_turn) {
        r->rc = error_set(r->reterr, -ENOTSUP, "key %s: V heads in groups are not offered", key);
    }
}

static void read_delta(struct reader *r, struct recur_sizes *z)
{
    int32_t inner;

    check_order(r);

    z->width = hparams_i32(r, "ssm.conv_kernel", 2, OPS_CONV_MAX_WIDTH, REQUIRED);
    z->n_k = hparams_i32(r, "ssm.group_count", 1, HPARAMS_MAX_HEADS, REQUIRED);
    z->n_v = hparams_i32(r, "ssm.time_step_rank", 1, HPARAMS_MAX_HEADS, REQUIRED);
    z->k_dim = hparams_i32(r, "ssm.state_size", OPS_DELTA_DIMS, OPS_DELTA_MAX_DIM, REQUIRED);
    z->v_dim = z->k_dim;
    inner = hparams_i32(r, "ssm.inner_size", 1, INT32_MAX / 4, REQUIRED);
    r->rc = r->rc ? r->rc : check_delta(r, z, inner);
    z->n_out = z->n_v * z->v_dim;
    z->n_channels = 2 * z->n_k * z->k_dim + z->n_out;
    z->n_in = z->n_channels;
}

static void read_scan(struct reader *r, struct recur_sizes *z)
{
    int32_t inner;

    z->width = hparams_i32(r, "ssm.conv_kernel", 2, OPS_CONV_MAX_WIDTH, REQUIRED);
    z->n_k = hparams_i32(r, "ssm.group_count", 1, HPARAMS_MAX_HEADS, REQUIRED);
    z->n_v = hparams_i32(r, "ssm.time_step_rank", 1, HPARAMS_MAX_HEADS, REQUIRED);
    z->k_dim = hparams_i32(r, "ssm.state_size", 1, OPS_DELTA_MAX_DIM, REQUIRED);
    inner = hparams_i32(r, "ssm.inner_size", 1, INT32_MAX / 4, REQUIRED);
    if (r->rc) {
        return;
    }
    z->v_dim = inner / z->n_v;
    if (inner % z->n_v || z->n_v % z->n_k) {
        r->rc = error_set(r->reterr, -EBADMSG,
                          "key %s.ssm.time_step_rank is %d, but must be a multiple of "
                          "%s.ssm.group_count, %d, and divide %s.ssm.inner_size, %d",
                          r->prefix, z->n_v, r->prefix, z->n_k, r->prefix, inner);
    } else if (z->v_dim % OPS_DELTA_DIMS || z->v_dim > OPS_DELTA_MAX_DIM) {
        r->rc =
            error_set(r->reterr, -ENOTSUP,
                      "key %s.ssm.inner_size is %d: heads of %d values; only multiples of %d up "
                      "to %d are offered",
                      r->prefix, inner, z->v_dim, OPS_DELTA_DIMS, OPS_DELTA_MAX_DIM);
    }
    z->n_out = inner;
    z->n_channels = inner + 2 * z->n_k * z->k_dim;
    z->n_in = inner + z->n_channels + z->n_v; /* a gate, what is convolved, steps */
}

void hparams_recur(struct reader *r, const struct arch *arch, struct hparams *h)
{
    struct recur_sizes *z = &h->recur;

    if (!h->has_recurrent || r->rc) {
        return;
    }
    if (arch->recurrence == ARCH_RECUR_CONV) {
        z->width = hparams_i32(r, "shortconv.l_cache", 2, OPS_CONV_MAX_WIDTH, REQUIRED);
        z->n_out = h->n_embd;
        z->n_channels = h->n_embd;
        z->n_in = 3 * h->n_embd; /* a gate before, one after, what is convolved */
    } else if (arch->recurrence == ARCH_RECUR_SCAN) {
        read_scan(r, z);
    } else {
        read_delta(r, z);
    }
    uint64_t rows = (uint64_t)(z->width - 1) * (uint64_t)z->n_channels * sizeof(float);
    uint64_t heads = (uint64_t)z->n_v * (uint64_t)z->k_dim * (uint64_t)z->v_dim * sizeof(float);

    z->delta_at = (rows + 63) & ~UINT64_C(63);
    z->state_bytes = heads ? z->delta_at + heads : rows;
}

/* Parts of the rotated dims may follow positions of their own, an image's rows and columns. The
 * tokens of a text have the same position in each, so there is nothing to do; but dims that are of
 * no such part would stand still. */
void hparams_sections(struct reader *r, const struct arch *arch, const struct hparams *h)
{
    static const char name[] = "rope.dimension_sections";
    int64_t v[4] = {0};
    int32_t pairs = hparams_first(h)->n_rot / 2;
    enum gguf_type type;
    size_t n = 0;
    char key[96];

    hparams_key(r, name, key, sizeof(key));
    if (!arch->sections || r->rc || !gguf_has(r->g, key)) {
        return;
    }
    if (gguf_get_array(r->g, key, &type, &n, &(struct error){0}) < 0 || n < 3 || n > 4) {
        r->rc = error_set(r->reterr, -EBADMSG, "key %s must be a list of 3 or 4 numbers", key);
        return;
    }
    r->rc = gguf_array_i64(r->g, key, v, n, r->reterr);
    for (size_t i = 0; !r->rc && i < n; i++) {
        if (v[i] < 0 || v[i] > HPARAMS_MAX_HEAD_DIM) {
            r->rc = error_set(r->reterr, -EBADMSG, "key %s: entry %zu is %lld, no number of dims",
                              key, i, (long long)v[i]);
        }
    }
    int64_t all = v[0] + v[1] + v[2] + v[3];

    for (int32_t i = 0; !r->rc && i < pairs; i++) { /* they take turns */
        int64_t at = all > 0 ? i % all : i;

        if (at >= 3 * v[at % 3]) {
            r->rc = error_set(r->reterr, -ENOTSUP,
                              "key %s: pair %d of %d rotated ones is of none of the first three "
                              "sections, which is not offered",
                              key, i, pairs);
        }
    }
}

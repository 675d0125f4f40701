/* SPDX-License-Identifier: Apache-2.0 */
/* A table of tensors is gathered, bent, declared and written; values are uniform, from a generator
 * keyed by the tensor's name, so that the same name has the same values in every file. */

#include "tests/unit/tiny_model.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "gguf/gguf.h"

enum { MAX_TENSORS = 400, MAX_VALUES = TINY_VOCAB * (TINY_EMBD + 1) };

struct tensor {
    char name[64];
    char seed[64]; /* values are those of this name */
    uint64_t dims[2];
    bool norm;
    bool freq; /* values from 0 to 1 */
    bool zero;
};

struct file {
    const struct tiny_bend *bend;
    struct gguf_writer *w;
    int n;
    struct tensor t[MAX_TENSORS];
};

static void add(struct file *f, const char *name, const char *seed, uint64_t cols, uint64_t rows)
{
    const struct tiny_bend *b = f->bend;

    if (b && b->drop && strcmp(b->drop, name) == 0) {
        return;
    }
    cr_assert_lt(f->n, MAX_TENSORS);
    struct tensor *t = &f->t[f->n++];

    (void)snprintf(t->name, sizeof(t->name), "%s", name);
    (void)snprintf(t->seed, sizeof(t->seed), "%s", seed);
    t->dims[0] = cols + (b && b->misshape && strcmp(b->misshape, name) == 0);
    t->dims[1] = rows;
    t->norm = rows == 1;
    t->freq = false;
    t->zero = false;
}

static void add_layer(struct file *f, int32_t layer, const char *name, uint64_t cols, uint64_t rows)
{
    char full[64];

    (void)snprintf(full, sizeof(full), "blk.%d.%s", layer, name);
    int n = f->n;

    add(f, full, full, cols, rows);
    if (f->n > n && f->bend && f->bend->idle_from && layer >= f->bend->idle_from) {
        f->t[n].zero =
            strcmp(name, "attn_output.weight") == 0 || strcmp(name, "ffn_down.weight") == 0;
    }
}

/* `swift`: by an overlay's name; `own`: with the values that go with that name. */
static void add_output(struct file *f, int32_t layer, bool swift, bool own)
{
    static const char *const names[] = {"attn_output.weight", "attn_output_swiftkv.weight"};
    int n = f->n;

    add_layer(f, layer, names[swift], TINY_HEADS * TINY_DIM, TINY_EMBD);
    if (f->n > n) {
        (void)snprintf(f->t[n].seed, sizeof(f->t[n].seed), "blk.%d.%s", layer, names[own]);
    }
}

static void put_u32(struct file *f, const char *key, uint32_t value)
{
    const struct tiny_bend *b = f->bend;

    if (b && b->drop_key && strcmp(b->drop_key, key) == 0) {
        return;
    }
    if (b && b->key && strcmp(b->key, key) == 0) {
        value = b->value;
    }
    cr_assert_eq(gguf_writer_u32(f->w, key, value), 0);
}

static float value_of(const struct tensor *t, uint32_t i, const struct tiny_bend *bend)
{
    uint64_t seed = 1469598103934665603u;
    uint32_t out[4];

    for (const char *s = t->seed; *s; s++) {
        seed = (seed ^ (uint8_t)*s) * 1099511628211u;
    }
    rng_philox(rng_key_make(seed), (uint32_t[4]){i, 0, 0, 0}, out);
    float u = rng_uniform(out[0]) * 2 - 1;

    if (t->freq) {
        return i == 1 && bend && bend->bad_freq != 0 ? bend->bad_freq : u * u;
    }
    return t->norm ? 1 + u * 0.2f : u;
}

static void write_tensors(struct file *f)
{
    static float values[MAX_VALUES];

    if (f->bend && f->bend->extra) {
        add(f, f->bend->extra, f->bend->extra, 4, 4);
    }
    for (int i = 0; i < f->n; i++) {
        cr_assert_eq(
            gguf_writer_tensor(f->w, f->t[i].name, DTYPE_F32, f->t[i].norm ? 1 : 2, f->t[i].dims),
            0);
    }
    for (int i = 0; i < f->n; i++) {
        size_t n = (size_t)(f->t[i].dims[0] * f->t[i].dims[1]);

        cr_assert_leq(n, MAX_VALUES);
        for (size_t k = 0; k < n; k++) {
            values[k] = f->t[i].zero ? 0 : value_of(&f->t[i], (uint32_t)k, f->bend);
        }
        cr_assert_eq(gguf_writer_data(f->w, values, n * sizeof(float)), 0);
    }
    struct error e = {0};

    cr_assert_eq(gguf_writer_finish(f->w, &e), 0, "%s", e.text);
}

static void begin(struct file *f, const char *path, const struct tiny_bend *bend)
{
    struct error e = {0};

    f->bend = bend;
    f->n = 0;
    cr_assert_eq(gguf_writer_create(path, &f->w, &e), 0, "%s", e.text);
}

void tiny_model(const char *path, int32_t n_layers, const struct tiny_bend *bend)
{
    static struct file f;

    begin(&f, path, bend);
    const char *arch = bend && bend->arch ? bend->arch : "llama";

    cr_assert_eq(gguf_writer_str(f.w, "general.architecture", arch, strlen(arch)), 0);
    put_u32(&f, "llama.block_count", (uint32_t)n_layers);
    put_u32(&f, "llama.context_length", 256);
    put_u32(&f, "llama.embedding_length", TINY_EMBD);
    put_u32(&f, "llama.feed_forward_length", TINY_FF);
    put_u32(&f, "llama.attention.head_count", TINY_HEADS);
    put_u32(&f, "llama.attention.head_count_kv", TINY_KV_HEADS);
    cr_assert_eq(gguf_writer_f32(f.w, "llama.attention.layer_norm_rms_epsilon", 1e-5f), 0);
    add(&f, "token_embd.weight", "token_embd.weight", TINY_EMBD, TINY_VOCAB);
    add(&f, "output_norm.weight", "output_norm.weight", TINY_EMBD, 1);
    for (int32_t il = 0; il < n_layers; il++) {
        add_layer(&f, il, "attn_norm.weight", TINY_EMBD, 1);
        add_layer(&f, il, "attn_q.weight", TINY_EMBD, TINY_HEADS * TINY_DIM);
        add_layer(&f, il, "attn_k.weight", TINY_EMBD, TINY_KV_HEADS * TINY_DIM);
        add_layer(&f, il, "attn_v.weight", TINY_EMBD, TINY_KV_HEADS * TINY_DIM);
        add_output(&f, il, false, bend && bend->own_from && il >= bend->own_from);
        add_layer(&f, il, "ffn_norm.weight", TINY_EMBD, 1);
        add_layer(&f, il, "ffn_gate.weight", TINY_EMBD, TINY_FF);
        add_layer(&f, il, "ffn_up.weight", TINY_EMBD, TINY_FF);
        add_layer(&f, il, "ffn_down.weight", TINY_FF, TINY_EMBD);
    }
    write_tensors(&f);
}

static void add_exit(struct file *f)
{
    uint32_t ids[TINY_VOCAB];
    int32_t n = f->bend->exit_words;

    for (int32_t i = 0; i < n; i++) {
        ids[i] = (uint32_t)i;
    }
    ids[1] = f->bend->words == TINY_WORDS_TWICE ? 0 : ids[1];
    ids[n - 1] = f->bend->words == TINY_WORDS_BEYOND ? TINY_VOCAB : ids[n - 1];
    if (f->bend->words != TINY_WORDS_ABSENT) {
        n -= f->bend->words == TINY_WORDS_FEW;
        cr_assert_eq(gguf_writer_array(f->w, "pipit.exit.words", GGUF_U32, ids, (size_t)n), 0);
    }
    add(f, "exit_norm.weight", "output_norm.weight", TINY_EMBD, 1);
    add(f, "exit_head.weight", "token_embd.weight", TINY_EMBD, (uint64_t)f->bend->exit_words + 1);
}

static void put_sizes(struct file *f)
{
    size_t n = 0;

    while (f->bend->sizes[n]) {
        n++;
    }
    cr_assert_eq(
        gguf_writer_array(f->w, "pipit.swiftkv.key_value_group_sizes", GGUF_U32, f->bend->sizes, n),
        0);
}

/* Is the i-th deep layer the first of its group? */
static bool leads(const uint32_t *sizes, int32_t group, int64_t i)
{
    if (!sizes) {
        return group <= 0 || i % group == 0;
    }
    for (; *sizes && i > 0; sizes++) {
        i -= *sizes;
    }
    return i == 0;
}

/* What a deep layer that reads a wide store has beside its queries; a leader's K and V. */
static void add_wide(struct file *f, int32_t il, bool leader)
{
    add_layer(f, il, "attn_q_map_swiftkv.weight", TINY_DIM, TINY_HEADS * TINY_WIDE_K);
    add_layer(f, il, "attn_v_map_swiftkv.weight", TINY_WIDE_V, TINY_HEADS * TINY_DIM);
    if (leader) {
        int n = f->n;

        add_layer(f, il, "attn_freqs_swiftkv.weight", TINY_WIDE_K / 2, 1);
        if (f->n > n) {
            f->t[n].freq = true;
        }
        add_layer(f, il, "attn_k_swiftkv.weight", TINY_EMBD, TINY_WIDE_K);
        add_layer(f, il, "attn_v_swiftkv.weight", TINY_EMBD, TINY_WIDE_V);
    }
}

void tiny_overlay(const char *path, const char *base, int32_t n_layers, int32_t split,
                  int32_t group, bool same, const char *base_sha256, const struct tiny_bend *bend)
{
    static struct file f;
    char sha[65];
    struct error e = {0};

    begin(&f, path, bend);
    cr_assert_eq(gguf_sha256(base, NULL, sha, &e), 0, "%s", e.text);
    base_sha256 = base_sha256 ? base_sha256 : sha;
    cr_assert_eq(
        gguf_writer_str(f.w, "pipit.overlay.base_sha256", base_sha256, strlen(base_sha256)), 0);
    put_u32(&f, "pipit.swiftkv.num_key_value_layers", (uint32_t)split);
    if (bend && bend->sizes) {
        put_sizes(&f);
    }
    if (group >= 0) {
        put_u32(&f, "pipit.swiftkv.key_value_group_size", (uint32_t)group);
    }
    if (bend && bend->longest > 0) {
        put_u32(&f, "pipit.swiftkv.context_length", bend->longest);
    }
    if (bend && bend->wide) {
        put_u32(&f, "pipit.swiftkv.key_length", TINY_WIDE_K);
        put_u32(&f, "pipit.swiftkv.value_length", TINY_WIDE_V);
    }
    add(&f, "norm_swiftkv.weight", "norm_swiftkv.weight", TINY_EMBD, 1);
    if (bend && bend->exit_words > 0) {
        add_exit(&f);
    }
    for (int32_t il = split; il < n_layers; il++) {
        char name[64];

        add_layer(&f, il, "attn_q_swiftkv.weight", TINY_EMBD, TINY_HEADS * TINY_DIM);
        if (bend && bend->outputs != TINY_OUTPUTS_NONE) {
            add_output(&f, il, true, bend->outputs == TINY_OUTPUTS_OWN);
        }
        bool leader = leads(bend ? bend->sizes : NULL, group, il - split);

        if (bend && bend->wide) {
            add_wide(&f, il, leader);
        }
        if (!leader || (bend && bend->wide)) {
            continue;
        }
        for (int v = 0; v < 2; v++) {
            (void)snprintf(name, sizeof(name), "blk.%d.attn_%c_swiftkv.weight", il, v ? 'v' : 'k');
            add(&f, name, same ? (v ? "v" : "k") : name, TINY_EMBD, TINY_KV_HEADS * TINY_DIM);
        }
    }
    write_tensors(&f);
}

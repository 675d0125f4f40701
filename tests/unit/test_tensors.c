/* SPDX-License-Identifier: Apache-2.0 */
/* Model files whose tensors contradict their keys are refused by name, and nothing beyond a
 * tensor's end is read. Files are small ones of one layer, described as a table. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "gguf/gguf.h"

enum { EMBD = 16, HEADS = 4, KV = 2, DIM = 4, VOCAB = 50, LAYERS = 2 };

struct tensor {
    const char *name;
    uint64_t cols;
    uint64_t rows; /* 0: a vector */
};

struct file {
    const char *arch;
    uint32_t n_ff;
    const struct tensor *layer; /* of each, ended by NULL */
    struct tensor more;         /* name NULL: none */
    float more_value;
};

static const struct tensor phi3[] = {
    {"attn_norm.weight", EMBD, 0},
    {"attn_qkv.weight", EMBD, (HEADS + 2 * KV) * DIM},
    {"attn_output.weight", EMBD, EMBD},
    {"ffn_norm.weight", EMBD, 0},
    {"ffn_up.weight", EMBD, 2},
    {"ffn_down.weight", 1, EMBD},
    {0},
};
static const struct tensor phi3_short[] = {
    {"attn_norm.weight", EMBD, 0},
    {"attn_qkv.weight", EMBD, (HEADS + 2 * KV) * DIM},
    {"attn_output.weight", EMBD, EMBD},
    {"ffn_norm.weight", EMBD, 0},
    {"ffn_up.weight", 2, 1}, /* as many values as a bias of both parts, no rows of EMBD */
    {"ffn_down.weight", 1, EMBD},
    {0},
};
static const struct tensor llama[] = {
    {"attn_norm.weight", EMBD, 0},      {"attn_q.weight", EMBD, HEADS *DIM},
    {"attn_k.weight", EMBD, KV *DIM},   {"attn_v.weight", EMBD, KV *DIM},
    {"attn_output.weight", EMBD, EMBD}, {"ffn_norm.weight", EMBD, 0},
    {"ffn_gate.weight", EMBD, 24},      {"ffn_up.weight", EMBD, 24},
    {"ffn_down.weight", 24, EMBD},      {0},
};

static void put_u32(struct gguf_writer *w, const char *arch, const char *key, uint32_t value)
{
    char name[96];

    (void)snprintf(name, sizeof(name), "%s.%s", arch, key);
    cr_assert_eq(gguf_writer_u32(w, name, value), 0);
}

static void declare(struct gguf_writer *w, const char *name, const struct tensor *t)
{
    uint64_t dims[2] = {t->cols, t->rows};

    cr_assert_eq(gguf_writer_tensor(w, name, DTYPE_F32, t->rows ? 2 : 1, dims), 0);
}

static void fill(struct gguf_writer *w, const struct tensor *t, float value)
{
    static float x[EMBD * VOCAB];
    size_t n = (size_t)(t->cols * (t->rows ? t->rows : 1));

    cr_assert_leq(n, sizeof(x) / sizeof(x[0]));
    for (size_t i = 0; i < n; i++) {
        x[i] = value;
    }
    cr_assert_eq(gguf_writer_data(w, x, n * sizeof(*x)), 0);
}

static void write_file(const char *path, const struct file *f)
{
    static const struct tensor embed = {"token_embd.weight", EMBD, VOCAB};
    static const struct tensor norm = {"output_norm.weight", EMBD, 0};
    struct gguf_writer *w = NULL;
    struct error e = {0};
    char name[96];

    cr_assert_eq(gguf_writer_create(path, &w, &e), 0, "%s", e.text);
    cr_assert_eq(gguf_writer_str(w, "general.architecture", f->arch, strlen(f->arch)), 0);
    put_u32(w, f->arch, "block_count", LAYERS);
    put_u32(w, f->arch, "context_length", 256);
    put_u32(w, f->arch, "embedding_length", EMBD);
    put_u32(w, f->arch, "feed_forward_length", f->n_ff);
    put_u32(w, f->arch, "attention.head_count", HEADS);
    put_u32(w, f->arch, "attention.head_count_kv", KV);
    put_u32(w, f->arch, "attention.head_count_k", KV); /* of sigma */
    put_u32(w, f->arch, "attention.head_count_v", KV);
    (void)snprintf(name, sizeof(name), "%s.attention.layer_norm_rms_epsilon", f->arch);
    cr_assert_eq(gguf_writer_f32(w, name, 1e-5f), 0);
    declare(w, embed.name, &embed);
    declare(w, norm.name, &norm);
    for (int il = 0; il < LAYERS; il++) {
        for (const struct tensor *t = f->layer; t->name; t++) {
            (void)snprintf(name, sizeof(name), "blk.%d.%s", il, t->name);
            declare(w, name, t);
        }
    }
    if (f->more.name) {
        declare(w, f->more.name, &f->more);
    }
    fill(w, &embed, 0.5f);
    fill(w, &norm, 1.0f);
    for (int il = 0; il < LAYERS; il++) {
        for (const struct tensor *t = f->layer; t->name; t++) {
            fill(w, t, 0.25f);
        }
    }
    if (f->more.name) {
        fill(w, &f->more, f->more_value);
    }
    cr_assert_eq(gguf_writer_finish(w, &e), 0, "%s", e.text);
}

/* 0 and "" where the engine takes the file. */
static int load(const struct file *f, struct error *ret)
{
    char path[] = "/tmp/pipit-tensors-XXXXXX";
    int fd = mkstemp(path);
    struct engine_config c;
    struct engine *e = NULL;
    int r;

    cr_assert_geq(fd, 0);
    (void)close(fd);
    write_file(path, f);
    engine_config_default(&c);
    c.model_path = path;
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = 64;
    *ret = (struct error){0};
    r = engine_create(&c, NULL, NULL, &e, ret);
    engine_destroy(e);
    (void)unlink(path);
    return r;
}

static void refused(const struct file *f, int code, const char *says)
{
    struct error e;

    cr_expect_eq(load(f, &e), code, "%s", e.text);
    cr_expect(strstr(e.text, says), "says: %s, not: %s", e.text, says);
}

Test(tensors, both_parts_of_a_fused_one_have_the_rows_that_the_keys_say)
{
    struct file good = {.arch = "phi3", .n_ff = 1, .layer = phi3};
    struct file bad = {.arch = "phi3", .n_ff = 1, .layer = phi3_short};
    struct error e;

    cr_expect_eq(load(&good, &e), 0, "%s", e.text);
    refused(&bad, -EBADMSG, "tensor blk.0.ffn_up.weight is (2, 1), but must be (16, 2)");
}

Test(tensors, a_factor_that_nothing_multiplies_by_is_refused)
{
    struct file f = {.arch = "llama",
                     .n_ff = 24,
                     .layer = llama,
                     .more = {"output.scale", 1, 0},
                     .more_value = 0.5f};
    struct error e;

    refused(&f, -ENOTSUP, "tensor output.scale: nothing multiplies by it");
    f.more_value = 1.0f;
    cr_expect_eq(load(&f, &e), 0, "%s", e.text);
}

Test(tensors, what_belongs_to_augmented_queries_needs_its_key)
{
    struct file f = {
        .arch = "sigma", .n_ff = 24, .layer = llama, .more = {"blk.0.attn_q_gate.weight", EMBD, 8}};

    refused(&f, -EBADMSG, "attention.aug_q_length is missing");
}

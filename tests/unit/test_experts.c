/* SPDX-License-Identifier: Apache-2.0 */
/* Models with mixtures of experts: files that do not fit are refused by name; a sequence has its
 * bits alone and in company; weights of every block format mean what their values in F32 mean; a
 * step's bytes count the experts that a token reads; the plan names them. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/kv/plan/plan.h"
#include "gguf/gguf.h"
#include "quant/dtype.h"
#include "tests/turn.h"
#include "tests/unit/engine_run.h"

enum { VOCAB = 64, DIM = 16, HEADS = 2, MOST_VALUES = 12 * 256 * 256, N_NEW = 4 };

/* A file of qwen2moe (with a shared expert) or qwen3moe, and what is wrong with it. */
struct spec {
    bool shared;
    uint64_t embd;     /* 0: 32 */
    uint64_t ff;       /* 0: 24 */
    uint32_t n_expert; /* 0: 4 */
    uint32_t n_used;   /* 0: 2 */
    enum dtype type;   /* of the experts; F32: 0 */
    bool fused;        /* gate and up in one tensor */
    bool decoded;      /* written as F32, with the values that `type` leaves of them */
    const char *drop;
    const char *extra; /* a factor for each expert, */
    float factor;      /* this one */
    const char *key;   /* has this value */
    uint32_t value;
    const char *bent; /* this tensor's dimension `side` is `size` */
    int side;
    uint64_t size;
};

struct tensor {
    char name[64];
    int n_dims;
    uint64_t dims[3];
    enum dtype type;
    float scale;
};

struct file {
    const struct spec *s;
    struct gguf_writer *w;
    int n;
    struct tensor t[64];
};

static const char gate_name[] = "blk.0.ffn_gate_exps.weight";
static const char up_name[] = "blk.0.ffn_up_exps.weight";
static const char fused_name[] = "blk.0.ffn_gate_up_exps.weight";
static char path[64];

static void setup(void)
{
    (void)snprintf(path, sizeof(path), "/tmp/test_experts_%d.gguf", (int)getpid());
}

static void teardown(void)
{
    (void)unlink(path);
}

TestSuite(experts, .init = setup, .fini = teardown);

static void put(struct file *f, const char *key, uint32_t value)
{
    char full[96];
    const struct spec *s = f->s;

    (void)snprintf(full, sizeof(full), "%s.%s", s->shared ? "qwen2moe" : "qwen3moe", key);
    if (s->drop && strcmp(s->drop, key) == 0) {
        return;
    }
    value = s->key && strcmp(s->key, key) == 0 ? s->value : value;
    cr_assert_eq(gguf_writer_u32(f->w, full, value), 0);
}

static void add(struct file *f, const char *name, uint64_t cols, uint64_t rows, uint64_t n)
{
    const struct spec *s = f->s;
    struct tensor *t = &f->t[f->n];
    bool expert = strstr(name, "_exps.weight") != NULL;

    if (s->drop && strcmp(s->drop, name) == 0) {
        return;
    }
    *t = (struct tensor){.n_dims = n      ? 3
                                   : rows ? 2
                                          : 1,
                         .dims = {cols, rows ? rows : 1, n ? n : 1}};
    (void)snprintf(t->name, sizeof(t->name), "%s", name);
    t->type = expert && s->type && !s->decoded ? s->type : DTYPE_F32;
    t->scale = rows ? 2 / sqrtf((float)cols) : 0;
    if (s->bent && strcmp(s->bent, name) == 0) {
        t->dims[s->side] = s->size;
        t->n_dims = s->side + 1 > t->n_dims ? s->side + 1 : t->n_dims;
    }
    f->n++;
}

static float value_of(const struct tensor *t, uint32_t i)
{
    uint64_t seed = 1469598103934665603u;
    uint32_t out[4];

    for (const char *c = t->name; *c; c++) {
        seed = (seed ^ (uint8_t)*c) * 1099511628211u;
    }
    rng_philox(rng_key_make(seed), (uint32_t[4]){i, 0, 0, 0}, out);
    float u = rng_uniform(out[0]) * 2 - 1;

    return t->scale > 0 ? u * t->scale : 1 + u * 0.2f;
}

static void write_one(struct file *f, const struct tensor *t)
{
    static float values[MOST_VALUES];
    static uint8_t blocks[MOST_VALUES * 4];
    const struct spec *s = f->s;
    size_t n = (size_t)(t->dims[0] * t->dims[1] * t->dims[2]);
    uint64_t bytes = n * sizeof(float);

    cr_assert_leq(n, MOST_VALUES);
    for (size_t i = 0; i < n; i++) {
        values[i] = value_of(t, (uint32_t)i);
    }
    if (strcmp(t->name, fused_name) == 0) { /* the values of both */
        struct tensor part = *t;
        size_t half = (size_t)(t->dims[0] * t->dims[1] / 2);

        for (size_t i = 0; i < n; i++) {
            (void)snprintf(part.name, sizeof(part.name), "%s", i / half % 2 ? up_name : gate_name);
            values[i] = value_of(&part, (uint32_t)(i / (2 * half) * half + i % half));
        }
    }
    if (s->extra && strcmp(s->extra, t->name) == 0) {
        for (size_t i = 0; i < n; i++) {
            values[i] = i == 1 ? s->factor : 1;
        }
    }
    if (s->type && strstr(t->name, "_exps.weight")) {
        cr_assert(dtype_row_bytes(s->type, n, &bytes));
        cr_assert_eq(dtype_encode(s->type, values, blocks, n), 0);
        if (s->decoded) {
            dtype_decode(s->type, blocks, values, n);
            bytes = n * sizeof(float);
        }
    }
    cr_assert_eq(
        gguf_writer_data(f->w, t->type == DTYPE_F32 ? (const void *)values : blocks, (size_t)bytes),
        0);
}

static void add_layer(struct file *f, uint64_t embd, uint64_t ff, uint64_t n)
{
    add(f, "blk.0.attn_norm.weight", embd, 0, 0);
    add(f, "blk.0.attn_q.weight", embd, DIM * HEADS, 0);
    add(f, "blk.0.attn_k.weight", embd, DIM, 0);
    add(f, "blk.0.attn_v.weight", embd, DIM, 0);
    if (!f->s->shared) {
        add(f, "blk.0.attn_q_norm.weight", DIM, 0, 0);
        add(f, "blk.0.attn_k_norm.weight", DIM, 0, 0);
    }
    add(f, "blk.0.attn_output.weight", DIM * HEADS, embd, 0);
    add(f, "blk.0.ffn_norm.weight", embd, 0, 0);
    add(f, "blk.0.ffn_gate_inp.weight", embd, n, 0);
    if (f->s->fused) {
        add(f, fused_name, embd, 2 * ff, n);
    } else {
        add(f, gate_name, embd, ff, n);
        add(f, up_name, embd, ff, n);
    }
    add(f, "blk.0.ffn_down_exps.weight", ff, embd, n);
    if (f->s->shared) {
        add(f, "blk.0.ffn_gate_inp_shexp.weight", embd, 0, 0);
        add(f, "blk.0.ffn_gate_shexp.weight", embd, ff, 0);
        add(f, "blk.0.ffn_up_shexp.weight", embd, ff, 0);
        add(f, "blk.0.ffn_down_shexp.weight", ff, embd, 0);
    }
    if (f->s->extra) {
        add(f, f->s->extra, n, 0, 0);
    }
}

static void write_model(const struct spec *s)
{
    static struct file f;
    struct error e = {0};
    const char *arch = s->shared ? "qwen2moe" : "qwen3moe";
    uint64_t embd = s->embd ? s->embd : 32;
    uint64_t ff = s->ff ? s->ff : 24;
    uint32_t n = s->n_expert ? s->n_expert : 4;
    uint32_t n_used = s->n_used ? s->n_used : 2;
    char eps[64];

    f.s = s;
    f.n = 0;
    cr_assert_eq(gguf_writer_create(path, &f.w, &e), 0, "%s", e.text);
    cr_assert_eq(gguf_writer_str(f.w, "general.architecture", arch, strlen(arch)), 0);
    put(&f, "block_count", 1);
    put(&f, "context_length", 256);
    put(&f, "embedding_length", (uint32_t)embd);
    put(&f, "feed_forward_length", (uint32_t)ff * n_used);
    put(&f, "attention.head_count", HEADS);
    put(&f, "attention.head_count_kv", 1);
    put(&f, "attention.key_length", DIM);
    put(&f, "expert_count", n);
    put(&f, "expert_used_count", n_used);
    put(&f, "expert_group_count", 0);
    if (s->shared) {
        put(&f, "expert_shared_feed_forward_length", (uint32_t)ff);
    }
    (void)snprintf(eps, sizeof(eps), "%s.attention.layer_norm_rms_epsilon", arch);
    cr_assert_eq(gguf_writer_f32(f.w, eps, 1e-6f), 0);
    add(&f, "token_embd.weight", embd, VOCAB, 0);
    add(&f, "output_norm.weight", embd, 0, 0);
    add_layer(&f, embd, ff, n);
    for (int i = 0; i < f.n; i++) {
        cr_assert_eq(gguf_writer_tensor(f.w, f.t[i].name, f.t[i].type, f.t[i].n_dims, f.t[i].dims),
                     0);
    }
    for (int i = 0; i < f.n; i++) {
        write_one(&f, &f.t[i]);
    }
    cr_assert_eq(gguf_writer_finish(f.w, &e), 0, "%s", e.text);
}

Test(experts, files_that_do_not_fit)
{
    static const struct {
        struct spec spec;
        int code;
        const char *holds;
    } bad[] = {
        {{.drop = "expert_count"}, -EBADMSG, "key qwen3moe.expert_count is missing"},
        {{.drop = "expert_used_count"}, -EBADMSG, "key qwen3moe.expert_used_count is missing"},
        {{.key = "expert_count", .value = 0}, -EBADMSG, "qwen3moe.expert_count"},
        {{.key = "expert_count", .value = 1025}, -ENOTSUP, "at most 1024 experts"},
        {{.key = "expert_used_count", .value = 0}, -EBADMSG, "qwen3moe.expert_used_count"},
        {{.key = "expert_used_count", .value = 5}, -EBADMSG, "qwen3moe.expert_used_count"},
        {{.key = "expert_group_count", .value = 2}, -ENOTSUP, "qwen3moe.expert_group_count"},
        {{.key = "feed_forward_length", .value = 1}, -EBADMSG, "too little for 2 experts"},
        {{.key = "feed_forward_length", .value = 50},
         -EBADMSG,
         "blk.0.ffn_gate_exps.weight is (32, 24"},
        {{.key = "expert_count", .value = 5},
         -EBADMSG,
         "blk.0.ffn_gate_inp.weight is (32, 4), but must be (32, 5)"},
        {{.drop = "blk.0.ffn_gate_inp.weight"}, -EBADMSG, "blk.0.ffn_gate_inp.weight is missing"},
        {{.drop = "blk.0.ffn_up_exps.weight"}, -EBADMSG, "blk.0.ffn_up_exps.weight is missing"},
        {{.bent = "blk.0.ffn_down_exps.weight", .side = 2, .size = 3},
         -EBADMSG,
         "blk.0.ffn_down_exps.weight has 3 matrices, but 4 experts need one each"},
        {{.bent = "blk.0.ffn_up_exps.weight", .side = 1, .size = 23},
         -EBADMSG,
         "blk.0.ffn_up_exps.weight is (32, 23"},
        {{.bent = "blk.0.attn_q.weight", .side = 2, .size = 2},
         -EBADMSG,
         "blk.0.attn_q.weight is (32, 32"},
        {{.extra = "blk.0.ffn_up_exps.scale", .factor = 0.5f},
         -ENOTSUP,
         "blk.0.ffn_up_exps.scale: the factor of expert 1 is 0.5"},
        {{.fused = true, .bent = "blk.0.ffn_gate_up_exps.weight", .side = 1, .size = 47},
         -EBADMSG,
         "blk.0.ffn_gate_up_exps.weight is (32, 47"},
        {{.fused = true, .bent = "blk.0.ffn_gate_up_exps.weight", .side = 2, .size = 5},
         -EBADMSG,
         "blk.0.ffn_gate_up_exps.weight has 5 matrices"},
        {{.shared = true, .drop = "blk.0.ffn_up_shexp.weight"},
         -EBADMSG,
         "blk.0.ffn_up_shexp.weight is missing"},
        {{.shared = true, .drop = "blk.0.ffn_gate_inp_shexp.weight"},
         -EBADMSG,
         "blk.0.ffn_gate_inp_shexp.weight is missing"},
        {{.shared = true, .key = "expert_shared_feed_forward_length", .value = 25},
         -EBADMSG,
         "blk.0.ffn_gate_shexp.weight is (32, 24), but must be (32, 25)"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct engine_config c;
        struct engine *e = NULL;
        struct error err = {0};

        write_model(&bad[i].spec);
        engine_config_default(&c);
        c.model_path = path;
        c.backend = "ref";
        c.n_threads = 1;
        cr_assert_eq(engine_create(&c, NULL, NULL, &e, &err), bad[i].code, "%zu: %s", i, err.text);
        cr_assert(strstr(err.text, bad[i].holds), "%s, not: %s", err.text, bad[i].holds);
    }
}

/* A file of tests/data with another value in one of its keys. */
static void bend_file(const char *name, const char *key, uint32_t value)
{
    struct gguf *g = NULL;
    struct gguf_writer *w = NULL;
    struct error e = {0};
    bool found = false;

    cr_assert_eq(gguf_open(run_data(name), &g, &e), 0, "%s", e.text);
    cr_assert_eq(gguf_writer_create(path, &w, &e), 0, "%s", e.text);
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        struct gguf_str k;
        enum gguf_type type;
        const void *raw;
        size_t bytes;

        gguf_key_at(g, i, &k, &type, &raw, &bytes);
        if (k.len == strlen(key) && memcmp(k.ptr, key, k.len) == 0) {
            found = true;
            cr_assert_eq(gguf_writer_u32(w, key, value), 0);
        } else {
            cr_assert_eq(gguf_writer_raw(w, k, type, raw, bytes), 0);
        }
    }
    if (!found) {
        cr_assert_eq(gguf_writer_u32(w, key, value), 0);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        char text[64];

        (void)snprintf(text, sizeof(text), "%.*s", (int)t->name.len, t->name.ptr);
        cr_assert_eq(gguf_writer_tensor(w, text, t->type, t->n_dims, t->dims), 0);
    }
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);

        cr_assert_eq(gguf_writer_data(w, t->data, (size_t)t->n_bytes), 0);
    }
    cr_assert_eq(gguf_writer_finish(w, &e), 0, "%s", e.text);
    gguf_close(g);
}

Test(experts, keys_that_do_not_fit)
{
    static const struct {
        const char *file;
        const char *key;
        uint32_t value;
        int code;
        const char *holds;
    } bad[] = {
        {"arch_glm4moe.gguf", "glm4moe.expert_gating_func", 3, -ENOTSUP,
         "only 1 (softmax) and 2 (sigmoid)"},
        {"arch_glm4moe.gguf", "glm4moe.expert_weights_norm", 1, -EBADMSG, "expert_weights_norm"},
        {"arch_glm4moe.gguf", "glm4moe.expert_shared_count", 3, -EBADMSG,
         "blk.1.ffn_gate_shexp.weight is (32, 48), but must be (32, 72)"},
        {"arch_glm4moe.gguf", "glm4moe.expert_shared_count", 2000, -EBADMSG, "expert_shared_count"},
        {"arch_glm4moe.gguf", "glm4moe.expert_shared_count", 0, -ENOTSUP,
         "blk.1.ffn_gate_shexp.weight is not part of"},
        {"arch_glm4moe.gguf", "glm4moe.leading_dense_block_count", 2, -EBADMSG,
         "blk.1.ffn_gate.weight is missing"},
        {"arch_glm4moe.gguf", "glm4moe.leading_dense_block_count", 0, -EBADMSG,
         "blk.0.ffn_gate_inp.weight is missing"},
        {"arch_ernie_moe.gguf", "ernie4_5-moe.interleave_moe_layer_step", 0, -EBADMSG,
         "interleave_moe_layer_step"},
        {"arch_ernie_moe.gguf", "ernie4_5-moe.interleave_moe_layer_step", 2, -EBADMSG,
         "blk.2.ffn_gate.weight is missing"},
        {"arch_gpt_oss.gguf", "gpt-oss.attention.head_count", 2, -EBADMSG, "blk.0.attn_q.weight"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct engine_config c;
        struct engine *e = NULL;
        struct error err = {0};

        bend_file(bad[i].file, bad[i].key, bad[i].value);
        engine_config_default(&c);
        c.model_path = path;
        c.backend = "ref";
        c.n_threads = 1;
        cr_assert_eq(engine_create(&c, NULL, NULL, &e, &err), bad[i].code, "%zu: %s", i, err.text);
        cr_assert(strstr(err.text, bad[i].holds), "%s, not: %s", err.text, bad[i].holds);
    }
}

/* Factors that are all 1 say nothing; one expert is a mixture too. */
Test(experts, files_that_fit)
{
    static const struct spec good[] = {
        {.extra = "blk.0.ffn_up_exps.scale", .factor = 1},
        {.extra = "blk.0.ffn_down_exps.scale", .factor = 0.5f},
        {.shared = true, .drop = "expert_group_count"},
        {.n_expert = 1, .n_used = 1},
    };

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        write_model(&good[i]);
        engine_destroy(run_engine(path, "cpu", 64, 1, NULL));
    }
}

/* Four sequences at once, prompts of different lengths in chunks, and each by itself. */
static void in_company(const char *model, const char *backend)
{
    if (!takes_turn()) {
        return;
    }

    static const int32_t lengths[] = {3, 40, 17, 64};
    struct engine *e = run_engine(model, backend, 128, 4, "f32+full,chunk=32");
    struct run together[4];
    struct run alone;
    int32_t ids[64];

    run_tokens(7, engine_info(e)->n_vocab, ids, 64);
    for (int i = 0; i < 4; i++) {
        struct engine_request q = run_request(ids + 64 - lengths[i], lengths[i], 24);

        run_submit(e, &q, &together[i]);
    }
    run_all(e);
    for (int i = 0; i < 4; i++) {
        struct engine_request q = run_request(ids + 64 - lengths[i], lengths[i], 24);

        run_submit(e, &q, &alone);
        run_all(e);
        cr_assert(run_same(&alone, &together[i]), "%s, %s: sequence %d", model, backend, i);
        run_clear(&alone);
        run_clear(&together[i]);
    }
    engine_destroy(e);
}

Test(experts, a_sequence_has_its_bits_in_company)
{
    static const char *const models[] = {
        "arch_qwen3moe.gguf", "arch_qwen2moe.gguf", "arch_granitemoe.gguf", "arch_llama_moe.gguf",
        "arch_gpt_oss.gguf",  "arch_glm4moe.gguf",  "arch_gemma4_moe.gguf"};

    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        in_company(models[i], "ref");
        in_company(models[i], "cpu");
    }
    write_model(&(struct spec){.shared = true, .embd = 256, .ff = 256, .type = DTYPE_Q4_K});
    in_company(path, "cpu");
    run_threads = 3;
    in_company(path, "cpu");
    in_company("arch_gpt_oss.gguf", "cpu"); /* biases, and 3 experts */
    in_company("arch_glm4moe.gguf", "cpu");
}

/* Logits of N_NEW forced tokens behind a prompt of 6; (N_NEW, VOCAB). */
static void logits_of(const struct spec *s, const char *backend, float *ret)
{
    int32_t ids[6 + N_NEW];
    struct run r;

    write_model(s);
    struct engine *e = run_engine(path, backend, 64, 1, "f32");
    struct engine_request q = run_request(ids, 6, N_NEW);

    run_tokens(9, VOCAB, ids, 6 + N_NEW);
    q.forced = ids + 6;
    q.n_forced = N_NEW;
    q.report_forced = true;
    run_submit(e, &q, &r);
    run_all(e);
    cr_assert_eq(r.n_new, N_NEW);
    memcpy(ret, r.logits, N_NEW * VOCAB * sizeof(float));
    run_clear(&r);
    engine_destroy(e);
}

static struct engine_config mapped_config(const char *file, uint64_t expert_bytes)
{
    struct engine_config c;

    engine_config_default(&c);
    c.model_path = file;
    c.backend = "cpu";
    c.n_threads = 2;
    c.ctx = 128;
    c.n_seqs = 3;
    c.experts = ENGINE_EXPERTS_MAPPED;
    c.expert_bytes = expert_bytes;
    return c;
}

/* The bytes of the fewest experts that may be kept ready, which a smaller number is refused with.
 */
static uint64_t fewest_bytes(const char *file)
{
    struct engine_config c = mapped_config(file, 1);
    unsigned long long least = 0;
    struct error err = {0};
    struct plan p;

    cr_assert_eq(engine_plan(&c, &p, &err), -EINVAL);
    cr_assert_eq(sscanf(err.text,
                        "expert-bytes: 1, but 8 experts of this model, the least, are %llu",
                        &least),
                 1, "%s", err.text);
    return least;
}

/* A prompt, and beside it one that decodes: tokens and logits of both. */
static void two_runs(struct engine *e, struct run r[2])
{
    static int32_t ids[2][90];

    for (int i = 0; i < 2; i++) {
        struct engine_request q = run_request(ids[i], i ? 90 : 7, 24);

        run_tokens(40 + (uint64_t)i, engine_info(e)->n_vocab, ids[i], 90);
        run_submit(e, &q, &r[i]);
        (void)run_step(e);
    }
    run_all(e);
}

static void mapped_as_held(const char *file)
{
    if (!takes_turn()) {
        return;
    }

    struct error err = {0};
    struct run want[2];
    struct run got[2];
    struct engine *e = NULL;

    for (int k = 0; k < 3; k++) {
        struct engine_config c = mapped_config(file, k == 1 ? fewest_bytes(file) : 0);

        c.experts = k ? ENGINE_EXPERTS_MAPPED : ENGINE_EXPERTS_HELD;
        cr_assert_eq(engine_create(&c, NULL, NULL, &e, &err), 0, "%s", err.text);
        cr_assert_eq(engine_plan_of(e)->file_expert_bytes > 0, k > 0);
        two_runs(e, k ? got : want);
        for (int r = 0; r < 2 && k; r++) {
            cr_assert(run_same(&want[r], &got[r]), "%s, request %d", file, r);
            run_clear(&got[r]);
        }
        engine_destroy(e);
    }
    run_clear(&want[0]);
    run_clear(&want[1]);
}

/* Experts that stay in the file are packed when they are chosen, and make room for others: with
 * room for eight of more the bits are those of experts that are held. */
Test(experts, mapped_ones_have_the_bits_of_held_ones)
{
    static const struct spec specs[] = {
        {.embd = 64, .ff = 40, .n_expert = 64, .n_used = 3},
        {.embd = 64, .ff = 96, .n_expert = 64, .n_used = 7, .type = DTYPE_Q8_0, .fused = true},
        {.embd = 256, .ff = 256, .n_expert = 12, .n_used = 4, .type = DTYPE_Q4_K, .shared = true},
        {.embd = 64, .ff = 64, .n_expert = 64, .n_used = 9, .type = DTYPE_MXFP4},
    };
    static const char *const files[] = {
        "arch_nemotron_h_moe.gguf", /* no gates */
        "arch_gpt_oss.gguf",        /* biases */
        "arch_gemma4_moe.gguf",     /* beside an FFN */
    };

    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        write_model(&specs[i]);
        mapped_as_held(path);
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        mapped_as_held(run_data(files[i]));
    }
}

static uint64_t total_of(uint64_t expert_bytes)
{
    struct engine_config c = mapped_config(path, expert_bytes);
    struct error err = {0};
    struct plan p;

    cr_assert_eq(engine_plan(&c, &p, &err), 0, "%s", err.text);
    return p.total_bytes;
}

/* Unless said, twice what a token reads; at most all. */
Test(experts, mapped_ones_that_are_kept_ready)
{
    write_model(&(struct spec){.embd = 64, .ff = 96, .n_expert = 64, .n_used = 9});
    uint64_t one = fewest_bytes(path) / 8;

    cr_assert_eq(total_of(0), total_of(2 * 9 * one));
    cr_assert_gt(total_of(0), total_of(8 * one));
    cr_assert_eq(total_of(UINT64_C(10) << 30), total_of(64 * one));
    cr_assert_gt(total_of(64 * one), total_of(63 * one));
}

/* More than all experts is no use, and nothing is kept ready where all are held. */
Test(experts, mapped_ones_take_no_more_than_all)
{
    struct engine_config c = mapped_config(path, UINT64_C(10) << 30);
    struct error err = {0};
    struct plan p;

    write_model(&(struct spec){.n_expert = 4});
    cr_assert_eq(engine_plan(&c, &p, &err), 0, "%s", err.text);
    cr_assert_lt(p.total_bytes, UINT64_C(1) << 30);
    c.experts = ENGINE_EXPERTS_HELD;
    cr_assert_eq(engine_plan(&c, &p, &err), -EINVAL);
    cr_assert(strstr(err.text, "all experts are held"), "%s", err.text);
}

static double difference(const float *a, const float *b)
{
    double sum = 0;
    double size = 0;

    for (int i = 0; i < N_NEW * VOCAB; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)a[i] * (double)a[i];
    }
    return sqrt(sum / size);
}

/* On `ref` bit for bit; on `cpu` products of blocks take the other side in 8 bits. */
Test(experts, quantised_weights_mean_their_values)
{
    static const enum dtype types[] = {DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_MXFP4, DTYPE_F16};
    static float want[N_NEW * VOCAB];
    static float got[N_NEW * VOCAB];

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct spec s = {.embd = 256,
                         .ff = 256,
                         .n_expert = 3,
                         .type = types[i],
                         .shared = true,
                         .decoded = true};
        const char *name = dtype_info(types[i])->name;

        logits_of(&s, "ref", want);
        s.decoded = false;
        logits_of(&s, "ref", got);
        cr_assert_arr_eq(want, got, sizeof(want), "%s on ref", name);
        logits_of(&s, "cpu", got);
        cr_assert_lt(difference(want, got), 0.02, "%s on cpu: %g", name, difference(want, got));
    }
}

/* Gate and up of experts in one tensor: the same bits, and refused where they do not fit. */
Test(experts, gate_and_up_in_one_tensor)
{
    static const char *const backends[] = {"ref", "cpu"};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_Q8_0};
    static float want[N_NEW * VOCAB];
    static float got[N_NEW * VOCAB];

    for (int i = 0; i < 4; i++) {
        struct spec s = {.embd = 64, .ff = 96, .n_expert = 5, .type = types[i / 2]};

        logits_of(&s, backends[i % 2], want);
        s.fused = true;
        logits_of(&s, backends[i % 2], got);
        cr_assert_arr_eq(want, got, sizeof(want), "%s", backends[i % 2]);
    }
}

/* Policies that evict observe weights without the sinks, those that select have none. */
Test(experts, policies_beside_sinks)
{
    static const char *const kv[] = {"sparq:r=4,k=9", "h2o:50%+topv:16", "infinigen:count=9"};
    struct engine_config c;
    struct engine *e = NULL;
    struct error err = {0};
    int32_t ids[80];
    struct run r;

    engine_config_default(&c);
    c.model_path = run_data("arch_gpt_oss.gguf");
    c.n_threads = 1;
    c.backend = "cpu";
    for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
        c.kv = kv[i];
        cr_assert_eq(engine_create(&c, NULL, NULL, &e, &err), -ENOTSUP, "%s", kv[i]);
        cr_assert(strstr(err.text, "attention sinks"), "%s: %s", kv[i], err.text);
    }
    e = run_engine("arch_gpt_oss.gguf", "cpu", 128, 1, "kv8+h2o:50%,min=2");
    struct engine_request q = run_request(ids, 60, 20);

    run_tokens(5, engine_info(e)->n_vocab, ids, 80);
    run_submit(e, &q, &r);
    run_all(e);
    cr_assert_eq(r.n_new, 20);
    cr_assert_eq(r.reason, ENGINE_LENGTH);
    run_clear(&r);
    engine_destroy(e);
}

Test(experts, a_step_reads_the_experts_of_a_token)
{
    struct engine_work w[3];
    struct plan p;
    struct engine_config c;
    struct error err = {0};
    const uint64_t one = 3 * UINT64_C(32) * 24 * 4; /* gate, up and down of an expert */

    for (uint32_t i = 0; i < 3; i++) {
        write_model(&(struct spec){.n_expert = i == 1 ? 8 : 4, .n_used = i == 2 ? 3 : 2});
        struct engine *e = run_engine(path, "cpu", 64, 1, NULL);

        cr_assert_eq(engine_work(e, "full", 10, 20, &w[i], &err), 0, "%s", err.text);
        engine_destroy(e);
    }
    cr_assert_eq(w[1].weight_bytes - w[0].weight_bytes, UINT64_C(4) * 32 * 4,
                 "four more rows of the router, no more experts");
    cr_assert_float_eq(w[1].prompt_flops - w[0].prompt_flops, 2.0 * 4 * 32 * 10, 1e-6);
    cr_assert_eq(w[2].weight_bytes - w[0].weight_bytes, one, "one more expert");
    engine_config_default(&c);
    c.model_path = path;
    c.n_threads = 1;
    for (int i = 0; i < 2; i++) {
        char *text = NULL;
        size_t size = 0;

        c.backend = i ? "cpu" : "ref";
        cr_assert_eq(engine_plan(&c, &p, &err), 0, "%s", err.text);
        cr_assert_eq(p.n_expert, 4);
        cr_assert_eq(p.n_used, 3);
        cr_assert_geq(p.experts_bytes, 4 * one);
        cr_assert_leq(p.experts_bytes, p.weights_bytes + p.mapped_bytes);
        FILE *out = open_memstream(&text, &size);

        cr_assert_not_null(out);
        plan_print_table(&p, out);
        cr_assert_eq(fclose(out), 0);
        cr_assert(strstr(text, "a token reads 3 of the 4 experts of a layer"), "%s", text);
        free(text);
    }
}

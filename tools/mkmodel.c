/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-mkmodel: models with random weights of any shape, for benches and tests that need a size
 * rather than sense, and untrained SwiftKV overlays. Same options, same bytes. A shape begins with
 * a preset (or the default, a small llama) and is changed by the options that are given. */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/command.h"
#include "tools/mkmodel_write.h"

struct config {
    char *shape;
    char *arch;
    int64_t layers;
    int64_t hidden;
    int64_t ffn;
    int64_t heads;
    int64_t kv_heads;
    int64_t k_heads;
    int64_t v_heads;
    int64_t head_dim;
    int64_t aug_q;
    int64_t vocab;
    int64_t ctx;
    int64_t window;
    double rope_base;
    char *type;
    char *embd_type;
    char *tied; /* "", "yes" or "no" */
    int64_t seed;
    int64_t threads;
    int64_t swiftkv;
    bool outputs;
    int64_t group;
    char *wide;
    bool skew;
    char *base;
    bool help;
};

#define AT(field) offsetof(struct config, field)

/* clang-format off */
static const struct option_row rows[] = {
    {"shape", 's', OPTION_STRING, AT(shape), .metavar = "NAME", .help = "begin with a published model's shape: smollm2-135m, llama-3.2-1b, llama-3.1-8b, llama-2-7b, qwen2.5-0.5b, qwen3-0.6b, qwen3-4b, qwen3-8b, gemma-3-1b, sigma-1.5b, sigma-10b, kvheavy"},
    {"arch", 0, OPTION_STRING, AT(arch), .metavar = "NAME", .help = "architecture: llama, qwen2, qwen3, gemma3 or sigma"},
    {"layers", 0, OPTION_INT, AT(layers), 1, 4096, .help = "number of layers"},
    {"hidden", 0, OPTION_INT, AT(hidden), 1, 1 << 20, .help = "width of the residual stream"},
    {"ffn", 0, OPTION_INT, AT(ffn), 1, 1 << 20, .help = "width of the feed-forward network"},
    {"heads", 0, OPTION_INT, AT(heads), 1, 4096, .help = "query heads"},
    {"kv-heads", 0, OPTION_INT, AT(kv_heads), 1, 4096, .help = "key and value heads"},
    {"k-heads", 0, OPTION_INT, AT(k_heads), 1, 4096, .help = "key heads, where they differ (sigma)"},
    {"v-heads", 0, OPTION_INT, AT(v_heads), 1, 4096, .help = "value heads, where they differ (sigma)"},
    {"head-dim", 0, OPTION_INT, AT(head_dim), 2, 1024, .help = "elements of a head"},
    {"aug-q", 0, OPTION_INT, AT(aug_q), 0, 1 << 20, .help = "width of augmented Q (sigma)"},
    {"vocab", 0, OPTION_INT, AT(vocab), 260, 1 << 24, .help = "tokens: 256 bytes, 4 controls, the rest unused"},
    {"ctx", 0, OPTION_INT, AT(ctx), 1, 1 << 24, .help = "context length the file states"},
    {"window", 0, OPTION_INT, AT(window), 1, 1 << 24, .help = "window of sliding layers (gemma3)"},
    {"rope-base", 0, OPTION_FLOAT, AT(rope_base), 1, 1e12, .help = "base of RoPE's frequencies"},
    {"type", 't', OPTION_STRING, AT(type), .metavar = "TYPE", .fallback = "F16", .help = "of the layers' matrices: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS or MXFP4; rows that are not whole blocks get Q8_0 or F16"},
    {"embd-type", 0, OPTION_STRING, AT(embd_type), .metavar = "TYPE", .help = "of embedding and head (default: as --type)"},
    {"tied", 0, OPTION_STRING, AT(tied), .metavar = "yes|no", .help = "share embedding and head"},
    {"seed", 0, OPTION_INT, AT(seed), 0, INFINITY, .fallback = "1", .help = "same seed, same file"},
    {"threads", 0, OPTION_INT, AT(threads), 0, 1024, .fallback = "0", .help = "0: one for each CPU"},
    {"swiftkv", 0, OPTION_INT, AT(swiftkv), 1, 4096, .help = "instead of a model, write a SwiftKV overlay of --base: layers from this one on get keys and values from one hidden state"},
    {"group", 0, OPTION_INT, AT(group), 1, 4096, .fallback = "1", .help = "with --swiftkv: so many deep layers share keys and values"},
    {"outputs", 0, OPTION_FLAG, AT(outputs), .help = "with --swiftkv: each deep layer gets an output projection of its own, the mean over its group"},
    {"wide", 0, OPTION_STRING, AT(wide), .metavar = "K+V", .help = "with --swiftkv: stores of one head of K and V dims (128+256) and the maps that join the query heads to it; random, by --seed"},
    {"skew", 0, OPTION_FLAG, AT(skew), .help = "instead of a model, write a skew overlay of --base, for infinigen: unit matrices"},
    {"base", 0, OPTION_STRING, AT(base), .metavar = "FILE", .help = "with --swiftkv, --skew: the model it belongs to"},
    {"help", 'h', OPTION_FLAG, AT(help), .flags = OPTION_ARGV_ONLY, .help = "show this text"},
};
/* clang-format on */

static const struct option_table table = {
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .usage = "pipit-mkmodel [OPTION]... OUT.gguf",
    .intro = "Writes a model with random weights and a byte-level tokenizer, or an overlay.",
};

static int pick_type(const char *option, const char *name, enum dtype *ret, struct error *reterr)
{
    int type = dtype_from_name(name);

    if (type < 0) {
        return error_set(reterr, -EINVAL, "%s: '%.40s' is not an element type; see --help", option,
                         name);
    }
    *ret = (enum dtype)type;
    return 0;
}

static void change(int64_t *number, int64_t given)
{
    *number = given ? given : *number;
}

static int pick_shape(const struct config *c, struct mkmodel_shape *s, struct error *reterr)
{
    *s = (struct mkmodel_shape){
        mkmodel_arch_find("llama"), 4, 256, 512, 4, 2, 2, 64, 0, 512, 4096, 1024, 10000, true};
    if (c->shape && !mkmodel_preset_find(c->shape, s)) {
        return error_set(reterr, -EINVAL, "--shape: '%.40s' is not known; see --help", c->shape);
    }
    if (c->arch) {
        s->arch = mkmodel_arch_find(c->arch);
    }
    if (!s->arch) {
        return error_set(reterr, -EINVAL,
                         "--arch: '%.40s' is not llama, qwen2, qwen3, gemma3 or sigma", c->arch);
    }
    if (c->heads && !c->kv_heads && !c->k_heads && !c->shape) {
        s->n_k_heads = s->n_v_heads = c->heads;
    }
    if (c->heads && c->hidden && !c->head_dim) {
        s->head_dim = c->hidden / c->heads;
    }
    change(&s->n_layers, c->layers);
    change(&s->hidden, c->hidden);
    change(&s->ffn, c->ffn);
    change(&s->n_heads, c->heads);
    change(&s->n_k_heads, c->kv_heads);
    change(&s->n_v_heads, c->kv_heads);
    change(&s->n_k_heads, c->k_heads);
    change(&s->n_v_heads, c->v_heads);
    change(&s->head_dim, c->head_dim);
    change(&s->vocab, c->vocab);
    change(&s->ctx, c->ctx);
    change(&s->window, c->window);
    if (s->arch->uneven_heads && s->aug_q == 0 && c->aug_q < 0) {
        s->aug_q = s->hidden * 3 / 2; /* the paper's ratio */
    }
    s->aug_q = c->aug_q >= 0 ? c->aug_q : s->aug_q;
    s->rope_base = c->rope_base > 0 ? c->rope_base : s->rope_base;
    if (c->tied && strcmp(c->tied, "yes") != 0 && strcmp(c->tied, "no") != 0) {
        return error_set(reterr, -EINVAL, "--tied: '%.40s' is not yes or no", c->tied);
    }
    s->tied = c->tied ? strcmp(c->tied, "yes") == 0 : s->tied;
    return mkmodel_shape_check(s, reterr);
}

static int make_model(const struct config *c, const char *path, struct error *reterr)
{
    struct mkmodel_plan plan = {.seed = (uint64_t)c->seed};
    struct pool *pool = NULL;
    uint64_t params = 0;
    uint64_t bytes = 0;
    char name[80];
    int r = pick_shape(c, &plan.shape, reterr);

    r = r < 0 ? r : pick_type("--type", c->type, &plan.type, reterr);
    r = r < 0 ? r
              : pick_type("--embd-type", c->embd_type ? c->embd_type : c->type, &plan.embd_type,
                          reterr);
    r = r < 0 ? r : pool_create((int)c->threads, &pool, reterr);
    if (r < 0) {
        return r;
    }
    (void)snprintf(name, sizeof(name), "random %.40s, seed %" PRId64,
                   c->shape ? c->shape : plan.shape.arch->name, c->seed);
    plan.name = name;
    r = mkmodel_write(&plan, path, pool, &params, &bytes, reterr);
    pool_destroy(pool);
    if (r == 0) {
        (void)fprintf(stderr, "%s: %s, %.1f million parameters, %.1f MB of weights\n", path, name,
                      (double)params / 1e6, (double)bytes / 1e6);
    }
    return r;
}

/* "128+256" */
static int pick_wide(const char *text, struct mkmodel_swiftkv *s, struct error *reterr)
{
    int end = 0;
    unsigned k = 0;
    unsigned v = 0;

    if (strspn(text, "0123456789+") != strlen(text) || strlen(text) > 9 ||
        sscanf(text, "%4u+%4u%n", &k, &v, &end) != 2 || text[end] || k < 2 || k % 2 ||
        k > MKMODEL_MAX_HEAD || v < 2 || v > MKMODEL_MAX_HEAD) {
        return error_set(reterr, -EINVAL,
                         "--wide: '%.40s' is not K+V, both 2 to %d, K even, as in 128+256", text,
                         MKMODEL_MAX_HEAD);
    }
    s->k_dim = k;
    s->v_dim = v;
    return 0;
}

static int make_swiftkv(const struct config *c, const char *path, struct error *reterr)
{
    struct mkmodel_swiftkv s = {
        .split = c->swiftkv, .group = c->group, .outputs = c->outputs, .seed = (uint64_t)c->seed};
    int r = c->wide ? pick_wide(c->wide, &s, reterr) : 0;

    return r ? r : mkmodel_swiftkv_write(c->base, &s, path, reterr);
}

static int run(const void *config, const struct option_list *words, struct error *reterr)
{
    const struct config *c = config;
    if (words->n != 1) {
        return error_set(reterr, -EINVAL, "one output file is needed, %zu are given", words->n);
    }
    if (c->swiftkv && c->skew) {
        return error_set(reterr, -EINVAL, "--swiftkv and --skew are two files");
    }
    if ((c->swiftkv || c->skew) && !c->base) {
        return error_set(reterr, -EINVAL, "%s needs --base FILE", c->skew ? "--skew" : "--swiftkv");
    }
    if ((c->outputs || c->wide) && !c->swiftkv) {
        return error_set(reterr, -EINVAL, "%s belongs to --swiftkv",
                         c->wide ? "--wide" : "--outputs");
    }
    if (c->base && !c->swiftkv && !c->skew) {
        return error_set(reterr, -EINVAL, "--base belongs to --swiftkv or --skew");
    }
    if (c->skew) {
        return mkmodel_skew_write(c->base, words->v[0], reterr);
    }
    if (c->swiftkv) {
        return make_swiftkv(c, words->v[0], reterr);
    }
    return make_model(c, words->v[0], reterr);
}

int main(int argc, char **argv)
{
    struct config c = {.aug_q = -1};

    return command_main(&(struct command){.name = "pipit-mkmodel",
                                          .table = &table,
                                          .config = &c,
                                          .help = &c.help,
                                          .takes_words = true,
                                          .run = run},
                        argc, argv);
}

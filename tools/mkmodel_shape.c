/* SPDX-License-Identifier: Apache-2.0 */
/* Architectures and published shapes as data, and the rules that a shape obeys before anything is
 * written: heads divide evenly, RoPE has pairs, the vocabulary holds the byte-level tokenizer. */

#include "tools/mkmodel_shape.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "tools/mkmodel_vocab.h"

/* clang-format off */
static const struct mkmodel_arch archs[] = {
    {.name = "llama", .eps = 1e-5f},
    {.name = "qwen2", .qkv_bias = true, .eps = 1e-6f},
    {.name = "qwen3", .qk_norm = true, .eps = 1e-6f},
    {.name = "gemma3", .qk_norm = true, .post_norms = true, .sliding_window = true, .eps = 1e-6f},
    {.name = "sigma", .uneven_heads = true, .eps = 1e-5f},
};

/* From the models' configuration files; SIGMA from its paper's table 14. kvheavy is made for
 * benches: few weights, many key-value bytes. */
static const struct preset {
    const char *name;
    const char *arch;
    struct mkmodel_shape s; /* layers, hidden, ffn, heads q/k/v, head_dim, augmented Q, vocabulary, context, window, RoPE base, tied */
} presets[] = {
    {"smollm2-135m", "llama", {NULL, 30, 576, 1536, 9, 3, 3, 64, 0, 49152, 8192, 0, 1e5, true}},
    {"llama-3.2-1b", "llama", {NULL, 16, 2048, 8192, 32, 8, 8, 64, 0, 128256, 131072, 0, 5e5, true}},
    {"llama-3.1-8b", "llama", {NULL, 32, 4096, 14336, 32, 8, 8, 128, 0, 128256, 131072, 0, 5e5, false}},
    {"llama-2-7b", "llama", {NULL, 32, 4096, 11008, 32, 32, 32, 128, 0, 32000, 4096, 0, 1e4, false}},
    {"qwen2.5-0.5b", "qwen2", {NULL, 24, 896, 4864, 14, 2, 2, 64, 0, 151936, 32768, 0, 1e6, true}},
    {"qwen3-0.6b", "qwen3", {NULL, 28, 1024, 3072, 16, 8, 8, 128, 0, 151936, 40960, 0, 1e6, true}},
    {"qwen3-4b", "qwen3", {NULL, 36, 2560, 9728, 32, 8, 8, 128, 0, 151936, 40960, 0, 1e6, true}},
    {"qwen3-8b", "qwen3", {NULL, 36, 4096, 12288, 32, 8, 8, 128, 0, 151936, 40960, 0, 1e6, false}},
    {"gemma-3-1b", "gemma3", {NULL, 26, 1152, 6912, 4, 1, 1, 256, 0, 262144, 32768, 512, 1e6, true}},
    {"sigma-1.5b", "sigma", {NULL, 26, 2048, 6144, 32, 4, 16, 64, 3072, 128256, 4096, 0, 5e4, true}},
    {"sigma-10b", "sigma", {NULL, 32, 4096, 14336, 32, 4, 16, 128, 6144, 128256, 4096, 0, 5e5, true}},
    {"kvheavy", "llama", {NULL, 8, 1024, 1024, 16, 16, 16, 64, 0, 512, 131072, 0, 5e5, true}},
};
/* clang-format on */

enum {
    N_ARCHS = sizeof(archs) / sizeof(archs[0]),
    N_PRESETS = sizeof(presets) / sizeof(presets[0])
};

const struct mkmodel_arch *mkmodel_arch_find(const char *name)
{
    for (int i = 0; i < N_ARCHS; i++) {
        if (strcmp(archs[i].name, name) == 0) {
            return &archs[i];
        }
    }
    return NULL;
}

bool mkmodel_preset_find(const char *name, struct mkmodel_shape *ret)
{
    for (int i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *ret = presets[i].s;
            ret->arch = mkmodel_arch_find(presets[i].arch);
            return true;
        }
    }
    return false;
}

int mkmodel_shape_check(const struct mkmodel_shape *s, struct error *reterr)
{
    if (s->n_heads % s->n_k_heads != 0) {
        return error_set(reterr, -EINVAL,
                         "--k-heads: %" PRId64 " does not divide %" PRId64 " heads", s->n_k_heads,
                         s->n_heads);
    }
    if (s->n_heads % s->n_v_heads != 0) {
        return error_set(reterr, -EINVAL,
                         "--v-heads: %" PRId64 " does not divide %" PRId64 " heads", s->n_v_heads,
                         s->n_heads);
    }
    if (s->n_k_heads != s->n_v_heads && !s->arch->uneven_heads) {
        return error_set(
            reterr, -EINVAL,
            "--k-heads and --v-heads differ, which %s does not offer; --arch sigma does",
            s->arch->name);
    }
    if (s->aug_q > 0 && !s->arch->uneven_heads) {
        return error_set(reterr, -EINVAL, "--aug-q: %s does not offer it; --arch sigma does",
                         s->arch->name);
    }
    if (s->head_dim % 2 != 0) {
        return error_set(reterr, -EINVAL, "--head-dim: %" PRId64 " is odd, and RoPE turns pairs",
                         s->head_dim);
    }
    if (s->vocab < MKMODEL_VOCAB_MIN) {
        return error_set(reterr, -EINVAL, "--vocab: %" PRId64 " is less than the %d tokens needed",
                         s->vocab, MKMODEL_VOCAB_MIN);
    }
    return 0;
}

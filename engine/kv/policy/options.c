/* SPDX-License-Identifier: Apache-2.0 */
/* Options that several words take. What one word alone takes stands in its file. */

#include "engine/kv/policy/word.h"

static const struct word_value scopes[] = {
    {"head", POLICY_PER_HEAD}, {"layer", POLICY_PER_LAYER}, {"shared", POLICY_SHARED}, {NULL, 0}};
static const struct word_value positions[] = {{"org", 0}, {"new", 1}, {NULL, 0}};
static const struct word_value prefills[] = {
    {"dense", POLICY_DENSE}, {"layered", POLICY_LAYERED}, {"bounded", POLICY_BOUNDED}, {NULL, 0}};
static const struct word_value layer_rules[] = {{"equal", POLICY_LAYERS_EQUAL},
                                                {"pyramid", POLICY_LAYERS_PYRAMID},
                                                {"measured", POLICY_LAYERS_MEASURED},
                                                {NULL, 0}};
static const struct word_value head_rules[] = {
    {"equal", POLICY_HEADS_EQUAL}, {"adaptive", POLICY_HEADS_ADAPTIVE}, {NULL, 0}};
const struct word_value policy_modes[] = {
    {"paper", POLICY_PAPER}, {"as-shipped", POLICY_AS_SHIPPED}, {NULL, 0}};

const struct word_option option_budget = {.name = "N", .type = WORD_BUDGET};
const struct word_option option_recent = {
    .name = "recent",
    .type = WORD_PERCENT,
    .offset = WORD_FIELD(recent),
    .max = 100,
    .help = "share of the budget that the latest tokens have whatever their scores; 0: key "
            "tokens only"};
const struct word_option option_damp = {.name = "damp",
                                        .type = WORD_FLOAT,
                                        .offset = WORD_FIELD(damp),
                                        .min = 0.01,
                                        .max = 1,
                                        .help = "scores are multiplied by it at each new token"};
const struct word_option option_scope = {
    .name = "score",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(scope),
    .values = scopes,
    .help = "a choice for each head group; one for a layer; one for all layers"};
const struct word_option option_pos = {
    .name = "pos",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(pos_new),
    .values = positions,
    .help = "keys rotated at their true position, or renumbered among the survivors (own page "
            "class, `ref` and `cpu` only)"};
const struct word_option option_prefill = {
    .name = "prefill",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(prefill),
    .values = prefills,
    .help = "how a prompt longer than the budget is read, below"};
const struct word_option option_observe = {
    .name = "observe",
    .type = WORD_INT,
    .offset = WORD_FIELD(observe),
    .min = 1,
    .max = 4096,
    .normal = "64; recency 256; snapkv 32",
    .help = "the last prompt tokens that score where not all do: in SwiftKV's deep layers, and in "
            "`recency` and `snapkv`"};
const struct word_option option_min = {.name = "min",
                                       .type = WORD_INT,
                                       .offset = WORD_FIELD(min),
                                       .min = 2,
                                       .max = 1 << 24,
                                       .help = "slots that a budget in percent has at least"};
const struct word_option option_chunk = {
    .name = "chunk",
    .type = WORD_INT,
    .offset = WORD_FIELD(chunk),
    .min = 1,
    .max = 65536,
    .help = "prompt tokens that are scored, cut and kept together; part of the policy because "
            "results may depend on it"};
const struct word_option option_layers = {
    .name = "layers",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(layers),
    .values = layer_rules,
    .quiet = true,
    .help =
        "how the layers share the budgets, whose mean is N: N each; from most in the first layer "
        "down to N/20 in the last, in equal steps (Cai et al. 2024); as an overlay by "
        "`pipit-calibrate` says"};
const struct word_option option_heads = {
    .name = "heads",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(heads),
    .values = head_rules,
    .quiet = true,
    .help = "how a layer's head groups divide its slots when a prompt is cut: N each, or by scores "
            "in whole pages of 64, N on average and 2 N at most (Feng et al. 2024; `ref` and `cpu` "
            "only)"};
const struct word_option option_safeguard = {
    .name = "safeguard",
    .type = WORD_PERCENT,
    .offset = WORD_FIELD(safeguard),
    .max = 100,
    .quiet = true,
    .help = "with `heads=adaptive`: share that each head group has whatever its scores, of the "
            "slots that compete"};

/* SPDX-License-Identifier: Apache-2.0 */
/* The words of precision: the types that K and V are stored in. */

#include "engine/kv/policy/precision.h"

static const struct word_value centers[] = {
    {"auto", POLICY_CENTER_AUTO}, {"off", POLICY_CENTER_OFF}, {NULL, 0}};
static const struct word_option center = {
    .name = "center",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(center),
    .values = centers,
    .help = "keys are stored less a constant of each head, where the model has one "
            "([centring](../design/centring.md)); not with `pos=new`"};
static const struct word_value rots[] = {
    {"auto", POLICY_ROT_AUTO}, {"on", POLICY_ROT_ON}, {"off", POLICY_ROT_OFF}, {NULL, 0}};
static const struct word_option rot = {
    .name = "rot",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(rot),
    .values = rots,
    .help = "what is stored in integers is stored as its Hadamard transform "
            "([centring and rotation](../design/centring.md)); `auto`: not with `pos=new`, nor "
            "where queries select"};
static const struct word_value stores[] = {
    {"same", POLICY_STORES_SAME}, {"kv8", POLICY_STORES_KV8}, {NULL, 0}};
static const struct word_option shared = {
    .name = "shared",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(shared),
    .values = stores,
    .help = "stores that several layers share ([AcrossKV](../design/distillation.md)) are in the "
            "same types, or in those of `kv8`",
    .quiet = true};
static const struct word_option *const of_fp8[] = {&center, NULL};
static const struct word_option *const of_integers[] = {&center, &rot, NULL};
static const struct word_option *const of_four[] = {&center, &rot, &shared, NULL};

const struct policy_word policy_precisions[POLICY_N_PRECISIONS] = {
    {.name = "f32", .k = OPS_KV_F32, .v = OPS_KV_F32, .help = "K and V in f32"},
    {.name = "f16", .k = OPS_KV_F16, .v = OPS_KV_F16, .help = "K and V in f16, the default"},
    {.name = "bf16", .k = OPS_KV_BF16, .v = OPS_KV_BF16, .help = "K and V in bf16"},
    {.name = "fp8",
     .k = OPS_KV_FP8,
     .v = OPS_KV_FP8,
     .help = "K and V in FP8 E4M3",
     .options = of_fp8},
    {.name = "kv8",
     .k = OPS_KV_I8,
     .v = OPS_KV_FP8,
     .help = "K in int8, V in FP8 E4M3",
     .options = of_integers},
    {.name = "k8v4",
     .k = OPS_KV_I8,
     .v = OPS_KV_G4,
     .help = "K in int8, V in 4 bits in blocks of 32",
     .options = of_four},
    {.name = "kv4",
     .k = OPS_KV_G4,
     .v = OPS_KV_G4,
     .help = "K and V in 4 bits in blocks of 32",
     .options = of_four},
    {.name = "k16v8", .k = OPS_KV_F16, .v = OPS_KV_FP8, .help = "K in f16, V in FP8 E4M3"},
    {.name = "q8_0",
     .k = OPS_KV_Q8_0,
     .v = OPS_KV_Q8_0,
     .help = "K and V in GGUF's 8-bit blocks of 32",
     .options = of_integers},
    {.name = "q4_0",
     .k = OPS_KV_Q4_0,
     .v = OPS_KV_Q4_0,
     .help = "K and V in GGUF's 4-bit blocks of 32",
     .options = of_integers},
};

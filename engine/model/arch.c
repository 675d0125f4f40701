/* SPDX-License-Identifier: Apache-2.0 */
/* The table of architectures and the table of tensors.
 *
 * A row says which norm, RoPE form, activation and optional tensors a family has; hparams.c reads
 * the sizes that go with it, tensors.c fetches the tensors, forward.c turns both into a program of
 * operations. Facts worth knowing:
 *   - GGUF's llama tensors have their Q and K rows permuted so that RoPE turns pairs (2i, 2i+1);
 *     qwen and gemma files keep the order of the checkpoint: pairs (i, i + d/2).
 *   - gemma's norm weights are stored with the 1 of (1 + w) already added.
 *   - llama files may carry biases (some derived models do); qwen2 must have them.
 *
 * A family is added by a row, and by a tensor here if it brings one. */

#include "engine/model/arch.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
const struct tensor_row arch_layer_tensors[LT_COUNT] = {
    [LT_ATTN_NORM]      = {"attn_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_ATTN_NORM_B]    = {"attn_norm.bias", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_Q]              = {"attn_q.weight", OPS_ROLE_MATMUL, DIM_Q_OUT, DIM_EMBD},
    [LT_Q_B]            = {"attn_q.bias", OPS_ROLE_VECTOR, DIM_1, DIM_Q_OUT},
    [LT_K]              = {"attn_k.weight", OPS_ROLE_MATMUL, DIM_K, DIM_EMBD},
    [LT_K_B]            = {"attn_k.bias", OPS_ROLE_VECTOR, DIM_1, DIM_K},
    [LT_V]              = {"attn_v.weight", OPS_ROLE_MATMUL, DIM_V, DIM_EMBD},
    [LT_V_B]            = {"attn_v.bias", OPS_ROLE_VECTOR, DIM_1, DIM_V},
    [LT_Q_GATE]         = {"attn_q_gate.weight", OPS_ROLE_MATMUL, DIM_AUG_Q, DIM_Q},
    [LT_Q_UP]           = {"attn_q_up.weight", OPS_ROLE_MATMUL, DIM_AUG_Q, DIM_Q},
    [LT_Q_DOWN]         = {"attn_q_down.weight", OPS_ROLE_MATMUL, DIM_Q, DIM_AUG_Q},
    [LT_Q_NORM]         = {"attn_q_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_HEAD},
    [LT_K_NORM]         = {"attn_k_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_HEAD},
    [LT_Q_NORM_WIDE]    = {"attn_q_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_Q},
    [LT_K_NORM_WIDE]    = {"attn_k_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_K},
    [LT_MIX]            = {"attn_qkv.weight", OPS_ROLE_MATMUL, DIM_MIX, DIM_EMBD},
    [LT_Z]              = {"attn_gate.weight", OPS_ROLE_MATMUL, DIM_MIX_V, DIM_EMBD},
    [LT_ALPHA]          = {"ssm_alpha.weight", OPS_ROLE_MATMUL, DIM_MIX_N, DIM_EMBD},
    [LT_BETA]           = {"ssm_beta.weight", OPS_ROLE_MATMUL, DIM_MIX_N, DIM_EMBD},
    [LT_CONV]           = {"ssm_conv1d.weight", OPS_ROLE_VECTOR, DIM_CHANNELS, DIM_WIDTH},
    [LT_CONV_B]         = {"ssm_conv1d.bias", OPS_ROLE_VECTOR, DIM_1, DIM_CHANNELS},
    [LT_DECAY]          = {"ssm_a", OPS_ROLE_VECTOR, DIM_1, DIM_MIX_N},
    [LT_DECAY_B]        = {"ssm_dt", OPS_ROLE_VECTOR, DIM_1, DIM_MIX_N},
    [LT_MIX_NORM]       = {"ssm_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_MIX_HEAD},
    [LT_SCAN_DECAY]     = {"ssm_a", OPS_ROLE_VECTOR, DIM_MIX_N, DIM_1},
    [LT_SCAN_SKIP]      = {"ssm_d", OPS_ROLE_VECTOR, DIM_MIX_N, DIM_1},
    [LT_SCAN_NORM]      = {"ssm_norm.weight", OPS_ROLE_VECTOR, DIM_GROUPS, DIM_GROUP},
    [LT_MIX_O]          = {"ssm_out.weight", OPS_ROLE_MATMUL, DIM_EMBD, DIM_MIX_V},
    [LT_SINKS]          = {"attn_sinks.weight", OPS_ROLE_VECTOR, DIM_1, DIM_HEADS},
    [LT_O]              = {"attn_output.weight", OPS_ROLE_MATMUL, DIM_EMBD, DIM_ATT},
    [LT_O_B]            = {"attn_output.bias", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_POST_ATTN_NORM] = {"post_attention_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_FFN_NORM]       = {"ffn_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_FFN_NORM_B]     = {"ffn_norm.bias", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_GATE]           = {"ffn_gate.weight", OPS_ROLE_MATMUL, DIM_FF, DIM_EMBD},
    [LT_GATE_B]         = {"ffn_gate.bias", OPS_ROLE_VECTOR, DIM_1, DIM_FF},
    [LT_UP]             = {"ffn_up.weight", OPS_ROLE_MATMUL, DIM_FF, DIM_EMBD},
    [LT_UP_B]           = {"ffn_up.bias", OPS_ROLE_VECTOR, DIM_1, DIM_FF},
    [LT_DOWN]           = {"ffn_down.weight", OPS_ROLE_MATMUL, DIM_EMBD, DIM_FF},
    [LT_DOWN_B]         = {"ffn_down.bias", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_ROUTER]         = {"ffn_gate_inp.weight", OPS_ROLE_MATMUL, DIM_EXPERTS, DIM_EMBD},
    [LT_EXPERTS_GATE]   = {"ffn_gate_exps.weight", OPS_ROLE_MATMUL, DIM_EXPERT_FF, DIM_EMBD, .stack = true},
    [LT_EXPERTS_UP]     = {"ffn_up_exps.weight", OPS_ROLE_MATMUL, DIM_EXPERT_FF, DIM_EMBD, .stack = true},
    [LT_EXPERTS_DOWN]   = {"ffn_down_exps.weight", OPS_ROLE_MATMUL, DIM_EMBD, DIM_EXPERT_FF, .stack = true},
    [LT_ROUTER_B]       = {"ffn_gate_inp.bias", OPS_ROLE_VECTOR, DIM_1, DIM_EXPERTS},
    [LT_EXPERTS_GATE_B] = {"ffn_gate_exps.bias", OPS_ROLE_VECTOR, DIM_EXPERTS, DIM_EXPERT_FF},
    [LT_EXPERTS_UP_B]   = {"ffn_up_exps.bias", OPS_ROLE_VECTOR, DIM_EXPERTS, DIM_EXPERT_FF},
    [LT_EXPERTS_DOWN_B] = {"ffn_down_exps.bias", OPS_ROLE_VECTOR, DIM_EXPERTS, DIM_EMBD},
    [LT_SHARED_ROUTER]  = {"ffn_gate_inp_shexp.weight", OPS_ROLE_MATMUL, DIM_1, DIM_EMBD},
    [LT_SHARED_GATE]    = {"ffn_gate_shexp.weight", OPS_ROLE_MATMUL, DIM_SHARED_FF, DIM_EMBD},
    [LT_SHARED_UP]      = {"ffn_up_shexp.weight", OPS_ROLE_MATMUL, DIM_SHARED_FF, DIM_EMBD},
    [LT_SHARED_DOWN]    = {"ffn_down_shexp.weight", OPS_ROLE_MATMUL, DIM_EMBD, DIM_SHARED_FF},
    [LT_ROUTER_NORM]    = {"ffn_gate_inp.scale", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_EXPERTS_NORM]   = {"pre_ffw_norm_2.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_POST_BESIDE_NORM]  = {"post_ffw_norm_1.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_POST_EXPERTS_NORM] = {"post_ffw_norm_2.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_EXPERTS_FACTOR] = {"ffn_down_exps.scale", OPS_ROLE_VECTOR, DIM_1, DIM_EXPERTS},
    [LT_POST_FFN_NORM]  = {"post_ffw_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_PLE_GATE]       = {"inp_gate.weight", OPS_ROLE_MATMUL, DIM_PLE, DIM_EMBD},
    [LT_PLE_PROJ]       = {"proj.weight", OPS_ROLE_MATMUL, DIM_EMBD, DIM_PLE},
    [LT_PLE_NORM]       = {"post_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [LT_SWIFT_Q]        = {"attn_q_swiftkv.weight", OPS_ROLE_MATMUL, DIM_Q, DIM_EMBD},
    [LT_SWIFT_Q_B]      = {"attn_q_swiftkv.bias", OPS_ROLE_VECTOR, DIM_1, DIM_Q},
    [LT_SWIFT_K]        = {"attn_k_swiftkv.weight", OPS_ROLE_MATMUL, DIM_DEEP_K, DIM_EMBD},
    [LT_SWIFT_K_B]      = {"attn_k_swiftkv.bias", OPS_ROLE_VECTOR, DIM_1, DIM_DEEP_K},
    [LT_SWIFT_V]        = {"attn_v_swiftkv.weight", OPS_ROLE_MATMUL, DIM_DEEP_V, DIM_EMBD},
    [LT_SWIFT_V_B]      = {"attn_v_swiftkv.bias", OPS_ROLE_VECTOR, DIM_1, DIM_DEEP_V},
    [LT_SWIFT_O]        = {"attn_output_swiftkv.weight", OPS_ROLE_MATMUL, DIM_EMBD, DIM_ATT},
    [LT_SKEW]           = {"attn_skew.weight", OPS_ROLE_VECTOR, DIM_DEEP_K, DIM_HEAD},
    [LT_COLUMNS]        = {"attn_columns.weight", OPS_ROLE_VECTOR, DIM_DEEP_K, DIM_HEAD},
    [LT_CENTER]         = {"attn_center.weight", OPS_ROLE_VECTOR, DIM_1, DIM_DEEP_K},
    [LT_BALANCE]        = {"attn_balance.weight", OPS_ROLE_VECTOR, DIM_1, DIM_DEEP_K},
    [LT_SCORE]          = {"attn_score.weight", OPS_ROLE_MATMUL, DIM_K_HEADS, DIM_EMBD},
    [LT_SCORE_B]        = {"attn_score.bias", OPS_ROLE_VECTOR, DIM_1, DIM_K_HEADS},
    [LT_CARRY]          = {"attn_query.weight", OPS_ROLE_VECTOR, DIM_DEEP_K, DIM_HEAD},
    [LT_CARRY_TURNED]   = {"attn_query_turned.weight", OPS_ROLE_VECTOR, DIM_DEEP_K, DIM_HEAD},
};

const struct tensor_row arch_model_tensors[MT_COUNT] = {
    [MT_EMBED]         = {"token_embd.weight", OPS_ROLE_EMBED, DIM_VOCAB, DIM_EMBD},
    [MT_PLE_NORM]      = {"per_layer_proj_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_PLE},
    [MT_ROPE_FREQS]    = {"rope_freqs.weight", OPS_ROLE_VECTOR, DIM_1, DIM_ROT2},
    [MT_SWIFT_NORM]    = {"norm_swiftkv.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [MT_EXIT_NORM]     = {"exit_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [MT_EXIT_HEAD]     = {"exit_head.weight", OPS_ROLE_MATMUL, DIM_EXIT, DIM_EMBD},
    [MT_OUTPUT_NORM]   = {"output_norm.weight", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [MT_OUTPUT_NORM_B] = {"output_norm.bias", OPS_ROLE_VECTOR, DIM_1, DIM_EMBD},
    [MT_OUTPUT]        = {"output.weight", OPS_ROLE_MATMUL, DIM_VOCAB, DIM_EMBD},
    [MT_OUTPUT_B]      = {"output.bias", OPS_ROLE_VECTOR, DIM_1, DIM_VOCAB},
};

#define LT_QKVO (LT_BIT(LT_Q) | LT_BIT(LT_K) | LT_BIT(LT_V) | LT_BIT(LT_O))
#define LT_QKV_B (LT_BIT(LT_Q_B) | LT_BIT(LT_K_B) | LT_BIT(LT_V_B))
#define LT_QK_NORM (LT_BIT(LT_Q_NORM) | LT_BIT(LT_K_NORM))
#define LT_QK_NORM_WIDE (LT_BIT(LT_Q_NORM_WIDE) | LT_BIT(LT_K_NORM_WIDE))
#define LT_GATED (LT_BIT(LT_GATE) | LT_BIT(LT_UP) | LT_BIT(LT_DOWN))
#define LT_EXPERTS (LT_BIT(LT_ROUTER) | LT_BIT(LT_EXPERTS_GATE) | LT_BIT(LT_EXPERTS_UP) | LT_BIT(LT_EXPERTS_DOWN))
#define LT_EXPERTS_B                                                                               \
    (LT_BIT(LT_ROUTER_B) | LT_BIT(LT_EXPERTS_GATE_B) | LT_BIT(LT_EXPERTS_UP_B) |                   \
     LT_BIT(LT_EXPERTS_DOWN_B))
#define LT_BESIDE                                                                                  \
    (LT_BIT(LT_ROUTER_NORM) | LT_BIT(LT_EXPERTS_NORM) | LT_BIT(LT_POST_BESIDE_NORM) |              \
     LT_BIT(LT_POST_EXPERTS_NORM))
#define LT_SHARED (LT_BIT(LT_SHARED_GATE) | LT_BIT(LT_SHARED_UP) | LT_BIT(LT_SHARED_DOWN))
#define LT_GATED_B (LT_BIT(LT_GATE_B) | LT_BIT(LT_UP_B) | LT_BIT(LT_DOWN_B))
#define LT_PRE (LT_BIT(LT_ATTN_NORM) | LT_BIT(LT_FFN_NORM))
#define LT_PRE_B (LT_BIT(LT_ATTN_NORM_B) | LT_BIT(LT_FFN_NORM_B))
#define LT_POST (LT_BIT(LT_POST_ATTN_NORM) | LT_BIT(LT_POST_FFN_NORM))
#define LT_DELTA                                                                                   \
    (LT_BIT(LT_MIX) | LT_BIT(LT_Z) | LT_BIT(LT_ALPHA) | LT_BIT(LT_BETA) | LT_BIT(LT_CONV) |        \
     LT_BIT(LT_DECAY) | LT_BIT(LT_DECAY_B) | LT_BIT(LT_MIX_NORM) | LT_BIT(LT_MIX_O))
#define LT_SCAN                                                                                    \
    (LT_BIT(LT_MIX) | LT_BIT(LT_CONV) | LT_BIT(LT_DECAY_B) | LT_BIT(LT_SCAN_DECAY) |               \
     LT_BIT(LT_SCAN_SKIP) | LT_BIT(LT_SCAN_NORM) | LT_BIT(LT_MIX_O))
#define LT_AUG_Q (LT_BIT(LT_Q_GATE) | LT_BIT(LT_Q_UP) | LT_BIT(LT_Q_DOWN))

static const struct arch archs[] = {
    {.name = "llama", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NORM, .act = OPS_ACT_SILU, .gated = true,
     .ffn_scales = true, .experts = true, .experts_normed = true, .experts_whole = true,
     .required = LT_PRE | LT_QKVO | LT_GATED,
     .optional = LT_QKV_B | LT_BIT(LT_O_B) | LT_GATED_B},
    {.name = "mistral3", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NORM, .act = OPS_ACT_SILU, .gated = true,
     .ffn_scales = true, .temperature = true, .experts = true, .experts_normed = true, .experts_whole = true,
     .required = LT_PRE | LT_QKVO | LT_GATED,
     .optional = LT_QKV_B | LT_BIT(LT_O_B) | LT_GATED_B},
    {.name = "granite", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NORM, .act = OPS_ACT_SILU, .gated = true,
     .multipliers = true, .rope_switch = true, .experts = true, .experts_normed = true, .experts_whole = true,
     .required = LT_PRE | LT_QKVO | LT_GATED,
     .optional = LT_QKV_B | LT_BIT(LT_O_B) | LT_GATED_B | LT_SHARED},
    {.name = "granitemoe", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NORM, .act = OPS_ACT_SILU, .gated = true,
     .multipliers = true, .experts = true, .experts_normed = true, .experts_whole = true,
     .required = LT_PRE | LT_QKVO | LT_GATED,
     .optional = LT_QKV_B | LT_BIT(LT_O_B) | LT_GATED_B | LT_SHARED},
    {.name = "granitehybrid", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NORM, .act = OPS_ACT_SILU, .gated = true,
     .multipliers = true, .rope_switch = true, .experts = true, .experts_normed = true, .experts_whole = true,
     .recurrence = ARCH_RECUR_SCAN,
     .required = LT_PRE | LT_QKVO | LT_GATED,
     .optional = LT_QKV_B | LT_BIT(LT_O_B) | LT_GATED_B | LT_SHARED,
     .recur_required = LT_PRE | LT_SCAN | LT_GATED,
     .recur_optional = LT_BIT(LT_CONV_B) | LT_GATED_B | LT_SHARED,
     .names = {{&arch_layer_tensors[LT_MIX], "ssm_in.weight"}, {&arch_layer_tensors[LT_DECAY_B], "ssm_dt.bias"}}},
    {.name = "qwen3moe", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .ffn_scales = true, .experts = true, .experts_normed = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM | LT_EXPERTS, .optional = LT_QKV_B},
    {.name = "qwen2", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .required = LT_PRE | LT_QKVO | LT_QKV_B | LT_GATED},
    {.name = "qwen3", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .ffn_scales = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM | LT_GATED, .optional = LT_QKV_B},
    {.name = "qwen3vl", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .ffn_scales = true, .sections = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM | LT_GATED, .optional = LT_QKV_B},
    {.name = "seed_oss", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .required = LT_PRE | LT_QKVO | LT_GATED, .optional = LT_QKV_B,
     .names = {{&arch_layer_tensors[LT_FFN_NORM], "post_attention_norm.weight"}}},
    {.name = "qwen2moe", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .experts = true,
     .required = LT_PRE | LT_QKVO | LT_EXPERTS | LT_SHARED | LT_BIT(LT_SHARED_ROUTER), .optional = LT_QKV_B},
    {.name = "qwen35", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .ffn_scales = true, .recurrence = ARCH_RECUR_DELTA, .q_gated = true, .sections = true, .predictors = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM | LT_GATED, .optional = LT_QKV_B,
     .recur_required = LT_PRE | LT_DELTA | LT_GATED,
     .names = {{&arch_layer_tensors[LT_FFN_NORM], "post_attention_norm.weight"},
               {&arch_layer_tensors[LT_DECAY_B], "ssm_dt.bias"}}},
    {.name = "qwen35moe", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .ffn_scales = true, .recurrence = ARCH_RECUR_DELTA, .q_gated = true, .sections = true, .predictors = true,
     .experts = true, .experts_normed = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM | LT_EXPERTS | LT_SHARED | LT_BIT(LT_SHARED_ROUTER), .optional = LT_QKV_B,
     .recur_required = LT_PRE | LT_DELTA | LT_EXPERTS | LT_SHARED | LT_BIT(LT_SHARED_ROUTER),
     .names = {{&arch_layer_tensors[LT_FFN_NORM], "post_attention_norm.weight"},
               {&arch_layer_tensors[LT_DECAY_B], "ssm_dt.bias"}}},
    {.name = "lfm2", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .recurrence = ARCH_RECUR_CONV, .window_period = INT32_MAX, .window_scaled = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM | LT_GATED, .optional = LT_QKV_B,
     .recur_required = LT_PRE | LT_BIT(LT_MIX) | LT_BIT(LT_CONV) | LT_BIT(LT_MIX_O) | LT_GATED,
     .names = {{&arch_layer_tensors[LT_MIX], "shortconv.in_proj.weight"},
               {&arch_layer_tensors[LT_CONV], "shortconv.conv.weight"},
               {&arch_layer_tensors[LT_MIX_O], "shortconv.out_proj.weight"},
               {&arch_model_tensors[MT_OUTPUT_NORM], "token_embd_norm.weight"}}},
    {.name = "lfm2moe", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .recurrence = ARCH_RECUR_CONV, .window_period = INT32_MAX, .window_scaled = true,
     .experts = true, .experts_normed = true, .router_key = true, .router_chooses = true, .experts_lead = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM | LT_EXPERTS | LT_BIT(LT_ROUTER_B), .optional = LT_QKV_B,
     .recur_required = LT_PRE | LT_BIT(LT_MIX) | LT_BIT(LT_CONV) | LT_BIT(LT_MIX_O) | LT_EXPERTS | LT_BIT(LT_ROUTER_B),
     .names = {{&arch_layer_tensors[LT_ROUTER_B], "exp_probs_b.bias"},
               {&arch_layer_tensors[LT_MIX], "shortconv.in_proj.weight"},
               {&arch_layer_tensors[LT_CONV], "shortconv.conv.weight"},
               {&arch_layer_tensors[LT_MIX_O], "shortconv.out_proj.weight"},
               {&arch_model_tensors[MT_OUTPUT_NORM], "token_embd_norm.weight"}}},
    {.name = "qwen3vlmoe", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .ffn_scales = true, .experts = true, .experts_normed = true, .sections = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM | LT_EXPERTS, .optional = LT_QKV_B},
    {.name = "olmoe", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .experts = true, .experts_whole = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM_WIDE | LT_EXPERTS, .optional = LT_QKV_B},
    {.name = "glm4moe", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .experts = true, .router = OPS_ROUTER_SIGMOID, .router_key = true, .weights_keys = true, .router_chooses = true,
     .experts_lead = true, .shared_counted = true, .predictors = true,
     .required = LT_PRE | LT_QKVO | LT_EXPERTS | LT_BIT(LT_ROUTER_B), .optional = LT_QKV_B | LT_QK_NORM | LT_SHARED,
     .names = {{&arch_layer_tensors[LT_FFN_NORM], "post_attention_norm.weight"},
               {&arch_layer_tensors[LT_ROUTER_B], "exp_probs_b.bias"}}},
    {.name = "ernie4_5-moe", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NORM, .act = OPS_ACT_SILU, .gated = true,
     .experts = true, .experts_normed = true, .router_chooses = true, .experts_lead = true, .experts_step = true,
     .required = LT_PRE | LT_QKVO | LT_EXPERTS, .optional = LT_QKV_B | LT_BIT(LT_O_B) | LT_BIT(LT_ROUTER_B) | LT_SHARED,
     .names = {{&arch_layer_tensors[LT_ROUTER_B], "exp_probs_b.bias"}}},
    {.name = "dots1", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .experts = true, .router_key = true, .weights_keys = true, .router_chooses = true,
     .experts_lead = true, .shared_counted = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM | LT_EXPERTS | LT_SHARED, .optional = LT_QKV_B | LT_BIT(LT_ROUTER_B),
     .names = {{&arch_layer_tensors[LT_ROUTER_B], "exp_probs_b.bias"}}},
    {.name = "minimax-m2", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .experts = true, .experts_normed = true, .router = OPS_ROUTER_SIGMOID, .router_key = true, .router_chooses = true,
     .experts_whole = true,
     .required = LT_PRE | LT_QKVO | LT_QK_NORM_WIDE | LT_EXPERTS | LT_BIT(LT_ROUTER_B), .optional = LT_QKV_B,
     .names = {{&arch_layer_tensors[LT_ROUTER_B], "exp_probs_b.bias"}}},
    {.name = "gpt-oss", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SWIGLU_OAI, .gated = true,
     .experts = true, .experts_normed = true, .window_period = 2, .window_scaled = true,
     .required = LT_PRE | LT_QKVO | LT_BIT(LT_O_B) | LT_BIT(LT_SINKS) | LT_EXPERTS | LT_EXPERTS_B, .optional = LT_QKV_B,
     .names = {{&arch_layer_tensors[LT_FFN_NORM], "post_attention_norm.weight"}}},
    {.name = "gemma3", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_GELU_TANH, .gated = true,
     .embed_scaled = true, .caps_logits = true, .window_period = 6, .window_rope_base = 10000.0f,
     .even_split_layers = 62,
     .required = LT_PRE | LT_POST | LT_QKVO | LT_QK_NORM | LT_GATED, .optional = LT_QKV_B},
    {.name = "gemma2", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_GELU_TANH, .gated = true,
     .embed_scaled = true, .caps_attn = true, .caps_logits = true, .window_period = 2, .window = 4096, .window_scaled = true,
     .even_split_layers = 46, .attn_softcap = 50.0f, .final_softcap = 30.0f,
     .required = LT_PRE | LT_POST | LT_QKVO | LT_GATED, .optional = LT_QKV_B},
    {.name = "smollm3", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NORM, .act = OPS_ACT_SILU, .gated = true,
     .no_rope_period = 4,
     .required = LT_PRE | LT_QKVO | LT_GATED, .optional = LT_QKV_B | LT_GATED_B},
    {.name = "phi3", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .fused_ffn = true,
     .required = LT_PRE | LT_QKVO | LT_GATED, .optional = LT_QKV_B | LT_BIT(LT_O_B)},
    {.name = "olmo2", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .window_period = 4,
     .required = LT_POST | LT_QKVO | LT_QK_NORM_WIDE | LT_GATED, .optional = LT_QKV_B},
    {.name = "exaone4", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .window_period = 4, .window_layers = 64, .window = 4096, .window_scaled = true, .rope_local_only = true,
     .required = LT_POST | LT_QKVO | LT_QK_NORM | LT_GATED, .optional = LT_QKV_B},
    {.name = "nemotron", .norm = OPS_NORM_LAYER, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_RELU_SQ,
     .required = LT_PRE | LT_PRE_B | LT_QKVO | LT_BIT(LT_UP) | LT_BIT(LT_DOWN),
     .optional = LT_QKV_B | LT_BIT(LT_O_B) | LT_BIT(LT_UP_B) | LT_BIT(LT_DOWN_B)},
    {.name = "nemotron_h", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NONE, .act = OPS_ACT_RELU_SQ,
     .recurrence = ARCH_RECUR_SCAN, .single = true, .ffn_scales = true,
     .required = LT_BIT(LT_ATTN_NORM) | LT_QKVO, .optional = LT_QKV_B | LT_BIT(LT_O_B),
     .recur_required = LT_BIT(LT_ATTN_NORM) | LT_SCAN, .recur_optional = LT_BIT(LT_CONV_B),
     .names = {{&arch_layer_tensors[LT_MIX], "ssm_in.weight"}, {&arch_layer_tensors[LT_DECAY_B], "ssm_dt.bias"}}},
    {.name = "nemotron_h_moe", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NONE, .act = OPS_ACT_RELU_SQ,
     .recurrence = ARCH_RECUR_SCAN, .single = true, .ffn_scales = true,
     .experts = true, .router = OPS_ROUTER_SIGMOID, .weights_keys = true, .router_chooses = true,
     .required = LT_BIT(LT_ATTN_NORM) | LT_QKVO,
     .optional = LT_QKV_B | LT_BIT(LT_O_B) | LT_BIT(LT_SHARED_UP) | LT_BIT(LT_SHARED_DOWN),
     .recur_required = LT_BIT(LT_ATTN_NORM) | LT_SCAN, .recur_optional = LT_BIT(LT_CONV_B),
     .names = {{&arch_layer_tensors[LT_ROUTER_B], "exp_probs_b.bias"},
               {&arch_layer_tensors[LT_MIX], "ssm_in.weight"}, {&arch_layer_tensors[LT_DECAY_B], "ssm_dt.bias"}}},
    {.name = "mamba2", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NONE, .act = OPS_ACT_NONE,
     .recurrence = ARCH_RECUR_SCAN, .single = true, .recurrent = true,
     .recur_required = LT_BIT(LT_ATTN_NORM) | LT_SCAN, .recur_optional = LT_BIT(LT_CONV_B),
     .names = {{&arch_layer_tensors[LT_MIX], "ssm_in.weight"}, {&arch_layer_tensors[LT_DECAY_B], "ssm_dt.bias"}}},
    {.name = "gemma4", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_GELU_TANH, .gated = true,
     .embed_scaled = true, .caps_logits = true, .ffn_scales = true, .v_norm = true, .per_layer = true, .out_scale = true,
     .shared_kv = true, .window_period = -1, .window_rope_base = 10000.0f, .attn_scale = 1.0f,
     .experts = true, .experts_normed = true, .experts_beside = true,
     .required = LT_PRE | LT_POST | LT_BIT(LT_Q) | LT_BIT(LT_K) | LT_BIT(LT_O) | LT_QK_NORM | LT_GATED,
     .optional = LT_BIT(LT_V) | LT_BESIDE},
    {.name = "sigma", .norm = OPS_NORM_RMS, .rope = OPS_ROPE_NEOX, .act = OPS_ACT_SILU, .gated = true,
     .diff_kv = true,
     .required = LT_PRE | LT_QKVO | LT_GATED,
     .optional = LT_AUG_Q},
};
/* clang-format on */

const struct arch *arch_find(const char *name)
{
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        if (strcmp(archs[i].name, name) == 0) {
            return &archs[i];
        }
    }
    return NULL;
}

const char *arch_tensor_name(const struct arch *arch, const struct tensor_row *row)
{
    for (int i = 0; i < ARCH_MAX_ALIASES; i++) {
        if (arch->names[i].row == row) {
            return arch->names[i].name;
        }
    }
    return row->name;
}

void arch_names(char *buf, size_t size)
{
    const size_t n = sizeof(archs) / sizeof(archs[0]);
    const size_t rest = sizeof(", and 000 more"); /* what must still fit */
    size_t used = 0;

    buf[0] = 0;
    for (size_t i = 0; i < n; i++) {
        if (used + strlen(archs[i].name) + 2 + rest > size) {
            (void)snprintf(buf + used, size - used, ", and %zu more", n - i);
            return;
        }
        used += (size_t)snprintf(buf + used, size - used, "%s%s", i ? ", " : "", archs[i].name);
    }
}

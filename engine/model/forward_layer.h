/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_FORWARD_LAYER_H
#define PIPIT_ENGINE_MODEL_FORWARD_LAYER_H

/* The instructions, for the list that forward.c makes of them, and what they have in common. Private to
 * forward*.c. */

#include "engine/model/forward_impl.h"

/* Embeddings of the batch's rows into a buffer. */
int forward_embed(struct forward *f, struct buffer to);

/* The instructions of a layer. `_qkv_store` is both in one, where the backend has it and nothing comes
 * between them; `_aug_q_*` DiffQKV's augmented Q; `_v_norm` where V heads are normed. */
int forward_step_embed(struct forward *f, int32_t layer);
int forward_step_qkv(struct forward *f, int32_t layer);
int forward_step_v_norm(struct forward *f, int32_t layer);
int forward_step_map_q(struct forward *f, int32_t layer); /* of layers that read a wide store */
int forward_step_map_v(struct forward *f, int32_t layer);
int forward_step_aug_q_in(struct forward *f, int32_t layer);
int forward_step_aug_q_out(struct forward *f, int32_t layer);
int forward_step_qk_norm(struct forward *f, int32_t layer);
int forward_step_store(struct forward *f, int32_t layer);
int forward_step_qkv_store(struct forward *f, int32_t layer);
int forward_step_score(struct forward *f, int32_t layer);
int forward_step_attend(struct forward *f, int32_t layer);
int forward_step_mix_out(struct forward *f, int32_t layer);
int forward_step_attn_out(struct forward *f, int32_t layer);
int forward_step_ffn_in(struct forward *f, int32_t layer);
int forward_step_ffn_out(struct forward *f, int32_t layer);
int forward_step_experts(struct forward *f, int32_t layer); /* in place of both */
int forward_step_ffn_beside(struct forward *f, int32_t layer); /* of both: the FFN's, normed, */
int forward_step_experts_beside(struct forward *f, int32_t layer); /* and the experts', */
int forward_step_beside_out(struct forward *f, int32_t layer);     /* normed as one */

/* forward_split.c: K and V of DEEP_STORES stores from `first_store` on, or of one; which rows go on. */
int forward_step_deep_kv(struct forward *f, int32_t first_store);
int forward_step_one_deep_kv(struct forward *f, int32_t store);
int forward_step_survivors(struct forward *f, int32_t layer);
int forward_step_out_scale(struct forward *f, int32_t layer);

/* forward_recur.c: queries without their gates; these on attention's output; a recurrent layer. */
int forward_step_q_split(struct forward *f, int32_t layer);
int forward_step_att_gate(struct forward *f, int32_t layer);
int forward_step_mix(struct forward *f, int32_t layer);
int forward_step_conv(struct forward *f, int32_t layer);
int forward_step_gated_conv(struct forward *f, int32_t layer);
int forward_step_delta(struct forward *f, int32_t layer);
int forward_step_scan(struct forward *f, int32_t layer);

/* forward_ple.c: a layer's part of the per-layer embeddings, and what it adds. */
int forward_step_ple_in(struct forward *f, int32_t layer);
int forward_step_ple_out(struct forward *f, int32_t layer);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_ROPE_H
#define PIPIT_ENGINE_MODEL_ROPE_H

/* Tables of inverse frequencies: base, linear and YaRN scaling, and Llama 3's factors, folded into
 * one number a pair, computed in double. */

#include "engine/model/hparams.h"

/* inv_freq (n_rot / 2), n_rot dims of a head. `factors` (n_rot / 2) divides the frequencies, or NULL. `scaled`: apply the
 * model's scaling (most models' sliding layers do not). Returns the factor for cos and sin. */
float rope_table(const struct hparams *h, int32_t n_rot, float base, bool scaled,
                 const float *factors, float *inv_freq);

#endif

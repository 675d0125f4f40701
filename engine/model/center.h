/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_CENTER_H
#define PIPIT_ENGINE_MODEL_CENTER_H

/* What the keys of a head have in common, and a cache of few bits therefore need not hold
 * (struct ops_kv.center; docs/design/centring.md): where no file brings it, the bias of the K
 * projection, rotated, averaged over positions. It follows from the model file alone, so every
 * backend and every saved session has the same. */

#include "engine/model/model.h"

struct model_weight;

/* Describes the weight LT_CENTER of a store that has such a bias; 1. 0: it has none, or its keys
 * pass a norm behind it, or the model caps its logits. -ENOMEM. */
int center_derive(struct model *m, int32_t store, struct model_weight *ret);

/* What the values of all that were derived take. */
uint64_t center_bytes(const struct model *m);

/* The values of all that were derived; -EBADMSG for any, a file's included, that is not finite. */
int center_fill(struct model *m, struct error *reterr) WARN_UNUSED;

/* What `x` (dims of one head) becomes under the rotation, averaged over positions [0, n). */
void center_turn(const struct ops_rope *rope, int32_t n, const float *x, int32_t dims, float *ret);

#endif

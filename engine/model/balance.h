/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_BALANCE_H
#define PIPIT_ENGINE_MODEL_BALANCE_H

/* Factors of the dims of K, which queries are divided by, for keys that are rotated before they are
 * rounded (struct ops_kv.balance; docs/design/centring.md). They follow from the model file alone,
 * so every backend and every saved session has the same. */

#include "engine/model/model.h"

struct model_weight;

/* Describes the weight LT_BALANCE of a store; 1. 0: what its queries or keys are made of is not as
 * this file knows it. -ENOMEM. */
int balance_derive(struct model *m, int32_t store, struct model_weight *ret);

/* Of the host, that the derived ones take until the model is closed. */
uint64_t balance_bytes(const struct model *m);

/* (n_k * k_dim) of a store, or NULL: it has none. */
const float *balance_of(const struct model *m, int32_t store);

/* The values of all that were derived; nothing where m->rotates is not set. */
int balance_fill(struct model *m, struct error *reterr) WARN_UNUSED;

#endif

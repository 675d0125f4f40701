/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_CARRY_H
#define PIPIT_ENGINE_MODEL_CARRY_H

/* How the rounding errors of a store's keys are carried on (ops_kv.carry, kernels/kv_round.h), made
 * from the mean of q q^T over the queries of each K head, which an overlay brings
 * (blk.N.attn_query.weight, by pipit-calibrate). */

#include "engine/model/model.h"

struct model_weight;

/* Is the tensor that `file` describes LT_CARRY of the store? 0, or -EBADMSG with its cause. */
int carry_check(const struct model *m, int32_t store, const struct model_weight *file,
                struct error *reterr) WARN_UNUSED;
/* Behind it: takes the tensor that `file` describes, LT_CARRY of the store, and describes in its
 * place what is made of it. 0, or -ENOMEM. */
int carry_derive(struct model *m, int32_t store, struct model_weight *file,
                 struct error *reterr) WARN_UNUSED;
/* Behind it: describes LT_CARRY_TURNED of the store in `ret`. */
void carry_turned(struct model *m, int32_t store, const struct model_weight *plain,
                  struct model_weight *ret);
uint64_t carry_bytes(const struct model *m);

/* Is it such a weight? Then carry_fill() makes its values, where its data points to, before it is
 * loaded. Behind balance_fill(). -EBADMSG: the mean is none. */
bool carry_is(const struct model *m, const struct model_weight *w);
int carry_fill(struct model *m, const struct model_weight *w, struct error *reterr) WARN_UNUSED;
void carry_finish(struct model *m);

#endif

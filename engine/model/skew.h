/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_SKEW_H
#define PIPIT_ENGINE_MODEL_SKEW_H

/* The rotations by which slots are ranked a layer ahead (LT_SKEW, LT_COLUMNS), as files bring them.
 */

#include "engine/model/model.h"

/* -EBADMSG naming the tensor and head whose rows are not orthonormal to 1e-2: ranking by such a
 * matrix would choose wrongly and in silence. */
int skew_check(const struct model *m, struct error *reterr) WARN_UNUSED;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_PLE_H
#define PIPIT_ENGINE_MODEL_PLE_H

/* Per-layer embeddings (PLE): a table with a row for each token, of which every layer reads a part
 * of its own. The table is larger than all layers together, and a token needs one row of it, so it
 * is never loaded: rows are decoded out of the file's map, and the pages that this brought in are
 * let go again. */

#include "engine/model/model.h"

enum { PLE_RESIDENT_BYTES = 8 << 20 }; /* of the table, at most, between two calls of ple_read */

/* What the plan counts of it among the maps. */
uint64_t ple_resident_bytes(const struct model_ple *t);

/* Part `layer` of the rows of n tokens, times `scale`: dst (n, ld). */
void ple_read(struct model_ple *t, int32_t layer, const int32_t *ids, int32_t n, float scale,
              int32_t width, float *dst, int32_t ld);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_PREPARE_H
#define PIPIT_ENGINE_PREPARE_H

/* What engine_plan() and engine_create() have in common: files opened and checked, and the plan.
 * Everything here needs no memory to speak of. */

#include "engine/engine.h"
#include "engine/kv/kv.h"
#include "engine/model/model.h"

struct prepared {
    struct engine_config config;
    struct backend_config be_config;
    const struct backend_ops *ops;
    struct gguf *base;
    struct gguf *overlays[MODEL_MAX_OVERLAYS];
    char sha256[65];
    char overlay_sha256[MODEL_MAX_OVERLAYS][65];
    struct model *model;
    struct policy_mix mix;
    struct geometry_store *stores; /* (model->n_stores) */
    int32_t max_chunk;
    int32_t batch_tokens;
    uint64_t index_bytes; /* the files' indices, the tokenizer and the lists of tensors */
};

/* Opens the files that `c` names and checks whatever can be checked without memory. `p` is written
 * in any case; on an error it is finished. 0, or a negative errno with its cause. */
int prepare(const struct engine_config *c, struct prepared *p, struct error *reterr) WARN_UNUSED;

/* Closes what prepare() opened; the backend must not read the weights any more. */
void prepared_finish(struct prepared *p);

/* The plan in bytes, `be` says what the device has free, and the geometry of the cache that goes
 * with it (geometry_finish() frees it, also after an error). */
int prepared_plan(const struct prepared *p, struct backend *be, struct plan *ret,
                  struct geometry *ret_geometry, struct error *reterr) WARN_UNUSED;

/* Rows of a step that prompts and decoding may fill while a next token is waited for; the same
 * where none is, and prompt_rows of one prompt (struct plan) may be among them; and rows of drafted
 * tokens beside them. */
int32_t prepared_rows(const struct prepared *p, int32_t n_seqs);
int32_t prepared_most_rows(const struct prepared *p, int32_t n_seqs, int32_t prompt_rows);
int32_t prepared_draft_rows(const struct prepared *p, int32_t n_seqs);

/* What the backend must have room for. */
struct backend_limits prepared_limits(const struct prepared *p, int32_t ctx, int32_t n_seqs,
                                      int32_t prompt_rows);

/* Slots that a layer may be said to read a layer ahead; 0 where no policy predicts. */
int32_t prepared_predicted(const struct prepared *p, int32_t ctx);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_CUDA_FAKE_ENGINE_H
#define PIPIT_TESTS_CUDA_FAKE_ENGINE_H

/* A whole engine over the fake run-time library, and requests to it. */

#include "engine/engine.h"
#include "tests/cuda/fake_open.h"

enum { FAKE_PROMPT = 40, FAKE_NEW = 12 };

extern const char *fake_folder; /* of the models: tests/data */
extern int32_t fake_ctx;        /* of the engines made from here on; 256 unless changed */

/* An engine of folder/model.gguf, one thread; with infinigen in `kv`, under the overlay
 * that rotates. As engine_create. */
int fake_engine(const char *model, const char *kv, int32_t n_seqs, struct engine **ret,
                struct error *e);

/* A prompt of FAKE_PROMPT tokens for FAKE_NEW greedy ones. As engine_submit. */
int fake_submit(struct engine *e, struct error *err);
/* So many of these to their end, or to a step's error, which is returned. */
int fake_run(struct engine *e, int n_requests);
void fake_ignore(void *arg, const struct engine_event *ev);

/* Calls of a kind in the log. */
int fake_count(enum fake_kind kind);

#endif

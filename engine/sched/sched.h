/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_SCHED_H
#define PIPIT_ENGINE_SCHED_SCHED_H

/* Continuous batching: requests in, batches of rows through the forward pass, events out. The
 * contracts are those of engine.h, whose functions of the same names stand on these.
 *
 * Creator: sched_create; freed by sched_destroy. One thread, but for sched_interrupt and sched_notice. */

#include <stdatomic.h>

#include "engine/engine.h"
#include "engine/kv/kv.h"
#include "engine/model/forward.h"

struct sched;

struct sched_config {
    struct model *model; /* loaded */
    struct cache *cache; /* the scheduler's user keeps it, and model and tok, until after destroy */
    const struct tok *tok; /* or NULL: no token ends a text */
    const char *identity;  /* 64 characters that name model and overlays */
    int32_t ctx;
    int32_t n_seqs;
    int32_t batch_tokens; /* at least max_chunk + n_seqs */
    int32_t most_rows;    /* of a step in which nobody's next token is waited for; less than
                             batch_tokens: as many as these, */
    int32_t prompt_rows;  /* and of one prompt in it; less than two chunks: one */
    int32_t max_chunk;
    int32_t draft_rows; /* beside batch_tokens: rows of drafted tokens in a step, of all sequences */
    bool draft_always; /* whatever it costs */
    double gap_target_ns; /* of a step that reads prompts while others decode; 0: twice a plain one */
    bool device_draws; /* where the backend can */
    int32_t predicted_slots; /* forward_limits */
};

/* Device and host bytes that sched_create takes for these sizes (all but its pointers); *ret_host:
 * the host's alone. */
uint64_t sched_bytes(const struct model *m, const struct sched_config *sizes, uint64_t *ret_host);
/* Rows of logits computed at once. */
int32_t sched_logit_rows(int32_t n_seqs);

int sched_create(const struct sched_config *config, struct sched **ret,
                 struct error *reterr) WARN_UNUSED;
void sched_destroy(struct sched *s); /* takes NULL */

int sched_submit(struct sched *s, const struct engine_request *r, uint64_t *ret_handle,
                 struct error *reterr) WARN_UNUSED;
int sched_check(const struct sched *s, const struct engine_request *r,
                struct error *reterr) WARN_UNUSED;
int sched_cancel(struct sched *s, uint64_t handle, enum engine_reason reason);
int sched_credit(struct sched *s, uint64_t handle, int64_t n_rows);
int sched_save(struct sched *s, uint64_t handle, void **ret, size_t *ret_size,
               struct error *reterr) WARN_UNUSED;
int sched_save_begin(struct sched *s, uint64_t handle, uint64_t *ret_bytes, size_t *ret_least,
                     struct error *reterr) WARN_UNUSED;
int sched_save_next(struct sched *s, uint64_t handle, void *buf, size_t size, size_t *ret_n,
                    struct error *reterr) WARN_UNUSED;
bool sched_save_waits(struct sched *s, uint64_t handle, size_t size);
void sched_save_end(struct sched *s, uint64_t handle);
int sched_step(struct sched *s, engine_emit *emit, void *arg);
void sched_interrupt(struct sched *s);
void sched_notice(struct sched *s);
void sched_heartbeat(const struct sched *s, int64_t *ret_last_ns, int64_t *ret_longest_ns);

void sched_counters(const struct sched *s, struct engine_counters *ret);
bool sched_kv_use(const struct sched *s, int32_t i, struct engine_kv_use *ret);

#endif

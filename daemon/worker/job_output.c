/* SPDX-License-Identifier: Apache-2.0 */
/* Where in the output lease log-probabilities, logits and embeddings go. */

#include <errno.h>

#include "base/checked.h"
#include "daemon/worker/job_impl.h"
#include "daemon/worker/mapping.h"

enum { LOGITS_ALIGN = 64 };

/* Sizes a lease needs against those it has. */
static int too_small(struct error *reterr, struct job_counts *c, const char *what, uint64_t need,
                     uint64_t have)
{
    *c = (struct job_counts){.a = need, .b = have};
    return error_set(reterr, -E2BIG,
                     "the output lease of %llu bytes is too small for %s: %llu bytes are needed "
                     "(lane-bytes of pipitd says what all of a client's may have)",
                     (unsigned long long)have, what, (unsigned long long)need);
}

static int lay_hidden(const struct job *j, const struct lane_engine_request *e, float *out,
                      struct engine_request *q, struct job_counts *c, struct error *reterr)
{
    uint64_t rows = q->pool == ENGINE_POOL_NONE ? (uint64_t)j->n_prompt : 1;
    uint64_t need =
        rows * (uint64_t)engine_info(atomic_load(&j->worker->engine))->n_embd * sizeof(float);

    if (need > e->out_bytes) {
        return too_small(reterr, c, "the embedding", need, e->out_bytes);
    }
    q->hidden = out;
    return 0;
}

int job_lay_output(struct job *j, const struct lane_engine_request *e, bool logits,
                   struct engine_request *q, struct job_counts *c, struct error *reterr)
{
    uint64_t row = (uint64_t)engine_info(atomic_load(&j->worker->engine))->n_vocab * sizeof(float);
    uint64_t scores = 0;
    uint8_t *out;

    if (e->out_bytes == 0) {
        return j->kind == LANE_KIND_EMBED
                   ? error_set(reterr, -EINVAL, "an embedding needs an output lease")
                   : 0;
    }
    if (!j->mapping || !checked_range(e->out_offset, e->out_bytes, j->mapping->e2c_bytes)) {
        return error_set(reterr, -EINVAL, "the output lease lies in no lane of this engine");
    }
    out = j->mapping->e2c + e->out_offset;
    j->out_buf = e->out_buf;
    j->out_generation = e->out_generation;
    if (j->kind == LANE_KIND_EMBED) {
        return lay_hidden(j, e, (float *)(void *)out, q, c, reterr);
    }
    if (j->kind == LANE_KIND_SCORE) {
        scores = (uint64_t)(j->n_prompt - 1 - j->score_first) * sizeof(float);
        if (scores > e->out_bytes) {
            return too_small(reterr, c, "the log-probabilities", scores, e->out_bytes);
        }
        j->out_logprobs = (float *)(void *)out;
        scores = checked_round_up(scores, LOGITS_ALIGN);
    }
    if (!logits) {
        return 0;
    }
    if (scores > e->out_bytes || row > e->out_bytes - scores) {
        return too_small(reterr, c, "a row of logits", scores + row, e->out_bytes);
    }
    j->logits_offset = scores;
    j->logits_rows = (uint32_t)((e->out_bytes - scores) / row);
    q->logits = (float *)(void *)(out + scores);
    q->logits_rows = (int32_t)j->logits_rows;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One engine request per chunk: SCORE in prefill mode, GENERATE with forced tokens in decode mode.
 * Logits go straight to the caller's window; in prefill mode rows are acknowledged as they are
 * read, so the window may be much smaller than a chunk. */

#include "bench/eval/score.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/exp_fixed.h"

struct job {
    struct run *run;
    int chunk;
    uint64_t handle;
    float *window;
    int64_t n_read;
};

struct run {
    struct engine *e;
    const struct score_chunk *chunks;
    int n_vocab;
    int window;
    score_row *row;
    score_done *done;
    void *arg;
    int err;
    struct error error;
};

static void on_event(void *arg, const struct engine_event *ev)
{
    struct job *j = ev->user;
    struct run *r = j->run;

    (void)arg;
    switch (ev->type) {
    case ENGINE_EV_TOKEN:
        r->row(r->arg, j->chunk, ev->index,
               j->window + (int64_t)(ev->index % r->window) * r->n_vocab, ev->logprob);
        break;
    case ENGINE_EV_SCORE:
        for (int i = 0; i < ev->n_done; i++) {
            int row = ev->index + i;

            r->row(r->arg, j->chunk, row, j->window + (int64_t)(row % r->window) * r->n_vocab,
                   ev->logprobs[i]);
        }
        j->n_read += ev->n_done;
        (void)engine_score_credit(r->e, j->handle, j->n_read + r->window);
        break;
    case ENGINE_EV_HIDDEN:
        break;
    case ENGINE_EV_DONE:
        if (ev->reason != ENGINE_ERROR) {
            r->done(r->arg, j->chunk, &ev->usage);
        } else if (!r->err) {
            r->err = ev->error.code;
            r->error = ev->error;
        }
        break;
    case ENGINE_EV_PROGRESS:
        break;
    }
}

static int submit(struct run *r, struct job *j, bool decode, struct error *reterr)
{
    const struct score_chunk *c = &r->chunks[j->chunk];
    struct engine_request q = {
        .kind = decode ? ENGINE_GENERATE : ENGINE_SCORE,
        .prompt = c->tokens,
        .n_prompt = decode ? c->first + 1 : c->n,
        .score_first = c->first,
        .ignore_end = true,
        .kv = c->kv,
        .principal = 1,
        .user = j,
        .logits = j->window,
        .logits_rows = r->window,
    };

    if (decode) {
        q.forced = c->tokens + c->first + 1;
        q.n_forced = q.max_tokens = c->n - 1 - c->first;
        q.report_forced = true;
    }
    q.sampler = sampler_params_default();
    q.sampler.temperature = 0;
    q.sampler.n_logprobs = 0;
    int err = engine_submit(r->e, &q, &j->handle, reterr);
    if (!err && !decode) {
        (void)engine_score_credit(r->e, j->handle, r->window);
    }
    return err;
}

int score_run(struct engine *e, bool decode, const struct score_chunk *chunks, int n_chunks,
              float *buffer, int window, score_row *row, score_done *done, void *arg,
              struct error *reterr)
{
    AUTO_FREE struct job *jobs = calloc((size_t)n_chunks, sizeof(*jobs));
    struct run r = {.e = e,
                    .chunks = chunks,
                    .n_vocab = engine_info(e)->n_vocab,
                    .window = window,
                    .row = row,
                    .done = done,
                    .arg = arg};
    int err = jobs ? 0 : error_set(reterr, -ENOMEM, "no memory for the chunks");

    for (int i = 0; i < n_chunks && !err; i++) {
        jobs[i] = (struct job){.run = &r, .chunk = i};
        jobs[i].window = buffer + (int64_t)i * window * r.n_vocab;
        err = submit(&r, &jobs[i], decode, reterr);
        for (int k = 0; err && k < i; k++) { /* what was submitted must not outlive `jobs` */
            (void)engine_cancel(e, jobs[k].handle, ENGINE_CANCELLED);
        }
    }
    int left;
    do {
        left = engine_step(e, on_event, NULL);
    } while (left > 0);
    if (r.err && !err && reterr) {
        *reterr = r.error;
    }
    return err ? err : r.err ? r.err : left;
}

/* Sums run in lanes, so that the compiler may use vectors; a block's float sums go to a double. */
enum { LANES = 16 };

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORS
#endif

static inline float add_lanes(float *part)
{
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) {
            part[j] += part[j + half];
        }
    }
    return part[0];
}

VECTORS static float score_max(const float *logits, int n)
{
    float max[LANES];
    int i = 0;

    for (int j = 0; j < LANES; j++) {
        max[j] = logits[0];
    }
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            max[j] = logits[i + j] > max[j] ? logits[i + j] : max[j];
        }
    }
    for (; i < n; i++) {
        max[0] = logits[i] > max[0] ? logits[i] : max[0];
    }
    for (int j = 1; j < LANES; j++) {
        max[0] = max[j] > max[0] ? max[j] : max[0];
    }
    return max[0];
}

/* The logarithms' difference is taken once, outside the sum: with d = p - q of a token's logits,
 * KL = sum of e^(p - lp) d, less (lp - lq). */
VECTORS double score_kl(const float *p, double lp, const float *q, double lq, int n)
{
    float at = (float)lp;
    double mass = 0;
    double sum = 0;
    int i = 0;

    for (; i + LANES <= n; i += LANES) {
        float weight[LANES];
        float part[LANES];

        for (int j = 0; j < LANES; j++) {
            weight[j] = exp_fixed(p[i + j] - at);
            part[j] = weight[j] * (p[i + j] - q[i + j]);
        }
        sum += (double)add_lanes(part);
        mass += (double)add_lanes(weight);
    }
    for (; i < n; i++) {
        double w = (double)exp_fixed(p[i] - at);

        sum += w * (double)(p[i] - q[i]);
        mass += w;
    }
    return sum / mass - (lp - lq); /* mass: 1 but for the rounding of lp */
}

int score_argmax(const float *logits, int n)
{
    float max = score_max(logits, n);
    int i = 0;

    while (i < n - 1 && logits[i] != max) {
        i++;
    }
    return i;
}

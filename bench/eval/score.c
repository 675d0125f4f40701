/* SPDX-License-Identifier: Apache-2.0 */
/* One engine request per chunk: SCORE in prefill mode, GENERATE with forced tokens in decode mode.
 * Logits go straight to the caller's window; in prefill mode rows are acknowledged as they are
 * read, so the window may be much smaller than a chunk. */

#include "bench/eval/score.h"

#include <errno.h>
#include <math.h>

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
    void *arg;
    struct score_result *results;
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
    case ENGINE_EV_DONE:
        r->results[j->chunk].usage = ev->usage;
        if (ev->reason == ENGINE_ERROR && !r->err) {
            r->err = ev->error.code;
            r->error = ev->error;
        }
        break;
    case ENGINE_EV_PROGRESS:
        break;
    }
}

int score_run(struct engine *e, bool decode, const struct score_chunk *chunks, int n_chunks,
              float *buffer, int window, const char *kv, score_row *row, void *arg,
              struct score_result *results, struct error *reterr)
{
    enum { MAX_CHUNKS = 64 };
    struct job jobs[MAX_CHUNKS];
    struct run r = {.e = e,
                    .chunks = chunks,
                    .n_vocab = engine_info(e)->n_vocab,
                    .window = window,
                    .row = row,
                    .arg = arg,
                    .results = results};

    if (n_chunks > MAX_CHUNKS || window < 1) {
        return error_set(reterr, -EINVAL, "at most %d chunks at once", MAX_CHUNKS);
    }
    for (int i = 0; i < n_chunks; i++) {
        const struct score_chunk *c = &chunks[i];
        struct engine_request q = {
            .kind = decode ? ENGINE_GENERATE : ENGINE_SCORE,
            .prompt = c->tokens,
            .n_prompt = decode ? c->first + 1 : c->n,
            .score_first = c->first,
            .ignore_end = true,
            .kv = kv,
            .principal = 1,
            .user = &jobs[i],
            .logits_rows = window,
        };

        jobs[i] = (struct job){.run = &r, .chunk = i};
        jobs[i].window = buffer + (int64_t)i * window * r.n_vocab;
        q.logits = jobs[i].window;
        if (decode) {
            q.forced = c->tokens + c->first + 1;
            q.n_forced = q.max_tokens = c->n - 1 - c->first;
            q.report_forced = true;
        }
        q.sampler = sampler_params_default();
        q.sampler.temperature = 0;
        q.sampler.n_logprobs = 0;
        int err = engine_submit(e, &q, &jobs[i].handle, reterr);
        if (err) {
            return err;
        }
        if (!decode) {
            (void)engine_score_credit(e, jobs[i].handle, window);
        }
    }
    int left;
    do {
        left = engine_step(e, on_event, NULL);
    } while (left > 0);
    if (r.err && reterr) {
        *reterr = r.error;
    }
    return r.err ? r.err : left;
}

double score_log_sum(const float *logits, int n)
{
    float m = logits[score_argmax(logits, n)];
    double sum = 0;

    for (int i = 0; i < n; i++) {
        sum += exp((double)(logits[i] - m));
    }
    return (double)m + log(sum);
}

double score_kl(const float *p, const float *q, int n)
{
    double lp = score_log_sum(p, n);
    double lq = score_log_sum(q, n);
    double kl = 0;

    for (int i = 0; i < n; i++) {
        double a = (double)p[i] - lp;

        kl += exp(a) * (a - ((double)q[i] - lq));
    }
    return kl;
}

int score_argmax(const float *logits, int n)
{
    int best = 0;

    for (int i = 1; i < n; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

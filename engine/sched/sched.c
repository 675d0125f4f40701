/* SPDX-License-Identifier: Apache-2.0 */
/* A step: end what was cancelled, admit who has room, load a part of who begins with a saved
 * sequence, build a batch of the others (or take up the one that was interrupted), run it, commit
 * it, sample. An interrupted batch of which a request was cancelled runs to its end, and the
 * cancelled rows' results are dropped. Only where most of it was cancelled is it built anew, never
 * twice running, and never where it changes scores or sums of V: these steps cannot be repeated. */

#include "engine/sched/sched.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sched/admit.h"
#include "engine/sched/state.h"

/* ---- ending --------------------------------------------------------------------------------- */

void sched_emit(struct sched *s, struct request *r)
{
    s->event.user = r->user;
    s->emit(s->emit_arg, &s->event);
}

void sched_leave(struct sched *s, struct request *r)
{
    if (r->save) {
        request_remove(&s->running, r);
        request_append(&s->resting, r);
        r->rests = true;
        return;
    }
    if (r->seq >= 0) {
        kv_release(s->config.cache, r->seq);
        request_remove(r->rests ? &s->resting : &s->running, r);
        s->full = false;
    } else {
        request_remove(&s->waiting, r);
    }
    sched_leave_principal(s, r->principal);
    s->uses.rows[r->use].n_live--;
    request_destroy(r);
}

static void fill_usage(struct sched *s, const struct request *r, struct engine_usage *u)
{
    int64_t now = clock_ns();
    int64_t first_row = r->first_row_ns ? r->first_row_ns : now;
    int64_t first_token = r->first_token_ns ? r->first_token_ns : now;

    *u = (struct engine_usage){
        .n_prompt = r->n_prompt,
        .n_cached = r->text.held < r->n_prompt ? r->text.held : r->n_prompt,
        .n_new = r->n_new,
        .queue_ns = first_row - r->submit_ns,
        .prefill_ns = r->first_row_ns ? first_token - first_row : 0,
        .decode_ns = r->first_token_ns ? now - first_token : 0,
        .n_drafted = r->n_drafted,
        .n_accepted = r->n_accepted,
        .n_exited = r->n_exited,
    };
    if (r->seq >= 0) {
        struct kv_usage kv;

        kv_usage(s->config.cache, r->seq, &kv);
        u->kv_bytes = kv.bytes;
        u->n_slots = kv.n_slots;
        u->n_evicted = kv.n_evicted;
        u->kv_bytes_full = kv.full_token_bytes * (uint64_t)r->n_fed;
    }
}

void sched_finish(struct sched *s, struct request *r, enum engine_reason reason,
                  const struct error *error)
{
    assert(!r->finished);
    draft_take_back(s, r);
    memset(&s->event, 0, sizeof(s->event));
    s->event.type = ENGINE_EV_DONE;
    s->event.reason = reason;
    if (error) {
        s->event.error = *error;
    }
    fill_usage(s, r, &s->event.usage);
    s->counters.n_evicted += (uint64_t)s->event.usage.n_evicted;
    s->uses.rows[r->use].n_evicted += (uint64_t)s->event.usage.n_evicted;
    r->finished = true;
    if (s->stash.r == r) {
        s->stash.r = NULL;
    }
    prompt_forget(s, r);
    sched_emit(s, r);
    if (!r->in_batch) {
        sched_leave(s, r);
    }
}

void sched_finish_without_memory(struct sched *s, struct request *r)
{
    struct error e = {0};

    (void)error_set(&e, -ENOMEM,
                    "the device had no memory left for a step; another process may "
                    "hold it");
    sched_finish(s, r, ENGINE_ERROR, &e);
}

static void finish_cancelled(struct sched *s, struct request_list *l)
{
    struct request *next;

    for (struct request *r = l->first; r; r = next) {
        next = r->next;
        if (r->cancelled && !r->finished) {
            sched_finish(s, r, r->reason, NULL);
        }
    }
}

/* ---- a step --------------------------------------------------------------------------------- */

/* What to do with a batch that was interrupted: 1 go on, 0 build another. Rows of cancelled
 * requests are computed and ignored, unless they are most of it: a batch that is built anew has
 * cost the others what was done of it, and if each were, cancels in turn would end no step. */
static bool takes_up(struct sched *s)
{
    struct batch *b = &s->batch;
    int32_t n_gone = 0;
    int32_t gone_rows = 0;

    for (int32_t i = 0; i < b->n_seqs; i++) {
        n_gone += b->of[i]->finished;
        gone_rows += b->of[i]->finished ? b->seqs[i].n_rows : 0;
    }
    if (n_gone < b->n_seqs &&
        (kv_step_once(s->config.cache) || b->anew || gone_rows <= b->rows.n / 2)) {
        return true;
    }
    batch_release(s);
    b->anew = n_gone < b->n_seqs;
    return false;
}

/* Sequences whose K and V on disk were lost end here; what they computed is not looked at. */
static void finish_failed(struct sched *s)
{
    for (int32_t i = 0; i < s->batch.n_seqs; i++) {
        struct request *r = s->batch.of[i];
        struct error error;

        if (!r->finished && kv_failed(s->config.cache, r->seq, &error)) {
            sched_finish(s, r, ENGINE_ERROR, &error);
        }
    }
}

/* What a whole step took, unless the backend has computed several. */
static void measure(struct sched *s, uint64_t n_async)
{
    struct batch *b = &s->batch;
    int32_t n_prompt = b->rows.n - b->rows.n_decode;

    /* A device may not have begun a chunk of which nothing was wanted. */
    bool known = !s->ops->async || b->rows.n_decode > 0;

    if (b->begun_ns != 0 && known && s->counters.n_async_steps == n_async) {
        b->took_ns = (double)(clock_ns() - b->begun_ns);
        token_budget_add(&s->token_budget, b->rows.n_decode, n_prompt, b->took_ns);
    }
    b->begun_ns = 0;
}

static int run_batch(struct sched *s)
{
    struct batch *b = &s->batch;
    uint64_t n_async = s->counters.n_async_steps;
    int r = 0;

    if (b->pending) {
        r = forward_run(s->forward);
        if (r) {
            draft_measure(s, r);
            b->begun_ns = 0;
            return r;
        }
        b->pending = false;
        s->counters.n_steps++;
        finish_failed(s);
        r = batch_commit(s);
    }
    if (!r) {
        r = async_step_run(s);
        r = r == -ENOTSUP ? output_run(s) : r;
    }
    draft_measure(s, r);
    if (r) {
        b->begun_ns = 0;
    } else {
        b->anew = false;
        measure(s, n_async);
        batch_release(s);
    }
    return r;
}

static int step(struct sched *s)
{
    int64_t began = clock_ns();
    uint64_t n_async = s->counters.n_async_steps;
    int r;

    finish_cancelled(s, &s->waiting);
    finish_cancelled(s, &s->running);
    r = output_drain(s);
    if (r) {
        return r;
    }
    if (!interleave_pending(s)) {
        if (s->batch.n_seqs == 0 || (s->batch.pending && !takes_up(s))) {
            r = admit_waiting(s);
            r = r ? r : load_run(s);
            began = clock_ns();
            r = r ? r : batch_build(s);
        }
        r = r < 0 ? r : s->batch.n_seqs == 0 ? 0 : run_batch(s);
    }
    if (!r) {
        r = interleave_run(s);
    }
    s->step_ns = (clock_ns() - began) / (int64_t)(1 + s->counters.n_async_steps - n_async);
    return r ? r : output_drain(s);
}

/* Requests that another step can do something for. */
static int n_ready(const struct sched *s)
{
    int n = s->waiting.n;
    bool progress = false;

    for (const struct request *r = s->running.first; r; r = r->next) {
        bool stalled = s->stash.r == r && s->stash.n > 0 && !output_can_drain(s) && !r->cancelled;

        n += !stalled;
        progress = progress || !stalled;
    }
    /* Everybody sits still and nobody can sit down: only credit, a cancel or the end of a save will
     * change that. */
    return progress || (s->running.n == 0 && !(s->resting.n > 0 && s->full)) ? n : 0;
}

/* The device had no memory for something in the step. What it has computed of it is not known, so
 * all who run end here; those who wait have lost nothing. */
static void give_up(struct sched *s)
{
    struct request *next;

    s->batch.pending = false;
    for (struct request *r = s->running.first; r; r = next) {
        next = r->next;
        if (!r->finished) {
            sched_finish_without_memory(s, r);
        }
    }
    s->whole = (struct prompt){0};
    s->chunk = (struct prompt){0};
    batch_release(s);
}

int sched_step(struct sched *s, engine_emit *emit, void *arg)
{
    s->emit = emit;
    s->emit_arg = arg;
    int r = step(s);

    if (r == -EINTR) {
        atomic_store(&s->interrupt, 0);
        r = 0;
    }
    if (r == -ENOMEM) {
        give_up(s);
        r = 0;
    }
    atomic_store(&s->notice, false);
    return r < 0 ? r : n_ready(s);
}

void sched_interrupt(struct sched *s)
{
    atomic_store(&s->interrupt, 1);
}

void sched_notice(struct sched *s)
{
    atomic_store(&s->notice, true);
}

void sched_heartbeat(const struct sched *s, int64_t *ret_last_ns, int64_t *ret_longest_ns)
{
    forward_heartbeat(s->forward, ret_last_ns, ret_longest_ns);
}

void sched_counters(const struct sched *s, struct engine_counters *ret)
{
    *ret = s->counters;
    ret->n_running = s->running.n;
    ret->n_queued = s->waiting.n;
    for (const struct request *r = s->running.first; r; r = r->next) {
        struct kv_usage kv;

        kv_usage(s->config.cache, r->seq, &kv);
        ret->n_evicted += r->finished ? 0 : (uint64_t)kv.n_evicted;
    }
    kv_totals(s->config.cache, &ret->kv_bytes_used, &ret->kv_bytes_total);
}

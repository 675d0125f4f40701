/* SPDX-License-Identifier: Apache-2.0 */
/* Who sits, who waits, who is done.
 *
 * A request waits until a sequence index is free and its worst case of pages can be reserved; the
 * one whose turn it is holds up those behind it, so that a large request is not passed by for ever
 * (but not while it waits for what only one request at a time may have). Turns go round principals
 * (the one admitted longest ago first), within one by urgency, then by age.
 *
 * A step: end what was cancelled, admit who has room, load a part of who begins with a saved
 * sequence, build a batch of the others (or take up the one that was interrupted), run it, commit
 * it, sample. An interrupted batch of which a request was cancelled runs to its end, and the
 * cancelled rows' results are dropped. Only where most of it was cancelled is it built anew, never
 * twice running, and never where it changes scores or sums of V: these steps cannot be repeated. */

#include "engine/sched/sched.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/sched/state.h"

enum {
    MIN_LOGIT_ROWS = 16,
    /* Bytes of saved sequences a step, beside others, and where nobody else runs yet but somebody
     * may come; and a part of the steps' time that it may take in any case. */
    LOAD_BESIDE = 1 << 20,
    LOAD_ALONE = 2 << 20,
    LOAD_SHARE = 10,
};

int32_t sched_logit_rows(int32_t n_seqs)
{
    return n_seqs > MIN_LOGIT_ROWS ? n_seqs : MIN_LOGIT_ROWS;
}

static struct forward_limits limits_of(const struct sched_config *c)
{
    return (struct forward_limits){
        .max_rows = c->batch_tokens + c->draft_rows,
        .max_seqs = c->n_seqs,
        .max_logits = sched_logit_rows(c->n_seqs),
        .predicted_slots = c->predicted_slots,
    };
}

static uint64_t stash_bytes_of(const struct model *m, int32_t max_chunk)
{
    return (uint64_t)max_chunk * (((uint64_t)m->h.n_embd + 15) & ~UINT64_C(15)) * sizeof(float);
}

static uint64_t host_logits_bytes(const struct model *m, int32_t n_seqs)
{
    return (uint64_t)sched_logit_rows(n_seqs) * (uint64_t)m->h.n_vocab * sizeof(float);
}

static void lay_batch(struct memory_arena *a, const struct sched_config *c, struct batch *b,
                      float **logprobs)
{
    size_t n_seqs = (size_t)c->n_seqs;
    size_t n_rows = (size_t)c->batch_tokens + (size_t)c->draft_rows;

    b->of = memory_arena_take(a, n_seqs * sizeof(struct request *));
    b->seqs = memory_arena_take(a, n_seqs * sizeof(*b->seqs));
    b->exit = memory_arena_take(a, n_seqs * sizeof(*b->exit));
    b->propose = memory_arena_take(a, n_seqs * sizeof(*b->propose));
    b->ids = memory_arena_take(a, n_rows * sizeof(*b->ids));
    b->wanted = memory_arena_take(a, n_rows * sizeof(*b->wanted));
    b->wanted_rows = memory_arena_take(a, n_rows * sizeof(*b->wanted_rows));
    b->draws = memory_arena_take(a, n_seqs * sizeof(*b->draws));
    b->drawn = memory_arena_take(a, n_seqs * sizeof(*b->drawn));
    *logprobs = memory_arena_take(a, (size_t)sched_logit_rows(c->n_seqs) * sizeof(**logprobs));
}

static size_t batch_bytes(const struct sched_config *c)
{
    struct memory_arena plan = {0};
    struct batch b;
    float *logprobs;

    lay_batch(&plan, c, &b, &logprobs);
    return plan.used;
}

uint64_t sched_bytes(const struct model *m, const struct sched_config *c, uint64_t *ret_host)
{
    struct forward_limits l = limits_of(c);
    uint64_t host = memory_rounded(host_logits_bytes(m, c->n_seqs)) +
                    memory_rounded(sampler_scratch_bytes(m->h.n_vocab)) +
                    memory_rounded(batch_bytes(c)) + memory_rounded(draft_bytes(c));

    *ret_host = host + forward_host_bytes(m, &l);
    return host + forward_bytes(m, &l) + memory_rounded(stash_bytes_of(m, c->max_chunk));
}

/* ---- creation ------------------------------------------------------------------------------ */

static int alloc_batch(struct sched *s, struct error *reterr)
{
    const struct sched_config *c = &s->config;
    struct memory_arena a = {.size = batch_bytes(c)};
    int r = memory_map(a.size, "scheduler", &s->batch_memory, reterr);

    if (!r) {
        a.base = s->batch_memory;
        lay_batch(&a, c, &s->batch, &s->logprobs);
    }
    return r;
}

int sched_create(const struct sched_config *config, struct sched **ret, struct error *reterr)
{
    struct sched *s = calloc(1, sizeof(*s));
    struct model *m = config->model;
    struct forward_limits limits = limits_of(config);
    void *p = NULL;
    int r;

    if (!s) {
        return error_set(reterr, -ENOMEM, "scheduler: no memory");
    }
    s->config = *config;
    s->ops = m->ops;
    s->be = m->be;
    s->next_handle = 1;
    uses_init(&s->uses, kv_mix(config->cache));
    r = alloc_batch(s, reterr);
    if (r) {
        goto fail;
    }
    r = forward_create(m, &limits, &s->interrupt, &s->forward, reterr);
    if (r) {
        goto fail;
    }
    s->stash_bytes = stash_bytes_of(m, config->max_chunk);
    r = s->ops->alloc(s->be, s->stash_bytes, "scored rows", &s->stash_memory, reterr);
    if (r) {
        goto fail;
    }
    s->stash.hidden = s->stash_memory;
    s->logits_bytes = host_logits_bytes(m, config->n_seqs);
    r = memory_map((size_t)s->logits_bytes, "logits", &p, reterr);
    if (r) {
        goto fail;
    }
    s->logits = p;
    r = memory_map(sampler_scratch_bytes(m->h.n_vocab), "sampler", &s->sampler_memory, reterr);
    if (r) {
        goto fail;
    }
    sampler_scratch_init(&s->sampler, s->sampler_memory, m->h.n_vocab);
    r = draft_create(s, reterr);
    if (r) {
        goto fail;
    }
    *ret = s;
    return 0;
fail:
    sched_destroy(s);
    return r;
}

static void free_list(struct request_list *l)
{
    while (l->first) {
        struct request *r = l->first;

        l->first = r->next;
        request_destroy(r);
    }
}

void sched_destroy(struct sched *s)
{
    if (!s) {
        return;
    }
    free_list(&s->waiting);
    free_list(&s->running);
    free_list(&s->resting);
    for (int32_t i = 0; i < s->n_principals; i++) {
        free(s->principals[i]);
    }
    free(s->principals);
    draft_destroy(s);
    memory_unmap(s->sampler_memory, sampler_scratch_bytes(s->config.model->h.n_vocab));
    memory_unmap(s->logits, (size_t)s->logits_bytes);
    if (s->stash_memory) {
        s->ops->free(s->be, s->stash_memory, s->stash_bytes);
    }
    forward_destroy(s->forward);
    memory_unmap(s->batch_memory, batch_bytes(&s->config));
    free(s);
}

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

/* ---- admission --------------------------------------------------------------------------------
 */

static bool goes_before(const struct request *a, const struct request *b)
{
    if (a->principal->admit_turn != b->principal->admit_turn) {
        return a->principal->admit_turn < b->principal->admit_turn;
    }
    if (a->urgency != b->urgency) {
        return a->urgency > b->urgency;
    }
    return a->handle < b->handle;
}

static void finish_unread(struct sched *s, struct request *r, int err)
{
    struct error e = {0};

    (void)error_set_errno(&e, err, "the saved sequence cannot be read");
    sched_finish(s, r, ENGINE_ERROR, &e);
}

static void finish_without_memory(struct sched *s, struct request *r)
{
    struct error e = {0};

    (void)error_set(&e, -ENOMEM,
                    "the device had no memory left for a step; another process may "
                    "hold it");
    sched_finish(s, r, ENGINE_ERROR, &e);
}

/* Waits for what only one request at a time may have, which others need not, or for its parent. */
static bool held_up(const struct sched *s, const struct request *r)
{
    return fork_waits(s, r) || (r->stashes && s->stash.r) ||
           (r->needs_peak && kv_peak_is_taken(s->config.cache));
}

/* Tokens that need not be read where their keys and values are kept: not those whose logits are
 * wanted. */
static int32_t known_tokens(const struct request *r)
{
    return r->saved || r->synthetic ? 0 : batch_first_wanted(r);
}

static void note_kept(struct sched *s, struct request *r)
{
    int32_t n = kv_n_tokens(s->config.cache, r->seq);

    if (n > 0 && !r->resumed) {
        r->n_fed = n;
        r->text.held = n;
        s->counters.n_prefix_hits++;
        s->counters.n_prefix_tokens += (uint64_t)n;
    }
}

static int admit_waiting(struct sched *s)
{
    while (s->waiting.first) {
        struct request *best = NULL;

        for (struct request *r = s->waiting.first; r; r = r->next) {
            if (!held_up(s, r) && (!best || goes_before(r, best))) {
                best = r;
            }
        }
        if (!best) {
            return 0;
        }
        int seq = fork_admit(s, best);

        if (seq == 0) {
            best->principal->admit_turn = ++s->turn;
            continue;
        }
        if (seq != -ENOENT && seq != -EBUSY && seq != -ENOMEM) {
            return seq;
        }
        if (seq != -ENOMEM) {
            seq = kv_admit(s->config.cache, &best->policy, best->principal->id, &best->text,
                           best->tokens, known_tokens(best));
        }
        if (seq == -ENOMEM) {
            finish_without_memory(s, best);
            continue;
        }
        if (seq < 0) {
            s->full = seq == -EBUSY;
            return s->full ? 0 : seq;
        }
        request_remove(&s->waiting, best);
        best->seq = seq;
        request_append(&s->running, best);
        best->principal->admit_turn = ++s->turn;
        if (best->stashes) {
            s->stash.r = best;
            s->stash.n = 0;
            s->stash.done = 0;
        }
        if (best->saved) {
            continue; /* load_saved() */
        }
        if (best->synthetic) {
            int e = kv_fill(s->config.cache, best->seq);

            if (e) {
                return e;
            }
            best->n_fed = best->text.held;
        }
        note_kept(s, best);
        if (prompt_is_whole(s, best)) {
            prompt_start_whole(s, best);
        }
    }
    return 0;
}

/* ---- loading saved sequences ---- */

static bool is_loading(const struct request *r)
{
    return r->saved && r->seq >= 0;
}

/* What one step loads at least: where others run, no more than they hardly notice. */
static uint64_t load_least(const struct sched *s)
{
    for (const struct request *r = s->running.first; r; r = r->next) {
        if (!is_loading(r) && !r->finished) {
            return LOAD_BESIDE;
        }
    }
    return LOAD_ALONE;
}

/* One request's next bytes. 1: there are more. */
static int load_more(struct sched *s, struct request *r, uint64_t least, uint64_t *ret_n)
{
    int read;
    int e = snapshot_load(s->config.cache, r->seq, r->saved, least, ret_n, &read);

    if (e) {
        return e;
    }
    if (read) {
        finish_unread(s, r, read);
        return 0;
    }
    if (!snapshot_loaded(r->saved)) {
        return 1;
    }
    request_drop_saved(r);
    r->n_fed = r->text.held;
    if (prompt_is_whole(s, r)) {
        prompt_start_whole(s, r);
    }
    return 0;
}

/* LOAD_BESIDE, and on for a share of a step's time. */
static int load_saved(struct sched *s)
{
    uint64_t least = load_least(s);
    uint64_t done = 0;
    int64_t until = clock_ns() + s->step_ns / LOAD_SHARE;
    struct request *next;

    for (struct request *r = s->running.first; r; r = next) {
        int more = is_loading(r);

        next = r->next;
        while (more > 0 && (done < least || clock_ns() < until)) {
            uint64_t n;

            more = load_more(s, r, done < least ? least - done : 1, &n);
            done += n;
        }
        if (more < 0) {
            return more;
        }
    }
    return 0;
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
            r = r ? r : load_saved(s);
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
            finish_without_memory(s, r);
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

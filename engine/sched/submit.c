/* SPDX-License-Identifier: Apache-2.0 */
/* What comes from outside: requests, cancels, credit, and the wish for a copy of a sequence.
 *
 * A request is checked in full here, against limits, the plan and, where it goes on from a saved
 * sequence, that block, so that nothing about it can fail once it sits. */

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sched/state.h"

/* ---- principals ---------------------------------------------------------------------------- */

static struct principal *join_principal(struct sched *s, uint64_t id)
{
    struct principal *p = NULL;

    for (int32_t i = 0; i < s->n_principals; i++) {
        if (s->principals[i]->id == id) {
            s->principals[i]->n_requests++;
            return s->principals[i];
        }
    }
    if (s->n_principals == s->cap_principals) {
        int32_t cap = s->cap_principals ? 2 * s->cap_principals : 8;
        struct principal **more = realloc(s->principals, (size_t)cap * sizeof(struct principal *));

        if (!more) {
            return NULL;
        }
        s->principals = more;
        s->cap_principals = cap;
    }
    p = calloc(1, sizeof(*p));
    if (p) {
        p->id = id;
        p->n_requests = 1;
        s->principals[s->n_principals++] = p;
    }
    return p;
}

void sched_leave_principal(struct sched *s, struct principal *p)
{
    if (--p->n_requests > 0) {
        return;
    }
    for (int32_t i = 0; i < s->n_principals; i++) {
        if (s->principals[i] == p) {
            s->principals[i] = s->principals[--s->n_principals];
            break;
        }
    }
    free(p);
}

enum { TAU_STEPS = 1024 }; /* over which tau runs where no number of new tokens is asked for */

/* ---- submitting ----------------------------------------------------------------------------- */

static int check_ids(const struct sched *s, const int32_t *ids, int32_t n, const char *what,
                     struct error *reterr)
{
    int32_t n_vocab = s->config.model->h.n_vocab;

    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= n_vocab) {
            return error_set(reterr, -EINVAL, "%s %d is token %d, but must be from 0 to %d", what,
                             i, ids[i], n_vocab - 1);
        }
    }
    return 0;
}

static bool has_saved(const struct engine_request *r)
{
    return r->saved || r->saved_read;
}

/* Tokens of prompt and answer, at most. */
static int32_t most_tokens(const struct sched *s, const struct policy *p)
{
    return policy_most_tokens(p, s->config.ctx);
}

static int check_request(const struct sched *s, const struct engine_request *r,
                         const struct policy *policy, struct error *reterr)
{
    int32_t most = most_tokens(s, policy);
    int32_t room = most - (r->kind == ENGINE_GENERATE ? 1 : 0);
    int e;

    if (r->n_prompt < 1 || r->n_forced < 0 || r->max_tokens < 0) {
        return error_set(reterr, -EINVAL, "a request needs at least one prompt token");
    }
    if (r->n_prompt > room || r->n_forced > most - r->n_prompt) {
        return error_set(
            reterr, -EMSGSIZE, "prompt of %d tokens%s and %d more do not fit the context of %d",
            r->n_prompt, r->n_forced ? ", forced ones" : "", r->n_forced ? r->n_forced : 1, most);
    }
    if (r->urgency < -100 || r->urgency > 100) {
        return error_set(reterr, -EINVAL, "urgency is %d, but must be from -100 to 100",
                         r->urgency);
    }
    if (r->kind == ENGINE_SCORE &&
        (r->score_first < 0 || r->score_first >= r->n_prompt || r->n_forced > 0)) {
        return error_set(reterr, -EINVAL,
                         "score_first is %d, but must be from 0 to %d, without forced tokens",
                         r->score_first, r->n_prompt - 1);
    }
    if (r->max_tokens > 0 && r->n_forced > r->max_tokens) {
        return error_set(reterr, -EINVAL, "%d forced tokens are more than max_tokens, %d",
                         r->n_forced, r->max_tokens);
    }
    if (r->kind == ENGINE_EMBED && (!r->hidden || r->n_forced > 0 || has_saved(r))) {
        return error_set(reterr, -EINVAL,
                         "an embedding needs a place to go to, and a prompt alone");
    }
    if (r->synthetic && (r->kind != ENGINE_GENERATE || has_saved(r) || r->n_forced < 1)) {
        return error_set(reterr, -EINVAL,
                         "a synthetic prompt needs a forced token and nothing saved");
    }
    e = check_ids(s, r->prompt, r->n_prompt, "prompt token", reterr);
    if (!e) {
        e = check_ids(s, r->forced, r->n_forced, "forced token", reterr);
    }
    return e ? e : sampler_params_check(&r->sampler, reterr);
}

static bool has_split(const struct model *m)
{
    return m->h.swift_layers < m->h.n_layers;
}

static int32_t token_of(const struct engine_request *r, int32_t i)
{
    return i < r->n_prompt ? r->prompt[i] : r->forced[i - r->n_prompt];
}

static int read_memory(void *arg, uint64_t at, void *buf, size_t n)
{
    memcpy(buf, (const uint8_t *)arg + at, n); /* snapshot.c stays within the source's size */
    return 0;
}

/* A saved sequence must be a beginning of the text. */
static int fits_text(const struct engine_request *r, const struct policy *policy,
                     const struct snapshot *saved, const struct geometry_text *text,
                     struct error *reterr)
{
    if (saved->n_tokens > r->n_prompt + r->n_forced) {
        return error_set(reterr, -EINVAL, "the saved sequence has %d tokens, the text only %d",
                         saved->n_tokens, r->n_prompt + r->n_forced);
    }
    for (int32_t i = 0; i < saved->n_tokens; i++) {
        if (saved->tokens[i] != token_of(r, i)) {
            return error_set(reterr, -EINVAL,
                             "the saved sequence differs from the text at token %d", i);
        }
    }
    if (saved->n_tokens == r->n_prompt + r->n_forced) {
        return 0;
    }
    if (r->kind == ENGINE_SCORE && saved->n_tokens > r->score_first) {
        return error_set(reterr, -EINVAL, "the saved sequence reaches beyond score_first");
    }
    if (r->kind == ENGINE_GENERATE && saved->n_tokens + 1 >= text->n_tokens) {
        return error_set(reterr, -EINVAL, "the saved sequence leaves no token to say");
    }
    if (policy_one_turn(policy) && saved->n_tokens < r->n_prompt) {
        return error_set(reterr, -ENOTSUP, "mode=as-shipped takes no second turn");
    }
    return 0;
}

/* *ret stays NULL where all of the text is saved: what follows its last token is not. It was saved
 * with a step's rows done and their logits interrupted. */
static int open_saved(const struct sched *s, const struct engine_request *r,
                      const struct policy *policy, struct geometry_text *text,
                      struct snapshot **ret, struct error *reterr)
{
    struct snapshot_source source = {.read = r->saved_read ? r->saved_read : read_memory,
                                     .arg =
                                         r->saved_read ? r->saved_arg : (void *)(uintptr_t)r->saved,
                                     .size = r->saved_size};
    int e = snapshot_open(s->config.cache, &source, s->config.identity, policy, ret, reterr);

    e = e ? e : fits_text(r, policy, *ret, text, reterr);
    if (!e && (*ret)->n_tokens == r->n_prompt + r->n_forced) {
        snapshot_close(*ret);
        *ret = NULL;
    } else if (!e) {
        text->held = (*ret)->n_tokens;
        text->held_slots = (*ret)->n_slots;
        text->budget = (*ret)->budget;
    }
    return e;
}

/* New tokens that a request may have. One that names no number gets what is left of the context;
 * under a policy that goes beyond it, from there on a context more. */
static int32_t room_for(const struct sched *s, const struct engine_request *r,
                        const struct policy *policy)
{
    int32_t most = most_tokens(s, policy);
    int32_t ctx = s->config.ctx;
    int32_t end = r->max_tokens > 0          ? most
                  : r->n_prompt < ctx        ? ctx
                  : most - ctx > r->n_prompt ? r->n_prompt + ctx
                                             : most;

    return end - r->n_prompt;
}

/* New tokens at most, and the policy. */
static int read_request(const struct sched *s, const struct engine_request *r, struct policy *ret,
                        struct geometry_text *ret_text, struct error *reterr)
{
    int32_t room;
    int32_t max_new;
    int e;

    *ret = kv_mix(s->config.cache)->part[0].policy;
    e = r->kv ? policy_parse(r->kv, ret, reterr) : 0;
    e = e ? e : check_request(s, r, ret, reterr);
    if (e) {
        return e;
    }
    room = room_for(s, r, ret);
    max_new = r->kind != ENGINE_GENERATE                   ? 0
              : r->max_tokens == 0 || r->max_tokens > room ? room
                                                           : r->max_tokens;
    *ret_text = (struct geometry_text){
        .n_prompt = r->n_prompt,
        .n_tokens = r->n_prompt + max_new,
        .n_steps = r->max_tokens > 0 ? r->max_tokens : TAU_STEPS,
    };
    return 0;
}

int sched_check(const struct sched *s, const struct engine_request *r, struct error *reterr)
{
    struct geometry_text text;
    struct policy policy;
    int e = read_request(s, r, &policy, &text, reterr);

    return e ? e : kv_check(s->config.cache, &policy, &text, reterr);
}

int sched_submit(struct sched *s, const struct engine_request *r, uint64_t *ret_handle,
                 struct error *reterr)
{
    struct policy policy;
    struct geometry_text text;
    struct snapshot *saved = NULL;
    struct request *q = NULL;
    int32_t max_new;
    int e = read_request(s, r, &policy, &text, reterr);

    if (e) {
        return e;
    }
    max_new = text.n_tokens - r->n_prompt;
    if (has_saved(r)) {
        e = open_saved(s, r, &policy, &text, &saved, reterr);
    }
    if (!e && r->synthetic) {
        e = kv_text_filled(s->config.cache, &policy, &text, reterr);
    }
    if (!e) {
        e = kv_check(s->config.cache, &policy, &text, reterr);
    }
    bool layered = !e && kv_reads_layerwise(s->config.cache, &policy, &text);
    bool peak = !e && kv_needs_peak(s->config.cache, &policy, &text);

    if (layered && r->kind == ENGINE_SCORE && has_split(s->config.model)) {
        e = error_set(reterr, -ENOTSUP,
                      "scoring beyond a SwiftKV split needs a policy with prefill=dense");
    }
    if (layered && r->kind == ENGINE_EMBED) {
        e = error_set(reterr, -ENOTSUP,
                      "an embedding needs every token's hidden state: prefill=dense or "
                      "bounded, or a policy whose budget holds the prompt");
    }
    if (!e) {
        e = request_create(r, max_new, &q, reterr);
    }
    if (!e && r->kind == ENGINE_EMBED) {
        q->sum = calloc(2 * (size_t)s->config.model->h.n_embd, sizeof(*q->sum));
        e = q->sum ? 0 : error_set(reterr, -ENOMEM, "request: no memory for an embedding");
    }
    if (e) {
        snapshot_close(saved);
        request_destroy(q);
        return e;
    }
    q->saved = saved;
    if (saved && q->saved_copy) {
        saved->source.arg = q->saved_copy;
    } else if (has_saved(r) && !saved) { /* read anew, like any other */
        request_drop_saved(q);
        q->resumed = false;
    }
    q->principal = join_principal(s, r->principal);
    if (!q->principal) {
        request_destroy(q);
        return error_set(reterr, -ENOMEM, "request: no memory");
    }
    q->handle = s->next_handle++;
    q->policy = policy;
    q->use = uses_join(&s->uses, &policy);
    q->text = text;
    if (text.held >= r->n_prompt) { /* the next one is forced, and known without logits */
        q->n_new = text.held - r->n_prompt + 1;
    }
    q->needs_peak = peak;
    q->stashes = r->kind == ENGINE_SCORE && (q->logits || layered);
    q->credit = q->logits ? 0 : INT64_MAX;
    q->until_ctx = r->max_tokens == 0 || r->max_tokens > room_for(s, r, &policy);
    if (text.n_tokens > s->config.ctx) {
        q->most_drafted = 0; /* drafts look up a context's tokens at most */
    }
    sampler_init(&q->sampler, &r->sampler);
    for (int32_t i = 0; i < r->n_prompt + q->n_new; i++) {
        sampler_accept(&q->sampler, q->tokens[i]);
    }
    request_append(&s->waiting, q);
    *ret_handle = q->handle;
    return 0;
}

static struct request *find(const struct sched *s, uint64_t handle)
{
    struct request *r = request_find(&s->running, handle);

    r = r ? r : request_find(&s->waiting, handle);
    return r && !r->finished ? r : NULL;
}

int sched_cancel(struct sched *s, uint64_t handle, enum engine_reason reason)
{
    struct request *r = find(s, handle);

    if (!r) {
        return -ENOENT;
    }
    if (!r->cancelled) {
        r->cancelled = true;
        r->reason = reason;
    }
    return 0;
}

static int find_at_rest(const struct sched *s, uint64_t handle, struct request **ret,
                        struct error *reterr)
{
    struct request *r = request_find(&s->running, handle);

    if (!r) {
        return error_set(reterr, -ENOENT, "no such running request");
    }
    if (r->unsaved) {
        return error_set(reterr, -EINVAL, "it was submitted as one that nobody saves");
    }
    /* Inside a callback the batch's rows are in the cache, though it is not yet released. */
    if (r->n_fed < r->n_prompt || (r->in_batch && s->batch.pending)) {
        return error_set(reterr, -EBUSY, "its prompt is being read, or a step is held up");
    }
    if (r->save) {
        return error_set(reterr, -EBUSY, "it is being saved");
    }
    *ret = r;
    return 0;
}

static int cannot_save(const struct sched *s, const struct request *r, int err,
                       struct error *reterr)
{
    int e = kv_failed(s->config.cache, r->seq, reterr); /* says where in the tier's file */

    return e ? e : error_set_errno(reterr, err, "the sequence cannot be saved");
}

int sched_save(struct sched *s, uint64_t handle, void **ret, size_t *ret_size, struct error *reterr)
{
    struct snapshot_writer *w = NULL;
    struct request *r = NULL;
    uint8_t *buf = NULL;
    uint64_t size;
    size_t done = 0;
    size_t n;
    int e = find_at_rest(s, handle, &r, reterr);

    if (e) {
        return e;
    }
    size = snapshot_bytes(s->config.cache, r->seq);
    e = snapshot_writer_create(s->config.cache, r->seq, s->config.identity, r->tokens, &w);
    buf = e ? NULL : malloc((size_t)size);
    if (!buf) {
        snapshot_writer_destroy(w);
        return error_set(reterr, -ENOMEM, "no memory for a saved sequence of %zu bytes",
                         (size_t)size);
    }
    while (!e && done < size) {
        e = snapshot_next(w, buf + done, (size_t)size - done, &n);
        done += e ? 0 : n;
    }
    snapshot_writer_destroy(w);
    if (e) {
        free(buf);
        return cannot_save(s, r, e, reterr);
    }
    *ret = buf;
    *ret_size = (size_t)size;
    return 0;
}

int sched_save_begin(struct sched *s, uint64_t handle, uint64_t *ret_bytes, size_t *ret_least,
                     struct error *reterr)
{
    struct request *r = NULL;
    int e = find_at_rest(s, handle, &r, reterr);

    if (e) {
        return e;
    }
    assert(r->finished && !r->save);
    e = snapshot_writer_create(s->config.cache, r->seq, s->config.identity, r->tokens, &r->save);
    if (e) {
        return cannot_save(s, r, e, reterr);
    }
    *ret_bytes = snapshot_bytes(s->config.cache, r->seq);
    *ret_least = snapshot_least(r->save);
    return 0;
}

/* One whose batch is not released yet is still among those that run. */
static struct request *find_saving(const struct sched *s, uint64_t handle)
{
    struct request *r = request_find(&s->resting, handle);

    r = r ? r : request_find(&s->running, handle);
    return r && r->save ? r : NULL;
}

int sched_save_next(struct sched *s, uint64_t handle, void *buf, size_t size, size_t *ret_n,
                    struct error *reterr)
{
    struct request *r = find_saving(s, handle);
    int e;

    if (!r) {
        return error_set(reterr, -ENOENT, "no such sequence is being saved");
    }
    e = snapshot_next(r->save, buf, size, ret_n);
    return e ? cannot_save(s, r, e, reterr) : 0;
}

bool sched_save_waits(struct sched *s, uint64_t handle, size_t size)
{
    struct request *r = find_saving(s, handle);

    return r && snapshot_waits(r->save, size);
}

void sched_save_end(struct sched *s, uint64_t handle)
{
    struct request *r = find_saving(s, handle);

    if (r) {
        snapshot_writer_destroy(r->save);
        r->save = NULL;
        if (r->rests) {
            sched_leave(s, r);
        }
    }
}

int sched_credit(struct sched *s, uint64_t handle, int64_t n_rows)
{
    struct request *r = find(s, handle);

    if (!r) {
        return -ENOENT;
    }
    r->credit = n_rows > r->credit ? n_rows : r->credit;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* From hidden states to tokens and scores.
 *
 * The head runs over blocks of wanted rows. Logits are computed into memory of our own, from which
 * tokens are sampled and scores are read; what a client is to see is copied to the client's
 * memory once and never read back.
 *
 * A scored text whose reader wants full logits may have more rows than the reader has room for.
 * The hidden states of its wanted rows (2 kB each, where logits are 200 kB) are set aside, and the
 * head runs over them as credit comes; its next chunk is read when they are used up. */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sched/admit.h"
#include "engine/sched/state.h"
#include "engine/text/tok.h"

static void new_event(struct sched *s, enum engine_event_type type)
{
    memset(&s->event, 0, sizeof(s->event));
    s->event.type = type;
}

static void copy_logits(const struct sched *s, const struct request *r, int64_t row,
                        const float *logits)
{
    size_t n = (size_t)s->config.model->h.n_vocab;

    if (r->logits) {
        memcpy(r->logits + (size_t)(row % r->logits_rows) * n, logits, n * sizeof(float));
    }
}

/* The block's logits on the host. */
static int read_logits(struct sched *s, const float *device, int32_t n)
{
    return s->ops->read(s->be, s->logits, device,
                        (uint64_t)n * (uint64_t)s->config.model->h.n_vocab * sizeof(float));
}

/* ---- new tokens ------------------------------------------------------------------------------ */

static void emit_token(struct sched *s, struct request *r, const struct sampler_result *t)
{
    new_event(s, ENGINE_EV_TOKEN);
    s->event.index = r->n_new - 1;
    s->event.token = t->id;
    s->event.logprob = t->logprob;
    s->event.n_alts = t->n_alts;
    for (int32_t i = 0; i < t->n_alts; i++) {
        s->event.alts[i].token = t->alts[i].id;
        s->event.alts[i].logprob = t->alts[i].logprob;
    }
    sched_emit(s, r);
}

static void no_number(struct sched *s, struct request *r, int e)
{
    struct error error = {0};

    (void)error_set(&error, e, "the model gave no number for token %d of the answer", r->n_new);
    sched_finish(s, r, ENGINE_ERROR, &error);
}

/* logits: NULL where nobody wants to see them. */
static void take_token(struct sched *s, struct request *r, const struct sampler_result *t,
                       bool forced, const float *logits)
{
    if (!r->first_token_ns) {
        r->first_token_ns = clock_ns();
    }
    r->tokens[r->n_fed] = t->id;
    sampler_accept(&r->sampler, t->id);
    s->counters.n_new_tokens++;
    if (!forced || r->report_forced) {
        copy_logits(s, r, r->n_new, logits);
        r->n_new++;
        emit_token(s, r, t);
    } else {
        r->n_new++;
    }
    if (r->cancelled) {
        sched_finish(s, r, r->reason, NULL);
    } else if (!forced && !r->ignore_end && s->config.tok && tok_is_end(s->config.tok, t->id)) {
        sched_finish(s, r, ENGINE_STOP, NULL);
    } else if (r->n_new == r->max_new) {
        sched_finish(s, r, r->until_ctx ? ENGINE_CONTEXT : ENGINE_LENGTH, NULL);
    }
}

void output_token(struct sched *s, struct request *r, const float *logits)
{
    bool forced = r->n_new < r->n_forced;
    struct sampler_result t = {0};
    int e = 0;

    if (!forced) {
        e = sampler_sample(&r->sampler, &s->sampler, logits, (uint64_t)r->n_new, &t);
    } else if (r->report_forced) {
        e = sampler_score(&s->sampler, logits, r->tokens[r->n_fed], r->sampler.params.n_logprobs,
                          &t);
    }
    if (e) {
        no_number(s, r, e);
        return;
    }
    t.id = forced ? r->tokens[r->n_fed] : t.id;
    take_token(s, r, &t, forced, logits);
}

void output_drawn(struct sched *s, struct request *r, int32_t id)
{
    struct sampler_result t = {.id = id};

    if (id < 0) {
        no_number(s, r, -EBADMSG);
        return;
    }
    take_token(s, r, &t, false, NULL);
}

/* Those who wait for its prompt come first: it may end with its first token. */
static int new_token(struct sched *s, struct request *r, const float *logits)
{
    int e = r->n_fed == r->n_prompt ? fork_first_tokens(s, r, logits) : 0;

    if (!e) {
        output_token(s, r, logits);
    }
    return e;
}

/* A row that went no further than the split: the rest of the vocabulary shares what its head gives
 * to other words. */
static int exited_token(struct sched *s, const struct wanted *w, const float *exit)
{
    const struct model *m = s->config.model;
    int32_t n = m->w[MT_EXIT_HEAD].n_rows - 1;
    float other = exit[n] - logf((float)(m->h.n_vocab - n));

    if (w->r->finished || !draft_holds(s, w->r, w)) {
        return 0;
    }
    for (int32_t i = 0; i < m->h.n_vocab; i++) {
        s->logits[i] = other;
    }
    for (int32_t i = 0; i < n; i++) {
        s->logits[m->exit_words[i]] = exit[i];
    }
    w->r->n_exited++;
    s->counters.n_exited++;
    return new_token(s, w->r, s->logits);
}

/* ---- scores -----------------------------------------------------------------------------------
 */

/* Rows [0, n) of s->logits score positions from pos on. */
static void score_rows(struct sched *s, struct request *r, int32_t pos, const float *logits,
                       int32_t n)
{
    size_t n_vocab = (size_t)s->config.model->h.n_vocab;
    struct sampler_result t;
    struct error error = {0};

    for (int32_t i = 0; i < n; i++) {
        const float *row = logits + (size_t)i * n_vocab;
        int e = sampler_score(&s->sampler, row, r->tokens[pos + i + 1], 0, &t);

        if (e) {
            (void)error_set(&error, e, "the model gave no number at position %d", pos + i);
            sched_finish(s, r, ENGINE_ERROR, &error);
            return;
        }
        s->logprobs[i] = t.logprob;
        copy_logits(s, r, r->n_scored + i, row);
    }
    new_event(s, ENGINE_EV_SCORE);
    s->event.index = (int32_t)r->n_scored;
    s->event.n_done = n;
    s->event.logprobs = s->logprobs;
    r->n_scored += n;
    if (!r->first_token_ns) {
        r->first_token_ns = clock_ns();
    }
    sched_emit(s, r);
}

static void end_of_score(struct sched *s, struct request *r)
{
    if (r->cancelled) {
        sched_finish(s, r, r->reason, NULL);
    } else if (r->n_fed == r->n_prompt && r->n_scored >= r->n_prompt - 1 - r->score_first) {
        sched_finish(s, r, ENGINE_LENGTH, NULL);
    }
}

bool output_can_drain(const struct sched *s)
{
    return s->stash.r && s->stash.done < s->stash.n && s->stash.r->n_scored < s->stash.r->credit;
}

int output_drain(struct sched *s)
{
    struct stash *st = &s->stash;
    int32_t most = sched_logit_rows(s->config.n_seqs);

    while (output_can_drain(s)) {
        struct request *r = st->r;
        int64_t room = r->credit - r->n_scored;
        int32_t n = st->n - st->done;
        const float *logits;

        if (atomic_load_explicit(&s->interrupt, memory_order_relaxed)) {
            return -EINTR;
        }
        n = n > most ? most : n;
        n = n > room ? (int32_t)room : n;
        n = r->logits && n > r->logits_rows ? r->logits_rows : n;
        int e =
            forward_head(s->forward, st->hidden + (size_t)st->done * (size_t)forward_ld(s->forward),
                         n, 0, &logits);

        if (!e) {
            e = read_logits(s, logits, n);
        }
        if (e) {
            return e;
        }
        st->done += n;
        int32_t pos = st->pos0 + st->done - n;

        if (st->done == st->n) {
            st->n = 0;
            st->done = 0;
        }
        score_rows(s, r, pos, s->logits, n);
        if (st->r == r) {
            end_of_score(s, r);
        }
    }
    return 0;
}

int output_stash(struct sched *s, struct request *r, float *hidden)
{
    s->stash.hidden = hidden;
    s->stash.pos0 = r->score_first;
    s->stash.n = r->n_prompt - 1 - r->score_first;
    s->stash.done = 0;
    end_of_score(s, r); /* where there is nothing to score */
    return 0;
}

/* ---- a batch's wanted rows ---------------------------------------------------------------------
 */

static int set_aside(struct sched *s, int32_t at, int32_t n)
{
    struct batch *b = &s->batch;

    s->stash.hidden = s->stash_memory;
    s->stash.pos0 = b->wanted[at].pos;
    s->stash.n = n;
    s->stash.done = 0;
    return forward_take(s->forward, b->wanted_rows + at, n, s->stash.hidden);
}

/* ---- embeddings ------------------------------------------------------------------------------ */

static void put_hidden(const struct request *r, int64_t row, const float *x, int32_t n,
                       double scale)
{
    double sum = 0.0;

    for (int32_t d = 0; d < n; d++) {
        sum += (double)x[d] * (double)x[d];
    }
    if (r->unit) {
        scale = sum > 0.0 ? 1.0 / sqrt(sum) : 0.0;
    }
    for (int32_t d = 0; d < n; d++) {
        r->hidden[row * n + d] = (float)(scale * (double)x[d]);
    }
}

static void end_of_embed(struct sched *s, struct request *r)
{
    int32_t n = s->config.model->h.n_embd;

    if (r->pool == ENGINE_POOL_MEAN) {
        put_hidden(r, 0, r->sum, n, 1.0 / (double)r->n_prompt);
    }
    new_event(s, ENGINE_EV_HIDDEN);
    s->event.n_done = r->pool == ENGINE_POOL_NONE ? r->n_prompt : 1;
    sched_emit(s, r);
    sched_finish(s, r, r->cancelled ? r->reason : ENGINE_LENGTH, NULL);
}

/* Wanted rows of one text. Rows that a batch which was given up has left already come once more. */
static int embed_block(struct sched *s, struct request *r, int32_t at, int32_t n)
{
    int32_t n_embd = s->config.model->h.n_embd;
    float *x = r->sum + n_embd;
    const float *device;
    int e = forward_normed(s->forward, s->batch.wanted_rows + at, n, &device);

    for (int32_t i = 0; !e && !r->finished && i < n; i++) {
        int32_t pos = s->batch.wanted[at + i].pos;

        if (pos < batch_first_wanted(r) + r->n_scored) {
            continue;
        }
        e = s->ops->read(s->be, x, device + (size_t)i * (size_t)forward_ld(s->forward),
                         (uint64_t)n_embd * sizeof(*x));
        if (!e && r->pool == ENGINE_POOL_MEAN) {
            for (int32_t d = 0; d < n_embd; d++) {
                r->sum[d] += x[d];
            }
        } else if (!e) {
            put_hidden(r, r->n_scored, x, n_embd, 1.0);
        }
        r->n_scored++;
        if (!e && pos == r->n_prompt - 1) {
            end_of_embed(s, r);
        }
    }
    return e;
}

/* Wanted rows from `at` that one call of the head may take: whole texts' rows that are scored
 * together stay together only by chance, and need not. Rows to be embedded are of one text. */
static int32_t block_rows(const struct sched *s, int32_t at)
{
    const struct batch *b = &s->batch;
    const struct request *first = b->wanted[at].r;
    int32_t most = sched_logit_rows(s->config.n_seqs);
    int32_t n = 0;

    while (at + n < b->n_wanted && n < most && !b->wanted[at + n].r->stashes &&
           !forward_exited(s->forward, b->wanted[at + n].seq) &&
           (first->kind == ENGINE_EMBED ? b->wanted[at + n].r == first
                                        : b->wanted[at + n].r->kind != ENGINE_EMBED)) {
        n++;
    }
    return n;
}

static int run_block(struct sched *s, int32_t at, int32_t n)
{
    struct batch *b = &s->batch;
    size_t n_vocab = (size_t)s->config.model->h.n_vocab;
    const float *device;
    int e = forward_logits(s->forward, b->wanted_rows + at, n, &device);

    if (!e) {
        e = read_logits(s, device, n);
    }
    for (int32_t i = 0; !e && i < n;) {
        struct request *r = b->wanted[at + i].r;
        const float *row = s->logits + (size_t)i * n_vocab;
        int32_t same = 1;

        while (i + same < n && b->wanted[at + i + same].r == r) {
            same++;
        }
        if (!r->finished && r->kind == ENGINE_SCORE) {
            score_rows(s, r, b->wanted[at + i].pos, row, same);
        } else {
            for (int32_t k = 0; !e && k < same; k++) {
                if (!r->finished && draft_holds(s, r, &b->wanted[at + i + k])) {
                    e = new_token(s, r, row + (size_t)k * n_vocab);
                }
            }
        }
        i += same;
    }
    return e;
}

int output_rows(struct sched *s, struct request *r, float *hidden, int32_t pos, int32_t n)
{
    struct batch *b = &s->batch;

    assert(b->n_seqs == 0);
    forward_computed(s->forward, hidden, n);
    b->of[0] = r;
    b->n_seqs = 1;
    r->in_batch = true;
    for (int32_t i = 0; i < n; i++) {
        b->wanted[i] = (struct wanted){.r = r, .row = i, .pos = pos + i};
        b->wanted_rows[i] = i;
    }
    b->n_wanted = n;
    int e = output_run(s);

    batch_release(s);
    return e;
}

int output_run(struct sched *s)
{
    struct batch *b = &s->batch;

    while (b->done_wanted < b->n_wanted) {
        int32_t at = b->done_wanted;
        int32_t n = block_rows(s, at);
        const float *exit = forward_exited(s->forward, b->wanted[at].seq);
        int e = 0;

        if (atomic_load_explicit(&s->interrupt, memory_order_relaxed)) {
            return -EINTR;
        }
        if (exit) {
            n = 1;
            e = exited_token(s, &b->wanted[at], exit);
        } else if (b->wanted[at].r->kind == ENGINE_EMBED) {
            e = embed_block(s, b->wanted[at].r, at, n);
        } else if (n > 0) {
            e = run_block(s, at, n);
        } else {
            while (at + n < b->n_wanted && b->wanted[at + n].r == b->wanted[at].r) {
                n++;
            }
            e = b->wanted[at].r->finished ? 0 : set_aside(s, at, n);
        }
        if (e) {
            return e;
        }
        b->done_wanted += n;
    }
    for (int32_t i = 0; i < b->n_seqs; i++) {
        struct request *r = b->of[i];

        if (!r->finished && r->kind == ENGINE_SCORE && !(s->stash.r == r && s->stash.n > 0)) {
            end_of_score(s, r);
        }
    }
    return 0;
}

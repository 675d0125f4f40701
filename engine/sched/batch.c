/* SPDX-License-Identifier: Apache-2.0 */
/* From running requests to a batch, and back into their state.
 *
 * Decode rows of all sequences first, one each and those of drafted tokens; then whole chunks of
 * prompts, as many as fit in batch_tokens, in turns of principals. While somebody waits for a next
 * token, chunks are read between batches (prompt.c); what cannot be (disks, devices that work
 * while the host does) has as many rows in a step as token_budget.h says. Where nobody who decodes
 * is in a hurry (urgency below 0), whole chunks ride beside the decode rows.
 *
 * Where nobody waits, the prompt whose turn it is has several chunks in a step of most_rows, and no
 * other prompt beside it, if the cache allows (kv_joins_chunks()). A chunk stays what policies see
 * and what is kept.
 *
 * What a sequence computes does not depend on who else is served: a row has the same bits in any
 * company, and chunks are cut or joined only where the policy does not see that (kv_divisible()).
 */

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sched/state.h"

static int32_t max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

int32_t batch_chunk(const struct request *r)
{
    int32_t left = r->n_prompt - r->n_fed;
    int32_t rest = r->policy.chunk - r->n_fed % r->policy.chunk;

    return left < rest ? left : rest;
}

/* Does r hold up those who decode, because it is more urgent than they are? */
static bool is_urgent(const struct sched *s, const struct request *r)
{
    return r->principal == s->batch.principal && r->urgency > s->batch.urgency;
}

/* The rows of its prompt that r reads in a step with room for so many, `budget` for those that keep
 * others waiting; 0: none. */
static int32_t step_rows(const struct sched *s, const struct request *r, int32_t room,
                         int32_t budget)
{
    int32_t n = batch_chunk(r);

    if (budget > 0 && is_urgent(s, r)) {
        budget = INT32_MAX;
    }
    int32_t cut = budget < n ? kv_divisible(s->config.cache, r->seq, r->n_fed, n, true) : 0;

    if (n > room || budget == 0 ||
        (budget < INT32_MAX && n > BUDGET_LEAST && kv_may_interleave(s->config.cache, r->seq))) {
        return 0;
    }
    if (budget >= n) {
        return n;
    }
    if (cut > budget) {
        return budget;
    }
    /* What cannot be cut goes at once, and first. */
    return cut > 0 ? cut : s->batch.rows.n == s->batch.rows.n_decode ? n : 0;
}

bool batch_decodes(const struct request *r)
{
    return r->n_fed >= r->n_prompt && r->n_fed < r->n_prompt + r->n_new;
}

int32_t batch_first_wanted(const struct request *r)
{
    bool all = r->kind == ENGINE_EMBED && r->pool != ENGINE_POOL_LAST;

    return all ? 0 : r->kind == ENGINE_SCORE ? r->score_first : r->n_prompt - 1;
}

static void want_rows(struct batch *b, struct request *r, int32_t seq, int32_t row0, int32_t pos0,
                      int32_t n_rows)
{
    /* The last token of a scored text predicts nothing that is known. */
    int32_t end = r->kind == ENGINE_SCORE ? r->n_prompt - 1 : INT32_MAX;

    for (int32_t pos = max_i32(batch_first_wanted(r), pos0); pos < pos0 + n_rows && pos < end;
         pos++) {
        b->wanted[b->n_wanted] =
            (struct wanted){.r = r, .seq = seq, .row = row0 + pos - pos0, .pos = pos};
        b->wanted_rows[b->n_wanted++] = row0 + pos - pos0;
    }
}

int32_t batch_rows_beyond(const struct sched *s, const struct request *r, int32_t pos0,
                          int32_t n_rows)
{
    int32_t observed = kv_observed_from(s->config.cache, r->seq, pos0, n_rows);
    int32_t first = batch_first_wanted(r);

    first = max_i32(observed < first ? observed : first, pos0);
    return first >= pos0 + n_rows ? 0 : pos0 + n_rows - first;
}

static int add_rows(struct sched *s, struct request *r, int32_t n_rows)
{
    struct batch *b = &s->batch;
    struct cache *cache = s->config.cache;
    bool prefill = r->n_fed < r->n_prompt;
    int32_t i = b->n_seqs;
    int e = kv_step_prepare(cache, r->seq, n_rows);

    if (e) {
        return e;
    }
    b->seqs[i] = (struct kv_rows){
        .seq = r->seq,
        .row0 = b->rows.n,
        .n_rows = n_rows,
        .pos0 = r->n_fed,
        .n_beyond = prefill ? batch_rows_beyond(s, r, r->n_fed, n_rows) : n_rows,
        .chunk_pos0 = r->n_fed,
        .chunk_rows = n_rows,
    };
    kv_step_add(cache, &b->seqs[i]);
    b->exit[i] = prefill ? 0.0f : r->policy.exit;
    b->exits = b->exits || b->exit[i] > 0;
    b->propose[i] = r->n_proposing;
    b->proposes = b->proposes || b->propose[i] > 0;
    memcpy(b->ids + b->rows.n, r->tokens + r->n_fed,
           (size_t)(prefill ? n_rows : 1) * sizeof(*b->ids));
    if (!prefill) {
        memset(b->ids + b->rows.n + 1, 0, (size_t)r->n_proposing * sizeof(*b->ids));
        draft_write(s, r, b->ids + b->rows.n + 1);
    }
    want_rows(b, r, i, b->rows.n, r->n_fed, n_rows);
    b->rows.n += n_rows;
    b->rows.n_decode += prefill ? 0 : n_rows;
    b->of[i] = r;
    b->n_seqs++;
    r->in_batch = true;
    if (!r->first_row_ns) {
        r->first_row_ns = clock_ns();
    }
    return 0;
}

/* Does it read rows of its prompt in batches, or interleaved with them? */
static bool reads(const struct sched *s, const struct request *r)
{
    bool stalled = s->stash.r == r && s->stash.n > 0;

    return !r->in_batch && !r->saved && r->n_fed < r->n_prompt && !stalled &&
           !prompt_is_whole(s, r) && s->chunk.r != r;
}

static bool goes_before(const struct request *a, const struct request *b)
{
    return !b || a->principal->chunk_turn < b->principal->chunk_turn ||
           (a->principal->chunk_turn == b->principal->chunk_turn && a->urgency > b->urgency);
}

/* Instead of n rows, to a chunk's end: whole chunks behind them as far as there is room, or all
 * that is left. What is scored by credit has place for a chunk's hidden states. */
static int32_t join_chunks(const struct sched *s, const struct request *r, int32_t room, int32_t n)
{
    int32_t most = s->config.prompt_rows < room ? s->config.prompt_rows : room;
    int32_t left = r->n_prompt - r->n_fed;

    if (s->config.prompt_rows < 2 * s->config.max_chunk || most <= n || r->stashes ||
        !kv_joins_chunks(s->config.cache, r->seq)) {
        return n;
    }
    return left <= most ? left : n + (most - n) / r->policy.chunk * r->policy.chunk;
}

/* The prompt whose turn it is, of those whose next rows fit. */
static struct request *next_prompt(const struct sched *s, int32_t room, int32_t budget)
{
    struct request *best = NULL;

    for (struct request *r = s->running.first; r; r = r->next) {
        if (reads(s, r) && step_rows(s, r, room, budget) > 0 && goes_before(r, best)) {
            best = r;
        }
    }
    return best;
}

int batch_choose_chunk(struct sched *s, int32_t room)
{
    struct request *best = NULL;
    bool urgent = false;

    s->chunk.hurries = false;
    for (struct request *r = s->running.first; r; r = r->next) {
        if (is_urgent(s, r) && r->n_fed < r->n_prompt && !prompt_is_whole(s, r)) {
            urgent = true;
            s->chunk.hurries |= s->chunk.r == r || (reads(s, r) && batch_chunk(r) > room);
        } else if (reads(s, r) && batch_chunk(r) > BUDGET_LEAST &&
                   kv_may_interleave(s->config.cache, r->seq) && goes_before(r, best)) {
            best = r;
        }
    }
    if (s->chunk.r || !best || urgent || s->batch.patient) {
        return 0;
    }
    best->principal->chunk_turn = ++s->turn;
    return prompt_start_chunk(s, best);
}

void batch_begin(struct sched *s, bool drawn)
{
    struct batch *b = &s->batch;
    struct forward_batch f = {
        .kv = s->config.cache,
        .rows = b->rows,
        .ids = b->ids,
        .drawn = drawn,
        .n_seqs = b->n_seqs,
        .seqs = b->seqs,
        .exit = b->exits ? b->exit : NULL,
        .propose = b->proposes ? b->propose : NULL,
        .proposed = b->ids,
        .least = b->least,
    };

    forward_begin(s->forward, &f);
    b->pending = true;
}

int batch_build(struct sched *s)
{
    struct batch *b = &s->batch;
    struct request *r;
    int32_t left;

    assert(b->n_seqs == 0 && !b->pending);
    b->rows = (struct ops_rows){0};
    b->exits = false;
    b->proposes = false;
    b->n_wanted = 0;
    b->done_wanted = 0;
    b->urgency = INT32_MIN;
    b->principal = NULL;
    b->begun_ns = clock_ns();
    b->took_ns = 0;
    kv_step_begin(s->config.cache);
    draft_choose(s);
    for (r = s->running.first; r; r = r->next) {
        if (batch_decodes(r)) {
            int e = add_rows(s, r, 1 + r->n_drafting + r->n_proposing);

            if (e) {
                return e;
            }
            b->urgency = max_i32(b->urgency, r->urgency);
            b->principal = b->n_seqs == 1 || b->principal == r->principal ? r->principal : NULL;
        }
    }
    b->patient = b->urgency < 0; /* or nobody decodes */
    int32_t budget = token_budget_room(&s->token_budget, b->patient ? 0 : b->rows.n_decode);
    /* less the rows beside, and hidden states of what is interleaved */
    int32_t taken = b->rows.n - s->drafts.n_rows + (s->chunk.r ? s->config.max_chunk : 0);
    int32_t room = s->config.batch_tokens - taken;

    for (left = room; (r = next_prompt(s, left, budget)) != NULL;) {
        int32_t n = step_rows(s, r, left, budget);
        bool joins = b->patient && left == room;
        int32_t rows = joins ? join_chunks(s, r, s->config.most_rows - taken, n) : n;
        int e = add_rows(s, r, rows);

        if (e) {
            return e;
        }
        r->principal->chunk_turn = ++s->turn;
        if (rows > n) {
            break; /* others would make it wait, and it them */
        }
        left -= n;
        budget = budget > n ? budget - n : 0;
    }
    int e = batch_choose_chunk(s, room);

    if (e) {
        return e;
    }
    draft_built(s, b->rows.n == b->rows.n_decode);
    if (b->rows.n > 0) {
        batch_begin(s, false);
    }
    return b->rows.n;
}

/* Rows that the early-exit head was asked for and did not propose were not computed. */
static void forget_rows(struct sched *s)
{
    struct batch *b = &s->batch;
    int32_t n = 0;

    for (int32_t i = 0; i < b->n_wanted; i++) {
        const struct wanted *w = &b->wanted[i];

        if (w->row - b->seqs[w->seq].row0 < forward_ran(s->forward, w->seq)) {
            b->wanted_rows[n] = b->wanted_rows[i];
            b->wanted[n++] = *w;
        }
    }
    b->n_wanted = n;
}

int batch_commit_prompt(struct sched *s, struct request *r, int32_t n_rows)
{
    kv_step_commit(s->config.cache, r->seq, n_rows);
    r->n_fed += n_rows;
    s->counters.n_prompt_tokens += (uint64_t)n_rows;
    if (r->n_fed % r->policy.chunk != 0 && r->n_fed < r->n_prompt) {
        return 0; /* within a chunk */
    }
    kv_keep(s->config.cache, r->seq, r->tokens, r->resumed ? 0 : r->n_fed);
    /* Where a whole prompt is scored, its hidden states stay until it is. */
    bool stays = r->stashes && prompt_is_whole(s, r);
    int e = stays ? 0 : kv_cut(s->config.cache, r->seq, r->n_fed == r->n_prompt);

    if (!e && !r->finished) {
        memset(&s->event, 0, sizeof(s->event));
        s->event.type = ENGINE_EV_PROGRESS;
        s->event.n_done = r->n_fed;
        sched_emit(s, r);
    }
    return e;
}

int batch_commit(struct sched *s)
{
    struct batch *b = &s->batch;
    int e = 0;

    forget_rows(s);
    for (int32_t i = 0; !e && i < b->n_seqs; i++) {
        struct request *r = b->of[i];

        if (r->n_fed < r->n_prompt) {
            e = batch_commit_prompt(s, r, b->seqs[i].n_rows);
            continue;
        }
        if (r->finished) {
            continue; /* its row was begun ahead of the token that ended it, and is taken back */
        }
        draft_count(s, r, i);
        kv_step_commit(s->config.cache, r->seq, 1); /* drafted ones follow as they come true */
        r->n_fed++;
    }
    return e;
}

void batch_release(struct sched *s)
{
    struct batch *b = &s->batch;

    b->pending = false; /* what was drafted and is not said can go */
    for (int32_t i = 0; i < b->n_seqs; i++) {
        struct request *r = b->of[i];

        draft_take_back(s, r);
        r->in_batch = false;
        if (r->finished) {
            sched_leave(s, r);
        }
    }
    b->n_seqs = 0;
    b->n_wanted = 0;
    b->done_wanted = 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts that are read layer by layer (prompt.c), a step's share of them.
 *
 * There is at most one that is read whole and one of which a chunk is. Each says what its next unit
 * can be; how many rows it has, and whether another unit follows, is decided by the time that those
 * who decode may be kept waiting, which token_budget.h knows, and by a clock. With both, steps go
 * to the one and the other in turn; but where somebody urgent waits for the chunk, to the chunk,
 * and without regard to those who decode.
 *
 * A unit that was interrupted is taken up before anything else is computed: what it has observed
 * cannot be observed again. */

#include <math.h>

#include "base/clock.h"
#include "engine/sched/state.h"

bool interleave_pending(const struct sched *s)
{
    return s->whole.pending || s->chunk.pending;
}

/* Whose unit is next; NULL: nobody's. */
static struct prompt *whose(struct sched *s)
{
    struct prompt *c = &s->chunk;
    const struct prompt *w = &s->whole;
    bool chunk = c->r && !w->pending && (c->pending || c->hurries || !w->r || s->chunk_next);

    return chunk ? c : w->r ? &s->whole : NULL;
}

static int run_unit(struct sched *s, struct prompt *p, int32_t n_rows)
{
    if (!p->pending) {
        prompt_begin(s, p, n_rows);
        p->pending = true;
    }
    int e = p->stage == PROMPT_OUTPUT ? 0 : forward_run(s->forward);

    if (e) {
        return e;
    }
    p->pending = false;
    return prompt_end(s, p);
}

/* GPU work is asynchronous: synchronise before timing. */
static int measure(struct sched *s, struct token_budget_unit u, int32_t n_rows, int64_t began)
{
    int e = s->ops->sync(s->be);

    if (!e) {
        token_budget_add_piece(&s->token_budget, u, n_rows, (double)(clock_ns() - began));
    }
    return e;
}

int interleave_run(struct sched *s)
{
    const struct ops_rows *rows = &s->batch.rows;
    bool waited_for = rows->n_decode > 0;
    bool hurries = s->chunk.hurries && s->chunk.r;
    int32_t n_kept = hurries || s->batch.patient ? 0 : rows->n_decode;
    double budget = token_budget_ns(&s->token_budget, n_kept, s->batch.took_ns);
    int32_t most = budget == INFINITY ? s->config.model->h.n_layers : INT32_MAX;
    int64_t began = clock_ns();
    struct prompt *p = whose(s);
    int e = 0;

    if (!p || (!interleave_pending(s) && token_budget_rests(&s->token_budget, n_kept))) {
        return 0;
    }
    for (int32_t i = 0; !e && i < most && p && (!hurries || s->chunk.r); i++) {
        bool taken_up = interleave_pending(s);
        struct token_budget_unit u = prompt_unit(s, p);
        int64_t now = clock_ns();
        int32_t n = token_budget_piece(&s->token_budget, u, budget - (double)(now - began), i == 0);

        if (n == 0) {
            break;
        }
        e = run_unit(s, p, n);
        if (!e && waited_for && !taken_up) {
            e = measure(s, u, n, now);
        }
        if (!e && n_kept > 0 && !s->chunk.r) { /* it is read: the time left is the next one's */
            e = batch_choose_chunk(s, s->config.batch_tokens);
        }
        p = whose(s);
    }
    s->chunk_next = !s->chunk_next;
    if (!e && s->whole.r) {
        prompt_progress(s);
    }
    return e;
}

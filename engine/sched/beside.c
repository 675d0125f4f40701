/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts that are read layer by layer, a step's share of them.
 *
 * There is at most one whose layers take all of it (layered.c) and one whose layers take a chunk
 * (pieces.c). Each says what its next unit can be; how many rows it has, and whether another unit
 * follows, is decided by the time that those who decode may be kept waiting, which slice.h knows,
 * and by a clock. With both, steps go to the one and the other in turn; but where somebody urgent
 * waits for the chunk, to the chunk, and without regard to those who decode.
 *
 * A unit that was interrupted is taken up before anything else is computed: what it has observed
 * cannot be observed again. */

#include "base/clock.h"
#include "engine/sched/state.h"

/* NULL where there is none; else whether the next unit is of a chunk. */
static const struct request *whose(const struct sched *s, bool *ret_pieces)
{
    const struct layered *l = &s->layered;
    const struct pieces *p = &s->pieces;

    *ret_pieces = p->r && !l->pending && (p->pending || p->hurries || !l->r || s->pieces_next);
    return *ret_pieces ? p->r : l->r;
}

static int run_unit(struct sched *s, bool pieces, int32_t n_rows)
{
    bool *pending = pieces ? &s->pieces.pending : &s->layered.pending;
    int e = 0;

    if (!*pending) {
        e = pieces ? pieces_begin(s, n_rows) : layered_begin(s, n_rows);
        *pending = e == 0;
    }
    e = e || (pieces && s->pieces.stage == LAYERED_OUTPUT) ? e : forward_run(s->forward);
    if (e) {
        return e;
    }
    *pending = false;
    return pieces ? pieces_end(s) : layered_end(s);
}

/* A device has only been told of it. */
static int measure(struct sched *s, struct slice_unit u, int32_t n_rows, int64_t began)
{
    int e = s->ops->sync(s->be);

    if (!e) {
        slice_add_piece(&s->slice, u, n_rows, (double)(clock_ns() - began));
    }
    return e;
}

int beside_run(struct sched *s)
{
    const struct ops_rows *rows = &s->batch.rows;
    bool waited_for = rows->n_decode > 0;
    bool hurries = s->pieces.hurries && s->pieces.r;
    double budget = slice_budget(&s->slice, hurries ? 0 : rows->n_decode, s->batch.took_ns);
    int32_t most = s->config.model->h.n_layers;
    int64_t began = clock_ns();
    bool pieces;
    int e = 0;

    if (!whose(s, &pieces) || (!s->pieces.pending && !s->layered.pending &&
                               slice_rests(&s->slice, hurries ? 0 : rows->n_decode))) {
        return 0;
    }
    if (waited_for && rows->n > rows->n_decode && !hurries) {
        budget = 0; /* another's prompt has had the time */
    }
    for (int32_t i = 0; !e && i < most && whose(s, &pieces) && (!hurries || s->pieces.r); i++) {
        bool taken_up = s->layered.pending || s->pieces.pending;
        struct slice_unit u = pieces ? pieces_unit(s) : layered_unit(s);
        int64_t now = clock_ns();
        int32_t n = slice_piece(&s->slice, u, budget - (double)(now - began), i == 0);

        if (n == 0) {
            break;
        }
        e = run_unit(s, pieces, n);
        if (!e && waited_for && !taken_up) {
            e = measure(s, u, n, now);
        }
    }
    s->pieces_next = !s->pieces_next;
    if (!e && s->layered.r) {
        layered_progress(s);
    }
    return e;
}

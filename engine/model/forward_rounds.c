/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens that the early-exit head proposes, within the run that verifies them.
 *
 * A row goes through the shallow layers and writes K and V of all layers, since the deep ones' come
 * from the split's hidden state; there the head says what comes after it. That is the token of the
 * sequence's next row, which takes the same way in the next round, and so on. At the end all rows
 * go through the deep layers together. The shallow layers' work is not repeated: a round's hidden
 * states stay in x, behind those of the round before, and what goes on is gathered from there.
 *
 * A round holds one row of each sequence that is still proposing; the first one all the rows of the
 * batch whose tokens are known. Each is a batch as the layers know it (forward_take_seqs), and by
 * the contract of batch invariance a row has the same bits in whatever round it comes. */

#include <string.h>

#include "engine/model/forward_layer.h"

void forward_rounds_place_host(const struct model *m, const struct forward_limits *l,
                               struct memory_arena *a, struct forward *f)
{
    size_t n_rows = model_can_exit(m) ? (size_t)l->max_rows : 0;

    f->open = memory_arena_take(a, (size_t)l->max_seqs * sizeof(*f->open));
    f->place = memory_arena_take(a, n_rows * sizeof(*f->place));
    f->ids = memory_arena_take(a, n_rows * sizeof(*f->ids));
}

int32_t forward_ran(const struct forward *f, int32_t seq)
{
    return f->ran[seq];
}

/* The next count[i] rows of each sequence are the running part. */
static void set_up(struct forward *f)
{
    struct ops_rows rows = {0};

    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        const struct kv_rows *s = &f->b.seqs[i];

        f->row0[i] = rows.n;
        f->first[i] = f->ran[i];
        for (int32_t j = 0; j < f->count[i]; j++) {
            int32_t row = s->row0 + f->ran[i]++;

            f->ids[rows.n] = f->b.ids[row];
            f->place[row] = f->base + rows.n++;
            rows.n_decode += row < f->b.rows.n_decode;
        }
    }
    f->rows = rows;
    f->cur.p = f->x.p + (size_t)f->base * (size_t)f->x.ld;
}

void forward_rounds_begin(struct forward *f)
{
    f->base = 0;
    f->viewed = true;
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        f->count[i] = f->b.seqs[i].n_rows - f->b.propose[i];
        f->open[i] = f->b.propose[i] > 0;
        f->ran[i] = 0;
    }
    set_up(f);
}

/* Takes the head's word for what comes after seq's latest row. */
static void take_word(struct forward *f, int32_t seq, const float *logits)
{
    int32_t n = f->m->w[MT_EXIT_HEAD].n_rows;
    int32_t word;
    double p = forward_exit_sure(logits, n, &word);

    f->open[seq] = logits[word] > logits[n - 1] && p >= (double)f->b.least;
    if (f->open[seq]) {
        f->b.proposed[f->b.seqs[seq].row0 + f->ran[seq]] = (int32_t)f->m->exit_words[word];
        f->count[seq] = 1;
    }
}

int forward_rounds_next(struct forward *f, bool *ret_again)
{
    int32_t n = 0;
    bool again = false;

    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        f->open[i] = f->open[i] && f->ran[i] < f->b.seqs[i].n_rows;
        if (f->open[i]) {
            f->index[n++] = f->row0[i] + f->count[i] - 1;
        }
    }
    int r = n ? forward_exit_ask(f, n, f->n_exit) : 0;

    n = 0;
    for (int32_t i = 0; !r && i < f->b.n_seqs; i++) {
        f->count[i] = 0;
        if (f->open[i]) {
            take_word(f, i, f->exit_host + (size_t)(f->n_exit + n++) * (size_t)f->exit.ld);
            again = again || f->open[i];
        }
    }
    if (again) {
        f->base += f->rows.n;
        f->again = true;
        set_up(f);
    }
    *ret_again = again;
    return r;
}

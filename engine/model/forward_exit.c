/* SPDX-License-Identifier: Apache-2.0 */
/* Early exit: a decode row whose next token a small head predicts from the split's hidden state
 * goes no further. Nothing is missing from the cache then, since deep K and V come from that very
 * state and are stored before; only the row's own way through the deep layers is saved.
 *
 * The head is a norm and a matrix with a row for each of some words and one row for all others, so
 * that its probabilities are of the whole vocabulary without reading one row for each of its words.
 * A row exits where the likeliest word's probability passes the sequence's threshold; "another
 * word" never does. What a row does depends on that row alone, so a sequence computes the same in
 * any company.
 *
 * The step at the split does all of it, and waits for the head's logits: they decide what the rest
 * of the program runs on. */

#include <math.h>
#include <string.h>

#include "engine/model/forward_impl.h"

void forward_exit_place(const struct model *m, const struct forward_limits *l,
                        struct memory_arena *a, struct forward *f)
{
    place(a, &f->exit, model_can_exit(m) ? l->max_seqs : 0, m->w[MT_EXIT_HEAD].n_rows);
}

void forward_exit_place_host(const struct model *m, const struct forward_limits *l,
                             struct memory_arena *a, struct forward *f)
{
    size_t n = (size_t)l->max_seqs;
    size_t ld = model_can_exit(m) ? (size_t)round_ld(m->w[MT_EXIT_HEAD].n_rows) : 0;

    f->exit_row = memory_arena_take(a, n * sizeof(*f->exit_row));
    f->exit_host = memory_arena_take(a, n * ld * sizeof(*f->exit_host));
}

void forward_exit_clear(struct forward *f)
{
    f->n_exit = 0;
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        f->exit_row[i] = -1;
    }
}

double forward_exit_sure(const float *logits, int32_t n, int32_t *ret_word)
{
    float top = logits[0];
    int32_t word = 0;
    double sum = 0;

    for (int32_t i = 1; i < n; i++) {
        word = i < n - 1 && logits[i] > logits[word] ? i : word;
        top = logits[i] > top ? logits[i] : top;
    }
    for (int32_t i = 0; i < n; i++) {
        sum += exp((double)logits[i] - (double)top);
    }
    *ret_word = word;
    return exp((double)logits[word] - (double)top) / sum;
}

int forward_exit_ask(struct forward *f, int32_t n, int32_t at)
{
    const struct model *m = f->m;
    struct ops_gather rows = {
        .x = f->cur.p,
        .y = f->y.p,
        .index = f->index,
        .n_rows = n,
        .n_cols = m->h.n_embd,
        .ldx = f->cur.ld,
        .ldy = f->y.ld,
    };
    struct ops_matmul head = {
        .rows = {.n = n, .n_decode = n},
        .norm = norm_of(f, &m->w[MT_EXIT_NORM], &(struct ops_weight){0}),
        .x = f->y.p,
        .ldx = f->y.ld,
    };

    add_part(&head, &m->w[MT_EXIT_HEAD], &(struct ops_weight){0}, f->exit.p, f->exit.ld,
             OPS_ACT_NONE);
    int r = f->ops->gather(f->be, &rows);

    r = r ? r : f->ops->matmul(f->be, &head);
    return r ? r
             : f->ops->read(f->be, f->exit_host + (size_t)at * (size_t)f->exit.ld, f->exit.p,
                            (uint64_t)n * (uint64_t)f->exit.ld * sizeof(float));
}

int forward_exit_choose(struct forward *f)
{
    int32_t n_logits = f->m->w[MT_EXIT_HEAD].n_rows;
    int32_t n = 0;

    forward_exit_clear(f);
    for (int32_t i = 0; f->b.exit && i < f->b.n_seqs; i++) {
        const struct kv_rows *s = &f->b.seqs[i];

        if (f->b.exit[i] > 0 && s->n_rows == 1 && s->row0 < f->b.rows.n_decode) {
            f->exit_row[i] = n;
            f->index[n++] = f->viewed ? f->row0[i] : s->row0;
        }
    }
    f->n_exit = n;
    int r = n ? forward_exit_ask(f, n, 0) : 0;

    for (int32_t i = 0; !r && i < f->b.n_seqs; i++) {
        int32_t row = f->exit_row[i];
        int32_t word;

        if (row >= 0 && !(forward_exit_sure(f->exit_host + (size_t)row * (size_t)f->exit.ld,
                                            n_logits, &word) > (double)f->b.exit[i])) {
            f->exit_row[i] = -1;
        }
    }
    return r;
}

const float *forward_exited(const struct forward *f, int32_t seq)
{
    int32_t row = f->exit_row[seq];

    return row < 0 ? NULL : f->exit_host + (size_t)row * (size_t)f->exit.ld;
}

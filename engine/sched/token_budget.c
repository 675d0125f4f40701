/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/sched/token_budget.h"

#include <math.h>

static const double times = 2;  /* a plain step's time, where no target is longer */
static const double slow = 2;   /* a row's time at full speed */
static const double first = 64; /* rows of the first budget */
static const double more = 1.25, less = 0.8;
static const double forget = 1.25;
static const int32_t large = 256;
/* How far a sample moves what is known, and how far off it may be. */
static const double gain = 0.3;
static const double most_off = 1.5;
/* Of the time that a step with units may take: they vary. */
static const double aim = 0.76;

static int crowd(int32_t n_decode)
{
    int i = 0;

    while (i + 1 < BUDGET_CROWDS && n_decode >> (i + 1)) {
        i++;
    }
    return i;
}

/* The nearest crowd's time, 0 when none is known. */
static double plain_near(const struct token_budget *s, int at)
{
    for (int d = 0; d < BUDGET_CROWDS; d++) {
        if (at - d >= 0 && s->plain_ns[at - d] > 0) {
            return s->plain_ns[at - d];
        }
        if (at + d < BUDGET_CROWDS && s->plain_ns[at + d] > 0) {
            return s->plain_ns[at + d];
        }
    }
    return 0;
}

int32_t token_budget_room(struct token_budget *s, int32_t n_decode)
{
    int i = crowd(n_decode);
    bool fresh = s->plain_ns[i] > 0 && s->n_steps - s->at[i] < BUDGET_AGE;
    bool ask = !fresh && (s->n_since >= BUDGET_BETWEEN || s->plain_ns[i] == 0);

    if (n_decode == 0) {
        return INT32_MAX;
    }
    s->asks = ask && !s->asks;
    s->given = s->asks ? 0 : (int32_t)(s->rows > 0 ? s->rows : first) / BUDGET_LEAST * BUDGET_LEAST;
    return s->given;
}

static void learn(double *known, double sample)
{
    if (*known > 0) {
        sample = sample > most_off * *known ? most_off * *known : sample;
        sample = *known + gain * (sample - *known);
    }
    *known = sample;
}

double token_budget_ns(const struct token_budget *s, int32_t n_decode, double step_ns)
{
    double plain = plain_near(s, crowd(n_decode));
    double took = step_ns > 0 ? step_ns : plain;
    double left = fmax(aim * times * plain, s->target_ns) - took;

    return n_decode == 0 ? INFINITY : plain > 0 && left > 0 ? left : 0;
}

bool token_budget_rests(struct token_budget *s, int32_t n_decode)
{
    s->n_beside += n_decode > 0;
    return n_decode > 0 && s->n_beside % BUDGET_REST == 0;
}

/* ns of a row; of a quarter that is not known yet, as in those before it. */
static double row_near(const struct token_budget *s, struct token_budget_unit u)
{
    int32_t i = u.quarter;

    while (i > 0 && s->piece_ns[u.kind][i] == 0) {
        i--;
    }
    return s->piece_ns[u.kind][i];
}

int32_t token_budget_piece(const struct token_budget *s, struct token_budget_unit u, double left_ns,
                           bool opens)
{
    double row = row_near(s, u);
    double n = row > 0 ? left_ns / row : 0;
    int32_t least = opens || u.least > BUDGET_MORE ? u.least : BUDGET_MORE;

    if (n >= u.most || left_ns == INFINITY) {
        return u.most;
    }
    int32_t whole = n < BUDGET_PIECE ? 0 : (int32_t)n / BUDGET_PIECE * BUDGET_PIECE;

    return whole >= least ? whole : opens ? least : 0;
}

void token_budget_add_piece(struct token_budget *s, struct token_budget_unit u, int32_t n,
                            double ns)
{
    double *known = &s->piece_ns[u.kind][u.quarter];

    s->after_unit = true;
    if (n >= BUDGET_PIECE || *known == 0) { /* fewer are slower */
        learn(known, ns / n);
    }
}

void token_budget_add(struct token_budget *s, int32_t n_decode, int32_t n_prompt, double ns)
{
    int i = crowd(n_decode);
    double plain = plain_near(s, i);
    bool after_unit = s->after_unit;

    s->n_steps++;
    s->after_unit = false;
    if (n_prompt == 0 && after_unit && s->plain_ns[i] > 0) {
        return; /* the unit has left the caches cold */
    }
    if (n_prompt == 0) {
        learn(&s->plain_ns[i], ns);
        s->at[i] = s->n_steps;
        s->n_since = 0;
        return;
    }
    if (n_decode == 0) {
        if (n_prompt >= (int32_t)first) { /* fewer are slower */
            learn(&s->full_ns, ns / n_prompt);
        }
        return;
    }
    s->n_since++;
    s->rows = s->rows > 0 ? s->rows : first;
    /* Of another crowd's time, or one that was off, nothing is learnt; nor of what may not be cut,
     * or of a prompt's end. */
    if (s->plain_ns[i] == 0 || ns <= plain || n_prompt > s->given ||
        2 * n_prompt < (int32_t)s->rows) {
        return;
    }
    double row = (ns - plain) / n_prompt;

    if (s->full_ns == 0) {
        s->full_ns = row;
    } else if (row < s->full_ns) {
        s->full_ns += gain * (row - s->full_ns);
    } else if (row > slow * s->full_ns && n_prompt >= large) {
        s->full_ns *= forget; /* so many rows are no slower by nature: it was off */
    }
    s->rows *= row > slow * s->full_ns || ns < fmax(times * plain, s->target_ns) ? more : less;
    s->rows = s->rows < BUDGET_LEAST ? BUDGET_LEAST : s->rows > BUDGET_MOST ? BUDGET_MOST : s->rows;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What drafted rows cost, from the times of steps. */

#include "engine/sched/draft_cost.h"

/* Assumed of a row before any was measured: little, so that it is tried. */
static const double unknown_row = 0.05;
/* How far a sample moves what is known. */
static const double gain = 0.2;
/* A sample counts as at most this many times what is known, and at least its inverse. */
static const double most_off = 2;

static bool known(const struct draft_cost *c, int32_t n)
{
    return c->of[n] > 0 && c->n_steps - c->at[n] < DRAFT_COST_AGE;
}

void draft_cost_anew(struct draft_cost *c)
{
    c->n_plain = 0;
}

bool draft_cost_wants_plain(const struct draft_cost *c)
{
    return c->n_plain < DRAFT_COST_PLAIN || c->n_since >= DRAFT_COST_EVERY;
}

double draft_cost_of(const struct draft_cost *c, int32_t n)
{
    int32_t below = n;
    int32_t above = n;

    while (below > 0 && !known(c, below)) {
        below--;
    }
    while (above <= c->n_rows && !known(c, above)) {
        above++;
    }
    double low = below > 0 ? c->of[below] : 1;

    if (below == n) {
        return low;
    }
    if (above <= c->n_rows) {
        return low + (c->of[above] - low) * (double)(n - below) / (double)(above - below);
    }
    double a_row = below > 0 ? (low - 1) / (double)below : unknown_row;

    return low + a_row * (double)(n - below);
}

/* Of the last three. */
static double median(const double *v)
{
    double low = v[0] < v[1] ? v[0] : v[1];
    double high = v[0] < v[1] ? v[1] : v[0];

    return v[2] < low ? low : v[2] > high ? high : v[2];
}

void draft_cost_add(struct draft_cost *c, int32_t n, double ns)
{
    _Static_assert(DRAFT_COST_PLAIN == 3, "median()");
    if (n == 0) {
        c->plain[c->n_plain++ % DRAFT_COST_PLAIN] = ns;
        c->n_since = 0;
        c->n_steps++;
        return;
    }
    if (c->n_plain < DRAFT_COST_PLAIN) {
        return;
    }
    bool first = !known(c, n);
    double old = draft_cost_of(c, n);
    double now = ns / median(c->plain);

    now = now > most_off * old ? most_off * old : now < old / most_off ? old / most_off : now;
    now = first ? now : old + gain * (now - old);
    c->of[n] = now > 1 ? now : 1;
    c->at[n] = c->n_steps++;
    c->n_since++;
}

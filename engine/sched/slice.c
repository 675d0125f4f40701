/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/sched/slice.h"

static const double times = 2;  /* a plain step's time */
static const double slow = 2;   /* a row's time at full speed */
static const double first = 64; /* rows of the first slice */
static const double more = 1.25, less = 0.8;
static const double forget = 1.25;
static const int32_t large = 256;
/* How far a sample moves what is known, and how far off it may be. */
static const double gain = 0.3;
static const double most_off = 1.5;

static int crowd(int32_t n_decode)
{
    int i = 0;

    while (i + 1 < SLICE_CROWDS && n_decode >> (i + 1)) {
        i++;
    }
    return i;
}

/* The nearest crowd's time, 0 when none is known. */
static double plain_near(const struct slice *s, int at)
{
    for (int d = 0; d < SLICE_CROWDS; d++) {
        if (at - d >= 0 && s->plain_ns[at - d] > 0) {
            return s->plain_ns[at - d];
        }
        if (at + d < SLICE_CROWDS && s->plain_ns[at + d] > 0) {
            return s->plain_ns[at + d];
        }
    }
    return 0;
}

int32_t slice_room(struct slice *s, int32_t n_decode)
{
    int i = crowd(n_decode);
    bool fresh = s->plain_ns[i] > 0 && s->n_steps - s->at[i] < SLICE_AGE;
    bool ask = !fresh && (s->n_since >= SLICE_BETWEEN || s->plain_ns[i] == 0);

    if (n_decode == 0) {
        return INT32_MAX;
    }
    s->asks = ask && !s->asks;
    s->given = s->asks ? 0 : (int32_t)(s->rows > 0 ? s->rows : first) / SLICE_LEAST * SLICE_LEAST;
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

int32_t slice_units(const struct slice *s, int32_t n_decode, int32_t most)
{
    double plain = plain_near(s, crowd(n_decode));

    if (n_decode == 0) {
        return most;
    }
    if (plain == 0 || s->unit_ns == 0) {
        return 1;
    }
    double n = (times - 1) * plain / s->unit_ns;

    return n < 1 ? 1 : n > most ? most : (int32_t)n;
}

void slice_add_unit(struct slice *s, double ns)
{
    learn(&s->unit_ns, ns);
}

void slice_add(struct slice *s, int32_t n_decode, int32_t n_prompt, double ns)
{
    int i = crowd(n_decode);
    double plain = plain_near(s, i);

    s->n_steps++;
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
    s->rows *= row > slow * s->full_ns || ns < times * plain ? more : less;
    s->rows = s->rows < SLICE_LEAST ? SLICE_LEAST : s->rows > SLICE_MOST ? SLICE_MOST : s->rows;
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_SLICE_H
#define PIPIT_ENGINE_SCHED_SLICE_H

/* How much of a prompt a step reads while others wait for their next token: as little as makes the
 * step take twice as long as one without, but so much that the prompt is read at half its full speed at
 * least; few rows cost as much as many where each call goes through all keys. Both are learnt from
 * the times of steps. No clock here: the scheduler says how long a step took. */

#include <stdbool.h>
#include <stdint.h>

enum {
    SLICE_LEAST = 8, /* rows */
    SLICE_MOST = 512,
    SLICE_PIECE = 16, /* rows of a unit that can be cut, at least */
    SLICE_MORE = 32,  /* of a unit that does not open a step */
    SLICE_QUARTERS = 4,
    SLICE_REST = 32, /* steps with units of which one has none */
    SLICE_CROWDS = 12,
    SLICE_AGE = 64,   /* steps for which a plain step's time is believed */
    SLICE_BETWEEN = 4 /* steps with prompt rows between two plain ones, at least */
};

/* A unit of a prompt that is read layer by layer: rows through one layer, their K and V into a
 * store beyond SwiftKV's split, logits of them, or their copies. */
struct slice_unit {
    enum slice_kind { SLICE_LAYER, SLICE_DEEP_KV, SLICE_OUTPUT, SLICE_ASIDE, SLICE_KINDS } kind;
    int32_t quarter; /* of the chunk, in which it begins: later rows have more keys */
    int32_t least;   /* rows */
    int32_t most;
};

struct slice {
    double plain_ns[SLICE_CROWDS]; /* a step of 2^i to 2^(i+1)-1 decode rows alone; 0: unknown */
    uint64_t at[SLICE_CROWDS];     /* when that was measured, in steps */
    double full_ns;                /* a prompt's row at full speed; 0: unknown */
    double rows;                   /* that a step reads; 0: none yet */
    double piece_ns[SLICE_KINDS][SLICE_QUARTERS]; /* a row of a unit; 0: unknown */
    uint64_t n_steps;
    uint32_t n_beside; /* steps with units */
    bool after_unit;
    int32_t n_since; /* steps since a plain one */
    int32_t given;   /* what slice_room() said last, */
    bool asks;       /* for a plain step */
};

/* Rows of prompts that a step with n_decode rows may read, 0: none, so that a plain step is timed
 * (never twice in a row, whether that came to be measured or not). Without decode rows: INT32_MAX. */
int32_t slice_room(struct slice *s, int32_t n_decode);

/* ns that units of prompts may take beside a step of n_decode rows that took step_ns; 0 where a
 * plain one's time is not known, INFINITY without decode rows. */
double slice_budget(const struct slice *s, int32_t n_decode, double step_ns);

/* Is this step to have no unit, so that the one after it is a plain one like those before the
 * prompt? */
bool slice_rests(struct slice *s, int32_t n_decode);

/* Rows that the unit is to have; 0: it does not fit in what is left of the budget, which is never
 * said of the one that opens a step. */
int32_t slice_piece(const struct slice *s, struct slice_unit u, double left_ns, bool opens);
/* A unit with n rows took ns. They are not counted by slice_add(). */
void slice_add_piece(struct slice *s, struct slice_unit u, int32_t n, double ns);

/* A whole step took ns, with so many rows of either kind. Steps without decode rows only where the
 * backend has ended its work by then. */
void slice_add(struct slice *s, int32_t n_decode, int32_t n_prompt, double ns);

#endif

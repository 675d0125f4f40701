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
    SLICE_CROWDS = 12,
    SLICE_AGE = 64,   /* steps for which a plain step's time is believed */
    SLICE_BETWEEN = 4 /* steps with prompt rows between two plain ones, at least */
};

struct slice {
    double plain_ns[SLICE_CROWDS]; /* a step of 2^i to 2^(i+1)-1 decode rows alone; 0: unknown */
    uint64_t at[SLICE_CROWDS];     /* when that was measured, in steps */
    double full_ns;                /* a prompt's row at full speed; 0: unknown */
    double rows;                   /* that a step reads; 0: none yet */
    double unit_ns;                /* a chunk through one layer (layered.c); 0: unknown */
    uint64_t n_steps;
    int32_t n_since; /* steps since a plain one */
    int32_t given;   /* what slice_room() said last, */
    bool asks;       /* for a plain step */
};

/* Rows of prompts that a step with n_decode rows may read, 0: none, so that a plain step is timed
 * (never twice in a row, whether that came to be measured or not). Without decode rows: INT32_MAX. */
int32_t slice_room(struct slice *s, int32_t n_decode);

/* Units of a prompt that is read layer by layer, at least one and at most `most`, which it is without
 * decode rows. They are not counted by slice_add(). */
int32_t slice_units(const struct slice *s, int32_t n_decode, int32_t most);
void slice_add_unit(struct slice *s, double ns);

/* A whole step took ns, with so many rows of either kind. Steps without decode rows only where the
 * backend has ended its work by then. */
void slice_add(struct slice *s, int32_t n_decode, int32_t n_prompt, double ns);

#endif

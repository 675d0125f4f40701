/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_TOKEN_BUDGET_H
#define PIPIT_ENGINE_SCHED_TOKEN_BUDGET_H

/* How much of a prompt a step reads while others wait for their next token: as much as makes the
 * step take as long as the target, or twice as long as one without where that is longer. It is so
 * much that the prompt is read at half its full speed at least; few rows cost as much as many where
 * each call goes through all keys. Both are learnt from the times of steps. No clock here: the
 * scheduler says how long a step took. */

#include <stdbool.h>
#include <stdint.h>

enum {
    BUDGET_LEAST = 8, /* rows */
    BUDGET_MOST = 512,
    BUDGET_PIECE = 16, /* rows of a unit that can be cut, at least */
    BUDGET_MORE = 32,  /* of a unit that does not open a step */
    BUDGET_QUARTERS = 4,
    BUDGET_REST = 32, /* steps with units of which one has none */
    BUDGET_CROWDS = 12,
    BUDGET_AGE = 64,   /* steps for which a plain step's time is believed */
    BUDGET_BETWEEN = 4 /* steps with prompt rows between two plain ones, at least */
};

/* A unit of a prompt that is read layer by layer: rows through one layer, their K and V into a
 * store beyond SwiftKV's split, logits of them, or their copies. */
struct token_budget_unit {
    enum token_budget_kind {
        BUDGET_LAYER,
        BUDGET_DEEP_KV,
        BUDGET_OUTPUT,
        BUDGET_ASIDE,
        BUDGET_KINDS
    } kind;
    int32_t quarter; /* of the chunk, in which it begins: later rows have more keys */
    int32_t least;   /* rows */
    int32_t most;
};

struct token_budget {
    double target_ns; /* of a step with rows of prompts; 0: twice a plain step */
    double plain_ns[BUDGET_CROWDS]; /* a step of 2^i to 2^(i+1)-1 decode rows alone; 0: unknown */
    uint64_t at[BUDGET_CROWDS];     /* when that was measured, in steps */
    double full_ns;                /* a prompt's row at full speed; 0: unknown */
    double rows;                   /* that a step reads; 0: none yet */
    double piece_ns[BUDGET_KINDS][BUDGET_QUARTERS]; /* a row of a unit; 0: unknown */
    uint64_t n_steps;
    uint32_t n_beside; /* steps with units */
    bool after_unit;
    int32_t n_since; /* steps since a plain one */
    int32_t given;   /* what token_budget_room() said last, */
    bool asks;       /* for a plain step */
};

/* Rows of prompts that a step with n_decode rows may read, 0: none, so that a plain step is timed
 * (never twice in a row, whether that came to be measured or not). Without decode rows: INT32_MAX.
 */
int32_t token_budget_room(struct token_budget *s, int32_t n_decode);

/* ns that units of prompts may take beside a step of n_decode rows that took step_ns; 0 where a
 * plain one's time is not known, INFINITY without decode rows. */
double token_budget_ns(const struct token_budget *s, int32_t n_decode, double step_ns);

/* Is this step to have no unit, so that the one after it is a plain one like those before the
 * prompt? */
bool token_budget_rests(struct token_budget *s, int32_t n_decode);

/* Rows that the unit is to have; 0: it does not fit in what is left of the budget, which is never
 * said of the one that opens a step. */
int32_t token_budget_piece(const struct token_budget *s, struct token_budget_unit u, double left_ns,
                           bool opens);
/* A unit with n rows took ns. They are not counted by token_budget_add(). */
void token_budget_add_piece(struct token_budget *s, struct token_budget_unit u, int32_t n,
                            double ns);

/* A whole step took ns, with so many rows of either kind. Steps without decode rows only where the
 * backend has ended its work by then. */
void token_budget_add(struct token_budget *s, int32_t n_decode, int32_t n_prompt, double ns);

#endif

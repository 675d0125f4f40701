/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_SEQ_STEP_H
#define PIPIT_ENGINE_KV_SEQ_STEP_H

/* The running step: its rows, what their policies want of attention, and the sequences as the layer
 * at hand sees them. Private to engine/kv: step.c fills it, layer.c and the homes use it. */

#include "base/memory.h"
#include "engine/kv/seq/cache.h"

struct kv_step {
    int32_t n;                   /* sequences */
    bool observes;               /* some row is observed */
    bool selects;                /* some row reads a part */
    bool once;                   /* kv_step_once() */
    struct kv_rows *rows;        /* (n_seqs) */
    struct ops_observe *observe; /* (n_seqs) of the rows, */
    struct ops_select *select;   /* (n_seqs) as their policies have it */
    /* Of the layer at hand: */
    struct ops_seq *seqs;              /* (n_seqs) */
    struct ops_observe *layer_observe; /* (n_seqs) */
    struct ops_select *layer_select;   /* (n_seqs) */
    struct ops_bring_seq *brings;      /* (n_seqs) */
    struct ops_state *states;          /* (n_seqs) of a recurrent layer */
    struct ops_chosen lists[2];        /* of slots that are predicted, by the store's parity */
};

/* Takes the arrays for n_seqs from the arena. */
void step_lay(struct memory_arena *a, int32_t n_seqs, struct kv_step *s);

/* A sequence's share in a store, all of its rows. */
struct ops_seq step_seq(const struct cache *c, int32_t i, int32_t store);
/* s->seqs become the store's, with the running rows. */
void step_take(struct cache *c, int32_t store, const struct kv_part *part);

static inline const struct ops_chosen *step_list(const struct cache *c, int32_t store)
{
    return &c->step->lists[store & 1];
}

/* Does sequence i, as taken, read slots that were predicted? */
static inline bool step_is_listed(const struct cache *c, int32_t i, const struct ops_rows *rows)
{
    const struct kv_step *s = c->step;

    return s->selects && s->select[i].kind == OPS_SELECT_GIVEN && s->seqs[i].row0 < rows->n_decode;
}

#endif

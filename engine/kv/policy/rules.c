/* SPDX-License-Identifier: Apache-2.0 */
/* What may stand together. A word's own file says what its own fields forbid and what it needs;
 * here is what kinds of words and values forbid each other, once, as a table of traits. What a plan
 * holds is another question: kv_check(). */

#include <errno.h>
#include <stdio.h>

#include "engine/kv/policy/word.h"
#include "kernels/backend.h"

enum trait {
    EVICTS = 1,     /* tokens */
    SCORES = 2,     /* every token's attention */
    SELECTS = 4,    /* what a query reads */
    BLOCKS = 8,     /* a scale is shared among dims */
    RENUMBERS = 16, /* pos=new */
    CUTS = 32,      /* prefill=bounded */
    SHARES = 64,    /* score=shared */
    ONE_TURN = 128, /* mode=as-shipped */
    SKIPS = 256,    /* exit:P */
    PROPOSES = 512, /* exit:draft */
    UNEQUAL = 1024, /* layers=pyramid or measured */
    ROTATES = 2048, /* rot=on */
    DIVIDES = 4096, /* heads=adaptive */
};

static unsigned traits_of(const struct policy *p)
{
    bool blocks = ops_kv_block_dims(p->k_type) > 1 || ops_kv_block_dims(p->v_type) > 1;

    return (policy_evicts(p) ? EVICTS : 0U) | (policy_observes(p) ? SCORES : 0U) |
           (policy_selects(p) ? SELECTS : 0U) | (blocks ? BLOCKS : 0U) |
           (p->pos_new ? RENUMBERS : 0U) | (policy_cuts_chunks(p) ? CUTS : 0U) |
           (p->scope == POLICY_SHARED ? SHARES : 0U) | (policy_one_turn(p) ? ONE_TURN : 0U) |
           (p->exit > 0 ? SKIPS : 0U) | (p->exit_draft ? PROPOSES : 0U) |
           (p->layers != POLICY_LAYERS_EQUAL ? UNEQUAL : 0U) |
           (p->rot == POLICY_ROT_ON ? ROTATES : 0U) | (policy_divides_heads(p) ? DIVIDES : 0U);
}

static const struct {
    unsigned one;
    unsigned other;    /* any of these */
    enum word_axis at; /* the word that is at fault; AXIS_COUNT: said at the end */
    const char *what;
} conflicts[] = {
    {ONE_TURN, CUTS, AXIS_COUNT,
     "mode=as-shipped chooses once, from the whole prompt: not prefill=bounded"},
    {SHARES, CUTS, AXIS_COUNT, "score=shared needs prefill=dense"},
    {SHARES, UNEQUAL, AXIS_COUNT,
     "score=shared keeps the same tokens in all layers, so each has the same budget: layers=equal"},
    {DIVIDES, CUTS, AXIS_COUNT,
     "heads=adaptive divides what a whole prompt leaves: not prefill=bounded"},
    {DIVIDES, RENUMBERS, AXIS_COUNT,
     "pos=new renumbers what a head group keeps, so all keep equally many: heads=equal"},
    {SELECTS, BLOCKS, AXIS_SELECT,
     "kv4, k8v4, q8_0 and q4_0 share a scale among 32 dims: no dim or slot is read alone"},
    {SELECTS, RENUMBERS, AXIS_SELECT,
     "pos=new rotates every key as it is read, so none can be left out"},
    {ROTATES, RENUMBERS, AXIS_COUNT,
     "pos=new turns every key as it is read, and a transformed one cannot be: rot=auto or off"},
    {ROTATES, SELECTS, AXIS_SELECT,
     "queries that select rank keys by dims as the model has them: rot=auto or off"},
    {PROPOSES, SELECTS | EVICTS, AXIS_EXIT,
     "exit:draft takes back the rows that were guessed wrong: beside full alone, not "
     "beside words that drop tokens, score them or choose which are read"},
    {SKIPS, SELECTS | SCORES, AXIS_EXIT,
     "exit skips layers for some tokens: not beside h2o, keyformer, recency or snapkv, "
     "which observe attention, nor beside sparq, topv or infinigen"},
};

/* What a budget leaves must be at least one slot that may be overwritten. */
static int check_budget(const struct policy *p, bool sinks, char *what, size_t size)
{
    const struct place_ops *place = policy_spills(p) ? place_pool[p->victim] : p->place;

    if (!policy_evicts(p) && sinks) {
        (void)snprintf(what, size,
                       "\"sinks\" needs a word beside it that drops tokens, such as window:1020");
        return -EINVAL;
    }
    if (!place->evicts) {
        return 0;
    }
    int32_t least = p->budget_kind != POLICY_SLOTS ? p->min
                    : policy_spills(p)             ? p->budget
                                                   : policy_budget(p, 0, INT32_MAX);
    int32_t spared = place->spared(p, least);

    if (p->sinks + spared > least) {
        (void)snprintf(what, size, "%d sinks and %d recent slots leave nothing of a budget of %d",
                       p->sinks, spared, least);
        return -EINVAL;
    }
    if (p->layers != POLICY_LAYERS_EQUAL && policy_least_budget(p, least) == least) {
        (void)snprintf(what, size,
                       "%d sinks and %d recent slots of a budget of %d leave no layer less than "
                       "another: layers=equal",
                       p->sinks, spared, least);
        return -EINVAL;
    }
    if (!policy_divides_heads(p) && p->safeguard != policy_defaults.safeguard) {
        (void)snprintf(what, size, "safeguard is a part of heads=adaptive");
        return -EINVAL;
    }
    if (policy_divides_heads(p) && p->budget_kind == POLICY_SLOTS &&
        !policy_heads_compete(p, least)) {
        (void)snprintf(what, size,
                       "of a budget of %d slots each head group has %d for sure, which in pages of "
                       "%d leaves none to compete for: heads=equal",
                       least, policy_sure_slots(p, least), OPS_PAGE_SLOTS);
        return -EINVAL;
    }
    return 0;
}

int policy_check_rules(struct policy *p, const struct policy_word *const said[AXIS_COUNT],
                       enum word_axis *reterr_at, char *what, size_t size)
{
    unsigned traits;

    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        if (said[axis] && said[axis]->join && said[axis]->join(p, what, size)) {
            *reterr_at = (enum word_axis)axis;
            return -EINVAL;
        }
    }
    p->sinks = p->sinks < 0 ? 0 : p->sinks;
    *reterr_at = AXIS_COUNT;
    if (check_budget(p, said[AXIS_SINKS] != NULL, what, size)) {
        return -EINVAL;
    }
    traits = traits_of(p);
    for (size_t i = 0; i < sizeof(conflicts) / sizeof(conflicts[0]); i++) {
        if ((traits & conflicts[i].one) && (traits & conflicts[i].other)) {
            *reterr_at = conflicts[i].at;
            (void)snprintf(what, size, "%s", conflicts[i].what);
            return -EINVAL;
        }
    }
    return 0;
}

void policy_settle(struct policy *p)
{
    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        const struct policy_word *w = policy_word_of(p, (enum word_axis)axis);

        if (w && w->settle) {
            w->settle(p);
        }
    }
    if (p->scope == POLICY_SHARED) {
        p->prefill = POLICY_DENSE; /* a layer alone does not have all layers' scores */
    }
    if (p->observe < 0) {
        p->observe = 64;
    }
    p->sinks = p->sinks < 0 ? 0 : p->sinks; /* no text, no rules */
}

/* Precision is let pass: some word must stand there, and it has nothing to round. */
static int check_stateful(const struct policy *p, struct error *reterr)
{
    const char *what = policy_evicts(p)               ? "drop tokens"
                       : policy_selects(p)            ? "choose what is read"
                       : p->exit > 0 || p->exit_draft ? "leave layers out"
                       : p->rot == POLICY_ROT_ON      ? "rotate"
                                                      : NULL;

    return !what ? 0
                 : error_set(reterr, -ENOTSUP,
                             "all layers of this model are recurrent: its states have the same "
                             "size at any length, and there are no keys and values to %s; "
                             "only \"full\" is offered",
                             what);
}

int policy_check_host(const struct policy *p, const struct policy_host *h, struct error *reterr)
{
    int r = h->stateful ? check_stateful(p, reterr) : 0;

    if (r) {
        return r;
    }
    if (policy_selects(p) && (!h->ops->selects || (policy_predicts(p) && !h->ops->predict))) {
        return error_set(reterr, -ENOTSUP,
                         "backend \"%s\" reads all slots: no sparq, topv or infinigen",
                         h->ops->name);
    }
    if (policy_selects(p) && h->sinks) {
        return error_set(
            reterr, -ENOTSUP,
            "the model's heads have attention sinks, with which all slots are read: no "
            "sparq, topv or infinigen");
    }
    if (p->layers == POLICY_LAYERS_MEASURED && !h->weighed) {
        return error_set(reterr, -ENOTSUP,
                         "layers=measured: neither the model nor an overlay has weights of layers; "
                         "%s, layers=pyramid needs none",
                         h->untapped || h->softcap || h->sinks
                             ? "no tool measures them in a model of this kind"
                             : "pipit-calibrate makes such an overlay");
    }
    if (policy_divides_heads(p) && !h->ops->in_host) {
        return error_set(reterr, -ENOTSUP,
                         "backend \"%s\" keeps equally many slots of all heads: heads=equal",
                         h->ops->name);
    }
    for (int axis = 0; !r && axis < AXIS_COUNT; axis++) {
        const struct policy_word *w = policy_word_of(p, (enum word_axis)axis);

        r = w && w->needs ? w->needs(p, h, reterr) : 0;
    }
    return r;
}

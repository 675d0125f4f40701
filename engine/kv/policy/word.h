/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_POLICY_WORD_H
#define PIPIT_ENGINE_KV_POLICY_WORD_H

/* What a policy word is. Each word is one file of this folder that defines one const struct
 * policy_word; registry.c lists them. Parser, printer, --help, the tables of docs/guide/policies.md
 * and the page pipit-policy(7) walk that list, so a word's file is the only place that knows its
 * syntax. Private to engine/kv/policy and to the program that prints the tables. */

#include <stddef.h>

#include "engine/kv/policy/place.h"
#include "engine/kv/policy/policy.h"
#include "engine/kv/policy/select.h"

/* At most one word of each axis is in a policy; in the order of the canonical text. */
enum word_axis { AXIS_PRECISION, AXIS_SINKS, AXIS_PLACE, AXIS_SELECT, AXIS_EXIT, AXIS_COUNT };

struct word_value {
    const char *name; /* NULL ends a list */
    int32_t value;
};

enum word_type {
    WORD_INT,
    WORD_PERCENT,
    WORD_FLOAT,
    WORD_TAU,    /* one number or a range: tau0, tau1 */
    WORD_VALUE,  /* one of `values` */
    WORD_BUDGET, /* slots, "50%" or "50%ctx": budget, budget_kind */
    WORD_POOL,   /* one of `values`, or a budget */
    WORD_CHANCE, /* a probability: exit; or "draft": exit_draft */
};

struct word_option {
    const char *name;
    enum word_type type;
    size_t offset; /* of the field in struct policy */
    double min, max;
    const struct word_value *values;
    const char *normal; /* the default where it depends on other values; NULL: policy_defaults' */
    const char *help;   /* what it means, in Markdown without a line break */
    bool quiet;         /* the canonical text names it only where it is not the default */
};

#define WORD_FIELD(f) offsetof(struct policy, f)

struct policy_word {
    const char *name;
    enum word_axis axis;
    const char *help;                 /* what the word does, in Markdown without a line break */
    const struct word_option *amount; /* what follows "name:", or NULL */
    const char *amount_says;          /* of a missing one, for messages */
    const struct word_option *const *options; /* NULL ends the list; NULL: takes none */
    bool colon;                               /* the first option may follow a ':' */
    enum ops_kv_type k, v;                    /* AXIS_PRECISION */
    const struct place_ops *place;            /* AXIS_PLACE */
    const struct select_ops *select;          /* AXIS_SELECT */
    /* Once the whole text is read: what the word sets in others' fields, and what its own fields
     * forbid. 0, or -EINVAL with the cause in `what`. NULL: nothing. */
    int (*join)(struct policy *p, char *what, size_t size);
    /* After all rules: defaults that depend on other values. NULL: none. */
    void (*settle)(struct policy *p);
    /* What the word needs of model and backend. NULL: nothing. */
    int (*needs)(const struct policy *p, const struct policy_host *h, struct error *reterr);
};

/* registry.c */
int policy_n_words(void);
const struct policy_word *policy_word_at(int i);
const struct policy_word *policy_word_find(const char *name, size_t len); /* or NULL */
/* The word of an axis that a policy's canonical text has, or NULL. */
const struct policy_word *policy_word_of(const struct policy *p, enum word_axis axis);
extern const struct policy policy_defaults; /* before policy_parse settles what depends on others */

/* rules.c: may these words and values stand together? `said`: by axis, what the text names. -EINVAL
 * with the cause in `what` and the axis of the word at fault; AXIS_COUNT: no one word is. */
int policy_check_rules(struct policy *p, const struct policy_word *const said[AXIS_COUNT],
                       enum word_axis *reterr_at, char *what, size_t size);
/* Fills in defaults that depend on other values. */
void policy_settle(struct policy *p);

/* policy_parse.c. Digits and one point (no signs, exponents, hex or locale): what stands after
 * them, or NULL where s does not begin with a digit. */
const char *policy_read_float(const char *s, double *ret);

/* Options of several words: options.c. */
extern const struct word_option option_budget;
extern const struct word_option option_recent;
extern const struct word_option option_damp;
extern const struct word_option option_scope;
extern const struct word_option option_pos;
extern const struct word_option option_prefill;
extern const struct word_option option_observe;
extern const struct word_option option_min;
extern const struct word_option option_chunk;
extern const struct word_option option_layers;
extern const struct word_option option_heads;
extern const struct word_option option_safeguard;
extern const struct word_value policy_modes[]; /* paper, as-shipped */
#define WORD_BUDGET_SAYS "a budget must follow (512, 50% or 50%ctx)"

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_POLICY_POLICY_WORDS_H
#define PIPIT_ENGINE_KV_POLICY_POLICY_WORDS_H

/* The policy language as tables, for its parser and its printer alone: words (by axis, with what they
 * stand for), options (which words take them, range, field), the names of enumerated values, defaults. */

#include <stddef.h>

#include "engine/kv/policy/policy.h"

enum policy_axis { AXIS_PRECISION, AXIS_PLACE, AXIS_SINKS, AXIS_SELECT, AXIS_EXIT, AXIS_COUNT };

struct policy_word {
    const char *name;
    enum policy_axis axis;
    int32_t place;         /* AXIS_PLACE; AXIS_SELECT: enum policy_select */
    enum ops_kv_type k, v; /* AXIS_PRECISION */
    const char *amount;    /* NULL: takes none; else what it is, for messages */
};

/* Of the words that take an option: those of AXIS_PLACE, those of AXIS_SELECT. */
#define POLICY_BIT(place) (1 << (place))
#define POLICY_EVICTING (POLICY_BIT(POLICY_WINDOW) | POLICY_SCORING)
#define POLICY_SCORING (POLICY_BIT(POLICY_H2O) | POLICY_BIT(POLICY_KEYFORMER) | POLICY_BIT(POLICY_RECENCY))
#define POLICY_ANY_PLACE (POLICY_BIT(POLICY_FULL) | POLICY_EVICTING)
#define POLICY_SELECT_BIT(select) (1 << (8 + (select)))

struct policy_value {
    const char *name; /* NULL ends a list */
    int32_t value;
};

enum policy_field { FIELD_INT, FIELD_PERCENT, FIELD_FLOAT, FIELD_TAU, FIELD_VALUE, FIELD_POOL };

struct policy_option {
    const char *name;
    int words; /* POLICY_BIT()s and POLICY_SELECT_BIT()s of the words that take it */
    enum policy_field type;
    size_t offset; /* in struct policy */
    double min, max;
    const struct policy_value *values; /* FIELD_VALUE, FIELD_POOL */
};

extern const struct policy_word policy_words[];
extern const struct policy_option policy_options[];
extern const int policy_n_words;
extern const int policy_n_options;
extern const struct policy policy_defaults; /* before policy_parse settles what hangs on other values */

/* policy_words.c. Digits and one point (no signs, exponents, hex or locale): what stands after them, or NULL where s does
 * not begin with a digit. */
const char *policy_read_float(const char *s, double *ret);

#endif

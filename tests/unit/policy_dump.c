/* SPDX-License-Identifier: Apache-2.0 */
/* policy_dump: the registry's words and options as rows of the tables of docs/guide/policies.md,
 * each after the name of its table. The C side of tests/unit/check_policy_tables.py. */

#include <stdio.h>
#include <string.h>

#include "engine/kv/policy/word.h"

static const char *const tables[AXIS_COUNT] = {[AXIS_PRECISION] = "precision",
                                               [AXIS_SINKS] = "evict",
                                               [AXIS_PLACE] = "evict",
                                               [AXIS_SELECT] = "select",
                                               [AXIS_EXIT] = "exit"};

/* 16777216 as 16,777,216. */
static void put_count(double v)
{
    char digits[32];
    int n = snprintf(digits, sizeof(digits), "%.0f", v);

    for (int i = 0; i < n; i++) {
        (void)printf("%s%c", i && n > 4 && (n - i) % 3 == 0 ? "," : "", digits[i]);
    }
}

static void put_values(const struct word_option *o)
{
    switch (o->type) {
    case WORD_INT:
    case WORD_PERCENT:
        put_count(o->min);
        (void)printf("..");
        put_count(o->max);
        (void)printf("%s", o->type == WORD_PERCENT ? " (`%`)" : "");
        break;
    case WORD_FLOAT:
    case WORD_CHANCE:
        (void)printf("%.9g..%.9g", o->min, o->max);
        break;
    case WORD_TAU:
        (void)printf("%.9g..%.9g `..` %.9g..%.9g", o->min, o->max, o->min, o->max);
        break;
    case WORD_BUDGET:
        break;
    case WORD_VALUE:
    case WORD_POOL:
        for (const struct word_value *v = o->values; v->name; v++) {
            (void)printf("%s`%s`", v == o->values ? "" : ", ", v->name);
        }
        (void)printf("%s", o->type == WORD_POOL ? ", or a budget like N above" : "");
        break;
    }
}

static void put_default(const struct word_option *o)
{
    const uint8_t *field = (const uint8_t *)&policy_defaults + o->offset;
    int32_t i;
    float f;

    memcpy(&i, field, sizeof(i));
    memcpy(&f, field, sizeof(f));
    if (o->normal) {
        (void)printf("%s", o->normal);
    } else if (o->type == WORD_FLOAT) {
        (void)printf("%.6g", (double)f);
    } else if (o->type == WORD_TAU) {
        (void)printf("`%.6g..%.6g`", (double)policy_defaults.tau0, (double)policy_defaults.tau1);
    } else if (o->values) {
        for (const struct word_value *v = o->values; v->name; v++) {
            (void)printf("%s%s%s", v->value == i ? "`" : "", v->value == i ? v->name : "",
                         v->value == i ? "`" : "");
        }
    } else {
        (void)printf("%d", i);
    }
}

static bool takes(const struct policy_word *w, const struct word_option *o)
{
    for (int i = 0; w->options && w->options[i]; i++) {
        if (w->options[i] == o) {
            return true;
        }
    }
    return false;
}

/* "all", or the words that take it. */
static void put_words(const struct word_option *o, enum word_axis axis)
{
    bool all = true;
    bool some = false;

    for (int i = 0; i < policy_n_words(); i++) {
        const struct policy_word *w = policy_word_at(i);

        all = all && (w->axis != axis || takes(w, o));
    }
    for (int i = 0; i < policy_n_words() && !all; i++) {
        const struct policy_word *w = policy_word_at(i);

        if (w->axis == axis && takes(w, o)) {
            (void)printf("%s%s", some ? ", " : "", w->name);
            some = true;
        }
    }
    (void)printf("%s", all ? "all" : "");
}

/* Does an earlier word have the option? */
static bool is_said(int before, const struct word_option *o)
{
    for (int i = 0; i < before; i++) {
        if (takes(policy_word_at(i), o)) {
            return true;
        }
    }
    return false;
}

int main(void)
{
    for (int i = 0; i < policy_n_words(); i++) {
        const struct policy_word *w = policy_word_at(i);
        const char *n = !w->amount              ? ""
                        : w->axis == AXIS_SINKS ? ":M"
                        : w->axis == AXIS_EXIT  ? ":P"
                        : w->axis == AXIS_PLACE ? ":N"
                                                : ":K";

        (void)printf("%s words\t| `%s%s`%s | %s |\n", tables[w->axis], w->name, n,
                     w->place == policy_defaults.place && w->place ? " (default)" : "", w->help);
        for (int k = 0; w->options && w->options[k]; k++) {
            const struct word_option *o = w->options[k];

            if (is_said(i, o)) {
                continue;
            }
            (void)printf("%s options\t| `%s` | ", tables[w->axis], o->name);
            put_words(o, w->axis);
            (void)printf(" | ");
            put_values(o);
            (void)printf(" | ");
            put_default(o);
            (void)printf(" | %s |\n", o->help);
        }
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The tests behind `is`. */

#include <errno.h>

#include "engine/text/jinja/run.h"

static jval one(jrun *r, struct jargs *a)
{
    jval v;

    jargs_take(r, a, "other", 1, &v);
    return v;
}

static void none(jrun *r, struct jargs *a)
{
    jargs_take(r, a, "", 0, NULL);
}

#define KIND_TEST(name, question)                                                                  \
    static jval name(jrun *r, jval v, struct jargs *a)                                             \
    {                                                                                              \
        none(r, a);                                                                                \
        return jboolean(question);                                                                 \
    }

KIND_TEST(is_defined, v.kind != J_UNDEF)
KIND_TEST(is_undefined, v.kind == J_UNDEF)
KIND_TEST(is_none, v.kind == J_NONE)
KIND_TEST(is_boolean, v.kind == J_BOOL)
KIND_TEST(is_true, v.kind == J_BOOL && v.u.b)
KIND_TEST(is_false, v.kind == J_BOOL && !v.u.b)
KIND_TEST(is_integer, v.kind == J_INT)
KIND_TEST(is_float, v.kind == J_FLOAT)
KIND_TEST(is_number, jis_number(v))
KIND_TEST(is_string, v.kind == J_STR)
KIND_TEST(is_mapping, v.kind == J_DICT)
KIND_TEST(is_iterable, jiterable(v))
KIND_TEST(is_sequence, v.kind == J_UNDEF || v.kind == J_STR || v.kind == J_LIST ||
                           v.kind == J_TUPLE || v.kind == J_DICT || v.kind == J_RANGE)
KIND_TEST(is_callable, v.kind == J_MACRO || v.kind == J_METHOD || v.kind == J_LOOP ||
                           v.kind == J_UNDEF ||
                           (v.kind == J_CYCLER && ((struct jcycler *)v.u.p)->joiner))
KIND_TEST(is_escaped, v.kind == J_STR && jstr_of(v)->markup)
KIND_TEST(is_filter, v.kind == J_STR && jfilter_find(jsafe(r, v)) != NULL)
KIND_TEST(is_test, v.kind == J_STR && jtest_find(jsafe(r, v)) != NULL)

static bool all_case(jrun *r, jval v, bool upper)
{
    const struct jstr *s = jstr_of(jto_str(r, v));
    bool cased = false;
    size_t n;

    for (size_t i = 0; i < s->len; i += n) {
        uint32_t c = juni_at(s->ptr + i, s->len - i, &n);
        bool is_upper = juni_lower(c) != c;
        bool is_lower = juni_upper(c) != c;

        if (upper ? is_lower : is_upper) {
            return false;
        }
        cased = cased || is_upper || is_lower;
    }
    return cased;
}

KIND_TEST(is_lower, all_case(r, v, false))
KIND_TEST(is_upper, all_case(r, v, true))

static jval is_even(jrun *r, jval v, struct jargs *a)
{
    none(r, a);
    return jboolean(jeq(jbinary(r, T_MOD, v, jint(2)), jint(0)));
}

static jval is_odd(jrun *r, jval v, struct jargs *a)
{
    none(r, a);
    return jboolean(jeq(jbinary(r, T_MOD, v, jint(2)), jint(1)));
}

static jval is_divisible(jrun *r, jval v, struct jargs *a)
{
    return jboolean(jeq(jbinary(r, T_MOD, v, one(r, a)), jint(0)));
}

static jval is_same(jrun *r, jval v, struct jargs *a)
{
    jval o = one(r, a);

    return jboolean(v.kind == o.kind && jeq(v, o));
}

static jval is_in(jrun *r, jval v, struct jargs *a)
{
    return jboolean(jcontains(r, one(r, a), v));
}

#define COMPARE_TEST(name, op)                                                                     \
    static jval name(jrun *r, jval v, struct jargs *a)                                             \
    {                                                                                              \
        return jboolean(jcompare(r, op, v, one(r, a)));                                            \
    }

COMPARE_TEST(is_eq, T_EQ)
COMPARE_TEST(is_ne, T_NE)
COMPARE_TEST(is_lt, T_LT)
COMPARE_TEST(is_le, T_LE)
COMPARE_TEST(is_gt, T_GT)
COMPARE_TEST(is_ge, T_GE)

const struct jbuiltin jtests[] = {
    {"defined", is_defined, NULL},
    {"undefined", is_undefined, NULL},
    {"none", is_none, NULL},
    {"boolean", is_boolean, NULL},
    {"true", is_true, NULL},
    {"false", is_false, NULL},
    {"integer", is_integer, NULL},
    {"float", is_float, NULL},
    {"number", is_number, NULL},
    {"string", is_string, NULL},
    {"mapping", is_mapping, NULL},
    {"iterable", is_iterable, NULL},
    {"sequence", is_sequence, NULL},
    {"callable", is_callable, NULL},
    {"escaped", is_escaped, NULL},
    {"filter", is_filter, NULL},
    {"test", is_test, NULL},
    {"lower", is_lower, NULL},
    {"upper", is_upper, NULL},
    {"even", is_even, NULL},
    {"odd", is_odd, NULL},
    {"divisibleby", is_divisible, NULL},
    {"sameas", is_same, NULL},
    {"in", is_in, NULL},
    {"eq", is_eq, NULL},
    {"==", is_eq, NULL},
    {"equalto", is_eq, NULL},
    {"ne", is_ne, NULL},
    {"!=", is_ne, NULL},
    {"lt", is_lt, NULL},
    {"<", is_lt, NULL},
    {"lessthan", is_lt, NULL},
    {"le", is_le, NULL},
    {"<=", is_le, NULL},
    {"gt", is_gt, NULL},
    {">", is_gt, NULL},
    {"greaterthan", is_gt, NULL},
    {"ge", is_ge, NULL},
    {">=", is_ge, NULL},
    {0},
};

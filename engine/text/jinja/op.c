/* SPDX-License-Identifier: Apache-2.0 */
/* Operators with Python's meaning. Integers have 64 bits: what Python would make larger fails.
 * A number computed from a marked number is marked. */

#include <errno.h>
#include <math.h>

#include "engine/text/jinja/run.h"

static const char *op_name(enum jtoken_type op)
{
    static const char *const names[] = {
        [T_ADD] = "+",       [T_SUB] = "-", [T_MUL] = "*",  [T_DIV] = "/",
        [T_FLOORDIV] = "//", [T_MOD] = "%", [T_POW] = "**", [T_GT] = ">",
        [T_GE] = ">=",       [T_LT] = "<",  [T_LE] = "<=",
    };

    return names[op];
}

static _Noreturn void fail(jrun *r, enum jtoken_type op, jval a, jval b)
{
    juse(r, a);
    juse(r, b);
    jfail(jb(r), -EINVAL, "'%s' does not work on %s and %s", op_name(op), jkind_name(a),
          jkind_name(b));
}

static jval marked(jval v, jval a, jval b)
{
    v.user = a.user || b.user;
    return v;
}

static int64_t power(jrun *r, int64_t base, int64_t by)
{
    int64_t v = 1;
    bool over = false;

    for (; by > 0 && !over; by--) {
        over = __builtin_mul_overflow(v, base, &v);
        if (v == 0 || (v == 1 && base == 1)) {
            break;
        }
        if (base == -1) {
            v = by % 2 ? -1 : 1;
            break;
        }
    }
    if (over) {
        jfail(jb(r), -EINVAL, "an integer does not fit in 64 bits");
    }
    return v;
}

static jval int_op(jrun *r, enum jtoken_type op, int64_t a, int64_t b)
{
    int64_t v = 0;
    bool over = false;

    switch (op) {
    case T_ADD:
        over = __builtin_add_overflow(a, b, &v);
        break;
    case T_SUB:
        over = __builtin_sub_overflow(a, b, &v);
        break;
    case T_MUL:
        over = __builtin_mul_overflow(a, b, &v);
        break;
    case T_POW:
        return b < 0 ? jfloat(pow((double)a, (double)b)) : jint(power(r, a, b));
    case T_DIV:
    case T_FLOORDIV:
    case T_MOD:
        if (b == 0) {
            jfail(jb(r), -EINVAL, "division by zero");
        }
        if (op == T_DIV) {
            return jfloat((double)a / (double)b);
        }
        over = a == INT64_MIN && b == -1;
        if (!over) {
            bool down = a % b != 0 && (a % b < 0) != (b < 0);

            v = op == T_MOD ? a % b + (down ? b : 0) : a / b - down;
        }
        break;
    default:
        break;
    }
    if (over) {
        jfail(jb(r), -EINVAL, "an integer does not fit in 64 bits");
    }
    return jint(v);
}

static jval float_op(jrun *r, enum jtoken_type op, double a, double b)
{
    double m;

    switch (op) {
    case T_ADD:
        return jfloat(a + b);
    case T_SUB:
        return jfloat(a - b);
    case T_MUL:
        return jfloat(a * b);
    case T_POW:
        return jfloat(pow(a, b));
    default:
        break;
    }
    if (b == 0) {
        jfail(jb(r), -EINVAL, "division by zero");
    }
    if (op == T_DIV) {
        return jfloat(a / b);
    }
    m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0)) {
        m += b;
    }
    return jfloat(op == T_MOD ? m : floor((a - m) / b + 0.5));
}

/* Addition of strings: where one is markup, the other is escaped. */
static jval concat(jrun *r, jval a, jval b)
{
    bool markup = jstr_of(a)->markup || jstr_of(b)->markup;
    struct jbuf o = {.b = jb(r)};
    jval v;

    a = markup ? jstr_escape(r, a) : a;
    b = markup ? jstr_escape(r, b) : b;
    jstep(r, (jstr_of(a)->len + jstr_of(b)->len) / 16);
    o.cap = jstr_of(a)->len + jstr_of(b)->len;
    o.p = o.cap ? jalloc(jb(r), o.cap) : NULL;
    jbuf_str(&o, jstr_of(a));
    jbuf_str(&o, jstr_of(b));
    v = jbuf_done(&o);
    jstr_of(v)->markup = markup;
    return v;
}

static jval join_lists(jrun *r, jval a, jval b)
{
    jval v = jlist_new(jb(r), a.kind, jlist_of(a)->n + jlist_of(b)->n);

    jstep(r, jlist_of(a)->n + jlist_of(b)->n);
    for (size_t i = 0; i < jlist_of(a)->n; i++) {
        jlist_push(jb(r), v, jlist_of(a)->v[i]);
    }
    for (size_t i = 0; i < jlist_of(b)->n; i++) {
        jlist_push(jb(r), v, jlist_of(b)->v[i]);
    }
    return v;
}

static jval repeat(jrun *r, jval what, int64_t times)
{
    jval v;

    times = times < 0 ? 0 : times;
    if (what.kind == J_STR) {
        struct jbuf o = {.b = jb(r)};

        for (int64_t i = 0; i < times; i++) {
            jstep(r, 1 + jstr_of(what)->len / 16);
            jbuf_str(&o, jstr_of(what));
        }
        v = jbuf_done(&o);
        jstr_of(v)->markup = jstr_of(what)->markup;
        return v;
    }
    v = jlist_new(jb(r), what.kind, 0);
    for (int64_t i = 0; i < times; i++) {
        jstep(r, 1 + jlist_of(what)->n);
        for (size_t k = 0; k < jlist_of(what)->n; k++) {
            jlist_push(jb(r), v, jlist_of(what)->v[k]);
        }
    }
    return v;
}

static bool is_sequence(jval v)
{
    return v.kind == J_STR || v.kind == J_LIST || v.kind == J_TUPLE;
}

jval jbinary(jrun *r, enum jtoken_type op, jval a, jval b)
{
    if (op == T_MOD && a.kind == J_STR) {
        return jformat_percent(r, jstr_of(a), b);
    }
    if (jis_number(a) && jis_number(b)) {
        if (a.kind == J_FLOAT || b.kind == J_FLOAT) {
            return marked(float_op(r, op, jto_double(a), jto_double(b)), a, b);
        }
        return marked(int_op(r, op, jto_int(a), jto_int(b)), a, b);
    }
    if (op == T_ADD && a.kind == b.kind && is_sequence(a)) {
        return a.kind == J_STR ? concat(r, a, b) : join_lists(r, a, b);
    }
    if (op == T_MUL && is_sequence(a) && (b.kind == J_INT || b.kind == J_BOOL)) {
        return repeat(r, a, jto_int(b));
    }
    if (op == T_MUL && is_sequence(b) && (a.kind == J_INT || a.kind == J_BOOL)) {
        return repeat(r, b, jto_int(a));
    }
    fail(r, op, a, b);
}

jval jnegate(jrun *r, jval v)
{
    juse(r, v);
    if (!jis_number(v)) {
        jfail(jb(r), -EINVAL, "a %s has no sign", jkind_name(v));
    }
    if (v.kind == J_FLOAT) {
        v.u.f = -v.u.f;
        return v;
    }
    return marked(int_op(r, T_SUB, 0, jto_int(v)), v, v);
}

bool jcontains(jrun *r, jval in, jval what)
{
    struct jlist *items;

    switch (in.kind) {
    case J_STR:
        if (what.kind != J_STR) {
            juse(r, what);
            jfail(jb(r), -EINVAL, "a string cannot contain a %s", jkind_name(what));
        }
        jstep(r, jstr_of(in)->len / 16);
        return jstr_find(jstr_of(in), jstr_of(what), 0, jstr_of(in)->len) != SIZE_MAX;
    case J_DICT:
        if (what.kind == J_LIST || what.kind == J_DICT) {
            jfail(jb(r), -EINVAL, "a %s cannot be a dict's key", jkind_name(what));
        }
        return jdict_get(jdict_of(in), what) != NULL;
    case J_UNDEF:
        return false;
    case J_NAMESPACE:
        jfail(jb(r), -EINVAL, "a namespace cannot be searched");
    default:
        break;
    }
    items = jitems(r, in);
    jstep(r, items->n);
    for (size_t i = 0; i < items->n; i++) {
        if (jeq(items->v[i], what)) {
            return true;
        }
    }
    return false;
}

bool jcompare(jrun *r, enum jtoken_type op, jval a, jval b)
{
    int order;

    switch (op) {
    case T_EQ:
        return jeq(a, b);
    case T_NE:
        return !jeq(a, b);
    case T_IN:
        return jcontains(r, b, a);
    case T_NOT_IN:
        return !jcontains(r, b, a);
    default:
        break;
    }
    if (!jorder(a, b, &order)) {
        fail(r, op, a, b);
    }
    return op == T_GT   ? order == 1
           : op == T_GE ? order == 0 || order == 1
           : op == T_LT ? order == -1
                        : order == 0 || order == -1;
}

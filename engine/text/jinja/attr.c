/* SPDX-License-Identifier: Apache-2.0 */
/* x.name, x[index] and slices. As in Jinja, x.name looks for a method of Python's type first and
 * for a key after that, x[index] the other way round; what is not there is undefined. */

#include <errno.h>

#include "engine/text/jinja/run.h"

jval jview_at(jrun *r, const struct jdict *d, enum jview view, size_t i)
{
    jval pair;

    if (view != JVIEW_ITEMS) {
        return view == JVIEW_KEYS ? d->e[i].key : d->e[i].val;
    }
    pair = jlist_new(jb(r), J_TUPLE, 2);
    jlist_push(jb(r), pair, d->e[i].key);
    jlist_push(jb(r), pair, d->e[i].val);
    return pair;
}

static jval of_loop(jrun *r, const struct jloop *l, const struct jstr *name)
{
    int64_t i = (int64_t)l->i;
    int64_t n = (int64_t)l->items->n;
    const struct {
        const char *name;
        int64_t v;
    } numbers[] = {{"index", i + 1},         {"index0", i}, {"revindex", n - i},
                   {"revindex0", n - i - 1}, {"length", n}, {"depth", l->depth0 + 1},
                   {"depth0", l->depth0}};

    for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++) {
        if (jstr_is(name, numbers[k].name)) {
            return jint(numbers[k].v);
        }
    }
    if (jstr_is(name, "first") || jstr_is(name, "last")) {
        return jboolean(name->ptr[0] == 'f' ? i == 0 : i + 1 == n);
    }
    if (jstr_is(name, "previtem")) {
        return i > 0 ? l->items->v[i - 1] : jundef("there is no previous item");
    }
    if (jstr_is(name, "nextitem")) {
        return i + 1 < n ? l->items->v[i + 1] : jundef("there is no next item");
    }
    return jundef(NULL);
}

/* A method of the value's type; undefined and unsafe for what the sandbox hides. */
static bool method(jrun *r, jval of, const struct jstr *name, jval *ret)
{
    const struct jbuiltin *b = jmethod_find(of, name);

    if (!b) {
        return false;
    }
    *ret = b->call ? jbind(r, b, of) : (jval){.kind = J_UNDEF, .sub = 1, .u.p = (void *)b};
    return true;
}

jval jgetattr(jrun *r, jval of, jval key)
{
    const struct jstr *name = jstr_of(key);
    jval *found;
    jval v;

    juse(r, of);
    if (of.kind == J_NAMESPACE) {
        found = jdict_get(jdict_of(of), key);
        return found ? *found : jundef(NULL);
    }
    if (method(r, of, name, &v)) {
        return v;
    }
    if (of.kind == J_LOOP) {
        return of_loop(r, of.u.p, name);
    }
    if (of.kind == J_MACRO && jstr_is(name, "name")) {
        const struct jname *n = ((struct jmacro *)of.u.p)->node->name;

        return jstr_new(jb(r), n->text, n->len, MARK_TEMPLATE);
    }
    found = of.kind == J_DICT ? jdict_get(jdict_of(of), key) : NULL;
    return found ? *found : jundef(NULL);
}

static bool position(jval index, int64_t n, int64_t *ret)
{
    if (index.kind != J_INT && index.kind != J_BOOL) {
        return false;
    }
    *ret = jto_int(index);
    *ret += *ret < 0 ? n : 0;
    return *ret >= 0 && *ret < n;
}

jval jgetitem(jrun *r, jval of, jval index)
{
    int64_t n;
    int64_t i;
    jval *found;
    jval v;

    juse(r, of);
    if (of.kind == J_DICT) {
        found = jdict_get(jdict_of(of), index);
        if (found) {
            return *found;
        }
    } else if (of.kind == J_STR || of.kind == J_LIST || of.kind == J_TUPLE || of.kind == J_RANGE) {
        if (of.kind == J_STR) {
            jstep(r, jstr_of(of)->len / 16);
        }
        n = jlen(of);
        if (position(index, n, &i)) {
            const struct jrange *range = of.u.p;
            size_t at;

            if (of.kind != J_STR) {
                return of.kind == J_RANGE ? jint(range->start + i * range->step)
                                          : jlist_of(of)->v[i];
            }
            at = (size_t)n == jstr_of(of)->len ? (size_t)i : jstr_offset(jstr_of(of), (size_t)i);
            return jstr_cut(jb(r), jstr_of(of), at, at + jstr_step(jstr_of(of), at));
        }
    }
    if (index.kind != J_STR) {
        return jundef(NULL);
    }
    if (of.kind == J_NAMESPACE || of.kind == J_LOOP || of.kind == J_MACRO) {
        return jgetattr(r, of, index);
    }
    return method(r, of, jstr_of(index), &v) ? v : jundef(NULL);
}

jval jgetpath(jrun *r, jval of, jval path, jval otherwise)
{
    const struct jstr *s;
    size_t from = 0;

    bool has = otherwise.kind != J_MISSING && otherwise.kind != J_NONE;

    if (path.kind != J_STR) {
        of = jgetitem(r, of, path);
        return of.kind == J_UNDEF && has ? otherwise : of;
    }
    s = jstr_of(path);
    for (size_t i = 0; i <= s->len; i++) {
        bool number = i > from;
        int64_t v = 0;

        if (i < s->len && s->ptr[i] != '.') {
            continue;
        }
        for (size_t k = from; k < i && number; k++) {
            number = s->ptr[k] >= '0' && s->ptr[k] <= '9' && v < INT32_MAX;
            v = v * 10 + s->ptr[k] - '0';
        }
        of = jgetitem(r, of, number ? jint(v) : jstr_cut(jb(r), s, from, i));
        of = of.kind == J_UNDEF && has ? otherwise : of;
        from = i + 1;
    }
    return of;
}

/* ---- slices ---------------------------------------------------------------------------------- */

static int64_t bound(jrun *r, jval v, int64_t otherwise, int64_t n, int64_t step)
{
    int64_t i;

    if (v.kind == J_NONE) {
        return otherwise;
    }
    i = jwant_int(r, v, "a slice's bound");
    i += i < 0 ? n : 0;
    if (i < 0) {
        return step < 0 ? -1 : 0;
    }
    return i >= n ? (step < 0 ? n - 1 : n) : i;
}

static jval slice_string(jrun *r, const struct jstr *s, int64_t n, int64_t from, int64_t to,
                         int64_t step)
{
    struct jbuf o = {.b = jb(r)};
    size_t *at;
    jval v;

    if (step == 1) {
        size_t a = (size_t)n == s->len ? (size_t)from : jstr_offset(s, (size_t)from);
        size_t b = (size_t)n == s->len ? (size_t)to : jstr_offset(s, (size_t)to);

        return jstr_cut(jb(r), s, a, b);
    }
    at = jalloc_array(jb(r), (size_t)n + 1, sizeof(*at));
    for (size_t i = 0, k = 0; i < s->len; i += jstr_step(s, i)) {
        at[k++] = i;
    }
    at[n] = s->len;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        jbuf_cut(&o, s, at[i], at[i + 1]);
    }
    v = jbuf_done(&o);
    jstr_of(v)->markup = s->markup;
    return v;
}

jval jslice(jrun *r, jval of, jval from, jval to, jval step_v)
{
    int64_t n = jlen(of);
    int64_t step = step_v.kind == J_NONE ? 1 : jwant_int(r, step_v, "a slice's step");
    int64_t a;
    int64_t b;
    jval out;

    juse(r, of);
    if (of.kind != J_STR && of.kind != J_LIST && of.kind != J_TUPLE && of.kind != J_RANGE) {
        jfail(jb(r), -EINVAL, "a %s cannot be sliced", jkind_name(of));
    }
    if (step == 0) {
        jfail(jb(r), -EINVAL, "a slice's step is 0");
    }
    step = step > n + 1 ? n + 1 : step < -n - 1 ? -n - 1 : step;
    a = bound(r, from, step < 0 ? n - 1 : 0, n, step);
    b = bound(r, to, step < 0 ? -1 : n, n, step);
    b = step > 0 && b < a ? a : b;
    jstep(r, (uint64_t)n / 16);
    if (of.kind == J_STR) {
        return slice_string(r, jstr_of(of), n, a, b, step);
    }
    out = jlist_new(jb(r), of.kind == J_TUPLE ? J_TUPLE : J_LIST, 0);
    for (int64_t i = a; step > 0 ? i < b : i > b; i += step) {
        jstep(r, 1);
        jlist_push(jb(r), out, jgetitem(r, of, jint(i)));
    }
    return out;
}

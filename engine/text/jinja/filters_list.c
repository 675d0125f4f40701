/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that walk, pick and sort. Those that are generators in Python give iterators here. */

#include <errno.h>

#include "engine/text/jinja/run.h"

static bool given(jval v)
{
    return v.kind != J_MISSING;
}

static bool yes(jval v)
{
    return given(v) && jtruth(v);
}

/* The values' keys for sorting and comparing: by attribute, without case. */
static jval *keys_of(jrun *r, const struct jlist *l, jval attribute, bool cased)
{
    jval *keys = jalloc_array(jb(r), l->n + 1, sizeof(*keys));

    for (size_t i = 0; i < l->n; i++) {
        jstep(r, 1);
        keys[i] = given(attribute) && attribute.kind != J_NONE
                      ? jgetpath(r, l->v[i], attribute, jnone())
                      : l->v[i];
        keys[i] = cased ? keys[i] : jfold(r, keys[i]);
    }
    return keys;
}

static jval copy_of(jrun *r, const struct jlist *l)
{
    jval list = jlist_new(jb(r), J_LIST, l->n);

    jstep(r, l->n);
    for (size_t i = 0; i < l->n; i++) {
        jlist_push(jb(r), list, l->v[i]);
    }
    return list;
}

static jval f_list(jrun *r, jval self, struct jargs *a)
{
    jargs_take(r, a, "", 0, NULL);
    return copy_of(r, jitems(r, self));
}

static jval f_first(jrun *r, jval self, struct jargs *a)
{
    struct jlist *l;

    jargs_take(r, a, "", 0, NULL);
    if (self.kind == J_ITER) {
        l = jlist_of(self);
        return l->pos < l->n ? l->v[l->pos++] : jundef("the first of nothing");
    }
    l = jitems(r, self);
    return l->n ? l->v[0] : jundef("the first of nothing");
}

static jval f_last(jrun *r, jval self, struct jargs *a)
{
    struct jlist *l;

    jargs_take(r, a, "", 0, NULL);
    if (self.kind == J_ITER) {
        jfail(jb(r), -EINVAL, "last: a generator cannot be walked from its end");
    }
    l = jitems(r, self);
    return l->n ? l->v[l->n - 1] : jundef("the last of nothing");
}

static jval f_join(jrun *r, jval self, struct jargs *a)
{
    jval arg[2];
    struct jlist *l;
    struct jbuf o = {.b = jb(r)};
    jval d;

    jargs_take(r, a, "d,attribute", 0, arg);
    d = given(arg[0]) ? jto_str(r, arg[0]) : jstr_static(jb(r), "");
    l = jitems(r, self);
    for (size_t i = 0; i < l->n; i++) {
        jstep(r, 1);
        if (i) {
            jbuf_str(&o, jstr_of(d));
        }
        jput_str(r, &o,
                 given(arg[1]) && arg[1].kind != J_NONE ? jgetpath(r, l->v[i], arg[1], jnone())
                                                        : l->v[i]);
    }
    return jbuf_done(&o);
}

static jval f_reverse(jrun *r, jval self, struct jargs *a)
{
    jval list;
    struct jlist *l;

    jargs_take(r, a, "", 0, NULL);
    if (self.kind == J_STR) {
        return jslice(r, self, jnone(), jnone(), jint(-1));
    }
    l = jitems(r, self);
    list = jlist_new(jb(r), J_LIST, l->n);
    jstep(r, l->n);
    for (size_t i = l->n; i > 0; i--) {
        jlist_push(jb(r), list, l->v[i - 1]);
    }
    return jiterator(r, jlist_of(list));
}

static jval f_items(jrun *r, jval self, struct jargs *a)
{
    jargs_take(r, a, "", 0, NULL);
    if (self.kind != J_DICT && self.kind != J_UNDEF) {
        jfail(jb(r), -EINVAL, "items: a %s is no mapping", jkind_name(self));
    }
    if (self.kind == J_DICT) {
        self.kind = J_VIEW;
        self.sub = JVIEW_ITEMS;
    }
    return jiterator(r, jitems(r, self));
}

static jval f_dictsort(jrun *r, jval self, struct jargs *a)
{
    jval arg[3];
    jval by_value = jboolean(false);
    jval list;

    jargs_take(r, a, "case_sensitive,by,reverse", 0, arg);
    juse(r, self);
    if (given(arg[1])) {
        const struct jstr *by = jwant_str(r, arg[1], "dictsort: by");

        if (!jstr_is(by, "key") && !jstr_is(by, "value")) {
            jfail(jb(r), -EINVAL, "dictsort: by is none of 'key', 'value'");
        }
        by_value.u.b = by->ptr[0] == 'v';
    }
    if (self.kind != J_DICT) {
        jfail(jb(r), -EINVAL, "dictsort: a %s is no mapping", jkind_name(self));
    }
    self.kind = J_VIEW;
    self.sub = JVIEW_ITEMS;
    list = copy_of(r, jitems(r, self));
    jsort(r, jlist_of(list)->v, keys_of(r, jlist_of(list), jint(by_value.u.b), yes(arg[0])),
          jlist_of(list)->n, yes(arg[2]));
    return list;
}

static jval f_sort(jrun *r, jval self, struct jargs *a)
{
    jval arg[3];
    jval list;

    jargs_take(r, a, "reverse,case_sensitive,attribute", 0, arg);
    list = copy_of(r, jitems(r, self));
    jsort(r, jlist_of(list)->v, keys_of(r, jlist_of(list), arg[2], yes(arg[1])), jlist_of(list)->n,
          yes(arg[0]));
    return list;
}

static jval f_unique(jrun *r, jval self, struct jargs *a)
{
    jval arg[2];
    struct jlist *l;
    jval *keys;
    jval seen = jdict_new(jb(r));
    jval list = jlist_new(jb(r), J_LIST, 0);

    jargs_take(r, a, "case_sensitive,attribute", 0, arg);
    l = jitems(r, self);
    keys = keys_of(r, l, arg[1], yes(arg[0]));
    for (size_t i = 0; i < l->n; i++) {
        if (jdict_get(jdict_of(seen), keys[i])) {
            continue;
        }
        if (!jdict_put(jb(r), seen, keys[i], jnone())) {
            jfail(jb(r), -EINVAL, "unique: a %s cannot be looked up", jkind_name(keys[i]));
        }
        jlist_push(jb(r), list, l->v[i]);
    }
    return jiterator(r, jlist_of(list));
}

static jval extreme(jrun *r, jval self, struct jargs *a, int wanted)
{
    jval arg[2];
    struct jlist *l;
    jval *keys;
    size_t best = 0;

    jargs_take(r, a, "case_sensitive,attribute", 0, arg);
    l = jitems(r, self);
    if (l->n == 0) {
        return jundef("the least or greatest of nothing");
    }
    keys = keys_of(r, l, arg[1], yes(arg[0]));
    for (size_t i = 1; i < l->n; i++) {
        if (jcompare(r, wanted < 0 ? T_LT : T_GT, keys[i], keys[best])) {
            best = i;
        }
    }
    return l->v[best];
}

static jval f_min(jrun *r, jval self, struct jargs *a)
{
    return extreme(r, self, a, -1);
}

static jval f_max(jrun *r, jval self, struct jargs *a)
{
    return extreme(r, self, a, 1);
}

static jval f_sum(jrun *r, jval self, struct jargs *a)
{
    jval arg[2];
    struct jlist *l;
    jval sum;

    jargs_take(r, a, "attribute,start", 0, arg);
    sum = given(arg[1]) ? arg[1] : jint(0);
    l = jitems(r, self);
    for (size_t i = 0; i < l->n; i++) {
        jstep(r, 1);
        sum = jbinary(r, T_ADD, sum,
                      given(arg[0]) && arg[0].kind != J_NONE ? jgetpath(r, l->v[i], arg[0], jnone())
                                                             : l->v[i]);
    }
    return sum;
}

/* ---- map, select and their like -------------------------------------------------------------- */

/* What is false, none above all, counts as nothing to walk. */
static struct jlist *elements(jrun *r, jval v)
{
    return jitems(r, jtruth(v) ? v : jundef(NULL));
}

/* The filter or test named by argument `at`, and the arguments behind it. */
static const struct jbuiltin *named(jrun *r, struct jargs *a, size_t at, bool test,
                                    struct jargs *ret)
{
    const char *name = jsafe(r, jptr(J_STR, jwant_str(r, a->v[at], "a filter's or test's name")));
    const struct jbuiltin *b = test ? jtest_find(name) : jfilter_find(name);

    if (!b) {
        jfail(jb(r), -EINVAL, "there is no %s '%.60s'", test ? "test" : "filter", name);
    }
    *ret = (struct jargs){
        .what = b->name, .v = a->v + at + 1, .n = a->n - at - 1, .kw = a->kw, .n_kw = a->n_kw};
    return b;
}

static jval f_map(jrun *r, jval self, struct jargs *a)
{
    jval list = jlist_new(jb(r), J_LIST, 0);
    struct jlist *l = elements(r, self);
    const struct jbuiltin *b = NULL;
    struct jargs rest = {0};
    jval arg[2];

    if (a->n) {
        b = named(r, a, 0, false, &rest);
    } else {
        jargs_take(r, a, "attribute,default", 1, arg);
    }
    for (size_t i = 0; i < l->n; i++) {
        struct jargs once = rest;
        jval v = b ? jcall_builtin(r, b, l->v[i], &once) : jgetpath(r, l->v[i], arg[0], arg[1]);

        jstep(r, 1);
        jlist_push(jb(r), list, v);
    }
    return jiterator(r, jlist_of(list));
}

/* `by`: the elements' attribute, argument 0, is looked at. */
static jval choose(jrun *r, jval self, struct jargs *a, bool by, bool keep)
{
    jval list = jlist_new(jb(r), J_LIST, 0);
    struct jlist *l = elements(r, self);
    size_t at = by ? 1 : 0;
    const struct jbuiltin *b = NULL;
    struct jargs rest = {0};

    if (a->n < at) {
        jfail(jb(r), -EINVAL, "%s needs an attribute", a->what);
    }
    if (a->n > at) {
        b = named(r, a, at, true, &rest);
    }
    for (size_t i = 0; i < l->n; i++) {
        struct jargs once = rest;
        jval v = by ? jgetpath(r, l->v[i], a->v[0], jnone()) : l->v[i];

        jstep(r, 1);
        if (jtruth(b ? jcall_builtin(r, b, v, &once) : v) == keep) {
            jlist_push(jb(r), list, l->v[i]);
        }
    }
    return jiterator(r, jlist_of(list));
}

static jval f_select(jrun *r, jval self, struct jargs *a)
{
    return choose(r, self, a, false, true);
}

static jval f_reject(jrun *r, jval self, struct jargs *a)
{
    return choose(r, self, a, false, false);
}

static jval f_selectattr(jrun *r, jval self, struct jargs *a)
{
    return choose(r, self, a, true, true);
}

static jval f_rejectattr(jrun *r, jval self, struct jargs *a)
{
    return choose(r, self, a, true, false);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static jval f_groupby(jrun *r, jval self, struct jargs *a)
{
    jval arg[3];
    jval list;
    jval groups = jlist_new(jb(r), J_LIST, 0);
    struct jlist *l;
    jval *keys;

    jargs_take(r, a, "attribute,default,case_sensitive", 1, arg);
    list = copy_of(r, jitems(r, self));
    l = jlist_of(list);
    keys = jalloc_array(jb(r), l->n + 1, sizeof(*keys));
    for (size_t i = 0; i < l->n; i++) {
        jstep(r, 1);
        keys[i] = jgetpath(r, l->v[i], arg[0], arg[1]);
        keys[i] = yes(arg[2]) ? keys[i] : jfold(r, keys[i]);
    }
    jsort(r, l->v, keys, l->n, false);
    for (size_t i = 0; i < l->n;) {
        jval pair = jlist_new(jb(r), J_TUPLE, 2);
        jval members = jlist_new(jb(r), J_LIST, 0);
        size_t from = i;
        jval title = jgetpath(r, l->v[from], arg[0], arg[1]);

        for (; i < l->n && jeq(keys[i], keys[from]); i++) {
            jlist_push(jb(r), members, l->v[i]);
        }
        jlist_push(jb(r), pair, title);
        jlist_push(jb(r), pair, members);
        jlist_push(jb(r), groups, pair);
    }
    return groups;
}

static jval f_batch(jrun *r, jval self, struct jargs *a)
{
    jval arg[2];
    jval out = jlist_new(jb(r), J_LIST, 0);
    struct jlist *l;
    int64_t size;

    jargs_take(r, a, "linecount,fill_with", 1, arg);
    size = jwant_int(r, arg[0], "batch: linecount");
    l = jitems(r, self);
    if (size < 1 || size > JINJA_MAX_RANGE) {
        jfail(jb(r), -EINVAL, "batch: linecount is not between 1 and %d", (int)JINJA_MAX_RANGE);
    }
    for (size_t i = 0; i < l->n;) {
        jval row = jlist_new(jb(r), J_LIST, 0);

        for (int64_t k = 0; k < size && (i < l->n || (given(arg[1]) && arg[1].kind != J_NONE));
             k++) {
            jstep(r, 1);
            jlist_push(jb(r), row, i < l->n ? l->v[i] : arg[1]);
            i++;
        }
        jlist_push(jb(r), out, row);
    }
    return jiterator(r, jlist_of(out));
}

static jval f_slice(jrun *r, jval self, struct jargs *a)
{
    jval arg[2];
    jval out = jlist_new(jb(r), J_LIST, 0);
    struct jlist *l;
    int64_t slices;
    size_t at = 0;

    jargs_take(r, a, "slices,fill_with", 1, arg);
    slices = jwant_int(r, arg[0], "slice: slices");
    l = jitems(r, self);
    if (slices < 1 || slices > JINJA_MAX_RANGE) {
        jfail(jb(r), -EINVAL, "slice: slices is not between 1 and %d", (int)JINJA_MAX_RANGE);
    }
    for (int64_t i = 0; i < slices; i++) {
        jval row = jlist_new(jb(r), J_LIST, 0);
        size_t extra = l->n % (size_t)slices;
        size_t n = l->n / (size_t)slices + ((size_t)i < extra);

        jstep(r, 1 + n);
        for (size_t k = 0; k < n; k++) {
            jlist_push(jb(r), row, l->v[at++]);
        }
        if (given(arg[1]) && arg[1].kind != J_NONE && extra && (size_t)i >= extra) {
            jlist_push(jb(r), row, arg[1]);
        }
        jlist_push(jb(r), out, row);
    }
    return jiterator(r, jlist_of(out));
}

const struct jbuiltin jfilters_list[] = {
    {"list", f_list, NULL},
    {"first", f_first, NULL},
    {"last", f_last, NULL},
    {"join", f_join, NULL},
    {"reverse", f_reverse, NULL},
    {"items", f_items, NULL},
    {"dictsort", f_dictsort, NULL},
    {"sort", f_sort, NULL},
    {"unique", f_unique, NULL},
    {"min", f_min, NULL},
    {"max", f_max, NULL},
    {"sum", f_sum, NULL},
    {"map", f_map, NULL},
    {"select", f_select, NULL},
    {"reject", f_reject, NULL},
    {"selectattr", f_selectattr, NULL},
    {"rejectattr", f_rejectattr, NULL},
    {"groupby", f_groupby, NULL},
    {"batch", f_batch, NULL},
    {"slice", f_slice, NULL},
    {0},
};

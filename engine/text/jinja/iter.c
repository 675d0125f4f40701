/* SPDX-License-Identifier: Apache-2.0 */
/* Walking and sorting. Python's lazy iterators are lists here, made at once; they keep what their
 * users can tell: they have no length and can be walked once. */

#include <errno.h>

#include "engine/text/jinja/run.h"

bool jiterable(jval v)
{
    return v.kind == J_UNDEF || v.kind == J_ITER || (v.kind != J_NAMESPACE && jlen(v) >= 0);
}

jval jiterator(jrun *r, struct jlist *items)
{
    struct jlist *l = jalloc(jb(r), sizeof(*l));

    *l = *items;
    l->pos = 0;
    return jptr(J_ITER, l);
}

static struct jlist *characters(jrun *r, const struct jstr *s)
{
    jval list = jlist_new(jb(r), J_LIST, 0);

    for (size_t i = 0; i < s->len;) {
        size_t n = jstr_step(s, i);

        jstep(r, 1);
        jlist_push(jb(r), list, jstr_cut(jb(r), s, i, i + n));
        i += n;
    }
    return jlist_of(list);
}

static struct jlist *view(jrun *r, const struct jdict *d, enum jview which)
{
    jval list = jlist_new(jb(r), J_LIST, d->n);

    jstep(r, d->n);
    for (size_t i = 0; i < d->n; i++) {
        jlist_push(jb(r), list, jview_at(r, d, which, i));
    }
    return jlist_of(list);
}

static struct jlist *rest(jrun *r, struct jlist *l)
{
    struct jlist *left = jalloc(jb(r), sizeof(*left));

    *left = *l;
    if (left->v) {
        left->v += l->pos;
    }
    left->n -= l->pos;
    l->pos = l->n;
    return left;
}

struct jlist *jitems(jrun *r, jval v)
{
    jval list;
    const struct jrange *range = v.u.p;

    switch (v.kind) {
    case J_LIST:
    case J_TUPLE:
        return jlist_of(v);
    case J_UNDEF:
        return jlist_of(jlist_new(jb(r), J_LIST, 0));
    case J_STR:
        return characters(r, jstr_of(v));
    case J_DICT:
        return view(r, jdict_of(v), JVIEW_KEYS);
    case J_VIEW:
        return view(r, jdict_of(v), v.sub);
    case J_ITER:
        return rest(r, jlist_of(v));
    case J_RANGE:
        list = jlist_new(jb(r), J_LIST, (size_t)range->n);
        jstep(r, (uint64_t)range->n);
        for (int64_t i = 0; i < range->n; i++) {
            jlist_push(jb(r), list, jint(range->start + i * range->step));
        }
        return jlist_of(list);
    default:
        jfail(jb(r), -EINVAL, "a %s has no elements to walk", jkind_name(v));
    }
}

jval jfold(jrun *r, jval v)
{
    return v.kind == J_STR ? jstr_case(r, jstr_of(v), CASE_LOWER) : v;
}

/* Stable, as Python's: merges runs of 1, 2, 4 ... */
static bool before(jrun *r, jval a, jval b)
{
    int order;

    jstep(r, 1);
    if (!jorder(a, b, &order)) {
        juse(r, a);
        juse(r, b);
        jfail(jb(r), -EINVAL, "a %s and a %s have no order", jkind_name(a), jkind_name(b));
    }
    return order == -1;
}

void jsort(jrun *r, jval *v, jval *keys, size_t n, bool reverse)
{
    jval *v2 = jalloc_array(jb(r), n + 1, sizeof(*v2));
    jval *k2 = jalloc_array(jb(r), n + 1, sizeof(*k2));

    for (size_t run = 1; run < n; run *= 2) {
        for (size_t from = 0; from < n; from += 2 * run) {
            size_t mid = from + run < n ? from + run : n;
            size_t end = mid + run < n ? mid + run : n;
            size_t i = from;
            size_t j = mid;

            for (size_t o = from; o < end; o++) {
                bool right = j < end && (i >= mid || (reverse ? before(r, keys[i], keys[j])
                                                              : before(r, keys[j], keys[i])));
                size_t take = right ? j++ : i++;

                v2[o] = v[take];
                k2[o] = keys[take];
            }
        }
        for (size_t i = 0; i < n; i++) {
            v[i] = v2[i];
            keys[i] = k2[i];
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Lists, dicts, and what Python says about any two values: truth, equality, order. Dicts keep the
 * order of insertion; from nine keys on, a table of positions under a keyed hash finds them. */

#include "engine/text/jinja/value.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { SMALL_DICT = 8 };

static uint32_t depth_of(jval v)
{
    return v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_ITER ? jlist_of(v)->depth
           : v.kind == J_DICT || v.kind == J_VIEW                    ? jdict_of(v)->depth
                                                                     : 0;
}

static void deepen(struct jbase *b, uint32_t *depth, jval child)
{
    uint32_t d = depth_of(child) + 1;

    if (d > J_MAX_NESTING) {
        jfail(b, -E2BIG, "a value is nested more than %d levels deep", (int)J_MAX_NESTING);
    }
    *depth = d > *depth ? d : *depth;
}

jval jlist_new(struct jbase *b, enum jkind kind, size_t cap)
{
    struct jlist *l = jalloc(b, sizeof(*l));

    l->v = cap ? jalloc_array(b, cap, sizeof(*l->v)) : NULL;
    l->cap = cap;
    return jptr(kind, l);
}

void jlist_push(struct jbase *b, jval list, jval v)
{
    struct jlist *l = jlist_of(list);

    deepen(b, &l->depth, v);
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;

        l->v = jgrow(b, l->v, l->n * sizeof(*l->v), cap * sizeof(*l->v));
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

jval jdict_new(struct jbase *b)
{
    struct jdict *d = jalloc(b, sizeof(*d));

    d->key = &b->key;
    return jptr(J_DICT, d);
}

static bool hash(const struct siphash_key *key, jval v, uint64_t *ret)
{
    uint64_t h;

    switch (v.kind) {
    case J_STR:
        *ret = siphash(key, jstr_of(v)->ptr, jstr_of(v)->len);
        return true;
    case J_TUPLE:
        h = 7;
        for (size_t i = 0; i < jlist_of(v)->n; i++) {
            uint64_t one;

            if (!hash(key, jlist_of(v)->v[i], &one)) {
                return false;
            }
            h = h * 1000003 + one;
        }
        *ret = siphash(key, &h, sizeof(h));
        return true;
    case J_LIST:
    case J_DICT:
    case J_VIEW:
        return false;
    case J_BOOL:
    case J_INT:
    case J_FLOAT: {
        double f = jto_double(v); /* equal numbers of different types have equal hashes */

        f = f == 0 ? 0 : f;
        memcpy(&h, &f, sizeof(h));
        *ret = siphash(key, &h, sizeof(h));
        return true;
    }
    case J_NONE:
    case J_UNDEF:
        *ret = v.kind;
        return true;
    default:
        h = (uint64_t)(uintptr_t)v.u.p;
        *ret = siphash(key, &h, sizeof(h));
        return true;
    }
}

static struct jentry *find(const struct jdict *d, jval key, uint64_t h)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->e[i].hash == h && jeq(d->e[i].key, key)) {
                return &d->e[i];
            }
        }
        return NULL;
    }
    for (size_t i = h & d->mask; d->index[i]; i = (i + 1) & d->mask) {
        struct jentry *e = &d->e[d->index[i] - 1];

        if (e->hash == h && jeq(e->key, key)) {
            return e;
        }
    }
    return NULL;
}

static void index_put(struct jdict *d, size_t entry)
{
    size_t i = d->e[entry].hash & d->mask;

    while (d->index[i]) {
        i = (i + 1) & d->mask;
    }
    d->index[i] = (uint32_t)entry + 1;
}

static void grow(struct jbase *b, struct jdict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 4;

    if (cap > UINT32_MAX / 4) {
        jfail(b, -E2BIG, "a dict has more than %zu keys", d->n);
    }
    d->e = jgrow(b, d->e, d->n * sizeof(*d->e), cap * sizeof(*d->e));
    d->cap = cap;
    if (cap > SMALL_DICT) {
        d->index = jalloc_array(b, 2 * cap, sizeof(*d->index));
        d->mask = 2 * cap - 1;
        for (size_t i = 0; i < d->n; i++) {
            index_put(d, i);
        }
    }
}

bool jdict_put(struct jbase *b, jval dict, jval key, jval v)
{
    struct jdict *d = jdict_of(dict);
    struct jentry *e;
    uint64_t h;

    if (!hash(d->key, key, &h)) {
        return false;
    }
    deepen(b, &d->depth, key);
    deepen(b, &d->depth, v);
    e = find(d, key, h);
    if (e) {
        e->val = v;
        return true;
    }
    if (d->n == d->cap) {
        grow(b, d);
    }
    d->e[d->n++] = (struct jentry){.key = key, .val = v, .hash = h};
    if (d->index) {
        index_put(d, d->n - 1);
    }
    return true;
}

jval *jdict_get(const struct jdict *d, jval key)
{
    uint64_t h;
    struct jentry *e = hash(d->key, key, &h) ? find(d, key, h) : NULL;

    return e ? &e->val : NULL;
}

jval *jdict_find(const struct jdict *d, const char *key)
{
    struct jstr s = {.ptr = key, .len = strlen(key)};

    return jdict_get(d, jptr(J_STR, &s));
}

/* ---- any value ------------------------------------------------------------------------------- */

bool jis_number(jval v)
{
    return v.kind == J_BOOL || v.kind == J_INT || v.kind == J_FLOAT;
}

double jto_double(jval v)
{
    return v.kind == J_FLOAT ? v.u.f : (double)jto_int(v);
}

int64_t jto_int(jval v)
{
    return v.kind == J_BOOL ? v.u.b : v.u.i;
}

int64_t jlen(jval v)
{
    switch (v.kind) {
    case J_UNDEF:
        return 0;
    case J_STR:
        return (int64_t)jstr_chars(jstr_of(v));
    case J_LIST:
    case J_TUPLE:
        return (int64_t)jlist_of(v)->n;
    case J_DICT:
    case J_VIEW:
        return (int64_t)jdict_of(v)->n;
    case J_RANGE:
        return ((struct jrange *)v.u.p)->n;
    default:
        return -1;
    }
}

bool jtruth(jval v)
{
    switch (v.kind) {
    case J_UNDEF:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.u.b;
    case J_INT:
        return v.u.i != 0;
    case J_FLOAT:
        return v.u.f != 0;
    case J_STR:
        return jstr_of(v)->len > 0;
    default:
        return jlen(v) != 0;
    }
}

const char *jkind_name(jval v)
{
    static const char *const names[] = {
        [J_UNDEF] = "Undefined",     [J_NONE] = "None",
        [J_BOOL] = "bool",           [J_INT] = "int",
        [J_FLOAT] = "float",         [J_STR] = "str",
        [J_LIST] = "list",           [J_TUPLE] = "tuple",
        [J_DICT] = "dict",           [J_RANGE] = "range",
        [J_VIEW] = "view",           [J_ITER] = "generator",
        [J_NAMESPACE] = "namespace", [J_LOOP] = "loop",
        [J_MACRO] = "macro",         [J_METHOD] = "method",
        [J_CYCLER] = "cycler",       [J_MISSING] = "nothing",
    };

    return names[v.kind];
}

static bool eq_numbers(jval a, jval b)
{
    if (a.kind != J_FLOAT && b.kind != J_FLOAT) {
        return jto_int(a) == jto_int(b);
    }
    return jto_double(a) == jto_double(b);
}

static bool eq_dicts(const struct jdict *a, const struct jdict *b)
{
    if (a->n != b->n) {
        return false;
    }
    for (size_t i = 0; i < a->n; i++) {
        struct jentry *e = find(b, a->e[i].key, a->e[i].hash);

        if (!e || !jeq(a->e[i].val, e->val)) {
            return false;
        }
    }
    return true;
}

bool jeq(jval a, jval b)
{
    if (jis_number(a) && jis_number(b)) {
        return eq_numbers(a, b);
    }
    if (a.kind != b.kind) {
        return false;
    }
    switch (a.kind) {
    case J_UNDEF:
    case J_NONE:
        return true;
    case J_STR:
        return jstr_eq(jstr_of(a), jstr_of(b));
    case J_LIST:
    case J_TUPLE:
        if (jlist_of(a)->n != jlist_of(b)->n) {
            return false;
        }
        for (size_t i = 0; i < jlist_of(a)->n; i++) {
            if (!jeq(jlist_of(a)->v[i], jlist_of(b)->v[i])) {
                return false;
            }
        }
        return true;
    case J_DICT:
        return eq_dicts(jdict_of(a), jdict_of(b));
    case J_RANGE:
        return memcmp(a.u.p, b.u.p, sizeof(struct jrange)) == 0;
    case J_METHOD:
        return false;
    default:
        return a.u.p == b.u.p && a.sub == b.sub;
    }
}

bool jorder(jval a, jval b, int *ret)
{
    if (jis_number(a) && jis_number(b)) {
        double x = jto_double(a);
        double y = jto_double(b);

        if (isnan(x) || isnan(y)) {
            *ret = 2; /* neither before nor behind nor equal */
            return true;
        }
        if (a.kind != J_FLOAT && b.kind != J_FLOAT) {
            *ret = (jto_int(a) > jto_int(b)) - (jto_int(a) < jto_int(b));
            return true;
        }
        *ret = (x > y) - (x < y);
        return true;
    }
    if (a.kind == J_STR && b.kind == J_STR) {
        int r = jstr_cmp(jstr_of(a), jstr_of(b));

        *ret = (r > 0) - (r < 0);
        return true;
    }
    if (a.kind != b.kind || (a.kind != J_LIST && a.kind != J_TUPLE)) {
        return false;
    }
    for (size_t i = 0; i < jlist_of(a)->n && i < jlist_of(b)->n; i++) {
        if (!jeq(jlist_of(a)->v[i], jlist_of(b)->v[i])) {
            return jorder(jlist_of(a)->v[i], jlist_of(b)->v[i], ret);
        }
    }
    *ret = (jlist_of(a)->n > jlist_of(b)->n) - (jlist_of(a)->n < jlist_of(b)->n);
    return true;
}

bool jmarked(jval v)
{
    return v.kind == J_STR ? jstr_of(v)->mark != MARK_TEMPLATE : v.user;
}

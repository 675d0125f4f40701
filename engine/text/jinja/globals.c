/* SPDX-License-Identifier: Apache-2.0 */
/* Global functions, and the objects that only they make. lipsum is left out. */

#include <errno.h>
#include <string.h>
#include <time.h>

#include "engine/text/jinja/run.h"

static jval make_range(jrun *r, jval self, struct jargs *a)
{
    struct jrange *x = jalloc(jb(r), sizeof(*x));
    int64_t v[3] = {0, 0, 1};
    __int128 n;

    if (a->n < 1 || a->n > 3 || a->n_kw) {
        jfail(jb(r), -EINVAL, "range takes one to three integers");
    }
    for (size_t i = 0; i < a->n; i++) {
        v[a->n == 1 ? 1 : i] = jwant_int(r, a->v[i], "an argument of range");
    }
    if (v[2] == 0) {
        jfail(jb(r), -EINVAL, "range: the step is 0");
    }
    n = ((__int128)v[1] - v[0] + v[2] + (v[2] > 0 ? -1 : 1)) / v[2];
    n = n < 0 ? 0 : n;
    if (n > JINJA_MAX_RANGE) {
        jfail(jb(r), -E2BIG, "range: more than %d numbers", (int)JINJA_MAX_RANGE);
    }
    *x = (struct jrange){v[0], v[2], (int64_t)n};
    return jptr(J_RANGE, x);
}

/* dict(mapping or pairs, name=value ...) */
static void fill(jrun *r, jval dict, const struct jargs *a)
{
    if (a->n > 1) {
        jfail(jb(r), -EINVAL, "%s takes at most one argument without a name", a->what);
    }
    if (a->n == 1 && (a->v[0].kind == J_DICT || a->v[0].kind == J_NAMESPACE)) {
        const struct jdict *d = jdict_of(a->v[0]);

        for (size_t i = 0; i < d->n; i++) {
            (void)jdict_put(jb(r), dict, d->e[i].key, d->e[i].val);
        }
    } else if (a->n == 1) {
        const struct jlist *pairs = jitems(r, a->v[0]);

        for (size_t i = 0; i < pairs->n; i++) {
            const struct jlist *two = jitems(r, pairs->v[i]);

            if (two->n != 2 || !jdict_put(jb(r), dict, two->v[0], two->v[1])) {
                jfail(jb(r), -EINVAL, "%s: these are no pairs", a->what);
            }
        }
    }
    for (size_t i = 0; i < a->n_kw; i++) {
        const char *name = a->kw[i].name;

        (void)jdict_put(jb(r), dict, jstr_new(jb(r), name, strlen(name), MARK_TEMPLATE),
                        a->kw[i].v);
    }
}

static jval make_dict(jrun *r, jval self, struct jargs *a)
{
    jval dict = jdict_new(jb(r));

    fill(r, dict, a);
    return dict;
}

static jval make_namespace(jrun *r, jval self, struct jargs *a)
{
    jval ns = jdict_new(jb(r));

    fill(r, ns, a);
    for (size_t i = 0; i < jdict_of(ns)->n; i++) {
        jval key = jdict_of(ns)->e[i].key;

        if (key.kind == J_STR && jstr_of(key)->len && jstr_of(key)->ptr[0] == '_') {
            jfail(jb(r), -EINVAL, "a namespace's attribute must not begin with '_'");
        }
    }
    ns.kind = J_NAMESPACE;
    return ns;
}

static jval raise_exception(jrun *r, jval self, struct jargs *a)
{
    jval message;

    jargs_take(r, a, "message", 1, &message);
    jfail(jb(r), -EINVAL, "%s", jsafe(r, message));
}

static jval strftime_now(jrun *r, jval self, struct jargs *a)
{
    jval format;
    const struct jstr *s;
    char *copy;
    char text[512];
    struct tm tm;
    time_t now = (time_t)r->now;
    size_t n;

    jargs_take(r, a, "format", 1, &format);
    s = jwant_str(r, format, "strftime_now: the format");
    copy = jalloc(jb(r), s->len + 1);
    if (s->len) {
        memcpy(copy, s->ptr, s->len);
    }
    n = localtime_r(&now, &tm) ? strftime(text, sizeof(text), copy, &tm) : 0;
    if (n == 0 && s->len) {
        jfail(jb(r), -EINVAL, "strftime_now: the format gives nothing or more than %zu bytes",
              sizeof(text) - 1);
    }
    return jstr_new(jb(r), text, n, s->mark == MARK_TEMPLATE ? MARK_TEMPLATE : MARK_USER);
}

/* ---- cycler and joiner ----------------------------------------------------------------------- */

static jval make_cycler(jrun *r, jval self, struct jargs *a)
{
    struct jcycler *c = jalloc(jb(r), sizeof(*c));
    jval list = jlist_new(jb(r), J_LIST, 0);

    if (a->n == 0 || a->n_kw) {
        jfail(jb(r), -EINVAL, "cycler takes the values to go round");
    }
    for (size_t i = 0; i < a->n; i++) {
        jlist_push(jb(r), list, a->v[i]);
    }
    c->items = jlist_of(list);
    return jptr(J_CYCLER, c);
}

static jval make_joiner(jrun *r, jval self, struct jargs *a)
{
    struct jcycler *c = jalloc(jb(r), sizeof(*c));
    jval sep;
    jval list = jlist_new(jb(r), J_LIST, 0);

    jargs_take(r, a, "sep", 0, &sep);
    jlist_push(jb(r), list, sep.kind == J_MISSING ? jstr_static(jb(r), ", ") : sep);
    c->items = jlist_of(list);
    c->joiner = true;
    return jptr(J_CYCLER, c);
}

static jval joiner_call(jrun *r, jval self, struct jargs *a)
{
    struct jcycler *c = self.u.p;

    jargs_take(r, a, "", 0, NULL);
    return c->i++ == 0 ? jstr_static(jb(r), "") : c->items->v[0];
}

static jval cycler_next(jrun *r, jval self, struct jargs *a)
{
    struct jcycler *c = self.u.p;
    jval v = c->items->v[c->i];

    jargs_take(r, a, "", 0, NULL);
    c->i = (c->i + 1) % c->items->n;
    return v;
}

static jval cycler_reset(jrun *r, jval self, struct jargs *a)
{
    jargs_take(r, a, "", 0, NULL);
    ((struct jcycler *)self.u.p)->i = 0;
    return jnone();
}

static jval loop_cycle(jrun *r, jval self, struct jargs *a)
{
    if (a->n == 0) {
        jfail(jb(r), -EINVAL, "loop.cycle takes the values to go round");
    }
    return a->v[((struct jloop *)self.u.p)->i % a->n];
}

static jval loop_changed(jrun *r, jval self, struct jargs *a)
{
    struct jloop *l = self.u.p;
    jval now = jlist_new(jb(r), J_TUPLE, 0);
    bool same;

    for (size_t i = 0; i < a->n; i++) {
        jlist_push(jb(r), now, a->v[i]);
    }
    same = l->changed.kind != J_MISSING && jeq(l->changed, now);
    l->changed = now;
    return jboolean(!same);
}

const struct jbuiltin jmethods_joiner[] = {{"joiner", joiner_call, NULL}, {0}};
const struct jbuiltin jmethods_cycler[] = {
    {"next", cycler_next, NULL}, {"reset", cycler_reset, NULL}, {0}};
const struct jbuiltin jmethods_loop[] = {
    {"cycle", loop_cycle, NULL}, {"changed", loop_changed, NULL}, {0}};
const struct jbuiltin jglobals[] = {
    {"range", make_range, NULL},
    {"dict", make_dict, NULL},
    {"namespace", make_namespace, NULL},
    {"raise_exception", raise_exception, NULL},
    {"strftime_now", strftime_now, NULL},
    {"cycler", make_cycler, NULL},
    {"joiner", make_joiner, NULL},
    {"lipsum", NULL, "it is not supported"},
    {0},
};

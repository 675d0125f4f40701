/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: arguments evaluated, handed to macros by Jinja's rules and to builtins by Python's. */

#include <errno.h>
#include <string.h>

#include "engine/text/jinja/run.h"

static void add(jrun *r, struct jargs *a, jval v)
{
    a->v = jgrow(jb(r), a->v, a->n * sizeof(*a->v), (a->n + 1) * sizeof(*a->v));
    a->v[a->n++] = v;
}

static void add_kw(jrun *r, struct jargs *a, const char *name, jval v)
{
    for (size_t i = 0; i < a->n_kw; i++) {
        if (strcmp(a->kw[i].name, name) == 0) {
            jfail(jb(r), -EINVAL, "%s gets '%.60s' twice", a->what, name);
        }
    }
    a->kw = jgrow(jb(r), a->kw, a->n_kw * sizeof(*a->kw), (a->n_kw + 1) * sizeof(*a->kw));
    a->kw[a->n_kw++] = (struct jkwarg){name, v};
}

/* Makes a C string of a dict's key that becomes an argument's name. */
static const char *name_of(jrun *r, jval key)
{
    const struct jstr *s = jwant_str(r, key, "an argument's name");
    char *name = jalloc(jb(r), s->len + 1);

    memcpy(name, s->ptr, s->len);
    return name;
}

void jargs_eval(jrun *r, const struct jnode *list, struct jargs *ret)
{
    for (const struct jnode *n = list; n; n = n->next) {
        jval v = jeval(r, n->a);

        if (n->type == N_ARG) {
            add(r, ret, v);
        } else if (n->type == N_KWARG) {
            add_kw(r, ret, n->name->text, v);
        } else if (n->type == N_STAR) {
            struct jlist *items = jitems(r, v);

            jstep(r, items->n);
            for (size_t i = 0; i < items->n; i++) {
                add(r, ret, items->v[i]);
            }
        } else {
            if (v.kind != J_DICT) {
                jfail(jb(r), -EINVAL, "behind ** stands a %s, not a dict", jkind_name(v));
            }
            jstep(r, jdict_of(v)->n);
            for (size_t i = 0; i < jdict_of(v)->n; i++) {
                add_kw(r, ret, name_of(r, jdict_of(v)->e[i].key), jdict_of(v)->e[i].val);
            }
        }
    }
}

void jargs_take(jrun *r, struct jargs *a, const char *names, size_t n_required, jval *ret)
{
    size_t n = 0;
    size_t used = 0;

    for (const char *p = names; *p; n++) {
        size_t len = strcspn(p, ",");

        ret[n] = n < a->n ? a->v[n] : jptr(J_MISSING, NULL);
        for (size_t i = 0; i < a->n_kw; i++) {
            if (strlen(a->kw[i].name) == len && memcmp(a->kw[i].name, p, len) == 0) {
                if (n < a->n) {
                    jfail(jb(r), -EINVAL, "%.60s gets '%.*s' twice", a->what, (int)len, p);
                }
                ret[n] = a->kw[i].v;
                used++;
            }
        }
        if (n < n_required && ret[n].kind == J_MISSING) {
            jfail(jb(r), -EINVAL, "%.60s needs '%.*s'", a->what, (int)len, p);
        }
        p += len + (p[len] == ',');
    }
    if (a->n > n || used < a->n_kw) {
        jfail(jb(r), -EINVAL, "%.60s gets arguments that it does not take", a->what);
    }
}

jval jbind(jrun *r, const struct jbuiltin *b, jval self)
{
    struct jbound *m = jalloc(jb(r), sizeof(*m));

    *m = (struct jbound){b, self};
    return jptr(J_METHOD, m);
}

jval jcall_builtin(jrun *r, const struct jbuiltin *b, jval self, struct jargs *a)
{
    jval v;

    if (!b->call) {
        jfail(jb(r), -EINVAL, "%s: %s", b->name, b->why);
    }
    jenter(r);
    v = b->call(r, self, a);
    jleave(r);
    return v;
}

/* ---- macros ---------------------------------------------------------------------------------- */

static const struct jnode *param_of(const struct jnode *m, const char *name)
{
    for (const struct jnode *p = m->a; p; p = p->next) {
        if (strcmp(p->name->text, name) == 0) {
            return p;
        }
    }
    return NULL;
}

/* Arguments by name: to their parameter, `caller`, or kwargs where the body asks for them. */
static void take_kwargs(jrun *r, const struct jnode *m, const struct jargs *a)
{
    jval rest = jdict_new(jb(r));

    for (size_t i = 0; i < a->n_kw; i++) {
        const struct jkwarg *kw = &a->kw[i];
        const struct jnode *p = param_of(m, kw->name);
        jval old;

        if (p &&
            jscope_get(&(struct jscope){.vars = r->scope->vars, .n = r->scope->n}, p->name, &old)) {
            jfail(jb(r), -EINVAL, "macro '%.60s' gets '%.60s' twice", m->name->text, kw->name);
        }
        if (p) {
            jscope_set(r, r->scope, p->name, kw->v);
        } else if (m->flag & USES_CALLER && strcmp(kw->name, "caller") == 0) {
            jscope_set(r, r->scope, r->t->n_caller, kw->v);
        } else if (m->flag & USES_KWARGS) {
            (void)jdict_put(jb(r), rest, jstr_new(jb(r), kw->name, strlen(kw->name), MARK_TEMPLATE),
                            kw->v);
        } else {
            jfail(jb(r), -EINVAL, "macro '%.60s' takes no argument '%.60s'", m->name->text,
                  kw->name);
        }
    }
    if (m->flag & USES_KWARGS) {
        jscope_set(r, r->scope, r->t->n_kwargs, rest);
    }
}

static void take_args(jrun *r, const struct jnode *m, const struct jargs *a)
{
    const struct jnode *p = m->a;
    size_t i = 0;

    for (; p && i < a->n; p = p->next) {
        jscope_set(r, r->scope, p->name, a->v[i++]);
    }
    if (i < a->n && !(m->flag & USES_VARARGS)) {
        jfail(jb(r), -EINVAL, "macro '%.60s' gets %zu arguments, which are too many", m->name->text,
              a->n);
    }
    take_kwargs(r, m, a);
    if (m->flag & USES_VARARGS) {
        jval rest = jlist_new(jb(r), J_TUPLE, 0);

        while (i < a->n) {
            jlist_push(jb(r), rest, a->v[i++]);
        }
        jscope_set(r, r->scope, r->t->n_varargs, rest);
    }
    if (m->flag & USES_CALLER && !param_of(m, "caller")) {
        jval caller;

        if (!jscope_get(&(struct jscope){.vars = r->scope->vars, .n = r->scope->n}, r->t->n_caller,
                        &caller)) {
            jscope_set(r, r->scope, r->t->n_caller, jundef("caller"));
        }
    }
}

static jval call_macro(jrun *r, const struct jmacro *m, const struct jargs *a)
{
    struct jscope *outer = r->scope;
    jval v;

    jenter(r);
    r->scope = jscope_new(r, m->closure);
    take_args(r, m->node, a);
    for (const struct jnode *p = m->node->a; p; p = p->next) {
        jval have;

        if (!jscope_get(&(struct jscope){.vars = r->scope->vars, .n = r->scope->n}, p->name,
                        &have)) {
            jscope_set(r, r->scope, p->name, p->a ? jeval(r, p->a) : jundef(p->name->text));
        }
    }
    v = jexec_text(r, m->node->c);
    r->scope = outer;
    jleave(r);
    return v;
}

/* loop(children) of a recursive loop. */
static jval call_loop(jrun *r, const struct jloop *l, struct jargs *a)
{
    jval iterable;

    if (!l->node->flag) {
        jfail(jb(r), -EINVAL, "the loop is called, but not marked 'recursive'");
    }
    jargs_take(r, a, "iterable", 1, &iterable);
    return jloop_run(r, l->node, l->closure, iterable, l->depth0 + 1);
}

jval jcall(jrun *r, jval callee, struct jargs *a)
{
    struct jbound *m = callee.u.p;

    switch (callee.kind) {
    case J_MACRO:
        return call_macro(r, callee.u.p, a);
    case J_METHOD:
        return jcall_builtin(r, m->b, m->self, a);
    case J_LOOP:
        return call_loop(r, callee.u.p, a);
    case J_CYCLER:
        if (((struct jcycler *)callee.u.p)->joiner) {
            return jcall_builtin(r, jmethods_joiner, callee, a);
        }
        break;
    default:
        break;
    }
    juse(r, callee);
    jfail(jb(r), -EINVAL, "%.60s is a %s and cannot be called", a->what, jkind_name(callee));
}

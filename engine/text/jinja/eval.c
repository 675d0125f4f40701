/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions to values. */

#include <errno.h>

#include "engine/text/jinja/run.h"

void jenter(jrun *r)
{
    jstep(r, 1);
    if (++r->depth > JINJA_MAX_EVAL) {
        jfail(jb(r), -E2BIG, "it recurses too deeply");
    }
}

void jleave(jrun *r)
{
    r->depth--;
}

static jval eval_name(jrun *r, const struct jnode *n)
{
    const struct jbuiltin *g;
    jval v;

    if (jscope_get(r->scope, n->name, &v)) {
        return v;
    }
    g = jglobal_find(n->name->text);
    return g ? jbind(r, g, jptr(J_MISSING, NULL)) : jundef(n->name->text);
}

static jval eval_list(jrun *r, const struct jnode *n, enum jkind kind)
{
    jval list = jlist_new(jb(r), kind, 0);

    for (const struct jnode *e = n->a; e; e = e->next) {
        jlist_push(jb(r), list, jeval(r, e));
    }
    return list;
}

static jval eval_dict(jrun *r, const struct jnode *n)
{
    jval dict = jdict_new(jb(r));

    for (const struct jnode *p = n->a; p; p = p->next) {
        jval key = jeval(r, p->a);

        if (!jdict_put(jb(r), dict, key, jeval(r, p->b))) {
            jfail(jb(r), -EINVAL, "a %s cannot be a dict's key", jkind_name(key));
        }
    }
    return dict;
}

static jval eval_compare(jrun *r, const struct jnode *n)
{
    jval left = jeval(r, n->a);

    for (const struct jnode *o = n->b; o; o = o->next) {
        jval right = jeval(r, o->a);

        if (!jcompare(r, o->op, left, right)) {
            return jboolean(false);
        }
        left = right;
    }
    return jboolean(true);
}

static jval eval_concat(jrun *r, const struct jnode *n)
{
    struct jbuf o = {.b = jb(r)};
    jval parts = eval_list(r, n, J_LIST);

    for (size_t i = 0; i < jlist_of(parts)->n; i++) {
        jput_str(r, &o, jlist_of(parts)->v[i]);
    }
    jstep(r, o.len / 16);
    return jbuf_done(&o);
}

static jval eval_slice(jrun *r, const struct jnode *n)
{
    jval of = jeval(r, n->a);
    jval from = n->b ? jeval(r, n->b) : jnone();
    jval to = n->c ? jeval(r, n->c) : jnone();

    return jslice(r, of, from, to, n->d ? jeval(r, n->d) : jnone());
}

static jval eval_builtin(jrun *r, const struct jnode *n, const char *kind)
{
    jval self = jeval(r, n->a);
    struct jargs a = {.what = n->name->text};

    if (!n->func) {
        jfail(jb(r), -EINVAL, "there is no %s '%.60s'", kind, n->name->text);
    }
    jargs_eval(r, n->b, &a);
    r->base.line = n->line;
    return jcall_builtin(r, n->func, self, &a);
}

static jval eval_call(jrun *r, const struct jnode *n)
{
    jval callee = jeval(r, n->a);
    struct jargs a = {.what = n->a->name ? n->a->name->text : "it"};

    jargs_eval(r, n->b, &a);
    r->base.line = n->line;
    return jcall(r, callee, &a);
}

static jval eval(jrun *r, const struct jnode *n)
{
    jval v;

    switch ((enum jnode_type)n->type) {
    case E_CONST:
        return n->value;
    case E_NAME:
        return eval_name(r, n);
    case E_TUPLE:
        return eval_list(r, n, J_TUPLE);
    case E_LIST:
        return eval_list(r, n, J_LIST);
    case E_DICT:
        return eval_dict(r, n);
    case E_COND:
        return jtruth(jeval(r, n->a)) ? jeval(r, n->b) : n->c ? jeval(r, n->c) : jundef(NULL);
    case E_OR:
        v = jeval(r, n->a);
        return jtruth(v) ? v : jeval(r, n->b);
    case E_AND:
        v = jeval(r, n->a);
        return jtruth(v) ? jeval(r, n->b) : v;
    case E_NOT:
        return jboolean(!jtruth(jeval(r, n->a)));
    case E_COMPARE:
        return eval_compare(r, n);
    case E_BINARY:
        v = jeval(r, n->a);
        return jbinary(r, n->op, v, jeval(r, n->b));
    case E_CONCAT:
        return eval_concat(r, n);
    case E_NEG:
        return jnegate(r, jeval(r, n->a));
    case E_POS:
        v = jeval(r, n->a);
        return jnegate(r, jnegate(r, v));
    case E_FILTER:
        return eval_builtin(r, n, "filter");
    case E_TEST:
        return eval_builtin(r, n, "test");
    case E_CALL:
        return eval_call(r, n);
    case E_ATTR:
        v = jeval(r, n->a);
        r->base.line = n->line;
        v = jgetattr(r, v, n->value);
        return v.kind == J_UNDEF && !v.u.p ? jundef(n->name->text) : v;
    case E_ITEM:
        v = jeval(r, n->a);
        return jgetitem(r, v, jeval(r, n->b));
    case E_SLICE:
        return eval_slice(r, n);
    case E_CURRENT:
        return r->current;
    default:
        jfail(jb(r), -EINVAL, "a statement stands where a value belongs");
    }
}

jval jeval(jrun *r, const struct jnode *n)
{
    jval v;

    jenter(r);
    r->base.line = n->line;
    v = eval(r, n);
    jleave(r);
    return v;
}

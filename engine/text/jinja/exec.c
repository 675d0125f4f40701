/* SPDX-License-Identifier: Apache-2.0 */
/* Statements. Text goes to r->out; macros, block sets and filter blocks put another buffer there
 * for as long as their body runs. */

#include <errno.h>

#include "engine/text/jinja/run.h"

jval jexec_text(jrun *r, const struct jnode *list)
{
    struct jbuf o = {.b = jb(r)};
    struct jbuf *out = r->out;

    r->out = &o;
    (void)jexec(r, list);
    r->out = out;
    return jbuf_done(&o);
}

/* ---- assignment ------------------------------------------------------------------------------ */

static void assign_tuple(jrun *r, const struct jnode *target, jval v)
{
    struct jlist *items;
    const struct jnode *one = target->a;
    size_t i = 0;

    juse(r, v);
    items = jitems(r, v);
    for (; one && i < items->n; one = one->next) {
        jassign(r, one, items->v[i++]);
    }
    if (one || i < items->n) {
        jfail(jb(r), -EINVAL, "%zu values do not fit the names on the left", items->n);
    }
}

void jassign(jrun *r, const struct jnode *target, jval v)
{
    jval ns;

    switch (target->type) {
    case E_TUPLE:
        assign_tuple(r, target, v);
        return;
    case N_NSREF:
        if (!jscope_get(r->scope, target->name, &ns) || ns.kind != J_NAMESPACE) {
            jfail(jb(r), -EINVAL, "'%.60s' is no namespace: its attributes cannot be set",
                  target->name->text);
        }
        if (jstr_of(target->value)->ptr[0] == '_') {
            jfail(jb(r), -EINVAL, "a namespace's attribute must not begin with '_'");
        }
        (void)jdict_put(jb(r), ns, target->value, v);
        return;
    default:
        jscope_set(r, r->scope, target->name, v);
    }
}

/* ---- loops ----------------------------------------------------------------------------------- */

static const struct jlist *filtered(jrun *r, const struct jnode *n, const struct jlist *items)
{
    jval kept = jlist_new(jb(r), J_LIST, 0);
    struct jscope *outer = r->scope;

    r->scope = jscope_new(r, outer);
    for (size_t i = 0; i < items->n; i++) {
        r->scope->n = 0;
        jassign(r, n->a, items->v[i]);
        if (jtruth(jeval(r, n->e))) {
            jlist_push(jb(r), kept, items->v[i]);
        }
    }
    r->scope = outer;
    return jlist_of(kept);
}

static void run_loop(jrun *r, const struct jnode *n, struct jscope *closure, jval iterable,
                     int depth0)
{
    const struct jlist *items = jitems(r, iterable);
    struct jscope *outer = r->scope;
    struct jloop *loop = jalloc(jb(r), sizeof(*loop));
    enum jflow flow = FLOW_NEXT;

    r->scope = closure;
    if (n->e) {
        items = filtered(r, n, items);
    }
    *loop = (struct jloop){.node = n, .closure = closure, .items = items, .depth0 = depth0};
    loop->changed = jptr(J_MISSING, NULL);
    for (; loop->i < items->n && flow != FLOW_BREAK; loop->i++) {
        if (loop->i == 0 || n->closes) {
            r->scope = jscope_new(r, closure);
        }
        r->scope->n = 0;
        jassign(r, n->a, items->v[loop->i]);
        jscope_set(r, r->scope, r->t->n_loop, jptr(J_LOOP, loop));
        flow = jexec(r, n->c);
    }
    if (items->n == 0 && n->d) {
        r->scope = jscope_new(r, closure);
        (void)jexec(r, n->d);
    }
    r->scope = outer;
}

jval jloop_run(jrun *r, const struct jnode *n, struct jscope *closure, jval iterable, int depth0)
{
    struct jbuf o = {.b = jb(r)};
    struct jbuf *out = r->out;

    r->out = &o;
    run_loop(r, n, closure, iterable, depth0);
    r->out = out;
    return jbuf_done(&o);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static enum jflow exec_if(jrun *r, const struct jnode *n)
{
    for (;;) {
        r->base.line = n->line;
        if (jtruth(jeval(r, n->a))) {
            return jexec(r, n->b);
        }
        if (!n->c || n->c->type != N_IF || !n->c->flag) {
            return jexec(r, n->c);
        }
        n = n->c;
    }
}

/* A body with variables of its own. */
static void exec_scope(jrun *r, const struct jnode *body, struct jscope *parent)
{
    struct jscope *outer = r->scope;

    r->scope = jscope_new(r, parent);
    (void)jexec(r, body);
    r->scope = outer;
}

static jval scope_text(jrun *r, const struct jnode *body)
{
    struct jscope *outer = r->scope;
    jval v;

    r->scope = jscope_new(r, outer);
    v = jexec_text(r, body);
    r->scope = outer;
    return v;
}

static void exec_with(jrun *r, const struct jnode *n)
{
    struct jscope *outer = r->scope;
    struct jscope *inner = jscope_new(r, outer);

    for (const struct jnode *s = n->a; s; s = s->next) {
        jval v;

        r->scope = outer;
        v = jeval(r, s->b);
        r->scope = inner;
        jassign(r, s->a, v);
    }
    r->scope = inner;
    (void)jexec(r, n->c);
    r->scope = outer;
}

static jval macro_new(jrun *r, const struct jnode *n)
{
    struct jmacro *m = jalloc(jb(r), sizeof(*m));

    *m = (struct jmacro){n, r->scope};
    return jptr(J_MACRO, m);
}

static void exec_call_block(jrun *r, const struct jnode *n)
{
    jval callee = jeval(r, n->a->a);
    struct jargs a = {.what = n->a->a->name ? n->a->a->name->text : "it"};
    struct jkwarg *kw;

    jargs_eval(r, n->a->b, &a);
    kw = jalloc_array(jb(r), a.n_kw + 1, sizeof(*kw));
    for (size_t i = 0; i < a.n_kw; i++) {
        kw[i] = a.kw[i];
    }
    kw[a.n_kw++] = (struct jkwarg){"caller", macro_new(r, n->b)};
    a.kw = kw;
    jput_str(r, r->out, jcall(r, callee, &a));
}

/* The block's text through its filters. */
static jval filtered_text(jrun *r, const struct jnode *n)
{
    jval outer = r->current;
    jval text = scope_text(r, n->c);
    jval v;

    r->current = text;
    v = jeval(r, n->b);
    r->current = outer;
    return v;
}

static enum jflow exec_one(jrun *r, const struct jnode *n)
{
    switch (n->type) {
    case N_TEXT:
        jbuf_str(r->out, jstr_of(n->value));
        break;
    case N_OUTPUT:
        jput_str(r, r->out, jeval(r, n->a));
        break;
    case N_IF:
        return exec_if(r, n);
    case N_FOR:
        run_loop(r, n, r->scope, jeval(r, n->b), 0);
        break;
    case N_SET:
        jassign(r, n->a, jeval(r, n->b));
        break;
    case N_SET_BLOCK:
        jassign(r, n->a, filtered_text(r, n));
        break;
    case N_MACRO:
        jscope_set(r, r->scope, n->name, macro_new(r, n));
        break;
    case N_CALL_BLOCK:
        exec_call_block(r, n);
        break;
    case N_FILTER_BLOCK:
        jput_str(r, r->out, filtered_text(r, n));
        break;
    case N_WITH:
        exec_with(r, n);
        break;
    case N_BLOCK:
        exec_scope(r, n->c, n->flag ? r->scope : r->top);
        break;
    case N_GENERATION:
        exec_scope(r, n->c, r->scope);
        break;
    case N_BREAK:
        return FLOW_BREAK;
    case N_CONTINUE:
        return FLOW_CONTINUE;
    default:
        jfail(jb(r), -EINVAL, "a value stands where a statement belongs");
    }
    return FLOW_NEXT;
}

enum jflow jexec(jrun *r, const struct jnode *list)
{
    enum jflow flow = FLOW_NEXT;

    jenter(r);
    for (; list && flow == FLOW_NEXT; list = list->next) {
        jstep(r, 1);
        r->base.line = list->line;
        flow = exec_one(r, list);
    }
    jleave(r);
    return flow;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions, in the order of Jinja's precedence: inline if, or, and, not, comparisons, + -, ~,
 * * / // %, **, signs, then calls, subscripts, filters and tests behind a primary. */

#include <errno.h>
#include <string.h>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/run.h"

static struct jnode *parse_unary(struct jinja *t, bool filters);

static struct jnode *two(struct jinja *t, enum jnode_type type, struct jnode *a, struct jnode *b)
{
    struct jnode *n = jnode_new(t, type);

    n->a = a;
    n->b = b;
    return n;
}

/* Left-associative chains share one depth: a template of a thousand `+` is a deep tree all the
 * same, so each link counts towards a limit of its own in the evaluator (run.h). */
static struct jnode *parse_pow(struct jinja *t)
{
    struct jnode *n = parse_unary(t, true);

    while (jparse_skip_op(t, T_POW)) {
        n = two(t, E_BINARY, n, parse_unary(t, true));
        n->op = T_POW;
    }
    return n;
}

static struct jnode *parse_product(struct jinja *t)
{
    struct jnode *n = parse_pow(t);

    while (t->tok.type == T_MUL || t->tok.type == T_DIV || t->tok.type == T_FLOORDIV ||
           t->tok.type == T_MOD) {
        enum jtoken_type op = t->tok.type;

        jparse_advance(t);
        n = two(t, E_BINARY, n, parse_pow(t));
        n->op = (uint8_t)op;
    }
    return n;
}

static struct jnode *parse_concat(struct jinja *t)
{
    struct jnode *first = parse_product(t);
    struct jnode *n;
    struct jnode **last;

    if (t->tok.type != T_TILDE) {
        return first;
    }
    n = jnode_new(t, E_CONCAT);
    n->a = first;
    last = &first->next;
    while (jparse_skip_op(t, T_TILDE)) {
        *last = parse_product(t);
        last = &(*last)->next;
    }
    return n;
}

static struct jnode *parse_sum(struct jinja *t)
{
    struct jnode *n = parse_concat(t);

    while (t->tok.type == T_ADD || t->tok.type == T_SUB) {
        enum jtoken_type op = t->tok.type;

        jparse_advance(t);
        n = two(t, E_BINARY, n, parse_concat(t));
        n->op = (uint8_t)op;
    }
    return n;
}

static bool comparison(struct jinja *t, uint8_t *op)
{
    if (t->tok.type >= T_EQ && t->tok.type <= T_LE) {
        *op = (uint8_t)t->tok.type;
        jparse_advance(t);
        return true;
    }
    if (jparse_skip(t, "in")) {
        *op = T_IN;
        return true;
    }
    if (jparse_is(t, "not")) {
        struct jtoken next = jparse_look(t);

        if (next.type == T_NAME && strcmp(next.name->text, "in") == 0) {
            jparse_advance(t);
            jparse_advance(t);
            *op = T_NOT_IN;
            return true;
        }
    }
    return false;
}

static struct jnode *parse_compare(struct jinja *t)
{
    struct jnode *first = parse_sum(t);
    struct jnode *n = NULL;
    struct jnode **last = NULL;
    uint8_t op;

    while (comparison(t, &op)) {
        struct jnode *o = jnode_new(t, N_OPERAND);

        if (!n) {
            n = two(t, E_COMPARE, first, NULL);
            last = &n->b;
        }
        o->op = op;
        o->a = parse_sum(t);
        *last = o;
        last = &o->next;
    }
    return n ? n : first;
}

static struct jnode *parse_not(struct jinja *t)
{
    struct jnode *n;

    if (!jparse_skip(t, "not")) {
        return parse_compare(t);
    }
    jparse_enter(t);
    n = two(t, E_NOT, parse_not(t), NULL);
    jparse_leave(t);
    return n;
}

static struct jnode *parse_and(struct jinja *t)
{
    struct jnode *n = parse_not(t);

    while (jparse_skip(t, "and")) {
        n = two(t, E_AND, n, parse_not(t));
    }
    return n;
}

static struct jnode *parse_or(struct jinja *t)
{
    struct jnode *n = parse_and(t);

    while (jparse_skip(t, "or")) {
        n = two(t, E_OR, n, parse_and(t));
    }
    return n;
}

/* What stands before an inline `if` was read before it was known to be a branch. Its unknown
 * filters then fail at once, Jinja's when they are reached: the difference is when, not whether. */
struct jnode *jparse_expr(struct jinja *t, bool cond)
{
    struct jnode *n;
    bool soft = t->soft;

    jparse_enter(t);
    n = parse_or(t);
    while (cond && jparse_skip(t, "if")) {
        t->soft = true;
        n = two(t, E_COND, NULL, n);
        n->a = parse_or(t);
        n->c = jparse_skip(t, "else") ? jparse_expr(t, true) : NULL;
        t->soft = soft;
    }
    jparse_leave(t);
    return n;
}

struct jnode *jparse_tuple(struct jinja *t, int how)
{
    struct jnode *tuple = jnode_new(t, E_TUPLE);
    struct jnode **last = &tuple->a;
    bool is_tuple = false;

    for (;;) {
        if (tuple->a) {
            jparse_want(t, T_COMMA, "','");
        }
        if (t->tok.type == T_VAR_END || t->tok.type == T_BLOCK_END || t->tok.type == T_RPAREN ||
            (how & TUPLE_TO_RECURSIVE && jparse_is(t, "recursive"))) {
            break;
        }
        *last = jparse_expr(t, (how & TUPLE_COND) != 0);
        last = &(*last)->next;
        if (t->tok.type != T_COMMA) {
            break;
        }
        is_tuple = true;
    }
    if (is_tuple) {
        return tuple;
    }
    if (tuple->a) {
        return tuple->a;
    }
    if (!(how & TUPLE_PARENS)) {
        jparse_unexpected(t);
    }
    return tuple;
}

/* ---- primaries ------------------------------------------------------------------------------- */

static struct jnode *constant(struct jinja *t, jval v)
{
    struct jnode *n = jnode_new(t, E_CONST);

    n->value = v;
    jparse_advance(t);
    return n;
}

static struct jnode *parse_word(struct jinja *t)
{
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    static const char *const special[] = {"varargs", "kwargs", "caller"};
    struct jnode *n;

    for (int i = 0; i < 6; i++) {
        if (jparse_is(t, words[i])) {
            return constant(t, i < 4 ? jboolean(i < 2) : jnone());
        }
    }
    for (int i = 0; i < 3; i++) {
        if (jparse_is(t, special[i])) {
            for (struct jnode *m = t->macros; m; m = m->e) {
                m->flag |= (uint8_t)(1 << i);
            }
        }
    }
    n = jnode_new(t, E_NAME);
    n->name = jparse_name(t);
    return n;
}

static struct jnode *parse_string(struct jinja *t)
{
    struct jnode *n = constant(t, t->tok.value);

    while (t->tok.type == T_STRING) {
        struct jbuf o = {.b = &t->base};

        jbuf_str(&o, jstr_of(n->value));
        jbuf_str(&o, jstr_of(t->tok.value));
        n->value = jbuf_done(&o);
        jparse_advance(t);
    }
    return n;
}

static struct jnode *parse_list(struct jinja *t)
{
    struct jnode *n = jnode_new(t, E_LIST);
    struct jnode **last = &n->a;

    jparse_advance(t);
    while (t->tok.type != T_RBRACKET) {
        if (n->a) {
            jparse_want(t, T_COMMA, "','");
            if (t->tok.type == T_RBRACKET) {
                break;
            }
        }
        *last = jparse_expr(t, true);
        last = &(*last)->next;
    }
    jparse_advance(t);
    return n;
}

static struct jnode *parse_dict(struct jinja *t)
{
    struct jnode *n = jnode_new(t, E_DICT);
    struct jnode **last = &n->a;

    jparse_advance(t);
    while (t->tok.type != T_RBRACE) {
        struct jnode *p;

        if (n->a) {
            jparse_want(t, T_COMMA, "','");
            if (t->tok.type == T_RBRACE) {
                break;
            }
        }
        p = jnode_new(t, N_PAIR);
        p->a = jparse_expr(t, true);
        jparse_want(t, T_COLON, "':'");
        p->b = jparse_expr(t, true);
        *last = p;
        last = &p->next;
    }
    jparse_advance(t);
    return n;
}

struct jnode *jparse_primary(struct jinja *t)
{
    struct jnode *n;

    switch (t->tok.type) {
    case T_NAME:
        return parse_word(t);
    case T_STRING:
        return parse_string(t);
    case T_INT:
    case T_FLOAT:
        return constant(t, t->tok.value);
    case T_LPAREN:
        jparse_advance(t);
        n = jparse_tuple(t, TUPLE_COND | TUPLE_PARENS);
        jparse_want(t, T_RPAREN, "')'");
        return n;
    case T_LBRACKET:
        return parse_list(t);
    case T_LBRACE:
        return parse_dict(t);
    default:
        jparse_unexpected(t);
    }
}

static struct jnode *parse_unary(struct jinja *t, bool filters)
{
    struct jnode *n;

    jparse_enter(t);
    if (jparse_skip_op(t, T_SUB)) {
        n = two(t, E_NEG, parse_unary(t, false), NULL);
    } else if (jparse_skip_op(t, T_ADD)) {
        n = two(t, E_POS, parse_unary(t, false), NULL);
    } else {
        n = jparse_primary(t);
    }
    n = jparse_postfix(t, n);
    if (filters) {
        n = jparse_filters(t, n, false);
    }
    jparse_leave(t);
    return n;
}

/* ---- what stands behind ---------------------------------------------------------------------- */

static struct jnode *attribute(struct jinja *t, struct jnode *of, const struct jname *name)
{
    struct jnode *n = two(t, E_ATTR, of, NULL);

    n->name = name;
    n->value = jstr_new(&t->base, name->text, name->len, MARK_TEMPLATE);
    return n;
}

static struct jnode *subscript(struct jinja *t, struct jnode *of)
{
    struct jnode *part[3] = {NULL, NULL, NULL};
    struct jnode *n;
    int at = 0;
    bool slice = false;

    while (at < 3 && t->tok.type != T_RBRACKET && t->tok.type != T_COMMA) {
        if (t->tok.type != T_COLON) {
            part[at] = jparse_expr(t, true);
        }
        if (t->tok.type != T_COLON) {
            break;
        }
        slice = true;
        at++;
        if (at < 3) {
            jparse_advance(t);
        }
    }
    n = two(t, slice ? E_SLICE : E_ITEM, of, part[0]);
    n->c = part[1];
    n->d = part[2];
    if (!slice && t->tok.type == T_COMMA && part[0]) { /* x[a, b]: a tuple as the key */
        struct jnode *tuple = two(t, E_TUPLE, part[0], NULL);
        struct jnode **last = &part[0]->next;

        while (jparse_skip_op(t, T_COMMA) && t->tok.type != T_RBRACKET) {
            *last = jparse_expr(t, true);
            last = &(*last)->next;
        }
        n->b = tuple;
    }
    if (!slice && !part[0]) {
        jparse_unexpected(t);
    }
    jparse_want(t, T_RBRACKET, "']'");
    return n;
}

struct jnode *jparse_postfix(struct jinja *t, struct jnode *n)
{
    for (;;) {
        if (jparse_skip_op(t, T_DOT)) {
            if (t->tok.type == T_INT) {
                struct jnode *i = constant(t, t->tok.value);

                n = two(t, E_ITEM, n, i);
            } else {
                n = attribute(t, n, jparse_name(t));
            }
        } else if (jparse_skip_op(t, T_LBRACKET)) {
            n = subscript(t, n);
        } else if (t->tok.type == T_LPAREN) {
            n = two(t, E_CALL, n, NULL);
            n->b = jparse_args(t);
        } else {
            return n;
        }
    }
}

struct jnode *jparse_args(struct jinja *t)
{
    struct jnode *first = NULL;
    struct jnode **last = &first;
    enum jnode_type latest = N_ARG;

    jparse_want(t, T_LPAREN, "'('");
    while (t->tok.type != T_RPAREN) {
        struct jnode *a;

        if (first) {
            jparse_want(t, T_COMMA, "','");
            if (t->tok.type == T_RPAREN) {
                break;
            }
        }
        a = jnode_new(t, N_ARG);
        if (jparse_skip_op(t, T_MUL)) {
            a->type = N_STAR;
        } else if (jparse_skip_op(t, T_POW)) {
            a->type = N_STARS;
        } else if (t->tok.type == T_NAME && jparse_look(t).type == T_ASSIGN) {
            a->type = N_KWARG;
            a->name = jparse_name(t);
            jparse_advance(t);
        }
        if (a->type == N_ARG && latest != N_ARG) {
            jfail(&t->base, -EBADMSG, "an argument without a name follows one with a name");
        }
        latest = a->type;
        a->a = jparse_expr(t, true);
        *last = a;
        last = &a->next;
    }
    jparse_advance(t);
    return first;
}

/* A filter's or test's name may have dots; ours have none, so a dotted one is unknown. */
static const struct jname *builtin_name(struct jinja *t)
{
    const struct jname *name = jparse_name(t);

    while (jparse_skip_op(t, T_DOT)) {
        name = jparse_name(t);
        name = jname_of(t, "a dotted name", 13);
    }
    return name;
}

static struct jnode *parse_test(struct jinja *t, struct jnode *of)
{
    struct jnode *n = two(t, E_TEST, of, NULL);
    bool negated = jparse_skip(t, "not");
    enum jtoken_type type;

    n->name = builtin_name(t);
    n->func = jtest_find(n->name->text);
    if (!n->func && !t->soft) {
        jfail(&t->base, -EBADMSG, "there is no test '%.60s'", n->name->text);
    }
    type = t->tok.type;
    if (type == T_LPAREN) {
        n->b = jparse_args(t);
    } else if ((type == T_NAME || type == T_STRING || type == T_INT || type == T_FLOAT ||
                type == T_LBRACKET || type == T_LBRACE) &&
               !jparse_is(t, "else") && !jparse_is(t, "or") && !jparse_is(t, "and")) {
        if (jparse_is(t, "is")) {
            jfail(&t->base, -EBADMSG, "tests cannot be chained with 'is'");
        }
        n->b = jnode_new(t, N_ARG);
        n->b->a = jparse_postfix(t, jparse_primary(t));
    }
    return negated ? two(t, E_NOT, n, NULL) : n;
}

struct jnode *jparse_filters(struct jinja *t, struct jnode *n, bool inline_first)
{
    for (;;) {
        if (inline_first || jparse_skip_op(t, T_PIPE)) {
            n = two(t, E_FILTER, n, NULL);
            n->name = builtin_name(t);
            n->func = jfilter_find(n->name->text);
            if (!n->func && !t->soft) {
                jfail(&t->base, -EBADMSG, "there is no filter '%.60s'", n->name->text);
            }
            n->b = t->tok.type == T_LPAREN ? jparse_args(t) : NULL;
            inline_first = false;
        } else if (n->type != E_CURRENT && jparse_skip(t, "is")) {
            n = parse_test(t, n);
        } else if (t->tok.type == T_LPAREN && n->type != E_CURRENT) {
            n = two(t, E_CALL, n, NULL);
            n->b = jparse_args(t);
        } else {
            return n;
        }
    }
}

/* ---- targets --------------------------------------------------------------------------------- */

static struct jnode *target_one(struct jinja *t, bool ns)
{
    struct jnode *n;

    if (jparse_skip_op(t, T_LPAREN)) {
        jparse_enter(t);
        n = jparse_target(t, true, ns);
        jparse_leave(t);
        jparse_want(t, T_RPAREN, "')'");
        return n;
    }
    n = jnode_new(t, E_NAME);
    for (const char *const *w =
             (const char *const[]){"true", "True", "false", "False", "none", "None", NULL};
         *w; w++) {
        if (jparse_is(t, *w)) {
            jfail(&t->base, -EBADMSG, "cannot assign to '%s'", *w);
        }
    }
    n->name = jparse_name(t);
    if (ns && jparse_skip_op(t, T_DOT)) {
        const struct jname *attr = jparse_name(t);

        n->type = N_NSREF;
        n->value = jstr_new(&t->base, attr->text, attr->len, MARK_TEMPLATE);
    }
    return n;
}

struct jnode *jparse_target(struct jinja *t, bool tuple, bool ns)
{
    struct jnode *n = target_one(t, ns);
    struct jnode *list;
    struct jnode **last;

    if (!tuple || t->tok.type != T_COMMA) {
        return n;
    }
    list = two(t, E_TUPLE, n, NULL);
    last = &n->next;
    while (jparse_skip_op(t, T_COMMA)) {
        if (t->tok.type != T_NAME && t->tok.type != T_LPAREN) {
            break;
        }
        if (jparse_is(t, "in")) {
            break;
        }
        *last = target_one(t, ns);
        last = &(*last)->next;
    }
    return list;
}

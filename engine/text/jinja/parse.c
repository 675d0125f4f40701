/* SPDX-License-Identifier: Apache-2.0 */
/* Statements. The grammar is Jinja 3.1's without what needs other files (extends, include, import)
 * and with transformers' generation blocks. Depth is counted, so a template cannot exhaust the
 * stack. */

#include <errno.h>
#include <string.h>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/run.h"

const struct jname *jname_of(struct jinja *t, const char *s, size_t len)
{
    size_t bucket = siphash(&t->base.key, s, len) % JINJA_BUCKETS;
    struct jname *n = t->names[bucket];

    while (n && !(n->len == len && memcmp(n->text, s, len) == 0)) {
        n = n->next;
    }
    if (!n) {
        n = jalloc(&t->base, sizeof(*n) + len + 1);
        n->len = (uint32_t)len;
        memcpy(n->text, s, len);
        n->next = t->names[bucket];
        t->names[bucket] = n;
    }
    return n;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

void jparse_advance(struct jinja *t)
{
    t->tok = t->has_ahead ? t->ahead : jlex_next(t);
    t->has_ahead = false;
    t->base.line = t->tok.line;
}

struct jtoken jparse_look(struct jinja *t)
{
    if (!t->has_ahead) {
        t->ahead = jlex_next(t);
        t->has_ahead = true;
    }
    return t->ahead;
}

bool jparse_is(const struct jinja *t, const char *name)
{
    return t->tok.type == T_NAME && strcmp(t->tok.name->text, name) == 0;
}

bool jparse_skip(struct jinja *t, const char *name)
{
    if (!jparse_is(t, name)) {
        return false;
    }
    jparse_advance(t);
    return true;
}

bool jparse_skip_op(struct jinja *t, enum jtoken_type type)
{
    if (t->tok.type != type) {
        return false;
    }
    jparse_advance(t);
    return true;
}

void jparse_unexpected(struct jinja *t)
{
    static const char *const names[] = {
        [T_EOF] = "the end of the template",
        [T_TEXT] = "text",
        [T_VAR_BEGIN] = "'{{'",
        [T_VAR_END] = "'}}'",
        [T_BLOCK_BEGIN] = "'{%'",
        [T_BLOCK_END] = "'%}'",
        [T_STRING] = "a string",
        [T_INT] = "an integer",
        [T_FLOAT] = "a number",
        [T_ADD] = "'+'",
        [T_SUB] = "'-'",
        [T_MUL] = "'*'",
        [T_DIV] = "'/'",
        [T_FLOORDIV] = "'//'",
        [T_MOD] = "'%'",
        [T_POW] = "'**'",
        [T_TILDE] = "'~'",
        [T_LBRACKET] = "'['",
        [T_RBRACKET] = "']'",
        [T_LPAREN] = "'('",
        [T_RPAREN] = "')'",
        [T_LBRACE] = "'{'",
        [T_RBRACE] = "'}'",
        [T_EQ] = "'=='",
        [T_NE] = "'!='",
        [T_GT] = "'>'",
        [T_GE] = "'>='",
        [T_LT] = "'<'",
        [T_LE] = "'<='",
        [T_ASSIGN] = "'='",
        [T_DOT] = "'.'",
        [T_COLON] = "':'",
        [T_PIPE] = "'|'",
        [T_COMMA] = "','",
        [T_SEMICOLON] = "';'",
    };

    t->base.line = t->tok.line;
    if (t->tok.type == T_NAME) {
        jfail(&t->base, -EBADMSG, "unexpected '%.60s'", t->tok.name->text);
    }
    jfail(&t->base, -EBADMSG, "unexpected %s", names[t->tok.type]);
}

void jparse_want(struct jinja *t, enum jtoken_type type, const char *what)
{
    if (t->tok.type != type) {
        if (t->tok.type == T_EOF) {
            jfail(&t->base, -EBADMSG, "%s is missing at the end of the template", what);
        }
        jparse_unexpected(t);
    }
    jparse_advance(t);
}

const struct jname *jparse_name(struct jinja *t)
{
    const struct jname *n = t->tok.name;

    jparse_want(t, T_NAME, "a name");
    return n;
}

struct jnode *jnode_new(struct jinja *t, enum jnode_type type)
{
    struct jnode *n = jalloc(&t->base, sizeof(*n));

    n->type = (uint8_t)type;
    n->line = t->tok.line;
    return n;
}

void jparse_enter(struct jinja *t)
{
    if (++t->depth > JINJA_MAX_DEPTH) {
        jfail(&t->base, -E2BIG, "it is nested more than %d levels deep", (int)JINJA_MAX_DEPTH);
    }
}

void jparse_leave(struct jinja *t)
{
    t->depth--;
}

/* ---- statements ------------------------------------------------------------------------------ */

static struct jnode *body_until(struct jinja *t, const char *end1, const char *end2,
                                const char *end3);

/* The body of a block tag whose own words are read: up to the tag that begins with an end word,
 * which is left as the current token. */
static struct jnode *block_body(struct jinja *t, const char *end1, const char *end2,
                                const char *end3)
{
    struct jnode *n;

    (void)jparse_skip_op(t, T_COLON);
    jparse_want(t, T_BLOCK_END, "'%}'");
    jparse_enter(t);
    n = body_until(t, end1, end2, end3);
    jparse_leave(t);
    return n;
}

/* The same for a body with its own variables, whose unknown filters count at once. */
static struct jnode *scope_body(struct jinja *t, const char *end1, const char *end2)
{
    bool soft = t->soft;
    struct jnode *n;

    t->soft = false;
    n = block_body(t, end1, end2, NULL);
    t->soft = soft;
    return n;
}

/* An elif is an N_IF, flagged, as the whole else of the one before it. */
static struct jnode *parse_if(struct jinja *t)
{
    bool soft = t->soft;
    struct jnode *first = jnode_new(t, N_IF);
    struct jnode *n = first;

    t->soft = true;
    for (;;) {
        n->a = jparse_tuple(t, 0);
        n->b = block_body(t, "elif", "else", "endif");
        if (!jparse_skip(t, "elif")) {
            break;
        }
        n->c = jnode_new(t, N_IF);
        n = n->c;
        n->flag = 1;
    }
    if (jparse_skip(t, "else")) {
        n->c = block_body(t, "endif", NULL, NULL);
    }
    jparse_advance(t);
    t->soft = soft;
    return first;
}

static struct jnode *parse_for(struct jinja *t)
{
    struct jnode *n = jnode_new(t, N_FOR);
    bool soft = t->soft;

    n->a = jparse_target(t, true, false);
    if (!jparse_skip(t, "in")) {
        jparse_unexpected(t);
    }
    n->b = jparse_tuple(t, TUPLE_TO_RECURSIVE);
    t->soft = false;
    n->e = jparse_skip(t, "if") ? jparse_expr(t, true) : NULL;
    n->flag = jparse_skip(t, "recursive");
    n->value.u.p = t->fors;
    t->fors = n;
    t->loops++;
    n->c = scope_body(t, "endfor", "else");
    t->loops--;
    t->fors = n->value.u.p;
    if (jparse_skip(t, "else")) {
        n->d = scope_body(t, "endfor", NULL);
    }
    t->soft = soft;
    jparse_advance(t);
    return n;
}

static struct jnode *parse_set(struct jinja *t)
{
    struct jnode *n = jnode_new(t, N_SET);

    n->a = jparse_target(t, true, true);
    if (jparse_skip_op(t, T_ASSIGN)) {
        n->b = jparse_tuple(t, TUPLE_COND);
        return n;
    }
    n->type = N_SET_BLOCK;
    n->b = jparse_filters(t, jnode_new(t, E_CURRENT), false);
    n->c = scope_body(t, "endset", NULL);
    jparse_advance(t);
    return n;
}

static struct jnode *parse_params(struct jinja *t)
{
    struct jnode *first = NULL;
    struct jnode **last = &first;
    bool defaults = false;

    jparse_want(t, T_LPAREN, "'('");
    while (t->tok.type != T_RPAREN) {
        struct jnode *p = jnode_new(t, N_PARAM);

        if (first) {
            jparse_want(t, T_COMMA, "','");
            if (t->tok.type == T_RPAREN) {
                break; /* Jinja takes no comma there, but nobody means anything else by it */
            }
        }
        p->name = jparse_name(t);
        if (jparse_skip_op(t, T_ASSIGN)) {
            p->a = jparse_expr(t, true);
            defaults = true;
        } else if (defaults) {
            jfail(&t->base, -EBADMSG, "a parameter without a default follows one with a default");
        }
        *last = p;
        last = &p->next;
    }
    jparse_advance(t);
    return first;
}

/* Parameters are read: the body. */
static void macro_body(struct jinja *t, struct jnode *n, const char *end)
{
    int loops = t->loops;

    for (struct jnode *f = t->fors; f; f = f->value.u.p) {
        f->closes = true;
    }
    n->e = t->macros;
    t->macros = n;
    t->loops = 0;
    n->c = scope_body(t, end, NULL);
    t->loops = loops;
    t->macros = n->e;
    n->e = NULL;
    jparse_advance(t);
}

static struct jnode *parse_macro(struct jinja *t)
{
    struct jnode *n = jnode_new(t, N_MACRO);

    n->name = jparse_name(t);
    n->a = parse_params(t);
    macro_body(t, n, "endmacro");
    return n;
}

static struct jnode *parse_call(struct jinja *t)
{
    struct jnode *n = jnode_new(t, N_CALL_BLOCK);
    struct jnode *m = jnode_new(t, N_MACRO);

    m->name = jname_of(t, "caller", 6);
    m->a = t->tok.type == T_LPAREN ? parse_params(t) : NULL;
    n->a = jparse_expr(t, true);
    if (n->a->type != E_CALL) {
        jfail(&t->base, -EBADMSG, "a call block needs a call");
    }
    macro_body(t, m, "endcall");
    n->b = m;
    return n;
}

static struct jnode *parse_filter(struct jinja *t)
{
    struct jnode *n = jnode_new(t, N_FILTER_BLOCK);

    n->b = jparse_filters(t, jnode_new(t, E_CURRENT), true);
    n->c = scope_body(t, "endfilter", NULL);
    jparse_advance(t);
    return n;
}

static struct jnode *parse_with(struct jinja *t)
{
    struct jnode *n = jnode_new(t, N_WITH);
    struct jnode **last = &n->a;

    while (t->tok.type != T_BLOCK_END) {
        struct jnode *s = jnode_new(t, N_SET);

        if (n->a) {
            jparse_want(t, T_COMMA, "','");
        }
        s->a = jparse_target(t, true, false);
        jparse_want(t, T_ASSIGN, "'='");
        s->b = jparse_expr(t, true);
        *last = s;
        last = &s->next;
    }
    n->c = scope_body(t, "endwith", NULL);
    jparse_advance(t);
    return n;
}

static struct jnode *parse_block(struct jinja *t)
{
    struct jnode *n = jnode_new(t, N_BLOCK);
    int loops = t->loops;

    n->name = jparse_name(t);
    n->flag = jparse_skip(t, "scoped");
    (void)jparse_skip(t, "required");
    t->loops = 0;
    n->c = scope_body(t, "endblock", NULL);
    t->loops = loops;
    jparse_advance(t);
    (void)jparse_skip(t, n->name->text);
    return n;
}

static struct jnode *parse_output(struct jinja *t)
{
    struct jnode *n = jnode_new(t, N_OUTPUT);

    n->a = jparse_tuple(t, TUPLE_COND);
    return n;
}

/* {% print a, b %} writes one after the other. */
static struct jnode *parse_print(struct jinja *t)
{
    struct jnode *n = jnode_new(t, N_OUTPUT);
    struct jnode **last;

    n->a = jnode_new(t, E_CONCAT);
    last = &n->a->a;
    do {
        *last = jparse_expr(t, true);
        last = &(*last)->next;
    } while (jparse_skip_op(t, T_COMMA));
    return n;
}

static struct jnode *parse_generation(struct jinja *t)
{
    struct jnode *n = jnode_new(t, N_GENERATION);
    int loops = t->loops;

    t->loops = 0;
    n->c = scope_body(t, "endgeneration", NULL);
    t->loops = loops;
    jparse_advance(t);
    return n;
}

static struct jnode *parse_break(struct jinja *t, enum jnode_type type)
{
    if (t->loops == 0) {
        jfail(&t->base, -EBADMSG, "a break or continue outside a loop");
    }
    return jnode_new(t, type);
}

static struct jnode *statement(struct jinja *t)
{
    static const struct {
        const char *word;
        struct jnode *(*parse)(struct jinja *t);
    } words[] = {{"if", parse_if},       {"for", parse_for},
                 {"set", parse_set},     {"macro", parse_macro},
                 {"call", parse_call},   {"filter", parse_filter},
                 {"with", parse_with},   {"block", parse_block},
                 {"print", parse_print}, {"generation", parse_generation}};
    const struct jname *word = t->tok.name;

    if (t->tok.type != T_NAME) {
        jparse_unexpected(t);
    }
    jparse_advance(t);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(word->text, words[i].word) == 0) {
            return words[i].parse(t);
        }
    }
    if (strcmp(word->text, "break") == 0 || strcmp(word->text, "continue") == 0) {
        return parse_break(t, word->text[0] == 'b' ? N_BREAK : N_CONTINUE);
    }
    jfail(&t->base, -EBADMSG, "there is no statement '%.60s' here", word->text);
}

static bool is_end(const struct jinja *t, const char *end)
{
    return end && jparse_is(t, end);
}

static struct jnode *body_until(struct jinja *t, const char *end1, const char *end2,
                                const char *end3)
{
    struct jnode *first = NULL;
    struct jnode **last = &first;

    for (;;) {
        struct jnode *n;

        if (t->tok.type == T_EOF) {
            if (end1) {
                jfail(&t->base, -EBADMSG, "'%s' is missing at the end of the template",
                      end3 ? end3 : end1);
            }
            return first;
        }
        if (t->tok.type == T_TEXT) {
            n = jnode_new(t, N_TEXT);
            n->value = t->tok.value;
            jparse_advance(t);
        } else if (jparse_skip_op(t, T_VAR_BEGIN)) {
            n = parse_output(t);
            jparse_want(t, T_VAR_END, "'}}'");
        } else {
            jparse_want(t, T_BLOCK_BEGIN, "'{%'");
            if (is_end(t, end1) || is_end(t, end2) || is_end(t, end3)) {
                return first;
            }
            n = statement(t);
            jparse_want(t, T_BLOCK_END, "'%}'");
        }
        *last = n;
        last = &n->next;
    }
}

void jparse(struct jinja *t)
{
    jparse_advance(t);
    t->body = body_until(t, NULL, NULL, NULL);
}

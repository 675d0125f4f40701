/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_JINJA_AST_H
#define PIPIT_ENGINE_TEXT_JINJA_AST_H

/* Tokens and the syntax tree. One struct serves all nodes: what a, b, c, d hold stands beside each
 * type. Lists hang together by `next`. Names are interned: equal names are the same pointer. */

#include "engine/text/jinja/value.h"

struct jname {
    struct jname *next; /* in its bucket */
    uint32_t len;
    char text[];
};

enum jnode_type {
    /* statements */
    N_TEXT,        /* value */
    N_OUTPUT,      /* a: expression */
    N_IF,          /* a: test, b: body, c: else (an elif is an N_IF in it) */
    N_FOR,         /* a: target, b: iterable, c: body, d: else, e: test; flag: recursive */
    N_SET,         /* a: target, b: expression */
    N_SET_BLOCK,   /* a: target, b: filters around E_CURRENT, c: body */
    N_MACRO,       /* name, a: parameters, c: body; flag: enum jmacro_uses */
    N_CALL_BLOCK,  /* a: E_CALL, b: N_MACRO, the caller */
    N_FILTER_BLOCK, /* b: filters around E_CURRENT, c: body */
    N_WITH,        /* a: N_SETs, c: body */
    N_BLOCK,       /* name, c: body; flag: scoped */
    N_GENERATION,  /* c: body */
    N_BREAK,
    N_CONTINUE,
    /* expressions */
    E_CONST, /* value */
    E_NAME,  /* name */
    E_TUPLE, /* a: elements */
    E_LIST,
    E_DICT,    /* a: N_PAIRs */
    E_COND,    /* a: test, b: yes, c: no or NULL */
    E_OR,      /* a, b */
    E_AND,
    E_NOT,     /* a */
    E_COMPARE, /* a: first, b: N_OPERANDs */
    E_BINARY,  /* a, b; op */
    E_CONCAT,  /* a: parts */
    E_NEG,     /* a */
    E_POS,
    E_FILTER,  /* a: value, b: arguments, name; func: struct jbuiltin, NULL: unknown */
    E_TEST,
    E_CALL,    /* a: callee, b: arguments */
    E_ATTR,    /* a, name, value: the name as a string */
    E_ITEM,    /* a, b: index */
    E_SLICE,   /* a, b: from, c: to, d: step; each may be NULL */
    E_CURRENT, /* the text that a block's filters work on */
    /* parts */
    N_PARAM,   /* name, a: default or NULL */
    N_PAIR,    /* a: key, b: value */
    N_OPERAND, /* op, a */
    N_ARG,     /* a */
    N_KWARG,   /* name, a */
    N_STAR,    /* a */
    N_STARS,
    N_NSREF,   /* a target: name `.` value */
};

enum jmacro_uses { USES_VARARGS = 1, USES_KWARGS = 2, USES_CALLER = 4 };

enum jtoken_type {
    T_EOF,
    T_TEXT,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    /* operators; also node.op */
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
    T_IN,
    T_NOT_IN,
};

struct jtoken {
    enum jtoken_type type;
    uint32_t line;
    jval value;               /* T_TEXT, T_STRING, numbers */
    const struct jname *name; /* T_NAME */
};

struct jnode {
    uint8_t type;
    uint8_t op;
    uint8_t flag;
    bool closes; /* N_FOR: a macro in its body keeps the iteration's variables alive */
    uint32_t line;
    struct jnode *next;
    struct jnode *a, *b, *c, *d, *e;
    const struct jname *name;
    const void *func;
    jval value;
};

enum { JINJA_BUCKETS = 256, JINJA_MAX_DEPTH = 100 /* of nested syntax */ };

struct jinja {
    struct jbase base;
    const char *source; /* line ends are \n, the last one is gone */
    size_t len;
    struct jname *names[JINJA_BUCKETS];
    struct jnode *body;
    const struct jname *n_loop, *n_caller, *n_varargs, *n_kwargs;
    /* while it is read */
    size_t pos;
    uint32_t lex_line;
    int state;          /* where the lexer is: lex.c */
    bool line_starting; /* nothing stands before `pos` in its line */
    bool data_done;
    char open[JINJA_MAX_DEPTH]; /* brackets */
    int n_open;
    struct jtoken tok;
    struct jtoken ahead;
    bool has_ahead;
    int depth;
    int loops;
    bool soft; /* in a branch: an unknown filter fails when it is reached, not now */
    struct jnode *macros; /* the ones around, linked by e */
    struct jnode *fors;   /* the loops around, linked by value.u.p */
};

const struct jname *jname_of(struct jinja *t, const char *s, size_t len);

/* lex.c */
void jlex_start(struct jinja *t, const char *source, size_t len);
struct jtoken jlex_next(struct jinja *t);

/* parse.c and parse_expr.c */
void jparse(struct jinja *t);
void jparse_advance(struct jinja *t);
bool jparse_is(const struct jinja *t, const char *name);  /* is the token this name? */
bool jparse_skip(struct jinja *t, const char *name);      /* and then past it */
bool jparse_skip_op(struct jinja *t, enum jtoken_type type);
void jparse_want(struct jinja *t, enum jtoken_type type, const char *what);
const struct jname *jparse_name(struct jinja *t);
struct jtoken jparse_look(struct jinja *t); /* the token behind the current one */
_Noreturn void jparse_unexpected(struct jinja *t);
struct jnode *jnode_new(struct jinja *t, enum jnode_type type);
void jparse_enter(struct jinja *t);
void jparse_leave(struct jinja *t);

struct jnode *jparse_expr(struct jinja *t, bool cond);
enum { TUPLE_COND = 1, TUPLE_PARENS = 2, TUPLE_TO_RECURSIVE = 4 };
struct jnode *jparse_tuple(struct jinja *t, int how);
struct jnode *jparse_primary(struct jinja *t);
struct jnode *jparse_postfix(struct jinja *t, struct jnode *n);
struct jnode *jparse_filters(struct jinja *t, struct jnode *n, bool inline_first);
struct jnode *jparse_args(struct jinja *t); /* from "(" on */
/* A for's, set's or with's target: names, ns.names, tuples of them. */
struct jnode *jparse_target(struct jinja *t, bool tuple, bool ns);

#endif

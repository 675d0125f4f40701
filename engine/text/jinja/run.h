/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_JINJA_RUN_H
#define PIPIT_ENGINE_TEXT_JINJA_RUN_H

/* A run: the evaluator and what it calls; for the files of this folder only. All functions leave by
 * jfail on a failure (value.h) and otherwise return a value. */

#include "engine/text/jinja/ast.h"

/* Levels of the evaluator's recursion, some 8 for each call of a macro. */
enum { JINJA_MAX_EVAL = 1000, JINJA_MAX_RANGE = 100000 };

struct jvar {
    const struct jname *name;
    jval v;
};
struct jscope {
    struct jscope *parent;
    struct jvar *vars;
    size_t n;
    size_t cap;
};

struct jinja_run {
    struct jbase base;
    const struct jinja *t;
    uint64_t steps_left;
    int64_t now;
    struct jscope *context; /* the caller's variables */
    struct jscope *top;     /* what the template sets outside loops and macros */
    struct jscope *scope;
    struct jbuf *out;
    jval current; /* E_CURRENT */
    int depth;
};

struct jkwarg {
    const char *name;
    jval v;
};
struct jargs {
    const char *what; /* who is called, for messages */
    jval *v;
    size_t n;
    struct jkwarg *kw;
    size_t n_kw;
};

/* `self`: the value before the filter, test or dot; J_MISSING for a global function. */
typedef jval jfunc(jrun *r, jval self, struct jargs *a);
/* `call` NULL: Python has it, the sandbox forbids it, or nobody's template uses it (`why`). */
struct jbuiltin {
    const char *name;
    jfunc *call;
    const char *why;
};
struct jbound { /* J_METHOD */
    const struct jbuiltin *b;
    jval self;
};
struct jmacro { /* J_MACRO */
    const struct jnode *node;
    struct jscope *closure;
};
struct jloop { /* J_LOOP */
    const struct jnode *node;
    struct jscope *closure;
    const struct jlist *items;
    size_t i;
    int depth0;
    jval changed; /* J_MISSING: loop.changed was not asked */
};
struct jcycler { /* J_CYCLER: cycler and joiner */
    struct jlist *items;
    size_t i;
    bool joiner;
};

enum jflow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static inline struct jbase *jb(jrun *r)
{
    return &r->base;
}

static inline void jstep(jrun *r, uint64_t n)
{
    if (n >= r->steps_left) {
        jfail(&r->base, -7 /* E2BIG */, "it takes too many steps");
    }
    r->steps_left -= n;
}

/* exec.c */
enum jflow jexec(jrun *r, const struct jnode *list);
jval jexec_text(jrun *r, const struct jnode *list); /* what it writes, as a string */
void jassign(jrun *r, const struct jnode *target, jval v);
jval jloop_run(jrun *r, const struct jnode *node, struct jscope *closure, jval iterable,
               int depth0);

/* scope.c */
struct jscope *jscope_new(jrun *r, struct jscope *parent);
void jscope_set(jrun *r, struct jscope *s, const struct jname *name, jval v);
bool jscope_get(const struct jscope *s, const struct jname *name, jval *ret);

/* eval.c */
jval jeval(jrun *r, const struct jnode *n);
void jenter(jrun *r); /* one level of recursion */
void jleave(jrun *r);

/* call.c */
void jargs_eval(jrun *r, const struct jnode *list, struct jargs *ret);
jval jcall(jrun *r, jval callee, struct jargs *a);
jval jcall_builtin(jrun *r, const struct jbuiltin *b, jval self, struct jargs *a);
/* Arguments by position or name. `names`: "a,b,c". What is not given is J_MISSING. */
void jargs_take(jrun *r, struct jargs *a, const char *names, size_t n_required, jval *ret);
jval jbind(jrun *r, const struct jbuiltin *b, jval self);

/* op.c */
jval jbinary(jrun *r, enum jtoken_type op, jval a, jval b);
bool jcompare(jrun *r, enum jtoken_type op, jval a, jval b);
bool jcontains(jrun *r, jval in, jval what);
jval jnegate(jrun *r, jval v);

/* attr.c */
jval jgetattr(jrun *r, jval of, jval name);  /* x.name */
jval jgetitem(jrun *r, jval of, jval index); /* x[index] */
jval jslice(jrun *r, jval of, jval from, jval to, jval step);
/* By a path as filters take it: "a.b.0", or an int, an index. `otherwise`, unless none or missing,
 * stands for what is undefined on the way. */
jval jgetpath(jrun *r, jval of, jval path, jval otherwise);
jval jview_at(jrun *r, const struct jdict *d, enum jview view, size_t i);

/* iter.c */
/* All elements; fails where there can be none. The list may be the value's own: do not change
 * it. */
struct jlist *jitems(jrun *r, jval v);
bool jiterable(jval v);
jval jiterator(jrun *r, struct jlist *items); /* J_ITER */
void jsort(jrun *r, jval *v, jval *keys, size_t n, bool reverse);
jval jfold(jrun *r, jval v); /* a string in lower case, else the value */

/* repr.c */
jval jto_str(jrun *r, jval v);            /* str(v); a string stays what it is */
void jput_str(jrun *r, struct jbuf *o, jval v);
void jput_repr(jrun *r, struct jbuf *o, jval v);
size_t jfloat_text(double f, char text[40]); /* repr */
void juse(jrun *r, jval v);                  /* fails on an undefined value */
const char *jsafe(jrun *r, jval str);        /* for messages: without bytes of users */
int64_t jwant_int(jrun *r, jval v, const char *what);
struct jstr *jwant_str(jrun *r, jval v, const char *what);

/* json.c */
jval jfilter_tojson(jrun *r, jval self, struct jargs *a);

/* format.c, format_spec.c */
jval jformat_percent(jrun *r, const struct jstr *format, jval args);
jval jmethod_format(jrun *r, jval self, struct jargs *a);
/* One value by a format specification such as ">8.2f". */
void jformat_spec(jrun *r, struct jbuf *o, jval v, const struct jstr *spec);
void jformat_number(jrun *r, struct jbuf *o, jval v, char conversion, int flags, int64_t width,
                    int64_t precision);
enum { F_LEFT = 1, F_ZERO = 2, F_PLUS = 4, F_SPACE = 8, F_ALT = 16, F_COMMA = 32 };

/* tables */
const struct jbuiltin *jfilter_find(const char *name);
const struct jbuiltin *jtest_find(const char *name);
const struct jbuiltin *jmethod_find(jval v, const struct jstr *name);
const struct jbuiltin *jglobal_find(const char *name);
extern const struct jbuiltin jfilters_text[], jfilters_list[], jfilters_value[], jtests[];
extern const struct jbuiltin jmethods_str[], jmethods_find[], jmethods_case[], jmethods_list[];
extern const struct jbuiltin jmethods_tuple[], jmethods_dict[], jmethods_cycler[];
extern const struct jbuiltin jmethods_joiner[], jmethods_loop[], jglobals[];

/* method_case.c */
enum jcase { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_SWAP };
jval jstr_case(jrun *r, const struct jstr *s, enum jcase how);
/* method_str.c: Python's of the same names. `chars` NULL: white space. */
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
jval jstr_strip(jrun *r, const struct jstr *s, const struct jstr *chars, int sides);
jval jstr_replace(jrun *r, const struct jstr *s, const struct jstr *from, const struct jstr *to,
                  int64_t count);
jval jstr_lines(jrun *r, const struct jstr *s, bool keep_ends);
jval jstr_escape(jrun *r, jval v); /* HTML; the result is markup */

#endif

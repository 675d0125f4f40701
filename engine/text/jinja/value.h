/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_JINJA_VALUE_H
#define PIPIT_ENGINE_TEXT_JINJA_VALUE_H

/* Values of the template language and the memory they live in; for the files of this folder only.
 *
 * All memory of a compilation or a run is one arena: nothing is freed in between, so a failure may
 * leave from anywhere. It does so by longjmp to the entry point (jinja.c), which lets 300 small
 * functions return values instead of codes. Nothing in this folder may hold a lock or memory of its
 * own across a call that can fail.
 *
 * Strings, tuples, lists and dicts do not change once another value can see them (Python's
 * immutable sandbox forbids what would), so values share them freely and no cycle can arise. */

#include <setjmp.h>
#include <stdarg.h>

#include "base/siphash.h"
#include "engine/text/jinja/jinja.h"

/* ---- memory and failure: mem.c --------------------------------------------------------------- */

struct jchunk;
struct jbase {
    struct jchunk *chunks;
    size_t held;  /* bytes of all chunks */
    size_t limit; /* of `held` */
    jmp_buf out;
    int code;
    uint32_t line; /* of the template, for messages */
    struct error *reterr;
    struct siphash_key key; /* of all dicts */
};

void *jalloc(struct jbase *b, size_t n);                      /* zeroed, aligned; never NULL */
void *jalloc_array(struct jbase *b, size_t n, size_t size);
/* Grows a block in place where it is the newest, else copies. */
void *jgrow(struct jbase *b, void *p, size_t old, size_t n);
void jmem_finish(struct jbase *b);
/* Leaves to b->out. The text gets "chat template, line N: " before it. */
_Noreturn void jfail(struct jbase *b, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* ---- values ---------------------------------------------------------------------------------- */

enum jkind {
    J_UNDEF, /* u.p: why, for the message when it is used; NULL: no words */
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_RANGE,
    J_VIEW, /* sub: enum jview, of the dict in u.p */
    J_ITER, /* a Python generator: can be walked once, has no length */
    J_NAMESPACE,
    J_LOOP,
    J_MACRO,
    J_METHOD, /* a bound method or builtin */
    J_CYCLER,
    J_MISSING, /* an argument that was not given */
};
enum jview { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS };

typedef struct jinja_value jval;

enum jmark { MARK_TEMPLATE, MARK_USER, MARK_MIXED };

struct jstr {
    const char *ptr;
    const uint8_t *marks; /* (len) with MARK_MIXED: enum jmark of each byte */
    size_t len;
    uint8_t mark;
    bool markup; /* Markup of the filter `safe`: what is added to it is escaped */
};

struct jlist { /* also tuples and iterators */
    jval *v;
    size_t n;
    size_t cap;
    size_t pos; /* iterators */
    uint32_t depth;
};

struct jentry {
    jval key;
    jval val;
    uint64_t hash;
};
struct jdict {
    struct jentry *e; /* (n) in order of insertion */
    uint32_t *index;  /* (mask + 1) entry + 1; NULL while small */
    size_t n;
    size_t cap;
    size_t mask;
    const struct siphash_key *key;
    uint32_t depth;
};

struct jrange {
    int64_t start;
    int64_t step;
    int64_t n;
};

struct jinja_run; /* run.h */
typedef struct jinja_run jrun;

static inline struct jstr *jstr_of(jval v)
{
    return v.u.p;
}
static inline struct jlist *jlist_of(jval v)
{
    return v.u.p;
}
static inline struct jdict *jdict_of(jval v)
{
    return v.u.p;
}
static inline jval jptr(enum jkind kind, void *p)
{
    return (jval){.kind = (uint8_t)kind, .u.p = p};
}
static inline jval jint(int64_t i)
{
    return (jval){.kind = J_INT, .u.i = i};
}
static inline jval jfloat(double f)
{
    return (jval){.kind = J_FLOAT, .u.f = f};
}
static inline jval jboolean(bool b)
{
    return (jval){.kind = J_BOOL, .u.b = b};
}
static inline jval jundef(const char *why)
{
    return (jval){.kind = J_UNDEF, .u.p = (void *)(uintptr_t)why};
}
static inline jval jnone(void)
{
    return (jval){.kind = J_NONE};
}

/* ---- strings: str.c -------------------------------------------------------------------------- */

jval jstr_new(struct jbase *b, const char *s, size_t len, enum jmark mark); /* copies */
jval jstr_static(struct jbase *b, const char *s);                           /* a literal of ours */
jval jstr_cut(struct jbase *b, const struct jstr *s, size_t from, size_t to); /* bytes; shares */
bool jstr_eq(const struct jstr *a, const struct jstr *b);
bool jstr_is(const struct jstr *a, const char *b);
int jstr_cmp(const struct jstr *a, const struct jstr *b); /* by code points */
size_t jstr_chars(const struct jstr *s);
/* Bytes of the character at `at`, at least 1: a byte that is no UTF-8 counts as one. */
size_t jstr_step(const struct jstr *s, size_t at);
size_t jstr_offset(const struct jstr *s, size_t chars); /* byte offset of a character */
/* First match in [from, to), or SIZE_MAX. */
size_t jstr_find(const struct jstr *s, const struct jstr *what, size_t from, size_t to);
size_t jstr_rfind(const struct jstr *s, const struct jstr *what, size_t from, size_t to);
enum jmark jstr_mark_at(const struct jstr *s, size_t at);

/* A string under construction. */
struct jbuf {
    struct jbase *b;
    char *p;
    uint8_t *marks; /* NULL while all bytes have the mark `mark` */
    size_t len;
    size_t cap;
    size_t cap_marks;
    size_t max; /* 0: no limit but memory's */
    uint8_t mark;
};
void jbuf_put(struct jbuf *o, const char *s, size_t len, enum jmark mark);
void jbuf_cut(struct jbuf *o, const struct jstr *s, size_t from, size_t to);
void jbuf_str(struct jbuf *o, const struct jstr *s);
void jbuf_ascii(struct jbuf *o, const char *s, enum jmark mark);
void jbuf_char(struct jbuf *o, uint32_t code, enum jmark mark); /* as UTF-8 */
jval jbuf_done(struct jbuf *o);

/* ---- characters: unicode.c ------------------------------------------------------------------- */

/* The character at s; 0xdc00 + byte where there is no UTF-8. */
uint32_t juni_at(const char *s, size_t len, size_t *ret_len);
bool juni_space(uint32_t c);
bool juni_printable(uint32_t c);
bool juni_letter(uint32_t c);
bool juni_digit(uint32_t c);
uint32_t juni_upper(uint32_t c);
uint32_t juni_lower(uint32_t c);

/* ---- lists and dicts: value.c ---------------------------------------------------------------- */

/* Containers know their depth, so that everything that walks them may recurse. */
enum { J_MAX_NESTING = 200 };

jval jlist_new(struct jbase *b, enum jkind kind, size_t cap);
void jlist_push(struct jbase *b, jval list, jval v);
jval jdict_new(struct jbase *b);
/* False: the key is of a type that cannot be one. */
bool jdict_put(struct jbase *b, jval dict, jval key, jval v);
jval *jdict_get(const struct jdict *d, jval key); /* NULL: no such key, or none possible */
jval *jdict_find(const struct jdict *d, const char *key);

bool jtruth(jval v);
bool jeq(jval a, jval b);
/* False: the two have no order. */
bool jorder(jval a, jval b, int *ret);
bool jis_number(jval v);
double jto_double(jval v); /* of a number */
int64_t jto_int(jval v);   /* of an int or bool */
const char *jkind_name(jval v); /* as Python calls its type */
int64_t jlen(jval v);          /* -1: has none */
bool jmarked(jval v);          /* is a byte or number of it a user's? Not asked of containers */

#endif

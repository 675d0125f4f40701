/* SPDX-License-Identifier: Apache-2.0 */
/* str() and repr() as Python writes them, and the checks that name a value's type. The punctuation
 * of a container belongs to nobody's text; it gets the mark of users, so it can never complete a
 * special token. */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/jinja/run.h"

void juse(jrun *r, jval v)
{
    const char *why = v.u.p;

    if (v.kind == J_UNDEF && v.sub) {
        const struct jbuiltin *b = v.u.p;

        jfail(jb(r), -EINVAL, "%s: %s", b->name, b->why);
    }
    if (v.kind == J_UNDEF) {
        jfail(jb(r), -EINVAL, "%s%.100s%s", why ? "'" : "", why ? why : "something",
              why ? "' is undefined" : " is undefined");
    }
}

int64_t jwant_int(jrun *r, jval v, const char *what)
{
    juse(r, v);
    if (v.kind != J_INT && v.kind != J_BOOL) {
        jfail(jb(r), -EINVAL, "%s is a %s, not an integer", what, jkind_name(v));
    }
    return jto_int(v);
}

struct jstr *jwant_str(jrun *r, jval v, const char *what)
{
    juse(r, v);
    if (v.kind != J_STR) {
        jfail(jb(r), -EINVAL, "%s is a %s, not a string", what, jkind_name(v));
    }
    return jstr_of(v);
}

const char *jsafe(jrun *r, jval v)
{
    const struct jstr *s = jstr_of(jto_str(r, v));
    size_t n = s->len < 150 ? s->len : 150;
    char *text = jalloc(jb(r), n + 1);
    size_t k = 0;
    bool hidden = false;

    for (size_t i = 0; i < n; i++) {
        if (jstr_mark_at(s, i) == MARK_TEMPLATE) {
            text[k++] = s->ptr[i] == '\n' || s->ptr[i] == '\0' ? ' ' : s->ptr[i];
            hidden = false;
        } else if (!hidden) {
            text[k++] = '*';
            hidden = true;
        }
    }
    return text;
}

/* The fewest digits that read back as the same number; 1e16 and more, and less than 1e-4, with an
 * exponent. */
size_t jfloat_text(double f, char text[40])
{
    char digits[40];
    char *e;
    int exponent;
    int n = 0;
    size_t len;

    if (!isfinite(f)) {
        return (size_t)snprintf(text, 40, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
    }
    for (int precision = 0; precision < 18; precision++) {
        (void)snprintf(digits, sizeof(digits), "%.*e", precision, f);
        if (strtod(digits, NULL) == f) {
            n = precision;
            break;
        }
    }
    e = strchr(digits, 'e');
    exponent = (int)strtol(e + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        *e = '\0';
        return (size_t)snprintf(text, 40, "%se%s%02d", digits, exponent < 0 ? "-" : "+",
                                abs(exponent));
    }
    len = (size_t)snprintf(text, 40, "%.*f", n > exponent ? n - exponent : 0, f);
    if (!strchr(text, '.')) {
        len += (size_t)snprintf(text + len, 40 - len, ".0");
    }
    return len;
}

static void put_int(struct jbuf *o, int64_t i, bool user)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%" PRId64, i);
    jbuf_ascii(o, text, user ? MARK_USER : MARK_TEMPLATE);
}

static void put_float(struct jbuf *o, double f, bool user)
{
    char text[40];

    jbuf_put(o, text, jfloat_text(f, text), user ? MARK_USER : MARK_TEMPLATE);
}

static void put_escape(struct jbuf *o, uint32_t c, enum jmark mark)
{
    char text[16];

    (void)snprintf(text, sizeof(text),
                   c < 0x100     ? "\\x%02x"
                   : c < 0x10000 ? "\\u%04x"
                                 : "\\U%08x",
                   c);
    jbuf_ascii(o, text, mark);
}

static void repr_string(jrun *r, struct jbuf *o, const struct jstr *s)
{
    bool single = s->len && memchr(s->ptr, '\'', s->len);
    char quote = single && !memchr(s->ptr, '"', s->len) ? '"' : '\'';
    size_t n;

    jstep(r, s->len / 16);
    jbuf_put(o, &quote, 1, MARK_USER);
    for (size_t i = 0; i < s->len; i += n) {
        uint32_t c = juni_at(s->ptr + i, s->len - i, &n);
        enum jmark mark = jstr_mark_at(s, i);

        if (c == (uint8_t)quote || c == '\\') {
            jbuf_put(o, "\\", 1, mark);
            jbuf_cut(o, s, i, i + n);
        } else if (c == '\n' || c == '\r' || c == '\t') {
            jbuf_ascii(o, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", mark);
        } else if (juni_printable(c)) {
            jbuf_cut(o, s, i, i + n);
        } else {
            put_escape(o, c, mark);
        }
    }
    jbuf_put(o, &quote, 1, MARK_USER);
}

static void repr_items(jrun *r, struct jbuf *o, const struct jlist *l, const char *ends)
{
    jbuf_put(o, ends, 1, MARK_USER);
    for (size_t i = 0; i < l->n; i++) {
        if (i) {
            jbuf_ascii(o, ", ", MARK_USER);
        }
        jput_repr(r, o, l->v[i]);
    }
    if (ends[0] == '(' && l->n == 1) {
        jbuf_ascii(o, ",", MARK_USER);
    }
    jbuf_put(o, ends + 1, 1, MARK_USER);
}

static void repr_dict(jrun *r, struct jbuf *o, const struct jdict *d)
{
    jbuf_ascii(o, "{", MARK_USER);
    for (size_t i = 0; i < d->n; i++) {
        if (i) {
            jbuf_ascii(o, ", ", MARK_USER);
        }
        jput_repr(r, o, d->e[i].key);
        jbuf_ascii(o, ": ", MARK_USER);
        jput_repr(r, o, d->e[i].val);
    }
    jbuf_ascii(o, "}", MARK_USER);
}

static void repr_range(struct jbuf *o, const struct jrange *x)
{
    jbuf_ascii(o, "range(", MARK_USER);
    put_int(o, x->start, true);
    jbuf_ascii(o, ", ", MARK_USER);
    put_int(o, x->start + x->n * x->step, true);
    if (x->step != 1) {
        jbuf_ascii(o, ", ", MARK_USER);
        put_int(o, x->step, true);
    }
    jbuf_ascii(o, ")", MARK_USER);
}

void jput_repr(jrun *r, struct jbuf *o, jval v)
{
    static const char *const views[] = {"dict_keys(", "dict_values(", "dict_items("};

    jenter(r);
    switch (v.kind) {
    case J_UNDEF:
        jbuf_ascii(o, "Undefined", MARK_TEMPLATE);
        break;
    case J_NONE:
        jbuf_ascii(o, "None", v.user ? MARK_USER : MARK_TEMPLATE);
        break;
    case J_BOOL:
        jbuf_ascii(o, v.u.b ? "True" : "False", v.user ? MARK_USER : MARK_TEMPLATE);
        break;
    case J_INT:
        put_int(o, v.u.i, v.user);
        break;
    case J_FLOAT:
        put_float(o, v.u.f, v.user);
        break;
    case J_STR:
        repr_string(r, o, jstr_of(v));
        break;
    case J_LIST:
        repr_items(r, o, jlist_of(v), "[]");
        break;
    case J_TUPLE:
        repr_items(r, o, jlist_of(v), "()");
        break;
    case J_DICT:
        repr_dict(r, o, jdict_of(v));
        break;
    case J_VIEW:
        jbuf_ascii(o, views[v.sub], MARK_USER);
        repr_items(r, o, jitems(r, v), "[]");
        jbuf_ascii(o, ")", MARK_USER);
        break;
    case J_RANGE:
        repr_range(o, v.u.p);
        break;
    default:
        /* Python prints an address here, which no template means. */
        jbuf_ascii(o, "<", MARK_USER);
        jbuf_ascii(o, jkind_name(v), MARK_USER);
        jbuf_ascii(o, ">", MARK_USER);
    }
    jleave(r);
}

void jput_str(jrun *r, struct jbuf *o, jval v)
{
    if (v.kind == J_STR) {
        jstep(r, jstr_of(v)->len / 16);
        jbuf_str(o, jstr_of(v));
    } else if (v.kind != J_UNDEF) {
        jput_repr(r, o, v);
    } else if (v.sub) {
        juse(r, v);
    }
}

jval jto_str(jrun *r, jval v)
{
    struct jbuf o = {.b = jb(r)};

    if (v.kind == J_STR) {
        return v;
    }
    jput_str(r, &o, v);
    return jbuf_done(&o);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Python's two ways to format: "%s" % x and "{}".format(x). Marks of text go along; padding and
 * signs have those of the format. */

#include <errno.h>
#include <string.h>

#include "engine/text/jinja/run.h"

/* ---- "%" ------------------------------------------------------------------------------------- */

struct percent {
    jrun *r;
    const struct jstr *s;
    size_t at;
    jval args;
    size_t next;
};

static jval next_arg(struct percent *p)
{
    size_t i = p->next++;

    if (p->args.kind == J_TUPLE ? i >= jlist_of(p->args)->n : i > 0) {
        jfail(jb(p->r), -EINVAL, "there are not enough values for the format");
    }
    return p->args.kind == J_TUPLE ? jlist_of(p->args)->v[i] : p->args;
}

static char peek(const struct percent *p)
{
    return p->at < p->s->len ? p->s->ptr[p->at] : '\0';
}

/* %(name) */
static bool named(struct percent *p, jval *ret)
{
    size_t from = p->at + 1;
    jval *v;

    if (peek(p) != '(') {
        return false;
    }
    while (peek(p) && peek(p) != ')') {
        p->at++;
    }
    if (p->args.kind != J_DICT) {
        jfail(jb(p->r), -EINVAL, "a format with names needs a dict");
    }
    v = jdict_get(jdict_of(p->args), jstr_cut(jb(p->r), p->s, from, p->at));
    if (!v) {
        jfail(jb(p->r), -EINVAL, "a name of the format is not in the dict");
    }
    p->at += peek(p) == ')';
    *ret = *v;
    return true;
}

static int64_t number(struct percent *p, int64_t otherwise)
{
    int64_t v = 0;

    if (peek(p) == '*') {
        p->at++;
        return jwant_int(p->r, next_arg(p), "a width");
    }
    if (peek(p) < '0' || peek(p) > '9') {
        return otherwise;
    }
    while (peek(p) >= '0' && peek(p) <= '9' && v < INT32_MAX) {
        v = v * 10 + (peek(p) - '0');
        p->at++;
    }
    return v;
}

static int flags(struct percent *p)
{
    static const char letters[] = "-0+ #";
    int f = 0;
    const char *c;

    while (peek(p) && (c = strchr(letters, peek(p)))) {
        f |= 1 << (c - letters);
        p->at++;
    }
    return f;
}

static void put_padded(jrun *r, struct jbuf *o, const struct jstr *s, int64_t width, int64_t max,
                       bool left)
{
    size_t end = max >= 0 ? jstr_offset(s, (size_t)max) : s->len;
    struct jstr part = {.ptr = s->ptr, .len = end};
    int64_t n = width - (int64_t)jstr_chars(&part);

    jstep(r, n > 0 ? (uint64_t)n : 0);
    for (int64_t i = 0; !left && i < n; i++) {
        jbuf_ascii(o, " ", MARK_TEMPLATE);
    }
    jbuf_cut(o, s, 0, end);
    for (int64_t i = 0; left && i < n; i++) {
        jbuf_ascii(o, " ", MARK_TEMPLATE);
    }
}

static jval character(jrun *r, jval v)
{
    struct jbuf o = {.b = jb(r)};

    if (v.kind == J_STR && jstr_chars(jstr_of(v)) == 1) {
        return v;
    }
    if (v.kind != J_INT || v.u.i < 0 || v.u.i > 0x10ffff || (v.u.i >= 0xd800 && v.u.i < 0xe000)) {
        jfail(jb(r), -EINVAL, "%%c needs a character or its number");
    }
    jbuf_char(&o, (uint32_t)v.u.i, v.user ? MARK_USER : MARK_TEMPLATE);
    return jbuf_done(&o);
}

static void convert(struct percent *p, struct jbuf *o)
{
    jval v;
    bool have = named(p, &v);
    int f = flags(p);
    int64_t width = number(p, 0);
    int64_t precision = -1;
    char c;

    if (width < 0) {
        f |= F_LEFT;
        width = -width;
    }
    if (peek(p) == '.') {
        p->at++;
        precision = number(p, 0);
    }
    while (peek(p) == 'h' || peek(p) == 'l' || peek(p) == 'L') {
        p->at++;
    }
    c = peek(p);
    if (!c || !strchr("sradiuxXofFeEgGc", c)) {
        jfail(jb(p->r), -EINVAL, "the format has an unknown or unfinished conversion");
    }
    p->at++;
    v = have ? v : next_arg(p);
    if (c == 's' || c == 'r' || c == 'a' || c == 'c') {
        struct jbuf text = {.b = jb(p->r)};

        if (c == 's') {
            jput_str(p->r, &text, v);
        } else if (c == 'c') {
            jput_str(p->r, &text, character(p->r, v));
        } else {
            jput_repr(p->r, &text, v);
        }
        put_padded(p->r, o, jstr_of(jbuf_done(&text)), width, c == 'c' ? -1 : precision,
                   (f & F_LEFT) != 0);
        return;
    }
    juse(p->r, v);
    if (!jis_number(v)) {
        jfail(jb(p->r), -EINVAL, "%%%c needs a number, not a %s", c, jkind_name(v));
    }
    jformat_number(p->r, o, v, c == 'i' || c == 'u' ? 'd' : c, f, width, precision);
}

jval jformat_percent(jrun *r, const struct jstr *s, jval args)
{
    struct percent p = {.r = r, .s = s, .args = args};
    struct jbuf o = {.b = jb(r)};
    size_t plain = 0;
    jval v;

    jstep(r, s->len / 16);
    while (p.at < s->len) {
        if (s->ptr[p.at] != '%') {
            p.at++;
            continue;
        }
        jbuf_cut(&o, s, plain, p.at);
        p.at++;
        jstep(r, 1);
        if (peek(&p) == '%') {
            jbuf_cut(&o, s, p.at, p.at + 1);
            p.at++;
        } else {
            convert(&p, &o);
        }
        plain = p.at;
    }
    jbuf_cut(&o, s, plain, s->len);
    if (args.kind == J_TUPLE ? p.next < jlist_of(args)->n
                             : p.next == 0 && args.kind != J_DICT && args.kind != J_LIST) {
        jfail(jb(r), -EINVAL, "not all values were used by the format");
    }
    v = jbuf_done(&o);
    jstr_of(v)->markup = s->markup;
    return v;
}

/* ---- str.format ------------------------------------------------------------------------------ */

struct fields {
    jrun *r;
    const struct jstr *s;
    struct jargs *a;
    int64_t next; /* of the fields without a number; -1: fields have numbers */
};

static _Noreturn void bad_field(jrun *r, const char *why)
{
    jfail(jb(r), -EINVAL, "format: %s", why);
}

static bool all_digits(const struct jstr *s, size_t from, size_t to, int64_t *ret)
{
    int64_t v = 0;

    for (size_t i = from; i < to; i++) {
        if (s->ptr[i] < '0' || s->ptr[i] > '9' || v > INT32_MAX) {
            return false;
        }
        v = v * 10 + (s->ptr[i] - '0');
    }
    *ret = v;
    return to > from;
}

static jval first_of(struct fields *f, size_t from, size_t to)
{
    int64_t i;

    if (from == to) {
        if (f->next < 0) {
            bad_field(f->r, "fields with and without numbers");
        }
        i = f->next++;
    } else if (all_digits(f->s, from, to, &i)) {
        if (f->next > 0) {
            bad_field(f->r, "fields with and without numbers");
        }
        f->next = -1;
    } else {
        for (size_t k = 0; k < f->a->n_kw; k++) {
            if (strlen(f->a->kw[k].name) == to - from &&
                memcmp(f->a->kw[k].name, f->s->ptr + from, to - from) == 0) {
                return f->a->kw[k].v;
            }
        }
        bad_field(f->r, "a field's name is not among the arguments");
    }
    if ((size_t)i >= f->a->n) {
        bad_field(f->r, "there are not enough values");
    }
    return f->a->v[i];
}

/* name.attribute[key] */
static jval field(struct fields *f, size_t from, size_t to)
{
    size_t at = from;
    jval v;

    while (at < to && f->s->ptr[at] != '.' && f->s->ptr[at] != '[') {
        at++;
    }
    v = first_of(f, from, at);
    while (at < to) {
        bool key = f->s->ptr[at] == '[';
        size_t begin = ++at;
        int64_t i;

        while (at < to &&
               (key ? f->s->ptr[at] != ']' : f->s->ptr[at] != '.' && f->s->ptr[at] != '[')) {
            at++;
        }
        v = key && all_digits(f->s, begin, at, &i) ? jgetitem(f->r, v, jint(i))
            : key ? jgetitem(f->r, v, jstr_cut(jb(f->r), f->s, begin, at))
                  : jgetattr(f->r, v, jstr_cut(jb(f->r), f->s, begin, at));
        at += key;
    }
    return v;
}

/* The format specification, whose own fields {} are replaced. */
static jval spec_of(struct fields *f, size_t from, size_t to)
{
    struct jbuf o = {.b = jb(f->r)};

    for (size_t i = from; i < to; i++) {
        size_t end = i;

        if (f->s->ptr[i] != '{') {
            jbuf_cut(&o, f->s, i, i + 1);
            continue;
        }
        while (end < to && f->s->ptr[end] != '}') {
            end++;
        }
        jput_str(f->r, &o, field(f, i + 1, end));
        i = end;
    }
    return jbuf_done(&o);
}

/* Behind "{": writes the field and returns the position behind "}". */
static size_t put_field(struct fields *f, struct jbuf *o, size_t from)
{
    const struct jstr *s = f->s;
    size_t end = from;
    size_t name_end;
    size_t spec;
    int depth = 1;
    char conversion = '\0';
    jval v;

    while (end < s->len && depth > 0) {
        depth += s->ptr[end] == '{' ? 1 : s->ptr[end] == '}' ? -1 : 0;
        end++;
    }
    if (depth > 0) {
        bad_field(f->r, "a '{' is not closed");
    }
    for (name_end = from;
         name_end < end - 1 && s->ptr[name_end] != '!' && s->ptr[name_end] != ':';) {
        name_end++;
    }
    spec = name_end;
    if (s->ptr[spec] == '!') {
        conversion = s->ptr[spec + 1];
        spec += 2;
        if (spec > end - 1 || (conversion != 's' && conversion != 'r' && conversion != 'a')) {
            bad_field(f->r, "an unknown conversion behind '!'");
        }
    }
    if (spec < end - 1 && s->ptr[spec] != ':') {
        bad_field(f->r, "something other than ':' behind a field");
    }
    v = field(f, from, name_end);
    if (conversion) {
        struct jbuf text = {.b = jb(f->r)};

        if (conversion == 's') {
            jput_str(f->r, &text, v);
        } else {
            jput_repr(f->r, &text, v);
        }
        v = jbuf_done(&text);
    }
    if (spec < end - 1) {
        jformat_spec(f->r, o, v, jstr_of(spec_of(f, spec + 1, end - 1)));
    } else {
        jput_str(f->r, o, v);
    }
    return end;
}

jval jmethod_format(jrun *r, jval self, struct jargs *a)
{
    struct fields f = {.r = r, .s = jstr_of(self), .a = a};
    struct jbuf o = {.b = jb(r)};
    size_t i = 0;

    jstep(r, f.s->len / 4);
    while (i < f.s->len) {
        char c = f.s->ptr[i];

        if (c != '{' && c != '}') {
            jbuf_cut(&o, f.s, i, i + 1);
            i++;
        } else if (i + 1 < f.s->len && f.s->ptr[i + 1] == c) {
            jbuf_cut(&o, f.s, i, i + 1);
            i += 2;
        } else if (c == '{') {
            jstep(r, 1);
            i = put_field(&f, &o, i + 1);
        } else {
            bad_field(r, "a '}' closes nothing");
        }
    }
    return jbuf_done(&o);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that work on text. As Jinja's, most turn their value into a string first. */

#include <errno.h>

#include "engine/text/jinja/run.h"

static bool given(jval v)
{
    return v.kind != J_MISSING;
}

static struct jstr *text_of(jrun *r, jval v)
{
    return jstr_of(jto_str(r, v));
}

static jval f_trim(jrun *r, jval self, struct jargs *a)
{
    jval chars;

    jargs_take(r, a, "chars", 0, &chars);
    return jstr_strip(r, text_of(r, self),
                      given(chars) && chars.kind != J_NONE ? jwant_str(r, chars, "trim: chars")
                                                           : NULL,
                      STRIP_LEFT | STRIP_RIGHT);
}

#define CASE_FILTER(name, how)                                                                     \
    static jval name(jrun *r, jval self, struct jargs *a)                                          \
    {                                                                                              \
        jargs_take(r, a, "", 0, NULL);                                                             \
        return jstr_case(r, text_of(r, self), how);                                                \
    }

CASE_FILTER(f_upper, CASE_UPPER)
CASE_FILTER(f_lower, CASE_LOWER)
CASE_FILTER(f_capitalize, CASE_CAPITALIZE)

/* Jinja's own: words begin behind white space, -, and opening brackets. */
static jval f_title(jrun *r, jval self, struct jargs *a)
{
    const struct jstr *s;
    struct jbuf o = {.b = jb(r)};
    bool first = true;
    size_t n;

    jargs_take(r, a, "", 0, NULL);
    s = text_of(r, self);
    for (size_t i = 0; i < s->len; i += n) {
        uint32_t c = juni_at(s->ptr + i, s->len - i, &n);

        jstep(r, 1);
        jbuf_char(&o, first ? juni_upper(c) : juni_lower(c), jstr_mark_at(s, i));
        first = juni_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    }
    return jbuf_done(&o);
}

static jval f_string(jrun *r, jval self, struct jargs *a)
{
    jargs_take(r, a, "", 0, NULL);
    return jto_str(r, self);
}

static jval f_safe(jrun *r, jval self, struct jargs *a)
{
    struct jstr *s;
    jval v;

    jargs_take(r, a, "", 0, NULL);
    s = text_of(r, self);
    v = jstr_cut(jb(r), s, 0, s->len);
    jstr_of(v)->markup = true;
    return v;
}

static jval f_escape(jrun *r, jval self, struct jargs *a)
{
    jargs_take(r, a, "", 0, NULL);
    return jstr_escape(r, jto_str(r, self));
}

static jval f_forceescape(jrun *r, jval self, struct jargs *a)
{
    struct jstr *s;
    jval v;

    jargs_take(r, a, "", 0, NULL);
    s = text_of(r, self);
    v = jstr_cut(jb(r), s, 0, s->len);
    jstr_of(v)->markup = false;
    return jstr_escape(r, v);
}

static jval f_replace(jrun *r, jval self, struct jargs *a)
{
    jval arg[3];

    jargs_take(r, a, "old,new,count", 2, arg);
    return jstr_replace(
        r, text_of(r, self), text_of(r, arg[0]), text_of(r, arg[1]),
        given(arg[2]) && arg[2].kind != J_NONE ? jwant_int(r, arg[2], "replace: count") : -1);
}

static jval f_indent(jrun *r, jval self, struct jargs *a)
{
    jval arg[3];
    jval indent;
    const struct jlist *lines;
    struct jbuf o = {.b = jb(r)};
    struct jbuf with_end = {.b = jb(r)};
    bool first;
    bool blank;

    jargs_take(r, a, "width,first,blank", 0, arg);
    indent = given(arg[0]) && arg[0].kind == J_STR
                 ? arg[0]
                 : jbinary(r, T_MUL, jstr_static(jb(r), " "), given(arg[0]) ? arg[0] : jint(4));
    first = given(arg[1]) && jtruth(arg[1]);
    blank = given(arg[2]) && jtruth(arg[2]);
    jbuf_str(&with_end, text_of(r, self));
    jbuf_ascii(&with_end, "\n", MARK_TEMPLATE);
    lines = jlist_of(jstr_lines(r, jstr_of(jbuf_done(&with_end)), false));
    for (size_t i = 0; i < lines->n; i++) {
        const struct jstr *line = jstr_of(lines->v[i]);

        if (i) {
            jbuf_ascii(&o, "\n", MARK_TEMPLATE);
        }
        if (i ? blank || line->len > 0 : first) {
            jbuf_str(&o, jstr_of(indent));
        }
        jbuf_str(&o, line);
    }
    return jbuf_done(&o);
}

static jval f_center(jrun *r, jval self, struct jargs *a)
{
    struct jargs empty = {.what = "center"};
    jval width;
    struct jstr key = {.ptr = "center", .len = 6};
    jval text = jto_str(r, self);

    jargs_take(r, a, "width", 0, &width);
    width = given(width) ? width : jint(80);
    empty.v = &width;
    empty.n = 1;
    return jcall_builtin(r, jmethod_find(text, &key), text, &empty);
}

static jval f_truncate(jrun *r, jval self, struct jargs *a)
{
    jval arg[4];
    const struct jstr *s = text_of(r, self);
    const struct jstr *end;
    struct jbuf o = {.b = jb(r)};
    int64_t length;
    int64_t leeway;
    size_t cut;

    jargs_take(r, a, "length,killwords,end,leeway", 0, arg);
    length = given(arg[0]) ? jwant_int(r, arg[0], "truncate: length") : 255;
    end = given(arg[2]) ? text_of(r, arg[2]) : jstr_of(jstr_static(jb(r), "..."));
    leeway = given(arg[3]) && arg[3].kind != J_NONE ? jwant_int(r, arg[3], "truncate: leeway") : 5;
    if (length < (int64_t)jstr_chars(end) || leeway < 0) {
        jfail(jb(r), -EINVAL, "truncate: the length is less than its end's");
    }
    if ((int64_t)jstr_chars(s) <= length + leeway) {
        return jto_str(r, self);
    }
    cut = jstr_offset(s, (size_t)length - jstr_chars(end));
    if (!given(arg[1]) || !jtruth(arg[1])) {
        size_t space = jstr_rfind(s, jstr_of(jstr_static(jb(r), " ")), 0, cut);

        cut = space == SIZE_MAX ? cut : space;
    }
    jbuf_cut(&o, s, 0, cut);
    jbuf_str(&o, end);
    return jbuf_done(&o);
}

/* Runs of letters, digits and underscores. */
static jval f_wordcount(jrun *r, jval self, struct jargs *a)
{
    const struct jstr *s = text_of(r, self);
    int64_t words = 0;
    bool inside = false;
    size_t n;

    jargs_take(r, a, "", 0, NULL);
    for (size_t i = 0; i < s->len; i += n) {
        uint32_t c = juni_at(s->ptr + i, s->len - i, &n);
        bool word = c == '_' || juni_letter(c) || juni_digit(c);

        jstep(r, 1);
        words += word && !inside;
        inside = word;
    }
    return jint(words);
}

static jval f_format(jrun *r, jval self, struct jargs *a)
{
    jval args;

    if (a->n && a->n_kw) {
        jfail(jb(r), -EINVAL, "format takes arguments with or without names, not both");
    }
    if (a->n_kw) {
        args = jdict_new(jb(r));
        for (size_t i = 0; i < a->n_kw; i++) {
            (void)jdict_put(jb(r), args, jstr_static(jb(r), a->kw[i].name), a->kw[i].v);
        }
    } else {
        args = jlist_new(jb(r), J_TUPLE, 0);
        for (size_t i = 0; i < a->n; i++) {
            jlist_push(jb(r), args, a->v[i]);
        }
    }
    return jformat_percent(r, text_of(r, self), args);
}

const struct jbuiltin jfilters_text[] = {
    {"trim", f_trim, NULL},
    {"upper", f_upper, NULL},
    {"lower", f_lower, NULL},
    {"capitalize", f_capitalize, NULL},
    {"title", f_title, NULL},
    {"string", f_string, NULL},
    {"safe", f_safe, NULL},
    {"escape", f_escape, NULL},
    {"e", f_escape, NULL},
    {"forceescape", f_forceescape, NULL},
    {"replace", f_replace, NULL},
    {"indent", f_indent, NULL},
    {"center", f_center, NULL},
    {"truncate", f_truncate, NULL},
    {"wordcount", f_wordcount, NULL},
    {"format", f_format, NULL},
    {0},
};

/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of strings that cut, join and pad. Marks go along: pieces are cut from the string, and
 * what a method adds has the mark of where it came from. */

#include <errno.h>
#include <string.h>

#include "engine/text/jinja/run.h"

static bool in_set(const struct jstr *chars, const struct jstr *s, size_t at, size_t n)
{
    size_t ignored;

    if (!chars) {
        return juni_space(juni_at(s->ptr + at, n, &ignored));
    }
    for (size_t i = 0; i < chars->len; i += jstr_step(chars, i)) {
        if (jstr_step(chars, i) == n && memcmp(chars->ptr + i, s->ptr + at, n) == 0) {
            return true;
        }
    }
    return false;
}

/* Where the character that ends at `end` begins. */
static size_t step_back(const struct jstr *s, size_t end)
{
    for (size_t n = 1; n <= 4 && n <= end; n++) {
        if (((uint8_t)s->ptr[end - n] & 0xc0) != 0x80) {
            return jstr_step(s, end - n) == n ? end - n : end - 1;
        }
    }
    return end - 1;
}

jval jstr_strip(jrun *r, const struct jstr *s, const struct jstr *chars, int sides)
{
    size_t from = 0;
    size_t to = s->len;

    while (sides & STRIP_LEFT && from < to && in_set(chars, s, from, jstr_step(s, from))) {
        jstep(r, 1 + (chars ? chars->len : 0));
        from += jstr_step(s, from);
    }
    while (sides & STRIP_RIGHT && from < to) {
        size_t at = step_back(s, to);

        jstep(r, 1 + (chars ? chars->len : 0));
        if (!in_set(chars, s, at, to - at)) {
            break;
        }
        to = at;
    }
    return jstr_cut(jb(r), s, from, to);
}

static jval strip(jrun *r, jval self, struct jargs *a, int sides)
{
    jval chars;

    jargs_take(r, a, "chars", 0, &chars);
    return jstr_strip(r, jstr_of(self),
                      chars.kind == J_MISSING || chars.kind == J_NONE
                          ? NULL
                          : jwant_str(r, chars, "what strip takes away"),
                      sides);
}

static jval m_strip(jrun *r, jval self, struct jargs *a)
{
    return strip(r, self, a, STRIP_LEFT | STRIP_RIGHT);
}

static jval m_lstrip(jrun *r, jval self, struct jargs *a)
{
    return strip(r, self, a, STRIP_LEFT);
}

static jval m_rstrip(jrun *r, jval self, struct jargs *a)
{
    return strip(r, self, a, STRIP_RIGHT);
}

/* ---- split ----------------------------------------------------------------------------------- */

static void push_cut(jrun *r, jval list, const struct jstr *s, size_t from, size_t to)
{
    jstep(r, 1);
    jlist_push(jb(r), list, jstr_cut(jb(r), s, from, to));
}

static size_t skip_space(const struct jstr *s, size_t at, bool space)
{
    while (at < s->len && in_set(NULL, s, at, jstr_step(s, at)) == space) {
        at += jstr_step(s, at);
    }
    return at;
}

static jval split_space(jrun *r, const struct jstr *s, int64_t max)
{
    jval list = jlist_new(jb(r), J_LIST, 0);
    size_t at = skip_space(s, 0, true);

    for (; at < s->len && max != 0; max--) {
        size_t end = skip_space(s, at, false);

        push_cut(r, list, s, at, end);
        at = skip_space(s, end, true);
    }
    if (at < s->len) {
        push_cut(r, list, s, at, s->len); /* its white space at the end stays, as in Python */
    }
    return list;
}

static jval rsplit_space(jrun *r, const struct jstr *s, int64_t max)
{
    jval back = jlist_new(jb(r), J_LIST, 0);
    const struct jstr *left = jstr_of(jstr_strip(r, s, NULL, STRIP_RIGHT));
    jval list;

    while (left->len > 0 && max-- != 0) {
        size_t from = left->len;

        while (from > 0 &&
               !in_set(NULL, left, step_back(left, from), from - step_back(left, from))) {
            jstep(r, 1);
            from = step_back(left, from);
        }
        push_cut(r, back, left, from, left->len);
        left = jstr_of(jstr_strip(r, jstr_of(jstr_cut(jb(r), left, 0, from)), NULL, STRIP_RIGHT));
    }
    list = jlist_new(jb(r), J_LIST, 0);
    if (left->len > 0) {
        push_cut(r, list, left, 0, left->len);
    }
    for (size_t i = jlist_of(back)->n; i > 0; i--) {
        jlist_push(jb(r), list, jlist_of(back)->v[i - 1]);
    }
    return list;
}

static jval split_at(jrun *r, const struct jstr *s, const struct jstr *sep, int64_t max)
{
    jval list = jlist_new(jb(r), J_LIST, 0);
    size_t from = 0;
    size_t at;

    while (max-- != 0 && (at = jstr_find(s, sep, from, s->len)) != SIZE_MAX) {
        push_cut(r, list, s, from, at);
        from = at + sep->len;
    }
    push_cut(r, list, s, from, s->len);
    return list;
}

static jval rsplit_at(jrun *r, const struct jstr *s, const struct jstr *sep, int64_t max)
{
    jval back = jlist_new(jb(r), J_LIST, 0);
    jval list = jlist_new(jb(r), J_LIST, 0);
    size_t to = s->len;
    size_t at;

    while (max-- != 0 && (at = jstr_rfind(s, sep, 0, to)) != SIZE_MAX) {
        push_cut(r, back, s, at + sep->len, to);
        to = at;
    }
    push_cut(r, back, s, 0, to);
    for (size_t i = jlist_of(back)->n; i > 0; i--) {
        jlist_push(jb(r), list, jlist_of(back)->v[i - 1]);
    }
    return list;
}

static jval split(jrun *r, jval self, struct jargs *a, bool right)
{
    const struct jstr *s = jstr_of(self);
    const struct jstr *sep;
    jval arg[2];
    int64_t max;

    jargs_take(r, a, "sep,maxsplit", 0, arg);
    max = arg[1].kind == J_MISSING ? -1 : jwant_int(r, arg[1], "split: maxsplit");
    max = max < 0 ? -1 : max;
    jstep(r, s->len / 8);
    if (arg[0].kind == J_MISSING || arg[0].kind == J_NONE) {
        return right ? rsplit_space(r, s, max) : split_space(r, s, max);
    }
    sep = jwant_str(r, arg[0], "split: the separator");
    if (sep->len == 0) {
        jfail(jb(r), -EINVAL, "split: the separator is empty");
    }
    return right ? rsplit_at(r, s, sep, max) : split_at(r, s, sep, max);
}

static jval m_split(jrun *r, jval self, struct jargs *a)
{
    return split(r, self, a, false);
}

static jval m_rsplit(jrun *r, jval self, struct jargs *a)
{
    return split(r, self, a, true);
}

static bool line_end(uint32_t c)
{
    return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

jval jstr_lines(jrun *r, const struct jstr *s, bool keep_ends)
{
    jval list = jlist_new(jb(r), J_LIST, 0);
    size_t from = 0;
    size_t n;

    jstep(r, s->len / 8);
    for (size_t i = 0; i < s->len; i += n) {
        if (line_end(juni_at(s->ptr + i, s->len - i, &n))) {
            n += s->ptr[i] == '\r' && i + 1 < s->len && s->ptr[i + 1] == '\n';
            push_cut(r, list, s, from, keep_ends ? i + n : i);
            from = i + n;
        }
    }
    if (from < s->len) {
        push_cut(r, list, s, from, s->len);
    }
    return list;
}

static jval m_splitlines(jrun *r, jval self, struct jargs *a)
{
    jval keep;

    jargs_take(r, a, "keepends", 0, &keep);
    return jstr_lines(r, jstr_of(self), keep.kind != J_MISSING && jtruth(keep));
}

/* ---- replace, join, pad ---------------------------------------------------------------------- */

jval jstr_replace(jrun *r, const struct jstr *s, const struct jstr *from, const struct jstr *to,
                  int64_t count)
{
    struct jbuf o = {.b = jb(r)};
    size_t done = 0;
    size_t at = 0;
    jval v;

    jstep(r, s->len / 16);
    while (count != 0 && (at = jstr_find(s, from, at, s->len)) != SIZE_MAX) {
        jstep(r, 1 + to->len / 16);
        jbuf_cut(&o, s, done, at);
        jbuf_str(&o, to);
        done = at + from->len;
        at = done;
        count--;
        if (from->len == 0) { /* between all characters, and at both ends */
            if (at >= s->len) {
                break;
            }
            at += jstr_step(s, at);
        }
    }
    jbuf_cut(&o, s, done, s->len);
    v = jbuf_done(&o);
    jstr_of(v)->markup = s->markup;
    return v;
}

static jval m_replace(jrun *r, jval self, struct jargs *a)
{
    jval arg[3];

    jargs_take(r, a, "old,new,count", 2, arg);
    return jstr_replace(r, jstr_of(self), jwant_str(r, arg[0], "replace: what"),
                        jwant_str(r, arg[1], "replace: by what"),
                        arg[2].kind == J_MISSING ? -1 : jwant_int(r, arg[2], "replace: count"));
}

static jval m_join(jrun *r, jval self, struct jargs *a)
{
    jval v;
    struct jlist *l;
    struct jbuf o = {.b = jb(r)};

    jargs_take(r, a, "iterable", 1, &v);
    juse(r, v);
    l = jitems(r, v);
    for (size_t i = 0; i < l->n; i++) {
        jstep(r, 1);
        if (i) {
            jbuf_str(&o, jstr_of(self));
        }
        jbuf_str(&o, jwant_str(r, l->v[i], "an element to join"));
    }
    return jbuf_done(&o);
}

static void fill(jrun *r, struct jbuf *o, const struct jstr *with, int64_t n)
{
    jstep(r, n > 0 ? (uint64_t)n : 0);
    for (int64_t i = 0; i < n; i++) {
        jbuf_str(o, with);
    }
}

/* -1: left, 0: centre, 1: right */
static jval pad(jrun *r, jval self, struct jargs *a, int side)
{
    jval arg[2];
    struct jbuf o = {.b = jb(r)};
    const struct jstr *with;
    int64_t width;
    int64_t n = jlen(self);
    int64_t left;

    jargs_take(r, a, "width,fillchar", 1, arg);
    width = jwant_int(r, arg[0], "a width");
    with = arg[1].kind == J_MISSING ? jstr_of(jstr_static(jb(r), " "))
                                    : jwant_str(r, arg[1], "what pads");
    if (jstr_chars(with) != 1) {
        jfail(jb(r), -EINVAL, "what pads is not one character");
    }
    if (width <= n) {
        return self;
    }
    /* An odd rest goes left where the width is odd: CPython's choice. */
    left = side < 0 ? 0 : side > 0 ? width - n : (width - n) / 2 + ((width - n) & width & 1);
    fill(r, &o, with, left);
    jbuf_str(&o, jstr_of(self));
    fill(r, &o, with, width - n - left);
    return jbuf_done(&o);
}

static jval m_ljust(jrun *r, jval self, struct jargs *a)
{
    return pad(r, self, a, -1);
}

static jval m_center(jrun *r, jval self, struct jargs *a)
{
    return pad(r, self, a, 0);
}

static jval m_rjust(jrun *r, jval self, struct jargs *a)
{
    return pad(r, self, a, 1);
}

static jval m_zfill(jrun *r, jval self, struct jargs *a)
{
    const struct jstr *s = jstr_of(self);
    jval width;
    struct jbuf o = {.b = jb(r)};
    size_t sign = s->len && (s->ptr[0] == '-' || s->ptr[0] == '+');

    jargs_take(r, a, "width", 1, &width);
    jbuf_cut(&o, s, 0, sign);
    fill(r, &o, jstr_of(jstr_static(jb(r), "0")), jwant_int(r, width, "a width") - jlen(self));
    jbuf_cut(&o, s, sign, s->len);
    return jbuf_done(&o);
}

static jval m_expandtabs(jrun *r, jval self, struct jargs *a)
{
    const struct jstr *s = jstr_of(self);
    struct jbuf o = {.b = jb(r)};
    int64_t column = 0;
    int64_t size;
    jval v;

    jargs_take(r, a, "tabsize", 0, &v);
    size = v.kind == J_MISSING ? 8 : jwant_int(r, v, "a tab's width");
    for (size_t i = 0; i < s->len; i += jstr_step(s, i)) {
        if (s->ptr[i] == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;

            fill(r, &o, jstr_of(jstr_static(jb(r), " ")), n);
            column += n;
            continue;
        }
        jbuf_cut(&o, s, i, i + jstr_step(s, i));
        column = s->ptr[i] == '\n' || s->ptr[i] == '\r' ? 0 : column + 1;
    }
    return jbuf_done(&o);
}

jval jstr_escape(jrun *r, jval v)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const struct jstr *s = jstr_of(v);
    struct jbuf o = {.b = jb(r)};
    size_t plain = 0;

    if (s->markup) {
        return v;
    }
    jstep(r, s->len / 8);
    for (size_t i = 0; i < s->len; i++) {
        const char *p = s->ptr[i] ? strchr(from, s->ptr[i]) : NULL;

        if (p) {
            jbuf_cut(&o, s, plain, i);
            jbuf_ascii(&o, to[p - from], jstr_mark_at(s, i));
            plain = i + 1;
        }
    }
    jbuf_cut(&o, s, plain, s->len);
    v = jbuf_done(&o);
    jstr_of(v)->markup = true;
    return v;
}

const struct jbuiltin jmethods_str[] = {
    {"strip", m_strip, NULL},
    {"lstrip", m_lstrip, NULL},
    {"rstrip", m_rstrip, NULL},
    {"split", m_split, NULL},
    {"rsplit", m_rsplit, NULL},
    {"splitlines", m_splitlines, NULL},
    {"replace", m_replace, NULL},
    {"join", m_join, NULL},
    {"ljust", m_ljust, NULL},
    {"center", m_center, NULL},
    {"rjust", m_rjust, NULL},
    {"zfill", m_zfill, NULL},
    {"expandtabs", m_expandtabs, NULL},
    {"format", jmethod_format, NULL},
    {0},
};

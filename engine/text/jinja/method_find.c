/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of strings that look for another string. */

#include <errno.h>
#include <string.h>

#include "engine/text/jinja/run.h"

struct where {
    const struct jstr *s;
    jval what;
    size_t from; /* bytes */
    size_t to;
    bool past; /* the start lies behind the end: nothing is found, not even "" */
};

static size_t position(jrun *r, const struct jstr *s, jval v, size_t otherwise, bool *past)
{
    int64_t i;
    int64_t n;

    if (v.kind == J_MISSING || v.kind == J_NONE) {
        return otherwise;
    }
    i = jwant_int(r, v, "a position");
    n = (int64_t)jstr_chars(s);
    i += i < 0 ? n : 0;
    i = i < 0 ? 0 : i;
    *past = *past || i > n;
    return jstr_offset(s, (size_t)(i > n ? n : i));
}

static struct where take(jrun *r, jval self, struct jargs *a)
{
    struct where w = {.s = jstr_of(self)};
    jval arg[3];
    bool ignored = false;

    jargs_take(r, a, "sub,start,end", 1, arg);
    jstep(r, w.s->len / 16);
    w.what = arg[0];
    w.from = position(r, w.s, arg[1], 0, &w.past);
    w.to = position(r, w.s, arg[2], w.s->len, &ignored);
    return w;
}

static int64_t found(const struct where *w, size_t at)
{
    struct jstr before = {.ptr = w->s->ptr, .len = at};

    return at == SIZE_MAX || w->past ? -1 : (int64_t)jstr_chars(&before);
}

static jval m_find(jrun *r, jval self, struct jargs *a)
{
    struct where w = take(r, self, a);

    return jint(
        found(&w, jstr_find(w.s, jwant_str(r, w.what, "what find looks for"), w.from, w.to)));
}

static jval m_rfind(jrun *r, jval self, struct jargs *a)
{
    struct where w = take(r, self, a);
    const struct jstr *what = jwant_str(r, w.what, "what rfind looks for");

    jstep(r, w.s->len / 4);
    return jint(found(&w, jstr_rfind(w.s, what, w.from, w.to)));
}

static jval must(jrun *r, jval at)
{
    if (at.u.i < 0) {
        jfail(jb(r), -EINVAL, "index: the string does not hold it");
    }
    return at;
}

static jval m_index(jrun *r, jval self, struct jargs *a)
{
    return must(r, m_find(r, self, a));
}

static jval m_rindex(jrun *r, jval self, struct jargs *a)
{
    return must(r, m_rfind(r, self, a));
}

static jval m_count(jrun *r, jval self, struct jargs *a)
{
    struct where w = take(r, self, a);
    const struct jstr *what = jwant_str(r, w.what, "what count looks for");
    int64_t n = 0;

    if (what->len == 0) {
        struct jstr part = {.ptr = w.s->ptr + w.from, .len = w.to > w.from ? w.to - w.from : 0};

        return jint(w.past || w.from > w.to ? 0 : (int64_t)jstr_chars(&part) + 1);
    }
    for (size_t at = w.from; (at = jstr_find(w.s, what, at, w.to)) != SIZE_MAX; at += what->len) {
        n++;
    }
    return jint(w.past ? 0 : n);
}

/* Does it begin, or end, with one of the strings? */
static jval affix(jrun *r, jval self, struct jargs *a, bool end)
{
    struct where w = take(r, self, a);
    jval one = w.what;
    const struct jlist *any =
        w.what.kind == J_TUPLE ? jlist_of(w.what) : &(struct jlist){.v = &one, .n = 1};

    for (size_t i = 0; i < any->n && !w.past && w.from <= w.to; i++) {
        const struct jstr *what = jwant_str(r, any->v[i], "a beginning or end");
        size_t at = end ? w.to - what->len : w.from;

        if (what->len <= w.to - w.from &&
            (what->len == 0 || memcmp(w.s->ptr + at, what->ptr, what->len) == 0)) {
            return jboolean(true);
        }
    }
    return jboolean(false);
}

static jval m_startswith(jrun *r, jval self, struct jargs *a)
{
    return affix(r, self, a, false);
}

static jval m_endswith(jrun *r, jval self, struct jargs *a)
{
    return affix(r, self, a, true);
}

static jval without(jrun *r, jval self, struct jargs *a, bool end)
{
    const struct jstr *s = jstr_of(self);
    const struct jstr *what;
    jval v;

    if (!jtruth(affix(r, self, a, end))) {
        return self;
    }
    jargs_take(r, a, "affix", 1, &v);
    what = jwant_str(r, v, "a prefix or suffix");
    return end ? jstr_cut(jb(r), s, 0, s->len - what->len) : jstr_cut(jb(r), s, what->len, s->len);
}

static jval m_removeprefix(jrun *r, jval self, struct jargs *a)
{
    return without(r, self, a, false);
}

static jval m_removesuffix(jrun *r, jval self, struct jargs *a)
{
    return without(r, self, a, true);
}

static jval partition(jrun *r, jval self, struct jargs *a, bool last)
{
    const struct jstr *s = jstr_of(self);
    jval sep;
    jval three = jlist_new(jb(r), J_TUPLE, 3);
    const struct jstr *what;
    size_t at;

    jargs_take(r, a, "sep", 1, &sep);
    what = jwant_str(r, sep, "a separator");
    if (what->len == 0) {
        jfail(jb(r), -EINVAL, "partition: the separator is empty");
    }
    jstep(r, s->len / 4);
    at = last ? jstr_rfind(s, what, 0, s->len) : jstr_find(s, what, 0, s->len);
    if (at == SIZE_MAX) {
        jval nothing = jstr_static(jb(r), "");

        jlist_push(jb(r), three, last ? nothing : self);
        jlist_push(jb(r), three, nothing);
        jlist_push(jb(r), three, last ? self : nothing);
        return three;
    }
    jlist_push(jb(r), three, jstr_cut(jb(r), s, 0, at));
    jlist_push(jb(r), three, jstr_cut(jb(r), s, at, at + what->len));
    jlist_push(jb(r), three, jstr_cut(jb(r), s, at + what->len, s->len));
    return three;
}

static jval m_partition(jrun *r, jval self, struct jargs *a)
{
    return partition(r, self, a, false);
}

static jval m_rpartition(jrun *r, jval self, struct jargs *a)
{
    return partition(r, self, a, true);
}

const struct jbuiltin jmethods_find[] = {
    {"find", m_find, NULL},
    {"rfind", m_rfind, NULL},
    {"index", m_index, NULL},
    {"rindex", m_rindex, NULL},
    {"count", m_count, NULL},
    {"startswith", m_startswith, NULL},
    {"endswith", m_endswith, NULL},
    {"removeprefix", m_removeprefix, NULL},
    {"removesuffix", m_removesuffix, NULL},
    {"partition", m_partition, NULL},
    {"rpartition", m_rpartition, NULL},
    {0},
};

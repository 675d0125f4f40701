/* SPDX-License-Identifier: Apache-2.0 */
/* Strings with a mark for every byte. Nearly all have one mark throughout and store it once; only
 * those with both kinds have an array. Slices share the bytes and the array of what they were cut
 * from. */

#include <errno.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/text/jinja/value.h"

static jval make(struct jbase *b, const char *s, size_t len, uint8_t mark, const uint8_t *marks)
{
    struct jstr *str = jalloc(b, sizeof(*str));

    *str = (struct jstr){.ptr = s, .len = len, .mark = mark, .marks = marks};
    return jptr(J_STR, str);
}

jval jstr_new(struct jbase *b, const char *s, size_t len, enum jmark mark)
{
    char *copy = jalloc(b, len + 1);

    if (len) {
        memcpy(copy, s, len);
    }
    return make(b, copy, len, (uint8_t)mark, NULL);
}

jval jstr_static(struct jbase *b, const char *s)
{
    return make(b, s, strlen(s), MARK_TEMPLATE, NULL);
}

jval jstr_cut(struct jbase *b, const struct jstr *s, size_t from, size_t to)
{
    size_t len = to > from ? to - from : 0;
    jval v = make(b, s->ptr + from, len, s->mark, NULL);
    struct jstr *out = jstr_of(v);

    out->markup = s->markup;
    if (s->mark == MARK_MIXED) {
        const uint8_t *m = s->marks + from;

        if (len == 0 || !memchr(m, m[0] == MARK_USER ? MARK_TEMPLATE : MARK_USER, len)) {
            out->mark = len ? m[0] : MARK_TEMPLATE;
        } else {
            out->marks = m;
        }
    }
    return v;
}

bool jstr_eq(const struct jstr *a, const struct jstr *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->ptr, b->ptr, a->len) == 0);
}

bool jstr_is(const struct jstr *a, const char *b)
{
    return a->len == strlen(b) && (a->len == 0 || memcmp(a->ptr, b, a->len) == 0);
}

int jstr_cmp(const struct jstr *a, const struct jstr *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int r = n ? memcmp(a->ptr, b->ptr, n) : 0;

    return r ? r : (a->len > b->len) - (a->len < b->len);
}

size_t jstr_step(const struct jstr *s, size_t at)
{
    int n;

    if ((uint8_t)s->ptr[at] < 0x80) {
        return 1;
    }
    n = utf8_character(s->ptr + at, s->len - at);
    return n > 0 ? (size_t)n : 1;
}

size_t jstr_chars(const struct jstr *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->len; i += jstr_step(s, i)) {
        n++;
    }
    return n;
}

size_t jstr_offset(const struct jstr *s, size_t chars)
{
    size_t i = 0;

    while (chars > 0 && i < s->len) {
        i += jstr_step(s, i);
        chars--;
    }
    return i;
}

size_t jstr_find(const struct jstr *s, const struct jstr *what, size_t from, size_t to)
{
    const char *p;

    if (from > to || what->len > to - from) {
        return SIZE_MAX;
    }
    if (what->len == 0) {
        return from;
    }
    p = memmem(s->ptr + from, to - from, what->ptr, what->len);
    return p ? (size_t)(p - s->ptr) : SIZE_MAX;
}

size_t jstr_rfind(const struct jstr *s, const struct jstr *what, size_t from, size_t to)
{
    if (from > to || what->len > to - from) {
        return SIZE_MAX;
    }
    for (size_t i = to - what->len + 1; i > from; i--) {
        if (what->len == 0 || memcmp(s->ptr + i - 1, what->ptr, what->len) == 0) {
            return i - 1;
        }
    }
    return SIZE_MAX;
}

enum jmark jstr_mark_at(const struct jstr *s, size_t at)
{
    return s->mark == MARK_MIXED ? s->marks[at] : s->mark;
}

/* ---- construction ---------------------------------------------------------------------------- */

static void reserve(struct jbuf *o, size_t n)
{
    size_t cap = o->cap;

    if (n > SIZE_MAX / 4 || (o->max && o->len + n > o->max)) {
        jfail(o->b, -E2BIG, "it writes more than %zu bytes", o->max);
    }
    if (o->len + n <= cap) {
        return;
    }
    cap = cap * 2 > o->len + n ? cap * 2 : o->len + n + 48;
    o->p = jgrow(o->b, o->p, o->len, cap);
    o->cap = cap;
}

static void reserve_marks(struct jbuf *o, size_t n, bool fresh)
{
    if (o->len + n <= o->cap_marks) {
        return;
    }
    o->marks = jgrow(o->b, o->marks, fresh ? 0 : o->len, o->cap);
    o->cap_marks = o->cap;
    if (fresh) {
        memset(o->marks, o->mark, o->len);
    }
}

/* `marks` NULL: all have `mark`. */
static void put(struct jbuf *o, const char *s, size_t len, enum jmark mark, const uint8_t *marks)
{
    if (len == 0) {
        return;
    }
    reserve(o, len);
    if (o->len == 0) {
        o->mark = (uint8_t)(marks ? MARK_TEMPLATE : mark);
        o->marks = NULL;
        o->cap_marks = 0;
    }
    if (o->marks || marks || mark != (enum jmark)o->mark) {
        reserve_marks(o, len, o->marks == NULL);
        if (marks) {
            memcpy(o->marks + o->len, marks, len);
        } else {
            memset(o->marks + o->len, (int)mark, len);
        }
    }
    memcpy(o->p + o->len, s, len);
    o->len += len;
}

void jbuf_put(struct jbuf *o, const char *s, size_t len, enum jmark mark)
{
    put(o, s, len, mark, NULL);
}

void jbuf_cut(struct jbuf *o, const struct jstr *s, size_t from, size_t to)
{
    if (to > from) {
        put(o, s->ptr + from, to - from, s->mark, s->mark == MARK_MIXED ? s->marks + from : NULL);
    }
}

void jbuf_str(struct jbuf *o, const struct jstr *s)
{
    jbuf_cut(o, s, 0, s->len);
}

void jbuf_ascii(struct jbuf *o, const char *s, enum jmark mark)
{
    put(o, s, strlen(s), mark, NULL);
}

void jbuf_char(struct jbuf *o, uint32_t c, enum jmark mark)
{
    char s[4];
    size_t n = 0;

    if (c >= 0xdc80 && c <= 0xdcff) { /* a byte that was no UTF-8 */
        s[n++] = (char)(c - 0xdc00);
    } else if (c < 0x80) {
        s[n++] = (char)c;
    } else {
        int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;

        s[n++] = (char)((0xff00 >> (more + 1) & 0xff) | c >> (6 * more));
        while (more-- > 0) {
            s[n++] = (char)(0x80 | (c >> (6 * more) & 0x3f));
        }
    }
    put(o, s, n, mark, NULL);
}

jval jbuf_done(struct jbuf *o)
{
    bool mixed = o->len && o->marks && memchr(o->marks, o->marks[0] ^ 1, o->len);
    uint8_t mark = o->len == 0 ? MARK_TEMPLATE : o->marks ? o->marks[0] : o->mark;

    return make(o->b, o->len ? o->p : "", o->len, mixed ? MARK_MIXED : mark,
                mixed ? o->marks : NULL);
}

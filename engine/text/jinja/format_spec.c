/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers with width, sign and precision, for both kinds of formats; and the specifications of
 * str.format, [[fill]align][sign][#][0][width][,][.precision][type]. */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/text/jinja/run.h"

enum { MAX_PRECISION = 100, MAX_DIGITS = 512 };

/* The digits of a number's size, without sign. */
static void digits(jrun *r, jval v, char conversion, bool alternative, int64_t precision,
                   char out[MAX_DIGITS])
{
    int64_t i;
    uint64_t size;

    if (precision > MAX_PRECISION) {
        jfail(jb(r), -E2BIG, "a format's precision is more than %d", (int)MAX_PRECISION);
    }
    if (strchr("fFeEgG", conversion)) {
        double f = fabs(jto_double(v));
        char format[] = "%.*f";
        char exact[] = "%#.*f";

        format[3] = conversion;
        exact[4] = conversion;
        (void)snprintf(out, MAX_DIGITS, alternative ? exact : format,
                       (int)(precision < 0 ? 6 : precision), f);
        return;
    }
    if (v.kind == J_FLOAT && conversion != 'd') {
        jfail(jb(r), -EINVAL, "an integer is needed for format '%c'", conversion);
    }
    if (v.kind == J_FLOAT && !(fabs(v.u.f) < 9.2e18)) {
        jfail(jb(r), -EINVAL, "an integer does not fit in 64 bits");
    }
    i = v.kind == J_FLOAT ? (int64_t)v.u.f : jto_int(v);
    size = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    if (conversion == 'b') {
        int n = 0;
        int top = 63;

        while (top > 0 && !(size >> top & 1)) {
            top--;
        }
        for (; top >= 0; top--) {
            out[n++] = (char)('0' + (size >> top & 1));
        }
        out[n] = '\0';
        return;
    }
    (void)snprintf(out, MAX_DIGITS,
                   conversion == 'x'   ? "%.*" PRIx64
                   : conversion == 'X' ? "%.*" PRIX64
                   : conversion == 'o' ? "%.*" PRIo64
                                       : "%.*" PRIu64,
                   (int)(precision < 0 ? 1 : precision), size);
}

static void commas(char text[MAX_DIGITS])
{
    size_t whole = strspn(text, "0123456789");

    for (size_t i = whole; i > 3 && strlen(text) + 2 < MAX_DIGITS; i -= 3) {
        memmove(text + i - 2, text + i - 3, strlen(text + i - 3) + 1);
        text[i - 3] = ',';
    }
}

void jformat_number(jrun *r, struct jbuf *o, jval v, char conversion, int flags, int64_t width,
                    int64_t precision)
{
    char text[MAX_DIGITS];
    char before[4] = "";
    enum jmark mark = v.user ? MARK_USER : MARK_TEMPLATE;
    bool minus = v.kind == J_FLOAT ? signbit(v.u.f) != 0 : jto_int(v) < 0;
    int64_t n;

    if (conversion == 'd' && v.kind == J_FLOAT && fabs(v.u.f) < 1) {
        minus = false;
    }
    digits(r, v, conversion, (flags & F_ALT) != 0, precision, text);
    if (flags & F_COMMA) {
        commas(text);
    }
    if (minus || flags & (F_PLUS | F_SPACE)) {
        (void)snprintf(before, sizeof(before), "%s", minus ? "-" : flags & F_PLUS ? "+" : " ");
    }
    if (flags & F_ALT && strchr("xXob", conversion)) {
        size_t k = strlen(before);

        before[k] = '0';
        before[k + 1] = conversion;
        before[k + 2] = '\0';
    }
    n = width - (int64_t)(strlen(text) + strlen(before));
    jstep(r, n > 0 ? (uint64_t)n : 0);
    for (int64_t i = 0; !(flags & (F_LEFT | F_ZERO)) && i < n; i++) {
        jbuf_ascii(o, " ", MARK_TEMPLATE);
    }
    jbuf_ascii(o, before, mark);
    for (int64_t i = 0; flags & F_ZERO && !(flags & F_LEFT) && i < n; i++) {
        jbuf_ascii(o, "0", mark);
    }
    jbuf_ascii(o, text, mark);
    for (int64_t i = 0; flags & F_LEFT && i < n; i++) {
        jbuf_ascii(o, " ", MARK_TEMPLATE);
    }
}

/* ---- specifications -------------------------------------------------------------------------- */

struct spec {
    struct jstr fill; /* one character; empty: a space */
    char align;       /* < > ^ =, or 0 */
    int flags;
    int64_t width;
    int64_t precision;
    char type;
};

static int64_t take_number(const struct jstr *s, size_t *at, int64_t otherwise)
{
    int64_t v = 0;

    if (*at >= s->len || s->ptr[*at] < '0' || s->ptr[*at] > '9') {
        return otherwise;
    }
    while (*at < s->len && s->ptr[*at] >= '0' && s->ptr[*at] <= '9' && v < INT32_MAX) {
        v = v * 10 + (s->ptr[(*at)++] - '0');
    }
    return v;
}

static bool take_char(const struct jstr *s, size_t *at, const char *any, char *ret)
{
    if (*at >= s->len || !s->ptr[*at] || !strchr(any, s->ptr[*at])) {
        return false;
    }
    *ret = s->ptr[(*at)++];
    return true;
}

static struct spec parse(jrun *r, const struct jstr *s)
{
    struct spec p = {.precision = -1};
    size_t at = 0;
    char c;

    if (s->len > 0) {
        size_t n = jstr_step(s, 0);

        if (n < s->len && strchr("<>^=", s->ptr[n])) {
            p.fill = (struct jstr){.ptr = s->ptr, .len = n, .mark = (uint8_t)jstr_mark_at(s, 0)};
            at = n;
        }
    }
    (void)take_char(s, &at, "<>^=", &p.align);
    if (take_char(s, &at, "+- ", &c)) {
        p.flags |= c == '+' ? F_PLUS : c == ' ' ? F_SPACE : 0;
    }
    p.flags |= take_char(s, &at, "#", &c) ? F_ALT : 0;
    if (take_char(s, &at, "0", &c) && !p.align) {
        p.align = '=';
        p.fill = (struct jstr){.ptr = "0", .len = 1};
    }
    p.width = take_number(s, &at, 0);
    p.flags |= take_char(s, &at, ",", &c) ? F_COMMA : 0;
    if (take_char(s, &at, ".", &c)) {
        p.precision = take_number(s, &at, -2);
    }
    (void)take_char(s, &at, "bcdeEfFgGnosxX%", &p.type);
    if (at != s->len || p.precision == -2) {
        jfail(jb(r), -EINVAL, "format: the specification behind ':' is malformed");
    }
    return p;
}

static void put_fill(struct jbuf *o, const struct spec *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (p->fill.len) {
            jbuf_str(o, &p->fill);
        } else {
            jbuf_ascii(o, " ", MARK_TEMPLATE);
        }
    }
}

static jval number_text(jrun *r, jval v, const struct spec *p)
{
    struct jbuf o = {.b = jb(r)};
    char type = p->type;
    char text[40];

    if (type == '%') {
        v = (jval){.kind = J_FLOAT, .user = v.user, .u.f = jto_double(v) * 100};
        jformat_number(r, &o, v, 'f', p->flags, 0, p->precision);
        jbuf_ascii(&o, "%", v.user ? MARK_USER : MARK_TEMPLATE);
        return jbuf_done(&o);
    }
    if (!type && v.kind == J_FLOAT && p->precision < 0) {
        if (p->flags & (F_PLUS | F_SPACE) && !signbit(v.u.f)) {
            jbuf_ascii(&o, p->flags & F_PLUS ? "+" : " ", MARK_TEMPLATE);
        }
        jbuf_put(&o, text, jfloat_text(v.u.f, text), v.user ? MARK_USER : MARK_TEMPLATE);
        return jbuf_done(&o);
    }
    if (!p->type && v.kind == J_FLOAT) { /* like g, but told from an integer */
        struct jstr *s;

        jformat_number(r, &o, v, 'g', p->flags, 0, p->precision);
        s = jstr_of(jbuf_done(&o));
        if (!memchr(s->ptr, '.', s->len) && !memchr(s->ptr, 'e', s->len) && isfinite(v.u.f)) {
            jbuf_ascii(&o, ".0", v.user ? MARK_USER : MARK_TEMPLATE);
        }
        return jbuf_done(&o);
    }
    type = type && type != 'n' ? type : 'd';
    if (strchr("bcdoxX", type) && (v.kind == J_FLOAT || p->precision >= 0)) {
        jfail(jb(r), -EINVAL, "format '%c' needs an integer and no precision", type);
    }
    if (type == 's' || type == 'c') {
        jfail(jb(r), -EINVAL, "format '%c' does not fit a number", type);
    }
    jformat_number(r, &o, v, type, p->flags, 0, p->precision);
    return jbuf_done(&o);
}

void jformat_spec(jrun *r, struct jbuf *o, jval v, const struct jstr *spec)
{
    struct spec p = parse(r, spec);
    bool number = jis_number(v);
    const struct jstr *s;
    size_t end;
    size_t sign = 0;
    char align;
    int64_t n;
    struct jstr part;

    if (spec->len == 0) {
        jput_str(r, o, v);
        return;
    }
    if (v.kind != J_STR && !jis_number(v)) {
        juse(r, v);
        jfail(jb(r), -EINVAL, "format: a %s takes no specification", jkind_name(v));
    }
    s = jstr_of(number ? number_text(r, v, &p) : jto_str(r, v));
    if (!number && ((p.type && p.type != 's') || p.align == '=' || p.flags)) {
        jfail(jb(r), -EINVAL, "format: the specification is not for a string");
    }
    end = !number && p.precision >= 0 ? jstr_offset(s, (size_t)p.precision) : s->len;
    align = p.align ? p.align : number ? '>' : '<';
    part = (struct jstr){.ptr = s->ptr, .len = end};
    n = p.width - (int64_t)jstr_chars(&part);
    n = n < 0 ? 0 : n;
    jstep(r, (uint64_t)n);
    if (align == '=') {
        sign = s->len && (s->ptr[0] == '-' || s->ptr[0] == '+' || s->ptr[0] == ' ');
        jbuf_cut(o, s, 0, sign);
    }
    put_fill(o, &p, align == '>' || align == '=' ? n : align == '^' ? n / 2 : 0);
    jbuf_cut(o, s, sign, end);
    put_fill(o, &p, align == '<' ? n : align == '^' ? n - n / 2 : 0);
}

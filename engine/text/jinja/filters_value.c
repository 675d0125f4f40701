/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that work on one value of any type: default, numbers, tojson, attr. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/jinja/run.h"

static bool given(jval v)
{
    return v.kind != J_MISSING;
}

static jval f_default(jrun *r, jval self, struct jargs *a)
{
    jval arg[2];

    jargs_take(r, a, "default_value,boolean", 0, arg);
    if (self.kind == J_UNDEF || (given(arg[1]) && jtruth(arg[1]) && !jtruth(self))) {
        return given(arg[0]) ? arg[0] : jstr_static(jb(r), "");
    }
    return self;
}

static jval f_length(jrun *r, jval self, struct jargs *a)
{
    int64_t n = jlen(self);

    jargs_take(r, a, "", 0, NULL);
    if (n < 0) {
        jfail(jb(r), -EINVAL, "a %s has no length", jkind_name(self));
    }
    jstep(r, self.kind == J_STR ? jstr_of(self)->len / 16 : 0);
    return jint(n);
}

static jval f_attr(jrun *r, jval self, struct jargs *a)
{
    jval name;
    jval v;

    jargs_take(r, a, "name", 1, &name);
    name = jto_str(r, name);
    juse(r, self);
    if (self.kind == J_DICT) { /* attributes alone, no keys */
        const struct jbuiltin *b = jmethod_find(self, jstr_of(name));

        return b && b->call ? jbind(r, b, self) : jundef(NULL);
    }
    v = jgetattr(r, self, name);
    return v;
}

/* What int(text, base) takes: white space, a sign, digits with single underscores. */
static bool parse_int(jrun *r, const struct jstr *text, int64_t base, int64_t *ret)
{
    const struct jstr *s = jstr_of(jstr_strip(r, text, NULL, STRIP_LEFT | STRIP_RIGHT));
    size_t i = s->len && (s->ptr[0] == '-' || s->ptr[0] == '+');
    bool minus = i && s->ptr[0] == '-';
    bool digit = false;
    int64_t v = 0;

    if (s->len > i + 1 && s->ptr[i] == '0' &&
        ((base == 16 && (s->ptr[i + 1] | 0x20) == 'x') ||
         (base == 8 && (s->ptr[i + 1] | 0x20) == 'o') ||
         (base == 2 && (s->ptr[i + 1] | 0x20) == 'b'))) {
        i += 2;
    }
    for (; i < s->len; i++) {
        char c = s->ptr[i];
        int d = c >= '0' && c <= '9'                     ? c - '0'
                : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                         : 99;

        if (c == '_' && digit) {
            digit = false;
            continue;
        }
        if (d >= base) {
            return false;
        }
        if (__builtin_mul_overflow(v, base, &v) || __builtin_sub_overflow(v, (int64_t)d, &v)) {
            jfail(jb(r), -EINVAL, "an integer does not fit in 64 bits");
        }
        digit = true;
    }
    if (!minus && v == INT64_MIN) {
        jfail(jb(r), -EINVAL, "an integer does not fit in 64 bits");
    }
    *ret = minus ? v : -v;
    return digit;
}

static bool parse_float(jrun *r, const struct jstr *text, double *ret)
{
    const struct jstr *s = jstr_of(jstr_strip(r, text, NULL, STRIP_LEFT | STRIP_RIGHT));
    char copy[128];
    size_t n = 0;
    char *end;

    if (s->len == 0 || s->len >= sizeof(copy)) {
        return false;
    }
    for (size_t i = 0; i < s->len; i++) {
        if (s->ptr[i] == 'x' || s->ptr[i] == 'X' || s->ptr[i] == '(' || s->ptr[i] == '\0') {
            return false; /* strtod knows more than Python */
        }
        if (s->ptr[i] != '_') {
            copy[n++] = s->ptr[i];
        }
    }
    copy[n] = '\0';
    *ret = strtod(copy, &end);
    return end == copy + n && n > 0;
}

static jval f_int(jrun *r, jval self, struct jargs *a)
{
    jval arg[2];
    jval otherwise;
    int64_t base;
    int64_t v;
    double f;

    jargs_take(r, a, "default,base", 0, arg);
    otherwise = given(arg[0]) ? arg[0] : jint(0);
    base = given(arg[1]) ? jwant_int(r, arg[1], "int: base") : 10;
    juse(r, self);
    if (self.kind == J_STR) {
        bool user = jmarked(self);

        if (parse_int(r, jstr_of(self), base, &v)) {
            return (jval){.kind = J_INT, .user = user, .u.i = v};
        }
        if (!parse_float(r, jstr_of(self), &f)) {
            return otherwise;
        }
        self = (jval){.kind = J_FLOAT, .user = user, .u.f = f};
    }
    if (!jis_number(self)) {
        return otherwise;
    }
    if (self.kind != J_FLOAT) {
        return (jval){.kind = J_INT, .user = self.user, .u.i = jto_int(self)};
    }
    if (!isfinite(self.u.f)) {
        return otherwise;
    }
    if (fabs(self.u.f) >= 9.2e18) {
        jfail(jb(r), -EINVAL, "an integer does not fit in 64 bits");
    }
    return (jval){.kind = J_INT, .user = self.user, .u.i = (int64_t)self.u.f};
}

static jval f_float(jrun *r, jval self, struct jargs *a)
{
    jval otherwise;
    double f;

    jargs_take(r, a, "default", 0, &otherwise);
    juse(r, self);
    if (self.kind == J_STR ? parse_float(r, jstr_of(self), &f) : jis_number(self)) {
        return (jval){.kind = J_FLOAT,
                      .user = jmarked(self),
                      .u.f = self.kind == J_STR ? f : jto_double(self)};
    }
    return given(otherwise) ? otherwise : jfloat(0);
}

static jval f_abs(jrun *r, jval self, struct jargs *a)
{
    jargs_take(r, a, "", 0, NULL);
    return jis_number(self) && jto_double(self) >= 0 && self.kind != J_BOOL ? self
           : jto_double(jnegate(r, self)) < 0 ? jnegate(r, jnegate(r, self))
                                              : jnegate(r, self);
}

/* Half to even, as Python's round, by way of the decimal digits. */
static double round_common(double f, int precision)
{
    char text[400];
    double scale = pow(10, precision);

    if (precision < 0) {
        return nearbyint(f / pow(10, -precision)) * pow(10, -precision);
    }
    if (precision > 300 || fabs(f) > 1e15 / (scale > 1e15 ? 1e15 : scale)) {
        return f;
    }
    (void)snprintf(text, sizeof(text), "%.*f", precision, f);
    return strtod(text, NULL);
}

static jval f_round(jrun *r, jval self, struct jargs *a)
{
    jval arg[2];
    int64_t precision;
    double f;
    double scale;
    const struct jstr *how;

    jargs_take(r, a, "precision,method", 0, arg);
    precision = given(arg[0]) ? jwant_int(r, arg[0], "round: precision") : 0;
    how = given(arg[1]) ? jwant_str(r, arg[1], "round: method") : NULL;
    juse(r, self);
    if (!jis_number(self) || precision > 300 || precision < -300) {
        jfail(jb(r), -EINVAL, "round: a %s cannot be rounded", jkind_name(self));
    }
    f = jto_double(self);
    scale = pow(10, (double)precision);
    if (!how || jstr_is(how, "common")) {
        if (self.kind == J_INT && precision >= 0) {
            return self;
        }
        f = round_common(f, (int)precision);
        return self.kind == J_FLOAT ? (jval){.kind = J_FLOAT, .user = self.user, .u.f = f}
                                    : (jval){.kind = J_INT, .user = self.user, .u.i = (int64_t)f};
    }
    if (!jstr_is(how, "ceil") && !jstr_is(how, "floor")) {
        jfail(jb(r), -EINVAL, "round: the method is none of common, ceil, floor");
    }
    return (jval){.kind = J_FLOAT,
                  .user = self.user,
                  .u.f = (how->ptr[0] == 'c' ? ceil(f * scale) : floor(f * scale)) / scale};
}

const struct jbuiltin jfilters_value[] = {
    {"default", f_default, NULL},
    {"d", f_default, NULL},
    {"length", f_length, NULL},
    {"count", f_length, NULL},
    {"attr", f_attr, NULL},
    {"int", f_int, NULL},
    {"float", f_float, NULL},
    {"abs", f_abs, NULL},
    {"round", f_round, NULL},
    {"tojson", jfilter_tojson, NULL},
    {0},
};

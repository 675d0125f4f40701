/* SPDX-License-Identifier: Apache-2.0 */
/* Upper and lower case, and questions about a string's characters. */

#include "engine/text/jinja/run.h"

/* The upper case of characters that one cannot hold. */
static const struct {
    uint32_t c;
    const char *upper;
} longer[] = {{0xdf, "SS"},    {0x149, "\xca\xbcN"}, {0xfb00, "FF"}, {0xfb01, "FI"}, {0xfb02, "FL"},
              {0xfb03, "FFI"}, {0xfb04, "FFL"},      {0xfb05, "ST"}, {0xfb06, "ST"}};

static void put(struct jbuf *o, uint32_t c, bool upper, bool title, enum jmark mark)
{
    for (size_t i = 0; upper && c > 0x7f && i < sizeof(longer) / sizeof(longer[0]); i++) {
        if (longer[i].c == c) {
            const char *s = longer[i].upper;

            jbuf_put(o, s, title && (uint8_t)s[0] < 0x80 ? 1 : __builtin_strlen(s), mark);
            for (const char *p = s + 1; title && (uint8_t)s[0] < 0x80 && *p; p++) {
                jbuf_char(o, juni_lower((uint8_t)*p), mark);
            }
            return;
        }
    }
    if (!upper && c == 0x130) { /* a Turkish I with its dot */
        jbuf_ascii(o, "i\xcc\x87", mark);
        return;
    }
    jbuf_char(o, upper ? juni_upper(c) : juni_lower(c), mark);
}

jval jstr_case(jrun *r, const struct jstr *s, enum jcase how)
{
    struct jbuf o = {.b = jb(r)};
    bool inside = false; /* a word, for title */
    size_t n;
    jval v;

    jstep(r, s->len / 4);
    for (size_t i = 0; i < s->len; i += n) {
        uint32_t c = juni_at(s->ptr + i, s->len - i, &n);
        bool upper = how == CASE_UPPER || (how == CASE_CAPITALIZE && i == 0) ||
                     (how == CASE_TITLE && !inside) || (how == CASE_SWAP && juni_lower(c) == c);

        put(&o, c, upper, how == CASE_CAPITALIZE || how == CASE_TITLE, jstr_mark_at(s, i));
        inside = juni_letter(c);
    }
    v = jbuf_done(&o);
    jstr_of(v)->markup = s->markup;
    return v;
}

#define CASE_METHOD(name, how)                                                                     \
    static jval name(jrun *r, jval self, struct jargs *a)                                          \
    {                                                                                              \
        jargs_take(r, a, "", 0, NULL);                                                             \
        return jstr_case(r, jstr_of(self), how);                                                   \
    }

CASE_METHOD(m_upper, CASE_UPPER)
CASE_METHOD(m_lower, CASE_LOWER)
CASE_METHOD(m_capitalize, CASE_CAPITALIZE)
CASE_METHOD(m_title, CASE_TITLE)
CASE_METHOD(m_swapcase, CASE_SWAP)

static bool alpha(uint32_t c)
{
    return juni_letter(c);
}

static bool alnum(uint32_t c)
{
    return juni_letter(c) || juni_digit(c);
}

static bool ascii(uint32_t c)
{
    return c < 0x80;
}

static bool name(uint32_t c)
{
    return c == '_' || alnum(c);
}

/* Has it characters, and are all of them such? */
static jval all(jrun *r, jval self, struct jargs *a, bool (*is)(uint32_t c), bool empty)
{
    const struct jstr *s = jstr_of(self);
    size_t n;

    jargs_take(r, a, "", 0, NULL);
    jstep(r, s->len);
    for (size_t i = 0; i < s->len; i += n) {
        if (!is(juni_at(s->ptr + i, s->len - i, &n))) {
            return jboolean(false);
        }
    }
    return jboolean(s->len > 0 || empty);
}

#define ALL_METHOD(function, is, empty)                                                            \
    static jval function(jrun *r, jval self, struct jargs *a)                                      \
    {                                                                                              \
        return all(r, self, a, is, empty);                                                         \
    }

ALL_METHOD(m_isalpha, alpha, false)
ALL_METHOD(m_isalnum, alnum, false)
ALL_METHOD(m_isdigit, juni_digit, false)
ALL_METHOD(m_isspace, juni_space, false)
ALL_METHOD(m_isascii, ascii, true)
ALL_METHOD(m_isprintable, juni_printable, true)

static jval m_isidentifier(jrun *r, jval self, struct jargs *a)
{
    const struct jstr *s = jstr_of(self);

    return jboolean(jtruth(all(r, self, a, name, false)) &&
                    !(s->ptr[0] >= '0' && s->ptr[0] <= '9'));
}

static jval cased(jrun *r, jval self, struct jargs *a, const char *test)
{
    return jcall_builtin(r, jtest_find(test), self, a);
}

static jval m_islower(jrun *r, jval self, struct jargs *a)
{
    return cased(r, self, a, "lower");
}

static jval m_isupper(jrun *r, jval self, struct jargs *a)
{
    return cased(r, self, a, "upper");
}

static jval m_istitle(jrun *r, jval self, struct jargs *a)
{
    jargs_take(r, a, "", 0, NULL);
    return jboolean(jtruth(jboolean(jstr_eq(jstr_of(jstr_case(r, jstr_of(self), CASE_TITLE)),
                                            jstr_of(self)))) &&
                    !jstr_eq(jstr_of(jstr_case(r, jstr_of(self), CASE_SWAP)), jstr_of(self)));
}

const struct jbuiltin jmethods_case[] = {
    {"upper", m_upper, NULL},
    {"lower", m_lower, NULL},
    {"casefold", m_lower, NULL},
    {"capitalize", m_capitalize, NULL},
    {"title", m_title, NULL},
    {"swapcase", m_swapcase, NULL},
    {"isalpha", m_isalpha, NULL},
    {"isalnum", m_isalnum, NULL},
    {"isdigit", m_isdigit, NULL},
    {"isdecimal", m_isdigit, NULL},
    {"isnumeric", m_isdigit, NULL},
    {"isspace", m_isspace, NULL},
    {"isascii", m_isascii, NULL},
    {"isprintable", m_isprintable, NULL},
    {"isidentifier", m_isidentifier, NULL},
    {"islower", m_islower, NULL},
    {"isupper", m_isupper, NULL},
    {"istitle", m_istitle, NULL},
    {0},
};

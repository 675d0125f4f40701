/* SPDX-License-Identifier: Apache-2.0 */
/* Calls in Python's form, f(a=1, b="x"), to JSON: strings with either quote and Python's escapes,
 * numbers, True, False, None (and JSON's words), lists, dicts with strings as keys. Arguments
 * without a name are refused, since nobody knows which parameter is meant. */

#include <string.h>

#include "engine/text/calls/calls_impl.h"

static int hex(char b)
{
    return b >= '0' && b <= '9'   ? b - '0'
           : b >= 'a' && b <= 'f' ? b - 'a' + 10
           : b >= 'A' && b <= 'F' ? b - 'A' + 10
                                  : -1;
}

/* p: behind the backslash. The escape as JSON; behind it, NULL where it is cut or broken. */
static const char *escape(struct calls *c, const char *p, const char *end)
{
    if (p == end) {
        return NULL;
    }
    if (*p == 'u' || *p == 'x') {
        int n = *p == 'u' ? 4 : 2;

        if (end - p <= n) {
            return NULL;
        }
        for (int i = 1; i <= n; i++) {
            if (hex(p[i]) < 0) {
                return NULL;
            }
        }
        calls_write_word(c, n == 4 ? "\\u" : "\\u00");
        calls_write(c, p + 1, (size_t)n);
        return p + 1 + n;
    }
    if (strchr("ntrbf\\\"", *p) && *p) {
        calls_write(c, "\\", 1);
        calls_write(c, p, 1);
        return p + 1;
    }
    if (*p == '\'' || *p == '/') {
        calls_write(c, p, 1);
        return p + 1;
    }
    calls_write_word(c, "\\\\"); /* Python keeps a backslash that means nothing */
    return p;
}

static const char *string(struct calls *c, const char *p, const char *end)
{
    char quote = *p++;

    calls_write(c, "\"", 1);
    while (p && p < end && *p != quote) {
        const char *from = p;

        if (*p == '\\') {
            p = escape(c, p + 1, end);
            continue;
        }
        while (p < end && *p != quote && *p != '\\' && *p != '"' && (unsigned char)*p >= 0x20) {
            p++;
        }
        calls_write(c, from, (size_t)(p - from));
        if (p < end && *p != quote && *p != '\\') { /* what JSON wants escaped: a byte's string */
            static const char digits[] = "0123456789abcdef";
            char code[] = {'\\', 'u', '0', '0', digits[(unsigned char)*p >> 4], digits[*p & 15], 0};

            calls_write_word(c, *p == '"' ? "\\\"" : *p == '\n' ? "\\n" : code);
            p++;
        }
    }
    calls_write(c, "\"", 1);
    return p && p < end ? p + 1 : NULL;
}

static const struct {
    const char *python;
    const char *json;
} words[] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
             {"true", "true"}, {"false", "false"}, {"null", "null"}};

static const char *value(struct calls *c, const char *p, const char *end, int depth);

static const char *members(struct calls *c, const char *p, const char *end, char close, int depth)
{
    calls_write(c, p, 1);
    p = calls_skip_space(p + 1, end);
    while (p && p < end && *p != close) {
        if (close == '}') {
            p = *p == '"' || *p == '\'' ? string(c, p, end) : NULL;
            p = p ? calls_skip_space(p, end) : NULL;
            if (!p || p == end || *p != ':') {
                return NULL;
            }
            calls_write(c, ": ", 2);
            p = calls_skip_space(p + 1, end);
        }
        p = value(c, p, end, depth);
        p = p ? calls_skip_space(p, end) : NULL;
        if (p && p < end && *p == ',') {
            p = calls_skip_space(p + 1, end);
            if (p < end && *p != close) {
                calls_write(c, ", ", 2);
            }
        } else if (!p || p == end || *p != close) {
            return NULL;
        }
    }
    calls_write(c, &close, 1);
    return p && p < end ? p + 1 : NULL;
}

static const char *value(struct calls *c, const char *p, const char *end, int depth)
{
    const char *after;

    if (p == end || depth == 0) {
        return NULL;
    }
    if (*p == '"' || *p == '\'') {
        return string(c, p, end);
    }
    if (*p == '[' || *p == '{') {
        return members(c, p, end, *p == '[' ? ']' : '}', depth - 1);
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t len = strlen(words[i].python);

        if ((size_t)(end - p) >= len && !memcmp(p, words[i].python, len)) {
            calls_write_word(c, words[i].json);
            return p + len;
        }
    }
    after = calls_json_number(p, end);
    if (after) {
        calls_write(c, p, (size_t)(after - p));
    }
    return after;
}

static bool is_word(char b)
{
    return (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || b == '_' ||
           b == '.' || b == '-';
}

static const char *skip_name(const char *p, const char *end)
{
    while (p < end && is_word(*p)) {
        p++;
    }
    return p;
}

const char *calls_python_call(struct calls *c, const char *p, const char *end, bool dot_call)
{
    static const char method[] = ".call";
    const char *name = p;
    size_t len;

    p = skip_name(p, end);
    len = (size_t)(p - name);
    if (p == end || *p != '(') {
        return NULL;
    }
    if (dot_call) {
        if (len < sizeof(method) || memcmp(p - 5, method, 5) != 0) {
            return NULL;
        }
        len -= 5;
    }
    calls_write_name(c, name, len);
    calls_write(c, "{", 1);
    p = calls_skip_space(p + 1, end);
    for (bool first = true; p < end && *p != ')'; first = false) {
        const char *key = p;

        p = skip_name(p, end);
        if (!first) {
            calls_write(c, ", ", 2);
        }
        calls_write_string(c, key, (size_t)(p - key));
        calls_write(c, ": ", 2);
        len = (size_t)(p - key);
        p = calls_skip_space(p, end);
        if (len == 0 || p == end || *p != '=') {
            return NULL;
        }
        p = value(c, calls_skip_space(p + 1, end), end, CALLS_DEPTH);
        p = p ? calls_skip_space(p, end) : NULL;
        if (!p || p == end || (*p != ',' && *p != ')')) {
            return NULL;
        }
        if (*p == ',') {
            p = calls_skip_space(p + 1, end);
        }
    }
    calls_write(c, "}", 1);
    calls_write_end(c);
    return p < end ? p + 1 : NULL;
}

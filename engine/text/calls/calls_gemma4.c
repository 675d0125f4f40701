/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 4: call:NAME{key:value,...}, where a string stands between two tokens <|"|> with nothing
 * escaped, keys are bare, and the rest is as in JSON. */

#include <string.h>

#include "engine/text/calls/calls_impl.h"

#define QUOTE "<|\"|>"
enum { QUOTE_BYTES = sizeof(QUOTE) - 1 };

static const char *value(struct calls *c, const char *p, const char *end, int depth);

static bool quoted(const char *p, const char *end)
{
    return end - p >= QUOTE_BYTES && !memcmp(p, QUOTE, QUOTE_BYTES);
}

static const char *string(struct calls *c, const char *p, const char *end)
{
    const char *stop;

    p += QUOTE_BYTES;
    stop = memmem(p, (size_t)(end - p), QUOTE, QUOTE_BYTES);
    if (!stop) {
        return NULL;
    }
    calls_write_string(c, p, (size_t)(stop - p));
    return stop + QUOTE_BYTES;
}

static const char *key(struct calls *c, const char *p, const char *end)
{
    const char *from = p;

    if (quoted(p, end)) {
        p = string(c, p, end);
    } else {
        while (p < end && !strchr(":,{}[]", *p)) {
            p++;
        }
        if (p == from) {
            return NULL;
        }
        calls_write_string(c, from, (size_t)(p - from));
    }
    if (!p || p == end || *p != ':') {
        return NULL;
    }
    calls_write(c, ":", 1);
    return calls_skip_space(p + 1, end);
}

static const char *members(struct calls *c, const char *p, const char *end, int depth)
{
    char close = *p == '{' ? '}' : ']';

    calls_write(c, p, 1);
    p = calls_skip_space(p + 1, end);
    for (bool first = true; p && p < end && *p != close; first = false) {
        if (!first) {
            if (*p != ',') {
                return NULL;
            }
            calls_write(c, ",", 1);
            p = calls_skip_space(p + 1, end);
        }
        p = close == '}' ? key(c, p, end) : p;
        p = p ? value(c, p, end, depth) : NULL;
        p = p ? calls_skip_space(p, end) : NULL;
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
    if (quoted(p, end)) {
        return string(c, p, end);
    }
    if (*p == '{' || *p == '[') {
        return members(c, p, end, depth - 1);
    }
    after = *p == '"' ? NULL : calls_json_value(p, end, depth);
    if (after) {
        calls_write(c, p, (size_t)(after - p));
    }
    return after;
}

bool gemma4_read(struct calls *c, const char *text, size_t len)
{
    static const char call[] = "call:";
    const char *end = text + len;
    const char *p = calls_skip_space(text, end);
    const char *name;

    if ((size_t)(end - p) < sizeof(call) || memcmp(p, call, sizeof(call) - 1) != 0) {
        return false;
    }
    name = p + sizeof(call) - 1;
    p = memchr(name, '{', (size_t)(end - name));
    if (!p) {
        return false;
    }
    calls_write_name(c, name, (size_t)(p - name));
    p = members(c, p, end, CALLS_DEPTH);
    calls_write_end(c);
    return p && calls_skip_space(p, end) == end;
}

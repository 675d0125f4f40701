/* SPDX-License-Identifier: Apache-2.0 */
/* JSON as models write it: checked by RFC 8259, never rewritten, so arguments are told in the
 * model's own bytes. A call is an object with `name` (or `function`) and `arguments` (or
 * `parameters`); other members are passed over. */

#include <string.h>

#include "engine/text/calls/calls_impl.h"

const char *calls_skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')) {
        p++;
    }
    return p;
}

static bool is_hex(char b)
{
    return (b >= '0' && b <= '9') || (b >= 'a' && b <= 'f') || (b >= 'A' && b <= 'F');
}

static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++) {
        if ((unsigned char)*p < 0x20) {
            return NULL;
        }
        if (*p != '\\') {
            continue;
        }
        if (++p == end || !*p || !strchr("\"\\/bfnrtu", *p)) {
            return NULL;
        }
        if (*p == 'u') {
            for (int i = 0; i < 4; i++) {
                if (++p == end || !is_hex(*p)) {
                    return NULL;
                }
            }
        }
    }
    return p < end ? p + 1 : NULL;
}

static const char *skip_digits(const char *p, const char *end)
{
    const char *from = p;

    while (p < end && *p >= '0' && *p <= '9') {
        p++;
    }
    return p > from ? p : NULL;
}

const char *calls_json_number(const char *p, const char *end)
{
    const char *from = p += p < end && *p == '-';

    p = skip_digits(p, end);
    if (!p || (*from == '0' && p > from + 1)) {
        return NULL;
    }
    if (p < end && *p == '.') {
        p = skip_digits(p + 1, end);
    }
    if (p && p < end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < end && (*p == '-' || *p == '+');
        p = skip_digits(p, end);
    }
    return p;
}

static const char *skip_word(const char *p, const char *end, const char *word)
{
    size_t len = strlen(word);

    return (size_t)(end - p) >= len && !memcmp(p, word, len) ? p + len : NULL;
}

/* `close` ends it: members of an object, or values of a list. */
static const char *skip_members(const char *p, const char *end, char close, int depth)
{
    p = calls_skip_space(p + 1, end);
    if (p < end && *p == close) {
        return p + 1;
    }
    while (p && p < end) {
        if (close == '}') {
            p = *p == '"' ? skip_string(p, end) : NULL;
            p = p ? calls_skip_space(p, end) : NULL;
            if (!p || p == end || *p != ':') {
                return NULL;
            }
            p = calls_skip_space(p + 1, end);
        }
        p = calls_json_value(p, end, depth);
        p = p ? calls_skip_space(p, end) : NULL;
        if (!p || p == end) {
            return NULL;
        }
        if (*p == close) {
            return p + 1;
        }
        p = *p == ',' ? calls_skip_space(p + 1, end) : NULL;
    }
    return NULL;
}

const char *calls_json_value(const char *p, const char *end, int depth)
{
    if (p >= end || depth == 0) {
        return NULL;
    }
    switch (*p) {
    case '{':
        return skip_members(p, end, '}', depth - 1);
    case '[':
        return skip_members(p, end, ']', depth - 1);
    case '"':
        return skip_string(p, end);
    case 't':
        return skip_word(p, end, "true");
    case 'f':
        return skip_word(p, end, "false");
    case 'n':
        return skip_word(p, end, "null");
    default:
        return calls_json_number(p, end);
    }
}

bool calls_json_is_object(const char *p, const char *end)
{
    p = calls_skip_space(p, end);
    p = p < end && *p == '{' ? calls_json_value(p, end, CALLS_DEPTH) : NULL;
    return p && calls_skip_space(p, end) == end;
}

struct value {
    const char *at;
    size_t len;
};

/* The member of an object that is whole; the last of that name, as with Python. */
static struct value member(const char *p, const char *end, const char *key)
{
    struct value found = {NULL, 0};
    size_t len = strlen(key);

    p = calls_skip_space(p + 1, end);
    while (p < end && *p == '"') {
        const char *name = p + 1;
        const char *behind = skip_string(p, end);
        const char *value = calls_skip_space(calls_skip_space(behind, end) + 1, end);
        const char *after = calls_json_value(value, end, CALLS_DEPTH);

        if ((size_t)(behind - 1 - name) == len && !memcmp(name, key, len)) {
            found = (struct value){value, (size_t)(after - value)};
        }
        p = calls_skip_space(after, end);
        p = calls_skip_space(p + (*p == ','), end);
    }
    return found;
}

/* The object [p, end), which is whole. */
static bool read_call(struct calls *c, const char *p, const char *end, bool known)
{
    struct value inner = member(p, end, "function");
    struct value name;
    struct value arguments;

    if (inner.at && *inner.at == '{') {
        p = inner.at;
        end = inner.at + inner.len;
    }
    name = member(p, end, "name");
    if (!name.at && inner.at && *inner.at == '"') {
        name = inner;
    }
    arguments = member(p, end, "arguments");
    if (!arguments.at) {
        arguments = member(p, end, "parameters");
    }
    if (!name.at || *name.at != '"' || (known && !calls_tool(c, name.at + 1, name.len - 2))) {
        return false;
    }
    if (arguments.at && *arguments.at != '{' && *arguments.at != 'n') {
        return false;
    }
    calls_write_name(c, name.at + 1, name.len - 2);
    if (arguments.at && *arguments.at == '{') {
        calls_write(c, arguments.at, arguments.len);
    } else {
        calls_write_word(c, "{}");
    }
    calls_write_end(c);
    return true;
}

bool calls_json_calls(struct calls *c, const char *p, const char *end, bool known)
{
    bool list;

    p = calls_skip_space(p, end);
    list = p < end && *p == '[';
    p = calls_skip_space(p + list, end);
    while (p < end && *p == '{') {
        const char *after = calls_json_value(p, end, CALLS_DEPTH);

        if (!after || !read_call(c, p, after, known)) {
            return false;
        }
        p = calls_skip_space(after, end);
        if (p < end && (*p == ',' || (*p == ';' && !list))) {
            p = calls_skip_space(p + 1, end);
            if (p == end || *p != '{') {
                return false;
            }
        } else if (list && p < end && *p == '{') {
            return false;
        }
    }
    if (list) {
        p = p < end && *p == ']' ? calls_skip_space(p + 1, end) : NULL;
    }
    return p == end && c->n_written > 0;
}

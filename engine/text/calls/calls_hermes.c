/* SPDX-License-Identifier: Apache-2.0 */
/* Between <tool_call> and </tool_call>: Hermes' and Qwen's JSON object, or Qwen3-Coder's tags,
 *
 *     <function=NAME>
 *     <parameter=KEY>
 *     value
 *     </parameter>
 *     </function>
 *
 * where a value is bare text. The definition says whether it is a string; where it says nothing or
 * something else, what is JSON stays JSON. */

#include <string.h>

#include "engine/text/calls/calls_impl.h"

static bool begins(const char *p, const char *end, const char *with)
{
    size_t len = strlen(with);

    return (size_t)(end - p) >= len && !memcmp(p, with, len);
}

/* Of "<function=NAME>" or "<parameter=KEY>"; behind it, NULL if it is not there. */
static const char *tag(const char *p, const char *end, const char *open, const char **ret_name,
                       size_t *ret_len)
{
    const char *close;

    if (!begins(p, end, open)) {
        return NULL;
    }
    p += strlen(open);
    close = memchr(p, '>', (size_t)(end - p));
    *ret_name = p;
    *ret_len = close ? (size_t)(close - p) : 0;
    return *ret_len ? close + 1 : NULL;
}

/* Where "</parameter>" is that another tag follows: the text itself may hold one. */
static const char *value_end(const char *p, const char *end)
{
    static const char close[] = "</parameter>";

    while ((p = memmem(p, (size_t)(end - p), close, sizeof(close) - 1))) {
        const char *next = calls_skip_space(p + sizeof(close) - 1, end);

        if (begins(next, end, "<parameter=") || begins(next, end, "</function>")) {
            return p;
        }
        p++;
    }
    return NULL;
}

static void put_value(struct calls *c, enum calls_type type, const char *p, const char *end)
{
    static const struct {
        const char *python;
        const char *json;
    } words[] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const char *from;
    const char *after;

    if (p < end && *p == '\n') {
        p++;
    }
    if (end > p && end[-1] == '\n') {
        end--;
    }
    from = calls_skip_space(p, end);
    for (size_t i = 0; type == TYPE_OTHER && i < sizeof(words) / sizeof(words[0]); i++) {
        size_t len = strlen(words[i].python);

        if (begins(from, end, words[i].python) && calls_skip_space(from + len, end) == end) {
            calls_write_word(c, words[i].json);
            return;
        }
    }
    after = type == TYPE_STRING ? NULL : calls_json_value(from, end, CALLS_DEPTH);
    if (after && calls_skip_space(after, end) == end) {
        calls_write(c, from, (size_t)(after - from));
    } else {
        calls_write_string(c, p, (size_t)(end - p));
    }
}

/* "<function=" ... "</function>"; behind it, or NULL. */
static const char *function(struct calls *c, const char *p, const char *end)
{
    const char *tool;
    const char *name;
    size_t len;
    bool first = true;

    p = tag(p, end, "<function=", &name, &len);
    if (!p) {
        return NULL;
    }
    tool = calls_tool(c, name, len);
    calls_write_name(c, name, len);
    calls_write(c, "{", 1);
    p = calls_skip_space(p, end);
    while (!begins(p, end, "</function>")) {
        const char *stop;

        p = tag(p, end, "<parameter=", &name, &len);
        stop = p ? value_end(p, end) : NULL;
        if (!stop) {
            return NULL;
        }
        if (!first) {
            calls_write(c, ", ", 2);
        }
        first = false;
        calls_write_string(c, name, len);
        calls_write(c, ": ", 2);
        put_value(c, calls_type_of(tool, name, len), p, stop);
        p = calls_skip_space(stop + strlen("</parameter>"), end);
    }
    calls_write(c, "}", 1);
    calls_write_end(c);
    return p + strlen("</function>");
}

bool hermes_read(struct calls *c, const char *text, size_t len)
{
    const char *end = text + len;
    const char *p = calls_skip_space(text, end);

    if (p < end && (*p == '{' || *p == '[')) {
        return calls_json_calls(c, p, end, false);
    }
    while (p && p < end) {
        p = function(c, p, end);
        p = p ? calls_skip_space(p, end) : NULL;
    }
    return p == end;
}

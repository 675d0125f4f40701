/* SPDX-License-Identifier: Apache-2.0 */
/* Llama 3: the answer is one JSON object, {"name": ..., "parameters": {...}}, without a marker, or
 * <|python_tag|> and then the same, NAME.call(a="x"), or code for a tool that runs code. An answer
 * in JSON that somebody asked for looks alike at first: without the marker only the names of given
 * tools are calls. */

#include <string.h>

#include "engine/text/calls/calls_impl.h"

enum { MOST_SPACE = 1024 /* before the first key: all of it is read again with each byte */ };

bool llama3_may_be(const char *text, size_t len, bool *sure)
{
    static const char *const keys[] = {"name\"", "type\"", "function\"", "parameters\"",
                                       "arguments\""};
    const char *end = text + len;
    const char *p = calls_skip_space(text, end);

    p = calls_skip_space(p + 1, end);
    if (p >= end) {
        return len <= 2 * MOST_SPACE;
    }
    if (*p++ != '"') {
        return false;
    }
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        size_t whole = strlen(keys[i]);
        size_t n = whole < (size_t)(end - p) ? whole : (size_t)(end - p);

        if (!memcmp(p, keys[i], n)) {
            *sure = n == whole;
            return true;
        }
    }
    return false;
}

static bool code(struct calls *c, const char *text, size_t len)
{
    static const char *const names[] = {"python", "ipython", "code_interpreter"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (calls_tool(c, names[i], strlen(names[i]))) {
            calls_write_name(c, names[i], strlen(names[i]));
            calls_write_word(c, "{\"code\": ");
            calls_write_string(c, text, len);
            calls_write(c, "}", 1);
            calls_write_end(c);
            return true;
        }
    }
    return false;
}

/* Readers that failed may have written something. */
static void clear(struct calls *c)
{
    c->n_out = 0;
    c->n_written = 0;
    c->failed = false;
}

bool llama3_read(struct calls *c, const char *text, size_t len)
{
    const char *end = text + len;
    const char *p = calls_skip_space(text, end);

    if (calls_json_calls(c, p, end, c->bare)) {
        return true;
    }
    clear(c);
    if (c->bare || p == end || *p == '{') {
        return false;
    }
    p = calls_python_call(c, p, end, true);
    if (p && calls_skip_space(p, end) == end) {
        return true;
    }
    clear(c);
    return c->whole && code(c, text, len); /* half a program looks like a whole one */
}

/* SPDX-License-Identifier: Apache-2.0 */
/* LFM2, between <|tool_call_start|> and <|tool_call_end|>: a list of calls in Python's form,
 * [f(a=1), g()], or one in JSON. */

#include "engine/text/calls/calls_impl.h"

bool lfm2_read(struct calls *c, const char *text, size_t len)
{
    const char *end = text + len;
    const char *p = calls_skip_space(text, end);
    const char *inner = p < end && *p == '[' ? calls_skip_space(p + 1, end) : p;

    if (inner < end && *inner == '{') {
        return calls_json_calls(c, p, end, false);
    }
    if (inner == p) {
        p = calls_python_call(c, p, end, false);
        return p && calls_skip_space(p, end) == end;
    }
    for (p = inner; p && p < end && *p != ']';) {
        p = calls_python_call(c, p, end, false);
        p = p ? calls_skip_space(p, end) : NULL;
        if (p && p < end && *p == ',') {
            p = calls_skip_space(p + 1, end);
        } else if (!p || p == end || *p != ']') {
            return false;
        }
    }
    return p && p < end && calls_skip_space(p + 1, end) == end;
}

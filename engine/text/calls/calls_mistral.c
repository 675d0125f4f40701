/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral, behind [TOOL_CALLS]: a JSON list of calls, or NAME[ARGS]{...}, or (Small 3.2)
 * NAME[CALL_ID]id[ARGS]{...}. It ends with the answer or at the next [TOOL_CALLS]. */

#include <string.h>

#include "engine/text/calls/calls_impl.h"

bool mistral_read(struct calls *c, const char *text, size_t len)
{
    static const char args[] = "[ARGS]";
    static const char id[] = "[CALL_ID]";
    const char *end = text + len;
    const char *p = calls_skip_space(text, end);
    const char *name = p;
    const char *name_end;

    if (p < end && (*p == '[' || *p == '{')) {
        return calls_json_calls(c, p, end, false);
    }
    p = memmem(p, (size_t)(end - p), args, sizeof(args) - 1);
    if (!p) {
        return false;
    }
    name_end = memmem(name, (size_t)(p - name), id, sizeof(id) - 1);
    name_end = name_end ? name_end : p;
    p = calls_skip_space(p + sizeof(args) - 1, end);
    if (!calls_json_is_object(p, end)) {
        return false;
    }
    end = calls_json_value(p, end, CALLS_DEPTH);
    calls_write_name(c, name, (size_t)(name_end - name));
    calls_write(c, p, (size_t)(end - p));
    calls_write_end(c);
    return true;
}

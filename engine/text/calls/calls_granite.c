/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 3 and Phi-4 mini, behind <|tool_call|>: a JSON list of calls, to the end of the answer.
 * (Granite 4 writes as Hermes does, and its template says so.) */

#include "engine/text/calls/calls_impl.h"

bool granite_read(struct calls *c, const char *text, size_t len)
{
    return calls_json_calls(c, text, text + len, false);
}

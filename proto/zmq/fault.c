/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of messages: the path of a field as text, and the sentence that goes with it. The path is
 * a list on the stacks of the walkers, so that a correct message costs nothing here. Texts hold
 * names from pipit.proto and numbers only, never what a client sent as text. */

#include "proto/zmq/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static size_t append(char *buf, size_t size, size_t used, const char *text)
{
    int n = snprintf(buf + used, size - used, "%s", text);

    return n < 0 || (size_t)n >= size - used ? size - 1 : used + (size_t)n;
}

static size_t write_path(const struct fault_path *p, char *buf, size_t size)
{
    size_t used = 0;
    char index[24];

    if (!p) {
        return 0;
    }
    used = write_path(p->up, buf, size);
    if (used) {
        used = append(buf, size, used, ".");
    }
    used = append(buf, size, used, p->name);
    if (p->index >= 0) {
        (void)snprintf(index, sizeof(index), "[%lld]", (long long)p->index);
        used = append(buf, size, used, index);
    }
    return used;
}

int fault_set(struct fault *ret, const struct fault_path *path, enum lane_error_code code, int err,
              const char *fmt, ...)
{
    size_t used;
    va_list ap;

    memset(ret, 0, sizeof(*ret));
    ret->code = code;
    (void)write_path(path, ret->field, sizeof(ret->field));
    used = append(ret->text, sizeof(ret->text), 0, ret->field);
    if (used) {
        used = append(ret->text, sizeof(ret->text), used, ": ");
    }
    va_start(ap, fmt);
    (void)vsnprintf(ret->text + used, sizeof(ret->text) - used, fmt, ap);
    va_end(ap);
    return err;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The one error type. The first cause wins: a caller that adds context uses error_prefix(), so a
 * later, vaguer message never hides the first. */

#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void set_text(struct error *e, int code, const char *fmt, va_list ap)
{
    if (!e || e->code) {
        return;
    }
    e->code = code;
    (void)vsnprintf(e->text, sizeof(e->text), fmt, ap);
}

int error_set(struct error *e, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    set_text(e, code, fmt, ap);
    va_end(ap);
    return code;
}

int error_set_errno(struct error *e, int code, const char *fmt, ...)
{
    va_list ap;

    if (e && !e->code) {
        va_start(ap, fmt);
        set_text(e, code, fmt, ap);
        va_end(ap);
        size_t n = strlen(e->text);
        (void)snprintf(e->text + n, sizeof(e->text) - n, ": %s", strerror(-code));
    }
    return code;
}

void error_fit(char *to, size_t size, const char *from)
{
    size_t n = strlen(from);

    if (n >= size) {
        n = size - sizeof("...");
        for (size_t i = n; i > n / 2; i--) {
            if (from[i] == ' ') {
                n = i;
                break;
            }
        }
        while (n > 0 && ((unsigned char)from[n] & 0xc0) == 0x80) { /* whole characters */
            n--;
        }
        memcpy(to, from, n);
        memcpy(to + n, "...", sizeof("..."));
    } else {
        memcpy(to, from, n + 1);
    }
}

void error_fit_format(char *to, size_t size, const char *fmt, va_list ap)
{
    char text[sizeof(((struct error *)NULL)->text)];

    (void)vsnprintf(text, sizeof(text), fmt, ap);
    error_fit(to, size, text);
}

int error_prefix(struct error *e, const char *fmt, ...)
{
    char old[sizeof(e->text)];
    va_list ap;

    if (!e) {
        return 0;
    }
    memcpy(old, e->text, sizeof(old));
    va_start(ap, fmt);
    (void)vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    size_t n = strlen(e->text);
    (void)snprintf(e->text + n, sizeof(e->text) - n, ": %s", old);
    return e->code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The line that says what is going on before the first token: only on a terminal, never on
 * TERM=dumb, not in the first 300 ms (short prompts would flicker), and gone before the answer
 * begins. It is made of a carriage return and spaces, no escape sequences, so NO_COLOR has nothing
 * to forbid. */

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/answer.h"

#include "base/hot.h"

enum { QUIET_NS = 300000000 };

void progress_init(struct progress *p)
{
    memset(p, 0, sizeof(*p));
    p->on = isatty(STDERR_FILENO);
    p->since_ns = clock_ns();
}

void progress_show(struct progress *p, const char *fmt, ...)
{
    char text[80];
    va_list args;
    int n;

    if (!p->on || (p->width == 0 && clock_ns() - p->since_ns < QUIET_NS)) {
        return;
    }
    va_start(args, fmt);
    n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    n = n < 0 ? 0 : n >= (int)sizeof(text) ? (int)sizeof(text) - 1 : n;
    (void)fprintf(stderr, "\r%s%*s", text, p->width > n ? p->width - n : 0, "");
    (void)fflush(stderr);
    p->width = p->width > n ? p->width : n;
}

HOT void progress_clear(struct progress *p)
{
    if (p->width > 0) {
        (void)fprintf(stderr, "\r%*s\r", p->width, "");
        (void)fflush(stderr);
        p->width = 0;
    }
}

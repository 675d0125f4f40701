/* SPDX-License-Identifier: Apache-2.0 */
/* One formatted line, one write(2): lines of several threads and processes never mix. */

#include "base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *log_program = "pipit";
static enum log_level log_max = LOG_LEVEL_INFO;
static bool log_to_journal;

void log_init(const char *program, enum log_level max_level)
{
    struct stat st;
    unsigned long long dev = 0;
    unsigned long long ino = 0;
    /* The one environment lookup outside main(): systemd's own contract for stderr. */
    const char *stream = getenv("JOURNAL_STREAM");

    log_program = program;
    log_max = max_level;
    log_to_journal = stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
                     fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void log_write(enum log_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    int n;

    if (level > log_max) {
        return;
    }
    n = log_to_journal ? snprintf(line, sizeof(line), "<%d>", (int)level)
                       : snprintf(line, sizeof(line), "%s: ", log_program);
    va_start(ap, fmt);
    (void)vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t len = strlen(line);
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f) { /* a client's or a file's words */
            line[i] = ' ';
        }
    }
    line[len++] = '\n';
    if (write(STDERR_FILENO, line, len) < 0) {
        /* Nowhere left to say it. */
        return;
    }
}

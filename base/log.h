/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_LOG_H
#define PIPIT_BASE_LOG_H

/* Log lines of the daemons: one line on stderr with a "<N>" priority prefix when stderr is the
 * journal (sd-daemon(3)), else "program: text". Libraries never log (STYLE rule 11). Never pass
 * prompt or output text. */

#include "base/error.h"

enum log_level { LOG_LEVEL_ERR = 3, LOG_LEVEL_WARNING = 4, LOG_LEVEL_INFO = 6, LOG_LEVEL_DEBUG = 7 };

/* `program` must outlive the process's logging (a literal); levels above `max_level` are dropped. */
void log_init(const char *program, enum log_level max_level);
void log_write(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define log_error(...) log_write(LOG_LEVEL_ERR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif

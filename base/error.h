/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_ERROR_H
#define PIPIT_BASE_ERROR_H

/* Errors: functions return int, 0 or a negative errno. Where a caller or a user needs the cause,
 * a `struct error *` is the last parameter; it may be NULL, and is written only on failure, once,
 * where the cause is known. Texts are complete sentences without a final stop, name the thing at
 * fault (tensor, key, option) and the allowed range, and never hold prompt text.
 *
 * Errno has these meanings all through the tree:
 *   -EINVAL     the caller's value is out of range or malformed
 *   -EBADMSG    a file or a record is malformed
 *   -EMSGSIZE   a prompt is longer than the context
 *   -E2BIG      over a configured limit
 *   -ENOMEM     memory, or the plan, does not hold it
 *   -EBUSY      full for now; trying later may succeed
 *   -ENOTSUP    known, but not offered by this build, model or backend
 *   -ENOENT     no such file, tensor, key or request
 *   -EPERM      a file or a folder that others own or may write; another user's thing
 *   -ECANCELED  somebody asked for the end
 *   -ENODEV     no device, or the device is lost */

#include <stdarg.h>
#include <stddef.h>

#define WARN_UNUSED __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

struct error {
    int code;       /* negative errno, 0 when unset */
    char text[512]; /* NUL-terminated UTF-8 */
};

/* Fills `e` (if not NULL; an error already set stays) and returns `code`, so that callers write
 * `return error_set(e, -EINVAL, "...")`. */
int error_set(struct error *e, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* The same with ": strerror(-code)" appended. */
int error_set_errno(struct error *e, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* `from` in `size` bytes (at least 8): where it is longer, it ends behind a word, with "...". */
void error_fit(char *to, size_t size, const char *from);
/* The same of a format; it takes as much as struct error holds. */
void error_fit_format(char *to, size_t size, const char *fmt, va_list ap) PRINTF_LIKE(3, 0);

/* Puts "prefix: " before the text already in `e`; returns e's code. */
int error_prefix(struct error *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif

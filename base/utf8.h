/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_UTF8_H
#define PIPIT_BASE_UTF8_H

/* UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF. */

#include <stdbool.h>
#include <stddef.h>

/* Length (1..4) of the well-formed character at s; 0 when none can begin with these bytes; -1 when
 * the n bytes are a proper beginning of one (n = 0 included). */
int utf8_character(const char *s, size_t n);

/* Are all n bytes well-formed characters? */
bool utf8_valid(const char *s, size_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_VERSION_H
#define PIPIT_BASE_VERSION_H

/* Which build this program is of. Front, engine and gateway speak to each other in forms that
 * change from version to version, and a package may be replaced while they run: each says its
 * version to the front, which hands over to its successor when its own file was replaced
 * (daemon/front/upgrade.h). */

#include <stdbool.h>
#include <string.h>

/* "0.9.1" */
const char *version_of_this(void);

/* Of another build? NULL or empty, from programs older than this word: no. Here, not in version.c,
 * where a compiler would know the bytes. */
static inline bool version_differs(const char *other)
{
    return other && other[0] != '\0' && strcmp(other, version_of_this()) != 0;
}

#endif

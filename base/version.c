/* SPDX-License-Identifier: Apache-2.0 */
/* The version stands behind a mark, in bytes of its own: tests make a program of another version by
 * writing other bytes of the same length there. */

#include "base/version.h"

#define MARK "pipit-version-word="

static const char word[] = MARK PIPIT_VERSION;

const char *version_of_this(void)
{
    return word + sizeof(MARK) - 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_STREAMS_H
#define PIPIT_BASE_STREAMS_H

/* A program that was started with stdin, stdout or stderr closed would open its first sockets under
 * their numbers, and print into them. Called first in main(): what is closed is held by a
 * descriptor of /dev/null that cannot be used in that direction, so that whoever reads or writes
 * there is told EBADF, as before. 0, or -errno. */

#include "base/error.h"

int streams_hold(void) WARN_UNUSED;

#endif

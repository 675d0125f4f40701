/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_PERSONS_H
#define PIPIT_DAEMON_FRONT_PERSONS_H

/* Whose account a user id is on. A user with a line in /etc/subuid runs programs under 65,536 other
 * ids, and would have as many shares of everything that is shared: lanes, turns, queue, journal,
 * blame. These ids count as their owner there. Whose a request or a session is, stays a matter of
 * the id itself: what runs in a user's container does not read the user's conversations. */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { PERSONS_MOST = 4096 };

struct persons {
    struct {
        uint32_t first;
        uint32_t n;
        uint32_t owner;
    } *v;
    uint32_t n;
};

/* Lines `owner:first:number`, the owner a number or a name that `owner` knows (0; else the line is
 * left out). Lines that make no sense, or hold root, are left out, too. -ENOMEM. */
int persons_parse(const char *text, size_t len, int (*owner)(const char *name, uint32_t *ret),
                  struct persons *ret, struct error *reterr) WARN_UNUSED;
/* The same from a file; one that is not there is empty. */
int persons_load(const char *path, struct persons *ret, struct error *reterr) WARN_UNUSED;
void persons_clear(struct persons *p); /* takes a zeroed one */

/* NULL: everybody is on an own account. */
uint32_t persons_of(const struct persons *p, uint32_t uid);

#endif

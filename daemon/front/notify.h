/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_NOTIFY_H
#define PIPIT_DAEMON_FRONT_NOTIFY_H

/* What the service manager is told, by the protocol of sd_notify(3): datagrams of NAME=value lines.
 * sd_notify() itself waits while the manager reads nothing, and with it would everybody whom the
 * loop serves. Here what finds the socket full is kept, in order, and tried again. A newer status
 * or sign of life takes the place of one that waits; of all others there are few, and what does not
 * fit is logged and lost. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/error.h"
#include "daemon/front/loop.h"

enum { NOTIFY_WAITING = 16, NOTIFY_BYTES = 512 };

struct notify {
    struct loop *loop;
    int fd; /* -1: nobody is to be told */
    struct sockaddr_un to;
    socklen_t to_bytes;
    struct loop_timer again;
    uint32_t n;
    struct {
        int fd; /* its copy; -1: none */
        char text[NOTIFY_BYTES];
    } waiting[NOTIFY_WAITING]; /* oldest first */
};

/* `path` is the manager's socket, `@` for an abstract one, or NULL for nobody. A path that cannot
 * be one is nobody, too. */
void notify_open(struct notify *n, struct loop *loop, const char *path);
/* Gives what waits half a second more: the loop has ended, nobody is served. Takes one that was never opened and is zeroed but for fd -1. */
void notify_close(struct notify *n);

void notify_say(struct notify *n, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* ... with a descriptor, which stays the caller's. */
void notify_give(struct notify *n, int fd, const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_NOTIFY_H
#define PIPIT_DAEMON_GATEWAY_NOTIFY_H

/* What systemd is told: that the door is open, and now and then that the loop still turns. */

#include <stdint.h>

#include "base/error.h"

struct notify {
    int fd; /* -1: nobody listens */
    int64_t period_ns; /* between two signs of life; 0: none are wanted */
    int64_t next_ns;
};

/* `path` is $NOTIFY_SOCKET, `watchdog_usec` $WATCHDOG_USEC; NULL: unset, nothing will be sent. */
int notify_open(struct notify *n, const char *path, const char *watchdog_usec,
                struct error *reterr) WARN_UNUSED;
void notify_close(struct notify *n);

void notify_send(struct notify *n, const char *text);

/* Once a turn of the loop: sends the sign of life when it is due. */
void notify_alive(struct notify *n);

/* Until the next one is due, in ms; -1: never. */
long notify_timeout_ms(const struct notify *n);

#endif

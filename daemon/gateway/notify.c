/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol of sd_notify(3): datagrams of NAME=value lines to the socket in $NOTIFY_SOCKET, a
 * path or, after '@', an abstract name. These lines stand here instead of libsystemd because this
 * is the process that strangers talk to: the library would bring compression and cryptography into
 * it for one sendto(2). A lost datagram is not worth an error: systemd restarts what it does not
 * hear. */

#include "daemon/gateway/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"

enum { SIGNS_A_PERIOD = 3 };

static int address(const char *path, struct sockaddr_un *ret, socklen_t *ret_len)
{
    size_t n = strlen(path);

    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (n < 2 || n >= sizeof(ret->sun_path) || (path[0] != '/' && path[0] != '@')) {
        return -EINVAL;
    }
    memcpy(ret->sun_path, path, n);
    if (path[0] == '@') {
        ret->sun_path[0] = '\0';
    }
    *ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (path[0] == '/'));
    return 0;
}

int notify_open(struct notify *n, const char *path, const char *watchdog_usec, struct error *reterr)
{
    struct sockaddr_un a;
    socklen_t len;
    AUTO_CLOSE int fd = -1;

    *n = (struct notify){.fd = -1};
    if (!path || !*path) {
        return 0;
    }
    if (address(path, &a, &len)) {
        return error_set(reterr, -EINVAL, "NOTIFY_SOCKET=%.100s is no socket's address", path);
    }
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, len)) {
        return error_set_errno(reterr, -errno, "systemd cannot be reached at %.100s", path);
    }
    n->fd = STEAL_FD(fd);
    if (watchdog_usec) {
        unsigned long long usec = strtoull(watchdog_usec, NULL, 10);

        n->period_ns = usec < INT64_MAX / 1000 ? (int64_t)usec * 1000 / SIGNS_A_PERIOD : 0;
    }
    return 0;
}

void notify_close(struct notify *n)
{
    close_fd(&n->fd);
}

void notify_send(struct notify *n, const char *text)
{
    if (n->fd >= 0) {
        (void)send(n->fd, text, strlen(text), MSG_NOSIGNAL);
    }
}

HOT void notify_alive(struct notify *n)
{
    int64_t now;

    if (n->fd < 0 || n->period_ns == 0) {
        return;
    }
    now = clock_ns();
    if (now >= n->next_ns) {
        n->next_ns = now + n->period_ns;
        notify_send(n, "WATCHDOG=1");
    }
}

HOT long notify_timeout_ms(const struct notify *n)
{
    int64_t left;

    if (n->fd < 0 || n->period_ns == 0) {
        return -1;
    }
    left = n->next_ns - clock_ns();
    return left > 0 ? (long)(left / 1000000 + 1) : 0;
}

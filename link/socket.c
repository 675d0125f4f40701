/* SPDX-License-Identifier: Apache-2.0 */
/* Records over a SOCK_SEQPACKET Unix socket: one message, one record. Sockets are non-blocking and
 * close-on-exec; sending never raises SIGPIPE. Descriptors arrive only with a hello reply: whatever
 * else a peer sends along is closed at once, so that no daemon can fill our table. */

#include "link/socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/hot.h"
#include "base/sock.h"

enum { FDS_MAX = 16 };

int socket_connect(const char *path, int *ret)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    AUTO_CLOSE int fd = -1;
    size_t n = strlen(path);

    if (n > SOCKET_PATH_MAX) {
        return -ENAMETOOLONG;
    }
    memcpy(addr.sun_path, path, n);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -errno;
    }
    /* Local connects are complete when they return; EAGAIN means a full backlog: try later. */
    if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
        return -errno;
    }
    *ret = STEAL_FD(fd);
    return 0;
}

int socket_send(int sock, const struct lane_record *r, int timeout_ms)
{
    for (;;) {
        ssize_t n = send(sock, r, sizeof(*r), MSG_NOSIGNAL | MSG_DONTWAIT);
        struct pollfd p = {.fd = sock, .events = POLLOUT};

        if (n == (ssize_t)sizeof(*r)) {
            return 0;
        }
        if (n >= 0) {
            return -EMSGSIZE;
        }
        if (errno == EINTR) {
            continue;
        }
        if (errno != EAGAIN && errno != ENOBUFS) {
            return -errno;
        }
        if (poll(&p, 1, timeout_ms) == 0) {
            return -ETIMEDOUT;
        }
    }
}

static void take_fds(struct msghdr *m, int fds[2])
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        size_t n;
        int got[FDS_MAX];

        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        n = n > FDS_MAX ? FDS_MAX : n;
        memcpy(got, CMSG_DATA(h), n * sizeof(int));
        for (size_t i = 0; i < n; i++) {
            if (i < 2 && fds[i] < 0) {
                fds[i] = got[i];
            } else {
                (void)close(got[i]);
            }
        }
    }
}

HOT int socket_recv(int sock, struct lane_record *ret, ssize_t *ret_n, int fds[2])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec io = {.iov_base = ret, .iov_len = sizeof(*ret)};
    struct msghdr m = {.msg_iov = &io,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    bool reset = false;
    ssize_t n;

    do {
        n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && (errno == EINTR || sock_reset(&reset)));
    fds[0] = fds[1] = -1;
    if (n < 0) {
        return -errno;
    }
    take_fds(&m, fds);
    /* A zero-length record cannot be told from the end by its length; no peer of ours sends one. */
    if (n == 0) {
        close_fd(&fds[0]);
        close_fd(&fds[1]);
        return 0;
    }
    *ret_n = m.msg_flags & MSG_TRUNC ? LANE_RECORD_BYTES + 1 : n;
    return 1;
}

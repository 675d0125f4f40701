/* SPDX-License-Identifier: Apache-2.0 */
/* sendmsg(2) and recvmsg(2) with SCM_RIGHTS, in the one form this project uses: one message, a few
 * descriptors. A message with more descriptors than expected has all of them closed by the kernel
 * (MSG_CTRUNC) or by us: a peer cannot make us hold what we did not ask for. */

#include "base/sock.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hot.h"

/* Of these it is no matter of the peer or the descriptor: the same call may do a moment later. Too
 * many descriptors under way (ETOOMANYREFS) are fewer when others have been received. */
static int error_of(int err)
{
    bool later = err == ENOMEM || err == ENOBUFS || err == ETOOMANYREFS;

    return later ? -EAGAIN : -err;
}

HOT int sock_send(int fd, const void *buf, size_t size, const int *fds, int n_fds)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(SOCK_MAX_FDS * sizeof(int))] = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (n_fds > 0) {
        struct cmsghdr *c;

        if (n_fds > SOCK_MAX_FDS) {
            return -EINVAL;
        }
        msg.msg_control = control;
        msg.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
    }
    do {
        n = sendmsg(fd, &msg, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return errno == ECONNRESET ? -EPIPE : error_of(errno);
    }
    return 0;
}

/* Hands the descriptors over, or closes them where there are more than the caller has room for. */
static int take_fds(struct msghdr *msg, int *fds)
{
    int n = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        size_t count;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int got;

            memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (n < SOCK_MAX_FDS) {
                fds[n++] = got;
            } else {
                (void)close(got);
            }
        }
    }
    return n;
}

bool sock_reset(bool *seen)
{
    bool first = errno == ECONNRESET && !*seen;

    *seen = *seen || first;
    return first;
}

HOT ssize_t sock_recv(int fd, void *buf, size_t size, int *fds, int *ret_n_fds)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(SOCK_MAX_FDS * sizeof(int))];
    struct iovec iov = {.iov_base = buf, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    bool reset = false;
    ssize_t n;

    if (fds) {
        msg.msg_control = control;
        msg.msg_controllen = sizeof(control);
        *ret_n_fds = 0;
    }
    do {
        n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_TRUNC);
    } while (n < 0 && (errno == EINTR || sock_reset(&reset)));
    if (n < 0) {
        return error_of(errno);
    }
    if (fds) {
        *ret_n_fds = take_fds(&msg, fds);
    }
    return n;
}

int sock_address(const char *path, struct sockaddr_un *ret, struct error *reterr)
{
    size_t n = strlen(path);

    if (n == 0 || n > SOCK_PATH_MAX) {
        return error_set(reterr, -ENAMETOOLONG,
                         "socket path of %zu bytes, allowed are 1..%d: choose a shorter "
                         "--runtime-dir (%s)",
                         n, (int)SOCK_PATH_MAX, path);
    }
    memset(ret, 0, sizeof(*ret));
    ret->sun_family = AF_UNIX;
    memcpy(ret->sun_path, path, n);
    return 0;
}

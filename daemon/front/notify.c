/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/front/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#define AGAIN_NS 100000000
enum { LAST_TRIES = 25, LAST_MS = 20 };

void notify_open(struct notify *n, struct loop *loop, const char *path)
{
    size_t len = path ? strlen(path) : 0;

    *n = (struct notify){.loop = loop, .fd = -1, .to.sun_family = AF_UNIX};
    if (len < 2 || len >= sizeof(n->to.sun_path) || (path[0] != '/' && path[0] != '@')) {
        return;
    }
    memcpy(n->to.sun_path, path, len);
    if (path[0] == '@') {
        n->to.sun_path[0] = '\0';
    }
    n->to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (path[0] == '/'));
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (n->fd < 0) {
        log_warning("the service manager is told nothing: %s", strerror(errno));
    }
}

/* False: the socket is full. Where nobody listens any more, it is as if it had been said. */
static bool try_say(const struct notify *n, const char *text, int fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = (char *)text, .iov_len = strlen(text)};
    struct msghdr m = {
        .msg_name = (void *)&n->to, .msg_namelen = n->to_bytes, .msg_iov = &part, .msg_iovlen = 1};

    if (fd >= 0) {
        m.msg_control = control.room;
        m.msg_controllen = sizeof(control.room);
        control.head = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    }
    return sendmsg(n->fd, &m, MSG_NOSIGNAL) >= 0 ||
           (errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM);
}

static void flush(struct notify *n)
{
    uint32_t done = 0;

    while (done < n->n && try_say(n, n->waiting[done].text, n->waiting[done].fd)) {
        close_fd(&n->waiting[done].fd);
        done++;
    }
    n->n -= done;
    memmove(n->waiting, n->waiting + done, n->n * sizeof(n->waiting[0]));
}

static void on_again(void *arg)
{
    struct notify *n = arg;

    flush(n);
    if (n->n > 0) {
        loop_timer_at(n->loop, &n->again, clock_ns() + AGAIN_NS, on_again, n);
    }
}

/* Of these only the last one counts. */
static bool is_replaced_by(const char *old, const char *text)
{
    return (strncmp(old, "STATUS=", 7) == 0 && strncmp(text, "STATUS=", 7) == 0) ||
           (strcmp(old, "WATCHDOG=1") == 0 && strcmp(old, text) == 0);
}

static void keep(struct notify *n, const char *text, int fd)
{
    uint32_t at = 0;

    while (at < n->n && !is_replaced_by(n->waiting[at].text, text)) {
        at++;
    }
    if (at == NOTIFY_WAITING) {
        log_warning("the service manager reads nothing; ignoring: %s", text);
        return;
    }
    if (at == n->n) {
        n->waiting[n->n++].fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    }
    (void)snprintf(n->waiting[at].text, sizeof(n->waiting[at].text), "%s", text);
    if (n->again.index == 0) {
        loop_timer_at(n->loop, &n->again, clock_ns() + AGAIN_NS, on_again, n);
    }
}

void notify_give(struct notify *n, int fd, const char *text)
{
    if (n->fd < 0) {
        return;
    }
    flush(n);
    if (n->n > 0 || !try_say(n, text, fd)) {
        keep(n, text, fd);
    }
}

void notify_say(struct notify *n, const char *fmt, ...)
{
    char text[NOTIFY_BYTES];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    notify_give(n, -1, text);
}

void notify_close(struct notify *n)
{
    if (n->fd < 0) {
        return;
    }
    for (int i = 0; flush(n), n->n > 0 && i < LAST_TRIES; i++) {
        (void)poll(NULL, 0, LAST_MS);
    }
    for (uint32_t i = 0; i < n->n; i++) {
        close_fd(&n->waiting[i].fd);
    }
    n->n = 0;
    loop_timer_off(n->loop, &n->again);
    close_fd(&n->fd);
}

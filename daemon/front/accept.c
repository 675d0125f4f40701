/* SPDX-License-Identifier: Apache-2.0 */
/* accept(2), and who it is: the kernel's word (SO_PEERCRED), never the peer's. */

#include "daemon/front/accept.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cputime.h"
#include "base/log.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"

enum { ACCEPT_BURST = 32, FDS_PER_LANE = 3, FDS_OTHER = 64 + CPUTIME_THREADS, REST_MS = 100 };
#define TELL_NS 60000000000

/* Each lane holds a socket and two arenas; a connection too many is accepted, refused and closed.
 */
static void raise_fd_limit(const struct front *f)
{
    rlim_t need = (rlim_t)f->config->lanes * FDS_PER_LANE + FDS_OTHER;
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur >= need) {
        return;
    }
    lim.rlim_cur = need < lim.rlim_max ? need : lim.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur < need) {
        log_warning("only %llu descriptors are allowed: %lld lanes need %llu",
                    (unsigned long long)lim.rlim_cur, (long long)f->config->lanes,
                    (unsigned long long)need);
    }
}

static void on_rested(void *arg)
{
    struct front *f = arg;

    loop_events(&f->loop, &f->lane_listener, EPOLLIN);
    if (f->rundir.gateway_fd >= 0) {
        loop_events(&f->loop, &f->gateway_listener, EPOLLIN);
    }
}

/* No descriptor or memory is left: who waits in the queue would wake us at once, again and again.
 */
static void rest(struct front *f, int err)
{
    int64_t now = clock_ns();

    if (now >= f->accept_told_ns) {
        log_warning("cannot accept a client: errno %d; tried again each %d ms", err, REST_MS);
        f->accept_told_ns = now + TELL_NS;
    }
    loop_events(&f->loop, &f->lane_listener, 0);
    if (f->rundir.gateway_fd >= 0) {
        loop_events(&f->loop, &f->gateway_listener, 0);
    }
    loop_timer_at(&f->loop, &f->accept_timer, now + (int64_t)REST_MS * 1000000, on_rested, f);
}

static void accept_some(struct front *f, struct loop_watch *w, bool privileged)
{
    for (int i = 0; i < ACCEPT_BURST; i++) {
        int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct ucred peer;
        socklen_t n = sizeof(peer);

        if (fd < 0) {
            if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
                rest(f, errno);
            }
            return;
        }
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n)) {
            (void)close(fd);
            continue;
        }
        (void)lane_create(f, fd, peer.uid, privileged);
    }
}

static void on_lane(void *arg, uint32_t events)
{
    struct front *f = arg;

    (void)events;
    accept_some(f, &f->lane_listener, false);
}

static void on_gateway(void *arg, uint32_t events)
{
    struct front *f = arg;

    (void)events;
    accept_some(f, &f->gateway_listener, true);
}

int accept_start(struct front *f, struct error *reterr)
{
    int rc;

    raise_fd_limit(f);
    f->lane_listener =
        (struct loop_watch){.fd = f->rundir.lane_fd, .events = EPOLLIN, .fn = on_lane, .arg = f};
    rc = loop_add(&f->loop, &f->lane_listener);
    if (rc == 0 && f->rundir.gateway_fd >= 0) {
        f->gateway_listener = (struct loop_watch){
            .fd = f->rundir.gateway_fd, .events = EPOLLIN, .fn = on_gateway, .arg = f};
        rc = loop_add(&f->loop, &f->gateway_listener);
    }
    return rc ? error_set_errno(reterr, rc, "cannot watch the lane socket") : 0;
}

void accept_stop(struct front *f)
{
    loop_timer_off(&f->loop, &f->accept_timer);
    loop_del(&f->loop, &f->lane_listener);
    loop_del(&f->loop, &f->gateway_listener);
}

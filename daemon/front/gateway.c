/* SPDX-License-Identifier: Apache-2.0 */
/* The gateway's process: a socketpair whose one end is a privileged lane of ours. The connection is
 * the lane's business; here are only start, death and restart. A restart that follows within a
 * second of the last waits 50 ms, so that a gateway that cannot start does not become a busy loop;
 * after ten such in a row once a second. */

#include "daemon/front/gateway.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/front/child.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"

#define QUICK_NS 1000000000
#define PAUSE_NS 50000000
enum { QUICK_MANY = 10, END_TRIES = 30, END_STEP_MS = 10 };

struct gateway {
    struct front *front;
    char path[1024];
    pid_t pid;
    uint64_t lane_id;
    int64_t started_ns;
    uint32_t n_quick; /* deaths in a row within a second of the start */
    struct loop_timer retry;
};

static void on_retry(void *arg);

static int start(struct gateway *g, struct error *reterr)
{
    struct front *f = g->front;
    char *argv[] = {"pipit-gateway",
                    "--lane-fd",
                    "3",
                    "--runtime-dir",
                    f->rundir.path,
                    f->config->debugger ? "--debugger" : NULL,
                    NULL};
    struct lane *lane;
    int pair[2];
    int rc;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
        return error_set_errno(reterr, -errno, "cannot create the gateway's sockets");
    }
    lane = lane_create(f, pair[0], geteuid(), true);
    if (!lane) {
        (void)close(pair[1]);
        return error_set(reterr, -ENOMEM, "no memory for the gateway's lane");
    }
    rc = child_spawn(g->path, argv, &pair[1], 1, &g->pid, reterr);
    (void)close(pair[1]);
    if (rc) {
        lane_close(lane, "the gateway cannot be started");
        return rc;
    }
    g->lane_id = lane->id;
    g->started_ns = clock_ns();
    return 0;
}

static void retry_in(struct gateway *g, int64_t ns)
{
    loop_timer_at(&g->front->loop, &g->retry, clock_ns() + ns, on_retry, g);
}

static void on_retry(void *arg)
{
    struct gateway *g = arg;
    struct error e = {0};

    if (!g->front->stopping && start(g, &e)) {
        log_error("cannot start the gateway: %s", e.text);
        retry_in(g, QUICK_NS);
    }
}

int gateway_create(struct front *f, struct gateway **ret, struct error *reterr)
{
    struct gateway *g = calloc(1, sizeof(*g));
    struct error e = {0};
    int rc;

    if (!g) {
        return error_set(reterr, -ENOMEM, "no memory for the gateway's state");
    }
    g->front = f;
    rc = child_find("pipit-gateway", "gateway", g->path, sizeof(g->path), &e);
    if (rc == -ENOENT) { /* not installed */
        log_warning("no ZeroMQ door: %s", e.text);
        free(g);
        *ret = NULL;
        return 0;
    }
    rc = rc ? error_set(reterr, rc, "%s", e.text) : start(g, reterr);
    if (rc) {
        free(g);
        return rc;
    }
    *ret = g;
    return 0;
}

bool gateway_reaped(struct gateway *g, int pid, int status)
{
    bool quick;
    char how[64];
    struct log_fields fields = {0};

    if (!g || pid != g->pid || pid == 0) {
        return false;
    }
    g->pid = 0;
    if (g->front->stopping) {
        return true;
    }
    quick = clock_ns() - g->started_ns < QUICK_NS;
    g->n_quick = quick ? g->n_quick + 1 : 0;
    child_describe(status, how, sizeof(how));
    log_field(&fields, "PIPIT_EVENT", "gateway-died");
    log_field(&fields, "PIPIT_REASON", "%s", how);
    log_write_fields(LOG_LEVEL_WARNING, &fields, "the gateway ended with %s; starting it again",
                     how);
    retry_in(g, !quick ? 0 : g->n_quick > QUICK_MANY ? QUICK_NS : PAUSE_NS);
    return true;
}

void gateway_destroy(struct gateway *g)
{
    struct lane *lane;

    if (!g) {
        return;
    }
    loop_timer_off(&g->front->loop, &g->retry);
    lane = lane_find(g->front, g->lane_id);
    if (lane) {
        lane_close(lane, "the daemon stops");
    }
    /* It ends by itself when the connection does, after it has sent what it still held. */
    for (int i = 0; g->pid > 0 && i < END_TRIES; i++) {
        if (waitpid(g->pid, NULL, WNOHANG) == g->pid) {
            g->pid = 0;
        } else {
            (void)poll(NULL, 0, END_STEP_MS);
        }
    }
    if (g->pid > 0) {
        (void)kill(g->pid, SIGKILL);
        (void)waitpid(g->pid, NULL, 0);
    }
    free(g);
}

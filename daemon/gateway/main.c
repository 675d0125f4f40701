/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-gateway: ZeroMQ and protobuf for local programs, lane records for the front. Started by
 * pipitd with one end of a socketpair, or by systemd, when it connects to gateway.sock.
 *
 * This process faces peers that may be hostile with a library that aborts when it runs out of
 * something, so it is set up to die cheaply: no core dumps (they would hold prompts), a limit on
 * its memory, as many descriptors as it may have, and it ends with its parent. */

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/options.h"
#include "base/sanitized.h"
#include "base/secret.h"
#include "base/sock.h"
#include "base/version.h"
#include "daemon/gateway/gateway.h"

enum { EXIT_USAGE = 2, EXIT_UNREACHABLE = 3, EXIT_INTERNAL = 8, UNREACHABLE_MS = 50 };

struct config {
    bool help;
    bool version;
    bool verbose;
    bool debugger;
    int64_t lane_fd;
    int64_t listen_fd;
    char *connect;
    char *runtime_dir;
    uint64_t memory;
};

#define AT(field) offsetof(struct config, field)

/* clang-format off */
static const struct option_row rows[] = {
    {"runtime-dir", 0, OPTION_STRING, AT(runtime_dir), .metavar = "DIR",
     .help = "where zmq.sock is bound (required)"},
    {"lane-fd", 0, OPTION_INT, AT(lane_fd), -1, 1048576, .fallback = "-1",
     .help = "inherited descriptor of the lane to pipitd", .flags = OPTION_ARGV_ONLY},
    {"connect", 0, OPTION_STRING, AT(connect), .metavar = "PATH",
     .help = "connect to this socket of pipitd instead (default: DIR/gateway.sock)"},
    {"listen-fd", 0, OPTION_INT, AT(listen_fd), -1, 1048576, .fallback = "-1",
     .help = "inherited listening socket to use for zmq.sock (3 under a systemd .socket unit)",
     .flags = OPTION_ARGV_ONLY},
    {"memory", 0, OPTION_BYTES, AT(memory), 64 << 20, INFINITY, .fallback = "512MiB",
     .help = "limit of this process's own memory; beyond it, it ends and is started again"},
    {"debugger", 0, OPTION_FLAG, AT(debugger),
     .help = "let debuggers of the same user attach, and core dumps be written"},
    {"verbose", 'v', OPTION_FLAG, AT(verbose), .help = "log more"},
    {"help", 'h', OPTION_FLAG, AT(help), .help = "show this text", .flags = OPTION_ARGV_ONLY},
    {"version", 0, OPTION_FLAG, AT(version), .help = "show the version", .flags = OPTION_ARGV_ONLY},
};
/* clang-format on */

static const struct option_table table = {
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .usage = "pipit-gateway --runtime-dir DIR [--lane-fd N | --connect PATH] [OPTION]...",
    .intro = "Serves local programs over ZeroMQ (see pipit.proto) on behalf of pipitd, which\n"
             "normally starts it.",
};

static void limit_process(const struct config *c)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &r)) {
            log_warning("descriptor limit stays as it is: %m");
        }
    }
    if (!c->debugger) {
        if (secret_no_core()) {
            log_warning("core dumps stay possible: %m");
        }
        secret_hide();
    }
    /* RLIMIT_DATA counts private writable memory (heap, stacks), not arenas and libraries. */
    r = (struct rlimit){c->memory, c->memory};
    /* A sanitizer's shadow memory is no use of memory in this sense. */
    if (!SANITIZED && setrlimit(RLIMIT_DATA, &r)) {
        log_warning("memory stays unlimited: %m");
    }
}

/* Blocks the signals that end the process, for libzmq's threads too; the loop reads them. */
static int stop_signals(struct error *reterr)
{
    sigset_t set;
    int fd;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? error_set_errno(reterr, -errno, "no signalfd") : fd;
}

static int reach_front(const struct config *c, int *ret_fd, struct error *reterr)
{
    char path[SOCK_PATH_MAX + 64];
    int n;

    if (c->lane_fd >= 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        *ret_fd = (int)c->lane_fd;
        return 0;
    }
    n = snprintf(path, sizeof(path), "%s/gateway.sock", c->runtime_dir);
    if (!c->connect && (size_t)n >= sizeof(path)) {
        return error_set(reterr, -ENAMETOOLONG, "--runtime-dir is too long for a socket's path");
    }
    return door_connect(c->connect ? c->connect : path, ret_fd, reterr);
}

/* A child of pipitd is not systemd's main process: it has nothing to say there. */
static int reach_systemd(const struct config *c, struct notify *n, struct error *reterr)
{
    bool child = c->lane_fd >= 0;

    return notify_open(n, child ? NULL : getenv("NOTIFY_SOCKET"), getenv("WATCHDOG_USEC"), reterr);
}

static int serve(const struct config *c, struct error *reterr)
{
    static struct gateway gateway; /* 3 MB: not for the stack */
    char path[SOCK_PATH_MAX + 64];
    AUTO_CLOSE int stop_fd = stop_signals(reterr);
    struct notify notify;
    int lane_fd = -1;
    int rc;

    if (stop_fd < 0) {
        return stop_fd;
    }
    if ((size_t)snprintf(path, sizeof(path), "%s/zmq.sock", c->runtime_dir) >= sizeof(path)) {
        return error_set(reterr, -ENAMETOOLONG, "--runtime-dir is too long for a socket's path");
    }
    rc = reach_systemd(c, &notify, reterr);
    if (rc) {
        return rc;
    }
    rc = reach_front(c, &lane_fd, reterr);
    if (rc) {
        return rc;
    }
    rc = gateway_init(&gateway, lane_fd, path, (int)c->listen_fd, reterr);
    if (rc) {
        return rc;
    }
    gateway.is_child = c->lane_fd >= 0;
    log_debug("serving %s, messages up to %zu bytes, %d request buffers", path, gateway.max_message,
              gateway.door.n_bufs);
    rc = gateway_run(&gateway, stop_fd, &notify, reterr);
    notify_close(&notify);
    gateway_finish(&gateway);
    return rc;
}

static int exit_code(int rc)
{
    switch (rc) {
    case 0:
        return EXIT_SUCCESS;
    case -ENOENT:
    case -ECONNREFUSED:
    case -ETIMEDOUT:
    case -EPIPE:
        return EXIT_UNREACHABLE;
    default:
        return EXIT_INTERNAL;
    }
}

static int show(const struct config *c)
{
    if (c->version) {
        (void)printf("pipit-gateway %s\n", version_of_this());
    } else {
        AUTO_FREE char *text = options_help(&table);

        (void)fputs(text ? text : "", stdout);
    }
    return fflush(stdout) ? EXIT_INTERNAL : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    struct config c = {0};
    struct error e = {0};
    int rc = options_load(&table, &c, argc, argv, environ, NULL, NULL, &e);

    log_init("pipit-gateway", c.verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
    if (rc == 0 && (c.help || c.version)) {
        rc = show(&c);
        options_clear(&table, &c);
        return rc;
    }
    if (rc == 0 && !c.runtime_dir) {
        rc = error_set(&e, -EINVAL, "--runtime-dir is required");
    }
    if (rc) {
        log_error("%s", e.text);
        options_clear(&table, &c);
        return EXIT_USAGE;
    }
    limit_process(&c);
    rc = serve(&c, &e);
    if (rc == -EPIPE && c.lane_fd >= 0) {
        log_debug("%s", e.text); /* pipitd, whose child this is, has ended, and said why */
    } else if (rc) {
        log_error("%s", e.text);
    }
    options_clear(&table, &c);
    if (exit_code(rc) == EXIT_UNREACHABLE && c.lane_fd < 0) {
        (void)poll(NULL, 0, UNREACHABLE_MS); /* systemd starts it again at once */
    }
    return exit_code(rc);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* pipitd: options, then either `plan` (which the engine computes: this process becomes it) or the
 * daemon. Exit codes: 0 stopped by a signal, 2 usage or runtime directory, 4 does not
 * fit, or another pipitd serves that directory, 6 the model cannot be loaded, 7 its file was
 * replaced (upgrade.h), 8 internal. The environment is read here only. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/log.h"
#include "base/secret.h"
#include "base/streams.h"
#include "base/version.h"
#include "daemon/front/child.h"
#include "daemon/front/config.h"
#include "daemon/front/front.h"
#include "daemon/front/rundir.h"

extern char **environ;

enum { EXIT_USAGE = 2, EXIT_INTERNAL = 8 };

static int print_help(bool plan)
{
    char *text = config_help(plan);

    if (text) {
        (void)fputs(text, stdout);
    }
    free(text);
    return text ? EXIT_SUCCESS : EXIT_INTERNAL;
}

static int become_plan(const struct config *c)
{
    char path[1024];
    struct error e = {0};
    char **argv;

    if (child_find("pipit-engine", "worker", path, sizeof(path), &e)) {
        log_error("%s", e.text);
        return EXIT_INTERNAL;
    }
    argv = config_engine_argv(c, "pipitd plan", -1, -1);
    if (argv) {
        (void)execv(path, argv);
    }
    log_error("cannot execute %s: %s", path, strerror(errno));
    config_free_argv(argv);
    return EXIT_INTERNAL;
}

/* What a front that was killed has left (successor.h). There should be one. */
static void take_journal(struct rundir *r, int fd)
{
    if (r->journal_fd >= 0) {
        (void)close(fd);
    } else {
        r->journal_fd = fd;
    }
}

static int take_each(struct rundir *r, int n, char **names, struct error *reterr)
{
    for (int i = 0; i < n; i++) {
        int fd = SD_LISTEN_FDS_START + i;

        if (names && names[i] && strcmp(names[i], RUNDIR_JOURNAL) == 0) {
            take_journal(r, fd);
            continue;
        }
        bool gateway = names && names[i] && strcmp(names[i], "gateway") == 0;
        int *slot = gateway ? &r->gateway_fd : &r->lane_fd;

        if (sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, NULL, 0) <= 0 || *slot >= 0) {
            return error_set(reterr, -EINVAL,
                             "descriptor %d (%s) from systemd is no listening SOCK_SEQPACKET "
                             "socket, or the second of its kind",
                             fd, names && names[i] ? names[i] : "nameless");
        }
        /* We accept until there is nobody left; systemd hands sockets over blocking. */
        if (fcntl(fd, F_SETFL, O_NONBLOCK)) {
            return error_set_errno(reterr, -errno, "descriptor %d from systemd", fd);
        }
        *slot = fd;
        r->activated = true;
    }
    return n < 0 ? error_set_errno(reterr, n, "cannot take over systemd's sockets") : 0;
}

/* Sockets that systemd made: by name `lane` and `gateway`; a single nameless one is the lane's. */
static int take_activated(struct rundir *r, struct error *reterr)
{
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names);
    int rc = take_each(r, n, names, reterr);

    for (char **s = names; s && *s; s++) {
        free(*s);
    }
    free(names);
    return rc;
}

static int serve(struct config *c)
{
    struct rundir dir;
    struct error e = {0};
    const char *notify = getenv("NOTIFY_SOCKET");
    int rc = rundir_choose(c, notify && *notify, &dir, &e);

    rc = rc ? rc : take_activated(&dir, &e);
    if (rc) {
        log_error("%s", e.text);
        return EXIT_USAGE;
    }
    if (!c->debugger) {
        if (secret_no_core()) {
            log_warning("core dumps stay possible: %m");
        }
        secret_hide();
    }
    log_never_wait();
    return front_run(c, &dir, notify);
}

int main(int argc, char **argv)
{
    struct config c;
    struct error e = {0};
    int rc;

    if (streams_hold()) {
        return EXIT_INTERNAL;
    }
    log_init("pipitd", LOG_LEVEL_INFO);
    if (config_load(&c, argc, argv, environ, &e)) {
        log_error("%s (see 'pipitd --help')", e.text);
        config_clear(&c);
        return EXIT_USAGE;
    }
    if (c.help) {
        rc = print_help(c.plan);
    } else if (c.version) {
        rc = printf("pipitd %s\n", version_of_this()) > 0 ? EXIT_SUCCESS : EXIT_INTERNAL;
    } else {
        log_init("pipitd", c.verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
        rc = c.plan ? become_plan(&c) : serve(&c);
    }
    config_clear(&c);
    return rc;
}

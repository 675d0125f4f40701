/* SPDX-License-Identifier: Apache-2.0 */
/* fork(2), descriptors into place, exec(2). Between fork and exec only async-signal-safe calls. */

#include "daemon/front/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_FDS = 4, FIRST_FD = 3 };

int child_find(const char *name, const char *folder, char *ret_path, size_t size,
               struct error *reterr)
{
    char self[1024];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    if (n < 0) {
        return error_set_errno(reterr, -errno, "cannot read /proc/self/exe");
    }
    self[n] = '\0';
    slash = strrchr(self, '/');
    if (slash) {
        *slash = '\0';
    }
    for (int i = 0; i < 4; i++) {
        int len = i == 0   ? snprintf(ret_path, size, "%s/%s", self, name)
                  : i == 1 ? snprintf(ret_path, size, "%s/../%s/%s", self, folder, name)
                  : i == 2 ? snprintf(ret_path, size, "%s/../libexec/pipit/%s", self, name)
                           : snprintf(ret_path, size, "%s/%s", PIPIT_LIBEXECDIR, name);

        if (len > 0 && (size_t)len < size && access(ret_path, X_OK) == 0) {
            return 0;
        }
    }
    return error_set(reterr, -ENOENT, "%s lies neither beside pipitd (%.100s) nor in %s", name,
                     self, PIPIT_LIBEXECDIR);
}

/* In the child. Sources are first lifted above all targets, so that none is overwritten. */
static int place_fds(const int *fds, int n_fds)
{
    int high[MAX_FDS];

    for (int i = 0; i < n_fds; i++) {
        high[i] = fcntl(fds[i], F_DUPFD, FIRST_FD + MAX_FDS);
        if (high[i] < 0) {
            return -1;
        }
    }
    for (int i = 0; i < n_fds; i++) {
        if (dup2(high[i], FIRST_FD + i) < 0) {
            return -1;
        }
    }
    return close_range((unsigned)(FIRST_FD + n_fds), ~0u, 0);
}

/* The environment without PIPIT_*: those settings are pipitd's own, and a child whose options bear
 * the same names would take them for its. In the child, in place. */
static void drop_settings(void)
{
    char **to = environ;

    for (char **from = environ; from && *from; from++) {
        if (strncmp(*from, "PIPIT_", 6) != 0) {
            *to++ = *from;
        }
    }
    if (to) {
        *to = NULL;
    }
}

static void child_main(const char *path, char *const argv[], const int *fds, int n_fds,
                       pid_t parent)
{
    sigset_t none;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(127); /* the front died before the line above */
    }
    (void)setpgid(0, 0);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    drop_settings();
    if (place_fds(fds, n_fds) == 0) {
        (void)execv(path, argv);
    }
    _exit(127);
}

int child_spawn(const char *path, char *const argv[], const int *fds, int n_fds, pid_t *ret_pid,
                struct error *reterr)
{
    pid_t parent = getpid();
    pid_t pid;

    if (n_fds > MAX_FDS) {
        return error_set(reterr, -EINVAL, "too many descriptors for a child");
    }
    pid = fork();
    if (pid < 0) {
        return error_set_errno(reterr, -errno, "cannot fork for %s", path);
    }
    if (pid == 0) {
        child_main(path, argv, fds, n_fds, parent);
    }
    *ret_pid = pid;
    return 0;
}

void child_describe(int status, char *ret, size_t size)
{
    if (WIFSIGNALED(status)) {
        (void)snprintf(ret, size, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        (void)snprintf(ret, size, "exit code %d", WEXITSTATUS(status));
    }
}

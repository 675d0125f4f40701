/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a thread is the letter behind its name's last parenthesis in /proc. */

#include "base/cputime.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

int64_t cputime_ns(pid_t pid)
{
    struct timespec t;
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t)) {
        return -1;
    }
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int open_state(int tasks, const char *tid)
{
    char path[280];

    (void)snprintf(path, sizeof(path), "%s/stat", tid);
    return openat(tasks, path, O_RDONLY | O_CLOEXEC);
}

static bool is_runnable(int fd)
{
    char text[128];
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    const char *end;

    text[n > 0 ? n : 0] = '\0';
    end = strrchr(text, ')');
    return end && strncmp(end, ") R", 3) == 0;
}

int cputime_open_threads(int *ret_fds, int most)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;

    if (!d) {
        return 0;
    }
    for (struct dirent *t; n < most && (t = readdir(d));) {
        int fd = t->d_name[0] == '.' ? -1 : open_state(dirfd(d), t->d_name);

        if (fd >= 0) {
            ret_fds[n++] = fd;
        }
    }
    (void)closedir(d);
    return n;
}

bool cputime_is_state(int fd)
{
    struct statfs s;

    return fstatfs(fd, &s) == 0 && s.f_type == PROC_SUPER_MAGIC;
}

bool cputime_is_wanted(const int *fds, int n)
{
    bool found = false;

    for (int i = 0; i < n && !found; i++) {
        found = is_runnable(fds[i]);
    }
    return found;
}

bool cputime_is_wanted_by(pid_t tid)
{
    char path[40];
    bool runnable;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/self/task/%d", (int)tid);
    fd = open_state(AT_FDCWD, path);
    if (fd < 0) {
        return false;
    }
    runnable = is_runnable(fd);
    (void)close(fd);
    return runnable;
}

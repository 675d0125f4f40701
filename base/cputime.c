/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a thread is the letter behind its name's last parenthesis in /proc. */

#include "base/cputime.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
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

static bool is_runnable(int tasks, const char *tid)
{
    char path[280];
    char text[128] = "";
    const char *end;
    ssize_t n;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/stat", tid);
    fd = openat(tasks, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    n = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    text[n > 0 ? n : 0] = '\0';
    end = strrchr(text, ')');
    return end && strncmp(end, ") R", 3) == 0;
}

bool cputime_is_wanted_by(pid_t tid)
{
    char path[40];

    (void)snprintf(path, sizeof(path), "/proc/self/task/%d", (int)tid);
    return is_runnable(AT_FDCWD, path);
}

bool cputime_is_wanted(pid_t pid)
{
    char path[40];
    bool found = false;
    DIR *d;

    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    d = opendir(path);
    if (!d) {
        return false;
    }
    for (struct dirent *t; !found && (t = readdir(d));) {
        found = t->d_name[0] != '.' && is_runnable(dirfd(d), t->d_name);
    }
    (void)closedir(d);
    return found;
}

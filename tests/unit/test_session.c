/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/worker/session.h: what has the session's name is safe, and what is not safe has not. The
 * C library's fsync() is replaced by one that fails on demand. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/worker/session.h"

static int n_syncs;
static int fails_at; /* from 1; 0: none */

int fsync(int fd)
{
    (void)fd;
    if (++n_syncs == fails_at) {
        errno = EIO;
        return -1;
    }
    return 0;
}

static void put(const struct session *s, const char *name)
{
    int fd = openat(s->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

    cr_assert_geq(fd, 0);
    (void)close(fd);
}

/* DIR/a/b, as a new user's folder: the first commit in it, whose n-th sync fails. */
static bool commit_failing(const char *dir, int n, int *ret_err)
{
    char path[64];
    struct session s;
    struct stat st;
    struct error err = {0};

    session_init(&s);
    s.dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert_geq(s.dir, 0);
    (void)strcpy(s.name, "s");
    put(&s, ".s.session");
    n_syncs = 0;
    fails_at = n;
    *ret_err = session_commit(&s, &err);
    (void)snprintf(path, sizeof(path), "%s/.s.session", dir);
    cr_assert(*ret_err == 0 || stat(path, &st), "the file beside it is gone");
    session_close(&s);
    (void)snprintf(path, sizeof(path), "%s/s.session", dir);
    return stat(path, &st) == 0 && unlink(path) == 0;
}

/* Else the next turn would find a session, and not sync them. */
Test(session, a_new_one_has_no_name_before_the_folders_above_are_synced)
{
    char top[] = "/tmp/pipit-XXXXXX";
    char dir[64];
    int err = -1;
    int n;

    cr_assert_not_null(mkdtemp(top));
    (void)snprintf(dir, sizeof(dir), "%s/a", top);
    cr_assert_eq(mkdir(dir, 0700), 0);
    (void)snprintf(dir, sizeof(dir), "%s/a/b", top);
    cr_assert_eq(mkdir(dir, 0700), 0);
    cr_assert(commit_failing(dir, 0, &err));
    cr_assert_eq(err, 0);
    cr_assert_geq(n_syncs, 3, "its folder, and two above");
    n = n_syncs;
    for (int i = 1; i <= n; i++) {
        bool named = commit_failing(dir, i, &err);

        cr_assert_eq(err, -EIO);
        cr_assert_eq(named, i == n, "sync %d of %d", i, n);
    }
    (void)rmdir(dir);
    dir[strlen(dir) - 2] = '\0';
    (void)rmdir(dir);
    (void)rmdir(top);
}

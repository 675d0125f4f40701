/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing, checking and locking the runtime directory, and binding in it. In /tmp anybody may have
 * made our folder before us: there it must be a real folder, ours, with mode 0700. The lane socket
 * is as open as its folder (0600 in a 0700 folder), but never for everyone where everyone may
 * write. */

#include "daemon/front/rundir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/sock.h"
#include "daemon/front/config.h"

enum { LISTEN_BACKLOG = 128 };

static int make_folder(const char *path, struct error *reterr)
{
    if (mkdir(path, 0700) && errno != EEXIST) {
        return error_set_errno(reterr, -errno, "cannot make the runtime directory %s", path);
    }
    return 0;
}

/* A folder of ours that nobody else can enter: for places where others may create names. */
static int check_private(const char *path, struct error *reterr)
{
    struct stat st;

    if (lstat(path, &st)) {
        return error_set_errno(reterr, -errno, "cannot look at %s", path);
    }
    if (!S_ISDIR(st.st_mode)) {
        return error_set(reterr, -ENOTDIR, "%s is not a folder", path);
    }
    if (st.st_uid != geteuid()) {
        return error_set(reterr, -EPERM, "%s belongs to uid %u, not to %u", path, st.st_uid,
                         geteuid());
    }
    if ((st.st_mode & 0777) != 0700) {
        return error_set(reterr, -EPERM, "%s has mode %04o; 0700 is needed", path,
                         st.st_mode & 07777u);
    }
    return 0;
}

static int fits(const struct rundir *r, int n, struct error *reterr)
{
    char path[sizeof(r->path) + 16];
    struct sockaddr_un addr;

    if (n < 0 || (size_t)n >= sizeof(r->path)) {
        return error_set(reterr, -ENAMETOOLONG,
                         "the runtime directory's path has %d bytes; with the names of the sockets "
                         "%d are allowed in all",
                         n, (int)SOCK_PATH_MAX);
    }
    (void)snprintf(path, sizeof(path), "%s/gateway.sock", r->path);
    return sock_address(path, &addr, reterr);
}

static int choose_given(const char *dir, struct rundir *ret, struct error *reterr)
{
    struct stat st;
    int rc = fits(ret, snprintf(ret->path, sizeof(ret->path), "%s", dir), reterr);

    rc = rc ? rc : make_folder(dir, reterr);
    if (rc) {
        return rc;
    }
    if (stat(dir, &st) || !S_ISDIR(st.st_mode)) {
        return error_set(reterr, -ENOTDIR, "--runtime-dir %s is not a folder", dir);
    }
    return 0;
}

static int choose_under(const char *base, const char *instance, bool checked, struct rundir *ret,
                        struct error *reterr)
{
    int rc = fits(ret, snprintf(ret->path, sizeof(ret->path), "%s/%s", base, instance), reterr);

    rc = rc ? rc : make_folder(base, reterr);
    rc = rc || !checked ? rc : check_private(base, reterr);
    rc = rc ? rc : make_folder(ret->path, reterr);
    return rc || !checked ? rc : check_private(ret->path, reterr);
}

/* A runtime directory, which PIPIT_RUNTIME_DIR may say unseen, is where the sockets are; clients
 * that are told the instance would look elsewhere. ("default" is what nobody said.) */
static void warn_instance(const struct config *c)
{
    const char *last = strrchr(c->runtime_dir, '/');

    if (c->instance && strcmp(c->instance, "default") != 0 &&
        strcmp(last ? last + 1 : c->runtime_dir, c->instance) != 0) {
        log_warning("--instance %s does not say where the sockets are: --runtime-dir or "
                    "PIPIT_RUNTIME_DIR says %s",
                    c->instance, c->runtime_dir);
    }
}

int rundir_choose(const struct config *c, bool system, struct rundir *ret, struct error *reterr)
{
    const char *instance = c->instance ? c->instance : "default";
    unsigned uid = geteuid();
    char base[64];
    struct stat st;

    *ret = (struct rundir){.lock_fd = -1, .lane_fd = -1, .gateway_fd = -1, .journal_fd = -1};
    if (c->runtime_dir && c->runtime_dir[0]) {
        warn_instance(c);
        return choose_given(c->runtime_dir, ret, reterr);
    }
    if (system && access("/run/pipit", W_OK | X_OK) == 0) {
        return choose_under("/run/pipit", instance, false, ret, reterr);
    }
    (void)snprintf(base, sizeof(base), "/run/user/%u", uid);
    if (stat(base, &st) == 0 && st.st_uid == uid && access(base, W_OK) == 0) {
        (void)snprintf(base, sizeof(base), "/run/user/%u/pipit", uid);
        return choose_under(base, instance, true, ret, reterr);
    }
    (void)snprintf(base, sizeof(base), "/tmp/pipit-%u", uid);
    return choose_under(base, instance, true, ret, reterr);
}

static void read_pid(int fd, char *ret, size_t size)
{
    ssize_t n = pread(fd, ret, size - 1, 0);

    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
}

static void failure_path(const struct rundir *r, char *ret, size_t size)
{
    (void)snprintf(ret, size, "%s/failure", r->path);
}

/* Whoever had it before may have removed it between our open() and our lock. */
static bool is_named(int fd, const char *path)
{
    struct stat a;
    struct stat b;

    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

int rundir_lock(struct rundir *r, struct error *reterr)
{
    char path[sizeof(r->path) + 16];
    char pid[24];
    int rc;

    (void)snprintf(path, sizeof(path), "%s/lock", r->path);
    do {
        close_fd(&r->lock_fd);
        r->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (r->lock_fd < 0) {
            return error_set_errno(reterr, -errno, "cannot open %s", path);
        }
        rc = flock(r->lock_fd, LOCK_EX | LOCK_NB) ? -errno : 0;
    } while (rc == 0 && !is_named(r->lock_fd, path));
    if (rc) {
        read_pid(r->lock_fd, pid, sizeof(pid));
        close_fd(&r->lock_fd);
        if (rc == -EWOULDBLOCK) {
            return error_set(reterr, -EBUSY,
                             "another pipitd (pid %s) already serves %s: choose another --instance "
                             "or --runtime-dir",
                             pid[0] ? pid : "unknown", r->path);
        }
        return error_set_errno(reterr, rc, "cannot lock %s", path);
    }
    failure_path(r, path, sizeof(path));
    if (unlink(path) && errno != ENOENT) {
        log_warning("cannot remove the old %s: %s", path, strerror(errno));
    }
    (void)snprintf(path, sizeof(path), "%s/lock", r->path);
    int n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    if (ftruncate(r->lock_fd, 0) || pwrite(r->lock_fd, pid, (size_t)n, 0) != n) {
        return error_set_errno(reterr, -errno, "cannot write %s", path);
    }
    return 0;
}

static mode_t socket_mode(const char *folder)
{
    struct stat st;
    mode_t mode = 0600;

    if (stat(folder, &st) == 0) {
        mode |= st.st_mode & S_IXGRP ? 0060 : 0;
        mode |= (st.st_mode & S_IXOTH) && !(st.st_mode & S_IWOTH) ? 0006 : 0;
    }
    return mode;
}

int rundir_listen(struct rundir *r, struct error *reterr)
{
    struct sockaddr_un addr;
    char path[sizeof(r->path) + 16];
    int rc;

    if (r->lane_fd >= 0) {
        return 0;
    }
    (void)snprintf(path, sizeof(path), "%s/lane.sock", r->path);
    rc = sock_address(path, &addr, reterr);
    if (rc) {
        return rc;
    }
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return error_set_errno(reterr, -errno, "cannot create a socket");
    }
    if (unlink(path) && errno != ENOENT) {
        return error_set_errno(reterr, -errno, "cannot remove the old %s", path);
    }
    /* Nobody connects before listen(2), so the mode is right before it matters. */
    if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) || chmod(path, socket_mode(r->path)) ||
        listen(fd, LISTEN_BACKLOG)) {
        return error_set_errno(reterr, -errno, "cannot listen on %s", path);
    }
    r->lane_fd = STEAL_FD(fd);
    return 0;
}

/* Without it `pipit wait` would only know that nobody answers. Where it cannot be written, that is
 * what it says. */
void rundir_write_failure(const struct rundir *r, int exit_code, const char *cause)
{
    char path[sizeof(r->path) + 16];
    char text[512];
    int n = snprintf(text, sizeof(text), "%d %s\n", exit_code, cause);

    failure_path(r, path, sizeof(path));
    (void)unlink(path);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                             socket_mode(r->path) & 0444);
    if (fd < 0 || n < 0 || write(fd, text, (size_t)n) != n) {
        log_warning("cannot write %s: %s", path, strerror(errno));
    }
}

void rundir_close(struct rundir *r)
{
    char path[sizeof(r->path) + 16];

    if (r->lane_fd >= 0 && !r->activated) {
        (void)snprintf(path, sizeof(path), "%s/lane.sock", r->path);
        (void)unlink(path);
        if (r->gateway_fd < 0) { /* its gateway, which libzmq leaves the name of, was our child */
            (void)snprintf(path, sizeof(path), "%s/zmq.sock", r->path);
            (void)unlink(path);
        }
        (void)snprintf(path, sizeof(path), "%s/lock", r->path);
        (void)unlink(path);
    }
    close_fd(&r->lane_fd);
    close_fd(&r->gateway_fd);
    close_fd(&r->journal_fd);
    close_fd(&r->lock_fd);
}

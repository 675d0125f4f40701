/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded into pipitd and pipit-engine by power_cut.py (LD_PRELOAD): writes down, in the order in
 * which they ended, all calls that change or sync what lies below $POWER_ROOT, as lines of
 * $POWER_LOG:
 *
 *     create DIR NAME FILE | mkdir DIR NAME FILE | rename DIR NAME DIR NAME | unlink DIR NAME
 *     write FILE OFFSET HEX | size FILE BYTES | grow FILE BYTES | sync FILE
 *
 * where DIR and FILE are inode numbers. A call and its line are under one lock, so that two
 * threads' lines stand in the order of their calls; processes wait for each other by themselves. */

#pragma GCC visibility push(default) /* what is defined here is what others call */

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_MOST = 2048, LINE_MOST = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static const char *root;

#define NEXT(name)                                                                                 \
    static __typeof__(name) *next;                                                                 \
    next = next ? next : (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("POWER_LOG");
    int fd = -1;

    root = getenv("POWER_ROOT");
    if (path && root) {
        fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    log_fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 200);
    if (fd >= 0) {
        (void)close(fd);
    }
}

static bool below(const char *path)
{
    size_t n = strlen(root);

    return strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == 0);
}

static bool fd_path(int fd, char ret[PATH_MOST])
{
    char name[64];
    ssize_t n;

    if (log_fd < 0) {
        return false;
    }
    (void)snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    n = readlink(name, ret, PATH_MOST - 1);
    ret[n > 0 ? n : 0] = 0;
    return n > 0;
}

static bool ours(int fd)
{
    char path[PATH_MOST];

    return fd_path(fd, path) && below(path);
}

struct place {
    unsigned long long dir;
    char name[256];
};

/* Where `path` lies; false outside of the root. */
static bool place_of(int dir, const char *path, struct place *ret)
{
    char whole[PATH_MOST * 2];
    char at[PATH_MOST] = "";
    struct stat st;
    char *slash;

    if (log_fd < 0 || (path[0] != '/' &&
                       !(dir == AT_FDCWD ? getcwd(at, sizeof(at)) != NULL : fd_path(dir, at)))) {
        return false;
    }
    (void)snprintf(whole, sizeof(whole), "%s%s%s", at, at[0] ? "/" : "", path);
    slash = strrchr(whole, '/');
    if (!slash || !below(whole)) {
        return false;
    }
    (void)snprintf(ret->name, sizeof(ret->name), "%s", slash + 1);
    *slash = 0;
    if (stat(whole, &st)) {
        return false;
    }
    ret->dir = st.st_ino;
    return true;
}

static unsigned long long inode(int fd)
{
    struct stat st;

    return fstat(fd, &st) ? 0 : st.st_ino;
}

static void put(const char *data, size_t n)
{
    static ssize_t (*real)(int, const void *, size_t);

    real = real ? real : (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    while (n > 0) {
        ssize_t done = real(log_fd, data, n);

        if (done <= 0) {
            abort(); /* a log with holes proves nothing */
        }
        data += done;
        n -= (size_t)done;
    }
}

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    char line[LINE_MOST];
    va_list ap;

    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    put(line, (size_t)n);
}

static void say_write(int fd, const uint8_t *p, size_t n, off_t at)
{
    char *line = malloc(2 * n + 128);
    int k = line ? snprintf(line, 128, "write %llu %lld ", inode(fd), (long long)at) : 0;

    if (!line) {
        abort();
    }
    for (size_t i = 0; i < n; i++) {
        line[k++] = "0123456789abcdef"[p[i] >> 4];
        line[k++] = "0123456789abcdef"[p[i] & 15];
    }
    line[k++] = '\n';
    put(line, (size_t)k);
    free(line);
}

static bool exists(int dir, const char *path)
{
    struct stat st;

    return fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static int opened(int dir, const char *path, int flags, mode_t mode,
                  int (*next)(int, const char *, int, ...))
{
    struct place p;
    bool there;
    int fd;

    if (!(flags & (O_CREAT | O_TRUNC)) || !place_of(dir, path, &p)) {
        return next(dir, path, flags, mode);
    }
    (void)pthread_mutex_lock(&lock);
    there = exists(dir, path);
    fd = next(dir, path, flags, mode);
    if (fd >= 0 && !there) {
        say("create %llu %s %llu\n", p.dir, p.name, inode(fd));
    } else if (fd >= 0 && (flags & O_TRUNC)) {
        say("size %llu 0\n", inode(fd));
    }
    (void)pthread_mutex_unlock(&lock);
    return fd;
}

int openat64(int dir, const char *path, int flags, ...)
{
    NEXT(openat64);
    va_list ap;

    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return opened(dir, path, flags, mode, next);
}

int open64(const char *path, int flags, ...)
{
    static __typeof__(openat64) *next;
    va_list ap;

    next = next ? next : (__typeof__(openat64) *)dlsym(RTLD_NEXT, "openat64");
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return opened(AT_FDCWD, path, flags, mode, next);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t at)
{
    NEXT(pwrite64);
    ssize_t done;

    if (!ours(fd)) {
        return next(fd, data, n, at);
    }
    (void)pthread_mutex_lock(&lock);
    done = next(fd, data, n, at);
    if (done > 0) {
        say_write(fd, data, (size_t)done, at);
    }
    (void)pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *data, size_t n)
{
    NEXT(write);
    ssize_t done;

    if (log_fd < 0 || !ours(fd)) {
        return next(fd, data, n);
    }
    (void)pthread_mutex_lock(&lock);
    off_t at = lseek(fd, 0, SEEK_CUR);
    done = next(fd, data, n);
    if (done > 0) {
        say_write(fd, data, (size_t)done, at);
    }
    (void)pthread_mutex_unlock(&lock);
    return done;
}

/* A call on a descriptor, and its line. */
#define ON_FD(type, call, line)                                                                    \
    type r;                                                                                        \
    if (!ours(fd)) {                                                                               \
        return call;                                                                               \
    }                                                                                              \
    (void)pthread_mutex_lock(&lock);                                                               \
    r = call;                                                                                      \
    if (r == 0) {                                                                                  \
        line;                                                                                      \
    }                                                                                              \
    (void)pthread_mutex_unlock(&lock);                                                             \
    return r

int ftruncate64(int fd, off_t n)
{
    NEXT(ftruncate64);
    ON_FD(int, next(fd, n), say("size %llu %lld\n", inode(fd), (long long)n));
}

int fallocate64(int fd, int mode, off_t at, off_t n)
{
    NEXT(fallocate64);
    ON_FD(int, next(fd, mode, at, n), say("grow %llu %lld\n", inode(fd), (long long)(at + n)));
}

int fsync(int fd)
{
    NEXT(fsync);
    ON_FD(int, next(fd), say("sync %llu\n", inode(fd)));
}

int fdatasync(int fd)
{
    NEXT(fdatasync);
    ON_FD(int, next(fd), say("sync %llu\n", inode(fd)));
}

static int named(int rc, const struct place *p, const char *what)
{
    if (rc == 0) {
        say("%s %llu %s\n", what, p->dir, p->name);
    }
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

int unlinkat(int dir, const char *path, int flags)
{
    NEXT(unlinkat);
    struct place p;

    if (!place_of(dir, path, &p)) {
        return next(dir, path, flags);
    }
    (void)pthread_mutex_lock(&lock);
    return named(next(dir, path, flags), &p, "unlink");
}

int unlink(const char *path)
{
    NEXT(unlink);
    struct place p;

    if (!place_of(AT_FDCWD, path, &p)) {
        return next(path);
    }
    (void)pthread_mutex_lock(&lock);
    return named(next(path), &p, "unlink");
}

static int made(int rc, int dir, const char *path, const struct place *p)
{
    struct stat st;

    if (rc == 0 && fstatat(dir, path, &st, 0) == 0) {
        say("mkdir %llu %s %llu\n", p->dir, p->name, (unsigned long long)st.st_ino);
    }
    (void)pthread_mutex_unlock(&lock);
    return rc;
}

int mkdirat(int dir, const char *path, mode_t mode)
{
    NEXT(mkdirat);
    struct place p;

    if (!place_of(dir, path, &p)) {
        return next(dir, path, mode);
    }
    (void)pthread_mutex_lock(&lock);
    return made(next(dir, path, mode), dir, path, &p);
}

int mkdir(const char *path, mode_t mode)
{
    NEXT(mkdir);
    struct place p;

    if (!place_of(AT_FDCWD, path, &p)) {
        return next(path, mode);
    }
    (void)pthread_mutex_lock(&lock);
    return made(next(path, mode), AT_FDCWD, path, &p);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    NEXT(renameat);
    struct place a;
    struct place b;
    int r;

    if (!place_of(from_dir, from, &a) || !place_of(to_dir, to, &b)) {
        return next(from_dir, from, to_dir, to);
    }
    (void)pthread_mutex_lock(&lock);
    r = next(from_dir, from, to_dir, to);
    if (r == 0) {
        say("rename %llu %s %llu %s\n", a.dir, a.name, b.dir, b.name);
    }
    (void)pthread_mutex_unlock(&lock);
    return r;
}

int rename(const char *from, const char *to)
{
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

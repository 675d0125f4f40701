/* SPDX-License-Identifier: Apache-2.0 */
/* The countdown of fail.h and the wrappers that obey it. A call that closes something does so all
 * the same, because not closing it would be the leak. tests/fuzz/meson.build has the same list. */

#include "tests/fuzz/fail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { TAIL = 4, MOST_RUNS = 600 };

static atomic_long countdown; /* 0: nothing fails */
static atomic_int counting;   /* kinds of calls */
static atomic_bool fired;
static _Thread_local bool spared;

static bool hit(int code)
{
    if (spared || !(atomic_load(&counting) & (code == ENOMEM ? FAIL_MEMORY : FAIL_CALLS)) ||
        atomic_load(&countdown) <= 0 || atomic_fetch_sub(&countdown, 1) != 1) {
        return false;
    }
    atomic_store(&fired, true);
    errno = code;
    return true;
}

/* clang-format off */
#define WRAP(type, name, params, args, code, failed) \
    type __real_##name params;                       \
    type __wrap_##name params;                       \
    type __wrap_##name params                        \
    {                                                \
        return hit(code) ? (failed) : __real_##name args; \
    }

WRAP(void *, malloc, (size_t n), (n), ENOMEM, NULL)
WRAP(void *, calloc, (size_t n, size_t size), (n, size), ENOMEM, NULL)
WRAP(void *, realloc, (void *p, size_t n), (p, n), ENOMEM, NULL)
WRAP(void *, reallocarray, (void *p, size_t n, size_t size), (p, n, size), ENOMEM, NULL)
WRAP(void *, aligned_alloc, (size_t align, size_t n), (align, n), ENOMEM, NULL)
WRAP(char *, strdup, (const char *s), (s), ENOMEM, NULL)
WRAP(FILE *, open_memstream, (char **p, size_t *n), (p, n), ENOMEM, NULL)
WRAP(FILE *, fopen64, (const char *path, const char *mode), (path, mode), EIO, NULL)
WRAP(FILE *, fdopen, (int fd, const char *mode), (fd, mode), ENOMEM, NULL)
WRAP(size_t, fread, (void *p, size_t size, size_t n, FILE *f), (p, size, n, f), EIO, 0)
WRAP(size_t, fwrite, (const void *p, size_t size, size_t n, FILE *f), (p, size, n, f), EIO, 0)
WRAP(int, fflush, (FILE *f), (f), EIO, EOF)
WRAP(ssize_t, read, (int fd, void *p, size_t n), (fd, p, n), EIO, -1)
WRAP(ssize_t, pread64, (int fd, void *p, size_t n, off64_t at), (fd, p, n, at), EIO, -1)
WRAP(ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n), EIO, -1)
WRAP(ssize_t, pwrite64, (int fd, const void *p, size_t n, off64_t at), (fd, p, n, at), EIO, -1)
WRAP(int, fstat64, (int fd, struct stat64 *st), (fd, st), EIO, -1)
WRAP(int, ftruncate64, (int fd, off64_t n), (fd, n), EIO, -1)
WRAP(int, fallocate64, (int fd, int mode, off64_t at, off64_t n), (fd, mode, at, n), EIO, -1)
WRAP(DIR *, fdopendir, (int fd), (fd), ENOMEM, NULL)
WRAP(int, fsync, (int fd), (fd), EIO, -1)
WRAP(int, fdatasync, (int fd), (fd), EIO, -1)
WRAP(int, rename, (const char *from, const char *to), (from, to), EIO, -1)
WRAP(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), EIO, -1)
WRAP(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), EIO, -1)
WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), EIO, -1)
WRAP(int, connect, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n), EIO, -1)
WRAP(ssize_t, send, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags), EIO, -1)
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags), EIO, -1)
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags), EIO, -1)
WRAP(void *, mmap64, (void *p, size_t n, int prot, int flags, int fd, off64_t at), (p, n, prot, flags, fd, at), ENOMEM, MAP_FAILED)
WRAP(int, pthread_create, (pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg), (t, a, fn, arg), EAGAIN, EAGAIN)
WRAP(int, epoll_create1, (int flags), (flags), EIO, -1)
WRAP(int, epoll_ctl, (int ep, int op, int fd, struct epoll_event *ev), (ep, op, fd, ev), EIO, -1)
WRAP(int, epoll_wait, (int ep, struct epoll_event *ev, int n, int ms), (ep, ev, n, ms), EIO, -1)
WRAP(int, timerfd_create, (int clock, int flags), (clock, flags), EIO, -1)
WRAP(ssize_t, getrandom, (void *p, size_t n, unsigned flags), (p, n, flags), EIO, -1)
/* clang-format on */

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
    va_list ap;

    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return hit(EIO) ? -1 : __real_open64(path, flags, mode);
}

int __real_openat64(int dir, const char *path, int flags, ...);
int __wrap_openat64(int dir, const char *path, int flags, ...);
int __wrap_openat64(int dir, const char *path, int flags, ...)
{
    va_list ap;

    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return hit(EIO) ? -1 : __real_openat64(dir, path, flags, mode);
}

int __real_fclose(FILE *f);
int __wrap_fclose(FILE *f);
int __wrap_fclose(FILE *f)
{
    bool failed = hit(EIO);
    int r = __real_fclose(f);

    errno = failed ? EIO : errno;
    return failed ? EOF : r;
}

void fail_nth(long n)
{
    atomic_store(&fired, false);
    atomic_store(&countdown, n);
}

int fail_run(const uint8_t *data, size_t size, int (*one)(const uint8_t *data, size_t size))
{
    const uint8_t *tail = size >= TAIL ? data + size - TAIL : NULL;
    long n = tail && tail[0] == 0xff && tail[1] == 'F' ? tail[2] | tail[3] << 8 : -1;
    long last = n == 0 ? MOST_RUNS : n;
    int r = 0;

    size -= n >= 0 ? TAIL : 0;
    for (n = n == 0 ? 1 : n; n <= last; n++) {
        fail_nth(n > 0 ? n : 0);
        r = one(data, size);
        atomic_store(&countdown, 0);
        if (!fail_hit()) {
            break;
        }
    }
    return r;
}

void fail_begin(int kinds)
{
    atomic_store(&counting, kinds);
}

void fail_end(void)
{
    atomic_store(&counting, 0);
}

bool fail_hit(void)
{
    return atomic_load(&fired);
}

void fail_spare(void)
{
    spared = true;
}

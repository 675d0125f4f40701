/* SPDX-License-Identifier: Apache-2.0 */
/* The countdown and the wrappers that obey it. Memory fails with ENOMEM, everything else with EIO;
 * what opens or closes does its real work first where not doing it would itself be the leak. */

#include "tests/fault/fault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

static atomic_long countdown; /* 0: nothing fails */
static atomic_bool fired;

static bool hit(int code)
{
    if (atomic_load(&countdown) <= 0 || atomic_fetch_sub(&countdown, 1) != 1) {
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
WRAP(FILE *, fdopen, (int fd, const char *mode), (fd, mode), EIO, NULL)
WRAP(size_t, fwrite, (const void *p, size_t size, size_t n, FILE *f), (p, size, n, f), EIO, 0)
WRAP(int, fflush, (FILE *f), (f), EIO, EOF)
WRAP(ssize_t, read, (int fd, void *p, size_t n), (fd, p, n), EIO, -1)
WRAP(ssize_t, write, (int fd, const void *p, size_t n), (fd, p, n), EIO, -1)
WRAP(int, fstat64, (int fd, struct stat64 *st), (fd, st), EIO, -1)
WRAP(int, fsync, (int fd), (fd), EIO, -1)
WRAP(int, rename, (const char *from, const char *to), (from, to), EIO, -1)
WRAP(void *, mmap64, (void *p, size_t n, int prot, int flags, int fd, off64_t at), (p, n, prot, flags, fd, at), EIO, MAP_FAILED)
WRAP(int, pthread_create, (pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg), (t, a, fn, arg), EAGAIN, EAGAIN)
WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), EIO, -1)
WRAP(int, connect, (int fd, const struct sockaddr *addr, socklen_t n), (fd, addr, n), EIO, -1)
WRAP(ssize_t, send, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags), EIO, -1)
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags), EIO, -1)
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

int __real_fclose(FILE *f);
int __wrap_fclose(FILE *f);
int __wrap_fclose(FILE *f)
{
    bool failed = hit(EIO);
    int r = __real_fclose(f);

    errno = failed ? EIO : errno;
    return failed ? EOF : r;
}

static int count_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d && readdir(d)) {
        n++;
    }
    if (d) {
        (void)closedir(d);
    }
    return n;
}

static void require(bool ok, const char *name, long n, const char *what, const struct error *e)
{
    if (!ok) {
        (void)fprintf(stderr, "%s, failure %ld: %s (code %d, '%s')\n", name, n, what, e->code,
                      e->text);
        abort();
    }
}

int fault_loop(const char *name, fault_body *body, void *arg)
{
    /* The heap's figures are exact only without the per-thread cache, which meson.build turns off;
     * under a sanitizer they are 0 and its own leak check does the work. */
    bool exact = getenv("GLIBC_TUNABLES") != NULL;
    struct error e = {0};
    size_t heap;
    int descriptors;
    int n_failed = 0;

    /* Once in peace: what libraries allocate for good is allocated now. */
    require(body(arg, &e) == 0, name, 0, "it fails without a fault", &e);
    for (long n = 1;; n++) {
        e = (struct error){0};
        descriptors = count_descriptors();
        heap = mallinfo2().uordblks;
        atomic_store(&fired, false);
        atomic_store(&countdown, n);
        int r = body(arg, &e);
        atomic_store(&countdown, 0);
        require(!exact || mallinfo2().uordblks == heap, name, n, "memory is lost", &e);
        require(count_descriptors() == descriptors, name, n, "a descriptor is lost", &e);
        if (!atomic_load(&fired)) {
            require(r == 0, name, n, "it fails without a fault", &e);
            (void)printf("%s: %d of %ld faults reported, the others borne\n", name, n_failed,
                         n - 1);
            return n_failed;
        }
        if (r != 0) {
            require(r == -ENOMEM || r == -EIO || r == -EAGAIN, name, n, "the code is odd", &e);
            require(e.code == r && e.text[0], name, n, "no text", &e);
            n_failed++;
        }
    }
}

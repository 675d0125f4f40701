/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded into pipitd, pipit-engine and pipit-gateway by fault_daemon.py (LD_PRELOAD): makes the
 * n-th of the calls below fail, with an errno that the call may have. What fails and what is
 * counted lies in a file that the script maps, too: FAULT_DIR/NAME for the program NAME (struct
 * control, all of it written by this library but `countdown`, `kinds` and `only`); a program
 * without such a file runs as always. So a failure is armed at any time without a thread, a
 * descriptor or a signal in the process, and before its start, when counting begins with main().
 *
 * Not made to fail: EAGAIN, which is no failure; close(2), write(2) to an eventfd, epoll_wait(2)'s
 * errors but EINTR, timerfd_settime(2), clocks: the kernel has no reason to. A child between
 * fork(2) and exec(2) counts nothing.
 *
 * `live` is the heap in use by what goes through malloc(3) and its kin, in AddressSanitizer's
 * builds as well. */

#pragma GCC visibility push(default) /* what is defined here is what others call */

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <unwind.h>

enum { MEMORY = 1, SYSTEM = 2 };

struct control {            /* fault_daemon.py knows the offsets */
    atomic_llong countdown; /* the call that takes it to 0 fails; 0: none does */
    atomic_llong kinds;     /* MEMORY, SYSTEM: what is counted and fails */
    atomic_llong n_calls;
    atomic_llong n_fired;
    atomic_llong live_bytes;
    atomic_llong live_blocks;
    atomic_llong pid;
    atomic_llong offset; /* of the failed call's return address in `object` */
    char call[64];
    char object[256];
    char only[64]; /* nothing but this call is counted and fails; "": all */
};

static struct control *control;
static bool begun;
static pid_t own_pid;

extern char *program_invocation_short_name;

/* AddressSanitizer's runtime, which clang links into the program, passes a call on: who made it is
 * one frame further. */
struct frames {
    void *from; /* in the runtime */
    void *next; /* behind it; NULL: not found */
    bool seen;
};

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *arg)
{
    struct frames *f = arg;
    void *ip = (void *)_Unwind_GetIP(context); /* NOLINT(performance-no-int-to-ptr) */

    if (f->seen) {
        f->next = ip;
        return _URC_END_OF_STACK;
    }
    f->seen = ip == f->from;
    return _URC_NO_REASON;
}

static void *caller(void *from, const char *call)
{
    struct frames f = {.from = from};
    Dl_info info;

    if (dladdr(from, &info) && info.dli_sname &&
        (strcmp(info.dli_sname, call) == 0 || strstr(info.dli_sname, "__interceptor_"))) {
        (void)_Unwind_Backtrace(frame, &f);
    }
    return f.next ? f.next : from;
}

static bool hit(int kind, int code, const char *call, void *from)
{
    Dl_info info;

    if (!begun || !(atomic_load(&control->kinds) & kind) || getpid() != own_pid) {
        return false;
    }
    if (control->only[0] && strcmp(control->only, call) != 0) {
        return false;
    }
    atomic_fetch_add(&control->n_calls, 1);
    if (atomic_load(&control->countdown) <= 0 || atomic_fetch_sub(&control->countdown, 1) != 1) {
        return false;
    }
    from = caller(from, call);
    if (dladdr(from, &info) && info.dli_fname) {
        (void)snprintf(control->object, sizeof(control->object), "%s", info.dli_fname);
        atomic_store(&control->offset, (char *)from - (char *)info.dli_fbase);
    }
    (void)snprintf(control->call, sizeof(control->call), "%s", call);
    atomic_fetch_add(&control->n_fired, 1);
    errno = code;
    return true;
}

#define HIT(kind, code, call) hit(kind, code, call, __builtin_return_address(0))

/* ---- memory ---- */

/* The sanitizer's where it is there, else the C library's: dlsym(3) may itself allocate. */
#define REAL(type, name, params)                                                                   \
    type __libc_##name params;                                                                     \
    type __interceptor_##name params __attribute__((weak));                                        \
    static type(*real_##name(void)) params                                                         \
    {                                                                                              \
        return __interceptor_##name ? __interceptor_##name : __libc_##name;                        \
    }

/* clang-format off */
REAL(void *, malloc, (size_t n))
REAL(void *, calloc, (size_t n, size_t size))
REAL(void *, realloc, (void *p, size_t n))
REAL(void *, memalign, (size_t align, size_t n))
REAL(void, free, (void *p))
/* clang-format on */

static void *count(void *p)
{
    if (p && control && getpid() == own_pid) {
        atomic_fetch_add(&control->live_bytes, (long long)malloc_usable_size(p));
        atomic_fetch_add(&control->live_blocks, 1);
    }
    return p;
}

static void uncount(void *p)
{
    if (p && control && getpid() == own_pid) {
        atomic_fetch_sub(&control->live_bytes, (long long)malloc_usable_size(p));
        atomic_fetch_sub(&control->live_blocks, 1);
    }
}

void *malloc(size_t n)
{
    return HIT(MEMORY, ENOMEM, "malloc") ? NULL : count(real_malloc()(n));
}

void *calloc(size_t n, size_t size)
{
    return HIT(MEMORY, ENOMEM, "calloc") ? NULL : count(real_calloc()(n, size));
}

void *realloc(void *p, size_t n)
{
    void *q;

    if (n && HIT(MEMORY, ENOMEM, "realloc")) {
        return NULL;
    }
    uncount(p);
    q = real_realloc()(p, n);
    (void)count(q || n == 0 ? q : p);
    return q;
}

void *aligned_alloc(size_t align, size_t n)
{
    return HIT(MEMORY, ENOMEM, "aligned_alloc") ? NULL : count(real_memalign()(align, n));
}

void *memalign(size_t align, size_t n)
{
    return HIT(MEMORY, ENOMEM, "memalign") ? NULL : count(real_memalign()(align, n));
}

int posix_memalign(void **ret, size_t align, size_t n)
{
    void *p = HIT(MEMORY, ENOMEM, "posix_memalign") ? NULL : count(real_memalign()(align, n));

    *ret = p ? p : *ret;
    return p ? 0 : ENOMEM;
}

void free(void *p)
{
    uncount(p);
    real_free()(p);
}

/* ---- system calls ---- */

/* clang-format off */
#define NEXT(name) \
    static __typeof__(name) *next; \
    next = next ? next : (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define WRAP(type, name, params, args, code, failed)            \
    type name params                                            \
    {                                                           \
        NEXT(name);                                             \
        return HIT(SYSTEM, code, #name) ? (failed) : next args; \
    }

WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), EMFILE, -1)
WRAP(int, socketpair, (int domain, int type, int protocol, int ret[2]), (domain, type, protocol, ret), EMFILE, -1)
WRAP(int, bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n), ENOMEM, -1)
WRAP(int, listen, (int fd, int n), (fd, n), ENOBUFS, -1)
WRAP(int, connect, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n), ENOMEM, -1)
WRAP(int, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags), EMFILE, -1)
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags), ENOBUFS, -1)
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags), ENOMEM, -1)
WRAP(ssize_t, send, (int fd, const void *p, size_t n, int flags), (fd, p, n, flags), ENOBUFS, -1)
WRAP(ssize_t, sendto, (int fd, const void *p, size_t n, int flags, const struct sockaddr *a, socklen_t size), (fd, p, n, flags, a, size), ENOBUFS, -1)
WRAP(ssize_t, recv, (int fd, void *p, size_t n, int flags), (fd, p, n, flags), ENOMEM, -1)
WRAP(int, epoll_create1, (int flags), (flags), EMFILE, -1)
WRAP(int, epoll_wait, (int ep, struct epoll_event *ev, int n, int ms), (ep, ev, n, ms), EINTR, -1)
WRAP(int, poll, (struct pollfd *v, nfds_t n, int ms), (v, n, ms), EINTR, -1)
WRAP(int, timerfd_create, (int clock, int flags), (clock, flags), EMFILE, -1)
WRAP(int, signalfd, (int fd, const sigset_t *set, int flags), (fd, set, flags), EMFILE, -1)
WRAP(int, memfd_create, (const char *name, unsigned flags), (name, flags), EMFILE, -1)
WRAP(int, ftruncate64, (int fd, off64_t n), (fd, n), ENOSPC, -1)
WRAP(int, fchmod, (int fd, mode_t mode), (fd, mode), EPERM, -1)
WRAP(int, chmod, (const char *path, mode_t mode), (path, mode), EPERM, -1)
WRAP(void *, mmap64, (void *p, size_t n, int prot, int flags, int fd, off64_t at), (p, n, prot, flags, fd, at), ENOMEM, MAP_FAILED)
WRAP(FILE *, fopen64, (const char *path, const char *mode), (path, mode), EMFILE, NULL)
WRAP(DIR *, opendir, (const char *path), (path), EMFILE, NULL)
WRAP(DIR *, fdopendir, (int fd), (fd), ENOMEM, NULL)
WRAP(struct dirent64 *, readdir64, (DIR *d), (d), EIO, NULL)
WRAP(ssize_t, read, (int fd, void *p, size_t n), (fd, p, n), EINTR, -1)
WRAP(ssize_t, pread64, (int fd, void *p, size_t n, off64_t at), (fd, p, n, at), EIO, -1)
WRAP(ssize_t, pwrite64, (int fd, const void *p, size_t n, off64_t at), (fd, p, n, at), ENOSPC, -1)
WRAP(int, fsync, (int fd), (fd), EIO, -1)
WRAP(int, rename, (const char *from, const char *to), (from, to), ENOSPC, -1)
WRAP(int, fallocate64, (int fd, int mode, off64_t at, off64_t n), (fd, mode, at, n), ENOSPC, -1)
WRAP(int, renameat, (int from_dir, const char *from, int to_dir, const char *to), (from_dir, from, to_dir, to), ENOSPC, -1)
WRAP(int, posix_fallocate64, (int fd, off64_t at, off64_t n), (fd, at, n), ENOSPC, ENOSPC)
WRAP(int, madvise, (void *p, size_t n, int advice), (p, n, advice), EAGAIN, -1)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), ENOSPC, -1)
WRAP(int, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode), ENOSPC, -1)
WRAP(int, unlink, (const char *path), (path), EIO, -1)
WRAP(int, unlinkat, (int dir, const char *path, int flags), (dir, path, flags), EIO, -1)
WRAP(int, stat64, (const char *path, struct stat64 *st), (path, st), ENOMEM, -1)
WRAP(int, lstat64, (const char *path, struct stat64 *st), (path, st), ENOMEM, -1)
WRAP(int, fstat64, (int fd, struct stat64 *st), (fd, st), EIO, -1)
WRAP(int, fstatat64, (int dir, const char *path, struct stat64 *st, int flags), (dir, path, st, flags), ENOMEM, -1)
WRAP(int, flock, (int fd, int op), (fd, op), ENOLCK, -1)
WRAP(ssize_t, readlink, (const char *path, char *p, size_t n), (path, p, n), ENOMEM, -1)
WRAP(ssize_t, getrandom, (void *p, size_t n, unsigned flags), (p, n, flags), EINTR, -1)
WRAP(pid_t, fork, (void), (), EAGAIN, -1)
/* clang-format on */

int pthread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    NEXT(pthread_create);
    return HIT(SYSTEM, EAGAIN, "pthread_create") ? EAGAIN : next(ret, attr, run, arg);
}

int epoll_ctl(int ep, int op, int fd, struct epoll_event *ev)
{
    NEXT(epoll_ctl);
    if (op != EPOLL_CTL_DEL && HIT(SYSTEM, op == EPOLL_CTL_ADD ? ENOSPC : ENOMEM,
                                   op == EPOLL_CTL_ADD ? "epoll_ctl add" : "epoll_ctl mod")) {
        return -1;
    }
    return next(ep, op, fd, ev);
}

static atomic_bool counts[1024]; /* descriptors that are eventfds */

int eventfd(unsigned n, int flags)
{
    NEXT(eventfd);
    int fd = HIT(SYSTEM, EMFILE, "eventfd") ? -1 : next(n, flags);

    if (fd >= 0 && fd < (int)(sizeof(counts) / sizeof(counts[0]))) {
        atomic_store(&counts[fd], true);
    }
    return fd;
}

ssize_t write(int fd, const void *p, size_t n)
{
    NEXT(write);
    bool is_count = n == sizeof(uint64_t) && fd >= 0 &&
                    fd < (int)(sizeof(counts) / sizeof(counts[0])) && atomic_load(&counts[fd]);

    return !is_count && HIT(SYSTEM, ENOSPC, "write") ? -1 : next(fd, p, n);
}

/* Only what makes a descriptor or seals one. */
int fcntl64(int fd, int op, ...)
{
    NEXT(fcntl64);
    va_list ap;

    va_start(ap, op);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    if (op == F_DUPFD || op == F_DUPFD_CLOEXEC || op == F_ADD_SEALS) {
        if (HIT(SYSTEM, op == F_ADD_SEALS ? EBUSY : EMFILE, "fcntl")) {
            return -1;
        }
    }
    return next(fd, op, arg);
}

int open64(const char *path, int flags, ...)
{
    NEXT(open64);
    va_list ap;

    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return HIT(SYSTEM, EMFILE, "open") ? -1 : next(path, flags, mode);
}

int openat64(int dir, const char *path, int flags, ...)
{
    NEXT(openat64);
    va_list ap;

    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return HIT(SYSTEM, EMFILE, "openat") ? -1 : next(dir, path, flags, mode);
}

/* ---- beginning ---- */

static int (*program_main)(int argc, char **argv, char **env);

static int counted_main(int argc, char **argv, char **env)
{
    begun = control != NULL;
    return program_main(argc, argv, env);
}

int __libc_start_main(int (*start)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*rtld_fini)(void), void *end);
int __libc_start_main(int (*start)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*rtld_fini)(void), void *end)
{
    NEXT(__libc_start_main);
    program_main = start;
    return next(counted_main, argc, argv, init, fini, rtld_fini, end);
}

__attribute__((constructor)) static void take_control(void)
{
    const char *folder = getenv("FAULT_DIR");
    char path[1024];
    void *p;
    int fd;

    own_pid = getpid();
    (void)snprintf(path, sizeof(path), "%s/%s", folder ? folder : "/nonexistent",
                   program_invocation_short_name);
    fd = open64(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    p = mmap64(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (p == MAP_FAILED) {
        return;
    }
    struct control *c = p;
    atomic_store(&c->live_bytes, 0);
    atomic_store(&c->live_blocks, 0);
    atomic_store(&c->pid, own_pid);
    control = c;
}

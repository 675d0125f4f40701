/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_CLEANUP_H
#define PIPIT_BASE_CLEANUP_H

/* Scope-bound ownership for cold paths (never in kernels or the token loop):
 *
 *     AUTO_FREE char *path = NULL;
 *     AUTO_CLOSE int fd = -1;
 *     ...
 *     *ret_fd = STEAL_FD(fd);  *ret_path = STEAL(path);
 */

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free(void *p)
{
    free(*(void **)p);
}

static inline void cleanup_close(int *fd)
{
    if (*fd >= 0) {
        int saved = errno;
        (void)close(*fd);
        errno = saved;
    }
}

#define AUTO_FREE __attribute__((cleanup(cleanup_free)))
#define AUTO_CLOSE __attribute__((cleanup(cleanup_close)))

#define STEAL(p)                \
    __extension__({             \
        __typeof__(p) p_ = (p); \
        (p) = NULL;             \
        p_;                     \
    })

#define STEAL_FD(fd)     \
    __extension__({      \
        int fd_ = (fd);  \
        (fd) = -1;       \
        fd_;             \
    })

/* close() that keeps errno and makes the variable -1; safe on -1. */
static inline void close_fd(int *fd)
{
    cleanup_close(fd);
    *fd = -1;
}

#endif

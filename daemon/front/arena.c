/* SPDX-License-Identifier: Apache-2.0 */
/* memfd_create(2), seals, and the hole that gives a closed lane's memory back. A seal that cannot
 * be set is an error, never a warning: without it a client's truncate kills the engine. */

#include "daemon/front/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

int arena_memfd(const char *name, size_t size, mode_t mode, int *ret_fd, struct error *reterr)
{
    AUTO_CLOSE int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL) { /* kernels before 6.3 */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    if (fd < 0) {
        return error_set_errno(reterr, -errno, "cannot create shared memory %s", name);
    }
    if (ftruncate(fd, (off_t)size)) {
        return error_set_errno(reterr, -errno, "cannot size shared memory %s to %zu bytes", name,
                               size);
    }
    if (fchmod(fd, mode)) {
        return error_set_errno(reterr, -errno, "cannot set the mode of shared memory %s", name);
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        return error_set_errno(reterr, -errno, "cannot seal shared memory %s", name);
    }
    *ret_fd = STEAL_FD(fd);
    return 0;
}

int arena_read_only(int fd, int *ret_fd, struct error *reterr)
{
    char path[40];
    int ro;

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ro = open(path, O_RDONLY | O_CLOEXEC);
    if (ro < 0) {
        return error_set_errno(reterr, -errno, "cannot reopen shared memory for reading");
    }
    *ret_fd = ro;
    return 0;
}

void arena_drop(int *fd, size_t size)
{
    if (*fd >= 0) {
        (void)fallocate(*fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)size);
        close_fd(fd);
    }
}

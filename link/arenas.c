/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon makes the memory. A mapping whose file could shrink would kill us with SIGBUS, so both
 * files must carry F_SEAL_SHRINK and be as large as the hello's reply said. */

#include "link/arenas.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

static int map_one(int fd, uint64_t bytes, int prot, const char *name, void **ret,
                   struct error *reterr)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    void *p;

    if (bytes == 0 || bytes > SIZE_MAX / 2) {
        return error_set(reterr, -EBADMSG, "the %s arena has %llu bytes", name,
                         (unsigned long long)bytes);
    }
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
        return error_set(reterr, -EBADMSG, "the %s arena is not sealed against shrinking", name);
    }
    if (fstat(fd, &st) < 0) {
        return error_set_errno(reterr, -errno, "cannot look at the %s arena", name);
    }
    if (st.st_size < 0 || (uint64_t)st.st_size < bytes) {
        return error_set(reterr, -EBADMSG, "the %s arena is smaller than the hello said", name);
    }
    p = mmap(NULL, (size_t)bytes, prot, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        return error_set_errno(reterr, -errno, "cannot map the %s arena", name);
    }
    *ret = p;
    return 0;
}

int arenas_map(const int fds[2], uint64_t c2e_bytes, uint64_t e2c_bytes, struct arenas **ret,
               struct error *reterr)
{
    struct arenas *a = calloc(1, sizeof(*a));
    void *p = NULL;
    int r;

    if (!a) {
        return error_set(reterr, -ENOMEM, "no memory for the lane");
    }
    a->refs = 1;
    a->alive = true;
    r = map_one(fds[0], c2e_bytes, PROT_READ | PROT_WRITE, "client-to-engine", &p, reterr);
    if (r == 0) {
        a->c2e = p;
        a->c2e_bytes = (size_t)c2e_bytes;
        r = map_one(fds[1], e2c_bytes, PROT_READ, "engine-to-client", &p, reterr);
    }
    if (r < 0) {
        arenas_unref(a);
        return r;
    }
    a->e2c = p;
    a->e2c_bytes = (size_t)e2c_bytes;
    *ret = a;
    return 0;
}

struct arenas *arenas_ref(struct arenas *a)
{
    a->refs++;
    return a;
}

void arenas_unref(struct arenas *a)
{
    if (!a || --a->refs > 0) {
        return;
    }
    if (a->c2e) {
        (void)munmap(a->c2e, a->c2e_bytes);
    }
    if (a->e2c) {
        (void)munmap((void *)(uintptr_t)a->e2c, a->e2c_bytes);
    }
    free(a);
}

bool arenas_hold(const struct arenas *a, enum lane_arena arena, const struct lane_lease *got,
                 uint64_t bytes)
{
    uint64_t room = arena == LANE_ARENA_C2E ? a->c2e_bytes : a->e2c_bytes;

    return got->arena == (uint32_t)arena && got->length >= bytes && got->offset <= room &&
           got->length <= room - got->offset && got->offset % 8 == 0;
}

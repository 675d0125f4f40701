/* SPDX-License-Identifier: Apache-2.0 */
/* The two shared arenas of a lane, and leases on them.
 *
 * The daemon makes the memory; we map c2e for reading and writing and e2c read-only. A mapping
 * whose file could shrink would kill us with SIGBUS, so both must carry F_SEAL_SHRINK and be as
 * large as the hello said. Offsets come from the daemon in LANE_LEASE and are checked against the
 * mapping; nobody else's offsets are ever used.
 *
 * A reconnect brings new arenas. Leases of the old ones keep the old mapping alive (so that a
 * pointer in a program's hands never dangles), but name nothing any more. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/client.h"

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

int pipit_lease_get(struct pipit_client *c, enum pipit_arena arena, size_t bytes,
                    struct pipit_lease **ret, struct pipit_error *reterr)
{
    struct lane_record ask;
    struct pipit_lease *l;
    const struct lane_lease *got = &c->call.answer.lease;
    size_t room;
    int r;

    if ((arena != PIPIT_TO_DAEMON && arena != PIPIT_FROM_DAEMON) || bytes == 0) {
        return pipit_fail(reterr, -EINVAL, PIPIT_E_LOCAL, "a lease needs an arena and a size");
    }
    lane_record_init(&ask, LANE_LEASE_GET, NULL);
    ask.lease.arena = arena;
    ask.lease.length = bytes;
    r = dispatch_call(c, &ask, NULL, LANE_LEASE, reterr);
    if (r < 0) {
        return r;
    }
    if (!c->arenas) { /* granted, and lost before we came to look */
        return pipit_fail_copy(reterr, &c->last);
    }
    room = arena == PIPIT_TO_DAEMON ? c->arenas->c2e_bytes : c->arenas->e2c_bytes;
    if (got->arena != (uint32_t)arena || got->length < bytes || got->offset > room ||
        got->length > room - got->offset || got->offset % 8) {
        return pipit_fail(reterr, -EBADMSG, PIPIT_E_PROTOCOL,
                          "the daemon granted a lease that does not lie in its arena");
    }
    l = calloc(1, sizeof(*l));
    if (!l) {
        return pipit_fail(reterr, -ENOMEM, PIPIT_E_LOCAL, "no memory for a lease");
    }
    l->client = c;
    l->arenas = arenas_ref(c->arenas);
    l->arena = got->arena;
    l->buf = got->buf;
    l->generation = got->generation;
    l->offset = got->offset;
    l->bytes = bytes;
    *ret = l;
    return 0;
}

void pipit_lease_put(struct pipit_lease *l)
{
    struct lane_record put;

    if (!l) {
        return;
    }
    if (l->arenas->alive && l->client->pid == getpid()) {
        lane_record_init(&put, LANE_LEASE_PUT, NULL);
        put.lease.arena = l->arena;
        put.lease.buf = l->buf;
        put.lease.generation = l->generation;
        /* A lost connection takes its leases with it. */
        link_send(l->client, &put);
    }
    arenas_unref(l->arenas);
    free(l);
}

void *pipit_lease_write(struct pipit_lease *l)
{
    return l->arena == LANE_ARENA_C2E ? l->arenas->c2e + l->offset : NULL;
}

const void *pipit_lease_read(const struct pipit_lease *l)
{
    return (l->arena == LANE_ARENA_C2E ? l->arenas->c2e : l->arenas->e2c) + l->offset;
}

size_t pipit_lease_bytes(const struct pipit_lease *l)
{
    return (size_t)l->bytes;
}

int pipit_lease_alive(const struct pipit_lease *l)
{
    return l->arenas->alive;
}

struct pipit_lease_name pipit_lease_name(const struct pipit_lease *l)
{
    return (struct pipit_lease_name){
        .lane = l->arenas->lane, .buf = l->buf, .generation = l->generation};
}

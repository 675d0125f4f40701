/* SPDX-License-Identifier: Apache-2.0 */
/* Leases on the two shared arenas of a lane (link/arenas.h). Offsets come from the daemon in
 * LANE_LEASE and are checked against the mapping; nobody else's offsets are ever used.
 *
 * A reconnect brings new arenas. Leases of the old ones keep the old mapping alive (so that a
 * pointer in a program's hands never dangles), but name nothing any more. */

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/lib/client.h"

int pipit_lease_get(struct pipit_client *c, enum pipit_arena arena, size_t bytes,
                    struct pipit_lease **ret, struct pipit_error *reterr)
{
    struct lane_record ask;
    struct pipit_lease *l;
    const struct lane_lease *got = &c->call.answer.lease;
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
    if (!arenas_hold(c->arenas, (enum lane_arena)arena, got, bytes)) {
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

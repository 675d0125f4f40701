/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of records that own their descriptors. Credit only grows, and a client may send as much of
 * it as it likes: what waits is overwritten, so that the ring holds at most one of each request. */

#include "daemon/front/outgoing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/sock.h"

enum { RING = 1 << 13 };

struct item {
    struct lane_record rec;
    int fds[2]; /* ours; -1: none */
};

struct outgoing {
    uint32_t begin;
    uint32_t n;
    struct item ring[RING];
};

struct outgoing *outgoing_create(void)
{
    return calloc(1, sizeof(struct outgoing));
}

void outgoing_destroy(struct outgoing *o)
{
    if (o) {
        outgoing_clear(o);
    }
    free(o);
}

static void drop_first(struct outgoing *o)
{
    struct item *i = &o->ring[o->begin];

    close_fd(&i->fds[0]);
    close_fd(&i->fds[1]);
    o->begin = (o->begin + 1) % RING;
    o->n--;
}

void outgoing_clear(struct outgoing *o)
{
    while (o && o->n) {
        drop_first(o);
    }
}

static bool replace_credit(struct outgoing *o, const struct lane_record *r)
{
    for (uint32_t i = 0; r->h.type == LANE_ENGINE_CREDIT && i < o->n; i++) {
        struct lane_record *waiting = &o->ring[(o->begin + i) % RING].rec;

        if (waiting->h.type == LANE_ENGINE_CREDIT &&
            memcmp(waiting->h.id, r->h.id, sizeof(r->h.id)) == 0) {
            *waiting = *r;
            return true;
        }
    }
    return false;
}

int outgoing_give(struct outgoing *o, const struct lane_record *r, int fd)
{
    if (o->n == RING) {
        close_fd(&fd);
        return -ENOBUFS;
    }
    o->ring[(o->begin + o->n++) % RING] = (struct item){.rec = *r, .fds = {fd, -1}};
    return 0;
}

int outgoing_push(struct outgoing *o, const struct lane_record *r, int fd0, int fd1)
{
    struct item *i = &o->ring[(o->begin + o->n) % RING];

    if (replace_credit(o, r)) {
        return 0;
    }
    if (o->n == RING) {
        return -ENOBUFS;
    }
    *i = (struct item){.rec = *r, .fds = {-1, -1}};
    if (fd0 >= 0) {
        i->fds[0] = fcntl(fd0, F_DUPFD_CLOEXEC, 3);
        i->fds[1] = fcntl(fd1, F_DUPFD_CLOEXEC, 3);
        if (i->fds[0] < 0 || i->fds[1] < 0) {
            close_fd(&i->fds[0]);
            close_fd(&i->fds[1]);
            return -EMFILE;
        }
    }
    o->n++;
    return 0;
}

bool outgoing_flush(struct outgoing *o, int fd)
{
    while (o->n) {
        const struct item *i = &o->ring[o->begin];
        int rc =
            sock_send(fd, &i->rec, sizeof(i->rec), i->fds, (i->fds[0] >= 0) + (i->fds[1] >= 0));

        if (rc == -EAGAIN) {
            return false;
        }
        /* Any other failure is the engine's death, which shows as the end of the connection. */
        drop_first(o);
    }
    return true;
}

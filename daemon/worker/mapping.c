/* SPDX-License-Identifier: Apache-2.0 */
/* A list: lanes with leases are few. */

#include "daemon/worker/mapping.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint8_t *map(int fd, uint64_t bytes, int prot)
{
    void *p = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);

    return p == MAP_FAILED ? NULL : p;
}

int mapping_make(const struct lane_engine_lane *lane, const int fds[2], struct command *ret,
                 struct error *reterr)
{
    ret->c2e = map(fds[0], lane->c2e_bytes, PROT_READ);
    ret->e2c = map(fds[1], lane->e2c_bytes, PROT_READ | PROT_WRITE);
    (void)close(fds[0]);
    (void)close(fds[1]);
    if (ret->c2e && ret->e2c) {
        return 0;
    }
    if (ret->c2e) {
        (void)munmap(ret->c2e, lane->c2e_bytes);
    }
    if (ret->e2c) {
        (void)munmap(ret->e2c, lane->e2c_bytes);
    }
    return error_set(reterr, -ENOMEM, "cannot map a lane's arenas");
}

int mapping_add(struct worker *w, const struct command *c)
{
    struct mapping *m = calloc(1, sizeof(*m));

    if (!m) {
        (void)munmap(c->c2e, c->rec.e_lane.c2e_bytes);
        (void)munmap(c->e2c, c->rec.e_lane.e2c_bytes);
        return -ENOMEM;
    }
    *m = (struct mapping){.lane_id = c->rec.e_lane.lane_id,
                          .c2e = c->c2e,
                          .e2c = c->e2c,
                          .c2e_bytes = c->rec.e_lane.c2e_bytes,
                          .e2c_bytes = c->rec.e_lane.e2c_bytes,
                          .next = w->mappings};
    w->mappings = m;
    return 0;
}

struct mapping *mapping_find(const struct worker *w, uint64_t lane_id)
{
    for (struct mapping *m = w->mappings; m; m = m->next) {
        if (m->lane_id == lane_id && !m->closing) {
            return m;
        }
    }
    return NULL;
}

static void drop(struct worker *w, struct mapping *m)
{
    struct mapping **p = &w->mappings;

    while (*p != m) {
        p = &(*p)->next;
    }
    *p = m->next;
    (void)munmap(m->c2e, m->c2e_bytes);
    (void)munmap(m->e2c, m->e2c_bytes);
    free(m);
}

static void say_quiet(struct worker *w, uint64_t lane_id)
{
    struct lane_record r;

    lane_record_init(&r, LANE_ENGINE_LANE_QUIET, NULL);
    r.e_lane.lane_id = lane_id;
    worker_send(w, &r);
}

void mapping_close(struct worker *w, uint64_t lane_id)
{
    struct mapping *m = mapping_find(w, lane_id);

    if (m && m->n_jobs > 0) {
        m->closing = true;
        return;
    }
    if (m) {
        drop(w, m);
    }
    say_quiet(w, lane_id);
}

void mapping_ref(struct mapping *m)
{
    m->n_jobs++;
}

void mapping_unref(struct worker *w, struct mapping *m)
{
    if (m && --m->n_jobs == 0 && m->closing) {
        uint64_t id = m->lane_id;

        drop(w, m);
        say_quiet(w, id);
    }
}

void mapping_drop_all(struct worker *w)
{
    while (w->mappings) {
        drop(w, w->mappings);
    }
}

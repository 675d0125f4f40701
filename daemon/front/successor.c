/* SPDX-License-Identifier: Apache-2.0 */
/* systemd's file-descriptor store, by the protocol of sd_notify(3): FDSTORE=1 with the descriptor,
 * and at the next start the descriptor among those of sd_listen_fds(3), under the name it was
 * given. */

#include "daemon/front/successor.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/front/flow.h"
#include "daemon/front/front.h"

#define STEADY_NS 30000000000

int successor_open(struct front *f, struct error *reterr)
{
    struct error e = {0};
    int rc;

    if (f->rundir.journal_fd >= 0) {
        rc = journal_adopt(STEAL_FD(f->rundir.journal_fd), f->config->journal_bytes, &f->journal,
                           &e);
        f->heir = rc == 0;
        if (rc == 0) {
            return 0;
        }
        log_warning("the requests of the daemon before this one are lost; its journal: %s", e.text);
        notify_say(&f->notify, "FDSTOREREMOVE=1\nFDNAME=" RUNDIR_JOURNAL);
    }
    rc = journal_open(f->config->journal_bytes, &f->journal, reterr);
    if (rc == 0 && f->system) {
        /* FDPOLL=0: a memory file cannot be polled. */
        notify_give(&f->notify, f->journal.fd, "FDSTORE=1\nFDPOLL=0\nFDNAME=" RUNDIR_JOURNAL);
    }
    return rc;
}

struct found {
    struct journal_head head;
    struct journal_entry log;
};

static int by_number(const void *a, const void *b)
{
    uint64_t na = ((const struct found *)a)->head.number;
    uint64_t nb = ((const struct found *)b)->head.number;

    return (na > nb) - (na < nb);
}

static void on_steady(void *arg)
{
    struct front *f = arg;

    journal_steady(&f->journal);
}

void successor_adopt(struct front *f)
{
    struct found *all = NULL;
    struct found one;
    uint32_t n_bad = 0;
    uint32_t at = 0;
    uint32_t n = 0;

    if (!f->heir) {
        return;
    }
    while (journal_next(&f->journal, &at, &one.head, &one.log, &n_bad)) {
        struct found *more = n < REQUEST_MAX ? realloc(all, (n + 1) * sizeof(*all)) : NULL;

        if (!more) {
            journal_end(&f->journal, &one.log);
            n_bad++;
            continue;
        }
        all = more;
        all[n++] = one;
    }
    if (n > 0) {
        qsort(all, n, sizeof(*all), by_number); /* the oldest first, as they came */
    }
    for (uint32_t i = 0; i < n; i++) {
        n_bad += flow_adopt(f, &all[i].head, &all[i].log) != 0;
    }
    free(all);
    log_info("took over %u requests of the daemon before this one", n);
    if (n_bad > 0) {
        log_warning("ignoring %u requests in its journal that make no sense", n_bad);
    }
    loop_timer_at(&f->loop, &f->steady_timer, clock_ns() + STEADY_NS, on_steady, f);
}

void successor_disown(struct front *f)
{
    if (f->system) {
        notify_say(&f->notify, "FDSTOREREMOVE=1\nFDNAME=" RUNDIR_JOURNAL);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a front for its successor leaves the journal as it is: neither does it end requests
 * nor does it take the file back from systemd's store. No engine has a request then, so the next
 * front charges nobody with a death. */

#include "daemon/front/upgrade.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "daemon/front/engine_link.h"
#include "daemon/front/front.h"
#include "daemon/front/gateway.h"

#define DELETED " (deleted)"
#define WAIT_NS                                                                                    \
    30000000000 /* for running answers: whatever runs then is replayed by the next front */

/* Is there another file where this process's lay? A package's files are put in place by renames. */
static bool is_replaced(void)
{
    char path[1024];
    struct stat mine;
    struct stat there;
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    size_t cut = sizeof(DELETED) - 1;

    if (n <= 0 || stat("/proc/self/exe", &mine)) {
        return false;
    }
    path[n] = '\0';
    if ((size_t)n > cut && strcmp(path + n - cut, DELETED) == 0) {
        path[(size_t)n - cut] = '\0';
    }
    return stat(path, &there) == 0 && (there.st_ino != mine.st_ino || there.st_dev != mine.st_dev);
}

static void on_waited(void *arg)
{
    (void)arg; /* upgrade_check() follows */
}

bool upgrade_begin(struct front *f, const char *why)
{
    struct log_fields fields = {0};

    if (f->handing_over) {
        return true;
    }
    if (!f->system || f->stopping || !is_replaced()) {
        return false;
    }
    f->handing_over = true;
    f->hand_over_ns = clock_ns() + WAIT_NS;
    loop_timer_at(&f->loop, &f->stop_timer, f->hand_over_ns, on_waited, f);
    log_field(&fields, "PIPIT_EVENT", "hand-over");
    log_write_fields(LOG_LEVEL_INFO, &fields,
                     "%s, this daemon is of version %s and its file was replaced: leaving "
                     "everything to the next one",
                     why, version_of_this());
    return true;
}

void upgrade_check(struct front *f)
{
    if (!f->handing_over || f->stopping ||
        (f->n_running + f->n_texts > 0 && clock_ns() < f->hand_over_ns)) {
        return;
    }
    log_info("handing over %u waiting and %u running requests", f->queue.n,
             f->n_running + f->n_texts);
    logline_flush(f);
    gateway_destroy(f->gateway);
    engine_link_destroy(f->engine);
    _exit(EXIT_OTHER_VERSION);
}

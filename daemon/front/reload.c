/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the configuration again. All of it is parsed and checked before any of it counts. systemd
 * is told by the protocol of sd_notify(3), RELOADING=1 with its clock, then READY=1: `systemctl
 * reload` returns when that has been said. */

#include "daemon/front/reload.h"

#include <systemd/sd-daemon.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/front/front.h"

void reload_run(struct front *f)
{
    struct config next;
    struct error e = {0};
    char waiting[256];

    (void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu",
                     (unsigned long long)(clock_ns() / 1000));
    if (config_reload(f->config, &next, &e)) {
        log_error("%s; ignoring it all, the old configuration stays in force", e.text);
    } else {
        config_apply(f->config, &next, waiting, sizeof(waiting));
        f->queue.max = (uint32_t)f->config->max_queue;
        log_init("pipitd", f->config->verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
        if (waiting[0]) {
            log_warning("configuration read again; waiting for a restart: %s", waiting);
        } else {
            log_info("configuration read again");
        }
    }
    config_clear(&next);
    (void)sd_notify(0, "READY=1");
    f->status_changed = true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the configuration again. All of it is parsed and checked before any of it counts. systemd
 * is told by the protocol of sd_notify(3), RELOADING=1 with its clock, then READY=1: `systemctl
 * reload` returns when that has been said. */

#include "daemon/front/reload.h"

#include "base/clock.h"
#include "base/log.h"
#include "daemon/front/front.h"

static void read_again(struct front *f, bool engine)
{
    struct config next;
    struct error e = {0};
    char waiting[256];
    struct log_fields fields = {0};

    log_field(&fields, "PIPIT_EVENT", "reload");
    if (config_reload(f->config, &next, &e)) {
        log_field(&fields, "PIPIT_REASON", "refused");
        log_write_fields(LOG_LEVEL_ERR, &fields,
                         "%s; ignoring it all, the old configuration stays in force", e.text);
    } else {
        config_apply(f->config, &next, engine, waiting, sizeof(waiting));
        f->queue.max = (uint32_t)f->config->max_queue;
        log_init("pipitd", f->config->verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
        if (waiting[0]) {
            log_write_fields(LOG_LEVEL_WARNING, &fields,
                             "configuration read again; waiting for a restart: %s", waiting);
        } else {
            log_write_fields(LOG_LEVEL_INFO, &fields, "configuration read again");
        }
    }
    front_read_persons(f);
    config_clear(&next);
    loop_timer_off(&f->loop, &f->idle_timer); /* its length may be another */
    f->status_changed = true;
    f->dispatch_wanted = true; /* a person may have more sequences */
}

void reload_run(struct front *f)
{
    if (!f->listening) { /* READY=1 comes when the model has been checked, and not before */
        read_again(f, false);
        return;
    }
    notify_say(&f->notify, "RELOADING=1\nMONOTONIC_USEC=%llu",
               (unsigned long long)(clock_ns() / 1000));
    read_again(f, false);
    notify_say(&f->notify, "READY=1");
}

int reload_check(const struct front *f, struct error *reterr)
{
    struct config next;
    int rc = config_reload(f->config, &next, reterr);

    config_clear(&next);
    return rc;
}

void reload_engine(struct front *f)
{
    read_again(f, true);
}

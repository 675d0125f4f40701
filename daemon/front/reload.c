/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the configuration again. All of it is parsed and checked before any of it counts. systemd
 * is told by the protocol of sd_notify(3), RELOADING=1 with its clock, then READY=1: `systemctl
 * reload` returns when that has been said. */

#include "daemon/front/reload.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/front/front.h"

/* What follows from values that may change while running. */
static void follow(struct front *f)
{
    f->queue.max = (uint32_t)f->config->max_queue;
    log_init("pipitd", f->config->verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
}

/* Takes what differs; *from gets what it was, and stays the caller's. */
static void take(struct front *f, struct config *from, bool engine)
{
    struct log_fields fields = {0};
    char waiting[256];

    config_apply(f->config, from, engine, waiting, sizeof(waiting));
    follow(f);
    log_field(&fields, "PIPIT_EVENT", "reload");
    if (waiting[0]) {
        log_write_fields(LOG_LEVEL_WARNING, &fields,
                         "configuration read again; waiting for a restart: %s", waiting);
    } else {
        log_write_fields(LOG_LEVEL_INFO, &fields, "configuration read again");
    }
}

static void put_back(struct front *f)
{
    char waiting[256];

    config_apply(f->config, &f->before, true, waiting, sizeof(waiting));
    follow(f);
    reload_settle(f);
}

static void read_again(struct front *f, bool engine)
{
    struct config next;
    struct error e = {0};
    struct log_fields fields = {0};
    bool other = false;

    if (engine && f->on_trial) { /* what no engine became ready under is not what to come back to */
        put_back(f);
    }
    if (config_reload(f->config, &next, &e)) {
        log_field(&fields, "PIPIT_EVENT", "reload");
        log_field(&fields, "PIPIT_REASON", "refused");
        log_write_fields(LOG_LEVEL_ERR, &fields,
                         "%s; ignoring it all, the old configuration stays in force", e.text);
    } else {
        other = engine && !config_same_engine(f->config, &next);
        take(f, &next, engine);
        if (f->on_trial) { /* what counts at once is to stay, should the one before come back */
            config_copy_live(&f->before, f->config);
        }
    }
    if (other) {
        f->before = next;
        f->on_trial = true;
    } else {
        config_clear(&next);
    }
    f->reload_cause[0] = '\0';
    front_read_persons(f);
    loop_timer_off(&f->loop, &f->idle_timer); /* its length may be another */
    f->status_changed = true;
    f->dispatch_wanted = true; /* a person may have more sequences */
}

void reload_settle(struct front *f)
{
    if (f->on_trial) {
        config_clear(&f->before);
        f->on_trial = false;
    }
}

bool reload_take_back(struct front *f, const char *cause)
{
    struct log_fields fields = {0};

    if (!f->on_trial) {
        return false;
    }
    put_back(f);
    (void)snprintf(f->reload_cause, sizeof(f->reload_cause),
                   "the new configuration was not taken: %.200s", cause);
    log_field(&fields, "PIPIT_EVENT", "reload");
    log_field(&fields, "PIPIT_REASON", "refused");
    log_write_fields(LOG_LEVEL_ERR, &fields,
                     "no model can be loaded under the new configuration; loading the one before "
                     "again");
    f->status_changed = true;
    return true;
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

/* SPDX-License-Identifier: Apache-2.0 */
/* pipit drain and pipit unload: orders about the daemon as a whole, for root and its own user. A
 * drain is watched to its end from one connection, which the daemon keeps open till then. */

#include <errno.h>
#include <poll.h>
#include <signal.h>

#include "base/clock.h"
#include "client/cli/answer.h"

enum { LOOK_MS = 50 };

/* A model is ready: is it the new one? Else what is told is why not. */
static int reloaded(struct pipit_client *c)
{
    const char *cause = model_cause(c);

    if (cause[0]) {
        say("%s", cause);
        return EXIT_MODEL;
    }
    return EXIT_OK;
}

/* -1: not yet. The daemon's end shows as the end of the connection, or as another daemon's hello.
 */
static int look(struct pipit_client *c, bool reload, const struct pipit_info *before)
{
    struct pipit_error e = {0};
    int r = pipit_client_ping(c, &e);
    const struct pipit_info *info = pipit_client_info(c);

    if (r < 0 || info->front_epoch != before->front_epoch) {
        if (reload) {
            say("the daemon ended instead of loading its model again");
            return EXIT_UNREACHABLE;
        }
        return EXIT_OK;
    }
    if (!reload) {
        return -1;
    }
    if (info->state == PIPIT_STATE_FAILED) {
        return report_model(c);
    }
    return info->state == PIPIT_STATE_READY && info->model_epoch != before->model_epoch
               ? reloaded(c)
               : -1;
}

static int watch(struct pipit_client *c, bool reload, const struct pipit_info *before)
{
    int code = interrupt_init() < 0 ? EXIT_INTERNAL : -1;

    while (code < 0) {
        struct pollfd p = {.fd = interrupt_fd(), .events = POLLIN};
        int signal;

        code = look(c, reload, before);
        if (code < 0) {
            (void)poll(&p, 1, LOOK_MS);
            signal = interrupt_take();
            code = signal == 0 ? -1 : signal == SIGINT ? EXIT_INTERRUPTED : EXIT_CANCELLED;
        }
    }
    return code;
}

int drain_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    struct pipit_error e = {0};
    struct pipit_info before;
    int code;

    if (words->n) {
        return usage_error("drain", "'%.60s' is not an option", words->v[0]);
    }
    code = cli_client(s, &c);
    if (code == 0 && pipit_client_set_reconnect_ms(c, 0) < 0) {
        code = EXIT_INTERNAL;
    }
    code = code ? code : cli_connect(c, 0, false);
    if (code == 0) {
        before = *pipit_client_info(c);
        code = pipit_client_control(c, s->reload ? PIPIT_CONTROL_RELOAD : PIPIT_CONTROL_DRAIN,
                                    (uint32_t)(s->limit * 1000), &e) < 0
                   ? report(&e)
                   : watch(c, s->reload, &before);
    }
    pipit_client_destroy(c);
    return code;
}

int unload_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    struct pipit_error e = {0};
    int code;

    if (words->n) {
        return usage_error("unload", "'%.60s' is not an option", words->v[0]);
    }
    code = cli_open(s, &c);
    if (code == 0 && pipit_client_control(c, PIPIT_CONTROL_UNLOAD, 0, &e) < 0) {
        code = report(&e);
    }
    pipit_client_destroy(c);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A client from the settings. A refusal (BUSY, DENIED) keeps its own exit code; everything else
 * that stands between us and a hello is "unreachable". */

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"

#include "client/cli/answer.h"

int cli_client(const struct settings *s, struct pipit_client **ret)
{
    struct pipit_client *c;
    int r = pipit_client_create(&c);

    if (r == 0) {
        *ret = c;
        r = pipit_client_set_program(c, "pipit");
        if (r == 0 && s->runtime_dir) {
            r = pipit_client_set_runtime_dir(c, s->runtime_dir);
        }
        if (r == 0 && s->instance) {
            r = pipit_client_set_instance(c, s->instance);
        }
    }
    if (r < 0) {
        say("cannot make a client: %s", strerror(-r));
        return EXIT_INTERNAL;
    }
    return 0;
}

int64_t cli_retry_until(const struct settings *s)
{
    return s->retry > 0 ? clock_ns() + (int64_t)(s->retry * 1e9) : 0;
}

bool cli_waits(const struct pipit_error *e, int64_t until_ns)
{
    return e->retry_after_ms && clock_ns() + (int64_t)e->retry_after_ms * 1000000 < until_ns;
}

int cli_connect(struct pipit_client *c, int64_t retry_until_ns, bool json)
{
    struct answer a = {0};
    struct out o = {0};
    int code;

    while (pipit_client_connect(c, &a.error)) {
        if (!cli_waits(&a.error, retry_until_ns)) {
            break;
        }
        (void)poll(NULL, 0, (int)a.error.retry_after_ms);
        memset(&a.error, 0, sizeof(a.error));
    }
    if (a.error.code == 0) {
        return 0;
    }
    if (json) {
        json_last(&o, NULL, &a);
        out_flush(&o);
        out_finish(&o);
    }
    code = report(&a.error);
    if (a.error.err == -EINVAL && a.error.code == PIPIT_E_LOCAL) {
        return EXIT_USAGE; /* the instance's name */
    }
    return code == EXIT_REFUSED ? code : EXIT_UNREACHABLE;
}

int cli_open(const struct settings *s, struct pipit_client **ret)
{
    int code = cli_client(s, ret);

    return code ? code : cli_connect(*ret, cli_retry_until(s), false);
}

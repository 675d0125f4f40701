/* SPDX-License-Identifier: Apache-2.0 */
/* libpipit's errors and names. The public enums repeat the lane's numbers, because pipit.h is
 * installed alone; the asserts below keep the two from drifting apart. An errno is found for every
 * code, so that a caller who looks at nothing but the return value still learns something. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/lib/client.h"

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "pipit.h and record.h differ")
SAME(PIPIT_E_INVALID, LANE_ERR_INVALID);
SAME(PIPIT_E_PROTOCOL, LANE_ERR_PROTOCOL);
SAME(PIPIT_E_ABI, LANE_ERR_ABI);
SAME(PIPIT_E_BUSY, LANE_ERR_BUSY);
SAME(PIPIT_E_CONTEXT_OVERFLOW, LANE_ERR_CONTEXT_OVERFLOW);
SAME(PIPIT_E_NOT_FOUND, LANE_ERR_NOT_FOUND);
SAME(PIPIT_E_INTERNAL, LANE_ERR_INTERNAL);
SAME(PIPIT_REASON_STOP, LANE_REASON_STOP);
SAME(PIPIT_REASON_SLOW_CONSUMER, LANE_REASON_SLOW_CONSUMER);
SAME(PIPIT_REASON_ERROR, LANE_REASON_ERROR);
SAME(PIPIT_REASON_TOOL_CALLS, LANE_REASON_TOOL_CALLS);
SAME(PIPIT_PART_REASONING, LANE_PART_REASONING);
SAME(PIPIT_PART_ARGUMENTS, LANE_PART_ARGUMENTS);
SAME(PIPIT_STATE_READY, LANE_READY);
SAME(PIPIT_STATE_STOPPING, LANE_STOPPING);
SAME(PIPIT_CHAT, LANE_KIND_CHAT);
SAME(PIPIT_EMBED, LANE_KIND_EMBED);
SAME(PIPIT_BULK_TOKENS, LANE_BULK_TOKENS);
SAME(PIPIT_BULK_TEXT, LANE_BULK_TEXT);
SAME(PIPIT_TO_DAEMON, LANE_ARENA_C2E);
SAME(PIPIT_FROM_DAEMON, LANE_ARENA_E2C);

int pipit_fail(struct pipit_error *e, int err, uint32_t code, const char *fmt, ...)
{
    va_list args;

    if (e) {
        memset(e, 0, sizeof(*e));
        e->err = err;
        e->code = code;
        va_start(args, fmt);
        (void)vsnprintf(e->text, sizeof(e->text), fmt, args);
        va_end(args);
    }
    return err;
}

int pipit_fail_copy(struct pipit_error *e, const struct pipit_error *from)
{
    if (e) {
        *e = *from;
    }
    return from->err ? from->err : -EIO;
}

static int errno_of(uint32_t code)
{
    switch (code) {
    case LANE_ERR_INVALID:
        return -EINVAL;
    case LANE_ERR_PROTOCOL:
        return -EBADMSG;
    case LANE_ERR_ABI:
        return -EPROTONOSUPPORT;
    case LANE_ERR_DENIED:
        return -EACCES;
    case LANE_ERR_BUSY:
        return -EBUSY;
    case LANE_ERR_CONTEXT_OVERFLOW:
        return -EMSGSIZE;
    case LANE_ERR_NO_MEMORY:
        return -ENOMEM;
    case LANE_ERR_UNSUPPORTED:
        return -ENOTSUP;
    case LANE_ERR_NOT_FOUND:
        return -ENOENT;
    case LANE_ERR_MODEL:
        return -ENODEV;
    case LANE_ERR_SHUTDOWN:
        return -ESHUTDOWN;
    case LANE_ERR_TOO_LARGE:
        return -E2BIG;
    default:
        return -EIO;
    }
}

int pipit_fail_lane(struct pipit_error *e, const struct lane_error *said)
{
    int err = said->err < 0 && said->err > -4096 ? said->err : errno_of(said->code);

    (void)pipit_fail(e, err, said->code, "%s",
                     said->text[0] ? said->text : lane_error_name(said->code));
    if (e) {
        e->retry_after_ms = said->retry_after_ms;
        e->count_a = said->count_a;
        e->count_b = said->count_b;
    }
    return err;
}

const char *pipit_code_name(uint32_t code)
{
    switch (code) {
    case PIPIT_E_UNREACHABLE:
        return "UNREACHABLE";
    case PIPIT_E_LOST:
        return "LOST";
    case PIPIT_E_TIMED_OUT:
        return "TIMED_OUT";
    case PIPIT_E_LOCAL:
        return "LOCAL";
    default:
        return lane_error_name(code);
    }
}

const char *pipit_reason_name(uint32_t reason)
{
    return lane_reason_name(reason);
}

const char *pipit_state_name(uint32_t state)
{
    return lane_state_name(state);
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *pipit_version(void)
{
    return TEXT(PIPIT_VERSION_MAJOR) "." TEXT(PIPIT_VERSION_MINOR) "." TEXT(PIPIT_VERSION_PATCH);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Text to token ids and back, as plain calls. Ids come through shared memory when a lease for them
 * is to be had (one id a byte of text is the most there can be, plus a few that the model adds),
 * else as one record each: slower, but it always works. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/lib/client.h"

enum { EXTRA_TOKENS = 16, GRACE_MS = 2000 };

struct buffer {
    char *data;
    size_t used;
    size_t cap;
};

static int append(struct buffer *b, const void *data, size_t n)
{
    if (n > SIZE_MAX / 4 - b->used) {
        return -E2BIG;
    }
    if (b->used + n + 1 > b->cap) {
        size_t cap = (b->used + n + 1) * 2;
        char *more = realloc(b->data, cap);

        if (!more) {
            return -ENOMEM;
        }
        b->data = more;
        b->cap = cap;
    }
    if (n) {
        memcpy(b->data + b->used, data, n);
    }
    b->used += n;
    b->data[b->used] = '\0';
    return 0;
}

/* One event into the buffer: 1 at the end, 0 to go on. */
static int collect(const struct pipit_event *ev, bool ids, struct buffer *b,
                   struct pipit_error *reterr)
{
    int r = 0;

    switch (ev->type) {
    case PIPIT_EVENT_BULK:
        r = append(b, ev->bulk->data, (size_t)ev->bulk->bytes);
        break;
    case PIPIT_EVENT_TOKEN:
    case PIPIT_EVENT_TEXT:
        if (ids && ev->type == PIPIT_EVENT_TOKEN) {
            r = append(b, &ev->token, sizeof(ev->token));
        } else if (!ids) {
            r = append(b, ev->text, ev->text_len);
        }
        break;
    case PIPIT_EVENT_ERROR:
        return pipit_fail_copy(reterr, ev->error);
    case PIPIT_EVENT_DONE:
        if (ev->done->reason == PIPIT_REASON_TIMEOUT) {
            return pipit_fail(reterr, -ETIMEDOUT, PIPIT_E_TIMED_OUT,
                              "no answer within the time that was set");
        }
        if (ev->done->reason > PIPIT_REASON_LENGTH) {
            return pipit_fail(reterr, -ECANCELED, PIPIT_E_INTERNAL, "the request ended: %s",
                              pipit_reason_name(ev->done->reason));
        }
        return 1;
    default:
        break;
    }
    return r < 0 ? pipit_fail(reterr, r, PIPIT_E_LOCAL, "no memory for the answer") : 0;
}

static int run(struct pipit_request *q, uint32_t timeout_ms, bool ids, struct buffer *b,
               struct pipit_error *reterr)
{
    int64_t deadline_ns = clock_ns() + ((int64_t)timeout_ms + GRACE_MS) * 1000000;
    const struct pipit_event *ev;
    int r = pipit_request_send(q, reterr);

    while (r == 0) {
        r = pipit_request_next(q, timeout_ms ? 100 : -1, &ev);
        if (r == -EAGAIN) {
            r = timeout_ms && clock_ns() > deadline_ns
                    ? pipit_fail(reterr, -ETIMEDOUT, PIPIT_E_TIMED_OUT,
                                 "no answer within the time that was set")
                    : 0;
        } else if (r == 1) {
            r = collect(ev, ids, b, reterr);
        } else {
            r = pipit_fail(reterr, r ? r : -EIO, PIPIT_E_INTERNAL,
                           "the answer ended without a result");
        }
    }
    return r < 0 ? r : 0;
}

static int local(struct pipit_error *reterr, int r)
{
    return pipit_fail(reterr, r, PIPIT_E_LOCAL, "cannot make the request: %s", strerror(-r));
}

static bool want_lease(const struct pipit_client *c, size_t len)
{
    uint64_t room = c->hello.max_lease_bytes / sizeof(int32_t);

    return room > EXTRA_TOKENS && len < room - EXTRA_TOKENS;
}

/* 1: the lease was lost with its connection; another try without one can succeed. */
static int tokenize(struct pipit_client *c, const char *text, size_t len, uint32_t timeout_ms,
                    bool with_lease, struct buffer *b, struct pipit_error *reterr)
{
    struct pipit_request *q = NULL;
    struct pipit_lease *lease = NULL;
    int r = pipit_request_create(c, PIPIT_TOKENIZE, &q);

    if (r == 0) {
        r = pipit_request_set_prompt(q, text, len);
    }
    if (r == 0) {
        r = pipit_request_set_param(q, PIPIT_TIMEOUT_MS, timeout_ms);
    }
    if (r == 0 && with_lease && want_lease(c, len) &&
        pipit_lease_get(c, PIPIT_FROM_DAEMON, (len + EXTRA_TOKENS) * sizeof(int32_t), &lease,
                        NULL) == 0) {
        r = pipit_request_set_output(q, lease);
    }
    if (r < 0) {
        (void)local(reterr, r);
    } else {
        r = run(q, timeout_ms, true, b, reterr);
        r = r < 0 && lease && !pipit_lease_alive(lease) ? 1 : r;
    }
    if (r == 0 && !b->data && append(b, "", 0) < 0) {
        r = local(reterr, -ENOMEM);
    }
    pipit_request_destroy(q);
    pipit_lease_put(lease);
    return r;
}

int pipit_client_tokenize(struct pipit_client *c, const char *text, size_t len, uint32_t timeout_ms,
                          int32_t **ret, size_t *ret_n, struct pipit_error *reterr)
{
    struct buffer b = {0};
    int r = dispatch_check(c, reterr);

    if (r == 0) {
        r = tokenize(c, text, len, timeout_ms, true, &b, reterr);
    }
    if (r == 1) {
        b.used = 0;
        r = tokenize(c, text, len, timeout_ms, false, &b, reterr);
    }
    if (r < 0) {
        free(b.data);
        return r;
    }
    *ret = (int32_t *)(void *)b.data;
    *ret_n = b.used / sizeof(int32_t);
    return 0;
}

int pipit_client_detokenize(struct pipit_client *c, const int32_t *tokens, size_t n,
                            uint32_t timeout_ms, char **ret, size_t *ret_len,
                            struct pipit_error *reterr)
{
    struct pipit_request *q = NULL;
    struct buffer b = {0};
    int r = dispatch_check(c, reterr);

    if (r < 0) {
        return r;
    }
    r = pipit_request_create(c, PIPIT_DETOKENIZE, &q);
    if (r == 0) {
        r = pipit_request_set_tokens(q, tokens, n);
    }
    if (r == 0) {
        r = pipit_request_set_param(q, PIPIT_TIMEOUT_MS, timeout_ms);
    }
    if (r < 0) {
        (void)local(reterr, r);
    } else {
        r = run(q, timeout_ms, false, &b, reterr);
    }
    if (r == 0 && !b.data && append(&b, "", 0) < 0) {
        r = local(reterr, -ENOMEM);
    }
    pipit_request_destroy(q);
    if (r < 0) {
        free(b.data);
        return r;
    }
    *ret = b.data;
    *ret_len = b.used;
    return 0;
}

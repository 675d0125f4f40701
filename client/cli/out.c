/* SPDX-License-Identifier: Apache-2.0 */
/* stdout with a queue before it: text that a full pipe does not take stays here while the answer
 * goes on, so that a reader who pauses (less, a slow script) does not make us a slow consumer of
 * the daemon. stdout is not made non-blocking, because its file description is shared with other
 * programs. One write that shall not wait (RWF_NOWAIT, which pipes know since Linux 6.4) is tried
 * first; where that is not possible poll() says when a pipe takes PIPE_BUF bytes, and no more is
 * written at once. */

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client/cli/answer.h"

#include "base/hot.h"

HOT void out_put(struct out *o, const char *data, size_t len)
{
    if (o->err || len == 0) {
        return;
    }
    if (o->used + len > o->cap) {
        size_t cap = (o->used + len) * 2;
        char *more = realloc(o->data, cap);

        if (!more) {
            o->err = -ENOMEM;
            return;
        }
        o->data = more;
        o->cap = cap;
    }
    memcpy(o->data + o->used, data, len);
    o->used += len;
}

/* Bytes of a control character at the start of a text, as UTF-8; 0: none. Of the C0 set a line's
 * end and a tab are harmless; of C1 none is (U+009B begins a sequence as ESC [ does). */
static size_t control_bytes(const char *s, size_t len)
{
    unsigned char c = (unsigned char)s[0];

    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
        return 1;
    }
    return c == 0xc2 && len > 1 && ((unsigned char)s[1] & 0xe0) == 0x80 ? 2 : 0;
}

HOT void out_put_words(struct out *o, const char *text, size_t len)
{
    size_t begin = 0;

    if (o->terminal == 0) {
        o->terminal = isatty(STDOUT_FILENO) ? 1 : -1;
    }
    for (size_t i = 0; o->terminal > 0 && i < len;) {
        size_t n = control_bytes(text + i, len - i);

        if (n > 0) {
            out_put(o, text + begin, i - begin);
            begin = i + n;
        }
        i += n > 0 ? n : 1;
    }
    out_put(o, text + begin, len - begin);
}

HOT bool out_pending(const struct out *o)
{
    return !o->err && o->sent < o->used;
}

static void wrote(struct out *o, ssize_t n)
{
    o->sent += (size_t)n;
    if (o->sent == o->used) {
        o->sent = o->used = 0;
    }
}

/* One write of at most PIPE_BUF bytes. */
static void write_some(struct out *o)
{
    size_t n = o->used - o->sent;
    ssize_t r = write(STDOUT_FILENO, o->data + o->sent, n > PIPE_BUF ? PIPE_BUF : n);

    if (r < 0) {
        o->err = errno == EAGAIN ? 0 : -errno;
        return;
    }
    wrote(o, r);
}

/* What stdout takes at once; an error is left to write_some() to find. */
static void write_now(struct out *o)
{
    struct iovec v = {.iov_base = o->data + o->sent, .iov_len = o->used - o->sent};
    ssize_t n = pwritev2(STDOUT_FILENO, &v, 1, -1, RWF_NOWAIT);

    if (n >= 0) {
        wrote(o, n);
    } else if (errno != EAGAIN && errno != EINTR) {
        o->ask_first = true;
    }
}

HOT void out_flush_ready(struct out *o)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};

    if (out_pending(o) && !o->ask_first) {
        write_now(o);
    }

    while (out_pending(o) && poll(&p, 1, 0) == 1) {
        write_some(o);
        if (o->err == -EINTR) {
            o->err = 0; /* the loop sees the signal itself */
            return;
        }
    }
}

void out_flush(struct out *o)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};

    while (out_pending(o)) {
        if (poll(&p, 1, -1) < 0) {
            o->err = -errno;
            return;
        }
        write_some(o);
    }
}

void out_finish(struct out *o)
{
    free(o->data);
    memset(o, 0, sizeof(*o));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* pipit batch: JSON lines in, JSON lines out, many requests at once, answers in the order of the
 * lines.
 *
 * A window of lines goes through: new ones enter while fewer than --jobs run and the window has
 * room, finished ones leave at its front. So memory is bounded however long the input is, and an
 * input that is a pipe is read only as fast as answers are written. A line that is wrong or whose
 * request fails becomes a line with an error, and the others go on; where the daemon is full the
 * line is asked again when the daemon said. Once the daemon is gone nothing more is read. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/batch.h"

enum { WINDOW = 256, READ_BYTES = 65536 };
#define GRACE_NS INT64_C(2000000000)

enum state { FREE, WAITING /* to be sent, perhaps again */, RUNNING, ENDED };

struct item {
    enum state state;
    size_t index; /* of its line, from 0 */
    json_t *line; /* NULL: not JSON */
    struct pipit_request *q;
    struct answer a;
    int64_t due_ns; /* WAITING: not before */
    bool over;      /* the request's last event has come */
};

struct batch {
    const struct settings *s;
    struct pipit_client *c;
    int fd;
    char *buf; /* input that is no whole line yet */
    size_t used;
    size_t cap;
    bool eof;
    bool stop; /* nothing more is read or sent */
    struct item window[WINDOW];
    size_t first; /* line number of the oldest in the window */
    size_t next;  /* of the next to come */
    size_t n_running;
    size_t jobs;
    size_t max_line;
    struct out out;
    int code; /* of the first failure */
    size_t n_failed;
    size_t failed;   /* the first of them, */
    char cause[200]; /* and its cause */
    int signal;
    int64_t deadline_ns;
    int64_t retry_until_ns;
};

static struct item *item_of(struct batch *b, size_t index)
{
    return &b->window[index % WINDOW];
}

static void fail(struct item *it, int err, uint32_t code, const char *text)
{
    it->a.error = (struct pipit_error){.err = err, .code = code};
    (void)snprintf(it->a.error.text, sizeof(it->a.error.text), "%s", text);
    it->state = ENDED;
}

static void on_event(struct pipit_request *q, const struct pipit_event *ev, void *user)
{
    struct item *it = user;

    (void)q;
    switch (ev->type) {
    case PIPIT_EVENT_TOKEN:
    case PIPIT_EVENT_TEXT:
        it->a.first_ns = it->a.first_ns ? it->a.first_ns : clock_ns();
        if (answer_keep(&it->a, ev->text, ev->text_len)) {
            it->a.error = (struct pipit_error){
                .err = -ENOMEM, .code = PIPIT_E_LOCAL, .text = "no memory for the answer"};
        }
        break;
    case PIPIT_EVENT_DONE:
        it->a.has_done = true;
        it->a.done = *ev->done;
        it->over = true;
        break;
    case PIPIT_EVENT_ERROR:
        it->a.error = *ev->error;
        it->over = true;
        break;
    default:
        break;
    }
}

/* Every daemon error that means the rest of the lines would meet the same. */
static bool hopeless(uint32_t code)
{
    return code == PIPIT_E_LOST || code == PIPIT_E_UNREACHABLE || code == PIPIT_E_TIMED_OUT ||
           code == PIPIT_E_SHUTDOWN || code == PIPIT_E_MODEL;
}

static void settle(struct batch *b, struct item *it)
{
    uint32_t code = it->a.error.code;

    it->a.end_ns = clock_ns();
    pipit_request_destroy(it->q);
    it->q = NULL;
    it->over = false;
    b->n_running--;
    if ((code == PIPIT_E_BUSY || (cli_waits(&it->a.error, b->retry_until_ns) && !it->a.first_ns)) &&
        !b->stop) {
        uint32_t ms = it->a.error.retry_after_ms ? it->a.error.retry_after_ms : 1000;

        it->due_ns = it->a.end_ns + (int64_t)ms * 1000000;
        memset(&it->a.error, 0, sizeof(it->a.error));
        it->state = WAITING;
        return;
    }
    it->state = ENDED;
    b->stop = b->stop || hopeless(code);
}

static void send_item(struct batch *b, struct item *it)
{
    struct error e = {0};
    int r = batch_line_request(b->s, b->c, it->line, &it->q, &e);

    it->a.start_ns = it->a.start_ns ? it->a.start_ns : clock_ns();
    it->a.end_ns = clock_ns();
    if (r) {
        fail(it, r, r == -EINVAL ? PIPIT_E_INVALID : PIPIT_E_LOCAL, e.text);
        return;
    }
    memcpy(it->a.id, pipit_request_id(it->q), sizeof(it->a.id));
    it->state = RUNNING;
    b->n_running++;
    r = pipit_request_set_callback(it->q, on_event, it);
    r = r ? r : pipit_request_send(it->q, &it->a.error);
    if (r < 0) {
        it->a.error.code = it->a.error.code ? it->a.error.code : PIPIT_E_LOCAL;
        it->over = true;
    }
}

/* A whole line, without its newline. */
static void add_line(struct batch *b, const char *text, size_t len)
{
    struct item *it = item_of(b, b->next);
    json_error_t e;

    memset(it, 0, sizeof(*it));
    it->index = b->next++;
    it->state = WAITING;
    if (len > b->max_line) {
        fail(it, -E2BIG, PIPIT_E_TOO_LARGE, "the line is longer than any request may be");
        it->a.error.count_a = len;
        it->a.error.count_b = b->max_line;
        return;
    }
    it->line = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!it->line) {
        char cause[sizeof(e.text) + 40];

        (void)snprintf(cause, sizeof(cause), "not JSON, at byte %d: %s", e.position, e.text);
        fail(it, -EINVAL, PIPIT_E_INVALID, cause);
    }
}

static bool has_room(const struct batch *b)
{
    return b->next - b->first < WINDOW && b->next - b->first < 4 * b->jobs;
}

/* Takes whole lines from the buffer while the window has room; empty lines are passed over. */
static void take_lines(struct batch *b)
{
    size_t at = 0;

    while (at < b->used && has_room(b) && !b->stop) {
        char *end = memchr(b->buf + at, '\n', b->used - at);
        size_t len = end ? (size_t)(end - (b->buf + at)) : b->used - at;

        if (!end && !b->eof) {
            break;
        }
        if (strspn(b->buf + at, " \t\r") < len) {
            add_line(b, b->buf + at, len);
        }
        at += len + (end != NULL);
    }
    memmove(b->buf, b->buf + at, b->used - at);
    b->used -= at;
    b->buf[b->used] = '\0';
}

static void read_input(struct batch *b)
{
    ssize_t n;

    if (b->used + READ_BYTES + 1 > b->cap) {
        size_t cap = (b->used + READ_BYTES + 1) * 2;
        char *more = b->used > 2 * b->max_line + READ_BYTES ? NULL : realloc(b->buf, cap);

        if (!more) {
            say("line %zu of the input does not end", b->next + 1);
            b->code = b->code ? b->code : EXIT_REFUSED;
            b->eof = true;
            b->used = 0;
            return;
        }
        b->buf = more;
        b->cap = cap;
    }
    n = read(b->fd, b->buf + b->used, READ_BYTES);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (n < 0) {
        say("cannot read the input: %s", strerror(errno));
        b->code = b->code ? b->code : EXIT_INTERNAL;
    }
    b->eof = n <= 0;
    b->used += n > 0 ? (size_t)n : 0;
    b->buf[b->used] = '\0';
}

static int exit_of(const struct answer *a)
{
    if (a->error.code) {
        return exit_of_code(a->error.code);
    }
    return a->has_done ? exit_of_reason(a->done.reason) : EXIT_INTERNAL;
}

static void write_ended(struct batch *b)
{
    while (b->first < b->next && item_of(b, b->first)->state == ENDED) {
        struct item *it = item_of(b, b->first);
        int code = exit_of(&it->a);

        json_batch(&b->out, b->c, &it->a, it->index, json_object_get(it->line, "custom_id"));
        b->code = b->code ? b->code : code;
        if (it->a.error.code && b->n_failed++ == 0) {
            b->failed = it->index;
            (void)snprintf(b->cause, sizeof(b->cause), "%s", it->a.error.text);
        }
        json_decref(it->line);
        answer_clear(&it->a);
        it->state = FREE;
        b->first++;
    }
}

/* Sends what is due; when the next is due, or 0. */
static int64_t send_due(struct batch *b)
{
    int64_t now = clock_ns();
    int64_t due = 0;

    for (size_t i = b->first; i < b->next; i++) {
        struct item *it = item_of(b, i);

        if (it->state == RUNNING && it->over) {
            settle(b, it);
        }
        if (it->state == WAITING && b->stop) {
            fail(it, -ECANCELED, b->signal ? PIPIT_E_LOCAL : PIPIT_E_LOST,
                 b->signal ? "interrupted before it was asked"
                           : "the daemon went away before it was asked");
        } else if (it->state == WAITING && it->due_ns > now) {
            due = due && due < it->due_ns ? due : it->due_ns;
        } else if (it->state == WAITING && b->n_running < b->jobs) {
            send_item(b, it);
            if (it->over) {
                settle(b, it);
            }
        }
    }
    return due;
}

static void on_signal(struct batch *b, int signal)
{
    b->signal = signal;
    b->stop = true;
    b->deadline_ns = clock_ns() + GRACE_NS;
    for (size_t i = b->first; i < b->next; i++) {
        if (item_of(b, i)->state == RUNNING) {
            (void)pipit_request_cancel(item_of(b, i)->q);
        }
    }
}

static int wait_ms(int64_t until)
{
    int64_t left = until - clock_ns();

    return until == 0 ? -1 : left <= 0 ? 0 : left > 60000000000 ? 60000 : (int)(left / 1000000) + 1;
}

static void step(struct batch *b)
{
    int64_t due = send_due(b);
    bool reads = !b->eof && !b->stop && has_room(b);
    struct pollfd p[] = {
        {.fd = pipit_client_fd(b->c), .events = POLLIN},
        {.fd = interrupt_fd(), .events = POLLIN},
        {.fd = STDOUT_FILENO, .events = (short)(out_pending(&b->out) ? POLLOUT : 0)},
        {.fd = reads ? b->fd : -1, .events = POLLIN},
    };
    int signal;
    int n;

    due = due && b->deadline_ns ? (due < b->deadline_ns ? due : b->deadline_ns)
          : due                 ? due
                                : b->deadline_ns;
    if (b->first < b->next && item_of(b, b->first)->state == ENDED) {
        due = clock_ns(); /* refused before it was sent: nothing will wake us for it */
    }
    n = poll(p, 4, wait_ms(due));
    signal = interrupt_take();
    if (signal) {
        on_signal(b, signal);
    }
    if (n >= 0 && p[3].revents) {
        read_input(b);
    }
    if (n >= 0 && p[0].revents) {
        int r = pipit_client_dispatch(b->c, 0);

        (void)r; /* a lost connection has become an error of each request */
    }
    if (n >= 0 && (p[2].revents & (POLLERR | POLLHUP))) {
        b->out.err = -EPIPE;
    }
    out_flush_ready(&b->out);
}

static int run(struct batch *b)
{
    do {
        take_lines(b);
        step(b);
        (void)send_due(b);
        write_ended(b);
        out_flush_ready(&b->out);
    } while (!b->out.err && (b->first < b->next || (!b->stop && (!b->eof || b->used))) &&
             !(b->deadline_ns && clock_ns() >= b->deadline_ns));
    out_flush(&b->out);
    if (b->out.err == -EPIPE) {
        return EXIT_CANCELLED; /* quietly: whoever reads has had enough */
    }
    if (b->out.err && b->out.err != -EINTR) {
        say("cannot write: %s", strerror(-b->out.err));
        return EXIT_INTERNAL;
    }
    if (b->signal) {
        return b->signal == SIGINT ? EXIT_INTERRUPTED : EXIT_CANCELLED;
    }
    if (b->stop) {
        say("the daemon went away: lines from %zu on were not asked", b->next + 1);
    }
    return b->code;
}

static int open_input(struct batch *b, const struct option_list *words)
{
    const char *path = words->n ? words->v[0] : "-";

    if (words->n > 1) {
        return usage_error("batch", "one file at most, '%.60s' is another", words->v[1]);
    }
    b->fd = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (b->fd < 0) {
        say("cannot open %s: %s", path, strerror(errno));
        return EXIT_USAGE;
    }
    b->cap = READ_BYTES + 1;
    b->buf = malloc(b->cap);
    if (!b->buf) {
        say("no memory");
        return EXIT_INTERNAL;
    }
    b->buf[0] = '\0';
    return 0;
}

/* Unless told: twice what the daemon runs at once, so that it never waits for us. */
static int choose_jobs(struct batch *b)
{
    const struct pipit_status *st;
    struct pipit_error e = {0};

    b->max_line = 6 * (size_t)pipit_client_info(b->c)->max_request_bytes + 4096;
    b->jobs = (size_t)b->s->jobs;
    if (b->jobs == 0) {
        int r = pipit_client_status(b->c, &st, &e);

        if (r < 0) {
            return report(&e);
        }
        b->jobs = st->n_seqs > 0 ? 2 * (size_t)st->n_seqs : 4;
    }
    b->jobs = b->jobs > WINDOW / 4 ? WINDOW / 4 : b->jobs;
    return 0;
}

int batch_run(struct settings *s, const struct option_list *words)
{
    struct batch *b = calloc(1, sizeof(*b));
    int code;

    if (!b) {
        say("no memory");
        return EXIT_INTERNAL;
    }
    b->s = s;
    b->retry_until_ns = cli_retry_until(s);
    b->fd = -1;
    code = open_input(b, words);
    code = code ? code : cli_open(s, &b->c);
    code = code ? code : choose_jobs(b);
    if (code == 0 && interrupt_init() < 0) {
        say("cannot set up signals");
        code = EXIT_INTERNAL;
    }
    code = code ? code : run(b);
    if (b->n_failed > 0 && !b->stop) { /* what reads stdout may look for texts alone */
        say("%zu of %zu lines failed, the first is index %zu: %s", b->n_failed, b->first, b->failed,
            b->cause);
    }
    for (size_t i = b->first; i < b->next; i++) {
        pipit_request_destroy(item_of(b, i)->q);
        json_decref(item_of(b, i)->line);
        answer_clear(&item_of(b, i)->a);
    }
    out_finish(&b->out);
    pipit_client_destroy(b->c);
    if (b->fd > STDIN_FILENO) {
        (void)close(b->fd);
    }
    free(b->buf);
    free(b);
    return code;
}

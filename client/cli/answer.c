/* SPDX-License-Identifier: Apache-2.0 */
/* Streaming one answer. One loop waits for the daemon, for stdout and for signals at once, in
 * libpipit's own wait, so that a token costs one wait, one read and one write:
 *
 *  - the daemon's events become text (or JSON lines) in the queue before stdout;
 *  - stdout takes what it can; when its reader is gone, the request is cancelled without a word;
 *  - the first SIGINT cancels and waits a moment for what was under way, a second one leaves at
 * once;
 *  - a time limit is the daemon's to keep; we only step in when it does not.
 *
 * The text is kept too: chat needs it for its history, --json for its last line. */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/answer.h"
#include "proto/lane/record.h"

#include "base/hot.h"

#define SECOND_NS INT64_C(1000000000)

struct run {
    struct pipit_client *client;
    struct pipit_request *request;
    const struct settings *s;
    struct answer *a;
    struct out out;
    struct progress progress;
    FILE *logprobs; /* lines for stderr, told at the end */
    char *logprobs_text;
    size_t logprobs_size;
    int64_t deadline_ns; /* 0: none */
    bool own_timeout;    /* the daemon did not keep the limit */
    bool blocked;        /* stdout did not take all: its turn is waited for */
    bool ended;
    bool thoughts; /* are shown */
    bool thinking; /* what was shown last is one */
    bool dim;
};

/* What is allocated for n bytes: known from n, and grown so seldom that a token allocates nothing.
 */
static size_t room_for(size_t n)
{
    size_t cap = 1024;

    while (cap < n) {
        cap *= 2;
    }
    return cap;
}

HOT static int keep(struct text *t, const char *text, size_t len)
{
    size_t cap = t->data ? room_for(t->len + 1) : 0;

    if (t->len + len + 1 > cap) {
        char *more = realloc(t->data, room_for(t->len + len + 1));

        if (!more) {
            return -ENOMEM;
        }
        t->data = more;
    }
    memcpy(t->data + t->len, text, len);
    t->len += len;
    t->data[t->len] = '\0';
    return 0;
}

HOT int answer_keep(struct answer *a, const char *text, size_t len)
{
    return keep(&a->text, text, len);
}

static int keep_call(struct answer *a, const struct pipit_event *ev)
{
    struct call *more;

    if (ev->part == PIPIT_PART_ARGUMENTS) {
        return a->n_calls ? keep(&a->calls[a->n_calls - 1].arguments, ev->text, ev->text_len) : 0;
    }
    more = realloc(a->calls, (a->n_calls + 1) * sizeof(*more));
    if (!more) {
        return -ENOMEM;
    }
    a->calls = more;
    more[a->n_calls] = (struct call){0};
    (void)snprintf(more[a->n_calls].id, CALL_ID, "call%05u",
                   (a->first_call + (unsigned)a->n_calls + 1) % 100000);
    return keep(&more[a->n_calls++].name, ev->text, ev->text_len);
}

HOT int answer_keep_part(struct answer *a, const struct pipit_event *ev)
{
    switch (ev->part) {
    case PIPIT_PART_REASONING:
        return keep(&a->reasoning, ev->text, ev->text_len);
    case PIPIT_PART_NAME:
    case PIPIT_PART_ARGUMENTS:
        return keep_call(a, ev);
    default:
        return keep(&a->text, ev->text, ev->text_len);
    }
}

void calls_clear(struct call *calls, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(calls[i].name.data);
        free(calls[i].arguments.data);
    }
    free(calls);
}

/* Text, and where they are wanted thoughts, dim in a terminal. Calls are told at the end. */
HOT static void show(struct run *r, const struct pipit_event *ev)
{
    bool thought = ev->part == PIPIT_PART_REASONING;

    if (ev->text_len == 0 || ev->part >= PIPIT_PART_NAME || (thought && !r->thoughts)) {
        return;
    }
    if (thought != r->thinking) {
        const char *mark = thought ? r->dim ? "\x1b[2m" : "" : r->dim ? "\x1b[0m\n\n" : "\n\n";

        out_put(&r->out, mark, strlen(mark));
        r->thinking = thought;
    }
    out_put_words(&r->out, ev->text, ev->text_len);
}

static void note_logprob(struct run *r, const struct pipit_event *ev)
{
    if (!r->logprobs || ev->type != PIPIT_EVENT_TOKEN) {
        return;
    }
    quote_bytes(r->logprobs, ev->text, ev->text_len);
    (void)fprintf(r->logprobs, " %.4f", ev->logprob);
    for (size_t i = 0; i < ev->n_alts; i++) {
        (void)fputs(i ? ", " : "  of ", r->logprobs);
        quote_bytes(r->logprobs, ev->alts[i].text, ev->alts[i].text_len);
        (void)fprintf(r->logprobs, " %.4f", ev->alts[i].logprob);
    }
    (void)fputc('\n', r->logprobs);
}

HOT static void on_event(struct pipit_request *q, const struct pipit_event *ev, void *user)
{
    struct run *r = user;
    struct answer *a = r->a;

    (void)q;
    if (r->ended) {
        return;
    }
    if (r->s->json) {
        json_event(&r->out, r->request, ev, r->s->logprobs >= 0);
    }
    switch (ev->type) {
    case PIPIT_EVENT_ACCEPTED:
        a->accepted = true;
        if (ev->n_ahead) {
            progress_show(&r->progress, "waiting: %u requests ahead", ev->n_ahead);
        }
        break;
    case PIPIT_EVENT_PROGRESS:
        if (ev->loading) {
            progress_show(&r->progress, "the model is being loaded: %u %%",
                          ev->n_total ? ev->n_done * 100 / ev->n_total : 0);
        } else {
            progress_show(&r->progress, "reading the prompt: %u of %u tokens", ev->n_done,
                          ev->n_total);
        }
        break;
    case PIPIT_EVENT_TOKEN:
    case PIPIT_EVENT_TEXT:
        a->first_ns = a->first_ns ? a->first_ns : clock_ns();
        if (answer_keep_part(a, ev) < 0) { /* the answer itself still reaches stdout */
            a->lost |= ev->part >= PIPIT_PART_NAME;
        }
        note_logprob(r, ev);
        if (!r->s->json) {
            show(r, ev);
        }
        progress_clear(&r->progress);
        break;
    case PIPIT_EVENT_DONE:
        a->has_done = true;
        a->done = *ev->done;
        r->ended = true;
        break;
    case PIPIT_EVENT_ERROR:
        a->error = *ev->error;
        r->ended = true;
        break;
    default:
        break;
    }
}

static void on_signal(struct run *r, int signal)
{
    bool again = r->a->signal != 0;

    r->a->signal = again ? r->a->signal : signal;
    (void)pipit_request_cancel(r->request);
    if (again) {
        r->ended = true;
    }
    r->deadline_ns = clock_ns() + 2 * SECOND_NS;
}

static void on_deadline(struct run *r)
{
    if (!r->a->signal && !r->own_timeout) {
        r->own_timeout = true;
        (void)pipit_request_cancel(r->request);
        r->deadline_ns = clock_ns() + SECOND_NS;
        return;
    }
    r->ended = true;
}

static int wait_ms(const struct run *r)
{
    int64_t left = r->deadline_ns - clock_ns();

    if (r->deadline_ns == 0) {
        return -1;
    }
    return left <= 0 ? 0 : (int)(left / 1000000) + 1;
}

/* A reader who is gone shows without our writing; room in a full pipe is asked for when we need it.
 * A regular file cannot be watched: it never blocks, and has no reader to lose. */
static void watch_stdout(struct run *r, bool blocked)
{
    (void)!pipit_client_watch(r->client, STDOUT_FILENO, blocked ? POLLOUT : 0);
    r->blocked = blocked;
}

/* Nothing came from the daemon: what ended the wait? */
static void look_around(struct run *r)
{
    struct pollfd p = {.fd = STDOUT_FILENO};
    int signal = interrupt_take();

    if (signal) {
        on_signal(r, signal);
    }
    if (poll(&p, 1, 0) == 1 && p.revents & (POLLERR | POLLHUP) && !out_pending(&r->out)) {
        r->out.err = -EPIPE; /* found out while there was nothing to write */
    }
}

HOT static void step(struct run *r)
{
    int n = pipit_client_dispatch(r->client, wait_ms(r));

    if (n <= 0 || interrupt_noted()) {
        look_around(r);
    }
    if (n < 0 && !r->ended) {
        (void)snprintf(r->a->error.text, sizeof(r->a->error.text), "the answer broke off: %s",
                       strerror(-n));
        r->a->error.code = PIPIT_E_LOCAL;
        r->ended = true;
    }
    out_flush_ready(&r->out);
    if (r->out.err) {
        r->ended = true;
        return;
    }
    if (r->blocked != out_pending(&r->out)) {
        watch_stdout(r, !r->blocked);
    }
    if (r->deadline_ns && clock_ns() >= r->deadline_ns && !r->ended) {
        on_deadline(r);
    }
}

static void stats(const struct answer *a)
{
    const struct pipit_done *d = &a->done;
    char kv[32];
    char full[32];
    double prefill_s = (double)d->prefill_ns / 1e9;
    double decode_s = (double)d->decode_ns / 1e9;
    int fresh = d->n_prompt - d->n_cached;

    say("prompt %d tokens (%d cached) in %.2f s, %.1f tok/s; answer %d tokens in %.2f s, "
        "%.1f tok/s; first after %.2f s; kv %s held in whole pages, %s if all were kept in f16; %s",
        d->n_prompt, d->n_cached, prefill_s, prefill_s > 0 ? fresh / prefill_s : 0, d->n_new,
        decode_s, decode_s > 0 ? d->n_new / decode_s : 0,
        a->first_ns ? (double)(a->first_ns - a->start_ns) / 1e9 : 0, bytes_text(d->kv_bytes, kv),
        bytes_text(d->kv_bytes_full, full), pipit_reason_name(d->reason));
}

/* What a person should know about how it ended, and the exit code. */
static int verdict(const struct run *r)
{
    const struct answer *a = r->a;

    if (r->out.err == -EPIPE) {
        return EXIT_CANCELLED; /* quietly */
    }
    if (r->out.err && r->out.err != -EINTR) {
        say("cannot write the answer: %s", strerror(-r->out.err));
        return EXIT_INTERNAL;
    }
    if (a->signal) {
        return a->signal == SIGINT ? EXIT_INTERRUPTED : EXIT_CANCELLED;
    }
    if (r->own_timeout || (a->has_done && a->done.reason == PIPIT_REASON_TIMEOUT)) {
        say("no time left: the answer took longer than --timeout %g", r->s->timeout);
        return EXIT_CANCELLED;
    }
    if (a->error.code) {
        return report_answer(&a->error, a->accepted, r->s);
    }
    if (a->lost) { /* a call in halves must not run */
        say("no memory for the answer's calls");
        return EXIT_INTERNAL;
    }
    if (a->has_done && a->done.session == 2 && a->done.session_err != -ECANCELED) {
        say("%s", a->done.session_cause);
        return EXIT_REFUSED;
    }
    switch (a->done.reason) {
    case PIPIT_REASON_STOP:
    case PIPIT_REASON_TOOL_CALLS:
        if (a->done.broken && !r->s->json) {
            say("the model began a call of a tool that does not parse: it is told as text");
        }
        break;
    case PIPIT_REASON_LENGTH:
        if (r->s->own_limit && !r->s->json) {
            say("the answer was ended after %d token%s; -n sets another limit", a->done.n_new,
                a->done.n_new == 1 ? "" : "s");
        }
        break;
    case PIPIT_REASON_CONTEXT:
        say("the answer ended because the context is full (%d tokens of prompt, %d new)",
            a->done.n_prompt, a->done.n_new);
        break;
    case PIPIT_REASON_CANCELLED:
        say("somebody cancelled the request");
        break;
    case PIPIT_REASON_SHUTDOWN:
        say("the daemon is shutting down");
        break;
    default:
        say("the answer ended early: %s", pipit_reason_name(a->done.reason));
        break;
    }
    return exit_of_reason(a->done.reason);
}

/* A line each, for people; --json is for programs. */
static void put_calls(struct run *r)
{
    for (size_t i = 0; i < r->a->n_calls && !r->s->run_tools; i++) {
        const struct call *c = &r->a->calls[i];

        out_put_words(&r->out, c->name.data, c->name.len);
        out_put(&r->out, " ", 1);
        out_put_words(&r->out, c->arguments.data ? c->arguments.data : "{}",
                      c->arguments.data ? c->arguments.len : 2);
        out_put(&r->out, "\n", 1);
    }
}

static void finish_output(struct run *r)
{
    struct answer *a = r->a;

    bool shown = a->text.len || (r->thoughts && a->reasoning.len);

    progress_clear(&r->progress);
    if (r->thinking && r->dim) {
        out_put(&r->out, "\x1b[0m", 4);
    }
    if (r->s->json) {
        json_last(&r->out, r->client, a);
    } else if (a->n_calls && (a->has_done || a->signal)) {
        out_put(&r->out, "\n", shown);
        put_calls(r);
    } else if (shown || (a->has_done && !a->error.code && !a->signal)) {
        out_put(&r->out, "\n", 1);
    }
    out_flush(&r->out);
    if (r->logprobs) {
        (void)fclose(r->logprobs);
        (void)fputs(r->logprobs_text ? r->logprobs_text : "", stderr);
        free(r->logprobs_text);
    }
    if (r->s->stats && a->has_done) {
        stats(a);
    }
}

/* Refused for now, before anything was said, and there is time to ask again. */
static bool is_to_wait(const struct run *r)
{
    const struct answer *a = r->a;

    return !a->signal && !a->first_ns && !r->logprobs && !r->out.err &&
           cli_waits(&a->error, a->retry_until_ns);
}

/* Reasoning is asked for apart wherever the daemon knows how, so that it may be left out. */
static void show_thoughts(struct run *r)
{
    bool terminal = isatty(STDOUT_FILENO);

    r->thoughts =
        r->s->reasoning == REASONING_YES || (r->s->reasoning == REASONING_AUTO && terminal);
    r->dim = terminal && !r->s->no_color;
    if (!r->s->raw && pipit_client_info(r->client)->features & LANE_FEATURE_PARTS) {
        (void)!pipit_request_set_param(r->request, PIPIT_PARTS, 1);
    }
}

int answer_run(struct pipit_client *c, struct pipit_request *q, const struct settings *s,
               struct answer *a)
{
    struct run r = {.client = c, .request = q, .s = s, .a = a};
    int64_t retry_until_ns = a->retry_until_ns;
    unsigned first_call = a->first_call;
    int code;

    memset(a, 0, sizeof(*a));
    a->retry_until_ns = retry_until_ns;
    a->first_call = first_call;
    show_thoughts(&r);
    memcpy(a->id, pipit_request_id(q), sizeof(a->id));
    a->start_ns = clock_ns();
    progress_init(&r.progress);
    if (s->timeout > 0) { /* the daemon's limit, and a second of grace */
        r.deadline_ns = a->start_ns + (int64_t)(s->timeout * 1e9) + SECOND_NS;
    }
    if (s->logprobs >= 0 && !s->json) {
        r.logprobs = open_memstream(&r.logprobs_text, &r.logprobs_size);
    }
    if (r.progress.on || s->json) {
        int rc = pipit_request_set_param(q, PIPIT_PROGRESS, 1);
        (void)rc; /* without it there is just nothing to show */
    }
    if (pipit_client_info(c)->state == PIPIT_STATE_LOADING) {
        progress_show(&r.progress, "the model is being loaded");
    }
    (void)!pipit_client_watch(c, interrupt_fd(), POLLIN); /* a signal ends the wait all the same */
    watch_stdout(&r, false);
    if (pipit_request_set_callback(q, on_event, &r) < 0 || pipit_request_send(q, &a->error) < 0) {
        r.ended = true;
    }
    while (!r.ended) {
        step(&r);
    }
    (void)!pipit_client_watch(c, STDOUT_FILENO, -1);
    (void)!pipit_client_watch(c, interrupt_fd(), -1);
    a->end_ns = clock_ns();
    if (is_to_wait(&r)) {
        progress_clear(&r.progress);
        code = ANSWER_BUSY;
    } else {
        finish_output(&r);
        code = verdict(&r);
    }
    out_finish(&r.out);
    return code;
}

void answer_clear(struct answer *a)
{
    free(a->text.data);
    free(a->reasoning.data);
    calls_clear(a->calls, a->n_calls);
    memset(a, 0, sizeof(*a));
}

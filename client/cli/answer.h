/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_CLIENT_CLI_ANSWER_H
#define PIPIT_CLIENT_CLI_ANSWER_H

/* One answer, streamed: what ask and chat share. answer.c runs the loop; out.c keeps what stdout
 * does not take yet; progress.c owns the line on stderr; json.c writes events as JSON lines;
 * interrupt.c owns the signals. */

#include "client/cli/cli.h"

/* ---- interrupt.c: SIGINT, SIGTERM and SIGHUP as a descriptor; SIGPIPE ignored ---- */

int interrupt_init(void) WARN_UNUSED;
int interrupt_fd(void); /* -1 before interrupt_init() */
/* The first signal since the last call, or 0. */
int interrupt_take(void);
bool interrupt_noted(void); /* would interrupt_take() say one? Costs no system call. */

/* ---- out.c: stdout ---- */

struct out {
    char *data;
    size_t used;
    size_t sent;
    size_t cap;
    int err; /* negative errno: stdout is broken; -EPIPE: nobody reads any more */
    int terminal;   /* 1: stdout is one, -1: it is not, 0: not known yet */
    bool ask_first; /* stdout takes no writes that do not wait */
};
void out_put(struct out *o, const char *data, size_t len);
/* A model's words. What would give orders to a terminal is left out where stdout is one; pipes and
 * files get every byte. */
void out_put_words(struct out *o, const char *text, size_t len);
void out_flush_ready(struct out *o); /* as much as stdout takes without waiting */
void out_flush(struct out *o);       /* all, or until a signal comes (err -EINTR) */
bool out_pending(const struct out *o);
void out_finish(struct out *o);

/* ---- progress.c: one line on stderr, in a terminal only ---- */

struct progress {
    bool on;
    int width; /* of what stands there now */
    int64_t since_ns;
};
void progress_init(struct progress *p);
void progress_show(struct progress *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
void progress_clear(struct progress *p);

/* ---- answer.c ---- */

enum { CALL_ID = 16 };

/* A call of a tool. The id is ours, nine letters and digits, which is what templates take. */
struct call {
    char id[CALL_ID];
    struct text name;
    struct text arguments; /* a JSON object */
};
void calls_clear(struct call *calls, size_t n); /* frees the list too */

struct answer {
    struct text text;
    struct text reasoning;
    struct call *calls; /* (n_calls) */
    size_t n_calls;
    uint8_t id[16];
    bool accepted; /* the daemon took it */
    bool lost;     /* no memory for all of its calls */
    bool has_done;
    struct pipit_done done;
    struct pipit_error error; /* code 0: none */
    int signal;               /* that ended it, or 0 */
    int64_t retry_until_ns;   /* set before: a busy daemon is not told of, but ANSWER_BUSY returned,
                                 until then */
    unsigned first_call;      /* set before: of the numbers that ids are made of */
    int64_t start_ns;
    int64_t first_ns; /* 0: nothing came */
    int64_t end_ns;
};

enum { ANSWER_BUSY = -1 };

/* Sends q, streams its answer to stdout as the settings say, tells errors; the exit code. */
int answer_run(struct pipit_client *c, struct pipit_request *q, const struct settings *s,
               struct answer *ret);
/* Adds to the text that is kept; -ENOMEM, and it stays as it was. */
int answer_keep(struct answer *a, const char *text, size_t len) WARN_UNUSED;
/* The same of any part of it. */
int answer_keep_part(struct answer *a, const struct pipit_event *ev) WARN_UNUSED;
void answer_clear(struct answer *a);

/* ---- json.c ---- */

void json_event(struct out *o, const struct pipit_request *q, const struct pipit_event *ev,
                bool logprobs);
/* The last line; c NULL: no connection came about. */
void json_last(struct out *o, const struct pipit_client *c, const struct answer *a);

#endif

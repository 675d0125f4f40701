/* SPDX-License-Identifier: Apache-2.0 */
/* pipit ask: one prompt, one answer. The streaming is answer.c's. */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/cli/talk.h"

struct ask {
    const struct settings *s;
    struct pipit_client *client;
    struct text prompt;
    struct tools tools;
    struct talk talk; /* but with --raw: the prompt, and answers with calls and their results */
    int64_t until_ns; /* that a busy daemon is asked again */
};

/* Turns behind the last answer. */
static size_t n_new(const struct talk *t)
{
    size_t n = 0;

    while (n < t->n && strcmp(t->turns[t->n - 1 - n].role, "assistant") != 0) {
        n++;
    }
    return n;
}

static int build(const struct ask *ask, struct pipit_request **ret)
{
    const struct settings *s = ask->s;
    struct pipit_request *q;
    struct error e = {0};
    int r = pipit_request_create(ask->client, s->raw ? PIPIT_GENERATE : PIPIT_CHAT, ret);

    if (r < 0) {
        say("cannot make the request: %s", strerror(-r));
        return EXIT_INTERNAL;
    }
    q = *ret;
    r = settings_apply(s, q, &e);
    if (r < 0) {
        return r == -ENOMEM ? (say("%s", e.text), EXIT_INTERNAL) : usage_error("ask", "%s", e.text);
    }
    if (s->system && !(s->session && n_new(&ask->talk) < ask->talk.n)) {
        r = pipit_request_set_system(q, s->system, strlen(s->system));
    }
    if (r == 0) {
        r = s->raw ? pipit_request_set_prompt(q, ask->prompt.data, ask->prompt.len)
                   : talk_put(&ask->talk, s->session ? ask->talk.n - n_new(&ask->talk) : 0, q);
    }
    r = r == 0 ? tools_put(&ask->tools, q) : r;
    if (r == 0 && s->session) {
        r = pipit_request_set_session(q, s->session);
    }
    if (r < 0) {
        say("cannot make the request: %s", strerror(-r));
        return r == -E2BIG ? EXIT_REFUSED : EXIT_INTERNAL;
    }
    return 0;
}

/* What can be refused before anything is read or connected. */
static int check(const struct settings *s)
{
    if (s->schema) {
        return usage_error("ask", "--schema is not built yet");
    }
    if (s->raw && s->tools) {
        return usage_error("ask", "--tools needs the chat template, --raw leaves it out");
    }
    if (s->run_tools && !s->tools) {
        return usage_error("ask", "--run-tools needs --tools FILE");
    }
    if (s->raw && s->system) {
        return usage_error("ask", "--system needs the chat template, --raw leaves it out");
    }
    if (s->system && input_bad_byte(s->system, strlen(s->system)) >= 0) {
        return usage_error("ask", "--system is not UTF-8 at byte %zd",
                           input_bad_byte(s->system, strlen(s->system)));
    }
    return 0;
}

/* Before connecting: what is wrong with the request itself. */
static int check_build(const struct ask *ask)
{
    struct pipit_request *q = NULL;
    int code = build(ask, &q);

    pipit_request_destroy(q);
    return code;
}

/* As long as the daemon said. 0, or the exit code when a signal came first. */
static int wait_for_turn(const struct answer *a)
{
    struct pollfd p = {.fd = interrupt_fd(), .events = POLLIN};
    int ms = a->error.retry_after_ms ? (int)a->error.retry_after_ms : 1000;
    int signal = 0;

    if (poll(&p, 1, ms) != 0) {
        signal = interrupt_take();
    }
    return signal == 0 ? 0 : signal == SIGINT ? EXIT_INTERRUPTED : EXIT_CANCELLED;
}

/* Sends and streams, again while the daemon is busy. */
static int answer_once(const struct ask *ask, struct answer *a)
{
    struct pipit_request *q = NULL;
    int code = build(ask, &q);

    a->first_call = ask->talk.n_calls;
    a->retry_until_ns = ask->until_ns;
    code = code ? code : answer_run(ask->client, q, ask->s, a);
    while (code == ANSWER_BUSY) {
        code = wait_for_turn(a);
        answer_clear(a);
        a->first_call = ask->talk.n_calls;
        a->retry_until_ns = ask->until_ns;
        pipit_request_destroy(q);
        q = NULL;
        code = code ? code : build(ask, &q);
        code = code ? code : answer_run(ask->client, q, ask->s, a);
    }
    pipit_request_destroy(q);
    return code;
}

/* With --run-tools until an answer has no call that may be run. */
static int answer_all(struct ask *ask)
{
    int code = 0;

    for (int i = 0; code == 0 && i <= TOOLS_ROUNDS; i++) {
        struct answer a = {0};
        bool goes_on;

        code = answer_once(ask, &a);
        goes_on = code == 0 && ask->s->run_tools && a.n_calls > 0 && i < TOOLS_ROUNDS;
        if (goes_on && talk_answer(&ask->talk, &a, true) < 0) {
            code = EXIT_INTERNAL;
        }
        if (code == 0 && !goes_on && ask->s->run_tools && a.n_calls) {
            say("the model still calls tools after %d rounds: not run any more", TOOLS_ROUNDS);
            code = EXIT_REFUSED;
        }
        answer_clear(&a);
        if (!goes_on || code) {
            break;
        }
        code = tools_run_all(&ask->tools, &ask->talk);
        if (code < 0) {
            say("a tool that was called has no command: its result is not known");
            code = EXIT_REFUSED;
        }
    }
    return code;
}

int ask_run(struct settings *s, const struct option_list *words)
{
    struct ask ask = {.s = s};
    int code = check(s);

    code = code ? code : tools_open(s->tools, &ask.tools);
    if (code == 0) {
        code = input_prompt(command_find("ask"), words, &ask.prompt);
    }
    if (code == 0 && ask.prompt.len == 0 && !s->raw) {
        code = usage_error("ask", "the prompt is empty");
    }
    if (code == 0 && !s->raw && talk_say(&ask.talk, "user", ask.prompt.data, ask.prompt.len) < 0) {
        code = EXIT_INTERNAL;
    }
    if (code == 0) {
        code = cli_client(s, &ask.client);
    }
    if (code == 0) {
        code = check_build(&ask);
    }
    if (code == 0) {
        ask.until_ns = cli_retry_until(s);
        code = cli_connect(ask.client, ask.until_ns, s->json);
    }
    if (code == 0 && interrupt_init() < 0) {
        say("cannot set up signals");
        code = EXIT_INTERNAL;
    }
    if (code == 0) {
        code = answer_all(&ask);
    }
    talk_clear(&ask.talk);
    tools_close(&ask.tools);
    pipit_client_destroy(ask.client);
    free(ask.prompt.data);
    return code;
}

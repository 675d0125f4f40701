/* SPDX-License-Identifier: Apache-2.0 */
/* pipit ask: one prompt, one answer. The streaming is answer.c's. */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "client/cli/answer.h"

static int build(const struct settings *s, struct pipit_client *c, const struct text *prompt,
                 struct pipit_request **ret)
{
    struct pipit_request *q;
    struct error e = {0};
    int r = pipit_request_create(c, s->raw ? PIPIT_GENERATE : PIPIT_CHAT, ret);

    if (r < 0) {
        say("cannot make the request: %s", strerror(-r));
        return EXIT_INTERNAL;
    }
    q = *ret;
    r = settings_apply(s, q, &e);
    if (r < 0) {
        return r == -ENOMEM ? (say("%s", e.text), EXIT_INTERNAL) : usage_error("ask", "%s", e.text);
    }
    if (s->system) {
        r = pipit_request_set_system(q, s->system, strlen(s->system));
    }
    if (r == 0) {
        r = s->raw ? pipit_request_set_prompt(q, prompt->data, prompt->len)
                   : pipit_request_add_message(q, "user", prompt->data, prompt->len);
    }
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
    if (s->raw && s->system) {
        return usage_error("ask", "--system needs the chat template, --raw leaves it out");
    }
    if (s->system && input_bad_byte(s->system, strlen(s->system)) >= 0) {
        return usage_error("ask", "--system is not UTF-8 at byte %zd",
                           input_bad_byte(s->system, strlen(s->system)));
    }
    return 0;
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

int ask_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    struct pipit_request *q = NULL;
    struct answer a = {0};
    struct text prompt = {0};
    int64_t until_ns = 0;
    int code = check(s);

    if (code == 0) {
        code = input_prompt(command_find("ask"), words, &prompt);
    }
    if (code == 0 && prompt.len == 0 && !s->raw) {
        code = usage_error("ask", "the prompt is empty");
    }
    if (code == 0) {
        code = cli_client(s, &c);
    }
    if (code == 0) {
        code = build(s, c, &prompt, &q);
    }
    if (code == 0) {
        until_ns = cli_retry_until(s);
        code = cli_connect(c, until_ns, s->json);
    }
    if (code == 0 && interrupt_init() < 0) {
        say("cannot set up signals");
        code = EXIT_INTERNAL;
    }
    if (code == 0) {
        a.retry_until_ns = until_ns;
        code = answer_run(c, q, s, &a);
    }
    while (code == ANSWER_BUSY) {
        code = wait_for_turn(&a);
        answer_clear(&a);
        a.retry_until_ns = until_ns;
        pipit_request_destroy(q);
        q = NULL;
        code = code ? code : build(s, c, &prompt, &q);
        code = code ? code : answer_run(c, q, s, &a);
    }
    answer_clear(&a);
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    free(prompt.data);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* pipit chat: a conversation. The history lives here and goes along whole with every message; the
 * daemon keeps nothing of it. In a terminal, lines come from a person (the kernel's own line
 * editing is enough) and errors are told and forgotten; without one, each line is a message and the
 * first error ends the program.
 *
 * With --session the daemon keeps the history instead, and each message goes alone; an answer that
 * was interrupted is then not part of it. /clear forgets nothing of what the daemon has saved: it
 * says what does.
 *
 * Calls of tools are run (--run-tools), or each is shown, and the next line is its result.
 *
 * A message whose answer failed does not stay in the history, so that "too long" can be mended by a
 * shorter one; an answer that was interrupted stays as far as it came. */

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/talk.h"

struct chat {
    const struct settings *s;
    struct pipit_client *client;
    struct talk talk;
    struct tools tools;
    size_t asked;     /* turns before the message that is being answered */
    size_t n_waiting; /* calls of the last answer whose results are typed in */
    bool person;      /* on stdin */
    bool begun;       /* with --session: an answer has come */
    char *buf;        /* of stdin, not yet given out */
    size_t len;
    size_t cap;
    bool end;
};

/* ---- lines ---- */

enum line { LINE_OK, LINE_END, LINE_SIGNAL, LINE_FAILED };

/* More of stdin into the buffer. Read by hand: stdio would not let a signal end the wait. */
static enum line fill(struct chat *c)
{
    struct pollfd p[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                         {.fd = interrupt_fd(), .events = POLLIN}};
    ssize_t n;

    if (c->len + 4096 > c->cap) {
        char *more = c->cap > (64 << 20) ? NULL : realloc(c->buf, c->cap * 2 + 8192);

        if (!more) {
            say("a line is too long");
            return LINE_FAILED;
        }
        c->buf = more;
        c->cap = c->cap * 2 + 8192;
    }
    if (poll(p, 2, -1) < 0 || p[1].revents) {
        return LINE_SIGNAL;
    }
    n = read(STDIN_FILENO, c->buf + c->len, c->cap - c->len);
    if (n < 0) {
        return errno == EINTR ? LINE_SIGNAL : LINE_END;
    }
    c->end = n == 0;
    c->len += (size_t)n;
    return n == 0 ? LINE_END : LINE_OK;
}

/* The next line without its newline; the last one may lack it. */
static enum line read_line(struct chat *c, struct text *ret)
{
    char *nl;
    size_t used;

    while (!(nl = c->len ? memchr(c->buf, '\n', c->len) : NULL)) {
        enum line l = c->end ? LINE_END : fill(c);

        if (l == LINE_END && c->len) {
            nl = c->buf + c->len;
            break;
        }
        if (l != LINE_OK) {
            return l;
        }
    }
    ret->len = (size_t)(nl - c->buf);
    ret->data = malloc(ret->len + 1);
    if (!ret->data) {
        return LINE_FAILED;
    }
    memcpy(ret->data, c->buf, ret->len);
    used = ret->len + (ret->len < c->len);
    memmove(c->buf, c->buf + used, c->len - used);
    c->len -= used;
    if (ret->len && ret->data[ret->len - 1] == '\r') {
        ret->len--;
    }
    ret->data[ret->len] = '\0';
    return LINE_OK;
}

/* The first call of the last answer that waits for its result. */
static const struct call *waiting_call(const struct chat *c)
{
    size_t at = c->talk.n;

    while (c->talk.turns[at - 1].n_calls == 0) {
        at--;
    }
    return &c->talk.turns[at - 1].calls[c->talk.turns[at - 1].n_calls - c->n_waiting];
}

static void prompt(const struct chat *c, const char *text)
{
    if (c->person) {
        (void)fputs(text, stderr);
        (void)fflush(stderr);
    }
}

/* A message: lines that end in a backslash go on. */
static enum line read_message(struct chat *c, struct text *ret)
{
    enum line l;
    struct text more = {0};

    *ret = (struct text){0};
    if (c->n_waiting) {
        prompt(c, "result of ");
        prompt(c, waiting_call(c)->name.data);
    }
    prompt(c, "> ");
    l = read_line(c, ret);
    while (l == LINE_OK && ret->len && ret->data[ret->len - 1] == '\\') {
        prompt(c, "… ");
        ret->data[ret->len - 1] = '\n';
        l = read_line(c, &more);
        if (l == LINE_OK) {
            char *joined = realloc(ret->data, ret->len + more.len + 1);

            if (joined) {
                memcpy(joined + ret->len, more.data, more.len + 1);
                ret->data = joined;
                ret->len += more.len;
            }
            free(more.data);
        } else if (l == LINE_END) {
            l = LINE_OK;
            break;
        }
    }
    return l;
}

/* ---- answers ---- */

/* The daemon knows a session's earlier messages, up to the last answer. */
static size_t behind_answer(const struct talk *t)
{
    size_t i = t->n;

    while (i > 0 && strcmp(t->turns[i - 1].role, "assistant") != 0) {
        i--;
    }
    return i;
}

static int build(struct chat *c, struct pipit_request **ret)
{
    const struct settings *s = c->s;
    struct error e = {0};
    int r = pipit_request_create(c->client, PIPIT_CHAT, ret);

    if (r == 0) {
        r = settings_apply(s, *ret, &e);
        if (r < 0 && r != -ENOMEM) {
            return usage_error("chat", "%s", e.text);
        }
    }
    if (r == 0 && s->session) {
        r = pipit_request_set_session(*ret, s->session);
    }
    if (r == 0 && s->system && (!s->session || !c->begun)) {
        r = pipit_request_set_system(*ret, s->system, strlen(s->system));
    }
    r = r == 0 ? tools_put(&c->tools, *ret) : r;
    r = r == 0 ? talk_put(&c->talk, s->session ? behind_answer(&c->talk) : 0, *ret) : r;
    if (r < 0) {
        say(r == -E2BIG ? "the conversation has too many messages"
                        : "no memory for the conversation");
        return r == -E2BIG ? EXIT_REFUSED : EXIT_INTERNAL;
    }
    return 0;
}

/* One answer to what was said; its calls stay in the history, and wait. */
static int answer_once(struct chat *c)
{
    struct pipit_request *q = NULL;
    struct answer a = {.first_call = c->talk.n_calls};
    int code = build(c, &q);
    bool kept;

    if (code == 0) {
        code = answer_run(c->client, q, c->s, &a);
    }
    c->begun |= a.has_done;
    kept = (a.text.len || a.n_calls) && (a.has_done || a.signal);
    if (!kept || talk_answer(&c->talk, &a, code == 0) < 0) {
        talk_forget(&c->talk, c->asked);
    }
    pipit_request_destroy(q);
    answer_clear(&a);
    return code;
}

/* Answers, and as long as there are calls that may be run, their results and the next answer. */
static int answer(struct chat *c)
{
    int code = answer_once(c);

    for (int i = 0; code == 0; i++) {
        const struct turn *last = c->talk.n ? &c->talk.turns[c->talk.n - 1] : NULL;
        size_t n_calls = last ? last->n_calls : 0;
        int ran = n_calls && c->s->run_tools && i < TOOLS_ROUNDS
                      ? tools_run_all(&c->tools, &c->talk)
                      : -1;

        if (ran < 0) {
            c->n_waiting = n_calls;
            break;
        }
        if (ran > 0) {
            talk_forget(&c->talk, c->asked);
        }
        code = ran ? ran : answer_once(c);
    }
    return code;
}

/* A message, or the result of the first call that waits for one. */
static int hear(struct chat *c, const struct text *message)
{
    const struct call *call;
    int r;

    if (c->n_waiting == 0) {
        c->asked = c->talk.n;
        r = talk_say(&c->talk, "user", message->data, message->len);
        return r < 0 ? EXIT_INTERNAL : answer(c);
    }
    call = waiting_call(c);
    r = talk_result(&c->talk, call, message->data, message->len);
    if (r < 0) {
        return EXIT_INTERNAL;
    }
    c->n_waiting--;
    return c->n_waiting ? 0 : answer(c);
}

static bool command(struct chat *c, const char *word, bool *ret_quit)
{
    if (strcmp(word, "/quit") == 0 || strcmp(word, "/exit") == 0) {
        *ret_quit = true;
    } else if (strcmp(word, "/clear") == 0 && c->s->session) {
        (void)fprintf(stderr,
                      "this conversation is saved: /quit, then 'pipit session rm %.64s' "
                      "forgets it\n",
                      c->s->session);
    } else if (strcmp(word, "/clear") == 0) {
        talk_forget(&c->talk, 0);
        c->n_waiting = 0;
    } else if (strcmp(word, "/help") == 0) {
        (void)fprintf(stderr,
                      "%s/quit or Ctrl-D ends, Ctrl-C ends an answer;\n"
                      "a line that ends in \\ goes on in the next\n",
                      c->s->session ? "" : "/clear forgets the conversation, ");
    } else if (word[0] == '/' && c->person) {
        (void)fprintf(stderr, "unknown command %.40s; /help lists them\n", word);
    } else {
        return false;
    }
    return true;
}

/* One message; -1 to go on, else the exit code. */
static int turn(struct chat *c, const struct text *message)
{
    ssize_t bad = input_bad_byte(message->data, message->len);
    bool quit = false;
    int code;

    if ((message->len == 0 && !c->n_waiting) || command(c, message->data, &quit)) {
        return quit ? EXIT_OK : -1;
    }
    if (bad >= 0) {
        say("the message is not UTF-8 at byte %zd", bad);
        return c->person ? -1 : EXIT_USAGE;
    }
    code = hear(c, message);
    if (code == EXIT_OK) {
        return -1;
    }
    if (code == EXIT_CONTEXT && c->person && !c->s->session) {
        (void)fprintf(stderr, "/clear begins a new conversation.\n");
    }
    if (!c->person || code == EXIT_UNREACHABLE || code == EXIT_USAGE) {
        return code;
    }
    return -1;
}

static int loop(struct chat *c)
{
    int code = -1;

    while (code < 0) {
        struct text message = {0};
        enum line l = read_message(c, &message);
        int signal = l == LINE_SIGNAL ? interrupt_take() : 0;

        if (l == LINE_OK) {
            code = turn(c, &message);
        } else if (l == LINE_END) {
            prompt(c, "\n");
            code = EXIT_OK;
        } else if (signal == SIGINT && c->person) {
            c->len = 0;
            prompt(c, "\n(/quit or Ctrl-D ends)\n");
        } else if (signal) {
            code = signal == SIGINT ? EXIT_INTERRUPTED : EXIT_CANCELLED;
        } else if (l == LINE_FAILED) {
            code = EXIT_INTERNAL;
        }
        free(message.data);
    }
    return code;
}

int chat_run(struct settings *s, const struct option_list *words)
{
    struct chat c = {.s = s, .person = isatty(STDIN_FILENO)};
    int code;

    if (words->n) {
        return usage_error("chat", "'%.60s' is not an option; messages are typed in", words->v[0]);
    }
    if (s->run_tools && !s->tools) {
        return usage_error("chat", "--run-tools needs --tools FILE");
    }
    s->logprobs = -1;
    s->json = s->raw = false;
    code = tools_open(s->tools, &c.tools);
    code = code ? code : cli_open(s, &c.client);
    if (code == 0 && interrupt_init() < 0) {
        say("cannot set up signals");
        code = EXIT_INTERNAL;
    }
    if (code == 0) {
        if (c.person) {
            (void)fprintf(stderr, "%s. /help lists what may be typed besides messages.\n",
                          pipit_client_info(c.client)->model);
        }
        code = loop(&c);
    }
    talk_clear(&c.talk);
    tools_close(&c.tools);
    free(c.buf);
    pipit_client_destroy(c.client);
    return code;
}

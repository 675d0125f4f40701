/* SPDX-License-Identifier: Apache-2.0 */
/* Tools: a JSON list of definitions as OpenAI's, of which each may have a `command`. The daemon
 * never sees commands. They run only with --run-tools, by /bin/sh, in a process group of their own,
 * with the arguments on stdin; what a model wrote is data to them, and part of no command line.
 * stdout is the result, to 256 KiB. A command that fails, or is not ended after a minute, says so
 * in the result: the model may then try something else. A command may close its stdout and go on:
 * time and signals end it then, too. */

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/cli/talk.h"

enum { RESULT_MAX = 256 << 10, RUN_SECONDS = 60, LOOK_MS = 20 /* has it ended? */ };

/* The command goes out of the definition, into `commands`. */
static int take_command(struct tools *t, json_t *one)
{
    json_t *function = json_object_get(one, "function");
    json_t *at = function ? function : one;
    const char *name = json_string_value(json_object_get(at, "name"));
    json_t *command = json_object_get(one, "command");

    if (!command) {
        command = json_object_get(at, "command");
    }
    if (!name || !name[0]) {
        return -EINVAL;
    }
    if (command && (!json_is_string(command) || json_object_set(t->commands, name, command) < 0)) {
        return -EINVAL;
    }
    (void)json_object_del(one, "command");
    (void)json_object_del(at, "command");
    return 0;
}

int tools_open(const char *path, struct tools *ret)
{
    json_error_t e;
    size_t i;
    json_t *one;

    *ret = (struct tools){.run_seconds = RUN_SECONDS};
    if (!path) {
        return 0;
    }
    ret->list = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    ret->commands = json_object();
    if (!ret->list) {
        say("--tools %.200s: %s (line %d)", path, e.text, e.line);
        return EXIT_USAGE;
    }
    if (json_array_size(ret->list) == 0) {
        say("--tools %.200s: a list of definitions is wanted: [{\"type\": \"function\", "
            "\"function\": {\"name\": ...}}]",
            path);
        return EXIT_USAGE;
    }
    json_array_foreach(ret->list, i, one)
    {
        if (take_command(ret, one) < 0) {
            say("--tools %.200s: definition %zu has no name, or a command that is no text", path,
                i + 1);
            return EXIT_USAGE;
        }
    }
    ret->text = json_dumps(ret->list, JSON_COMPACT);
    if (!ret->text) {
        say("no memory for the tools");
        return EXIT_INTERNAL;
    }
    return 0;
}

void tools_close(struct tools *t)
{
    json_decref(t->list);
    json_decref(t->commands);
    free(t->text);
    *t = (struct tools){0};
}

int tools_put(const struct tools *t, struct pipit_request *q)
{
    return t->text ? pipit_request_set_tools(q, t->text, strlen(t->text)) : 0;
}

static const char *command_of(const struct tools *t, const struct call *call)
{
    return json_string_value(json_object_get(t->commands, call->name.data));
}

bool tools_have_command(const struct tools *t, const struct call *call)
{
    return command_of(t, call) != NULL;
}

/* A call may end with its name. */
static const char *arguments_of(const struct call *call)
{
    return call->arguments.data ? call->arguments.data : "{}";
}

/* The arguments as a file: no pipe that would have to be written while the other is read. */
static int arguments_fd(const struct call *call)
{
    AUTO_CLOSE int fd = memfd_create("arguments", MFD_CLOEXEC);
    const char *text = arguments_of(call);
    size_t len = strlen(text);

    if (fd < 0 || pwrite(fd, text, len, 0) != (ssize_t)len) {
        return -1;
    }
    return STEAL_FD(fd);
}

/* The child: nothing of ours but stderr. */
static void run_child(const char *command, int in, int out)
{
    static const int signals[] = {SIGPIPE, SIGINT, SIGTERM, SIGHUP};

    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        (void)signal(signals[i], SIG_DFL);
    }
    (void)setpgid(0, 0);
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0) {
        _exit(127);
    }
    (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

/* Reads until the command closes its stdout, or the time, or a signal comes; what it printed beyond
 * the limit is read and dropped. 0, -ETIMEDOUT, -EINTR. */
static int gather(int fd, int64_t until_ns, struct text *ret)
{
    char more[4096];

    for (;;) {
        struct pollfd p[] = {{.fd = fd, .events = POLLIN},
                             {.fd = interrupt_fd(), .events = POLLIN}};
        int64_t left_ns = until_ns - clock_ns();
        ssize_t n;

        if (left_ns <= 0) {
            return -ETIMEDOUT;
        }
        (void)poll(p, 2, (int)(left_ns / 1000000) + 1);
        if (p[1].revents || interrupt_noted()) {
            return -EINTR;
        }
        if (!p[0].revents) {
            continue;
        }
        n = read(fd, more, sizeof(more));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return 0;
        }
        if ((size_t)n > RESULT_MAX - ret->len) {
            n = (ssize_t)(RESULT_MAX - ret->len);
        }
        memcpy(ret->data + ret->len, more, (size_t)n);
        ret->len += (size_t)n;
    }
}

/* 0, -ETIMEDOUT, -EINTR: it runs on. */
static int wait_for(pid_t pid, int64_t until_ns, int *ret_status)
{
    struct pollfd p = {.fd = interrupt_fd(), .events = POLLIN};

    while (waitpid(pid, ret_status, WNOHANG) == 0) {
        if (interrupt_noted()) {
            return -EINTR;
        }
        if (clock_ns() >= until_ns) {
            return -ETIMEDOUT;
        }
        (void)poll(&p, 1, LOOK_MS);
    }
    return 0;
}

/* The daemon takes UTF-8 alone, and no NUL. */
static void mend(struct text *t)
{
    ssize_t bad;
    size_t from = 0;

    while (from < t->len && (bad = input_bad_byte(t->data + from, t->len - from)) >= 0) {
        t->data[from + (size_t)bad] = '?';
        from += (size_t)bad + 1;
    }
    while (t->len && t->data[t->len - 1] == '\n') {
        t->len--;
    }
}

static void add_words(struct text *t, const char *fmt, int n)
{
    t->len += (size_t)snprintf(t->data + t->len, 64, fmt, n);
}

static int run_command(const char *command, int in, int seconds, struct text *ret)
{
    int64_t until_ns = clock_ns() + seconds * INT64_C(1000000000);
    int fds[2];
    int status = 0;
    int r;
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) < 0) {
        return -errno;
    }
    pid = fork();
    if (pid == 0) {
        run_child(command, in, fds[1]);
    }
    (void)close(fds[1]);
    if (pid < 0) {
        (void)close(fds[0]);
        return -EAGAIN;
    }
    (void)setpgid(pid, pid);
    r = gather(fds[0], until_ns, ret);
    (void)close(fds[0]);
    r = r < 0 ? r : wait_for(pid, until_ns, &status);
    if (r < 0) {
        (void)kill(-pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
    }
    mend(ret);
    if (r == -ETIMEDOUT) {
        add_words(ret, "\n(not ended after %d seconds)", seconds);
    } else if (WIFEXITED(status) && WEXITSTATUS(status)) {
        add_words(ret, "\n(the command failed with exit code %d)", WEXITSTATUS(status));
    } else if (WIFSIGNALED(status) && r == 0) {
        add_words(ret, "\n(the command was killed by signal %d)", WTERMSIG(status));
    }
    return r == -EINTR ? r : 0;
}

int tools_run(const struct tools *t, const struct call *call, struct text *ret)
{
    AUTO_CLOSE int in = arguments_fd(call);
    int r;

    *ret = (struct text){.data = malloc(RESULT_MAX + 128)};
    if (!ret->data || in < 0) {
        say("cannot give %s its arguments", call->name.data);
        return EXIT_INTERNAL;
    }
    r = run_command(command_of(t, call), in, t->run_seconds, ret);
    if (r == -EINTR) {
        return interrupt_take() == SIGINT ? EXIT_INTERRUPTED : EXIT_CANCELLED;
    }
    if (r < 0) {
        say("cannot run the command of %s: %s", call->name.data, strerror(-r));
        return EXIT_INTERNAL;
    }
    return 0;
}

/* What is about to run, with nothing in it that would give orders to a terminal: JSON has no
 * control characters but DEL and those of two bytes. */
static void tell(const struct call *call)
{
    char shown[400];
    size_t n = 0;

    for (const char *p = arguments_of(call); *p && n + 1 < sizeof(shown); p++) {
        bool control = *p == 0x7f || (*p == '\xc2' && ((unsigned char)p[1] & 0xe0) == 0x80);

        shown[n++] = control ? '?' : *p;
    }
    shown[n] = '\0';
    say("runs %s %s%s", call->name.data, shown, n + 1 == sizeof(shown) ? "..." : "");
}

int tools_run_all(const struct tools *t, struct talk *talk)
{
    size_t at = talk->n - 1;
    int code = 0;

    for (size_t i = 0; i < talk->turns[at].n_calls; i++) {
        if (!tools_have_command(t, &talk->turns[at].calls[i])) {
            return -1;
        }
    }
    for (size_t i = 0; code == 0 && i < talk->turns[at].n_calls; i++) {
        const struct call *call = &talk->turns[at].calls[i];
        struct text result = {0};

        tell(call);
        code = tools_run(t, call, &result);
        if (code == 0 && talk_result(talk, call, result.data, result.len) < 0) {
            code = EXIT_INTERNAL;
        }
        free(result.data);
    }
    return code;
}

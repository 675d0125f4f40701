/* SPDX-License-Identifier: Apache-2.0 */
/* client/cli/tools.c: commands that run, fail, print too much, never end with their stdout open or
 * closed; calls without arguments. */

#include <criterion/criterion.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "client/cli/talk.h"

static char said[1000];

void say(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(said, sizeof(said), fmt, args);
    va_end(args);
}

void calls_clear(struct call *calls, size_t n)
{
    (void)calls;
    (void)n;
}

ssize_t input_bad_byte(const char *data, size_t len)
{
    for (size_t i = 0; i < len;) {
        int n = utf8_character(data + i, len - i);

        if (n <= 0 || !data[i]) {
            return (ssize_t)i;
        }
        i += (size_t)n;
    }
    return -1;
}

/* Runs it as the command of a call; the exit code, and what the model is told. */
static int run(const char *command, char *arguments, int seconds, char **ret)
{
    struct tools t = {.commands = json_pack("{s:s}", "f", command), .run_seconds = seconds};
    char name[] = "f";
    struct call call = {.id = "call00001",
                        .name = {.data = name, .len = 1},
                        .arguments = {.data = arguments, .len = arguments ? strlen(arguments) : 0}};
    struct turn turn = {.role = "assistant", .calls = &call, .n_calls = 1};
    struct talk talk = {.turns = malloc(sizeof(turn)), .n = 1};
    int code;

    cr_assert_eq(interrupt_init(), 0);
    talk.turns[0] = turn;
    code = tools_run_all(&t, &talk);
    *ret = talk.n == 2 ? talk.turns[1].text.data : NULL;
    tools_close(&t);
    return code;
}

Test(cli_tools, results)
{
    char arguments[] = "{\"a\": 1}";
    char *result;

    cr_expect_eq(run("cat; printf '\\377\\n'", arguments, 10, &result), 0);
    cr_expect_str_eq(result, "{\"a\": 1}?");
    cr_expect_str_eq(said, "runs f {\"a\": 1}");
    cr_expect_eq(run("exit 3", arguments, 10, &result), 0);
    cr_expect_str_eq(result, "\n(the command failed with exit code 3)");
    cr_expect_eq(run("kill -9 $$", arguments, 10, &result), 0);
    cr_expect_str_eq(result, "\n(the command was killed by signal 9)");
    cr_expect_eq(run("head -c 400000 /dev/zero | tr '\\0' x", arguments, 10, &result), 0);
    cr_expect_eq(strlen(result), 256 << 10);
    cr_expect_eq(run("exec >&-; sleep 0.2; exit 4", arguments, 10, &result), 0);
    cr_expect_str_eq(result, "\n(the command failed with exit code 4)");
}

Test(cli_tools, a_call_without_arguments)
{
    char *result;

    cr_expect_eq(run("cat", NULL, 10, &result), 0);
    cr_expect_str_eq(result, "{}");
    cr_expect_str_eq(said, "runs f {}");
}

Test(cli_tools, never_ends, .timeout = 20)
{
    static const char *const lines[] = {"sleep 9999", "exec >&-; sleep 9999"};

    for (int i = 0; i < 2; i++) {
        char *result;
        int64_t since_ns = clock_ns();

        cr_expect_eq(run(lines[i], NULL, 1, &result), 0);
        cr_expect_str_eq(result, "\n(not ended after 1 seconds)");
        cr_expect_lt(clock_ns() - since_ns, INT64_C(8000000000));
    }
}

static void interrupt(int signal)
{
    (void)signal;
    (void)kill(getpid(), SIGINT);
}

Test(cli_tools, a_signal_ends_it, .timeout = 20)
{
    static const char *const lines[] = {"sleep 9999", "exec >&-; sleep 9999"};

    for (int i = 0; i < 2; i++) {
        char *result;

        (void)signal(SIGALRM, interrupt);
        (void)alarm(1);
        cr_expect_eq(run(lines[i], NULL, 60, &result), EXIT_INTERRUPTED);
    }
}

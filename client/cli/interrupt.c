/* SPDX-License-Identifier: Apache-2.0 */
/* Signals as something to poll: the handler notes the signal and writes a byte into a pipe. Without
 * SA_RESTART, so that a write to a stuck stdout ends too. Only commands that have something to
 * cancel or to tidy up ask for it, and only from then on: until the prompt is read and the daemon
 * found, and in all other commands, signals do what they always do. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "client/cli/answer.h"

#include "base/hot.h"

static int fds[2] = {-1, -1};
static volatile sig_atomic_t first;

static void handler(int signal)
{
    int saved = errno;
    ssize_t n;

    if (!first) {
        first = signal;
    }
    n = write(fds[1], "", 1); /* full: a wake-up is pending anyway */
    (void)n;
    errno = saved;
}

int interrupt_init(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction old;
    struct sigaction sa = {.sa_handler = handler};
    struct sigaction ignore = {.sa_handler = SIG_IGN};

    if (fds[0] >= 0) {
        return 0;
    }
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) {
        return -errno;
    }
    (void)sigaction(SIGPIPE, &ignore, NULL);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        /* What the parent ignores (nohup, background jobs of plain shells) stays ignored. */
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) {
            (void)sigaction(signals[i], &sa, NULL);
        }
    }
    return 0;
}

int interrupt_fd(void)
{
    return fds[0];
}

HOT bool interrupt_noted(void)
{
    return first != 0;
}

int interrupt_take(void)
{
    char buf[16];
    int signal = first;

    while (read(fds[0], buf, sizeof(buf)) > 0) {
    }
    first = 0;
    return signal;
}

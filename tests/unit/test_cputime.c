/* SPDX-License-Identifier: Apache-2.0 */
/* base/cputime.h: whether threads are runnable, also by descriptors of a process that is hidden. */

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cputime.h"
#include "base/secret.h"
#include "base/sock.h"

enum { MOST = 8 };

static _Atomic bool ends;

static void *work(void *arg)
{
    while (!atomic_load(&ends)) {
    }
    return arg;
}

static void close_all(const int *fds, int n)
{
    for (int i = 0; i < n; i++) {
        (void)close(fds[i]);
    }
}

Test(cputime, a_running_thread_until_it_ends)
{
    pthread_t thread;
    int fds[MOST];
    int n;

    cr_assert_eq(pthread_create(&thread, NULL, work, NULL), 0);
    n = cputime_open_threads(fds, MOST);
    cr_assert(n >= 2 && n < MOST, "Criterion may have one of its own");
    for (int i = 0; i < n; i++) {
        cr_expect(cputime_is_state(fds[i]));
    }
    cr_expect(cputime_is_wanted(&fds[n - 1], 1), "the youngest runs");
    atomic_store(&ends, true);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    /* It is joined a little before it has left the kernel. */
    for (int i = 0; i < 10000 && cputime_is_wanted(&fds[n - 1], 1); i++) {
        (void)usleep(1000);
    }
    cr_expect_not(cputime_is_wanted(&fds[n - 1], 1), "it has ended");
    cr_expect(cputime_is_wanted(fds, n), "the first one runs");
    cr_expect(cputime_is_wanted_by(gettid()));
    close_all(fds, n);
    n = cputime_open_threads(fds, 1);
    cr_expect_eq(n, 1, "no more than there is room for");
    close_all(fds, n);
}

Test(cputime, a_pipe_is_no_state)
{
    int fds[2];

    cr_assert_eq(pipe(fds), 0);
    cr_expect_not(cputime_is_state(fds[0]));
    cr_expect_not(cputime_is_wanted(fds, 2));
    close_all(fds, 2);
}

/* The child hides, hands its states on, and then runs or sleeps. */
static pid_t start(int socket, bool runs)
{
    pid_t pid = fork();

    if (pid == 0) {
        int fds[SOCK_MAX_FDS];
        int n;

        secret_hide();
        n = cputime_open_threads(fds, SOCK_MAX_FDS);
        if (n != 1 || sock_send(socket, "s", 1, fds, n)) {
            _exit(1);
        }
        while (runs) {
        }
        (void)pause();
        _exit(0);
    }
    return pid;
}

/* That they are hidden from who opens them is shown in tests/e2e/test_supervision.py. */
Test(cputime, of_a_process_that_is_hidden)
{
    for (int runs = 0; runs < 2; runs++) {
        int pair[2];
        int fds[SOCK_MAX_FDS];
        int n = 0;
        char c;
        pid_t pid;
        bool wanted = true;

        cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
        pid = start(pair[1], runs);
        cr_assert_eq(sock_recv(pair[0], &c, 1, fds, &n), 1);
        cr_assert_eq(n, 1);
        /* It falls asleep at some time; one that runs never does. */
        for (int i = 0; i < (runs ? 20 : 10000) && wanted; i++) {
            wanted = cputime_is_wanted(fds, n);
            (void)usleep(1000);
        }
        cr_expect_eq(wanted, runs == 1);
        cr_assert_eq(kill(pid, SIGKILL), 0);
        cr_assert_eq(waitpid(pid, NULL, 0), pid);
        cr_expect_not(cputime_is_wanted(fds, n));
        close_all(fds, n);
        close_all(pair, 2);
    }
}

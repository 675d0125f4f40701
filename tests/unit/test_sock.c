/* SPDX-License-Identifier: Apache-2.0 */
/* base/sock.h at a connection's end: a peer that goes with something of ours unread loses nothing
 * of what it had sent, and is gone, not an error. */

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sock.h"

static int fd[2]; /* ours, the peer's */

static void setup(void)
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fd), 0);
}

static void teardown(void)
{
    (void)close(fd[0]);
}

TestSuite(sock, .init = setup, .fini = teardown);

Test(sock, what_was_sent_is_read_behind_a_reset)
{
    char buf[8];

    cr_assert_eq(sock_send(fd[0], "unread", 6, NULL, 0), 0);
    cr_assert_eq(sock_send(fd[1], "a", 1, NULL, 0), 0);
    cr_assert_eq(sock_send(fd[1], "bc", 2, NULL, 0), 0);
    (void)close(fd[1]);
    cr_assert_eq(sock_recv(fd[0], buf, sizeof(buf), NULL, NULL), 1);
    cr_assert_eq(sock_recv(fd[0], buf, sizeof(buf), NULL, NULL), 2);
    cr_assert_eq(sock_recv(fd[0], buf, sizeof(buf), NULL, NULL), 0);
    cr_assert_eq(sock_recv(fd[0], buf, sizeof(buf), NULL, NULL), 0);
}

Test(sock, descriptors_too)
{
    int got[SOCK_MAX_FDS];
    char buf[8];
    int n = 0;

    cr_assert_eq(sock_send(fd[0], "unread", 6, NULL, 0), 0);
    cr_assert_eq(sock_send(fd[1], "a", 1, (int[]){STDIN_FILENO}, 1), 0);
    (void)close(fd[1]);
    cr_assert_eq(sock_recv(fd[0], buf, sizeof(buf), got, &n), 1);
    cr_assert_eq(n, 1);
    (void)close(got[0]);
    cr_assert_eq(sock_recv(fd[0], buf, sizeof(buf), got, &n), 0);
    cr_assert_eq(n, 0);
}

Test(sock, who_is_gone_cannot_be_told)
{
    cr_assert_eq(sock_send(fd[0], "unread", 6, NULL, 0), 0);
    (void)close(fd[1]);
    cr_assert_eq(sock_send(fd[0], "x", 1, NULL, 0), -EPIPE);
    cr_assert_eq(sock_send(fd[0], "x", 1, NULL, 0), -EPIPE);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The gateway's lane when the front dies at any point of its opening, and later: always the end of
 * the lane (-EPIPE, of which a child says nothing), whether or not the front had read what it was
 * sent; but a refusal that it left is heard. */

#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/gateway/door.h"

enum { WAIT_MS = 2000 };

struct front {
    int fd;
    bool reads;
    bool refuses;
};

/* Waits for the hello, and goes. */
static void *front_main(void *arg)
{
    const struct front *f = arg;
    struct pollfd p = {.fd = f->fd, .events = POLLIN};
    struct lane_record r;

    cr_assert_eq(poll(&p, 1, WAIT_MS), 1);
    if (f->reads) {
        cr_assert_eq(recv(f->fd, &r, sizeof(r), 0), (ssize_t)sizeof(r));
    }
    if (f->refuses) {
        lane_record_init(&r, LANE_ERROR, NULL);
        r.error.code = LANE_ERR_BUSY;
        (void)strcpy(r.error.text, "no room");
        cr_assert_eq(send(f->fd, &r, sizeof(r), 0), (ssize_t)sizeof(r));
    }
    (void)close(f->fd);
    return NULL;
}

static int open_beside(struct front f, struct error *reterr)
{
    struct door d;
    pthread_t thread;
    int fd[2];
    int rc;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd), 0);
    f.fd = fd[1];
    cr_assert_eq(pthread_create(&thread, NULL, front_main, &f), 0);
    rc = door_open(&d, fd[0], WAIT_MS, reterr);
    (void)pthread_join(thread, NULL);
    cr_assert_eq(d.fd, -1);
    return rc;
}

Test(gateway_door, a_front_that_dies_is_the_end)
{
    for (int reads = 0; reads < 2; reads++) {
        struct error e = {0};

        cr_assert_eq(open_beside((struct front){.reads = reads}, &e), -EPIPE, "%s", e.text);
        cr_assert(strstr(e.text, "the front closed the lane"), "%s", e.text);
    }
}

Test(gateway_door, a_refusal_is_heard_though_the_hello_was_not)
{
    for (int reads = 0; reads < 2; reads++) {
        struct error e = {0};

        cr_assert_eq(open_beside((struct front){.reads = reads, .refuses = true}, &e),
                     -ECONNREFUSED);
        cr_assert(strstr(e.text, "no room"), "%s", e.text);
    }
}

Test(gateway_door, a_front_that_was_gone_before)
{
    struct error e = {0};
    struct door d;
    int fd[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd), 0);
    (void)close(fd[1]);
    cr_assert_eq(door_open(&d, fd[0], WAIT_MS, &e), -EPIPE, "%s", e.text);
}

/* Later: what is sent, and what is read. */
Test(gateway_door, an_open_lane_that_ends)
{
    for (int sends = 0; sends < 2; sends++) {
        struct lane_record r;
        struct error e = {0};
        struct door d = {0};
        int fd[2];

        cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fd), 0);
        d.fd = fd[0];
        lane_record_init(&r, LANE_PING, NULL);
        cr_assert_eq(door_send(&d, &r), 0);
        (void)close(fd[1]);
        if (sends) {
            cr_assert_eq(door_send(&d, &r), -EPIPE);
        }
        cr_assert_eq(door_receive(&d, &r, &e), -EPIPE);
        door_close(&d);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The scripted front (fake_front.h). It speaks records with its own few lines, not with the
 * client's, so that a mistake in the client's sending is not mirrored here. */

#include "tests/unit/fake_front.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"

enum { PATIENCE_MS = 2000 };

static void *thread_main(void *arg)
{
    struct fake_front *f = arg;

    f->script(f);
    return NULL;
}

static int make_arena(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, FAKE_ARENA_BYTES), 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    return fd;
}

void fake_front_start(struct fake_front *f, void (*script)(struct fake_front *f))
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    memset(f, 0, sizeof(*f));
    f->sock = -1;
    f->fds[0] = f->fds[1] = -1;
    f->script = script;
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/fake-front-XXXXXX");
    cr_assert(mkdtemp(f->dir));
    (void)snprintf(f->path, sizeof(f->path), "%s/lane.sock", f->dir);
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", f->path);
    f->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(f->listen_fd, (struct sockaddr *)&a, sizeof(a)), 0);
    cr_assert_eq(listen(f->listen_fd, 4), 0);
    cr_assert_eq(pthread_create(&f->thread, NULL, thread_main, f), 0);
}

void fake_front_stop(struct fake_front *f)
{
    (void)pthread_join(f->thread, NULL);
    fake_hang_up(f);
    if (f->listen_fd >= 0) {
        (void)close(f->listen_fd);
    }
    (void)unlink(f->path);
    (void)rmdir(f->dir);
}

static void wait_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    cr_assert_eq(poll(&p, 1, PATIENCE_MS), 1, "nothing came within %d ms", (int)PATIENCE_MS);
}

void fake_accept_only(struct fake_front *f)
{
    wait_readable(f->listen_fd);
    f->sock = accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    cr_assert_geq(f->sock, 0);
    f->n_lanes++;
}

void fake_hello_reply(struct fake_front *f, struct lane_record *ret)
{
    struct lane_record hello = fake_expect(f, LANE_HELLO);

    cr_assert_eq(hello.hello.abi_major, LANE_ABI_MAJOR);
    f->fds[0] = make_arena("c2e");
    f->fds[1] = make_arena("e2c");
    f->c2e = mmap(NULL, FAKE_ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, f->fds[0], 0);
    f->e2c = mmap(NULL, FAKE_ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, f->fds[1], 0);
    cr_assert(f->c2e != MAP_FAILED && f->e2c != MAP_FAILED);
    lane_record_init(ret, LANE_HELLO_REPLY, NULL);
    ret->hello_reply.magic = LANE_MAGIC;
    ret->hello_reply.abi_major = LANE_ABI_MAJOR;
    ret->hello_reply.record_bytes = LANE_RECORD_BYTES;
    ret->hello_reply.front_epoch = 7;
    ret->hello_reply.lane_id = f->n_lanes;
    ret->hello_reply.c2e_bytes = FAKE_ARENA_BYTES;
    ret->hello_reply.e2c_bytes = FAKE_ARENA_BYTES;
    ret->hello_reply.state = LANE_READY;
    ret->hello_reply.max_request_bytes = FAKE_REQUEST_BYTES;
    ret->hello_reply.max_lease_bytes = FAKE_ARENA_BYTES - FAKE_REQUEST_BYTES;
    ret->hello_reply.ctx = 512;
    ret->hello_reply.request_buf = 1;
    ret->hello_reply.request_generation = (uint32_t)f->n_lanes;
    memcpy(ret->hello_reply.model, "fake", 5);
}

void fake_send_hello(struct fake_front *f, const struct lane_record *r)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec io = {.iov_base = (void *)(uintptr_t)r, .iov_len = sizeof(*r)};
    struct msghdr m = {.msg_iov = &io,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);

    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(h), f->fds, 2 * sizeof(int));
    cr_assert_eq(sendmsg(f->sock, &m, MSG_NOSIGNAL), (ssize_t)sizeof(*r));
}

void fake_accept(struct fake_front *f)
{
    struct lane_record r;

    fake_accept_only(f);
    fake_hello_reply(f, &r);
    fake_send_hello(f, &r);
}

struct lane_record fake_expect(struct fake_front *f, uint32_t type)
{
    struct lane_record r;
    struct error e = {0};
    ssize_t n;

    wait_readable(f->sock);
    n = recv(f->sock, &r, sizeof(r), 0);
    cr_assert_eq(n, (ssize_t)sizeof(r), "wanted type %u, the client hung up (%zd)", type, n);
    cr_assert_eq(lane_record_check(&r, (uint64_t)n, LANE_PEER_CLIENT, &e), 0, "%s", e.text);
    cr_assert_eq(r.h.type, type, "wanted type %u, got %u", type, r.h.type);
    return r;
}

void fake_send(struct fake_front *f, const struct lane_record *r)
{
    cr_assert_eq(send(f->sock, r, sizeof(*r), MSG_NOSIGNAL), (ssize_t)sizeof(*r));
}

void fake_accepted(struct fake_front *f, const uint8_t id[16])
{
    struct lane_record r;

    lane_record_init(&r, LANE_ACCEPTED, id);
    r.h.seq = 1;
    fake_send(f, &r);
}

void fake_token(struct fake_front *f, const uint8_t id[16], uint64_t seq, const char *text)
{
    struct lane_record r;

    lane_record_init(&r, LANE_TOKEN, id);
    r.h.seq = seq;
    r.token.index = (int32_t)seq - 2;
    r.token.token = (int32_t)seq + 100;
    r.token.text_len = (uint16_t)strlen(text);
    memcpy(r.token.text, text, strlen(text));
    fake_send(f, &r);
}

void fake_done(struct fake_front *f, const uint8_t id[16], uint64_t seq, uint32_t reason)
{
    struct lane_record r;

    lane_record_init(&r, LANE_DONE, id);
    r.h.seq = seq;
    r.done.reason = reason;
    r.done.n_prompt = 3;
    r.done.n_new = (int32_t)seq - 2;
    fake_send(f, &r);
}

void fake_error(struct fake_front *f, const uint8_t id[16], uint32_t code, const char *text)
{
    struct lane_record r;

    lane_record_init(&r, LANE_ERROR, id);
    r.error.code = code;
    (void)snprintf(r.error.text, sizeof(r.error.text), "%s", text);
    fake_send(f, &r);
}

void fake_hang_up(struct fake_front *f)
{
    for (int i = 0; i < 2; i++) {
        if (f->fds[i] >= 0) {
            (void)close(f->fds[i]);
        }
        f->fds[i] = -1;
    }
    if (f->c2e) {
        (void)munmap(f->c2e, FAKE_ARENA_BYTES);
        (void)munmap(f->e2c, FAKE_ARENA_BYTES);
        f->c2e = f->e2c = NULL;
    }
    if (f->sock >= 0) {
        (void)close(f->sock);
        f->sock = -1;
    }
}

bool fake_wait_end(struct fake_front *f)
{
    char buf[LANE_RECORD_BYTES];
    ssize_t n;

    do {
        struct pollfd p = {.fd = f->sock, .events = POLLIN};

        if (poll(&p, 1, PATIENCE_MS) != 1) {
            return false;
        }
        n = recv(f->sock, buf, sizeof(buf), 0);
    } while (n > 0);
    return true;
}

void fake_pong(struct fake_front *f)
{
    struct lane_record r;

    lane_record_init(&r, LANE_PONG, NULL);
    r.hello_reply.magic = LANE_MAGIC;
    r.hello_reply.abi_major = LANE_ABI_MAJOR;
    r.hello_reply.state = LANE_READY;
    fake_send(f, &r);
}

struct pipit_client *fake_client(struct fake_front *f)
{
    struct pipit_client *c;
    struct pipit_error e = {0};

    cr_assert_eq(pipit_client_create(&c), 0);
    cr_assert_eq(pipit_client_set_runtime_dir(c, f->dir), 0);
    cr_assert_eq(pipit_client_connect(c, &e), 0, "%s", e.text);
    return c;
}

struct pipit_request *fake_ask(struct pipit_client *c, const char *prompt)
{
    struct pipit_request *q;
    struct pipit_error e = {0};

    cr_assert_eq(pipit_request_create(c, PIPIT_GENERATE, &q), 0);
    cr_assert_eq(pipit_request_set_prompt(q, prompt, strlen(prompt)), 0);
    cr_assert_eq(pipit_request_send(q, &e), 0, "%s", e.text);
    return q;
}

void fake_finish(struct pipit_request *q, struct fake_outcome *ret)
{
    const struct pipit_event *ev;
    int r;

    memset(ret, 0, sizeof(*ret));
    while ((r = pipit_request_next(q, 5000, &ev)) == 1) {
        size_t n = strlen(ret->text);

        switch (ev->type) {
        case PIPIT_EVENT_TOKEN:
        case PIPIT_EVENT_TEXT:
            (void)snprintf(ret->text + n, sizeof(ret->text) - n, "%s", ev->text);
            break;
        case PIPIT_EVENT_RESUMED:
            ret->resumed++;
            break;
        case PIPIT_EVENT_DONE:
            ret->reason = ev->done->reason;
            break;
        case PIPIT_EVENT_ERROR:
            ret->error = *ev->error;
            break;
        default:
            break;
        }
    }
    cr_assert_eq(r, 0, "next: %s", strerror(-r));
    cr_assert_eq(pipit_request_next(q, 0, &ev), 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation and system call of libpipit fails once while it connects, tokenizes through a
 * lease, asks, and asks again. A little front in a process of its own answers; what fails here must
 * be said or borne (a lost connection is made anew), and nothing may be left. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/pipit.h"
#include "proto/lane/record.h"
#include "tests/fault/fault.h"

enum { ARENA_BYTES = 65536, REQUEST_BYTES = 4096 };

/* ---- the front ---- */

static int arena(uint8_t **ret)
{
    int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, ARENA_BYTES) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)) {
        abort();
    }
    *ret = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return fd;
}

static void give(int sock, struct lane_record *r, uint64_t seq, const int *fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec io = {.iov_base = r, .iov_len = sizeof(*r)};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};

    r->h.seq = seq;
    if (fds) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(2 * sizeof(int));
        memcpy(CMSG_DATA(h), fds, 2 * sizeof(int));
    }
    (void)sendmsg(sock, &m, MSG_NOSIGNAL);
}

static void hello(int sock, uint8_t *arenas[2])
{
    int fds[2] = {arena(&arenas[0]), arena(&arenas[1])};
    struct lane_record r;

    lane_record_init(&r, LANE_HELLO_REPLY, NULL);
    r.hello_reply = (struct lane_hello_reply){
        .magic = LANE_MAGIC,
        .abi_major = LANE_ABI_MAJOR,
        .record_bytes = LANE_RECORD_BYTES,
        .c2e_bytes = ARENA_BYTES,
        .e2c_bytes = ARENA_BYTES,
        .state = LANE_READY,
        .max_request_bytes = REQUEST_BYTES,
        .max_lease_bytes = ARENA_BYTES,
        .request_buf = 1,
        .model = "fake",
    };
    give(sock, &r, 0, fds);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static void answer(int sock, const struct lane_record *ask, uint8_t *e2c)
{
    const uint8_t *id = ask->h.id;
    struct lane_record r;
    uint64_t seq = 1;

    lane_record_init(&r, LANE_ACCEPTED, id);
    give(sock, &r, seq++, NULL);
    if (ask->request.kind == LANE_KIND_TOKENIZE && ask->request.out_buf) {
        memset(e2c, 0, 8);
        lane_record_init(&r, LANE_BULK, id);
        r.bulk.kind = LANE_BULK_TOKENS;
        r.bulk.buf = 2;
        r.bulk.n_rows = 2;
        r.bulk.n_bytes = 8;
        give(sock, &r, seq++, NULL);
    } else {
        lane_record_init(&r, LANE_ALT, id);
        give(sock, &r, seq++, NULL);
        for (int i = 0; i < 2; i++) {
            lane_record_init(&r, LANE_TOKEN, id);
            r.token.text_len = 2;
            memcpy(r.token.text, "ab", 2);
            give(sock, &r, seq++, NULL);
        }
    }
    lane_record_init(&r, LANE_DONE, id);
    r.done.reason = LANE_REASON_STOP;
    give(sock, &r, seq, NULL);
}

static void serve(int sock)
{
    uint8_t *arenas[2] = {NULL, NULL};
    struct lane_record r;
    struct lane_record reply;

    while (recv(sock, &r, sizeof(r), 0) == (ssize_t)sizeof(r)) {
        switch (r.h.type) {
        case LANE_HELLO:
            hello(sock, arenas);
            break;
        case LANE_LEASE_GET:
            lane_record_init(&reply, LANE_LEASE, NULL);
            reply.lease = r.lease;
            reply.lease.buf = 2;
            give(sock, &reply, 0, NULL);
            break;
        case LANE_REQUEST:
            answer(sock, &r, arenas[1]);
            break;
        case LANE_RESUME: /* this front keeps nothing */
            lane_record_init(&reply, LANE_ERROR, r.h.id);
            reply.error.code = LANE_ERR_NOT_FOUND;
            reply.error.err = -EIO;
            give(sock, &reply, 0, NULL);
            break;
        default:
            break;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (arenas[i]) {
            (void)munmap(arenas[i], ARENA_BYTES);
        }
    }
    (void)close(sock);
}

static pid_t start_front(const char *dir)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    pid_t pid;

    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/lane.sock", dir);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 8) || (pid = fork()) < 0) {
        abort();
    }
    while (pid == 0) {
        serve(accept(fd, NULL, NULL));
    }
    (void)close(fd);
    return pid;
}

/* ---- the client ---- */

static int tell(struct error *reterr, int r, const struct pipit_error *e, const char *what)
{
    return error_set(reterr, r, "%s: %s", what, e->text[0] ? e->text : strerror(-r));
}

static int ask(struct pipit_client *c, struct error *reterr)
{
    struct pipit_request *q = NULL;
    const struct pipit_event *ev;
    struct pipit_error e = {0};
    int r = pipit_request_create(c, PIPIT_CHAT, &q);

    if (r == 0) {
        r = pipit_request_add_message(q, "user", "hello", 5);
    }
    if (r == 0) {
        r = pipit_request_add_stop(q, "x", 1);
    }
    if (r == 0) {
        r = pipit_request_send(q, &e);
    }
    while (r == 0 && (r = pipit_request_next(q, 5000, &ev)) == 1) {
        bool ok = ev->type != PIPIT_EVENT_ERROR;

        r = ok ? 0 : ev->error->err;
        if (!ok) {
            e = *ev->error;
        } else if (ev->type == PIPIT_EVENT_DONE) {
            break;
        }
    }
    if (r == -ESTALE) { /* the front of this test forgets; the cause was the fault before */
        r = -EIO;
    }
    pipit_request_destroy(q);
    return r < 0 ? tell(reterr, r, &e, "ask") : 0;
}

static int converse(void *arg, struct error *reterr)
{
    struct pipit_client *c = NULL;
    struct pipit_error e = {0};
    int32_t *ids = NULL;
    size_t n;
    int r = pipit_client_create(&c);

    if (r == 0) {
        r = pipit_client_set_runtime_dir(c, arg);
    }
    if (r == 0) {
        r = pipit_client_set_timeout_ms(c, 500);
    }
    if (r == 0) {
        r = pipit_client_connect(c, &e);
    }
    if (r == 0) {
        r = pipit_client_tokenize(c, "hello", 5, 0, &ids, &n, &e);
    }
    r = r < 0 ? tell(reterr, r, &e, "connect and tokenize") : ask(c, reterr);
    if (r == 0) {
        r = ask(c, reterr);
    }
    free(ids);
    pipit_client_destroy(c);
    return r;
}

int main(void)
{
    char dir[] = "/tmp/fault-client-XXXXXX";
    char path[64];
    int n;

    if (!mkdtemp(dir)) {
        return 1;
    }
    pid_t pid = start_front(dir);
    n = fault_loop("libpipit", converse, dir);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    (void)snprintf(path, sizeof(path), "%s/lane.sock", dir);
    (void)unlink(path);
    (void)rmdir(dir);
    return n < 20;
}

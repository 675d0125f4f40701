/* SPDX-License-Identifier: Apache-2.0 */
/* A row of logits from an engine to a client at the pace of tokens: through a lease (the row is
 * written once, into memory that both map, and a record of 256 bytes tells of it) and through
 * ZeroMQ over ipc:// (the row is the message). Two processes: the producer makes the row by
 * arithmetic on every number, as a copy from elsewhere would be another copy, and the consumer
 * looks at every number (its maximum). Both do so in either way and with nothing sent at all, which
 * is subtracted: what is left is what the way costs, CPU time of all threads of both processes.
 *
 * usage: logits PACE_MS STEPS NUMBERS
 * A line a way: its name, µs of CPU a step in producer and consumer, bytes copied a step by design.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"

enum {
    RECORD_BYTES = 256,
    WINDOW = 4,
    NUMBERS_MAX = 1 << 24,
    WARM_UP = 20,
    LINGER_MS = 1000,
    COPIES_ZMQ = 3
};
enum way { WAY_NONE, WAY_LEASE, WAY_ZMQ };

struct run {
    enum way way;
    int64_t pace_ns;
    long steps;
    size_t n;      /* numbers a row */
    float *shared; /* (WINDOW, n) */
    int pair[2];   /* SOCK_SEQPACKET */
    char endpoint[64];
};

static double cpu_us(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Of the calling thread alone: while it spins, libzmq's thread copies the row before. */
static double thread_us(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void make_row(float *row, size_t n, long step)
{
    for (size_t i = 0; i < n; i++) {
        row[i] = (float)((i * 2654435761u + (size_t)step) & 0xffff);
    }
}

static float look_at(const float *row, size_t n)
{
    float most = row[0];

    for (size_t i = 1; i < n; i++) {
        most = row[i] > most ? row[i] : most;
    }
    return most;
}

/* A process's end of WAY_ZMQ, and a row of its own. */
struct peer {
    void *context;
    void *socket;
    float *own; /* (n) */
};

static int open_peer(struct peer *p, const struct run *r, bool binds)
{
    int n = 0;

    *p = (struct peer){.own = calloc(r->n, sizeof(*p->own))};
    if (!p->own) {
        return -ENOMEM;
    }
    if (r->way != WAY_ZMQ) {
        return 0;
    }
    p->context = zmq_ctx_new();
    p->socket = p->context ? zmq_socket(p->context, ZMQ_PAIR) : NULL;
    if (!p->socket || zmq_setsockopt(p->socket, ZMQ_SNDHWM, &n, sizeof(n)) ||
        zmq_setsockopt(p->socket, ZMQ_LINGER, &(int){LINGER_MS}, sizeof(int)) ||
        (binds ? zmq_bind(p->socket, r->endpoint) : zmq_connect(p->socket, r->endpoint))) {
        return -errno;
    }
    return 0;
}

/* Waits until what was sent is gone, LINGER_MS at most. */
static void close_peer(struct peer *p)
{
    free(p->own);
    if (p->socket) {
        (void)zmq_close(p->socket);
    }
    if (p->context) {
        (void)zmq_ctx_term(p->context);
    }
}

static void wait_until(int64_t until)
{
    while (clock_ns() < until) {
    }
}

/* CPU time that is not waiting: the producer spins at its pace, and so that time is left out. */
static int produce(const struct run *r, double *ret_us)
{
    struct peer p;
    uint8_t record[RECORD_BYTES] = {0};
    double spun = 0;
    double began = 0;
    int rc = open_peer(&p, r, true);

    for (long i = 0; !rc && i < r->steps + WARM_UP; i++) {
        double before = thread_us();

        wait_until(clock_ns() + r->pace_ns);
        spun += thread_us() - before;
        if (i == WARM_UP) {
            began = cpu_us();
            spun = 0;
        }
        float *row = r->way == WAY_LEASE ? r->shared + (size_t)(i % WINDOW) * r->n : p.own;

        make_row(row, r->n, i);
        if (r->way == WAY_LEASE) {
            rc = send(r->pair[0], record, sizeof(record), MSG_NOSIGNAL) < 0 ? -errno : 0;
        } else if (r->way == WAY_ZMQ) {
            rc = zmq_send(p.socket, row, r->n * sizeof(*row), 0) < 0 ? -errno : 0;
        }
    }
    *ret_us = (cpu_us() - began - spun) / (double)r->steps;
    close_peer(&p);
    return rc;
}

static int consume(const struct run *r, double *ret_us)
{
    struct peer p;
    uint8_t record[RECORD_BYTES];
    volatile float seen = 0;
    double began = 0;
    int rc = open_peer(&p, r, false);

    for (long i = 0; !rc && i < r->steps + WARM_UP; i++) {
        zmq_msg_t m;

        if (i == WARM_UP) {
            began = cpu_us();
        }
        if (r->way == WAY_LEASE) {
            rc = recv(r->pair[1], record, sizeof(record), 0) == sizeof(record) ? 0 : -EPIPE;
            seen = seen + look_at(r->shared + (size_t)(i % WINDOW) * r->n, r->n);
        } else if (r->way == WAY_ZMQ) {
            (void)zmq_msg_init(&m);
            rc = zmq_msg_recv(&m, p.socket, 0) == (int)(r->n * sizeof(float)) ? 0 : -EPIPE;
            seen = seen + (rc ? 0 : look_at(zmq_msg_data(&m), r->n));
            (void)zmq_msg_close(&m);
        } else {
            struct timespec pause = {.tv_nsec = (long)r->pace_ns};

            (void)nanosleep(&pause, NULL);
            seen = seen + look_at(p.own, r->n);
        }
    }
    *ret_us = (cpu_us() - began) / (double)r->steps;
    close_peer(&p);
    return rc;
}

/* The consumer is a child; its figure comes through a pipe. */
static int run_way(struct run *r, double ret_us[2])
{
    int fds[2];
    pid_t pid;
    int status = 0;
    int rc;

    if (pipe(fds) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, r->pair)) {
        return -errno;
    }
    pid = fork();
    if (pid == 0) {
        double us = 0;

        (void)close(r->pair[0]);
        rc = consume(r, &us);
        _exit(rc || write(fds[1], &us, sizeof(us)) != sizeof(us) ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    if (pid < 0) {
        return -errno;
    }
    (void)close(r->pair[1]);
    rc = produce(r, &ret_us[0]);
    (void)close(r->pair[0]);
    (void)waitpid(pid, &status, 0);
    if (!rc && (status || read(fds[0], &ret_us[1], sizeof(ret_us[1])) != sizeof(ret_us[1]))) {
        rc = -EPIPE;
    }
    (void)close(fds[0]);
    (void)close(fds[1]);
    return rc;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"none", "lease", "zeromq"};
    double pace_ms = argc > 1 ? strtod(argv[1], NULL) : 0;
    struct run r = {.steps = argc > 2 ? strtol(argv[2], NULL, 10) : 0,
                    .n = argc > 3 ? strtoul(argv[3], NULL, 10) : 0};

    if (pace_ms <= 0 || r.steps < 1 || r.n < 1 || r.n > NUMBERS_MAX) {
        (void)fputs("usage: logits PACE_MS STEPS NUMBERS\n", stderr);
        return 2;
    }
    r.pace_ns = (int64_t)(pace_ms * 1e6);
    r.shared = mmap(NULL, WINDOW * r.n * sizeof(float), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r.shared == MAP_FAILED) {
        perror("logits");
        return EXIT_FAILURE;
    }
    (void)snprintf(r.endpoint, sizeof(r.endpoint), "ipc://@pipit-logits-%d", (int)getpid());
    for (r.way = WAY_NONE; r.way <= WAY_ZMQ; r.way++) {
        /* Into the message, the socket, and out of it. */
        size_t copied = r.way == WAY_ZMQ     ? COPIES_ZMQ * r.n * sizeof(float)
                        : r.way == WAY_LEASE ? 2 * RECORD_BYTES
                                             : 0;
        double us[2] = {0};
        int rc = run_way(&r, us);

        if (rc) {
            (void)fprintf(stderr, "logits: %s: %s\n", names[r.way], strerror(-rc));
            return EXIT_FAILURE;
        }
        (void)printf("%s,%.1f,%.1f,%zu\n", names[r.way], us[0], us[1], copied);
    }
    return EXIT_SUCCESS;
}

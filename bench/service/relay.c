/* SPDX-License-Identifier: Apache-2.0 */
/* What a process costs that does nothing but wait for a record and pass it on: the floor below
 * overhead.py's figures on this machine. A chain of processes over SOCK_SEQPACKET, each blocking in
 * recv(2); the first is fed at the pace of tokens by a producer that keeps its own CPU busy
 * meanwhile, as an engine does, and stands for the engine's I/O thread. One line a stage:
 * its number and its CPU time a record in µs.
 *
 * usage: relay PACE_MS RECORDS STAGES */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { RECORD_BYTES = 256, WARM_UP = 20, STAGES_MAX = 16 };

static int64_t cpu_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Until the chain is closed above it; out -1: the last. */
static int stage(int i, int in, int out)
{
    uint8_t record[RECORD_BYTES];
    int64_t began = 0;
    int64_t n = 0;

    for (; recv(in, record, sizeof(record), 0) > 0; n++) {
        if (n == WARM_UP) {
            began = cpu_ns();
        }
        if (out >= 0 && send(out, record, sizeof(record), MSG_NOSIGNAL) < 0) {
            return EXIT_FAILURE;
        }
    }
    if (n > WARM_UP) {
        (void)printf("%d,%.2f\n", i, (double)(cpu_ns() - began) / 1e3 / (double)(n - WARM_UP));
    }
    return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Its number, the first being 0; the producer's is -1. Each keeps the two ends it needs. */
static int make_chain(int n_stages, int *ret_in, int *ret_out)
{
    int in = -1;

    for (int i = 0; i <= n_stages; i++) {
        int pair[2] = {-1, -1};
        pid_t pid;

        if (i < n_stages && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair)) {
            return -errno;
        }
        if (i == 0) { /* the producer writes to the first pair and is the parent of all */
            in = pair[1];
            *ret_out = pair[0];
            continue;
        }
        pid = fork();
        if (pid < 0) {
            return -errno;
        }
        if (pid == 0) {
            (void)close(*ret_out);
            if (pair[1] >= 0) {
                (void)close(pair[1]);
            }
            *ret_in = in;
            *ret_out = pair[0];
            return i - 1;
        }
        (void)close(in);
        if (pair[0] >= 0) {
            (void)close(pair[0]);
        }
        in = pair[1];
    }
    return n_stages;
}

int main(int argc, char **argv)
{
    double pace_ms = argc > 1 ? strtod(argv[1], NULL) : 0;
    long n = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
    long n_stages = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    uint8_t record[RECORD_BYTES] = {0};
    int in = -1;
    int out = -1;
    int me;

    if (pace_ms <= 0 || n <= 0 || n_stages < 1 || n_stages > STAGES_MAX) {
        (void)fputs("usage: relay PACE_MS RECORDS STAGES\n", stderr);
        return 2;
    }
    me = make_chain((int)n_stages, &in, &out);
    if (me < 0) {
        (void)fprintf(stderr, "relay: %s\n", strerror(-me));
        return EXIT_FAILURE;
    }
    if (me < n_stages) {
        return stage(me, in, out);
    }
    for (long i = 0; i < n + WARM_UP; i++) {
        int64_t until = clock_ns() + (int64_t)(pace_ms * 1e6);

        while (clock_ns() < until) {
        }
        if (send(out, record, sizeof(record), MSG_NOSIGNAL) < 0) {
            return EXIT_FAILURE;
        }
    }
    (void)close(out);
    while (wait(NULL) > 0) {
    }
    return EXIT_SUCCESS;
}

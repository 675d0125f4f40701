/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_UNIT_FAKE_FRONT_H
#define PIPIT_TESTS_UNIT_FAKE_FRONT_H

/* A front for tests of the client: a listening socket in a folder of its own and a thread that runs
 * a script of the test, record by record. The script fails the test when a record it expects does
 * not come within two seconds. */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/pipit.h"
#include "proto/lane/record.h"

enum { FAKE_ARENA_BYTES = 65536, FAKE_REQUEST_BYTES = 4096 };

struct fake_front {
    char dir[64];
    char path[80];
    int listen_fd;
    pthread_t thread;
    void (*script)(struct fake_front *f);
    void *user;
    /* the connection that the script holds */
    int sock;
    int fds[2]; /* c2e, e2c */
    uint8_t *c2e;
    uint8_t *e2c;
    uint64_t n_lanes;
};

void fake_front_start(struct fake_front *f, void (*script)(struct fake_front *f));
/* Waits for the script to end. */
void fake_front_stop(struct fake_front *f);

/* For scripts. */
void fake_accept_only(struct fake_front *f);
void fake_accept(struct fake_front *f); /* and hello */
void fake_hello_reply(struct fake_front *f, struct lane_record *ret);
void fake_send_hello(struct fake_front *f, const struct lane_record *r);
struct lane_record fake_expect(struct fake_front *f, uint32_t type);
void fake_send(struct fake_front *f, const struct lane_record *r);
void fake_accepted(struct fake_front *f, const uint8_t id[16]);
void fake_token(struct fake_front *f, const uint8_t id[16], uint64_t seq, const char *text);
void fake_done(struct fake_front *f, const uint8_t id[16], uint64_t seq, uint32_t reason);
void fake_error(struct fake_front *f, const uint8_t id[16], uint32_t code, const char *text);
void fake_pong(struct fake_front *f);
void fake_hang_up(struct fake_front *f);
/* True once the client closed its end; reads and forgets what it still sends. */
bool fake_wait_end(struct fake_front *f);

/* The other side: a client connected to it, a request sent, and a request run to its end. */
struct fake_outcome {
    char text[512];
    int resumed;
    uint32_t reason; /* 0: an error */
    struct pipit_error error;
};
struct pipit_client *fake_client(struct fake_front *f);
struct pipit_request *fake_ask(struct pipit_client *c, const char *prompt);
void fake_finish(struct pipit_request *q, struct fake_outcome *ret);

#endif

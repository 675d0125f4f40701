/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_QUESTIONS_H
#define PIPIT_DAEMON_GATEWAY_QUESTIONS_H

/* What clients ask of the daemon that is no request: its status with who holds the cache, and their
 * own saved conversations. The front answers with a text in the gateway's one lease for such, so
 * one question is under way at a time and the others wait in order: no answer is written over
 * another, or read by another user. Whose sessions is said by the uid of the connection.
 *
 * Each is asked under a random id of its own, which the answer bears: what bears another one is for
 * nobody, and an error without one, from which nothing can be told, ends the question. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/lane/record.h"

struct gateway;

enum {
    QUESTIONS_MAX = 256,
    QUESTIONS_PER_CLIENT = 4,
    QUESTIONS_PER_UID = QUESTIONS_MAX / 4, /* one has many sockets */
    QUESTIONS_TEXT = 16 << 10
};

enum question_op { QUESTION_STATUS, QUESTION_LIST, QUESTION_REMOVE };

struct question {
    enum question_op op;
    uint64_t client; /* handle */
    uint32_t uid;
    uint8_t id[16];
    char name[LANE_SESSION_NAME + 8]; /* to remove; to list: the last that is known */
};

struct questions {
    struct question ring[QUESTIONS_MAX];
    uint32_t head;
    uint32_t tail;
    bool asked;      /* the one at the tail */
    uint8_t id[16];  /* that it was asked under */
    bool has_status; /* and its status has come; its text has not */
    struct lane_status status;
    char text[QUESTIONS_TEXT + 1];
};

/* False: full, or this client or user has enough waiting. */
bool questions_push(struct gateway *g, const struct question *q);

/* Does it bear the id of the question that was asked? */
bool questions_own(const struct gateway *g, const struct lane_record *r);

/* A record without an id, or with that one: true when it answers the question that was asked. */
bool questions_record(struct gateway *g, const struct lane_record *r);

#endif

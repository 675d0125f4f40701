/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_REQUESTS_H
#define PIPIT_DAEMON_GATEWAY_REQUESTS_H

/* The requests under way on the gateway's lane, by their 16-byte ids, and what the gateway gathers
 * for each: alternatives until their token comes, the whole text of a unary request. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/lane/record.h"

enum {
    REQUESTS_MAX = 1024,
    REQUESTS_PER_CLIENT = 64,
    REQUESTS_PER_UID = 256,
    REQUESTS_ALTS = 20,
    REQUESTS_GATHER_BYTES = 1 << 20, /* of a unary request: text, reasoning and calls */
    REQUESTS_GATHER_STEP = 64 << 10, /* by which what is gathered grows */
    /* Ids and log-probabilities of a unary request that is a sequence in the engine, as the plan has
     * them; and all that is gathered for requests that are none, or may be none: together, and for
     * one user. */
    REQUESTS_IDS_BYTES = 256 << 10,
    REQUESTS_SHARED_BYTES = 4 << 20,
    REQUESTS_SHARED_UID = REQUESTS_SHARED_BYTES / 2,
    REQUESTS_CALLS = 64,
};

struct gathered_text {
    uint8_t *at;
    size_t n;
    size_t cap;
};

/* A call of a tool: its bytes lie in gathered.called, one behind the other. */
struct gathered_call {
    uint32_t name_bytes;
    uint32_t arguments_bytes;
};

struct gathered {
    struct gathered_text text;
    int32_t *tokens;
    float *logprobs; /* as many as tokens */
    size_t n_tokens;
    size_t cap_tokens;
    struct gathered_text reasoning;
    struct gathered_text called;
    struct gathered_call *calls; /* (REQUESTS_CALLS), or NULL */
    size_t n_calls;
};

struct request {
    bool used;
    uint8_t id[16];
    uint32_t uid;
    uint32_t tenant_len;
    uint8_t tenant[64];
    uint64_t client;  /* handle: who gets the events; 0: nobody now */
    uint64_t watcher; /* handle: who asked to cancel it from another socket; gets the last event */
    uint32_t kind;    /* enum lane_kind; 0: resumed from before this gateway's start */
    int buf;          /* request buffer lent until LANE_ACCEPTED, or -1 */
    bool unary;
    bool detach;
    bool logprobs;
    bool scoring;   /* holds the score buffer */
    bool leased;    /* named an output lease of its client's; never known of a resumed one */
    bool slow;      /* its client stopped reading: the rest is dropped, the reason rewritten */
    bool cancelled; /* LANE_CANCEL was sent */
    bool resuming;  /* drop events until the one of next_seq */
    uint64_t next_seq;
    int64_t orphan_ns; /* cancel it then, 0: never */
    uint16_t n_alts;
    struct lane_alt alts[REQUESTS_ALTS];
    struct gathered gathered;
    int32_t next; /* in its hash chain, -1: last */
};

struct requests {
    struct request slots[REQUESTS_MAX];
    int32_t heads[REQUESTS_MAX]; /* hash chains */
    uint64_t hash_key;
    int n_used;
    int n_orphans; /* with orphan_ns set */
};

void requests_init(struct requests *r, uint64_t hash_key);
void requests_finish(struct requests *r);

struct request *requests_find(struct requests *r, const uint8_t id[16]); /* or NULL */
struct request *requests_add(struct requests *r, const uint8_t id[16]);  /* NULL: full */
void requests_remove(struct requests *r, struct request *q);

bool requests_owned(const struct request *q, uint32_t uid, const uint8_t *tenant, size_t n);
int requests_count_uid(const struct requests *r, uint32_t uid);
void requests_set_orphan(struct requests *r, struct request *q, int64_t deadline_ns); /* 0: no more */

/* Adds to what is gathered for a request. -E2BIG over a limit of its own, -ENOMEM; -EBUSY: over
 * REQUESTS_SHARED_BYTES or REQUESTS_SHARED_UID. */
int requests_gather_text(const struct requests *r, struct request *q, enum lane_part part,
                         const uint8_t *text, size_t n) WARN_UNUSED;
/* Log-probabilities are kept but for texts that are tokenized, which have none. */
int requests_gather_token(const struct requests *r, struct request *q, int32_t token,
                          float logprob) WARN_UNUSED;
void requests_gather_clear(struct request *q);

#endif

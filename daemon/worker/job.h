/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_JOB_H
#define PIPIT_DAEMON_WORKER_JOB_H

/* One request in the worker thread, from its record to its LANE_DONE. A job is made, decoded and
 * submitted between two steps; while it runs it allocates nothing. Requests that only tokenize are
 * another thread's (texts.h) from their first look on.
 *
 * Replay: the ids that were said before a crash go through detokenizer and stop strings here again,
 * without being sent, so that both are in the state they were in; what they would have said beyond
 * what was sent (the engine died between two records of one token) is sent now. */

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/session.h"
#include "daemon/worker/worker.h"
#include "engine/text/calls/calls.h"
#include "engine/text/detok.h"
#include "engine/text/stop.h"

struct job {
    struct worker *worker;
    uint8_t id[16];  /* of records: the front's number */
    uint64_t handle; /* the engine's; 0: not submitted */
    uint32_t kind;   /* enum lane_kind */
    uint32_t flags;  /* enum lane_flag */
    uint64_t seed;
    struct mapping *mapping; /* held while a lease is in use */

    struct detok detok;
    struct stop stop;
    struct calls *calls;       /* NULL: the answer is one text */
    struct lane_record *waits; /* a token's record whose text is not known yet, or NULL */
    int32_t n_names;           /* calls that were told */
    uint64_t skip_text;        /* bytes that were sent before a crash */
    int32_t index;             /* of the last new token */
    uint32_t n_forced;
    uint32_t stop_reason; /* enum lane_reason it was told to end with; 0: none */

    int32_t *prompt; /* (n_prompt) kept for SCORE without a lease, else NULL */
    int32_t n_prompt;
    int32_t score_first;

    /* The output lease. */
    float *out_logprobs;  /* SCORE; in e2c */
    uint32_t logits_rows; /* 0: no logits wanted */
    int64_t credit;       /* rows that its reader allowed before the engine had it */
    uint32_t out_buf;
    uint32_t out_generation;
    uint64_t logits_offset; /* of the window in the lease */

    /* A saved conversation, session.dir -1 for none. */
    struct session session;
    char policy[SESSION_POLICY_MAX]; /* canonical */
    int32_t *text;                   /* (n_text) prompt, and what was said */
    size_t n_text;
    size_t cap_text;
    int32_t n_first; /* of the prompt's tokens, those that the engine is told to be its prompt */
    int32_t n_again; /* and the others, which it takes one by one, as new ones that are given */
    uint32_t ended;  /* enum lane_reason: it had said all before a crash, and is only to be saved */
    uint32_t saved;  /* enum lane_session_state */
    uint64_t saved_bytes;
    struct error save_error;
    /* While it is the saver's. */
    struct job *next_save;
    struct engine_usage save_usage;
    uint32_t save_reason; /* enum lane_reason */
    uint64_t save_bytes;  /* of the snapshot */
    size_t save_least;
    uint64_t save_said; /* records that the client is to have before the file has its name */

    /* While it is the loader's, and what that said. */
    struct lane_record rec; /* the request's */
    struct job *next_load;
    struct job *next_text; /* of those whose text waits to be read */
    bool loads;            /* it is, or was */
    bool loading;          /* it is: not begun yet */
    atomic_bool load_stop;
    int32_t load_vocab; /* ids are below */
    int load_rc;
    struct error load_error;
    bool reads;    /* the tokenizing thread makes the ids of its prompt: not begun yet */
    bool has_read; /* it did */

    /* One that only tokenizes, the thread's from texts_take() on; or a prompt of text. */
    const volatile int32_t *text_ids; /* (n_text_ids) in the token lease */
    size_t n_text_ids;
    uint64_t text_counts[2]; /* of its error */

    struct job *next;
};

/* A record LANE_ENGINE_REQUEST, answered or begun. `dir`: its user's folder of sessions, or -1. */
void job_start(struct worker *w, const struct lane_record *rec, int dir);

/* The loader is through with its session, or its prompt has its ids: it is begun, or answered. */
void job_loaded(struct job *j);
void job_read(struct job *j);
bool job_reads(const struct job *j);

/* Its answer is complete, and its sequence still there: is its session being saved now? Then its
 * LANE_DONE is said when that is over. */
bool job_save(struct job *j, const struct engine_event *done);

struct job *job_find(const struct worker *w, const uint8_t id[16]);

/* It will end for this reason; one whose session waits to be read has ended, and is freed. Whose
 * prompt is read ends when that is over. */
void job_cancel(struct worker *w, struct job *j, uint32_t reason);

/* Its reader has room for so many rows in all. */
void job_credit(struct job *j, int64_t n_rows);

/* Frees a job whose last record was sent. */
void job_end(struct worker *w, struct job *j);

#endif

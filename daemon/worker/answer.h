/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_ANSWER_H
#define PIPIT_DAEMON_WORKER_ANSWER_H

/* From the engine's events to records: detokenizing, stop strings, splitting of long texts, bulk
 * data announced, errno turned into the lane's error codes. */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"

struct calls_format;
struct job;
struct json_t;
struct lane_record;
struct tok;
struct worker;

/* engine_emit: arg is the worker. */
void answer_event(void *arg, const struct engine_event *ev);

/* A LANE_ERROR for an errno; with -EMSGSIZE and -E2BIG the counts. */
void answer_error(struct worker *w, const uint8_t id[16], const struct error *e, uint64_t count_a,
                  uint64_t count_b);

/* The same, made and not sent. */
void answer_error_record(const uint8_t id[16], const struct error *e, uint64_t count_a,
                         uint64_t count_b, struct lane_record *ret);

/* The text of ids that were said before a crash, through detokenizer and stop strings; sends what
 * had not been sent. */
void answer_replay(struct job *j, const int32_t *ids, uint32_t n);
/* Says the ids from `from` on as new tokens, whose log-probabilities nobody knows any more. */
void answer_said(struct job *j, const int32_t *ids, uint32_t from, uint32_t n);

/* enum lane_reason */
uint32_t answer_reason(const struct job *j, enum engine_reason reason);

/* A job that wants its answer in parts has them read; `tools` may be NULL. Not while it answers. */
int answer_take_parts(struct job *j, const struct calls_format *format, struct json_t *tools,
                      struct error *reterr) WARN_UNUSED;

/* LANE_DONE of a job that the engine never had, or has no more to say about. */
void answer_done(struct job *j, uint32_t reason, const struct engine_usage *usage);
/* LANE_DONE of a job that was told to end before it was begun. */
void answer_stopped(struct job *j);

/* `len` bytes of whole characters as LANE_TEXT records. */
void answer_text(struct worker *w, const uint8_t id[16], int32_t index, const char *text,
                 size_t len);
/* The first of these records; the number of bytes in it. */
size_t answer_text_record(const uint8_t id[16], int32_t index, const char *text, size_t len,
                          struct lane_record *ret);

#endif

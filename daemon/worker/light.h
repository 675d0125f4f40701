/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_LIGHT_H
#define PIPIT_DAEMON_WORKER_LIGHT_H

/* Requests that need the tokenizer and no device: answered at once, between two steps. On success
 * the job is gone; an error is the caller's to send. */

#include "base/error.h"

struct ask;
struct ask_source;
struct job;
struct lane_engine_request;

int light_tokenize(struct job *j, const struct ask *a, const struct ask_source *s,
                   const struct lane_engine_request *e, struct error *reterr) WARN_UNUSED;
int light_detokenize(struct job *j, const struct ask *a, const struct ask_source *s,
                     struct error *reterr) WARN_UNUSED;

#endif

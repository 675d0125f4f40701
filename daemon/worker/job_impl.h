/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_JOB_IMPL_H
#define PIPIT_DAEMON_WORKER_JOB_IMPL_H

/* What the files of a job share: job.c (life and submission), job_session.c, job_output.c. */

#include "daemon/worker/ask.h"
#include "daemon/worker/job.h"

/* Counts for the client beside an error's text. */
struct job_counts {
    uint64_t a;
    uint64_t b;
};

/* job_output.c. Where log-probabilities, logits and embeddings go; the engine's part of it in `q`. */
int job_lay_output(struct job *j, const struct lane_engine_request *e, bool logits,
                   struct engine_request *q, struct job_counts *c,
                   struct error *reterr) WARN_UNUSED;

/* job.c. The ids of the prompt, behind a session's text where there is one: on the tokenizing
 * thread, or on the worker's where the prompt is ids already. */
int job_prompt(struct job *j, const struct ask *a, const struct ask_source *source,
               struct error *reterr) WARN_UNUSED;

/* job_session.c */
/* Opens the session that the request names in the folder `dir`, which the job closes. 1: its file
 * is read first, and job_loaded() continues. */
int job_open_session(struct job *j, const struct ask *a, const struct lane_engine_request *e,
                     int dir, struct error *reterr) WARN_UNUSED;
/* Does the session hold this request's turn already? */
bool job_is_saved(const struct job *j, const struct lane_engine_request *e);
/* The policy's canonical text, which the session is saved with. */
void job_note_policy(struct job *j, const struct ask *a);
/* The session's text, and behind it what the request adds. */
int job_go_on(struct job *j, const struct ask *a, const struct ask_source *source, size_t *ret_n,
              struct error *reterr) WARN_UNUSED;
/* Which of the prompt's tokens the engine reads as a prompt, and which one by one. */
void job_split_prompt(struct job *j);
/* Memory for the whole text, which is saved. */
int job_keep_text(struct job *j, const struct ask *a, const int32_t *forced,
                  struct error *reterr) WARN_UNUSED;
/* Says of a file's fault that the request is not to blame. */
int job_bad_file(int rc, struct error *reterr) WARN_UNUSED;
/* Around what may wait for a disk on the worker thread: meanwhile the I/O thread reports health. */
void job_files_begin(struct worker *w);
void job_files_end(struct worker *w);

#endif

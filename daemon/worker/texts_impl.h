/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_TEXTS_IMPL_H
#define PIPIT_DAEMON_WORKER_TEXTS_IMPL_H

/* What texts.c (threads, turns, health) and texts_convert.c (texts and ids) share. */

#include "daemon/worker/texts.h"

/* texts.c. A sign of life of the thread that reads. */
void texts_alive(struct texts *t);
/* Between two records of a job that is being said: reads one short prompt, where one waits. */
void texts_short_prompt(struct texts *t);

/* texts_convert.c. Answers a job that only tokenizes or detokenizes. */
void texts_serve(struct job *j);
/* Of the job only what is its own is used: its session is closed by nobody else meanwhile. */
int texts_prompt_ids(struct job *j, struct error *reterr) WARN_UNUSED;

#endif

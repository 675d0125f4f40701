/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_LIGHT_IMPL_H
#define PIPIT_DAEMON_WORKER_LIGHT_IMPL_H

/* What light.c (threads, turns, health) and light_text.c (texts and ids) share. */

#include "daemon/worker/light.h"

/* light.c. A sign of life of the thread that reads. */
void light_alive(struct light *l);
/* Between two records of a job that is being said: reads one short prompt, where one waits. */
void light_short_prompt(struct light *l);

/* light_text.c. Answers a job that only tokenizes or detokenizes. */
void light_serve(struct job *j);
/* Of the job only what is its own is used: its session is closed by nobody else meanwhile. */
int light_prompt_ids(struct job *j, struct error *reterr) WARN_UNUSED;

#endif

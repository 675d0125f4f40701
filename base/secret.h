/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_SECRET_H
#define PIPIT_BASE_SECRET_H

/* A process whose memory holds prompts and answers: nobody but root attaches to it or reads it
 * through /proc, and no core dump is written of it. */

/* No core dumps, neither to files nor into the pipe of a crash reporter (core(5)). Children inherit
 * it. -errno where the limit cannot be set. */
int secret_no_core(void);

/* Not dumpable (prctl(2)): a process of the same user may not attach to this one. Forgotten at
 * exec(2). */
void secret_hide(void);

#endif

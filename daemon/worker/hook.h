/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_HOOK_H
#define PIPIT_DAEMON_WORKER_HOOK_H

/* Moments at which tests stop the engine. They are empty in pipit-engine. The tests build a second
 * pipit-engine from the same sources and tests/e2e/engine_hooks.c. */

struct ask;
struct job;

#ifdef PIPIT_TEST_HOOKS
void hook_text(const struct job *j, const struct ask *a);  /* its text is about to be read */
void hook_begin(const struct job *j, const struct ask *a); /* a request is about to be submitted */
void hook_token(const struct job *j);                      /* its token was sent */
void hook_saved(const struct job *j);                      /* its session's file has its name */
#else
static inline void hook_text(const struct job *j, const struct ask *a)
{
    (void)j;
    (void)a;
}

static inline void hook_begin(const struct job *j, const struct ask *a)
{
    (void)j;
    (void)a;
}

static inline void hook_token(const struct job *j)
{
    (void)j;
}

static inline void hook_saved(const struct job *j)
{
    (void)j;
}
#endif

#endif

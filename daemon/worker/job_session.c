/* SPDX-License-Identifier: Apache-2.0 */
/* A job's saved conversation: opened and checked before its request begins, saved when its answer
 * is complete. */

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/worker/ask.h"
#include "daemon/worker/job_impl.h"
#include "engine/engine.h"
#include "engine/kv/policy/policy.h"

static bool in_use(const struct job *j)
{
    for (const struct job *o = j->worker->jobs; o; o = o->next) {
        if (o != j && o->session.dir >= 0 && o->session.principal == j->session.principal &&
            strcmp(o->session.name, j->session.name) == 0) {
            return true;
        }
    }
    return false;
}

/* The canonical text of what the request asks for, or the session was saved under. */
void job_note_policy(struct job *j, const struct ask *a)
{
    bool saved = !a->kv && session_exists(&j->session);
    const char *text = a->kv ? a->kv : saved ? j->session.head.policy : NULL;
    struct policy p;

    text = text ? text : engine_info(atomic_load(&j->worker->engine))->kv;
    if ((saved ? policy_parse_saved : policy_parse)(text, &p, NULL) ==
        0) { /* else the engine will say what is wrong */
        policy_print(&p, j->policy, sizeof(j->policy));
    }
}

/* An engine or a front died between the save and the request's last record: the session holds this
 * turn already, which is not to be said twice. The front says that it is a replay: a client that
 * takes an id again has asked something new. A file that does not know how long its answer is
 * cannot say what nobody has heard. */
bool job_is_saved(const struct job *j, const struct lane_engine_request *e)
{
    return session_exists(&j->session) && e->flags & LANE_F_REPLAYED &&
           (j->session.head.n_answer || e->n_forced) &&
           memcmp(j->session.head.request, j->session.request, sizeof(j->session.request)) == 0;
}

/* What its header tells: is it free, and kept as the request wants it, and is there room behind it?
 */
static int check_session(const struct job *j, const struct ask *a,
                         const struct lane_engine_request *e, struct error *reterr)
{
    const struct session *s = &j->session;
    int32_t ctx = engine_info(atomic_load(&j->worker->engine))->ctx;
    char policy[SESSION_POLICY_MAX];
    char begun[SESSION_POLICY_MAX];
    struct policy p;
    struct policy saved;

    if (in_use(j)) {
        return error_set(reterr, -EBUSY, "session %s is in use by another request", s->name);
    }
    if (!session_exists(s) || job_is_saved(j, e)) {
        return 0;
    }
    if (a->kv && policy_parse(a->kv, &p, NULL) == 0) { /* else the engine will say what is wrong */
        policy_print(&p, policy, sizeof(policy));
        (void)snprintf(begun, sizeof(begun), "%s", s->head.policy);
        if (policy_parse_saved(s->head.policy, &saved, NULL) == 0) {
            policy_print(&saved, begun, sizeof(begun)); /* an older text may say less */
        }
        if (strcmp(policy, begun) != 0) {
            return error_set(reterr, -EINVAL, "leave --kv out: session %s was begun with %s",
                             s->name, begun);
        }
    }
    if (policy_parse(s->head.policy, &p, NULL) == 0) {
        ctx = policy_most_tokens(&p, ctx);
    }
    if (s->head.n_text >= (uint32_t)ctx) {
        return error_set(reterr, -EMSGSIZE, "session %s holds %u tokens, the context %d", s->name,
                         s->head.n_text, ctx);
    }
    return 0;
}

/* The request is well: a file is bad, as a model may be. */
int job_bad_file(int rc, struct error *reterr)
{
    if (rc == -EBADMSG || rc == -ENOTSUP) {
        reterr->code = -ESTALE;
    }
    return rc;
}

/* Around what may wait for a disk on the worker thread: the I/O thread says that we are well. */
void job_files_begin(struct worker *w)
{
    atomic_store(&w->files, true);
}

void job_files_end(struct worker *w)
{
    atomic_store(&w->files_ns, clock_ns());
    atomic_store(&w->files, false);
}

/* The engine of a front that was killed is killed, too, but its locks are the kernel's until it has
 * ended: what its successor replays must not find them. So at first a name in use is waited for,
 * but not one of a job of ours, which goes no further meanwhile. */
#define HEIR_NS 1000000000

static int open_file(struct job *j, const struct ask *a, int dir, struct error *reterr)
{
    struct worker *w = j->worker;
    int rc;

    for (;;) {
        rc = session_open(&j->session, atomic_load(&w->engine), dir, a->session, a->session_len,
                          reterr);
        if (rc != -EBUSY || in_use(j) || clock_ns() - w->ready_ns > HEIR_NS) {
            return rc;
        }
        session_unlock(&j->session);
        (void)poll(NULL, 0, 5);
    }
}

/* 1: its file is to be read first; job_loaded() goes on. */
int job_open_session(struct job *j, const struct ask *a, const struct lane_engine_request *e,
                     int dir, struct error *reterr)
{
    int rc;

    if (!a->session) {
        close_fd(&dir);
        return 0;
    }
    j->session.dir = dir; /* job_end() closes it, whatever is wrong */
    if (dir < 0 || j->kind == LANE_KIND_SCORE || j->kind == LANE_KIND_EMBED) {
        return error_set(reterr, -EINVAL, "a session is for answers, and its request must say so");
    }
    j->session.principal = e->principal;
    j->session.quota = e->session_bytes;
    j->session.writes = lane_session_writes(e->session_writes);
    memcpy(j->session.request, e->client_id, sizeof(j->session.request));
    job_files_begin(j->worker);
    rc = open_file(j, a, dir, reterr);
    rc = rc ? rc : check_session(j, a, e, reterr);
    job_files_end(j->worker);
    if (!rc && session_exists(&j->session)) {
        j->loads = true;
        j->load_vocab = engine_info(atomic_load(&j->worker->engine))->n_vocab;
        rc = loader_take(&j->worker->loader, j, reterr);
        j->loading = rc == 0;
        rc = rc ? rc : 1;
    }
    return job_bad_file(rc, reterr);
}

/* A policy that evicts reads what a new turn adds token by token, each evicting one, as it read the
 * answer before: there is no second cut, and nothing that the plan would have to hold for it. */
void job_split_prompt(struct job *j)
{
    struct policy p;
    bool evicts =
        session_exists(&j->session) && policy_parse(j->policy, &p, NULL) == 0 && policy_evicts(&p);

    j->n_first = evicts ? (int32_t)j->session.head.n_prompt : j->n_prompt;
    j->n_again = j->n_prompt - j->n_first;
}

/* The whole text so far, with room for all that can be said: of a policy that goes beyond the
 * context, as many new tokens as the request asks for, or a context. */
int job_keep_text(struct job *j, const struct ask *a, const int32_t *forced, struct error *reterr)
{
    int32_t ctx = engine_info(atomic_load(&j->worker->engine))->ctx;
    size_t n = (size_t)j->n_prompt + j->n_forced;
    size_t room = 1;
    struct policy p;

    if (j->session.dir < 0) {
        return 0;
    }
    if (policy_parse(j->policy, &p, NULL) == 0 && policy_most_tokens(&p, ctx) > ctx) {
        int32_t asked = a->sampling.max_tokens > 0 ? a->sampling.max_tokens : ctx;

        room = (size_t)(asked < KV_ENDLESS_TOKENS ? asked : KV_ENDLESS_TOKENS) + 1;
    }
    j->cap_text = n + room > (size_t)ctx ? n + room : (size_t)ctx + 1;
    j->text = malloc(j->cap_text * sizeof(*j->text));
    if (!j->text) {
        return error_set(reterr, -ENOMEM, "no memory for the session's text");
    }
    memcpy(j->text, j->prompt, (size_t)j->n_prompt * sizeof(*j->text));
    if (j->n_forced) {
        memcpy(j->text + j->n_prompt, forced, j->n_forced * sizeof(*j->text));
    }
    j->n_text = n;
    return 0;
}

/* The session's text, and behind it what the request adds. */
int job_go_on(struct job *j, const struct ask *a, const struct ask_source *source, size_t *ret_n,
              struct error *reterr)
{
    const struct session *s = &j->session;
    int32_t *more = NULL;
    size_t n = 0;
    int rc = ask_more(a, j->kind == LANE_KIND_CHAT, source, s->text[s->head.n_text - 1], &more, &n,
                      reterr);

    if (!rc) {
        j->prompt = malloc((s->head.n_text + n) * sizeof(*j->prompt));
        rc = j->prompt ? 0 : error_set(reterr, -ENOMEM, "no memory for the session's text");
    }
    if (!rc) {
        memcpy(j->prompt, s->text, s->head.n_text * sizeof(*j->prompt));
        if (n) {
            memcpy(j->prompt + s->head.n_text, more, n * sizeof(*more));
        }
        *ret_n = s->head.n_text + n;
    }
    free(more);
    return rc;
}

bool job_save(struct job *j, const struct engine_event *done)
{
    bool whole = done->reason == ENGINE_STOP || done->reason == ENGINE_LENGTH ||
                 done->reason == ENGINE_CONTEXT;

    if (j->session.dir < 0) {
        return false;
    }
    if (!whole) {
        (void)error_set(&j->save_error, -ECANCELED,
                        "the answer was ended early: the session stays as it was");
    } else if (saver_take(&j->worker->saver, j, done, &j->save_error) == 0) {
        return true;
    }
    j->saved = LANE_SESSION_NOT_SAVED;
    return false;
}

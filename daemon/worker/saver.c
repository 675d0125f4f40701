/* SPDX-License-Identifier: Apache-2.0 */
/* What was said goes to the front before the file has its name: should the engine die, the client
 * has it all, with its log-probabilities, which no file holds.
 *
 * After a failure (the quota, the disk) the saver says so and reads slices no more: those still in
 * the ring are thrown away before it begins anew, and their memory is never looked at. */

#include "daemon/worker/saver.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "daemon/worker/answer.h"
#include "daemon/worker/hook.h"
#include "daemon/worker/job.h"

#define FEED_NS 500000
enum { N_SLICES = 8, SLICE_BYTES = 128 << 10, ITEMS = 32, FEED_SHARE = 10, SAVER_NICE = 5 };

enum saver_kind { SAVER_BEGIN, SAVER_SLICE, SAVER_FAILED, SAVER_END };

struct saver_item {
    uint32_t kind;
    int index;
    size_t n; /* bytes */
    struct job *job;
    struct error error;
};

_Static_assert(N_SLICES<32 && ITEMS> 2 * N_SLICES + 4, "all slices find room in either ring");

int saver_init(struct saver *s, struct worker *w, struct error *reterr)
{
    int r = ring_init(&s->to_disk, ITEMS, sizeof(struct saver_item), reterr);

    s->worker = w;
    if (!r) {
        r = ring_init(&s->back, ITEMS, sizeof(struct saver_item), reterr);
        if (r) {
            ring_finish(&s->to_disk);
        }
    }
    return r;
}

void saver_finish(struct saver *s)
{
    ring_finish(&s->to_disk);
    ring_finish(&s->back);
}

/* ---- the saver's thread ---------------------------------------------------------------------- */

static void say(struct saver *s, const struct saver_item *item)
{
    (void)ring_push(&s->back, item); /* there is room for all that can come */
    worker_wake(s->worker);
}

static void give_back(struct saver *s)
{
    if (s->held >= 0) {
        say(s, &(struct saver_item){.kind = SAVER_SLICE, .index = s->held});
        s->held = -1;
    }
}

static void take_item(struct saver *s, struct saver_item *ret)
{
    while (!ring_pop(&s->to_disk, ret)) {
        ring_wait(&s->to_disk);
    }
}

static int next_slice(void *arg, const void **ret, size_t *ret_n, struct error *reterr)
{
    struct saver *s = arg;
    struct saver_item item;

    give_back(s);
    take_item(s, &item);
    if (item.kind == SAVER_FAILED) {
        *reterr = item.error;
        return item.error.code;
    }
    s->held = item.index;
    *ret = s->slices + (size_t)item.index * s->slice_bytes;
    *ret_n = item.n;
    return 0;
}

static int save(struct saver *s, struct job *j)
{
    const struct session_text text = {
        .identity = s->identity,
        .policy = j->policy,
        .ids = j->text,
        .n = j->n_text,
        .n_prompt = session_exists(&j->session) ? j->session.head.n_prompt : (size_t)j->n_prompt,
        .n_answer = j->n_text - (size_t)j->n_prompt,
    };
    const struct session_block block = {.bytes = s->block_bytes, .next = next_slice, .arg = s};
    int r;

    s->held = -1;
    r = session_write(&j->session, &text, &block, &j->saved_bytes, &j->save_error);
    if (!r) {
        worker_flush(s->worker, s->n_said);
        r = session_commit(&j->session, &j->save_error);
    }
    if (!r) {
        hook_saved(j);
    }
    return r;
}

static void *run(void *arg)
{
    struct saver *s = arg;
    struct saver_item item;

    /* Who waits for a token goes before who has an answer. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), SAVER_NICE);
    for (;;) {
        take_item(s, &item);
        if (item.kind == SAVER_BEGIN) {
            item.job->saved = save(s, item.job) ? LANE_SESSION_NOT_SAVED : LANE_SESSION_SAVED;
            say(s, &(struct saver_item){.kind = SAVER_END});
        }
    }
    return NULL;
}

/* ---- the worker's ---------------------------------------------------------------------------- */

bool saver_busy(const struct saver *s)
{
    return s->first != NULL;
}

static struct engine *engine_of(const struct saver *s)
{
    return atomic_load(&s->worker->engine);
}

static int begin(struct saver *s, struct error *reterr)
{
    struct job *j = s->first;
    size_t least = j->save_least;

    s->slice_bytes = least > SLICE_BYTES ? least : SLICE_BYTES;
    s->slices = malloc(N_SLICES * s->slice_bytes);
    if (!s->slices) {
        return error_set(reterr, -ENOMEM, "no memory to save session %s", j->session.name);
    }
    if (!s->has_thread) {
        int err = pthread_create(&s->thread, NULL, run, s);

        if (err) {
            free(s->slices);
            s->slices = NULL;
            return error_set_errno(reterr, -err, "no thread to save sessions");
        }
        s->has_thread = true;
    }
    memcpy(s->identity, engine_info(engine_of(s))->identity, sizeof(s->identity));
    s->block_bytes = j->save_bytes;
    s->n_said = j->save_said;
    s->free_slices = (1u << N_SLICES) - 1;
    s->copied = false;
    (void)ring_push(&s->to_disk, &(struct saver_item){.kind = SAVER_BEGIN, .job = j});
    return 0;
}

/* The job's last record; the next one's turn. */
static void end(struct saver *s)
{
    struct job *j = s->first;

    free(s->slices);
    s->slices = NULL;
    s->first = j->next_save;
    answer_done(j, j->save_reason, &j->save_usage);
    job_end(s->worker, j);
}

/* Its sequence is released. */
static bool leave_sequence(struct saver *s)
{
    bool left = !s->copied;

    if (left) {
        engine_save_end(engine_of(s), s->first->handle);
        s->copied = true;
    }
    return left;
}

/* One slice. True when that was the last. */
static bool copy_slice(struct saver *s)
{
    int index = __builtin_ctz(s->free_slices);
    struct saver_item item = {.kind = SAVER_SLICE, .index = index};
    int r =
        engine_save_next(engine_of(s), s->first->handle, s->slices + (size_t)index * s->slice_bytes,
                         s->slice_bytes, &item.n, &item.error);

    if (r) {
        item.kind = SAVER_FAILED;
    } else if (item.n > 0) {
        s->free_slices &= ~(1u << index);
    }
    if (r || item.n > 0) {
        (void)ring_push(&s->to_disk, &item);
    }
    return r || item.n == 0;
}

static bool feed(struct saver *s, int64_t step_ns)
{
    int64_t share = step_ns / FEED_SHARE;
    int64_t until = clock_ns() + (share > FEED_NS ? share : FEED_NS);

    while (s->slices && !s->copied && s->free_slices) {
        if (step_ns > 0 && engine_save_waits(engine_of(s), s->first->handle, s->slice_bytes)) {
            break; /* on the tier's disk: others need not wait with us */
        }
        if (copy_slice(s)) {
            return leave_sequence(s);
        }
        if (step_ns > 0 && clock_ns() >= until) {
            break;
        }
    }
    return false;
}

static bool take_back(struct saver *s)
{
    struct saver_item item;
    bool left = false;

    while (ring_pop(&s->back, &item)) {
        if (item.kind == SAVER_SLICE) {
            s->free_slices |= 1u << item.index;
        } else {
            left = leave_sequence(s) || left; /* it failed before all was copied */
            end(s);
        }
    }
    return left;
}

bool saver_run(struct saver *s, int64_t step_ns)
{
    bool left = false;

    if (!s->first) {
        return false;
    }
    left = take_back(s);
    while (s->first && !s->slices && begin(s, &s->first->save_error)) {
        s->first->saved = LANE_SESSION_NOT_SAVED;
        s->copied = false;
        left = leave_sequence(s) || left;
        end(s);
    }
    return feed(s, step_ns) || left;
}

int saver_take(struct saver *s, struct job *j, const struct engine_event *done,
               struct error *reterr)
{
    struct job **at = &s->first;
    int r = engine_save_begin(engine_of(s), j->handle, &j->save_bytes, &j->save_least, reterr);

    if (r) {
        return error_prefix(reterr, "session %s", j->session.name);
    }
    while (*at) {
        at = &(*at)->next_save;
    }
    *at = j;
    j->next_save = NULL;
    j->save_reason = answer_reason(j, done->reason);
    j->save_usage = done->usage;
    j->save_said = s->worker->n_said;
    return 0;
}

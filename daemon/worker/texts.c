/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that read texts: whose turn it is, which of the two reads, and whether it still does.
 * What they do with a text is texts_convert.c's. */

#include "daemon/worker/texts_impl.h"

#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cputime.h"
#include "daemon/worker/job_impl.h"

enum {
    JOBS = 2048,
    RECORDS = 1 << 10,
    SLOW_NICE = 5,
    LONG_BYTES = 16 << 10, /* read by the second thread: some ms */
    SHORT_BYTES = 8 << 10, /* a prompt that goes between two records */
};

/* On failure the process ends. */
int texts_init(struct texts *t, struct worker *w, struct error *reterr)
{
    int r = ring_init(&t->jobs, JOBS, sizeof(struct job *), reterr);

    t->worker = w;
    r = r ? r : ring_init(&t->back, JOBS, sizeof(struct job *), reterr);
    if (r == 0 && (sem_init(&t->slow_go, 0, 0) || sem_init(&t->slow_done, 0, 0))) {
        r = error_set_errno(reterr, -errno, "no semaphores");
    }
    return r ? r : ring_init(&t->records, RECORDS, sizeof(struct lane_record), reterr);
}

/* A sign of life. */
void texts_alive(struct texts *t)
{
    int64_t now = clock_ns();
    int64_t took = now - atomic_load(&t->since_ns);

    t->longest_ns = took > t->longest_ns ? took : t->longest_ns;
    atomic_store(&t->since_ns, now);
}

static uint64_t bytes_of(const struct job *j)
{
    return j->rec.e_request.tlv_bytes + (uint64_t)j->n_text_ids * sizeof(*j->text_ids);
}

static void begin(struct texts *t, const struct texts_self *who, const struct job *j)
{
    t->longest_ns = 0;
    pace_begin(&t->pace, bytes_of(j));
    atomic_store(&t->who, who);
    atomic_store(&t->since_ns, clock_ns());
}

static void end(struct texts *t)
{
    texts_alive(t);
    pace_end(&t->pace, t->longest_ns);
    atomic_store(&t->since_ns, 0);
}

static void give_back(struct texts *t, struct job *j)
{
    while (!ring_push(&t->back, &j)) {
        (void)poll(NULL, 0, 1);
    }
    worker_wake(t->worker);
}

static void take_jobs(struct texts *t)
{
    struct job *j;

    while (ring_pop(&t->jobs, &j)) {
        turns_add(&t->turns, j);
    }
}

static bool is_prompt(const struct job *j)
{
    return j->kind != LANE_KIND_TOKENIZE && j->kind != LANE_KIND_DETOKENIZE;
}

static bool is_short_prompt(const struct job *j)
{
    return is_prompt(j) && j->rec.e_request.tlv_bytes <= SHORT_BYTES;
}

static bool is_long(const struct job *j)
{
    return j->rec.e_request.tlv_bytes > LONG_BYTES ||
           j->n_text_ids > LONG_BYTES / sizeof(*j->text_ids);
}

static void read_prompt(struct texts *t, struct job *j)
{
    j->load_rc = atomic_load(&j->load_stop) ? 0 : texts_prompt_ids(j, &j->load_error);
    give_back(t, j);
}

void texts_short_prompt(struct texts *t)
{
    struct job *j;

    take_jobs(t);
    j = turns_next(&t->turns, is_short_prompt);
    if (j) {
        texts_alive(t);
        read_prompt(t, j);
    }
}

static void know_self(struct texts_self *ret)
{
    ret->tid = gettid();
    if (pthread_getcpuclockid(pthread_self(), &ret->clock)) {
        ret->clock = CLOCK_PROCESS_CPUTIME_ID;
    }
}

static void *run_slow(void *arg)
{
    struct texts *t = arg;

    know_self(&t->slow_self);
    (void)setpriority(PRIO_PROCESS, (id_t)t->slow_self.tid, SLOW_NICE);
    for (;;) {
        while (sem_wait(&t->slow_go)) {
        }
        begin(t, &t->slow_self, t->slow_job);
        texts_serve(t->slow_job);
        end(t);
        (void)sem_post(&t->slow_done);
    }
    return NULL;
}

static void serve_slowly(struct texts *t, struct job *j)
{
    t->slow_job = j;
    (void)sem_post(&t->slow_go);
    while (sem_wait(&t->slow_done)) {
    }
}

static void read_one(struct texts *t, struct job *j)
{
    if (!is_prompt(j) && is_long(j)) {
        t->has_slow = t->has_slow || pthread_create(&t->slow, NULL, run_slow, t) == 0;
        if (t->has_slow) {
            serve_slowly(t, j);
            give_back(t, j);
            return;
        }
    }
    begin(t, &t->self, j);
    if (is_prompt(j)) {
        read_prompt(t, j);
    } else {
        texts_serve(j);
        give_back(t, j);
    }
    end(t);
}

static void *run(void *arg)
{
    struct texts *t = arg;

    know_self(&t->self);
    for (;;) {
        struct job *j;

        take_jobs(t);
        j = turns_next(&t->turns, NULL);
        if (j) {
            t->n_said = 0;
            read_one(t, j);
        } else {
            ring_wait(&t->jobs);
        }
    }
    return NULL;
}

int texts_take(struct texts *t, struct job *j, struct error *reterr)
{
    int err = t->has_thread ? 0 : pthread_create(&t->thread, NULL, run, t);

    t->has_thread = err == 0;
    if (err) {
        return error_set_errno(reterr, -err, "no thread to read texts");
    }
    if (!ring_push(&t->jobs, &j)) {
        return error_set(reterr, -EBUSY, "%d texts wait to be tokenized already", (int)JOBS);
    }
    return 0;
}

static int64_t cpu_ns(const struct texts_self *who)
{
    struct timespec t;

    return who && clock_gettime(who->clock, &t) == 0 ? (int64_t)t.tv_sec * 1000000000 + t.tv_nsec
                                                     : 0;
}

uint32_t texts_stuck_ms(struct texts *t, int64_t now)
{
    const struct texts_self *who = atomic_load(&t->who);
    int64_t since = atomic_load(&t->since_ns);
    int64_t age = now - since;
    int64_t cpu;

    if (since == 0 || since != t->seen_ns) {
        t->seen_ns = since;
        t->seen_cpu_ns = cpu_ns(who);
        return 0;
    }
    /* Nobody lets it run: that is no fault of the text's. One that hangs sleeps, or has its CPU. */
    cpu = cpu_ns(who) - t->seen_cpu_ns;
    if (2 * cpu < age && cputime_is_wanted_by(who->tid)) {
        age = 2 * cpu;
    }
    if (age < pace_limit_ns(&t->pace)) {
        return 0;
    }
    return age / 1000000 < UINT32_MAX ? (uint32_t)(age / 1000000) : UINT32_MAX;
}

bool texts_ready(const struct texts *t)
{
    return !ring_empty(&t->back);
}

bool texts_run(struct texts *t)
{
    struct job *j;
    bool any = false;

    while (ring_pop(&t->back, &j)) {
        if (job_reads(j)) {
            job_read(j);
            any = true;
        } else {
            job_end(t->worker, j);
        }
    }
    return any;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The threads that read texts: whose turn it is, which of the two reads, and whether it still does.
 * What they do with a text is light_text.c's. */

#include "daemon/worker/light_impl.h"

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
int light_init(struct light *l, struct worker *w, struct error *reterr)
{
    int r = ring_init(&l->jobs, JOBS, sizeof(struct job *), reterr);

    l->worker = w;
    r = r ? r : ring_init(&l->back, JOBS, sizeof(struct job *), reterr);
    if (r == 0 && (sem_init(&l->slow_go, 0, 0) || sem_init(&l->slow_done, 0, 0))) {
        r = error_set_errno(reterr, -errno, "no semaphores");
    }
    return r ? r : ring_init(&l->records, RECORDS, sizeof(struct lane_record), reterr);
}

/* A sign of life. */
void light_alive(struct light *l)
{
    int64_t now = clock_ns();
    int64_t took = now - atomic_load(&l->since_ns);

    l->longest_ns = took > l->longest_ns ? took : l->longest_ns;
    atomic_store(&l->since_ns, now);
}

static uint64_t bytes_of(const struct job *j)
{
    return j->rec.e_request.tlv_bytes + (uint64_t)j->n_light_ids * sizeof(*j->light_ids);
}

static void begin(struct light *l, const struct light_self *who, const struct job *j)
{
    l->longest_ns = 0;
    pace_begin(&l->pace, bytes_of(j));
    atomic_store(&l->who, who);
    atomic_store(&l->since_ns, clock_ns());
}

static void end(struct light *l)
{
    light_alive(l);
    pace_end(&l->pace, l->longest_ns);
    atomic_store(&l->since_ns, 0);
}

static void give_back(struct light *l, struct job *j)
{
    while (!ring_push(&l->back, &j)) {
        (void)poll(NULL, 0, 1);
    }
    worker_wake(l->worker);
}

static void take_jobs(struct light *l)
{
    struct job *j;

    while (ring_pop(&l->jobs, &j)) {
        turns_add(&l->turns, j);
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
           j->n_light_ids > LONG_BYTES / sizeof(*j->light_ids);
}

static void read_prompt(struct light *l, struct job *j)
{
    j->load_rc = atomic_load(&j->load_stop) ? 0 : light_prompt_ids(j, &j->load_error);
    give_back(l, j);
}

void light_short_prompt(struct light *l)
{
    struct job *j;

    take_jobs(l);
    j = turns_next(&l->turns, is_short_prompt);
    if (j) {
        light_alive(l);
        read_prompt(l, j);
    }
}

static void know_self(struct light_self *ret)
{
    ret->tid = gettid();
    if (pthread_getcpuclockid(pthread_self(), &ret->clock)) {
        ret->clock = CLOCK_PROCESS_CPUTIME_ID;
    }
}

static void *run_slow(void *arg)
{
    struct light *l = arg;

    know_self(&l->slow_self);
    (void)setpriority(PRIO_PROCESS, (id_t)l->slow_self.tid, SLOW_NICE);
    for (;;) {
        while (sem_wait(&l->slow_go)) {
        }
        begin(l, &l->slow_self, l->slow_job);
        light_serve(l->slow_job);
        end(l);
        (void)sem_post(&l->slow_done);
    }
    return NULL;
}

static void serve_slowly(struct light *l, struct job *j)
{
    l->slow_job = j;
    (void)sem_post(&l->slow_go);
    while (sem_wait(&l->slow_done)) {
    }
}

static void read_one(struct light *l, struct job *j)
{
    if (!is_prompt(j) && is_long(j)) {
        l->has_slow = l->has_slow || pthread_create(&l->slow, NULL, run_slow, l) == 0;
        if (l->has_slow) {
            serve_slowly(l, j);
            give_back(l, j);
            return;
        }
    }
    begin(l, &l->self, j);
    if (is_prompt(j)) {
        read_prompt(l, j);
    } else {
        light_serve(j);
        give_back(l, j);
    }
    end(l);
}

static void *run(void *arg)
{
    struct light *l = arg;

    know_self(&l->self);
    for (;;) {
        struct job *j;

        take_jobs(l);
        j = turns_next(&l->turns, NULL);
        if (j) {
            l->n_said = 0;
            read_one(l, j);
        } else {
            ring_wait(&l->jobs);
        }
    }
    return NULL;
}

int light_take(struct light *l, struct job *j, struct error *reterr)
{
    int err = l->has_thread ? 0 : pthread_create(&l->thread, NULL, run, l);

    l->has_thread = err == 0;
    if (err) {
        return error_set_errno(reterr, -err, "no thread to read texts");
    }
    if (!ring_push(&l->jobs, &j)) {
        return error_set(reterr, -EBUSY, "%d texts wait to be tokenized already", (int)JOBS);
    }
    return 0;
}

static int64_t cpu_ns(const struct light_self *who)
{
    struct timespec t;

    return who && clock_gettime(who->clock, &t) == 0 ? (int64_t)t.tv_sec * 1000000000 + t.tv_nsec
                                                     : 0;
}

uint32_t light_stuck_ms(struct light *l, int64_t now)
{
    const struct light_self *who = atomic_load(&l->who);
    int64_t since = atomic_load(&l->since_ns);
    int64_t age = now - since;
    int64_t cpu;

    if (since == 0 || since != l->seen_ns) {
        l->seen_ns = since;
        l->seen_cpu_ns = cpu_ns(who);
        return 0;
    }
    /* Nobody lets it run: that is no fault of the text's. One that hangs sleeps, or has its CPU. */
    cpu = cpu_ns(who) - l->seen_cpu_ns;
    if (2 * cpu < age && cputime_is_wanted_by(who->tid)) {
        age = 2 * cpu;
    }
    if (age < pace_limit_ns(&l->pace)) {
        return 0;
    }
    return age / 1000000 < UINT32_MAX ? (uint32_t)(age / 1000000) : UINT32_MAX;
}

bool light_ready(const struct light *l)
{
    return !ring_empty(&l->back);
}

bool light_run(struct light *l)
{
    struct job *j;
    bool any = false;

    while (ring_pop(&l->back, &j)) {
        if (job_reads(j)) {
            job_read(j);
            any = true;
        } else {
            job_end(l->worker, j);
        }
    }
    return any;
}

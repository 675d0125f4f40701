/* SPDX-License-Identifier: Apache-2.0 */
/* The worker thread: loads the model, then takes commands and runs steps. With nothing to run it
 * sleeps on the ring of commands; it has no clock of its own.
 *
 * It tells the front its state (LANE_ENGINE_STATE) while loading, when ready, and, at most once a
 * second or when the number of requests changes, after a step. In a long step the I/O thread
 * repeats the last one with a fresh heartbeat. */

#include "daemon/worker/worker.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "daemon/options/engine_options.h"
#include "daemon/worker/answer.h"
#include "daemon/worker/device.h"
#include "daemon/worker/job.h"
#include "daemon/worker/mapping.h"
#include "engine/kv/plan/plan.h"
#include "engine/kv/policy/advice.h"
#include "engine/text/calls/calls.h"
#include "engine/text/jinja/jinja.h"
#include "engine/text/stop.h"
#include "engine/text/tok.h"

#define STATE_NS 1000000000
#define LOAD_STATE_NS 50000000
#define FIGURES_NS 250000000
enum {
    COMMANDS = 1 << 12,
    RECORDS = 1 << 13,
    EXIT_USAGE = 2,
    EXIT_REFUSED = 4,
    EXIT_MODEL = 6,
    EXIT_DEVICE = 9,
    DEVICE_STEP_MS = 100,
};

void worker_finish(struct worker *w)
{
    ring_finish(&w->commands);
    ring_finish(&w->records);
}

int worker_init(struct worker *w, struct error *reterr)
{
    int rc = ring_init(&w->commands, COMMANDS, sizeof(struct command), reterr);

    w->text_most = ENGINE_TEXT_BYTES; /* unless the front has planned less */
    if (rc == 0) {
        rc = ring_init(&w->records, RECORDS, sizeof(struct lane_record), reterr);
        if (rc) {
            ring_finish(&w->commands);
        }
    }
    if (rc == 0) {
        rc = saver_init(&w->saver, w, reterr);
        if (rc) {
            worker_finish(w);
        }
    }
    if (rc == 0) {
        rc = loader_init(&w->loader, w, reterr);
        if (rc) {
            saver_finish(&w->saver);
            worker_finish(w);
        }
    }
    if (rc == 0) {
        rc = texts_init(&w->texts, w, reterr);
        if (rc) { /* the process ends */
            worker_finish(w);
        }
    }
    atomic_store(&w->exit_code, -1);
    return rc;
}

void worker_send(struct worker *w, const struct lane_record *r)
{
    while (!ring_push(&w->records, r)) {
        (void)poll(NULL, 0, 1);
    }
    w->n_said++;
}

/* What it has been given is there before this: who is told too early finds it at the next look. */
void worker_wake(struct worker *w)
{
    struct engine *e = atomic_load(&w->engine);

    if (e) {
        engine_notice(e);
    }
    ring_wake(&w->commands);
}

void worker_flush(const struct worker *w, uint64_t n_said)
{
    while (atomic_load(&w->n_sent) < n_said) {
        (void)poll(NULL, 0, 1);
    }
}

int worker_exit_code(int rc, const struct error *e)
{
    bool setting = strncmp(e->text, "policy", 6) == 0 || strncmp(e->text, "backend", 7) == 0;

    if (rc == -ENOMEM) {
        return EXIT_REFUSED;
    }
    return rc == -EINVAL || setting ? EXIT_USAGE : EXIT_MODEL;
}

void worker_warn_ctx(const struct plan *p)
{
    if (p->ctx_model > 0 && p->ctx > p->ctx_model) {
        log_event(LOG_LEVEL_WARNING, "context-long",
                  "a context of %d: the model, or its overlay, was trained on texts of %d tokens, "
                  "and answers badly beyond them",
                  p->ctx, p->ctx_model);
    }
}

/* A name cut at a character, NUL-padded. */
static void copy_name(char *to, size_t size, const char *from)
{
    size_t n = 0;

    memset(to, 0, size);
    for (;;) {
        size_t left = strlen(from + n);
        int c = utf8_character(from + n, left);

        if (left == 0 || c <= 0 || n + (size_t)c >= size) {
            break;
        }
        n += (size_t)c;
    }
    memcpy(to, from, n);
}

static void send_loading(struct worker *w, float done)
{
    struct lane_record r;

    lane_record_init(&r, LANE_ENGINE_STATE, NULL);
    r.e_state.state = LANE_LOADING;
    r.e_state.progress = done < 0 ? 0 : done > 1 ? 1000 : (uint32_t)(done * 1000);
    if (w->is_checked && r.e_state.progress == 0) {
        r.e_state.progress = 1;
    }
    r.e_state.last_step_ns = clock_ns();
    w->state_ns = r.e_state.last_step_ns;
    worker_send(w, &r);
}

static void send_state(struct worker *w)
{
    struct engine *e = atomic_load(&w->engine);
    const struct engine_info *info = engine_info(e);
    struct engine_counters c;
    struct lane_record r;

    engine_counters(e, &c);
    lane_record_init(&r, LANE_ENGINE_STATE, NULL);
    r.e_state = (struct lane_engine_state){.state = LANE_READY,
                                           .progress = 1000,
                                           .ctx = info->ctx,
                                           .n_vocab = info->n_vocab,
                                           .n_seqs = info->n_seqs,
                                           .n_running = (uint32_t)c.n_running,
                                           .n_queued = (uint32_t)c.n_queued,
                                           .n_prompt_tokens = c.n_prompt_tokens,
                                           .n_new_tokens = c.n_new_tokens,
                                           .n_evicted = c.n_evicted,
                                           .kv_bytes_used = c.kv_bytes_used,
                                           .kv_bytes_total = c.kv_bytes_total,
                                           .plan_bytes = engine_plan_of(e)->total_bytes,
                                           .n_prefix_hits = c.n_prefix_hits,
                                           .n_prefix_tokens = c.n_prefix_tokens,
                                           .n_drafted = c.n_drafted,
                                           .n_accepted = c.n_accepted};
    engine_heartbeat(e, &r.e_state.last_step_ns, &r.e_state.longest_step_ns);
    copy_name(r.e_state.model, sizeof(r.e_state.model), info->model_name);
    copy_name(r.e_state.backend, sizeof(r.e_state.backend), info->backend);
    r.e_state.backend[strcspn(r.e_state.backend, ":")] = 0; /* the rest is in the report */
    w->state_ns = clock_ns();
    w->state_jobs = w->n_jobs;
    worker_send(w, &r);
}

/* Who holds the cache. The last look before the thread sleeps is always taken, others in a while.
 */
static void send_figures(struct worker *w)
{
    w->figures_ns = clock_ns();
    figures_send(w);
}

static void send_cause(struct worker *w, const char *event, const char *text)
{
    struct lane_record r;

    log_event(LOG_LEVEL_ERR, event, "%s", text);
    lane_record_init(&r, LANE_ERROR, NULL);
    r.error.code = LANE_ERR_MODEL;
    error_fit(r.error.text, sizeof(r.error.text), text);
    worker_send(w, &r);
}

static bool on_progress(void *arg, float done)
{
    struct worker *w = arg;
    bool first = !w->is_checked;

    w->is_checked = true; /* engine_create() calls it the first time with the checks behind it */
    if (first || clock_ns() - w->state_ns > LOAD_STATE_NS) {
        send_loading(w, done);
    }
    return !atomic_load(&w->drain);
}

/* The template is compiled once; a model without a usable one still serves raw prompts. One that
 * was asked for must be usable. */
static int open_chat(struct worker *w, struct engine *e, struct error *reterr)
{
    const char *choice = w->chat_template;
    struct error err = {0};
    int rc = chat_choose(choice, engine_gguf(e), engine_tok(e), &w->chat, &err);

    w->chat.output_bytes = w->text_most;
    /* Behind it the text is copied, with a span for each byte at worst. */
    w->chat.memory_bytes = w->text_most * (ENGINE_TEXT_COST - 1 - sizeof(struct jinja_span));
    w->has_chat = rc == 0;
    w->chat_error = err;
    if (rc == 0 && strcmp(w->tool_format, "auto") != 0) {
        rc = calls_choose(w->tool_format, NULL, 0, &w->chat.calls, &err);
    }
    return rc && choice && choice[0] ? error_set(reterr, rc, "%s", err.text) : 0;
}

/* Backends that would use a GPU wait for one whose driver is there already. */
static void wait_for_device(struct worker *w)
{
    const char *backend = w->config.backend;
    bool wanted = !backend || strcmp(backend, "auto") == 0 || strcmp(backend, "cuda") == 0;
    int waited = 0;

    while (wanted && waited < DEVICE_WAIT_MS && device_is_booting() && device_is_late("") &&
           !atomic_load(&w->drain)) {
        if (waited == 0) {
            log_event(LOG_LEVEL_INFO, "device-late",
                      "the GPU's driver is loaded, its device files are not there yet: waiting");
        }
        if (waited % 1000 == 0) {
            send_loading(w, 0);
        }
        (void)poll(NULL, 0, DEVICE_STEP_MS);
        waited += DEVICE_STEP_MS;
    }
}

/* The exit code, or -1 to go on. */
static int load(struct worker *w)
{
    struct engine *e = NULL;
    struct error err = {0};
    int rc;

    send_loading(w, 0);
    wait_for_device(w);
    rc = engine_create(&w->config, on_progress, w, &e, &err);
    if (rc == -ECANCELED) {
        return EXIT_SUCCESS;
    }
    if (rc) {
        send_cause(w, "model-failed", err.text);
        return worker_exit_code(rc, &err);
    }
    w->text_bytes = 2 * (detok_bound(engine_tok(e)) + STOP_MAX_BYTES);
    w->text = malloc(w->text_bytes);
    atomic_store(&w->engine, e);
    if (!w->text) {
        send_cause(w, "model-failed", "no memory for a token's text");
        return EXIT_REFUSED;
    }
    if (engine_info(e)->fallback_reason[0]) {
        log_event(LOG_LEVEL_INFO, "no-device", "backend auto: no GPU is used (%s)",
                  engine_info(e)->fallback_reason);
    }
    worker_warn_ctx(engine_plan_of(e));
    if (engine_plan_of(e)->advice) {
        log_event(LOG_LEVEL_INFO, "policy-chosen", "kv auto: %s%s", engine_plan_of(e)->advice->kv,
                  engine_plan_of(e)->advice->evicts ? ", which evicts tokens" : "");
    }
    if (engine_plan_of(e)->ctx_is_cut) {
        log_event(LOG_LEVEL_INFO, "context-cut",
                  "a context of %d, where the model was trained on %d: the memory holds no more "
                  "(pipitd plan shows what takes it)",
                  engine_info(e)->ctx, engine_plan_of(e)->ctx_model);
    }
    rc = open_chat(w, e, &err);
    if (rc) {
        send_cause(w, "model-failed", err.text);
        return worker_exit_code(rc, &err);
    }
    figures_engine(w);
    send_figures(w);
    w->ready_ns = clock_ns();
    send_state(w);
    return -1;
}

static void obey(struct worker *w, const struct command *c)
{
    struct job *j;

    switch (c->rec.h.type) {
    case LANE_ENGINE_LANE_OPEN:
        if (mapping_add(w, c)) {
            log_error("no memory to open a lane");
        }
        break;
    case LANE_ENGINE_LANE_CLOSE:
        mapping_close(w, c->rec.e_lane.lane_id);
        break;
    case LANE_ENGINE_REQUEST:
        job_start(w, &c->rec, c->dir);
        break;
    case LANE_ENGINE_CANCEL:
        j = job_find(w, c->rec.h.id);
        if (j) {
            job_cancel(w, j, c->rec.e_cancel.reason);
        }
        break;
    case LANE_ENGINE_CREDIT:
        j = job_find(w, c->rec.h.id);
        if (j && c->rec.credit.n_rows <= INT64_MAX) {
            job_credit(j, (int64_t)c->rec.credit.n_rows);
        }
        break;
    default: /* LANE_ENGINE_DRAIN came as the flag; its record only wakes us */
        break;
    }
}

static void end_all(struct worker *w)
{
    struct job *next;

    for (struct job *j = w->jobs; j; j = next) {
        next = j->next;
        job_cancel(w, j, LANE_REASON_SHUTDOWN);
    }
}

/* One engine_step(): what it says it says through answer_event(). */
static int step(struct worker *w)
{
    struct engine *e = atomic_load(&w->engine);
    struct engine_counters c;
    int64_t began = clock_ns();
    int64_t took;
    int rc;

    atomic_store(&w->step_ns, began);
    rc = engine_step(e, answer_event, w);
    atomic_store(&w->step_ns, 0);
    took = clock_ns() - began;
    engine_counters(e, &c);
    w->took_ns = took / (int64_t)(1 + c.n_async_steps - w->n_async_steps);
    w->n_async_steps = c.n_async_steps;
    return rc;
}

/* While requests wait for their readers, or a disk, the I/O thread says that we are well; the
 * record wakes it. True when a save has released a sequence that others wait for. */
static bool wait_for_commands(struct worker *w)
{
    uint32_t n_jobs = w->n_jobs;
    bool left;

    if (n_jobs > 0) {
        atomic_store(&w->waits, true);
        send_state(w);
    }
    send_figures(w);
    do {
        left = saver_run(&w->saver, 0);
        if (left || w->n_jobs != n_jobs) {
            break;
        }
        ring_wait(&w->commands);
    } while (saver_busy(&w->saver) && !loader_ready(&w->loader) && !texts_ready(&w->texts) &&
             ring_empty(&w->commands) && !atomic_load(&w->drain));
    atomic_store(&w->waits, false);
    return left;
}

static int serve(struct worker *w)
{
    bool drained = false;
    int more = 0;

    for (;;) {
        struct command c;
        char news[256];

        while (ring_pop(&w->commands, &c)) {
            obey(w, &c);
            more = 1;
        }
        if (atomic_load(&w->drain) && !drained) {
            drained = true;
            end_all(w);
            more = 1;
        }
        if (texts_run(&w->texts)) {
            more = 1;
        }
        if (loader_run(&w->loader)) {
            more = 1;
        }
        if (saver_run(&w->saver, more > 0 ? w->took_ns : 0)) {
            more = 1;
        }
        if (drained && w->n_jobs == 0) {
            return EXIT_SUCCESS;
        }
        if (more > 0 && w->n_jobs > 0) {
            more = step(w);
        }
        bool said = engine_news(atomic_load(&w->engine), news, sizeof(news));

        if (more < 0) {
            if (!said) {
                (void)snprintf(news, sizeof(news), "%s: %s",
                               more == -ENODEV ? "the device was lost" : "a step failed",
                               strerror(-more));
            }
            send_cause(w, more == -ENODEV ? "device-lost" : "step-failed", news);
            return EXIT_DEVICE;
        }
        if (said) {
            log_event(LOG_LEVEL_WARNING, "device", "%s", news);
        }
        if (w->n_jobs != w->state_jobs || (more && clock_ns() - w->state_ns > STATE_NS)) {
            send_state(w);
        }
        if (more && clock_ns() - w->figures_ns > FIGURES_NS) {
            send_figures(w);
        }
        if (more == 0 || w->n_jobs == 0) {
            more = wait_for_commands(w);
        }
    }
}

void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct engine *e;
    uint64_t one = 1;
    int code = load(w);

    if (code < 0) {
        code = serve(w);
    }
    mapping_drop_all(w);
    e = atomic_exchange(&w->engine, NULL);
    (void)e; /* the process ends: the kernel takes everything back sooner than we could */
    free(w->text);
    atomic_store(&w->exit_code, code);
    if (write(w->records.wake_fd, &one, sizeof(one)) < 0) {
        log_error("cannot wake the I/O thread: %s", strerror(errno));
    }
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Figures for people and machines. Health is the age of the engine's last step, never the front's
 * own word; names of users, ids of requests and text appear nowhere here. figures.h says who sees
 * which, and how late. */

#include "daemon/front/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/front/bulk.h"
#include "daemon/front/engine_link.h"
#include "daemon/front/figures.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"
#include "daemon/front/report.h"

uint32_t status_state(const struct front *f)
{
    return f->stopping || f->drain ? LANE_STOPPING : engine_link_state(f->engine);
}

void status_hello(const struct front *f, struct lane_record *ret, uint32_t type)
{
    const struct lane_engine_state *e = engine_link_info(f->engine);

    lane_record_init(ret, type, NULL);
    ret->hello_reply = (struct lane_hello_reply){
        .magic = LANE_MAGIC,
        .abi_major = LANE_ABI_MAJOR,
        .abi_minor = LANE_ABI_MINOR,
        .record_bytes = LANE_RECORD_BYTES,
        .features = LANE_FEATURE_REPORT | LANE_FEATURE_REQUESTS | LANE_FEATURE_PARTS,
        .front_epoch = f->epoch,
        .model_epoch = engine_link_epoch(f->engine),
        .state = status_state(f),
        .progress = e->progress,
        .ctx = e->ctx,
        .n_vocab = e->n_vocab,
    };
    memcpy(ret->hello_reply.model, e->model, sizeof(e->model));
}

void status_record(const struct front *f, const struct lane *l, struct lane_record *ret)
{
    const struct lane_engine_state *e = engine_link_info(f->engine);
    struct figures c;

    figures_of(f, l, &c);
    lane_record_init(ret, LANE_STATUS, NULL);
    ret->status = (struct lane_status){
        .front_epoch = f->epoch,
        .model_epoch = engine_link_epoch(f->engine),
        .state = status_state(f),
        .progress = e->progress,
        .n_running = (uint32_t)c.n_running,
        .n_queued = (uint32_t)c.n_queued,
        .n_lanes = f->n_lanes,
        .n_restarts = engine_link_restarts(f->engine),
        .n_requests = c.n_requests,
        .n_prompt_tokens = c.n_prompt_tokens,
        .n_new_tokens = c.n_new_tokens,
        .kv_bytes_used = c.kv_bytes_used,
        .kv_bytes_total = e->kv_bytes_total,
        .plan_bytes = e->plan_bytes,
        .step_age_ns = c.step_age_ns,
        .uptime_ns = clock_ns() - f->started_ns,
        .ctx = e->ctx,
        .n_seqs = e->n_seqs,
    };
    memcpy(ret->status.model, e->model, sizeof(e->model));
    memcpy(ret->status.backend, e->backend, sizeof(e->backend));
}

struct text {
    char buf[32768];
    size_t n;
};

static void add(struct text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);

static void add(struct text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(t->buf + t->n, sizeof(t->buf) - t->n, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n < sizeof(t->buf) - t->n) {
        t->n += (size_t)n;
    }
}

static void head(struct text *t, const char *name, const char *type, const char *help)
{
    add(t, "# HELP pipit_%s %s\n# TYPE pipit_%s %s\n", name, help, name, type);
}

static void metric(struct text *t, const char *name, const char *type, const char *help,
                   double value)
{
    head(t, name, type, help);
    add(t, "pipit_%s %.17g\n", name, value);
}

/* What adds up over steps, and times of single requests. */
static void write_sums(const struct front *f, struct text *t)
{
    const struct lane_engine_state *e = engine_link_info(f->engine);
    const struct front_counters *c = &f->counters;

    metric(t, "time_to_first_token_seconds_sum", "counter",
           "From a request's arrival to its first token.", c->ttft_ns / 1e9);
    metric(t, "time_to_first_token_seconds_count", "counter", "Requests that had a first token.",
           (double)c->n_first);
    metric(t, "evictions_total", "counter", "Tokens that placement policies dropped.",
           (double)e->n_evicted);
    metric(t, "prefix_hits_total", "counter", "Prompts that began like one that was kept.",
           (double)e->n_prefix_hits);
    metric(t, "prefix_tokens_total", "counter", "Tokens of prompts that were not read again.",
           (double)e->n_prefix_tokens);
    metric(t, "drafted_tokens_total", "counter", "Tokens drafted by speculation.",
           (double)e->n_drafted);
    metric(t, "accepted_tokens_total", "counter", "Drafted tokens that were answered.",
           (double)e->n_accepted);
    metric(t, "session_written_bytes_total", "counter", "Bytes of the sessions that were saved.",
           (double)c->session_bytes);
}

static void write_metrics(const struct front *f, const struct figures *c, struct text *t)
{
    const struct lane_engine_state *e = engine_link_info(f->engine);

    metric(t, "ready", "gauge", "1 while the model is loaded and answers.",
           engine_link_ready(f->engine));
    head(t, "state", "gauge", "1 for the state that the daemon is in.");
    for (uint32_t s = LANE_UNLOADED; s <= LANE_STOPPING; s++) {
        add(t, "pipit_state{state=\"%s\"} %d\n", lane_state_name(s), s == status_state(f));
    }
    metric(t, "draining", "gauge", "1 while no new requests are taken.", f->drain != 0);
    metric(t, "requests_running", "gauge", "Requests that the engine works on.",
           (double)c->n_running);
    metric(t, "requests_waiting", "gauge", "Requests in the queue.", (double)c->n_queued);
    metric(t, "requests_total", "counter", "Requests accepted.", (double)c->n_requests);
    head(t, "requests_refused_total", "counter",
         "Requests turned away before they were accepted, and clients at connect, by cause.");
    for (int i = 0; i < REFUSALS; i++) {
        add(t, "pipit_requests_refused_total{cause=\"%s\"} %llu\n", report_refusal_name(i),
            (unsigned long long)c->n_refused[i]);
    }
    head(t, "requests_ended_total", "counter",
         "Accepted requests that ended, by reason; failed: with an error.");
    _Static_assert(LANE_REASONS <= sizeof(c->n_by_reason) / sizeof(c->n_by_reason[0]), "reasons");
    for (uint32_t r = LANE_REASON_STOP; r < LANE_REASONS; r++) {
        add(t, "pipit_requests_ended_total{reason=\"%s\"} %llu\n", lane_reason_name(r),
            (unsigned long long)c->n_by_reason[r]);
    }
    add(t, "pipit_requests_ended_total{reason=\"failed\"} %llu\n",
        (unsigned long long)c->n_by_reason[0]);
    metric(t, "prompt_tokens_total", "counter", "Tokens of prompts, cached ones among them.",
           (double)c->n_prompt_tokens);
    metric(t, "generation_tokens_total", "counter", "Tokens answered.", (double)c->n_new_tokens);
    metric(t, "kv_bytes_used", "gauge", "Bytes of keys and values held, in whole pages.",
           (double)c->kv_bytes_used);
    metric(t, "kv_bytes_total", "gauge", "Bytes of keys and values in the plan.",
           (double)e->kv_bytes_total);
    metric(t, "sessions_saved_total", "counter", "Times that a session was saved.",
           (double)c->n_saved);
    metric(t, "sessions_not_saved_total", "counter",
           "Answers whose session was not saved: quota, budget of writes, disk, ended early.",
           (double)c->n_not_saved);
    metric(t, "session_writes_limit_bytes", "gauge",
           "What one user's saves may write in 24 hours; 0: any number.",
           (double)f->config->session_writes);
    metric(t, "plan_bytes", "gauge", "Memory that the plan says.", (double)e->plan_bytes);
    metric(t, "lanes", "gauge", "Connected clients; the gateway is not one.", f->n_lanes);
    metric(t, "engine_restarts_total", "counter", "Starts of the engine after it died.",
           engine_link_restarts(f->engine));
    metric(t, "model_loads_total", "counter", "Times that a model was loaded.",
           (double)engine_link_epoch(f->engine));
    metric(t, "model_unloads_total", "counter", "Times that the model was given back.",
           engine_link_unloads(f->engine));
    metric(t, "model_load_seconds", "gauge", "What the last load took.",
           (double)engine_link_load_ns(f->engine) / 1e9);
    metric(t, "step_age_seconds", "gauge",
           "Since the engine last finished a step; 0 while it has nothing to do.",
           (double)c->step_age_ns / 1e9);
}

/* Labels of any length: left out where the client's lease has no room for them. */
static void write_policies(const struct front *f, struct text *t, size_t room)
{
    const struct report *r = engine_link_report(f->engine);
    size_t n = t->n;

    head(t, "policy_kv_bytes", "gauge", "Bytes of keys and values held under a policy.");
    for (uint32_t i = 0; i < r->n_kv; i++) {
        add(t, "pipit_policy_kv_bytes{policy=\"%s\"} %llu\n", r->kv[i].policy,
            (unsigned long long)r->kv[i].kv_bytes);
    }
    head(t, "policy_evictions_total", "counter", "Tokens dropped under a policy.");
    for (uint32_t i = 0; i < r->n_kv; i++) {
        add(t, "pipit_policy_evictions_total{policy=\"%s\"} %llu\n", r->kv[i].policy,
            (unsigned long long)r->kv[i].n_evicted);
    }
    if (t->n > room) {
        t->n = n;
    }
}

void status_metrics(struct front *f, struct lane *l, const struct lane_record *r)
{
    const struct lease *lease = bulk_lease(l, r->h.id, r->lease.buf, r->lease.generation);
    struct text t = {.n = 0};
    struct figures c;

    if (lease) {
        figures_of(f, l, &c);
        write_metrics(f, &c, &t);
        if (c.all) {
            write_sums(f, &t);
            write_policies(f, &t, (size_t)lease->length);
        }
        bulk_text(l, r->h.id, lease, r->lease.buf, "the metrics", t.buf, t.n);
    }
}

void status_notify(struct front *f)
{
    const struct lane_engine_state *e = engine_link_info(f->engine);
    uint32_t state = status_state(f);

    f->status_changed = false;
    /* Everybody may ask systemd: no counts of requests. */
    if (f->drain) {
        notify_say(&f->notify, "STATUS=Draining, %u clients", f->n_lanes);
    } else if (state == LANE_UNLOADED) {
        notify_say(&f->notify, "STATUS=unloaded: the next request loads the model; %u clients",
                   f->n_lanes);
    } else if (state == LANE_LOADING) {
        notify_say(&f->notify, "STATUS=Loading the model, %u %%", e->progress / 10);
    } else if (state == LANE_FAILED) {
        notify_say(&f->notify, "STATUS=The model cannot be loaded: %s",
                   engine_link_cause(f->engine));
    } else {
        notify_say(&f->notify, "STATUS=%s: %s, %u clients", lane_state_name(state), e->model,
                   f->n_lanes);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/front/report.h"

#include <stdio.h>
#include <string.h>

#include "base/budget.h"
#include "daemon/front/bulk.h"
#include "daemon/front/engine_link.h"
#include "daemon/front/figures.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"
#include "daemon/front/sessions.h"

enum { LINE_MOST = 1024 + 128 };

/* A piece where it belongs; what does not follow on the piece before is dropped. */
static void take_text(char *to, size_t size, const struct lane_engine_report *said)
{
    size_t at = said->text_at;
    size_t n = said->text_len;

    if (at >= size || n >= size - at || (at > 0 && strlen(to) != at)) {
        return;
    }
    memcpy(to + at, said->text, n);
    to[at + n] = '\0';
}

void report_take(struct report *r, const struct lane_engine_report *said)
{
    struct report_kv *kv;

    if (said->kind == LANE_ENGINE_REPORT_BACKEND) {
        take_text(r->backend, sizeof(r->backend), said);
        return;
    }
    if (said->kind == LANE_ENGINE_REPORT_MODEL) {
        take_text(r->model, sizeof(r->model), said);
        return;
    }
    kv = &r->kv[said->row];
    r->n_kv = said->n_rows;
    kv->n_seqs = said->n_seqs;
    kv->n_requests = said->n_requests;
    kv->n_slots = said->n_slots;
    kv->kv_bytes = said->kv_bytes;
    kv->n_evicted = said->n_evicted;
    take_text(kv->policy, sizeof(kv->policy), said);
}

void report_clear(struct report *r)
{
    memset(r, 0, sizeof(*r));
}

static size_t put(char *text, size_t n, size_t size, const char *line, int len)
{
    if (len <= 0 || (size_t)len >= size - n) {
        return n;
    }
    memcpy(text + n, line, (size_t)len);
    return n + (size_t)len;
}

/* Of the user who asks; the gateway asks for many. */
static size_t write_budget(const struct front *f, const struct lane *l, char *text, size_t n,
                           size_t size)
{
    struct budget b;
    char line[LINE_MOST];

    if (l->privileged || !sessions_budget(f->config, l->uid, &b)) {
        return n;
    }
    return put(text, n, size, line,
               snprintf(line, sizeof(line), "writes\t%llu\t%llu\t%llu\n",
                        (unsigned long long)b.limit, (unsigned long long)budget_left(&b),
                        (unsigned long long)b.written));
}

const char *report_refusal_name(int why)
{
    static const char *const names[] = {"clients", "drain",   "model", "deaths",
                                        "queue",   "journal", "kept"};

    _Static_assert(sizeof(names) / sizeof(names[0]) == REFUSALS, "each has a name");
    return names[why];
}

static size_t write_limits(const struct front *f, const struct figures *figures, char *text,
                           size_t n, size_t size)
{
    const struct config *c = f->config;
    const struct {
        const char *name;
        double value;
    } limits[] = {
        {"answer-limit", (double)c->engine.answer_limit},
        {"request-timeout", c->request_timeout},
        {"person-sequences", (double)c->person_sequences},
        {"pause-limit", c->pause_limit},
        {"stall-timeout", c->stall_timeout},
        {"max-queue", (double)c->max_queue},
        {"lanes", (double)c->lanes},
        {"lane-bytes", (double)c->lane_bytes},
        {"session-bytes", (double)c->session_bytes},
    };
    char line[LINE_MOST];

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        n = put(
            text, n, size, line,
            snprintf(line, sizeof(line), "limit\t%s\t%.12g\n", limits[i].name, limits[i].value));
    }
    for (int i = 0; i < REFUSALS; i++) {
        n = put(text, n, size, line,
                snprintf(line, sizeof(line), "refused\t%s\t%llu\n", report_refusal_name(i),
                         (unsigned long long)figures->n_refused[i]));
    }
    return n;
}

static size_t write_text(const struct front *f, const struct lane *l, char *text, size_t size)
{
    const struct report *r = engine_link_report(f->engine);
    const char *failure = engine_link_failure(f->engine);
    const char *cause = failure[0] ? failure : f->reload_cause;
    struct figures c;
    char line[LINE_MOST];
    size_t n = 0;

    if (r->backend[0]) {
        n = put(text, n, size, line, snprintf(line, sizeof(line), "backend\t%s\n", r->backend));
    }
    if (cause[0]) {
        n = put(text, n, size, line, snprintf(line, sizeof(line), "cause\t%s\n", cause));
    }
    figures_of(f, l, &c);
    n = write_limits(f, &c, text, n, size);
    n = write_budget(f, l, text, n, size);
    for (uint32_t i = 0; c.all && i < r->n_kv; i++) {
        const struct report_kv *kv = &r->kv[i];

        n = put(text, n, size, line,
                snprintf(line, sizeof(line), "kv\t%u\t%llu\t%llu\t%llu\t%llu\t%s\n", kv->n_seqs,
                         (unsigned long long)kv->n_requests, (unsigned long long)kv->n_slots,
                         (unsigned long long)kv->kv_bytes, (unsigned long long)kv->n_evicted,
                         kv->policy));
    }
    return n;
}

void report_serve(struct front *f, struct lane *l, const struct lane_record *rec)
{
    const struct lease *lease = bulk_lease(l, rec->h.id, rec->lease.buf, rec->lease.generation);
    char text[(LANE_ENGINE_REPORT_ROWS + 5) * LINE_MOST];

    if (lease) {
        bulk_text(l, rec->h.id, lease, rec->lease.buf, "the report's figures", text,
                  write_text(f, l, text, sizeof(text)));
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* pipit status, metrics and cancel: short questions about the daemon as a whole. */

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/answer.h"

static int written(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return EXIT_OK;
    }
    if (errno != EPIPE) {
        say("cannot write: %s", strerror(errno));
        return EXIT_INTERNAL;
    }
    return EXIT_CANCELLED;
}

/* Tokens a second since the last look; negative: there was none. */
struct rate {
    double read;
    double written;
    uint64_t n_read;
    uint64_t n_written;
    int64_t at_ns;
};

static void rate_of(struct rate *r, const struct pipit_status *st)
{
    int64_t now = clock_ns();
    double s = (double)(now - r->at_ns) / 1e9;

    bool first =
        r->at_ns == 0 || st->n_prompt_tokens < r->n_read || st->n_new_tokens < r->n_written;

    /* Counters that fell are another daemon's. */
    r->read = first ? -1 : (double)(st->n_prompt_tokens - r->n_read) / s;
    r->written = first ? -1 : (double)(st->n_new_tokens - r->n_written) / s;
    r->n_read = st->n_prompt_tokens;
    r->n_written = st->n_new_tokens;
    r->at_ns = now;
}

static json_t *policies_json(const struct pipit_report *rep)
{
    json_t *all = json_array();

    for (size_t i = 0; i < rep->n_policies; i++) {
        const struct pipit_policy_use *p = rep->policies[i];

        (void)json_array_append_new(
            all, json_pack("{s:s, s:i, s:I, s:I, s:I, s:I}", "policy", p->policy, "sequences",
                           (int)p->n_seqs, "requests", (json_int_t)p->n_requests, "slots",
                           (json_int_t)p->n_slots, "bytes", (json_int_t)p->kv_bytes, "evicted",
                           (json_int_t)p->n_evicted));
    }
    return all;
}

static json_t *figures_json(const struct pipit_figure *v, size_t n)
{
    json_t *all = json_object();

    for (size_t i = 0; all && i < n; i++) {
        (void)json_object_set_new(all, v[i].name, json_real(v[i].value));
    }
    return all;
}

/* Epochs of an older daemon may be beyond what a JSON integer holds. */
static json_int_t epoch(uint64_t e)
{
    return (json_int_t)(e & INT64_MAX);
}

static void print_json(const struct pipit_status *st, const struct pipit_report *rep,
                       const struct pipit_info *info, const struct rate *rate)
{
    json_t *obj = json_pack(
        "{s:i, s:s, s:s, s:s, s:f, s:i, s:i, s:{s:i, s:i, s:I}, s:{s:I, s:I}, s:{s:I, s:I}, s:I,"
        " s:i, s:i, s:f, s:f, s:I, s:I, s:s}",
        "v", 1, "state", pipit_state_name(st->state), "model", st->model, "backend",
        rep->backend[0] ? rep->backend : st->backend, "progress", st->progress / 1000.0, "ctx",
        st->ctx, "sequences", st->n_seqs, "requests", "running", (int)st->n_running, "queued",
        (int)st->n_queued, "total", (json_int_t)st->n_requests, "tokens", "prompt",
        (json_int_t)st->n_prompt_tokens, "new", (json_int_t)st->n_new_tokens, "kv", "bytes_used",
        (json_int_t)st->kv_bytes_used, "bytes_total", (json_int_t)st->kv_bytes_total, "plan_bytes",
        (json_int_t)st->plan_bytes, "lanes", (int)st->n_lanes, "engine_restarts",
        (int)st->n_restarts, "step_age_s", (double)st->step_age_ns / 1e9, "uptime_s",
        (double)st->uptime_ns / 1e9, "front_epoch", epoch(st->front_epoch), "model_epoch",
        epoch(st->model_epoch), "socket", info->path);

    if (obj) {
        (void)json_object_set_new(json_object_get(obj, "kv"), "policies", policies_json(rep));
        (void)json_object_set_new(obj, "limits", figures_json(rep->limits, rep->n_limits));
        (void)json_object_set_new(obj, "refused", figures_json(rep->refused, rep->n_refused));
        if (rep->writes_limit) {
            (void)json_object_set_new(
                obj, "sessions_writes",
                json_pack("{s:I, s:I, s:I}", "limit_a_day", (json_int_t)rep->writes_limit, "left",
                          (json_int_t)rep->writes_left, "written", (json_int_t)rep->written));
        }
        if (rep->cause[0]) {
            (void)json_object_set_new(obj, "cause", json_string(rep->cause));
        }
    }
    if (obj && rate->written >= 0) {
        (void)json_object_set_new(
            obj, "tokens_per_second",
            json_pack("{s:f, s:f}", "prompt", rate->read, "new", rate->written));
    }
    if (obj) {
        (void)json_dumpf(obj, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
        (void)putchar('\n');
    }
    json_decref(obj);
}

/* In words, with units; the option's name last, for whoever wants to change it. */
enum unit { UNIT_COUNT, UNIT_SECONDS, UNIT_BYTES };

struct meaning {
    const char *name;
    const char *what;
    enum unit unit;
    const char *zero; /* what 0 means; NULL: 0 */
};

static const struct meaning limits[] = {
    {"answer-limit", "tokens of an answer", UNIT_COUNT, "no limit"},
    {"request-timeout", "time of a request", UNIT_SECONDS, "no limit"},
    {"person-sequences", "answers at once for one user", UNIT_COUNT,
     "all, or all but one while others are here"},
    {"pause-limit", "a request may wait for its reader", UNIT_SECONDS, NULL},
    {"stall-timeout", "a client may read nothing for", UNIT_SECONDS, NULL},
    {"max-queue", "requests that may wait", UNIT_COUNT, "none"},
    {"lanes", "clients connected at once", UNIT_COUNT, NULL},
    {"lane-bytes", "shared memory of a client, both ways together", UNIT_BYTES, NULL},
    {"session-bytes", "saved conversations of a user", UNIT_BYTES, "none"},
};

static const struct meaning refusals[] = {
    {"clients", "clients at connect, too many were there", UNIT_COUNT, NULL},
    {"drain", "requests while the daemon drained", UNIT_COUNT, NULL},
    {"model", "requests without a model", UNIT_COUNT, NULL},
    {"deaths", "requests of users whose requests ended engines", UNIT_COUNT, NULL},
    {"queue", "requests with no place to wait", UNIT_COUNT, NULL},
    {"journal", "requests for which the journal was full", UNIT_COUNT, NULL},
    {"kept", "requests while too many finished ones were kept", UNIT_COUNT, NULL},
};

/* One that a newer daemon has is told by its name. */
static const struct meaning *meaning_of(const struct meaning *all, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(all[i].name, name) == 0) {
            return &all[i];
        }
    }
    return NULL;
}

static void print_value(const struct meaning *m, double value)
{
    char bytes[32];

    if (value == 0 && m && m->zero) {
        (void)fputs(m->zero, stdout);
    } else if (m && m->unit == UNIT_BYTES) {
        (void)fputs(bytes_text((uint64_t)value, bytes), stdout);
    } else {
        (void)printf("%.12g%s", value, m && m->unit == UNIT_SECONDS ? " s" : "");
    }
}

static void print_policies(const struct pipit_report *rep)
{
    for (size_t i = 0; i < rep->n_policies; i++) {
        const struct pipit_policy_use *p = rep->policies[i];
        char held[32];

        (void)printf("%-9s %u running, holding %s in %llu slots; %llu evicted, %llu requests: %s\n",
                     i ? "" : "policy", p->n_seqs, bytes_text(p->kv_bytes, held),
                     (unsigned long long)p->n_slots, (unsigned long long)p->n_evicted,
                     (unsigned long long)p->n_requests, p->policy);
    }
}

static void print_limits(const struct pipit_report *rep)
{
    for (size_t i = 0; i < rep->n_limits; i++) {
        const struct pipit_figure *f = &rep->limits[i];
        const struct meaning *m = meaning_of(limits, sizeof(limits) / sizeof(limits[0]), f->name);

        (void)printf("%-9s %s: ", i ? "" : "limits", m ? m->what : f->name);
        print_value(m, f->value);
        (void)printf(m ? " (%s)\n" : "\n", f->name);
    }
}

/* Since the daemon's start; those that are 0 are left out. */
static void print_refused(const struct pipit_report *rep)
{
    const char *label = "refused";

    for (size_t i = 0; i < rep->n_refused; i++) {
        const struct pipit_figure *f = &rep->refused[i];
        const struct meaning *m =
            meaning_of(refusals, sizeof(refusals) / sizeof(refusals[0]), f->name);

        if (f->value > 0) {
            (void)printf("%-9s %.12g %s\n", label, f->value, m ? m->what : f->name);
            label = "";
        }
    }
}

static void print_text(const struct pipit_status *st, const struct pipit_report *rep,
                       const struct pipit_info *info, const struct rate *rate)
{
    const char *backend = rep->backend[0] ? rep->backend : st->backend[0] ? st->backend : "-";
    char used[32];
    char total[32];
    char plan[32];

    (void)printf("model     %s\n", st->model[0] ? st->model : "(not loaded yet)");
    if (st->state == PIPIT_STATE_LOADING) {
        (void)printf("state     loading, %u %%\n", st->progress / 10);
    } else {
        (void)printf("state     %s\n", pipit_state_name(st->state));
    }
    if (rep->cause[0]) {
        (void)printf("cause     %s\n", rep->cause);
    }
    (void)printf("backend   %.*s\n", backend_len(backend), backend);
    (void)printf("context   %d tokens for prompt and answer, %d sequences (answers at once)\n",
                 st->ctx, st->n_seqs);
    (void)printf("requests  %u running, %u waiting, %llu since the start\n", st->n_running,
                 st->n_queued, (unsigned long long)st->n_requests);
    (void)printf("tokens    %llu of prompts, %llu of answers\n",
                 (unsigned long long)st->n_prompt_tokens, (unsigned long long)st->n_new_tokens);
    if (rate->written >= 0) {
        (void)printf("speed     %.1f tokens/s of prompts, %.1f tokens/s of answers\n", rate->read,
                     rate->written);
    }
    (void)printf("memory    %s planned in all; of the cache %s in use, %s planned\n",
                 bytes_text(st->plan_bytes, plan), bytes_text(st->kv_bytes_used, used),
                 bytes_text(st->kv_bytes_total, total));
    print_policies(rep);
    print_limits(rep);
    print_refused(rep);
    if (rep->writes_limit) {
        char left[32];
        char limit[32];

        (void)printf("sessions  yours may still write %s of %s a day (session-writes)\n",
                     bytes_text(rep->writes_left, left), bytes_text(rep->writes_limit, limit));
    }
    (void)printf(st->step_age_ns ? "engine    busy, last step ended %.1f s ago, "
                                 : "engine    idle, ",
                 (double)st->step_age_ns / 1e9);
    (void)printf("%u restarts after crashes\n", st->n_restarts);
    (void)printf("daemon    up %.0f s, %u clients, %s\n", (double)st->uptime_ns / 1e9, st->n_lanes,
                 info->path);
}

int status_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    struct pipit_error e = {0};
    struct rate rate = {0};
    const struct pipit_status *st;
    const struct pipit_report *rep;
    int code;

    if (words->n) {
        return usage_error("status", "'%.60s' is not an option", words->v[0]);
    }
    code = cli_open(s, &c);
    while (code == 0) {
        if (pipit_client_status(c, &st, &e) < 0 || pipit_client_report(c, &rep, &e) < 0) {
            code = report(&e);
            break;
        }
        rate_of(&rate, st);
        if (s->json) {
            print_json(st, rep, pipit_client_info(c), &rate);
        } else {
            (void)fputs(s->watch && isatty(STDOUT_FILENO) ? "\033[H\033[J" : "", stdout);
            print_text(st, rep, pipit_client_info(c), &rate);
        }
        code = written();
        if (!s->watch) {
            break;
        }
        (void)poll(NULL, 0, 1000);
    }
    pipit_client_destroy(c);
    return code;
}

int metrics_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    struct pipit_error e = {0};
    char *text = NULL;
    size_t len;
    int code;

    if (words->n) {
        return usage_error("metrics", "'%.60s' is not an option", words->v[0]);
    }
    code = cli_open(s, &c);
    if (code == 0 && pipit_client_metrics(c, &text, &len, &e) < 0) {
        code = report(&e);
    } else if (code == 0) {
        (void)fwrite(text, 1, len, stdout);
        code = written();
    }
    free(text);
    pipit_client_destroy(c);
    return code;
}

static int parse_id(const char *text, uint8_t ret[16])
{
    static const char digits[] = "0123456789abcdef";

    if (strlen(text) != 32) {
        return -EINVAL;
    }
    memset(ret, 0, 16);
    for (int i = 0; i < 32; i++) {
        const char *d = strchr(digits, text[i] >= 'A' && text[i] <= 'F' ? text[i] + 32 : text[i]);

        if (!d) {
            return -EINVAL;
        }
        ret[i / 2] = (uint8_t)(ret[i / 2] << 4 | (d - digits));
    }
    return 0;
}

int cancel_run(struct settings *s, const struct option_list *words)
{
    static const uint8_t zero[16];
    struct pipit_client *c = NULL;
    struct pipit_error e = {0};
    uint8_t id[16];
    int code;

    if (words->n != 1) {
        return usage_error("cancel", words->n ? "one id at a time" : "no id");
    }
    if (parse_id(words->v[0], id) < 0 || memcmp(id, zero, sizeof(zero)) == 0) {
        return usage_error("cancel", "'%.60s' is no id: 32 hexadecimal digits", words->v[0]);
    }
    code = cli_open(s, &c);
    if (code == 0 && pipit_client_cancel(c, id, &e) < 0) {
        code = report(&e);
    }
    pipit_client_destroy(c);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's report (proto/lane/record.h has its lines) as structs: its text is kept, and cut up
 * in place. Lines of an unknown kind, and those that lack a field, are passed over. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/client.h"

enum { REPORT_BYTES = 16 << 10, POLICIES_MAX = 64, KV_FIGURES = 5, FIGURES_MAX = 32 };

struct report {
    struct pipit_report shown;
    char *text;
    size_t n;
    struct pipit_policy_use uses[POLICIES_MAX];
    const struct pipit_policy_use *list[POLICIES_MAX];
    struct pipit_figure limits[FIGURES_MAX];
    struct pipit_figure refused[FIGURES_MAX];
};

void report_free(struct report *r)
{
    if (r) {
        free(r->text);
        free(r);
    }
}

static void take_policy(struct report *r, char *fields)
{
    uint64_t v[KV_FIGURES];
    char *at = fields;

    for (int i = 0; i < KV_FIGURES; i++) {
        char *end;

        v[i] = strtoull(at, &end, 10);
        if (end == at || *end != '\t') {
            return;
        }
        at = end + 1;
    }
    if (r->n < POLICIES_MAX) {
        r->uses[r->n] = (struct pipit_policy_use){.policy = at,
                                                  .n_seqs = (uint32_t)v[0],
                                                  .n_requests = v[1],
                                                  .n_slots = v[2],
                                                  .kv_bytes = v[3],
                                                  .n_evicted = v[4]};
        r->list[r->n] = &r->uses[r->n];
        r->n++;
    }
}

static void take_writes(struct report *r, const char *fields)
{
    unsigned long long v[3];

    if (sscanf(fields, "%llu\t%llu\t%llu", &v[0], &v[1], &v[2]) == 3) {
        r->shown.writes_limit = v[0];
        r->shown.writes_left = v[1];
        r->shown.written = v[2];
    }
}

static void take_figure(struct pipit_figure *list, size_t *n, char *fields)
{
    char *value = strchr(fields, '\t');
    char *end;

    if (!value || *n == FIGURES_MAX) {
        return;
    }
    *value++ = '\0';
    list[*n] = (struct pipit_figure){.name = fields, .value = strtod(value, &end)};
    *n += end != value;
}

static void take_lines(struct report *r)
{
    char *next = r->text;

    for (char *line = strsep(&next, "\n"); line; line = strsep(&next, "\n")) {
        char *value = strchr(line, '\t');

        if (!value) {
            continue;
        }
        *value++ = '\0';
        if (strcmp(line, "backend") == 0) {
            r->shown.backend = value;
        } else if (strcmp(line, "cause") == 0) {
            r->shown.cause = value;
        } else if (strcmp(line, "kv") == 0) {
            take_policy(r, value);
        } else if (strcmp(line, "writes") == 0) {
            take_writes(r, value);
        } else if (strcmp(line, "limit") == 0) {
            take_figure(r->limits, &r->shown.n_limits, value);
        } else if (strcmp(line, "refused") == 0) {
            take_figure(r->refused, &r->shown.n_refused, value);
        }
    }
    r->shown.limits = r->limits;
    r->shown.refused = r->refused;
    r->shown.policies = r->list;
    r->shown.n_policies = r->n;
}

int pipit_client_report(struct pipit_client *c, const struct pipit_report **ret,
                        struct pipit_error *reterr)
{
    struct report *r = calloc(1, sizeof(*r));
    struct lane_record ask;
    size_t len = 0;
    int rc = r ? dispatch_check(c, reterr)
               : pipit_fail(reterr, -ENOMEM, PIPIT_E_LOCAL, "no memory for the report");

    rc = rc ? rc : link_wanted(c, reterr);
    rc = rc ? rc : dispatch_until_up(c, reterr);
    if (rc == 0) {
        r->shown = (struct pipit_report){.backend = "", .cause = ""};
        if (c->info.features & LANE_FEATURE_REPORT) {
            lane_record_init(&ask, LANE_REPORT_GET, NULL);
            rc = client_fetch_text(c, &ask, REPORT_BYTES, &r->text, &len, reterr);
        }
    }
    if (rc < 0) {
        report_free(r);
        return rc;
    }
    if (r->text) {
        take_lines(r);
    }
    report_free(c->report);
    c->report = r;
    *ret = &r->shown;
    return 0;
}

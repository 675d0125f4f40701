/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/figures.h"

#include <string.h>

#include "daemon/worker/worker.h"

/* The text in pieces, each with the same figures. */
static void say(struct worker *w, const struct lane_engine_report *figures, const char *text)
{
    size_t len = strlen(text);
    size_t at = 0;

    do {
        size_t n = len - at < LANE_ENGINE_REPORT_TEXT ? len - at : LANE_ENGINE_REPORT_TEXT;
        struct lane_record r;

        lane_record_init(&r, LANE_ENGINE_REPORT, NULL);
        r.e_report = *figures;
        r.e_report.text_at = (uint32_t)at;
        r.e_report.text_len = (uint32_t)n;
        memcpy(r.e_report.text, text + at, n);
        worker_send(w, &r);
        at += n;
    } while (at < len);
}

void figures_engine(struct worker *w)
{
    const struct engine_info *info = engine_info(atomic_load(&w->engine));

    say(w, &(struct lane_engine_report){.kind = LANE_ENGINE_REPORT_BACKEND}, info->backend);
    say(w, &(struct lane_engine_report){.kind = LANE_ENGINE_REPORT_MODEL}, info->identity);
}

static bool same(const struct engine_kv_use *a, const struct engine_kv_use *b)
{
    return a->n_seqs == b->n_seqs && a->n_requests == b->n_requests && a->kv_bytes == b->kv_bytes &&
           a->n_slots == b->n_slots && a->n_evicted == b->n_evicted &&
           strcmp(a->policy, b->policy) == 0;
}

void figures_send(struct worker *w)
{
    const struct engine *e = atomic_load(&w->engine);
    struct figures *f = &w->figures;
    struct engine_kv_use use;
    int32_t n = 0;

    while (n < LANE_ENGINE_REPORT_ROWS && engine_kv_use(e, n, &use)) {
        n++;
    }
    for (int32_t i = 0; i < n; i++) {
        (void)engine_kv_use(e, i, &use);
        if (i < f->n && n == f->n && same(&use, &f->said[i])) {
            continue;
        }
        say(w,
            &(struct lane_engine_report){.kind = LANE_ENGINE_REPORT_KV,
                                         .row = (uint32_t)i,
                                         .n_rows = (uint32_t)n,
                                         .n_seqs = (uint32_t)use.n_seqs,
                                         .n_requests = use.n_requests,
                                         .n_slots = (uint64_t)use.n_slots,
                                         .kv_bytes = use.kv_bytes,
                                         .n_evicted = use.n_evicted},
            use.policy);
        f->said[i] = use;
    }
    f->n = n;
}

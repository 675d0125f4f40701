/* SPDX-License-Identifier: Apache-2.0 */
/* Requests own a copy of their tokens with room for every token they may get, so that nothing is
 * allocated while they run. */

#include "engine/sched/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

int request_create(const struct engine_request *r, int32_t max_new, struct request **ret,
                   struct error *reterr)
{
    struct request *q = calloc(1, sizeof(*q));
    size_t n = (size_t)r->n_prompt + (size_t)max_new;

    if (q) {
        q->tokens = malloc(n * sizeof(*q->tokens));
    }
    if (q && r->saved) {
        q->saved_copy = malloc(r->saved_size);
    }
    if (!q || !q->tokens || (r->saved && !q->saved_copy)) {
        request_destroy(q);
        return error_set(reterr, -ENOMEM, "request: no memory for %zu tokens", n);
    }
    memcpy(q->tokens, r->prompt, (size_t)r->n_prompt * sizeof(*q->tokens));
    if (r->n_forced > 0) {
        memcpy(q->tokens + r->n_prompt, r->forced, (size_t)r->n_forced * sizeof(*q->tokens));
    }
    if (q->saved_copy) {
        memcpy(q->saved_copy, r->saved, r->saved_size);
    }
    q->kind = r->kind;
    q->urgency = r->urgency;
    q->user = r->user;
    q->n_prompt = r->n_prompt;
    q->n_forced = r->n_forced;
    q->max_new = max_new;
    q->n_tokens_max = r->n_prompt + max_new;
    q->ignore_end = r->ignore_end;
    q->synthetic = r->synthetic;
    q->report_forced = r->report_forced;
    q->logits = r->logits_rows > 0 ? r->logits : NULL;
    q->logits_rows = r->logits_rows;
    /* Who wants logits reads them row by row, at the pace of tokens. */
    q->most_drafted = r->kind == ENGINE_GENERATE && !q->logits ? r->n_draft : 0;
    q->score_first = r->score_first;
    q->hidden = r->hidden;
    q->pool = r->pool;
    q->unit = r->unit;
    q->resumed = r->saved || r->saved_read || r->synthetic;
    q->unsaved = r->unsaved;
    q->fork_of = r->saved || r->saved_read ? 0 : r->fork_of;
    q->seq = -1;
    q->submit_ns = clock_ns();
    *ret = q;
    return 0;
}

void request_drop_saved(struct request *r)
{
    snapshot_close(r->saved);
    r->saved = NULL;
    free(r->saved_copy);
    r->saved_copy = NULL;
}

void request_destroy(struct request *r)
{
    if (r) {
        request_drop_saved(r);
        snapshot_writer_destroy(r->save);
        free(r->sum);
        free(r->tokens);
        free(r);
    }
}

void request_append(struct request_list *l, struct request *r)
{
    struct request **at = &l->first;

    while (*at) {
        at = &(*at)->next;
    }
    r->next = NULL;
    *at = r;
    l->n++;
}

void request_remove(struct request_list *l, struct request *r)
{
    struct request **at = &l->first;

    while (*at && *at != r) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = r->next;
        l->n--;
    }
}

struct request *request_find(const struct request_list *l, uint64_t handle)
{
    struct request *r = l->first;

    while (r && r->handle != handle) {
        r = r->next;
    }
    return r;
}

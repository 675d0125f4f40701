/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizing and detokenizing for clients. Ids go into the output lease where there is one, else
 * each becomes a record. */

#include "daemon/worker/light.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "daemon/worker/answer.h"
#include "daemon/worker/ask.h"
#include "daemon/worker/job.h"
#include "daemon/worker/mapping.h"
#include "engine/text/tok.h"

static void done(struct job *j, size_t n_tokens)
{
    struct lane_record r;

    lane_record_init(&r, LANE_DONE, j->id);
    r.done.reason = LANE_REASON_STOP;
    r.done.n_prompt = (int32_t)n_tokens;
    worker_send(j->worker, &r);
    job_end(j->worker, j);
}

static int ids_to_lease(struct job *j, const struct lane_engine_request *e, const int32_t *ids,
                        size_t n, struct error *reterr)
{
    struct lane_record r;

    if (!checked_range(e->out_offset, e->out_bytes, j->mapping->e2c_bytes)) {
        return error_set(reterr, -EINVAL, "the output lease lies outside its arena");
    }
    if (n > e->out_bytes / sizeof(*ids)) {
        return error_set(reterr, -E2BIG, "%zu tokens need an output lease of %zu bytes", n,
                         n * sizeof(*ids));
    }
    if (n) {
        memcpy(j->mapping->e2c + e->out_offset, ids, n * sizeof(*ids));
    }
    lane_record_init(&r, LANE_BULK, j->id);
    r.bulk = (struct lane_bulk_body){.kind = LANE_BULK_TOKENS,
                                     .buf = e->out_buf,
                                     .generation = e->out_generation,
                                     .window = (uint32_t)n,
                                     .n_rows = (uint32_t)n,
                                     .n_cols = 1,
                                     .n_bytes = n * sizeof(*ids)};
    worker_send(j->worker, &r);
    return 0;
}

static void ids_to_records(struct job *j, const struct tok *tok, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct lane_record r;
        const char *piece;
        size_t len;

        tok_token_text(tok, ids[i], &piece, &len);
        lane_record_init(&r, LANE_TOKEN, j->id);
        r.token.index = (int32_t)i;
        r.token.token = ids[i];
        r.token.text_len = (uint16_t)(len < sizeof(r.token.text) ? len : sizeof(r.token.text));
        memcpy(r.token.text, piece, r.token.text_len);
        worker_send(j->worker, &r);
    }
}

int light_tokenize(struct job *j, const struct ask *a, const struct ask_source *s,
                   const struct lane_engine_request *e, struct error *reterr)
{
    int32_t *ids;
    size_t n;
    int rc = 0;

    if (!a->has_prompt) {
        return error_set(reterr, -EINVAL, "no prompt to tokenize");
    }
    rc = tok_encode_new(s->tok, a->prompt, a->prompt_len, TOK_ADD_BOS, &ids, &n, reterr);
    if (rc) {
        return rc;
    }
    if (e->out_bytes) {
        rc = ids_to_lease(j, e, ids, n, reterr);
    } else {
        ids_to_records(j, s->tok, ids, n);
    }
    free(ids);
    if (rc == 0) {
        done(j, n);
    }
    return rc;
}

int light_detokenize(struct job *j, const struct ask *a, const struct ask_source *s,
                     struct error *reterr)
{
    char *text = j->worker->text;
    struct detok d;
    int32_t *ids;
    size_t n;
    int rc = ask_ids(a, s, &ids, &n, reterr);

    if (rc) {
        return rc;
    }
    detok_init(&d, s->tok, -1, false);
    for (size_t i = 0; i < n; i++) {
        answer_text(j->worker, j->id, (int32_t)i, text, detok_push(&d, ids[i], text));
    }
    answer_text(j->worker, j->id, (int32_t)n - 1, text, detok_flush(&d, text));
    free(ids);
    done(j, n);
    return 0;
}

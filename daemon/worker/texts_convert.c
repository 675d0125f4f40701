/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizing and detokenizing for clients, and prompts for the worker. Ids for clients go into the
 * output lease where there is one, else each becomes a record. */

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/cleanup.h"
#include "daemon/options/engine_options.h"
#include "daemon/worker/answer.h"
#include "daemon/worker/ask.h"
#include "daemon/worker/hook.h"
#include "daemon/worker/job_impl.h"
#include "daemon/worker/texts_impl.h"
#include "daemon/worker/mapping.h"
#include "engine/text/tok.h"

enum { RECORDS_A_PROMPT = 32 }; /* so many are said for each: no flood of prompts ends it */

/* Waits while the ring is full: the front reads always, or we die with it. False: the job was told
 * to end, and nothing was said. */
static bool say(struct job *j, const struct lane_record *r)
{
    struct texts *t = &j->worker->texts;

    if (++t->n_said % RECORDS_A_PROMPT == 0) {
        texts_short_prompt(t);
    }
    while (!atomic_load(&j->load_stop)) {
        texts_alive(t);
        if (ring_push(&t->records, r)) {
            return true;
        }
        (void)poll(NULL, 0, 1);
    }
    return false;
}

static void say_last(struct job *j, const struct lane_record *r)
{
    while (!ring_push(&j->worker->texts.records, r)) {
        texts_alive(&j->worker->texts);
        (void)poll(NULL, 0, 1);
    }
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
    (void)say(j, &r);
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
        if (!say(j, &r)) {
            return;
        }
    }
}

/* The plan holds so much for the one text that is read. */
static int check_length(struct job *j, const struct ask *a, struct error *reterr)
{
    size_t n = ask_bytes(a);
    size_t n_values = ask_json_values(a);

    if (n > j->worker->text_most) {
        j->text_counts[0] = n;
        j->text_counts[1] = j->worker->text_most;
        return error_set(reterr, -E2BIG, "a text of %zu bytes: at most %zu are tokenized at once",
                         n, j->worker->text_most);
    }
    if (n_values > ENGINE_JSON_VALUES) {
        j->text_counts[0] = n_values;
        j->text_counts[1] = ENGINE_JSON_VALUES;
        return error_set(reterr, -E2BIG,
                         "tools and calls' arguments of %zu JSON values: at most %d in a request",
                         n_values, (int)ENGINE_JSON_VALUES);
    }
    return 0;
}

static int tokenize(struct job *j, const struct ask *a, const struct tok *tok, size_t *ret_n,
                    struct error *reterr)
{
    const struct lane_engine_request *e = &j->rec.e_request;
    int32_t *ids;
    int rc;

    if (!a->has_prompt) {
        return error_set(reterr, -EINVAL, "no prompt to tokenize");
    }
    rc = check_length(j, a, reterr);
    if (rc) {
        return rc;
    }
    rc = tok_encode_new(tok, a->prompt, a->prompt_len, TOK_ADD_BOS, &ids, ret_n, reterr);
    if (rc) {
        return rc;
    }
    if (e->out_bytes) {
        rc = ids_to_lease(j, e, ids, *ret_n, reterr);
    } else {
        ids_to_records(j, tok, ids, *ret_n);
    }
    free(ids);
    return rc;
}

static bool say_text(struct job *j, size_t index, const char *text, size_t len)
{
    while (len > 0) {
        struct lane_record r;
        size_t n = answer_text_record(j->id, (int32_t)index, text, len, &r);

        if (!say(j, &r)) {
            return false;
        }
        text += n;
        len -= n;
    }
    return true;
}

static int detokenize(struct job *j, const struct ask *a, const struct ask_source *s, size_t *ret_n,
                      struct error *reterr)
{
    AUTO_FREE char *text = malloc(detok_bound(s->tok));
    struct detok d;
    int32_t *ids;
    size_t n;
    int rc;

    if (!tok_has_text(s->tok)) {
        return error_set(reterr, -ENOTSUP,
                         "the model's file has no tokenizer: its token ids have no text");
    }
    rc = text ? ask_ids(a, s, &ids, &n, reterr)
              : error_set(reterr, -ENOMEM, "no memory for a token's text");
    if (rc) {
        return rc;
    }
    detok_init(&d, s->tok, -1, false);
    for (size_t i = 0; i < n && say_text(j, i, text, detok_push(&d, ids[i], text)); i++) {
    }
    (void)say_text(j, n ? n - 1 : 0, text, detok_flush(&d, text));
    free(ids);
    *ret_n = n;
    return 0;
}

/* Reads the request again from the journal, where it does not change. */
static int answer(struct job *j, size_t *ret_n, struct error *reterr)
{
    struct worker *w = j->worker;
    const struct lane_engine_request *e = &j->rec.e_request;
    struct ask_source source = {.tok = engine_tok(atomic_load(&w->engine)),
                                .lease_ids = j->text_ids,
                                .n_lease_ids = j->n_text_ids};
    struct ask a;
    int rc = ask_read(w->journal + e->journal_offset, e->tlv_bytes, &a, reterr);

    if (rc) {
        return rc;
    }
    hook_text(j, &a);
    rc = ask_check(&a, j->kind, reterr);
    if (rc == 0) {
        rc = j->kind == LANE_KIND_TOKENIZE ? tokenize(j, &a, source.tok, ret_n, reterr)
                                           : detokenize(j, &a, &source, ret_n, reterr);
    }
    ask_clear(&a);
    return rc;
}

void texts_serve(struct job *j)
{
    struct lane_record r;
    struct error e = {0};
    size_t n = 0;
    int rc = atomic_load(&j->load_stop) ? 0 : answer(j, &n, &e);

    if (rc) {
        answer_error_record(j->id, &e, j->text_counts[0], j->text_counts[1], &r);
    } else {
        lane_record_init(&r, LANE_DONE, j->id);
        r.done.reason = atomic_load(&j->load_stop) ? j->stop_reason : LANE_REASON_STOP;
        r.done.n_prompt = (int32_t)n;
    }
    say_last(j, &r);
}

int texts_prompt_ids(struct job *j, struct error *reterr)
{
    struct worker *w = j->worker;
    const struct lane_engine_request *e = &j->rec.e_request;
    struct ask_source source = {.tok = engine_tok(atomic_load(&w->engine)),
                                .chat = w->has_chat ? &w->chat : NULL,
                                .chat_error = &w->chat_error};
    struct ask a;
    int rc = ask_read(w->journal + e->journal_offset, e->tlv_bytes, &a, reterr);

    if (rc) {
        return rc;
    }
    hook_text(j, &a);
    rc = check_length(j, &a, reterr);
    rc = rc ? rc : job_prompt(j, &a, &source, reterr);
    ask_clear(&a);
    return rc;
}

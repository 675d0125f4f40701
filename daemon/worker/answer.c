/* SPDX-License-Identifier: Apache-2.0 */
/* Events to records. A token's records come in this order: its alternatives, its logits
 * (LANE_BULK), the token with the first 200 bytes of the text it completed, the rest of that text.
 * Text that is held back (half a character, the beginning of a stop string) comes with a later
 * token, or, where none follows, as LANE_TEXT before LANE_DONE. */

#include "daemon/worker/answer.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "daemon/worker/hook.h"
#include "daemon/worker/job.h"
#include "engine/text/calls/calls.h"
#include "engine/text/tok.h"

static void send_record(struct job *j, const struct lane_record *r)
{
    worker_send(j->worker, r);
}

/* The longest beginning of `text` of at most `most` bytes that cuts no character. */
static size_t cut(const char *text, size_t len, size_t most)
{
    size_t n = len < most ? len : most;

    while (n < len && n > 0 && ((uint8_t)text[n] & 0xc0) == 0x80) {
        n--;
    }
    return n;
}

size_t answer_text_record(const uint8_t id[16], int32_t index, const char *text, size_t len,
                          struct lane_record *ret)
{
    size_t n = cut(text, len, sizeof(ret->token.text));

    lane_record_init(ret, LANE_TEXT, id);
    ret->token.index = index;
    ret->token.token = -1;
    ret->token.text_len = (uint16_t)n;
    memcpy(ret->token.text, text, n);
    return n;
}

void answer_text(struct worker *w, const uint8_t id[16], int32_t index, const char *text,
                 size_t len)
{
    struct lane_record r;

    while (len > 0) {
        size_t n = answer_text_record(id, index, text, len, &r);

        worker_send(w, &r);
        text += n;
        len -= n;
    }
}

/* Drops what was sent before a crash from the front of a text. */
static void skip_sent(struct job *j, const char **text, size_t *len)
{
    size_t n = *len < j->skip_text ? *len : (size_t)j->skip_text;

    j->skip_text -= n;
    *text += n;
    *len -= n;
}

static uint16_t part_flags(enum calls_part part)
{
    _Static_assert((int)CALLS_ARGUMENTS == (int)LANE_PART_ARGUMENTS, "parts");
    return (uint16_t)(part << LANE_PART_SHIFT);
}

/* The record of the token that waits for its text, if there is one, with the first of it. */
static void send_waiting(struct job *j, enum calls_part part, const char **text, size_t *len)
{
    struct lane_record *r = j->waits;
    bool fits = part == CALLS_TEXT || part == CALLS_REASONING;
    size_t n = fits ? cut(*text, *len, sizeof(r->token.text)) : 0;

    if (!r) {
        return;
    }
    j->waits = NULL;
    r->h.flags = n ? part_flags(part) : 0;
    r->token.text_len = (uint16_t)n;
    memcpy(r->token.text, *text, n);
    send_record(j, r);
    *text += n;
    *len -= n;
}

/* calls_emit */
static void say_part(void *arg, enum calls_part part, const char *text, size_t len)
{
    struct job *j = arg;
    bool call = part == CALLS_NAME || part == CALLS_ARGUMENTS;

    if (part == CALLS_MARK) {
        return;
    }
    j->n_names += part == CALLS_NAME;
    skip_sent(j, &text, &len);
    send_waiting(j, part, &text, &len);
    while (len > 0) {
        struct lane_record r;
        size_t n = answer_text_record(j->id, j->index, text, len, &r);

        r.h.flags = part_flags(part);
        r.token.n_alts = call ? (uint16_t)(j->n_names - 1) : 0;
        send_record(j, &r);
        text += n;
        len -= n;
    }
}

int answer_take_parts(struct job *j, const struct calls_format *format, struct json_t *tools,
                      struct error *reterr)
{
    const struct tok *tok = engine_tok(atomic_load(&j->worker->engine));

    return calls_create(format, tok, tools, say_part, j, &j->calls, reterr);
}

/* Text of one token: detokenized, held back as stop strings demand. Into the worker's scratch. */
static size_t push_text(struct job *j, int32_t id, char **ret)
{
    char *raw = j->worker->text;
    char *out = raw + j->worker->text_bytes / 2;
    size_t n = detok_push(&j->detok, id, raw);

    *ret = out;
    return j->stop.hit >= 0 ? 0 : stop_push(&j->stop, raw, n, out);
}

/* What was held back, when nothing can follow. */
static size_t flush_text(struct job *j, char **ret)
{
    char *raw = j->worker->text;
    char *out = raw + j->worker->text_bytes / 2;
    size_t n;

    *ret = out;
    if (j->stop.hit >= 0) {
        return 0;
    }
    n = stop_push(&j->stop, raw, detok_flush(&j->detok, raw), out);
    return j->stop.hit >= 0 ? n : n + stop_flush(&j->stop, out + n);
}

/* The same for an answer in parts, which are sent. Of a token that the vocabulary adds the marker
 * must stay whole: stop strings cannot begin in it and end behind it. */
static void push_parts(struct job *j, int32_t id)
{
    const struct tok *tok = engine_tok(atomic_load(&j->worker->engine));
    bool added = tok_is_added(tok, id);
    char *out;
    size_t n = push_text(j, id, &out);

    if (j->stop.hit < 0 && (added || tok_is_control(tok, id))) {
        n += stop_flush(&j->stop, out + n);
    }
    if (j->stop.hit < 0 && tok_is_control(tok, id) && !tok_is_end(tok, id)) {
        const char *piece;
        size_t len;

        calls_push(j->calls, CALLS_PLAIN, out, n);
        tok_token_text(tok, id, &piece, &len);
        calls_push(j->calls, CALLS_CONTROL, piece, len);
    } else if (j->stop.hit < 0 && added) {
        const char *piece;
        size_t len;

        tok_piece(tok, id, &piece, &len);
        len = len < n ? len : n;
        calls_push(j->calls, CALLS_PLAIN, out, n - len);
        calls_push(j->calls, CALLS_ADDED, out + n - len, len);
    } else {
        calls_push(j->calls, CALLS_PLAIN, out, n);
    }
}

void answer_replay(struct job *j, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n && j->stop.hit < 0; i++) {
        j->index = (int32_t)i;
        if (j->calls) {
            push_parts(j, ids[i]);
        } else {
            char *out;
            size_t len = push_text(j, ids[i], &out);
            const char *text = out;

            skip_sent(j, &text, &len);
            answer_text(j->worker, j->id, j->index, text, len);
        }
    }
}

static void send_alts(struct job *j, const struct engine_event *ev)
{
    const struct tok *tok = engine_tok(atomic_load(&j->worker->engine));

    for (int32_t i = 0; i < ev->n_alts; i++) {
        struct lane_record r;
        const char *piece;
        size_t len;

        tok_token_text(tok, ev->alts[i].token, &piece, &len);
        lane_record_init(&r, LANE_ALT, j->id);
        r.alt.index = ev->index - j->n_again;
        r.alt.token = ev->alts[i].token;
        r.alt.logprob = ev->alts[i].logprob;
        r.alt.rank = (uint16_t)i;
        r.alt.text_len = (uint16_t)(len < sizeof(r.alt.text) ? len : sizeof(r.alt.text));
        memcpy(r.alt.text, piece, r.alt.text_len);
        send_record(j, &r);
    }
}

static void send_logits(struct job *j, uint64_t row0, uint32_t n_rows)
{
    struct worker *w = j->worker;
    uint32_t n_vocab = (uint32_t)engine_info(atomic_load(&w->engine))->n_vocab;
    struct lane_record r;

    lane_record_init(&r, LANE_BULK, j->id);
    r.bulk = (struct lane_bulk_body){.kind = LANE_BULK_LOGITS,
                                     .buf = j->out_buf,
                                     .generation = j->out_generation,
                                     .window = j->logits_rows,
                                     .row0 = row0,
                                     .n_rows = n_rows,
                                     .n_cols = n_vocab,
                                     .n_bytes = (uint64_t)n_rows * n_vocab * sizeof(float),
                                     .offset = j->logits_offset +
                                               row0 % j->logits_rows * n_vocab * sizeof(float)};
    send_record(j, &r);
}

static void say_token_in_parts(struct job *j, struct lane_record *r)
{
    const char *none = "";
    size_t len = 0;

    j->waits = r;
    push_parts(j, r->token.token);
    send_waiting(j, CALLS_TEXT, &none, &len);
}

static void say_token(struct job *j, int32_t index, int32_t token, float logprob, int32_t n_alts)
{
    struct lane_record r;
    char *text;
    size_t len;
    size_t n;

    lane_record_init(&r, LANE_TOKEN, j->id);
    r.token.index = index;
    r.token.token = token;
    r.token.logprob = logprob;
    r.token.n_alts = (uint16_t)n_alts;
    j->index = index;
    if (j->calls) {
        say_token_in_parts(j, &r);
        return;
    }
    len = push_text(j, token, &text);
    n = cut(text, len, sizeof(r.token.text));
    r.token.text_len = (uint16_t)n;
    memcpy(r.token.text, text, n);
    send_record(j, &r);
    answer_text(j->worker, j->id, j->index, text + n, len - n);
}

void answer_said(struct job *j, const int32_t *ids, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < n && j->stop.hit < 0; i++) {
        say_token(j, (int32_t)i, ids[i], NAN, 0); /* the file has no probabilities */
    }
}

static void on_token(struct job *j, const struct engine_event *ev)
{
    if (j->n_text < j->cap_text) {
        j->text[j->n_text++] = ev->token;
    }
    if (j->stop.hit >= 0) {
        return; /* said after a stop string in the same step */
    }
    send_alts(j, ev);
    if (j->logits_rows) {
        send_logits(j, (uint64_t)ev->index, 1);
    }
    say_token(j, ev->index - j->n_again, ev->token, ev->logprob, ev->n_alts);
    hook_token(j);
    if (j->stop.hit >= 0) {
        (void)engine_cancel(atomic_load(&j->worker->engine), j->handle, ENGINE_STOP);
    }
}

/* A scored row without an output lease: the token, how probable it was, its text. */
static void send_scored_tokens(struct job *j, const struct engine_event *ev)
{
    const struct tok *tok = engine_tok(atomic_load(&j->worker->engine));

    for (int32_t i = 0; i < ev->n_done; i++) {
        int32_t row = ev->index + i;
        struct lane_record r;
        const char *piece;
        size_t len;

        lane_record_init(&r, LANE_TOKEN, j->id);
        r.token.index = row;
        r.token.token = j->prompt[j->score_first + row + 1];
        r.token.logprob = ev->logprobs[i];
        tok_token_text(tok, r.token.token, &piece, &len);
        r.token.text_len = (uint16_t)(len < sizeof(r.token.text) ? len : sizeof(r.token.text));
        memcpy(r.token.text, piece, r.token.text_len);
        send_record(j, &r);
    }
}

static void on_score(struct job *j, const struct engine_event *ev)
{
    struct lane_record r;

    if (!j->out_logprobs) {
        send_scored_tokens(j, ev);
        return;
    }
    memcpy(j->out_logprobs + ev->index, ev->logprobs, (size_t)ev->n_done * sizeof(float));
    lane_record_init(&r, LANE_BULK, j->id);
    r.bulk = (struct lane_bulk_body){.kind = LANE_BULK_LOGPROBS,
                                     .buf = j->out_buf,
                                     .generation = j->out_generation,
                                     .window = (uint32_t)(j->n_prompt - 1 - j->score_first),
                                     .row0 = (uint64_t)ev->index,
                                     .n_rows = (uint32_t)ev->n_done,
                                     .n_cols = 1,
                                     .n_bytes = (uint64_t)ev->n_done * sizeof(float),
                                     .offset = (uint64_t)ev->index * sizeof(float)};
    send_record(j, &r);
    if (j->logits_rows) {
        send_logits(j, (uint64_t)ev->index, (uint32_t)ev->n_done);
    }
}

static void on_hidden(struct job *j, const struct engine_event *ev)
{
    uint32_t n_embd = (uint32_t)engine_info(atomic_load(&j->worker->engine))->n_embd;
    struct lane_record r;

    lane_record_init(&r, LANE_BULK, j->id);
    r.bulk = (struct lane_bulk_body){.kind = LANE_BULK_HIDDEN,
                                     .buf = j->out_buf,
                                     .generation = j->out_generation,
                                     .window = (uint32_t)ev->n_done,
                                     .n_rows = (uint32_t)ev->n_done,
                                     .n_cols = n_embd,
                                     .n_bytes = (uint64_t)ev->n_done * n_embd * sizeof(float)};
    send_record(j, &r);
}

static void on_progress(struct job *j, const struct engine_event *ev)
{
    struct lane_record r;

    if (j->flags & LANE_F_PROGRESS) {
        lane_record_init(&r, LANE_PROGRESS, j->id);
        r.progress.n_done = (uint32_t)ev->n_done;
        r.progress.n_total = (uint32_t)j->n_prompt;
        send_record(j, &r);
    }
}

uint32_t answer_reason(const struct job *j, enum engine_reason reason)
{
    switch (reason) {
    case ENGINE_STOP:
        return LANE_REASON_STOP;
    case ENGINE_LENGTH:
        return j->kind == LANE_KIND_SCORE || j->kind == LANE_KIND_EMBED ? LANE_REASON_STOP
                                                                        : LANE_REASON_LENGTH;
    case ENGINE_CONTEXT:
        return LANE_REASON_CONTEXT;
    case ENGINE_CANCELLED:
        return j->stop_reason ? j->stop_reason : LANE_REASON_CANCELLED;
    default:
        return LANE_REASON_ERROR;
    }
}

static void say_session(const struct job *j, struct lane_done *ret)
{
    ret->session = j->saved;
    ret->session_err = j->saved == LANE_SESSION_NOT_SAVED ? j->save_error.code : 0;
    ret->session_bytes = j->saved_bytes;
    error_fit(ret->session_cause, sizeof(ret->session_cause), j->save_error.text);
}

void answer_done(struct job *j, uint32_t reason, const struct engine_usage *usage)
{
    struct lane_record r;
    char *out;
    size_t len = flush_text(j, &out);
    const char *text = out;

    session_unlock(&j->session); /* who hears of the end may go on with it at once, anywhere */
    if (j->calls) {
        calls_push(j->calls, CALLS_PLAIN, text, len);
        calls_finish(j->calls, reason == LANE_REASON_STOP && j->stop.hit < 0);
    } else {
        skip_sent(j, &text, &len);
        answer_text(j->worker, j->id, j->index, text, len);
    }
    lane_record_init(&r, LANE_DONE, j->id);
    r.done.reason = reason;
    r.done.n_prompt = j->n_prompt;
    r.done.seed = j->seed;
    r.done.replay = j->n_forced ? 1 : 0;
    r.done.n_new = (int32_t)j->n_forced;
    if (usage) {
        r.done.n_cached = j->n_again ? (int32_t)j->session.head.n_text - 1 : usage->n_cached;
        r.done.n_new = usage->n_new - j->n_again;
        r.done.queue_ns = usage->queue_ns;
        r.done.prefill_ns = usage->prefill_ns;
        r.done.decode_ns = usage->decode_ns;
        r.done.kv_bytes = usage->kv_bytes;
        r.done.kv_bytes_full = usage->kv_bytes_full;
        r.done.n_slots = usage->n_slots;
        r.done.n_evicted = usage->n_evicted;
        r.done.n_drafted = usage->n_drafted;
        r.done.n_accepted = usage->n_accepted;
    }
    if (j->ended) {
        r.done.reason = j->ended;
    }
    if (j->stop.hit >= 0) {
        r.done.reason = LANE_REASON_STOP;
        r.done.stop_index = (uint32_t)j->stop.hit + 1;
    }
    if (j->calls) {
        r.done.n_calls = calls_count(j->calls);
        r.done.broken = calls_broken(j->calls);
        if (r.done.n_calls && r.done.reason == LANE_REASON_STOP && j->stop.hit < 0) {
            r.done.reason = LANE_REASON_TOOL_CALLS;
        }
    }
    say_session(j, &r.done);
    send_record(j, &r);
}

void answer_stopped(struct job *j)
{
    uint32_t n_said = j->rec.e_request.n_forced; /* before a crash */
    struct lane_record r;

    lane_record_init(&r, LANE_DONE, j->id);
    r.done.reason = j->stop_reason;
    r.done.seed = j->rec.e_request.seed;
    r.done.replay = n_said ? 1 : 0;
    r.done.n_new = (int32_t)n_said;
    say_session(j, &r.done);
    send_record(j, &r);
}

void answer_event(void *arg, const struct engine_event *ev)
{
    struct worker *w = arg;
    struct job *j = ev->user;

    switch (ev->type) {
    case ENGINE_EV_PROGRESS:
        on_progress(j, ev);
        break;
    case ENGINE_EV_TOKEN:
        on_token(j, ev);
        break;
    case ENGINE_EV_SCORE:
        on_score(j, ev);
        break;
    case ENGINE_EV_HIDDEN:
        on_hidden(j, ev);
        break;
    case ENGINE_EV_DONE:
        if (ev->reason == ENGINE_ERROR) {
            answer_error(w, j->id, &ev->error, 0, 0);
        } else {
            if (job_save(j, ev)) {
                break;
            }
            answer_done(j, answer_reason(j, ev->reason), &ev->usage);
        }
        job_end(w, j);
        break;
    }
}

static uint32_t code_of(int err)
{
    switch (err) {
    case -EINVAL:
    case -EBADMSG:
        return LANE_ERR_INVALID;
    case -EMSGSIZE:
        return LANE_ERR_CONTEXT_OVERFLOW;
    case -E2BIG:
        return LANE_ERR_TOO_LARGE;
    case -EBUSY:
        return LANE_ERR_BUSY;
    case -ENOMEM:
        return LANE_ERR_NO_MEMORY;
    case -ENOTSUP:
        return LANE_ERR_UNSUPPORTED;
    case -ESTALE:
        return LANE_ERR_MODEL;
    case -ENOENT:
        return LANE_ERR_NOT_FOUND;
    default:
        return LANE_ERR_INTERNAL;
    }
}

void answer_error_record(const uint8_t id[16], const struct error *e, uint64_t count_a,
                         uint64_t count_b, struct lane_record *ret)
{
    lane_record_init(ret, LANE_ERROR, id);
    ret->error.code = code_of(e->code);
    ret->error.err = e->code;
    ret->error.count_a = count_a;
    ret->error.count_b = count_b;
    error_fit(ret->error.text, sizeof(ret->error.text), e->text);
}

void answer_error(struct worker *w, const uint8_t id[16], const struct error *e, uint64_t count_a,
                  uint64_t count_b)
{
    struct lane_record r;

    answer_error_record(id, e, count_a, count_b, &r);
    worker_send(w, &r);
}

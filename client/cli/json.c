/* SPDX-License-Identifier: Apache-2.0 */
/* --json: one object a line. Each has `type`; the last has `finish_reason`, `usage`, `timings`,
 * `kv` whatever happened, so that a script may read it alone. "v" is the version of this format.
 * Numbers that may exceed 2^53 (seeds) are strings, because most readers of JSON would round them.
 */

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/batch.h"

enum { FORMAT_VERSION = 1 };

static void line(struct out *o, json_t *obj)
{
    char *text = obj ? json_dumps(obj, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

    if (text) {
        out_put(o, text, strlen(text));
        out_put(o, "\n", 1);
    } else {
        o->err = o->err ? o->err : -ENOMEM;
    }
    free(text);
    json_decref(obj);
}

/* JSON knows no infinity: log-probability of an impossible token is null. */
static json_t *real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* A token's bytes: as text when they are whole characters, else as numbers. */
static void put_bytes(json_t *obj, const char *text, size_t len)
{
    json_t *bytes;

    if (input_bad_byte(text, len) < 0) {
        (void)json_object_set_new(obj, "text", json_stringn_nocheck(text, len));
        return;
    }
    bytes = json_array();
    for (size_t i = 0; i < len; i++) {
        (void)json_array_append_new(bytes, json_integer((uint8_t)text[i]));
    }
    (void)json_object_set_new(obj, "bytes", bytes);
}

static json_t *alternatives(const struct pipit_event *ev)
{
    json_t *list = json_array();

    for (size_t i = 0; i < ev->n_alts; i++) {
        const struct pipit_alt *a = &ev->alts[i];
        json_t *one = json_pack("{s:i, s:o}", "token", a->token, "logprob", real(a->logprob));

        put_bytes(one, a->text, a->text_len);
        (void)json_array_append_new(list, one);
    }
    return list;
}

/* Of which part of the answer; without it, of its text. */
static void put_part(json_t *obj, const struct pipit_event *ev)
{
    static const char *const parts[] = {"text", "reasoning", "name", "arguments"};

    if (ev->part != PIPIT_PART_TEXT) {
        (void)json_object_set_new(obj, "part", json_string(parts[ev->part & 3]));
    }
    if (ev->part >= PIPIT_PART_NAME) {
        (void)json_object_set_new(obj, "call", json_integer(ev->call));
    }
}

/* As in OpenAI's API, arguments as a text. */
static json_t *calls(const struct answer *a)
{
    json_t *list = json_array();

    for (size_t i = 0; i < a->n_calls; i++) {
        const struct call *c = &a->calls[i];
        const char *said = c->arguments.data ? c->arguments.data : "{}";

        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", c->id, "type",
                                                    "function", "function", "name", c->name.data,
                                                    "arguments", said));
    }
    return list;
}

static json_t *token(const struct pipit_event *ev, bool logprobs)
{
    json_t *obj =
        json_pack("{s:s, s:i, s:i}", "type", "token", "index", ev->index, "token", ev->token);

    put_bytes(obj, ev->text, ev->text_len);
    put_part(obj, ev);
    if (logprobs) {
        (void)json_object_set_new(obj, "logprob", real(ev->logprob));
        (void)json_object_set_new(obj, "alternatives", alternatives(ev));
    }
    return obj;
}

void json_event(struct out *o, const struct pipit_request *q, const struct pipit_event *ev,
                bool logprobs)
{
    char id[33];
    json_t *obj;

    switch (ev->type) {
    case PIPIT_EVENT_ACCEPTED:
        id_text(pipit_request_id(q), id);
        line(o, json_pack("{s:s, s:i, s:s, s:I}", "type", "accepted", "v", (int)FORMAT_VERSION,
                          "id", id, "ahead", (json_int_t)ev->n_ahead));
        break;
    case PIPIT_EVENT_PROGRESS:
        if (ev->loading) {
            line(o, json_pack("{s:s, s:f}", "type", "loading", "progress",
                              ev->n_total ? (double)ev->n_done / ev->n_total : 0));
            break;
        }
        line(o, json_pack("{s:s, s:I, s:I}", "type", "progress", "done", (json_int_t)ev->n_done,
                          "total", (json_int_t)ev->n_total));
        break;
    case PIPIT_EVENT_TOKEN:
        line(o, token(ev, logprobs));
        break;
    case PIPIT_EVENT_TEXT:
        obj = json_pack("{s:s}", "type", "text");
        put_bytes(obj, ev->text, ev->text_len);
        put_part(obj, ev);
        line(o, obj);
        break;
    case PIPIT_EVENT_RESUMED:
        line(o, json_pack("{s:s}", "type", "resumed"));
        break;
    default:
        break; /* the last line is json_last() */
    }
}

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static double rate(int64_t n, int64_t ns)
{
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static json_t *error_object(const struct pipit_error *e)
{
    json_t *obj = json_pack("{s:s, s:s}", "code", pipit_code_name(e->code), "text", e->text);

    if (e->count_a || e->count_b) {
        (void)json_object_set_new(obj, "count_a", json_integer((json_int_t)e->count_a));
        (void)json_object_set_new(obj, "count_b", json_integer((json_int_t)e->count_b));
    }
    if (e->retry_after_ms) {
        (void)json_object_set_new(obj, "retry_after_ms", json_integer(e->retry_after_ms));
    }
    return obj;
}

static const char *reason(const struct answer *a)
{
    if (a->error.code == PIPIT_E_CONTEXT_OVERFLOW) {
        return "context";
    }
    return a->has_done ? pipit_reason_name(a->done.reason) : a->signal ? "cancelled" : "error";
}

/* NULL without memory. */
static json_t *last(const struct pipit_client *c, const struct answer *a)
{
    const struct pipit_done *d = &a->done;
    const struct pipit_info *info = c ? pipit_client_info(c) : NULL;
    char id[33];
    char seed[24];
    json_t *obj;

    id_text(a->id, id);
    (void)snprintf(seed, sizeof(seed), "%llu", (unsigned long long)d->seed);
    obj = json_pack("{s:s, s:i, s:s, s:s, s:{s:i, s:i, s:i, s:i, s:i, s:i}, s:{s:f, s:f, s:f, s:f, "
                    "s:f, s:f, s:f, s:f},"
                    " s:{s:I, s:I, s:I, s:I}}",
                    "type", a->error.code ? "error" : "done", "v", (int)FORMAT_VERSION, "id", id,
                    "finish_reason", reason(a), "usage", "prompt_tokens", d->n_prompt,
                    "cached_tokens", d->n_cached, "completion_tokens", d->n_new, "total_tokens",
                    d->n_prompt + d->n_new, "drafted_tokens", d->n_drafted, "accepted_tokens",
                    d->n_accepted, "timings", "queue_ms", ms(d->queue_ns), "load_ms",
                    ms(d->load_ns), "prefill_ms", ms(d->prefill_ns), "decode_ms", ms(d->decode_ns),
                    "ttft_ms", a->first_ns ? ms(a->first_ns - a->start_ns) : 0.0, "total_ms",
                    ms(a->end_ns - a->start_ns), "prefill_per_second",
                    rate(d->n_prompt - d->n_cached, d->prefill_ns), "decode_per_second",
                    rate(d->n_new, d->decode_ns), "kv", "bytes", (json_int_t)d->kv_bytes,
                    "bytes_full", (json_int_t)d->kv_bytes_full, "slots", (json_int_t)d->n_slots,
                    "evicted", (json_int_t)d->n_evicted);
    if (!obj) {
        return NULL;
    }
    (void)json_object_set_new(obj, "text",
                              json_stringn_nocheck(a->text.data ? a->text.data : "", a->text.len));
    if (a->reasoning.len) {
        (void)json_object_set_new(obj, "reasoning",
                                  json_stringn_nocheck(a->reasoning.data, a->reasoning.len));
    }
    if (a->n_calls) {
        (void)json_object_set_new(obj, "tool_calls", calls(a));
    }
    if (a->done.broken) {
        (void)json_object_set_new(obj, "broken_call", json_true());
    }
    if (a->has_done) {
        (void)json_object_set_new(obj, "seed", json_string(seed));
        if (d->stop_index) {
            (void)json_object_set_new(obj, "stop_index", json_integer(d->stop_index));
        }
        if (d->replay) {
            (void)json_object_set_new(obj, "replay",
                                      json_string(d->replay == 1 ? "exact" : "approximate"));
        }
    }
    if (info) {
        (void)json_object_set_new(obj, "model", json_string(info->model));
    }
    if (a->error.code) {
        (void)json_object_set_new(obj, "error", error_object(&a->error));
    }
    return obj;
}

void json_last(struct out *o, const struct pipit_client *c, const struct answer *a)
{
    line(o, last(c, a));
}

void json_batch(struct out *o, const struct pipit_client *c, const struct answer *a, size_t index,
                json_t *custom_id)
{
    json_t *obj = last(c, a);

    if (obj) {
        (void)json_object_set_new(obj, "index", json_integer((json_int_t)index));
    }
    if (obj && custom_id) {
        (void)json_object_set(obj, "custom_id", custom_id);
    }
    line(o, obj);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts in, answers out. All prompts under all policies of a page class are one queue, so that
 * the engine's batches stay full (engines.h); an answer's text is collected by the streaming
 * detokenizer as its tokens come. */

#include "bench/eval/generate.h"

#include <errno.h>
#include <limits.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "bench/eval/engines.h"
#include "engine/text/chat.h"
#include "engine/text/detok.h"
#include "engine/text/tok.h"

struct prompt {
    char *id;
    int32_t *tokens;
    int32_t n_tokens;
    int32_t max_tokens;
    int32_t n_draft;
    float temperature;
};

struct list {
    struct prompt *v;
    int n;
};

struct policy_answers;

struct answer {
    struct policy_answers *policy;
    struct detok detok;
    char *text;
    size_t len;
    size_t cap;
    enum engine_reason reason;
    struct engine_usage usage;
};

struct policy_answers {
    struct run *run;
    const char *kv;
    struct answer *v; /* (prompts) */
    int n_done;
};

struct run {
    const struct list *list;
    struct engine *e;
    FILE *out;
    struct error error;
    int err;
};

static int tokenize(struct engine *e, const char *template, json_t *line, struct prompt *p,
                    struct error *reterr)
{
    const struct tok *tok = engine_tok(e);
    const char *prompt = json_string_value(json_object_get(line, "prompt"));
    const char *user = json_string_value(json_object_get(line, "user"));
    const char *system = json_string_value(json_object_get(line, "system"));
    size_t n;
    int err;

    if (prompt) {
        err = tok_encode_new(tok, prompt, strlen(prompt), TOK_ADD_BOS, &p->tokens, &n, reterr);
    } else if (user) {
        struct chat_message m[2];
        struct chat chat;
        size_t n_m = 0;

        err = chat_choose(template, engine_gguf(e), tok, &chat, reterr);
        if (err) {
            return err;
        }
        if (system) {
            m[n_m++] = (struct chat_message){CHAT_SYSTEM, system, strlen(system)};
        }
        m[n_m++] = (struct chat_message){CHAT_USER, user, strlen(user)};
        err = chat_render(&chat, tok, m, n_m, true, &p->tokens, &n, reterr);
        chat_finish(&chat);
    } else {
        return error_set(reterr, -EBADMSG, "neither \"prompt\" nor \"user\"");
    }
    p->n_tokens = err ? 0 : (int32_t)n;
    return err;
}

static int load_line(struct engine *e, const char *template, const char *text, struct prompt *p,
                     struct error *reterr)
{
    json_error_t je;
    json_t *line = json_loads(text, 0, &je);
    int err = 0;

    if (!line) {
        return error_set(reterr, -EBADMSG, "%s", je.text);
    }
    const char *id = json_string_value(json_object_get(line, "id"));
    json_int_t max = json_integer_value(json_object_get(line, "max_tokens"));

    json_int_t draft = json_integer_value(json_object_get(line, "draft"));
    double temperature = json_number_value(json_object_get(line, "temperature"));

    if (draft < 0 || draft > ENGINE_MAX_DRAFT) {
        err = error_set(reterr, -EBADMSG, "\"draft\" must be from 0 to %d", (int)ENGINE_MAX_DRAFT);
    } else if (!id || max < 1 || max > 100000) {
        err =
            error_set(reterr, -EBADMSG, "\"id\" (text) and \"max_tokens\" (1..100000) are needed");
    } else {
        p->id = strdup(id);
        p->max_tokens = (int32_t)max;
        p->n_draft = (int32_t)draft;
        p->temperature = (float)temperature;
        err = p->id ? tokenize(e, template, line, p, reterr) : -ENOMEM;
    }
    json_decref(line);
    return err;
}

static void clear(struct list *list)
{
    for (int i = 0; i < list->n; i++) {
        free(list->v[i].id);
        free(list->v[i].tokens);
    }
    free(list->v);
    *list = (struct list){0};
}

static int load(struct engine *e, const char *path, const char *template, struct list *ret,
                struct error *reterr)
{
    struct list list = {0};
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int err = 0;

    if (!f) {
        return error_set_errno(reterr, -errno, "cannot read %s", path);
    }
    while (!err && getline(&line, &cap, f) > 0) {
        struct prompt *v = realloc(list.v, (size_t)(list.n + 1) * sizeof(*v));

        if (!v) {
            err = error_set(reterr, -ENOMEM, "no memory for %s", path);
            break;
        }
        list.v = v;
        memset(&v[list.n], 0, sizeof(*v));
        list.n++;
        err = load_line(e, template, line, &v[list.n - 1], reterr);
        if (err) {
            (void)error_prefix(reterr, "%s:%d", path, list.n);
        }
    }
    free(line);
    (void)fclose(f);
    if (err) {
        clear(&list);
        return err;
    }
    *ret = list;
    return 0;
}

static int write_answer(const struct run *r, const struct prompt *p, const struct answer *a)
{
    static const char *const reasons[] = {"stop", "length", "context", "cancelled", "error"};
    const struct engine_usage *u = &a->usage;
    json_t *o = json_pack(
        "{s:s, s:s, s:s%, s:i, s:i, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:i, s:i, s:i}", "id",
        p->id, "policy", a->policy->kv, "text", a->text ? a->text : "", a->len, "n_prompt",
        (int)u->n_prompt, "n_new", (int)u->n_new, "reason", reasons[a->reason], "kv_bytes",
        (json_int_t)u->kv_bytes, "kv_bytes_full", (json_int_t)u->kv_bytes_full, "n_slots",
        (json_int_t)u->n_slots, "n_evicted", (json_int_t)u->n_evicted, "tokens_per_step",
        engines_tokens_read(r->e, u), "prefill_ms", (double)u->prefill_ns * 1e-6, "decode_ms",
        (double)u->decode_ns * 1e-6, "n_drafted", (int)u->n_drafted, "n_accepted",
        (int)u->n_accepted, "n_exited", (int)u->n_exited);
    int err = !o || json_dumpf(o, r->out, JSON_COMPACT) || fputc('\n', r->out) == EOF ? -EIO : 0;

    json_decref(o);
    return err;
}

static void write_policy(struct run *r, const struct policy_answers *p)
{
    for (int i = 0; i < r->list->n && !r->err; i++) {
        r->err = write_answer(r, &r->list->v[i], &p->v[i]);
        free(p->v[i].text);
        p->v[i].text = NULL;
    }
    if (!r->err && fflush(r->out)) {
        r->err = -EIO;
    }
    if (r->err) {
        (void)error_set(&r->error, r->err, "cannot write the answers");
    }
}

static void add_token(struct run *r, struct answer *a, int32_t token)
{
    const struct tok *tok = engine_tok(r->e);
    size_t need = a->len + detok_bound(tok) + 8;

    if (need > a->cap) {
        char *text = realloc(a->text, need * 2);

        if (!text) {
            r->err = error_set(&r->error, -ENOMEM, "no memory for the answers");
            return;
        }
        a->text = text;
        a->cap = need * 2;
    }
    a->len += detok_push(&a->detok, token, a->text + a->len);
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct answer *a = ev->user;
    struct policy_answers *p = a->policy;
    struct run *r = p->run;

    (void)arg;
    if (ev->type == ENGINE_EV_TOKEN && !tok_is_end(engine_tok(r->e), ev->token) && !r->err) {
        add_token(r, a, ev->token);
    } else if (ev->type == ENGINE_EV_DONE) {
        a->reason = ev->reason;
        a->usage = ev->usage;
        if (ev->reason == ENGINE_ERROR && !r->err) {
            r->err = ev->error.code;
            r->error = ev->error;
        }
        if (++p->n_done % 10 == 0 || p->n_done == r->list->n) {
            (void)fprintf(stderr, "pipit-eval: %s: %d of %d prompts\n", p->kv, p->n_done,
                          r->list->n);
        }
        if (p->n_done == r->list->n && !r->err) {
            write_policy(r, p);
        }
    }
}

static int submit(struct run *r, struct policy_answers *p, struct error *reterr)
{
    int err = 0;

    for (int i = 0; i < r->list->n && !err; i++) {
        const struct prompt *in = &r->list->v[i];
        struct engine_request q = {.kind = ENGINE_GENERATE,
                                   .prompt = in->tokens,
                                   .n_prompt = in->n_tokens,
                                   .max_tokens = in->max_tokens,
                                   .n_draft = in->n_draft,
                                   .kv = p->kv,
                                   .principal = 1,
                                   .user = &p->v[i]};
        uint64_t handle;

        p->v[i].policy = p;
        detok_init(&p->v[i].detok, engine_tok(r->e), in->tokens[in->n_tokens - 1], false);
        q.sampler = sampler_params_default();
        q.sampler.temperature = in->temperature;
        err = engine_submit(r->e, &q, &handle, reterr);
        if (err) {
            (void)error_prefix(reterr, "policy %s, prompt %s", p->kv, in->id);
        }
    }
    return err;
}

int generate_run(const struct generate_job *job, struct error *reterr)
{
    struct engines engines;
    struct list list = {0};
    struct run r = {.list = &list, .out = job->out};
    AUTO_FREE struct policy_answers *p = calloc((size_t)job->n_kv, sizeof(*p));
    int err = engines_open(&job->engine, NULL, job->kv, job->n_kv, INT_MAX, &engines, reterr);

    if (!err && !p) {
        err = error_set(reterr, -ENOMEM, "no memory for the answers");
    }
    if (!err) {
        err = load(engines.open, job->path, job->chat_template, &list, reterr);
    }
    for (int i = 0; i < job->n_kv && !err; i++) {
        p[i] = (struct policy_answers){.run = &r, .kv = job->kv[i]};
        p[i].v = calloc((size_t)list.n, sizeof(*p[i].v));
        err = p[i].v ? 0 : error_set(reterr, -ENOMEM, "no memory for the answers");
    }
    for (int k = 0; k < engines.n && !err; k++) {
        int left = 1;

        err = engines_use(&engines, k, &r.e, reterr);
        for (int i = 0; i < job->n_kv && !err; i++) {
            err = engines.of[i] == k ? submit(&r, &p[i], reterr) : 0;
        }
        while (!err && !r.err && left > 0) {
            left = engine_step(r.e, on_event, NULL);
        }
        if (!err && (r.err || left < 0)) {
            err = r.err ? r.err : left;
            *reterr = r.error;
        }
    }
    engines_close(&engines); /* requests that an error left go with it */
    for (int i = 0; p && i < job->n_kv; i++) {
        for (int j = 0; p[i].v && j < list.n; j++) {
            free(p[i].v[j].text);
        }
        free(p[i].v);
    }
    clear(&list);
    return err;
}

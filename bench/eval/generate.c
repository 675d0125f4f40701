/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts in, answers out. All prompts are submitted in waves of the engine's sequences; an
 * answer's text is collected by the streaming detokenizer as its tokens come and written when its
 * whole wave is done, so that answers stand in the order of the prompts. */

#include "bench/eval/generate.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat.h"
#include "engine/text/detok.h"
#include "engine/text/tok.h"

struct answer {
    struct detok detok;
    char *text;
    size_t len;
    size_t cap;
    enum engine_reason reason;
    struct engine_usage usage;
    struct error error;
    int err;
};

static int tokenize(struct engine *e, json_t *line, struct generate_prompt *p, struct error *reterr)
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

        err = chat_open(tok, engine_gguf(e), &chat, reterr);
        if (err) {
            return err;
        }
        if (system) {
            m[n_m++] = (struct chat_message){CHAT_SYSTEM, system, strlen(system)};
        }
        m[n_m++] = (struct chat_message){CHAT_USER, user, strlen(user)};
        err = chat_render(&chat, tok, m, n_m, true, &p->tokens, &n, reterr);
    } else {
        return error_set(reterr, -EBADMSG, "neither \"prompt\" nor \"user\"");
    }
    p->n_tokens = err ? 0 : (int32_t)n;
    return err;
}

static int load_line(struct engine *e, const char *text, struct generate_prompt *p,
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

    if (!id || max < 1 || max > 100000) {
        err =
            error_set(reterr, -EBADMSG, "\"id\" (text) and \"max_tokens\" (1..100000) are needed");
    } else {
        p->id = strdup(id);
        p->max_tokens = (int32_t)max;
        err = p->id ? tokenize(e, line, p, reterr) : -ENOMEM;
    }
    json_decref(line);
    return err;
}

int generate_load(struct engine *e, const char *path, struct generate_list *ret,
                  struct error *reterr)
{
    struct generate_list list = {0};
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int err = 0;

    if (!f) {
        return error_set_errno(reterr, -errno, "cannot read %s", path);
    }
    while (!err && getline(&line, &cap, f) > 0) {
        struct generate_prompt *v = realloc(list.v, (size_t)(list.n + 1) * sizeof(*v));

        if (!v) {
            err = error_set(reterr, -ENOMEM, "no memory for %s", path);
            break;
        }
        list.v = v;
        memset(&v[list.n], 0, sizeof(*v));
        list.n++;
        err = load_line(e, line, &v[list.n - 1], reterr);
        if (err) {
            (void)error_prefix(reterr, "%s:%d", path, list.n);
        }
    }
    free(line);
    (void)fclose(f);
    if (err) {
        generate_clear(&list);
        return err;
    }
    *ret = list;
    return 0;
}

void generate_clear(struct generate_list *list)
{
    for (int i = 0; i < list->n; i++) {
        free(list->v[i].id);
        free(list->v[i].tokens);
    }
    free(list->v);
    *list = (struct generate_list){0};
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct answer *a = ev->user;
    const struct tok *tok = arg;

    if (ev->type == ENGINE_EV_TOKEN && !tok_is_end(tok, ev->token)) {
        size_t need = a->len + detok_bound(tok) + 8;

        if (need > a->cap) {
            char *text = realloc(a->text, need * 2);

            if (!text) {
                a->err = -ENOMEM;
                return;
            }
            a->text = text;
            a->cap = need * 2;
        }
        a->len += detok_push(&a->detok, ev->token, a->text + a->len);
    } else if (ev->type == ENGINE_EV_DONE) {
        a->reason = ev->reason;
        a->usage = ev->usage;
        if (ev->reason == ENGINE_ERROR) {
            a->err = ev->error.code;
            a->error = ev->error;
        }
    }
}

static int write_answer(FILE *out, const struct generate_prompt *p, const char *policy,
                        struct answer *a)
{
    static const char *const reasons[] = {"stop", "length", "context", "cancelled", "error"};
    json_t *o = json_pack("{s:s, s:s, s:s%, s:i, s:i, s:s, s:I, s:I, s:I, s:I, s:f, s:f}", "id",
                          p->id, "policy", policy, "text", a->text ? a->text : "", a->len,
                          "n_prompt", (int)a->usage.n_prompt, "n_new", (int)a->usage.n_new,
                          "reason", reasons[a->reason], "kv_bytes", (json_int_t)a->usage.kv_bytes,
                          "kv_bytes_full", (json_int_t)a->usage.kv_bytes_full, "n_slots",
                          (json_int_t)a->usage.n_slots, "n_evicted", (json_int_t)a->usage.n_evicted,
                          "prefill_ms", (double)a->usage.prefill_ns * 1e-6, "decode_ms",
                          (double)a->usage.decode_ns * 1e-6);

    if (!o || json_dumpf(o, out, JSON_COMPACT) || fputc('\n', out) == EOF || fflush(out)) {
        json_decref(o);
        return -EIO;
    }
    json_decref(o);
    return 0;
}

static int run_wave(struct engine *e, const struct generate_prompt *prompts, int n,
                    struct answer *answers, struct error *reterr)
{
    const struct tok *tok = engine_tok(e);

    for (int i = 0; i < n; i++) {
        const struct generate_prompt *p = &prompts[i];
        struct engine_request q = {.kind = ENGINE_GENERATE,
                                   .prompt = p->tokens,
                                   .n_prompt = p->n_tokens,
                                   .max_tokens = p->max_tokens,
                                   .principal = 1,
                                   .user = &answers[i]};
        uint64_t handle;

        q.sampler = sampler_params_default();
        q.sampler.temperature = 0;
        detok_init(&answers[i].detok, tok, p->tokens[p->n_tokens - 1], false);
        int err = engine_submit(e, &q, &handle, reterr);
        if (err) {
            (void)error_prefix(reterr, "prompt %s", p->id);
            return err;
        }
    }
    int left;
    do {
        left = engine_step(e, on_event, (void *)(uintptr_t)tok);
    } while (left > 0);
    return left;
}

int generate_run(struct engine *e, const struct generate_list *list, int n_seqs, const char *policy,
                 FILE *out, struct error *reterr)
{
    struct answer *answers = calloc((size_t)n_seqs, sizeof(*answers));
    int err = 0;

    if (!answers) {
        return error_set(reterr, -ENOMEM, "no memory for the answers");
    }
    for (int at = 0; at < list->n && !err; at += n_seqs) {
        int n = list->n - at < n_seqs ? list->n - at : n_seqs;

        for (int i = 0; i < n; i++) {
            answers[i] = (struct answer){.text = answers[i].text, .cap = answers[i].cap};
        }
        err = run_wave(e, list->v + at, n, answers, reterr);
        for (int i = 0; i < n && !err; i++) {
            err = answers[i].err ? answers[i].err
                                 : write_answer(out, &list->v[at + i], policy, &answers[i]);
            if (err && reterr) {
                *reterr = answers[i].error;
                (void)error_set(reterr, err, "cannot write the answers");
            }
        }
        (void)fprintf(stderr, "pipit-eval: %s: %d of %d prompts\n", policy, at + n, list->n);
    }
    for (int i = 0; i < n_seqs; i++) {
        free(answers[i].text);
    }
    free(answers);
    return err;
}

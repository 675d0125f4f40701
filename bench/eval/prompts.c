/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/eval/prompts.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/text/chat.h"
#include "engine/text/tok.h"

static int tokenize(const struct engine *e, const char *template, json_t *line, struct prompt *p,
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

static int32_t common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    size_t n = 0;

    while (n < n_a && n < n_b && a[n] == b[n]) {
        n++;
    }
    return (int32_t)n;
}

/* The line's texts are tokenized as one: a token that spans a border belongs to what follows. */
static int tokenize_scored(const struct tok *tok, json_t *line, struct prompt *p,
                           struct error *reterr)
{
    static const char *const keys[] = {"prompt", "given", "scored"};
    AUTO_FREE char *text = NULL;
    AUTO_FREE int32_t *all = NULL;
    size_t n_all = 0;
    size_t len = 0;
    size_t ends[3];
    int32_t at[2] = {0, 0};

    for (int i = 0; i < 3; i++) {
        len += json_string_length(json_object_get(line, keys[i]));
        ends[i] = len;
    }
    text = malloc(len + 1);
    if (!text) {
        return error_set(reterr, -ENOMEM, "no memory for a line");
    }
    for (int i = 0; i < 3; i++) {
        json_t *v = json_object_get(line, keys[i]);
        size_t n = json_string_length(v);

        memcpy(text + ends[i] - n, n ? json_string_value(v) : "", n);
    }
    int err = tok_encode_new(tok, text, len, TOK_ADD_BOS, &all, &n_all, reterr);

    for (int i = 0; i < 2 && !err; i++) {
        AUTO_FREE int32_t *part = NULL;
        size_t n = 0;

        err = tok_encode_new(tok, text, ends[i], TOK_ADD_BOS, &part, &n, reterr);
        at[i] = err ? 0 : common(all, n_all, part, n);
    }
    if (err) {
        return err;
    }
    if (at[0] < 1 || at[1] < at[0] || (size_t)at[1] >= n_all) {
        return error_set(reterr, -EBADMSG, "\"prompt\" and \"scored\" need a token each");
    }
    p->tokens = STEAL(all);
    p->n_tokens = at[0];
    p->n_given = at[1] - at[0];
    p->n_forced = p->max_tokens = (int32_t)n_all - at[0];
    return 0;
}

static int load_line(const struct engine *e, const char *template, const char *text,
                     struct prompt *p, struct error *reterr)
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
    } else if (id && json_is_string(json_object_get(line, "scored"))) {
        p->id = strdup(id);
        err = p->id ? tokenize_scored(engine_tok(e), line, p, reterr) : -ENOMEM;
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

/* Families lie together in the file. All lines are scored, or none. */
static int find_family(struct prompts *list, struct error *reterr)
{
    struct prompt *p = &list->v[list->n - 1];
    const struct prompt *before = list->n > 1 ? p - 1 : p;

    if (!p->n_forced != !before->n_forced) {
        return error_set(reterr, -EBADMSG, "lines to be scored beside lines to be answered");
    }
    p->family = list->n - 1;
    if (p->n_tokens == before->n_tokens && common(p->tokens, (size_t)p->n_tokens, before->tokens,
                                                  (size_t)p->n_tokens) == p->n_tokens) {
        p->family = before->family;
    }
    return 0;
}

void prompts_clear(struct prompts *list)
{
    for (int i = 0; i < list->n; i++) {
        free(list->v[i].id);
        free(list->v[i].tokens);
    }
    free(list->v);
    *list = (struct prompts){0};
}

int prompts_load(const struct engine *e, const char *path, const char *template,
                 struct prompts *ret, struct error *reterr)
{
    struct prompts list = {0};
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
        err = err ? err : find_family(&list, reterr);
        if (err) {
            (void)error_prefix(reterr, "%s:%d", path, list.n);
        }
    }
    free(line);
    (void)fclose(f);
    if (err) {
        prompts_clear(&list);
        return err;
    }
    *ret = list;
    return 0;
}

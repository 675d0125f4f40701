/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations to token ids: messages become the template's variables, its text becomes tokens.
 * Trusted are the roles, whose names are ours, and the spelling of BOS, EOS and their like;
 * everything that somebody said is not. */

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "engine/text/chat.h"
#include "engine/text/jinja/jinja.h"
#include "engine/text/tok.h"

struct conversation {
    const struct jinja *program;
    const struct tok *tok;
    const struct chat_message *messages;
    size_t n;
    bool add_generation_prompt;
    const struct chat_tools *tools; /* or NULL */
    json_t *definitions;            /* or NULL */
    json_t *arguments;              /* a list, of all calls */
};

/* Without such a token the variable stays undefined, as with transformers. */
static void set_token(struct jinja_run *r, const struct tok *t, const char *name, int32_t id)
{
    const char *text;
    size_t len;

    if (id >= 0) {
        tok_token_text(t, id, &text, &len);
        jinja_set(r, name, jinja_string(r, text, len, true));
    }
}

static struct jinja_value text_of(struct jinja_run *r, const struct chat_text *t)
{
    return jinja_string(r, t->ptr ? t->ptr : "", t->len, false);
}

static struct jinja_value calls_of(const struct conversation *c, struct jinja_run *r,
                                   const struct chat_message *m)
{
    struct jinja_value list = jinja_list(r);

    for (size_t i = 0; i < m->n_calls; i++) {
        const struct chat_call *call = &c->tools->calls[m->first_call + i];
        struct jinja_value one = jinja_dict(r);
        struct jinja_value function = jinja_dict(r);

        if (call->id.len) {
            jinja_dict_set(r, one, "id", text_of(r, &call->id));
        }
        jinja_dict_set(r, one, "type", jinja_string(r, "function", 8, true));
        jinja_dict_set(r, function, "name", text_of(r, &call->name));
        jinja_dict_set(r, function, "arguments",
                       jinja_json(r, json_array_get(c->arguments, m->first_call + i), false));
        jinja_dict_set(r, one, "function", function);
        jinja_list_add(r, list, one);
    }
    return list;
}

/* The names that templates have for it. gpt-oss' refuses it beside a text and calls. */
static void set_reasoning(const struct conversation *c, struct jinja_run *r, struct jinja_value one,
                          const struct chat_message *m)
{
    if (!m->reasoning.len) {
        return;
    }
    jinja_dict_set(r, one, "reasoning_content", text_of(r, &m->reasoning));
    if (jinja_mentions(c->program, "thinking") && !(m->n_calls && m->len)) {
        jinja_dict_set(r, one, "thinking", text_of(r, &m->reasoning));
    }
}

static void bind(void *arg, struct jinja_run *r)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const struct conversation *c = arg;
    struct jinja_value list = jinja_list(r);

    for (size_t i = 0; i < c->n; i++) {
        const struct chat_message *m = &c->messages[i];
        const char *role = roles[m->role];
        struct jinja_value one = jinja_dict(r);

        jinja_dict_set(r, one, "role", jinja_string(r, role, strlen(role), true));
        jinja_dict_set(r, one, "content", jinja_string(r, m->text, m->len, false));
        set_reasoning(c, r, one, m);
        if (m->n_calls) {
            jinja_dict_set(r, one, "tool_calls", calls_of(c, r, m));
        }
        if (m->name.len) {
            jinja_dict_set(r, one, "name", text_of(r, &m->name));
        }
        if (m->call_id.len) {
            jinja_dict_set(r, one, "tool_call_id", text_of(r, &m->call_id));
        }
        jinja_list_add(r, list, one);
    }
    jinja_set(r, "messages", list);
    jinja_set(r, "add_generation_prompt", jinja_bool(c->add_generation_prompt));
    jinja_set(r, "tools", c->definitions ? jinja_json(r, c->definitions, false) : jinja_none());
    jinja_set(r, "documents", jinja_none());
    set_token(r, c->tok, "bos_token", tok_bos(c->tok));
    set_token(r, c->tok, "eos_token", tok_eos(c->tok));
}

/* BOS before the ids where the vocabulary wants it and it is not there. `ids` has room for it. */
static void put_bos(const struct tok *t, int32_t *ids, size_t *n)
{
    if (tok_adds_bos(t) && (*n == 0 || ids[0] != tok_bos(t))) {
        memmove(ids + 1, ids, *n * sizeof(*ids));
        ids[0] = tok_bos(t);
        (*n)++;
    }
}

static int tokenize(const struct tok *t, const struct jinja_output *out, int32_t **ret_ids,
                    size_t *ret_n, struct error *reterr)
{
    AUTO_FREE struct tok_part *parts = calloc(out->n_spans + 1, sizeof(*parts));
    AUTO_FREE int32_t *ids = calloc(tok_bound(t, out->len) + 1, sizeof(*ids));
    int r;

    if (!parts || !ids) {
        return error_set(reterr, -ENOMEM, "no memory for the prompt");
    }
    for (size_t i = 0; i < out->n_spans; i++) {
        parts[i] = (struct tok_part){out->spans[i].len, out->spans[i].trusted};
    }
    r = tok_encode_parts(t, out->text, parts, out->n_spans, ids, tok_bound(t, out->len), ret_n,
                         reterr);
    if (r == 0) {
        put_bos(t, ids, ret_n);
        *ret_ids = STEAL(ids);
    }
    return r;
}

/* Where a text is no JSON; never with words of it. */
static int bad_json(const char *what, const json_error_t *je, struct error *reterr)
{
    return error_set(reterr, -EINVAL, "%s: no valid JSON at line %d, column %d", what, je->line,
                     je->column);
}

int chat_tools_parse(const char *text, size_t len, struct json_t **ret, struct error *reterr)
{
    json_error_t je;
    json_t *list = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    size_t n = json_array_size(list);

    if (!list) {
        return bad_json("tools", &je, reterr);
    }
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_array_get(list, i);
        json_t *function = json_object_get(one, "function");

        if (!json_string_length(json_object_get(function ? function : one, "name"))) {
            json_decref(list);
            return error_set(reterr, -EINVAL, "tools: definition %zu has no name", i + 1);
        }
        if (!function &&
            json_array_set_new(list, i,
                               json_pack("{s:s, s:O}", "type", "function", "function", one)) < 0) {
            json_decref(list);
            return error_set(reterr, -ENOMEM, "no memory for the tools");
        }
    }
    if (n == 0) {
        json_decref(list);
        return error_set(reterr, -EINVAL, "tools: a list of definitions is wanted");
    }
    *ret = list;
    return 0;
}

void chat_tools_release(struct json_t *list)
{
    json_decref(list);
}

/* The arguments of all messages' calls, read before the engine runs, which may be left anywhere. */
static int read_arguments(struct conversation *c, struct error *reterr)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n; i++) {
        n += c->messages[i].n_calls;
    }
    c->arguments = json_array();
    for (size_t i = 0; c->arguments && i < n; i++) {
        const struct chat_text *text = &c->tools->calls[i].arguments;
        json_error_t je;
        json_t *one =
            text->len ? json_loadb(text->ptr, text->len, JSON_ALLOW_NUL, &je) : json_object();

        if (!one && text->len) {
            return bad_json("arguments of a call", &je, reterr);
        }
        if (one && !json_is_object(one)) {
            json_decref(one);
            return error_set(reterr, -EINVAL, "arguments of a call: a JSON object is wanted");
        }
        if (json_array_append_new(c->arguments, one) < 0) {
            return error_set(reterr, -ENOMEM, "no memory for the calls");
        }
    }
    return c->arguments ? 0 : error_set(reterr, -ENOMEM, "no memory for the calls");
}

static size_t bytes_of(const struct conversation *c)
{
    size_t bytes = c->tools ? c->tools->len : 0;

    for (size_t i = 0; i < c->n; i++) {
        const struct chat_message *m = &c->messages[i];

        bytes += m->len + m->reasoning.len + m->name.len + m->call_id.len;
        for (size_t k = 0; k < m->n_calls; k++) {
            const struct chat_call *call = &c->tools->calls[m->first_call + k];

            bytes += call->id.len + call->name.len + call->arguments.len;
        }
    }
    return bytes;
}

static size_t lower(size_t limit, size_t other)
{
    return other && other < limit ? other : limit;
}

static struct jinja_limits limits_of(const struct chat *c, const struct conversation *talk)
{
    struct jinja_limits l = jinja_limits_for(bytes_of(talk));

    l.output_bytes = lower(l.output_bytes, c->output_bytes);
    l.memory_bytes = lower(l.memory_bytes, c->memory_bytes);
    return l;
}

static int render(const struct chat *c, struct conversation *talk, int32_t **ret_ids, size_t *ret_n,
                  struct error *reterr)
{
    struct jinja_limits limits = limits_of(c, talk);
    struct jinja_output out;
    int r = 0;

    if (talk->tools && talk->tools->definitions) {
        r = chat_tools_parse(talk->tools->definitions, talk->tools->len, &talk->definitions,
                             reterr);
    }
    r = r < 0 ? r : read_arguments(talk, reterr);
    if (r == 0) {
        r = jinja_render(talk->program, &limits, time(NULL), bind, talk, &out, reterr);
    }
    json_decref(talk->definitions);
    json_decref(talk->arguments);
    if (r == 0) {
        r = tokenize(talk->tok, &out, ret_ids, ret_n, reterr);
        jinja_output_finish(&out);
    }
    return r;
}

int chat_render_tools(const struct chat *c, const struct tok *t,
                      const struct chat_message *messages, size_t n, const struct chat_tools *tools,
                      bool add_generation_prompt, int32_t **ret_ids, size_t *ret_n,
                      struct error *reterr)
{
    struct conversation talk = {.program = c->program,
                                .tok = t,
                                .messages = messages,
                                .n = n,
                                .add_generation_prompt = add_generation_prompt,
                                .tools = tools};

    if (n == 0) {
        return error_set(reterr, -EINVAL, "a conversation needs at least one message");
    }
    if (n > CHAT_MAX_MESSAGES) {
        return error_set(reterr, -E2BIG, "%zu messages (at most %d)", n, CHAT_MAX_MESSAGES);
    }
    return render(c, &talk, ret_ids, ret_n, reterr);
}

int chat_render(const struct chat *c, const struct tok *t, const struct chat_message *messages,
                size_t n, bool add_generation_prompt, int32_t **ret_ids, size_t *ret_n,
                struct error *reterr)
{
    return chat_render_tools(c, t, messages, n, NULL, add_generation_prompt, ret_ids, ret_n,
                             reterr);
}

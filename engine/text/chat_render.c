/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations to token ids: messages become the template's variables, its text becomes tokens.
 * Trusted are the roles, whose names are ours, and the spelling of BOS, EOS and their like;
 * everything that somebody said is not. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "engine/text/chat.h"
#include "engine/text/jinja/jinja.h"
#include "engine/text/tok.h"

struct conversation {
    const struct tok *tok;
    const struct chat_message *messages;
    size_t n;
    bool add_generation_prompt;
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

static void bind(void *arg, struct jinja_run *r)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    const struct conversation *c = arg;
    struct jinja_value list = jinja_list(r);

    for (size_t i = 0; i < c->n; i++) {
        const struct chat_message *m = &c->messages[i];
        const char *role = roles[m->role];
        struct jinja_value one = jinja_dict(r);

        jinja_dict_set(r, one, "role", jinja_string(r, role, strlen(role), true));
        jinja_dict_set(r, one, "content", jinja_string(r, m->text, m->len, false));
        jinja_list_add(r, list, one);
    }
    jinja_set(r, "messages", list);
    jinja_set(r, "add_generation_prompt", jinja_bool(c->add_generation_prompt));
    jinja_set(r, "tools", jinja_none());
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
    AUTO_FREE int32_t *ids = calloc(tok_bound(out->len) + 1, sizeof(*ids));
    int r;

    if (!parts || !ids) {
        return error_set(reterr, -ENOMEM, "no memory for the prompt");
    }
    for (size_t i = 0; i < out->n_spans; i++) {
        parts[i] = (struct tok_part){out->spans[i].len, out->spans[i].trusted};
    }
    r = tok_encode_parts(t, out->text, parts, out->n_spans, ids, tok_bound(out->len), ret_n,
                         reterr);
    if (r == 0) {
        put_bos(t, ids, ret_n);
        *ret_ids = STEAL(ids);
    }
    return r;
}

int chat_render(const struct chat *c, const struct tok *t, const struct chat_message *messages,
                size_t n, bool add_generation_prompt, int32_t **ret_ids, size_t *ret_n,
                struct error *reterr)
{
    struct conversation talk = {t, messages, n, add_generation_prompt};
    struct jinja_output out;
    struct jinja_limits limits;
    size_t bytes = 0;
    int r;

    if (n == 0) {
        return error_set(reterr, -EINVAL, "a conversation needs at least one message");
    }
    if (n > CHAT_MAX_MESSAGES) {
        return error_set(reterr, -E2BIG, "%zu messages (at most %d)", n, CHAT_MAX_MESSAGES);
    }
    for (size_t i = 0; i < n; i++) {
        bytes += messages[i].len;
    }
    limits = jinja_limits_for(bytes);
    r = jinja_render(c->program, &limits, time(NULL), bind, &talk, &out, reterr);
    if (r == 0) {
        r = tokenize(t, &out, ret_ids, ret_n, reterr);
        jinja_output_finish(&out);
    }
    return r;
}

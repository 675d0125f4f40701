/* SPDX-License-Identifier: Apache-2.0 */
/* A chat's life: the template from the model's file, compiled; roles by name. */

#include "engine/text/chat.h"

#include <errno.h>
#include <string.h>

#include "engine/text/calls/calls.h"
#include "engine/text/jinja/jinja.h"
#include "gguf/gguf.h"

static const char *const roles[] = {"system", "user", "assistant", "tool"};

int chat_role_parse(const char *text, size_t len, enum chat_role *ret, struct error *reterr)
{
    for (int i = 0; i < 4; i++) {
        if (strlen(roles[i]) == len && !memcmp(roles[i], text, len)) {
            *ret = (enum chat_role)i;
            return 0;
        }
    }
    return error_set(reterr, -EINVAL, "a message's role is none of system, user, assistant, tool");
}

int chat_init(const char *source, size_t len, struct chat *ret, struct error *reterr)
{
    int r;

    *ret = (struct chat){0};
    r = calls_choose(NULL, source, len, &ret->calls, reterr);
    return r < 0 ? r : jinja_compile(source, len, &ret->program, reterr);
}

int chat_open(const struct gguf *g, struct chat *ret, struct error *reterr)
{
    struct gguf_str text;
    int r = gguf_get_str(g, "tokenizer.chat_template", &text, reterr);

    if (r == -ENOENT) {
        return error_set(reterr, -ENOTSUP,
                         "the model has no chat template: pipitd --template FILE|NAME gives it one "
                         "(" CHAT_STYLES "), --raw sends the prompt without");
    }
    return r < 0 ? r : chat_init(text.ptr, text.len, ret, reterr);
}

bool chat_shows_tools(const struct chat *c)
{
    return jinja_mentions(c->program, "tools");
}

void chat_finish(struct chat *c)
{
    jinja_destroy(c->program);
    c->program = NULL;
}

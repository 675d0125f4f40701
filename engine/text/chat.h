/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_CHAT_H
#define PIPIT_ENGINE_TEXT_CHAT_H

/* Conversations to token ids through the model's own chat template, a Jinja program
 * (`tokenizer.chat_template`) that engine/text/jinja/ runs. Every byte that it writes is the
 * template's or somebody's who talks; special tokens are recognised in the template's bytes alone.
 * So no text of a user, whatever it spells, can become a marker. docs/design/templates.md. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct calls_format;
struct gguf;
struct jinja;
struct tok;

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL };

enum { CHAT_MAX_MESSAGES = 4096 };

struct chat_text {
    const char *ptr;
    size_t len;
};

/* A call of a tool that the assistant made; `arguments` is a JSON object. */
struct chat_call {
    struct chat_text id; /* may be empty */
    struct chat_text name;
    struct chat_text arguments;
};

struct chat_message {
    enum chat_role role;
    const char *text;
    size_t len;
    /* Of an assistant's, where there are any. */
    struct chat_text reasoning;
    size_t first_call; /* in chat_tools.calls */
    size_t n_calls;
    /* Of a tool's: what it answers. */
    struct chat_text name;
    struct chat_text call_id;
};

/* What a conversation with tools has beside its messages. */
struct chat_tools {
    const char *definitions; /* a JSON list as OpenAI's, or NULL */
    size_t len;
    const struct chat_call *calls; /* of all messages */
};

/* A compiled template. Caller's memory; chat_init or chat_open, then chat_finish; read-only and
 * thread-safe in between. */
struct chat {
    struct jinja *program;
    const struct calls_format *calls; /* in which it has the model answer */
    /* Most that a run of the template may write and use, beside jinja_limits_for's. The caller sets
     * them; 0: no more limits. */
    size_t output_bytes;
    size_t memory_bytes;
};

/* "system", "user", "assistant", "tool"; -EINVAL naming what is allowed. */
int chat_role_parse(const char *text, size_t len, enum chat_role *ret,
                    struct error *reterr) WARN_UNUSED;

/* -EBADMSG, with line and cause, and -E2BIG: jinja_compile; -ENOMEM. */
int chat_init(const char *source, size_t len, struct chat *ret, struct error *reterr) WARN_UNUSED;
/* The same for the model's own template. -ENOTSUP without one; the text says what does without. */
int chat_open(const struct gguf *g, struct chat *ret, struct error *reterr) WARN_UNUSED;
/* The same, or with `choice` (not NULL or empty) one of CHAT_STYLES, or else a file with a template.
 * -EINVAL: neither of them, a broken one, or a style whose markers the vocabulary lacks. */
#define CHAT_STYLES "chatml, llama3, gemma, mistral, phi3"
int chat_choose(const char *choice, const struct gguf *g, const struct tok *t, struct chat *ret,
                struct error *reterr) WARN_UNUSED;
void chat_finish(struct chat *c); /* takes one that is all zero */
/* Does the template have a place for definitions of tools? Without one they are left out. */
bool chat_shows_tools(const struct chat *c);

/* The conversation as token ids, in memory that the caller frees. With add_generation_prompt it
 * ends where the assistant begins to speak. BOS comes first where the vocabulary wants it and the
 * template did not write it. -EINVAL: no message, or the template refuses the conversation; -E2BIG:
 * more than CHAT_MAX_MESSAGES, or over a limit of jinja_limits_for or of `c`; else as tok_encode. */
int chat_render(const struct chat *c, const struct tok *t, const struct chat_message *messages,
                size_t n, bool add_generation_prompt, int32_t **ret_ids, size_t *ret_n,
                struct error *reterr) WARN_UNUSED;
/* The same with tools (NULL: none). -EINVAL also where definitions or arguments are not the JSON
 * that they should be. */
int chat_render_tools(const struct chat *c, const struct tok *t,
                      const struct chat_message *messages, size_t n,
                      const struct chat_tools *tools, bool add_generation_prompt,
                      int32_t **ret_ids, size_t *ret_n, struct error *reterr) WARN_UNUSED;

struct json_t;
/* Definitions of tools as a list of {"type": "function", "function": {"name": ...}}, also where a
 * definition stands without the first half. To be released. -EINVAL: no JSON, or no such list. */
int chat_tools_parse(const char *text, size_t len, struct json_t **ret,
                     struct error *reterr) WARN_UNUSED;
void chat_tools_release(struct json_t *list); /* takes NULL */

#endif

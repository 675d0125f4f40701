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

struct gguf;
struct jinja;
struct tok;

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT };

enum { CHAT_MAX_MESSAGES = 4096 };

struct chat_message {
    enum chat_role role;
    const char *text;
    size_t len;
};

/* A compiled template. Caller's memory; chat_init or chat_open, then chat_finish; read-only and
 * thread-safe in between. */
struct chat {
    struct jinja *program;
};

/* "system", "user", "assistant"; -EINVAL naming what is allowed. */
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

/* The conversation as token ids, in memory that the caller frees. With add_generation_prompt it
 * ends where the assistant begins to speak. BOS comes first where the vocabulary wants it and the
 * template did not write it. -EINVAL: no message, or the template refuses the conversation; -E2BIG:
 * more than CHAT_MAX_MESSAGES, or over a limit of jinja_limits_for; else as tok_encode. */
int chat_render(const struct chat *c, const struct tok *t, const struct chat_message *messages,
                size_t n, bool add_generation_prompt, int32_t **ret_ids, size_t *ret_n,
                struct error *reterr) WARN_UNUSED;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_CHAT_H
#define PIPIT_ENGINE_TEXT_CHAT_H

/* Chat templates. A model's template (a Jinja program, `tokenizer.chat_template`) is not run but
 * recognised as one of the known families, and the few things in which members of a family differ
 * (default system text, trimming, BOS) are read from it. Rendering goes straight to token ids: turn
 * markers are put in as ids and everything between two of them is tokenized as plain text, so no
 * text of a user, whatever it spells, can become a marker. (Zephyr's role markers are plain text in
 * most vocabularies: there only the end of a turn is safe from imitation.) */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct gguf;
struct tok;

enum chat_style {
    CHAT_CHATML, /* <|im_start|>ROLE\n TEXT <|im_end|>\n */
    CHAT_LLAMA3, /* <|start_header_id|>ROLE<|end_header_id|>\n\n TEXT <|eot_id|> */
    CHAT_GEMMA,  /* <start_of_turn>ROLE\n TEXT <end_of_turn>\n; system goes before the first user text */
    CHAT_ZEPHYR, /* <|ROLE|>\n TEXT EOS \n */
};

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT };

enum { CHAT_MAX_MESSAGES = 4096, CHAT_MAX_SYSTEM = 2048 };

struct chat_message {
    enum chat_role role;
    const char *text;
    size_t len;
};

/* What was read from a template; plain values, belongs to the caller. */
struct chat {
    enum chat_style style;
    bool bos;      /* the prompt begins with BOS */
    bool trim;     /* white space round a message's text is dropped */
    bool dated;    /* llama 3.1 and later: the system turn is always there and begins with two dates */
    int32_t start; /* marker before a role's name; -1: none */
    int32_t mid;   /* marker after a role's name (llama3); -1: none */
    int32_t end;   /* the token that ends a turn, the assistant's included */
    int32_t role[3]; /* zephyr: markers by enum chat_role; -1: plain text */
    uint16_t n_system;
    char system[CHAT_MAX_SYSTEM]; /* (n_system) used when the first message is not a system message */
};

const char *chat_style_name(enum chat_style style);
/* "system", "user", "assistant"; -EINVAL naming what is allowed. */
int chat_role_parse(const char *text, size_t len, enum chat_role *ret, struct error *reterr) WARN_UNUSED;

/* Recognises a template. -ENOTSUP: an unknown one, or markers that the vocabulary lacks; the text
 * says what was found and that --raw does without a template. */
int chat_detect(const struct tok *t, const char *text, size_t len, struct chat *ret,
                struct error *reterr) WARN_UNUSED;
/* The same for the model's own template. -ENOTSUP also without one. */
int chat_open(const struct tok *t, const struct gguf *g, struct chat *ret, struct error *reterr) WARN_UNUSED;

/* The conversation as token ids, in memory that the caller frees. With add_generation_prompt it ends
 * where the assistant begins to speak. -EINVAL: no message, or for gemma turns that do not alternate
 * from the user's on (one system message may come first); -E2BIG: more than CHAT_MAX_MESSAGES; else as
 * tok_encode. */
int chat_render(const struct chat *c, const struct tok *t, const struct chat_message *messages, size_t n,
                bool add_generation_prompt, int32_t **ret_ids, size_t *ret_n,
                struct error *reterr) WARN_UNUSED;

#endif

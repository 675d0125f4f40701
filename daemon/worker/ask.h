/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_ASK_H
#define PIPIT_DAEMON_WORKER_ASK_H

/* What a request asks for, read from its items (proto/lane/tlv.h). This is the one place in the
 * daemon where a client's text is parsed: items, UTF-8, roles, numbers; then template and tokenizer
 * turn it into ids. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/text/chat.h"
#include "engine/text/sampler.h"
#include "engine/text/stop.h"
#include "proto/lane/tlv.h"

struct tok;

/* Pointers lead into the items, which outlive it; `kv`, `messages` and `calls` are its own. */
struct ask {
    const char *prompt;
    size_t prompt_len;
    const uint8_t *tokens; /* (n_tokens) i32 */
    size_t n_tokens;
    bool has_prompt;
    bool has_tokens;
    char *kv; /* NULL: the default policy */
    struct stop_text stops[STOP_MAX_STRINGS];
    size_t n_stops;
    struct chat_message *messages; /* system first, the prompt last */
    size_t n_messages;
    struct chat_call *calls; /* (n_calls) of all messages */
    size_t n_calls;
    struct chat_text tools; /* TLV_TOOLS; ptr NULL: none */
    struct tlv_sampling sampling; /* tlv_sampling_default() where there is no such item */
    const char *session; /* TLV_SESSION, not terminated; NULL: none */
    size_t session_len;
};

/* -EBADMSG (items), -EINVAL (values; the text names them), -E2BIG, -ENOTSUP (schema),
 * -ENOMEM. After an error the ask is cleared. */
int ask_read(const uint8_t *items, size_t size, struct ask *ret, struct error *reterr) WARN_UNUSED;
/* Wishes that mean nothing to a kind of request (enum lane_kind) are refused, not passed over: -EINVAL. */
int ask_check(const struct ask *a, uint32_t kind, struct error *reterr) WARN_UNUSED;
void ask_clear(struct ask *a);

/* The parameters for the engine's sampler: ranges are the sampler's to check. `seed` is for an ask
 * that names none. */
struct sampler_params ask_sampler(const struct ask *a, uint64_t seed);

/* The bytes of all its texts; and how many JSON values tools and arguments may have, counted by
 * brackets that open, colons and commas, also in strings. */
size_t ask_bytes(const struct ask *a);
size_t ask_json_values(const struct ask *a);

/* Is the answer to be told in parts? */
bool ask_wants_parts(const struct ask *a);

/* The ids of a prompt: of a chat through the template, else of the text or as given in the items or
 * in `lease_ids` (memory the client can change: each id is read once). To be freed by the caller;
 * at least one id, each within the vocabulary. `chat` NULL: the model has no usable template, and
 * `chat_error` says so. */
struct ask_source {
    const struct tok *tok;
    const struct chat *chat;
    const struct error *chat_error;
    const volatile int32_t *lease_ids; /* (n_lease_ids), or NULL */
    size_t n_lease_ids;
};
int ask_prompt(const struct ask *a, bool is_chat, const struct ask_source *s, int32_t **ret_ids,
               size_t *ret_n, struct error *reterr) WARN_UNUSED;

/* The ids of a prompt that goes on behind a conversation that ends with the token `last`: a chat's
 * turn is ended where it has not ended itself, then come the messages. No BOS, no system text. */
int ask_more(const struct ask *a, bool is_chat, const struct ask_source *s, int32_t last,
             int32_t **ret_ids, size_t *ret_n, struct error *reterr) WARN_UNUSED;

/* The ids that a request to detokenize brings. */
int ask_ids(const struct ask *a, const struct ask_source *s, int32_t **ret_ids, size_t *ret_n,
            struct error *reterr) WARN_UNUSED;

#endif

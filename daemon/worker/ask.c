/* SPDX-License-Identifier: Apache-2.0 */
/* Items to ask, ask to ids. Refusals name the item and the allowed values and never hold the
 * client's text, but for policy texts, whose positions the engine names. */

#include "daemon/worker/ask.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/text/tok.h"
#include "proto/lane/record.h"

enum { MAX_POLICY = 1024, FIRST_MESSAGES = 16 };

/* Where the first byte that is no UTF-8, or a NUL, lies; len without one. */
static size_t first_bad(const char *s, size_t len)
{
    size_t i = 0;

    while (i < len && s[i] != '\0') {
        int n = utf8_character(s + i, len - i);

        if (n <= 0) {
            return i;
        }
        i += (size_t)n;
    }
    return i;
}

static int check_text(const struct tlv_item *item, const char *what, struct error *reterr)
{
    const char *s = (const char *)item->data;
    size_t bad = first_bad(s, item->len);

    if (bad == item->len) {
        return 0;
    }
    return error_set(reterr, -EINVAL, "%s: %s at byte %zu", what,
                     s[bad] == '\0' ? "a NUL" : "no valid UTF-8", bad);
}

/* Room for one more behind `n`: doubles at 16, 32, 64 ... */
static int grow(void **list, size_t n, size_t size, struct error *reterr)
{
    size_t cap = n ? 2 * n : FIRST_MESSAGES;
    void *more;

    if (n && (n < FIRST_MESSAGES || (n & (n - 1)) != 0)) {
        return 0;
    }
    more = realloc(*list, cap * size);
    if (!more) {
        return error_set(reterr, -ENOMEM, "no memory for the messages");
    }
    *list = more;
    return 0;
}

static int add_message(struct ask *a, enum chat_role role, const char *text, size_t len,
                       struct error *reterr)
{
    if (a->n_messages == CHAT_MAX_MESSAGES) {
        return error_set(reterr, -E2BIG, "more than %d messages", (int)CHAT_MAX_MESSAGES);
    }
    void *list = a->messages;
    int rc = grow(&list, a->n_messages, sizeof(*a->messages), reterr);

    if (rc) {
        return rc;
    }
    a->messages = list;
    a->messages[a->n_messages++] = (struct chat_message){.role = role, .text = text, .len = len};
    return 0;
}

static int read_stop(struct ask *a, const struct tlv_item *item, struct error *reterr)
{
    int rc = check_text(item, "stop string", reterr);

    if (rc) {
        return rc;
    }
    if (a->n_stops == STOP_MAX_STRINGS) {
        return error_set(reterr, -E2BIG, "more than %d stop strings", (int)STOP_MAX_STRINGS);
    }
    a->stops[a->n_stops++] = (struct stop_text){.ptr = (const char *)item->data, .len = item->len};
    return 0;
}

static int read_policy(struct ask *a, const struct tlv_item *item, struct error *reterr)
{
    int rc = check_text(item, "policy", reterr);

    if (rc) {
        return rc;
    }
    if (a->kv || item->len > MAX_POLICY) {
        return error_set(reterr, -EINVAL, "policy: one of at most %d bytes is allowed",
                         (int)MAX_POLICY);
    }
    a->kv = strndup((const char *)item->data, item->len);
    return a->kv ? 0 : error_set(reterr, -ENOMEM, "no memory for the policy");
}

static int read_sampling(struct ask *a, const struct tlv_item *item, struct error *reterr)
{
    struct tlv_sampling *s = &a->sampling;
    const uint32_t known = TLV_S_SEED | TLV_S_IGNORE_END | TLV_S_GREEDY | TLV_S_LOGITS |
                           TLV_S_POOL_LAST | TLV_S_POOL_NONE | TLV_S_NOT_UNIT | TLV_S_NO_DRAFT |
                           TLV_S_PARTS;

    tlv_sampling_read(item, s);
    if (s->max_tokens < 0) {
        return error_set(reterr, -EINVAL, "max_tokens %d: allowed are 0..2147483647",
                         s->max_tokens);
    }
    if (s->score_first < 0) {
        return error_set(reterr, -EINVAL, "score_first %d: allowed are 0..2147483647",
                         s->score_first);
    }
    if (s->flags & ~known) {
        return error_set(reterr, -EINVAL, "unknown sampling flags 0x%x", s->flags & ~known);
    }
    return 0;
}

static int read_tokens(struct ask *a, const struct tlv_item *item, struct error *reterr)
{
    if (a->has_tokens || item->len % sizeof(int32_t) != 0) {
        return error_set(reterr, -EINVAL, "tokens: one item of whole 32-bit ids is allowed");
    }
    a->has_tokens = true;
    a->tokens = item->data;
    a->n_tokens = item->len / sizeof(int32_t);
    return 0;
}

static int read_prompt(struct ask *a, const struct tlv_item *item, struct error *reterr)
{
    if (a->has_prompt) {
        return error_set(reterr, -EINVAL, "two prompts");
    }
    a->has_prompt = true;
    a->prompt = (const char *)item->data;
    a->prompt_len = item->len;
    return check_text(item, "prompt", reterr);
}

/* A role item and the content that must follow it. */
static int read_message(struct ask *a, struct tlv_reader *r, const struct tlv_item *role,
                        struct error *reterr)
{
    struct tlv_item content;
    enum chat_role who;
    int rc = chat_role_parse((const char *)role->data, role->len, &who, reterr);

    if (rc) {
        return rc;
    }
    rc = tlv_next(r, &content, reterr);
    if (rc < 0) {
        return rc;
    }
    if (rc == 0 || content.type != TLV_CONTENT) {
        return error_set(reterr, -EINVAL, "a role without its content");
    }
    rc = check_text(&content, "message", reterr);
    return rc ? rc : add_message(a, who, (const char *)content.data, content.len, reterr);
}

static int read_system(struct ask *a, const struct tlv_item *item, struct error *reterr)
{
    int rc = check_text(item, "system text", reterr);

    if (rc) {
        return rc;
    }
    if (a->n_messages) {
        return error_set(reterr, -EINVAL, "the system text must come before other messages");
    }
    return add_message(a, CHAT_SYSTEM, (const char *)item->data, item->len, reterr);
}

static int read_session(struct ask *a, const struct tlv_item *item, struct error *reterr)
{
    if (a->session) {
        return error_set(reterr, -EINVAL, "two sessions");
    }
    a->session = (const char *)item->data;
    a->session_len = item->len;
    return 0;
}

static int read_tools(struct ask *a, const struct tlv_item *item, struct error *reterr)
{
    if (a->tools.ptr) {
        return error_set(reterr, -EINVAL, "two lists of tools");
    }
    a->tools = (struct chat_text){(const char *)item->data, item->len};
    return check_text(item, "tools", reterr);
}

static int add_call(struct ask *a, struct chat_message *m, const struct chat_text *id,
                    struct error *reterr)
{
    void *list = a->calls;
    int rc = a->n_calls == CHAT_MAX_MESSAGES
                 ? error_set(reterr, -E2BIG, "more than %d calls", (int)CHAT_MAX_MESSAGES)
                 : grow(&list, a->n_calls, sizeof(*a->calls), reterr);

    if (rc) {
        return rc;
    }
    a->calls = list;
    m->first_call = m->n_calls ? m->first_call : a->n_calls;
    m->n_calls++;
    a->calls[a->n_calls++] = (struct chat_call){.id = *id};
    return 0;
}

/* What belongs to the message before it. */
static int read_of_message(struct ask *a, const struct tlv_item *item, struct error *reterr)
{
    struct chat_message *m = a->n_messages ? &a->messages[a->n_messages - 1] : NULL;
    struct chat_call *call = m && m->n_calls ? &a->calls[a->n_calls - 1] : NULL;
    struct chat_text text = {(const char *)item->data, item->len};
    bool answers = m && m->role == CHAT_TOOL;
    bool fits = item->type == TLV_CALL_ID     ? answers
                : item->type == TLV_ARGUMENTS ? call != NULL
                : item->type == TLV_NAME      ? answers || call != NULL
                                              : m && m->role == CHAT_ASSISTANT;
    int rc = check_text(item, "a message's call, name or reasoning", reterr);

    if (rc) {
        return rc;
    }
    if (!fits) {
        return error_set(reterr, -EINVAL,
                         "reasoning and calls are of an assistant's message, names of a call or a "
                         "tool's message, and behind it");
    }
    switch (item->type) {
    case TLV_REASONING:
        m->reasoning = text;
        return 0;
    case TLV_CALL:
        return add_call(a, m, &text, reterr);
    case TLV_NAME:
        *(answers ? &m->name : &call->name) = text;
        return 0;
    case TLV_ARGUMENTS:
        call->arguments = text;
        return 0;
    default:
        m->call_id = text;
        return 0;
    }
}

static int check_calls(const struct ask *a, struct error *reterr)
{
    for (size_t i = 0; i < a->n_calls; i++) {
        if (!a->calls[i].name.len) {
            return error_set(reterr, -EINVAL, "call %zu has no name", i + 1);
        }
    }
    return 0;
}

static int read_item(struct ask *a, struct tlv_reader *r, const struct tlv_item *item,
                     struct error *reterr)
{
    switch (item->type) {
    case TLV_PROMPT:
        return read_prompt(a, item, reterr);
    case TLV_TOKENS:
        return read_tokens(a, item, reterr);
    case TLV_SYSTEM:
        return read_system(a, item, reterr);
    case TLV_ROLE:
        return read_message(a, r, item, reterr);
    case TLV_CONTENT:
        return error_set(reterr, -EINVAL, "content without a role");
    case TLV_POLICY:
        return read_policy(a, item, reterr);
    case TLV_STOP:
        return read_stop(a, item, reterr);
    case TLV_SAMPLING:
        return read_sampling(a, item, reterr);
    case TLV_SESSION:
        return read_session(a, item, reterr);
    case TLV_TOOLS:
        return read_tools(a, item, reterr);
    case TLV_REASONING:
    case TLV_CALL:
    case TLV_NAME:
    case TLV_ARGUMENTS:
    case TLV_CALL_ID:
        return read_of_message(a, item, reterr);
    default:
        return error_set(reterr, -ENOTSUP, "answers that follow a schema are not built yet");
    }
}

int ask_read(const uint8_t *items, size_t size, struct ask *ret, struct error *reterr)
{
    struct tlv_reader r = {.buf = items, .size = size};
    struct tlv_item item;
    int rc;

    *ret = (struct ask){.sampling = tlv_sampling_default()};
    while ((rc = tlv_next(&r, &item, reterr)) == 1) {
        rc = read_item(ret, &r, &item, reterr);
        if (rc) {
            break;
        }
    }
    rc = rc ? rc : check_calls(ret, reterr);
    if (rc == 0 && ret->has_prompt && ret->has_tokens) {
        rc = error_set(reterr, -EINVAL, "a prompt as text and as tokens");
    }
    if (rc) {
        ask_clear(ret);
    }
    return rc;
}

int ask_check(const struct ask *a, uint32_t kind, struct error *reterr)
{
    bool answers = kind == LANE_KIND_GENERATE || kind == LANE_KIND_CHAT;
    uint32_t fit = answers ? TLV_S_SEED | TLV_S_IGNORE_END | TLV_S_GREEDY | TLV_S_NO_DRAFT |
                                 (kind == LANE_KIND_CHAT ? TLV_S_PARTS : 0)
                   : kind == LANE_KIND_SCORE ? TLV_S_LOGITS
                   : kind == LANE_KIND_EMBED ? TLV_S_POOL_LAST | TLV_S_POOL_NONE | TLV_S_NOT_UNIT
                                             : 0;

    if (a->sampling.flags & ~fit) {
        return error_set(reterr, -EINVAL,
                         "sampling flags 0x%x mean nothing to this kind of request",
                         a->sampling.flags & ~fit);
    }
    if (a->tools.ptr && kind != LANE_KIND_CHAT) {
        return error_set(reterr, -EINVAL, "tools are for chats");
    }
    if (!answers && (a->n_stops || a->sampling.n_logprobs > 0)) {
        return error_set(reterr, -EINVAL,
                         "%s are for answers: this kind of request draws no tokens",
                         a->n_stops ? "stop strings" : "alternatives");
    }
    return 0;
}

void ask_clear(struct ask *a)
{
    free(a->kv);
    free(a->messages);
    free(a->calls);
    a->kv = NULL;
    a->messages = NULL;
    a->calls = NULL;
}

size_t ask_bytes(const struct ask *a)
{
    size_t n = a->prompt_len + a->tools.len;

    for (size_t i = 0; i < a->n_messages; i++) {
        const struct chat_message *m = &a->messages[i];

        n += m->len + m->reasoning.len + m->name.len + m->call_id.len;
    }
    for (size_t i = 0; i < a->n_calls; i++) {
        n += a->calls[i].id.len + a->calls[i].name.len + a->calls[i].arguments.len;
    }
    return n;
}

static size_t json_values(const struct chat_text *t)
{
    size_t n = 0;

    for (size_t i = 0; i < t->len; i++) {
        n += t->ptr[i] == '{' || t->ptr[i] == '[' || t->ptr[i] == ':' || t->ptr[i] == ',';
    }
    return n;
}

size_t ask_json_values(const struct ask *a)
{
    size_t n = json_values(&a->tools);

    for (size_t i = 0; i < a->n_calls; i++) {
        n += json_values(&a->calls[i].arguments);
    }
    return n;
}

bool ask_wants_parts(const struct ask *a)
{
    return a->tools.ptr || a->sampling.flags & TLV_S_PARTS;
}

struct sampler_params ask_sampler(const struct ask *a, uint64_t seed)
{
    const struct tlv_sampling *s = &a->sampling;

    return (struct sampler_params){.temperature = s->flags & TLV_S_GREEDY ? 0 : s->temperature,
                                   .top_k = s->top_k,
                                   .top_p = s->top_p,
                                   .min_p = s->min_p,
                                   .repeat_penalty = s->repeat_penalty,
                                   .presence_penalty = s->presence_penalty,
                                   .frequency_penalty = s->frequency_penalty,
                                   .penalty_window = s->penalty_last_n,
                                   .n_logprobs = s->n_logprobs,
                                   .seed = s->flags & TLV_S_SEED ? s->seed : seed};
}

/* `n` ids, each read once from where the client may be writing. */
static int copy_ids(const volatile int32_t *ids, const uint8_t *items, size_t n, int32_t n_vocab,
                    int32_t **ret, struct error *reterr)
{
    int32_t *copy;

    if (n > INT32_MAX / 2) {
        return error_set(reterr, -E2BIG, "%zu tokens are too many", n);
    }
    copy = malloc((n ? n : 1) * sizeof(*copy));
    if (!copy) {
        return error_set(reterr, -ENOMEM, "no memory for %zu tokens", n);
    }
    for (size_t i = 0; i < n; i++) {
        int32_t id;

        if (ids) {
            id = ids[i];
        } else {
            memcpy(&id, items + i * sizeof(id), sizeof(id));
        }
        if (id < 0 || id >= n_vocab) {
            free(copy);
            return error_set(reterr, -EINVAL, "token %zu is %d: allowed are 0..%d", i, id,
                             n_vocab - 1);
        }
        copy[i] = id;
    }
    *ret = copy;
    return 0;
}

int ask_ids(const struct ask *a, const struct ask_source *s, int32_t **ret_ids, size_t *ret_n,
            struct error *reterr)
{
    size_t n = s->lease_ids ? s->n_lease_ids : a->n_tokens;
    int rc;

    if (!s->lease_ids && !a->has_tokens) {
        return error_set(reterr, -EINVAL, "no tokens were given");
    }
    if (s->lease_ids && (a->has_tokens || a->has_prompt)) {
        return error_set(reterr, -EINVAL, "a prompt in a lease and another in the items");
    }
    rc = copy_ids(s->lease_ids, a->tokens, n, tok_n_vocab(s->tok), ret_ids, reterr);
    if (rc == 0) {
        *ret_n = n;
    }
    return rc;
}

static struct chat_tools tools_of(const struct ask *a)
{
    return (struct chat_tools){a->tools.ptr, a->tools.len, a->calls};
}

/* `first` messages, then the ask's own, the prompt last. */
static int render_messages(const struct ask *a, const struct ask_source *s,
                           const struct chat_message *first, size_t n_first, int32_t **ret_ids,
                           size_t *ret_n, struct error *reterr)
{
    size_t n = n_first + a->n_messages + (a->has_prompt ? 1 : 0);
    struct chat_message *all = malloc((n ? n : 1) * sizeof(*all));
    struct chat_tools tools;
    int rc;

    if (!all) {
        return error_set(reterr, -ENOMEM, "no memory for the messages");
    }
    if (n_first) {
        memcpy(all, first, n_first * sizeof(*all));
    }
    if (a->n_messages) {
        memcpy(all + n_first, a->messages, a->n_messages * sizeof(*all));
    }
    if (a->has_prompt) {
        all[n - 1] =
            (struct chat_message){.role = CHAT_USER, .text = a->prompt, .len = a->prompt_len};
    }
    tools = tools_of(a);
    rc = chat_render_tools(s->chat, s->tok, all, n, &tools, true, ret_ids, ret_n, reterr);
    free(all);
    return rc;
}

static int check_chat(const struct ask *a, const struct ask_source *s, struct error *reterr)
{
    if (!s->chat) {
        return error_set(reterr, s->chat_error->code, "%s", s->chat_error->text);
    }
    if (a->has_tokens || s->lease_ids) {
        return error_set(reterr, -EINVAL, "a chat takes text, not tokens");
    }
    return 0;
}

static int render_chat(const struct ask *a, const struct ask_source *s, int32_t **ret_ids,
                       size_t *ret_n, struct error *reterr)
{
    int rc = check_chat(a, s, reterr);

    return rc ? rc : render_messages(a, s, NULL, 0, ret_ids, ret_n, reterr);
}

int ask_prompt(const struct ask *a, bool is_chat, const struct ask_source *s, int32_t **ret_ids,
               size_t *ret_n, struct error *reterr)
{
    int32_t *ids = NULL;
    size_t n = 0;
    int rc;

    if (is_chat) {
        rc = render_chat(a, s, &ids, &n, reterr);
    } else if (a->n_messages) {
        return error_set(reterr, -EINVAL, "messages are for chats: a raw prompt is one text");
    } else if (a->has_prompt && !s->lease_ids) {
        rc = tok_encode_new(s->tok, a->prompt, a->prompt_len, TOK_ADD_BOS, &ids, &n, reterr);
    } else {
        rc = ask_ids(a, s, &ids, &n, reterr);
    }
    if (rc == 0 && n == 0) {
        free(ids);
        return error_set(reterr, -EINVAL, "the prompt is empty");
    }
    if (rc == 0) {
        *ret_ids = ids;
        *ret_n = n;
    }
    return rc;
}

/* What the template puts between an answer and the next one: a conversation with these messages
 * behind an empty answer, less its beginning up to that answer. */
static int render_more(const struct ask *a, const struct ask_source *s, int32_t last,
                       int32_t **ret_ids, size_t *ret_n, struct error *reterr)
{
    static const struct chat_message before[] = {{.role = CHAT_USER, .text = "a", .len = 1},
                                                 {.role = CHAT_ASSISTANT, .text = "", .len = 0}};
    struct chat_tools tools = tools_of(a);
    int32_t *head = NULL;
    int32_t *all = NULL;
    size_t n_head = 0;
    size_t n = 0;
    int rc = check_chat(a, s, reterr);

    if (!rc && a->n_messages && a->messages[0].role == CHAT_SYSTEM) {
        rc = error_set(reterr, -EINVAL, "the session has begun: its system text stays as it was");
    }
    rc = rc ? rc
            : chat_render_tools(s->chat, s->tok, before, 1, &tools, true, &head, &n_head, reterr);
    rc = rc ? rc : render_messages(a, s, before, 2, &all, &n, reterr);
    if (!rc && (n < n_head || memcmp(all, head, n_head * sizeof(*all)) != 0)) {
        rc = error_set(reterr, -ENOTSUP, "this model's template does not go on behind an answer");
    }
    if (!rc) {
        size_t from = n_head + (n > n_head && tok_is_end(s->tok, last));

        memmove(all, all + from, (n - from) * sizeof(*all));
        *ret_ids = all;
        *ret_n = n - from;
        all = NULL;
    }
    free(all);
    free(head);
    return rc;
}

int ask_more(const struct ask *a, bool is_chat, const struct ask_source *s, int32_t last,
             int32_t **ret_ids, size_t *ret_n, struct error *reterr)
{
    if (is_chat) {
        return render_more(a, s, last, ret_ids, ret_n, reterr);
    }
    if (a->n_messages) {
        return error_set(reterr, -EINVAL, "messages are for chats: a raw prompt is one text");
    }
    return a->has_prompt && !s->lease_ids
               ? tok_encode_new(s->tok, a->prompt, a->prompt_len, 0, ret_ids, ret_n, reterr)
               : ask_ids(a, s, ret_ids, ret_n, reterr);
}

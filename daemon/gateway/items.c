/* SPDX-License-Identifier: Apache-2.0 */
/* Protobuf to items. Every number was checked before (proto/zmq/ranges.c); a field that the client
 * left out keeps the value of tlv_sampling_default(). The arena is written once, front to back. */

#include "daemon/gateway/items.h"

#include <errno.h>

#include "proto/lane/tlv.h"

static const char *const roles[] = {"", "system", "user", "assistant", "tool"};
static const size_t role_len[] = {0, 6, 4, 9, 4};

uint32_t items_kind(const Pipit__Request *r)
{
    switch (r->body_case) {
    case PIPIT__REQUEST__BODY_GENERATE:
        return LANE_KIND_GENERATE;
    case PIPIT__REQUEST__BODY_CHAT:
        return LANE_KIND_CHAT;
    case PIPIT__REQUEST__BODY_TOKENIZE:
        return LANE_KIND_TOKENIZE;
    case PIPIT__REQUEST__BODY_DETOKENIZE:
        return LANE_KIND_DETOKENIZE;
    case PIPIT__REQUEST__BODY_SCORE:
        return LANE_KIND_SCORE;
    case PIPIT__REQUEST__BODY_EMBED:
        return LANE_KIND_EMBED;
    default:
        return 0;
    }
}

const ProtobufCBinaryData *items_session(const Pipit__Request *r)
{
    if (r->body_case == PIPIT__REQUEST__BODY_GENERATE && r->generate->has_session) {
        return &r->generate->session;
    }
    return r->body_case == PIPIT__REQUEST__BODY_CHAT && r->chat->has_session ? &r->chat->session
                                                                             : NULL;
}

static void put_bytes(struct tlv_writer *w, uint16_t type, const ProtobufCBinaryData *b)
{
    tlv_put(w, type, b->data, b->len);
}

static void put_source(struct tlv_writer *w, bool has_text, const ProtobufCBinaryData *text,
                       const int32_t *tokens, size_t n_tokens)
{
    if (has_text) {
        put_bytes(w, TLV_PROMPT, text);
    } else if (n_tokens) { /* else they lie in a lease */
        tlv_put(w, TLV_TOKENS, tokens, n_tokens * sizeof(*tokens));
    }
}

static void put_sampling(struct tlv_writer *w, const Pipit__Sampling *s, uint32_t flags)
{
    static const Pipit__Sampling none = PIPIT__SAMPLING__INIT;
    struct tlv_sampling t = tlv_sampling_default();

    s = s ? s : &none;
    t.temperature = s->has_temperature ? s->temperature : t.temperature;
    t.top_p = s->has_top_p ? s->top_p : t.top_p;
    t.min_p = s->has_min_p ? s->min_p : t.min_p;
    t.repeat_penalty = s->has_repeat_penalty ? s->repeat_penalty : t.repeat_penalty;
    t.presence_penalty = s->has_presence_penalty ? s->presence_penalty : t.presence_penalty;
    t.frequency_penalty = s->has_frequency_penalty ? s->frequency_penalty : t.frequency_penalty;
    t.top_k = s->has_top_k ? s->top_k : t.top_k;
    t.penalty_last_n = s->has_penalty_last_n ? s->penalty_last_n : t.penalty_last_n;
    t.max_tokens = s->has_max_tokens ? s->max_tokens : t.max_tokens;
    t.n_logprobs = s->has_logprobs ? s->logprobs : -1;
    t.seed = s->seed;
    t.flags = (s->has_seed ? TLV_S_SEED : 0u) | (s->ignore_end ? TLV_S_IGNORE_END : 0u) |
              (s->has_temperature && s->temperature == 0 ? TLV_S_GREEDY : 0u) |
              (s->no_draft ? TLV_S_NO_DRAFT : 0u) | flags;
    tlv_put(w, TLV_SAMPLING, &t, sizeof(t));
    for (size_t i = 0; i < s->n_stop; i++) {
        put_bytes(w, TLV_STOP, &s->stop[i]);
    }
}

/* What scores and embeddings have instead. */
static void put_wishes(struct tlv_writer *w, int32_t score_first, uint32_t flags)
{
    struct tlv_sampling t = tlv_sampling_default();

    t.score_first = score_first;
    t.flags = flags;
    tlv_put(w, TLV_SAMPLING, &t, sizeof(t));
}

static void put_embed(struct tlv_writer *w, const Pipit__Embed *e)
{
    put_source(w, e->has_prompt, &e->prompt, e->tokens, e->n_tokens);
    put_wishes(w, 0,
               (e->pooling == PIPIT__EMBED__POOLING__LAST   ? TLV_S_POOL_LAST
                : e->pooling == PIPIT__EMBED__POOLING__NONE ? TLV_S_POOL_NONE
                                                            : 0u) |
                   (e->not_unit ? TLV_S_NOT_UNIT : 0u));
    if (e->has_policy) {
        put_bytes(w, TLV_POLICY, &e->policy);
    }
}

/* What a message has beside its content. */
static void put_of_message(struct tlv_writer *w, const Pipit__Message *m)
{
    if (m->has_reasoning) {
        put_bytes(w, TLV_REASONING, &m->reasoning);
    }
    for (size_t i = 0; i < m->n_calls; i++) {
        put_bytes(w, TLV_CALL, &m->calls[i]->id);
        put_bytes(w, TLV_NAME, &m->calls[i]->name);
        put_bytes(w, TLV_ARGUMENTS, &m->calls[i]->arguments);
    }
    if (m->has_name) {
        put_bytes(w, TLV_NAME, &m->name);
    }
    if (m->has_call_id) {
        put_bytes(w, TLV_CALL_ID, &m->call_id);
    }
}

static void put_chat(struct tlv_writer *w, const Pipit__Chat *c)
{
    if (c->has_tools) {
        put_bytes(w, TLV_TOOLS, &c->tools);
    }
    for (size_t i = 0; i < c->n_messages; i++) {
        const Pipit__Message *m = c->messages[i];

        tlv_put(w, TLV_ROLE, roles[m->role], role_len[m->role]);
        put_bytes(w, TLV_CONTENT, &m->content);
        put_of_message(w, m);
    }
    put_sampling(w, c->sampling, c->parts ? TLV_S_PARTS : 0u);
    if (c->has_policy) {
        put_bytes(w, TLV_POLICY, &c->policy);
    }
}

int items_write(const Pipit__Request *r, uint8_t *buf, size_t cap, uint32_t *ret_bytes)
{
    struct tlv_writer w = {.buf = buf, .cap = cap};

    switch (r->body_case) {
    case PIPIT__REQUEST__BODY_GENERATE:
        put_source(&w, r->generate->has_prompt, &r->generate->prompt, r->generate->tokens,
                   r->generate->n_tokens);
        put_sampling(&w, r->generate->sampling, 0);
        if (r->generate->has_policy) {
            put_bytes(&w, TLV_POLICY, &r->generate->policy);
        }
        break;
    case PIPIT__REQUEST__BODY_CHAT:
        put_chat(&w, r->chat);
        break;
    case PIPIT__REQUEST__BODY_TOKENIZE:
        put_bytes(&w, TLV_PROMPT, &r->tokenize->text);
        break;
    case PIPIT__REQUEST__BODY_DETOKENIZE:
        put_source(&w, false, NULL, r->detokenize->tokens, r->detokenize->n_tokens);
        break;
    case PIPIT__REQUEST__BODY_SCORE:
        put_source(&w, r->score->has_prompt, &r->score->prompt, r->score->tokens,
                   r->score->n_tokens);
        put_wishes(&w, r->score->first, r->score->logits ? TLV_S_LOGITS : 0u);
        if (r->score->has_policy) {
            put_bytes(&w, TLV_POLICY, &r->score->policy);
        }
        break;
    case PIPIT__REQUEST__BODY_EMBED:
        put_embed(&w, r->embed);
        break;
    default:
        break;
    }
    if (items_session(r)) {
        put_bytes(&w, TLV_SESSION, items_session(r));
    }
    if (w.overflow) {
        return -E2BIG;
    }
    *ret_bytes = (uint32_t)w.used;
    return 0;
}

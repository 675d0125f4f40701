/* SPDX-License-Identifier: Apache-2.0 */
/* The request handle: building it, its place on the client's list, and the queue of events that
 * wait for pipit_request_next(). Text stays with the request until it is destroyed, because a
 * connection lost before the daemon accepted it means sending it again. */

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/lib/client.h"

#include "base/hot.h"

int pipit_request_create(struct pipit_client *c, enum pipit_kind kind, struct pipit_request **ret)
{
    struct pipit_request *q;

    if (kind < PIPIT_GENERATE || kind > PIPIT_EMBED) {
        return -EINVAL;
    }
    q = calloc(1, sizeof(*q));
    if (!q) {
        return -ENOMEM;
    }
    q->refs = 1;
    q->client = c;
    q->kind = kind;
    q->next_seq = 1;
    q->tail = &q->head;
    q->more_tail = &q->more;
    q->sampling = tlv_sampling_default();
    if (getrandom(q->id, sizeof(q->id), 0) != (ssize_t)sizeof(q->id)) {
        free(q);
        return -EIO;
    }
    *ret = q;
    return 0;
}

HOT void request_unref(struct pipit_request *q)
{
    struct blob *single[] = {&q->prompt,  &q->system, &q->tokens, &q->policy,
                             &q->session, &q->schema, &q->tools};

    if (--q->refs > 0) {
        return;
    }
    for (size_t i = 0; i < sizeof(single) / sizeof(single[0]); i++) {
        free(single[i]->data);
    }
    for (size_t i = 0; i < q->n_messages; i++) {
        free(q->messages[i].data);
    }
    for (size_t i = 0; i < q->n_stops; i++) {
        free(q->stops[i].data);
    }
    for (struct event_node *n = q->head, *next; n; n = next) {
        next = n->next;
        free(n);
    }
    for (struct more_of_message *m = q->more, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    free(q->shown);
    free(q->messages);
    free(q);
}

HOT struct pipit_request *request_find(struct pipit_client *c, const uint8_t id[16])
{
    for (struct pipit_request *q = c->requests; q; q = q->next) {
        if (memcmp(q->id, id, sizeof(q->id)) == 0) {
            return q;
        }
    }
    return NULL;
}

void request_end(struct pipit_request *q)
{
    struct pipit_request **p = q->client ? &q->client->requests : NULL;

    q->ended = true;
    while (p && *p && *p != q) {
        p = &(*p)->next;
    }
    if (p && *p) {
        *p = q->next;
        q->next = NULL;
    }
}

void pipit_request_destroy(struct pipit_request *q)
{
    if (!q) {
        return;
    }
    if (q->sent && !q->ended) {
        int r = pipit_request_cancel(q);
        (void)r; /* the request is forgotten either way */
    }
    if (!q->ended) {
        request_end(q);
    }
    q->fn = NULL;
    request_unref(q);
}

const uint8_t *pipit_request_id(const struct pipit_request *q)
{
    return q->id;
}

/* ---- what it says ---- */

static int set_blob(struct pipit_request *q, struct blob *b, const void *data, size_t len)
{
    uint8_t *copy;

    if (q->sent) {
        return -EBUSY;
    }
    if (len > UINT32_MAX / 2) {
        return -E2BIG;
    }
    copy = malloc(len + 1);
    if (!copy) {
        return -ENOMEM;
    }
    if (len) {
        memcpy(copy, data, len);
    }
    copy[len] = '\0';
    free(b->data);
    b->data = copy;
    b->len = len;
    return 0;
}

int pipit_request_set_id(struct pipit_request *q, const uint8_t id[16])
{
    static const uint8_t zero[16];

    if (q->sent) {
        return -EBUSY;
    }
    if (memcmp(id, zero, sizeof(zero)) == 0) {
        return -EINVAL;
    }
    memcpy(q->id, id, sizeof(q->id));
    return 0;
}

int pipit_request_set_prompt(struct pipit_request *q, const char *text, size_t len)
{
    return set_blob(q, &q->prompt, text, len);
}

int pipit_request_set_system(struct pipit_request *q, const char *text, size_t len)
{
    return set_blob(q, &q->system, text, len);
}

int pipit_request_add_message(struct pipit_request *q, const char *role, const char *text,
                              size_t len)
{
    struct blob *more;
    int r;

    if (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 &&
        strcmp(role, "assistant") != 0 && strcmp(role, "tool") != 0) {
        return -EINVAL;
    }
    if (q->n_messages >= MESSAGES_MAX) {
        return -E2BIG;
    }
    more = realloc(q->messages, (q->n_messages + 1) * sizeof(*more));
    if (!more) {
        return -ENOMEM;
    }
    q->messages = more;
    memset(&more[q->n_messages], 0, sizeof(*more));
    r = set_blob(q, &more[q->n_messages], text, len);
    if (r == 0) {
        memcpy(more[q->n_messages++].role, role, strlen(role) + 1);
    }
    return r;
}

/* Texts are copied; NULL is none. */
static int add_more(struct pipit_request *q, uint16_t type, const char *text, size_t len)
{
    struct more_of_message *m;

    if (len > UINT32_MAX / 2) {
        return -E2BIG;
    }
    m = malloc(sizeof(*m) + len);
    if (!m) {
        return -ENOMEM;
    }
    *m = (struct more_of_message){.at = q->n_messages - 1, .type = type, .len = len};
    if (len) {
        memcpy(m->text, text, len);
    }
    *q->more_tail = m;
    q->more_tail = &m->next;
    return 0;
}

/* Is the message that was added last one of this role? */
static int check_last(const struct pipit_request *q, const char *role)
{
    if (q->sent) {
        return -EBUSY;
    }
    return q->n_messages && strcmp(q->messages[q->n_messages - 1].role, role) == 0 ? 0 : -EINVAL;
}

int pipit_request_set_tools(struct pipit_request *q, const char *json, size_t len)
{
    return set_blob(q, &q->tools, json, len);
}

int pipit_request_add_reasoning(struct pipit_request *q, const char *text, size_t len)
{
    int r = check_last(q, "assistant");

    return r < 0 ? r : add_more(q, TLV_REASONING, text, len);
}

int pipit_request_add_call(struct pipit_request *q, const char *id, const char *name,
                           const char *arguments, size_t len)
{
    int r = check_last(q, "assistant");

    if (r < 0 || !name[0]) {
        return r < 0 ? r : -EINVAL;
    }
    r = add_more(q, TLV_CALL, id, id ? strlen(id) : 0);
    r = r < 0 ? r : add_more(q, TLV_NAME, name, strlen(name));
    return r < 0 ? r : add_more(q, TLV_ARGUMENTS, arguments, len);
}

int pipit_request_add_result(struct pipit_request *q, const char *id, const char *name,
                             const char *text, size_t len)
{
    int r = pipit_request_add_message(q, "tool", text, len);

    if (r == 0 && name && name[0]) {
        r = add_more(q, TLV_NAME, name, strlen(name));
    }
    if (r == 0 && id && id[0]) {
        r = add_more(q, TLV_CALL_ID, id, strlen(id));
    }
    return r;
}

int pipit_request_set_tokens(struct pipit_request *q, const int32_t *tokens, size_t n)
{
    return n > SIZE_MAX / sizeof(*tokens) ? -E2BIG
                                          : set_blob(q, &q->tokens, tokens, n * sizeof(*tokens));
}

int pipit_request_add_stop(struct pipit_request *q, const char *text, size_t len)
{
    int r;

    if (q->n_stops >= STOPS_MAX) {
        return -E2BIG;
    }
    if (len == 0) {
        return -EINVAL;
    }
    r = set_blob(q, &q->stops[q->n_stops], text, len);
    q->n_stops += r == 0;
    return r;
}

int pipit_request_set_policy(struct pipit_request *q, const char *policy)
{
    return set_blob(q, &q->policy, policy, strlen(policy));
}

int pipit_request_set_session(struct pipit_request *q, const char *name)
{
    return set_blob(q, &q->session, name, strlen(name));
}

int pipit_request_set_schema(struct pipit_request *q, const char *json, size_t len)
{
    return set_blob(q, &q->schema, json, len);
}

int pipit_request_set_seed(struct pipit_request *q, uint64_t seed)
{
    if (q->sent) {
        return -EBUSY;
    }
    q->sampling.seed = seed;
    q->sampling.flags |= TLV_S_SEED;
    q->has_sampling = true;
    return 0;
}

static bool whole(double v, double min, double max)
{
    return v >= min && v <= max && v == floor(v);
}

/* -EINVAL outside the range; NaN is outside every range. */
static int set_number(struct pipit_request *q, enum pipit_param param, double v)
{
    struct tlv_sampling *s = &q->sampling;

    switch (param) {
    case PIPIT_TEMPERATURE:
        s->temperature = (float)v;
        s->flags = v == 0 ? s->flags | TLV_S_GREEDY : s->flags & ~(uint32_t)TLV_S_GREEDY;
        return v >= 0 && v <= 100 ? 0 : -EINVAL;
    case PIPIT_TOP_P:
        s->top_p = (float)v;
        return v >= 0 && v <= 1 ? 0 : -EINVAL;
    case PIPIT_MIN_P:
        s->min_p = (float)v;
        return v >= 0 && v <= 1 ? 0 : -EINVAL;
    case PIPIT_REPEAT_PENALTY:
        s->repeat_penalty = (float)v;
        return v > 0 && v <= 100 ? 0 : -EINVAL;
    case PIPIT_PRESENCE_PENALTY:
        s->presence_penalty = (float)v;
        return v >= -100 && v <= 100 ? 0 : -EINVAL;
    case PIPIT_FREQUENCY_PENALTY:
        s->frequency_penalty = (float)v;
        return v >= -100 && v <= 100 ? 0 : -EINVAL;
    default:
        return -EINVAL;
    }
}

static int set_count(struct pipit_request *q, enum pipit_param param, double v)
{
    struct tlv_sampling *s = &q->sampling;
    int32_t n = whole(v, INT32_MIN, INT32_MAX) ? (int32_t)v : 0;

    switch (param) {
    case PIPIT_TOP_K:
        s->top_k = n;
        return whole(v, 0, INT32_MAX) ? 0 : -EINVAL;
    case PIPIT_PENALTY_LAST_N:
        s->penalty_last_n = n;
        return whole(v, 0, INT32_MAX) ? 0 : -EINVAL;
    case PIPIT_MAX_TOKENS:
        s->max_tokens = n;
        return whole(v, 0, INT32_MAX) ? 0 : -EINVAL;
    case PIPIT_LOGPROBS:
        s->n_logprobs = n;
        return whole(v, -1, ALTS_MAX) ? 0 : -EINVAL;
    case PIPIT_SCORE_FIRST:
        s->score_first = n;
        return whole(v, 0, INT32_MAX) ? 0 : -EINVAL;
    case PIPIT_IGNORE_END:
        s->flags = v != 0 ? s->flags | TLV_S_IGNORE_END : s->flags & ~(uint32_t)TLV_S_IGNORE_END;
        return whole(v, 0, 1) ? 0 : -EINVAL;
    case PIPIT_LOGITS:
        s->flags = v != 0 ? s->flags | TLV_S_LOGITS : s->flags & ~(uint32_t)TLV_S_LOGITS;
        return whole(v, 0, 1) ? 0 : -EINVAL;
    case PIPIT_POOLING:
        s->flags &= ~(uint32_t)(TLV_S_POOL_LAST | TLV_S_POOL_NONE);
        s->flags |= n == PIPIT_POOL_LAST   ? TLV_S_POOL_LAST
                    : n == PIPIT_POOL_NONE ? TLV_S_POOL_NONE
                                           : 0;
        return whole(v, PIPIT_POOL_MEAN, PIPIT_POOL_NONE) ? 0 : -EINVAL;
    case PIPIT_UNIT:
        s->flags = v != 0 ? s->flags & ~(uint32_t)TLV_S_NOT_UNIT : s->flags | TLV_S_NOT_UNIT;
        return whole(v, 0, 1) ? 0 : -EINVAL;
    case PIPIT_PARTS:
        s->flags = v != 0 ? s->flags | TLV_S_PARTS : s->flags & ~(uint32_t)TLV_S_PARTS;
        return whole(v, 0, 1) ? 0 : -EINVAL;
    case PIPIT_DRAFT:
        s->flags = v != 0 ? s->flags & ~(uint32_t)TLV_S_NO_DRAFT : s->flags | TLV_S_NO_DRAFT;
        return whole(v, 0, 1) ? 0 : -EINVAL;
    default:
        return set_number(q, param, v);
    }
}

int pipit_request_set_param(struct pipit_request *q, enum pipit_param param, double v)
{
    struct tlv_sampling before = q->sampling;
    int r;

    if (q->sent) {
        return -EBUSY;
    }
    switch (param) {
    case PIPIT_TIMEOUT_MS:
        if (!whole(v, 0, UINT32_MAX)) {
            return -EINVAL;
        }
        q->timeout_ms = (uint32_t)v;
        return 0;
    case PIPIT_URGENCY:
        if (!whole(v, -100, 100)) {
            return -EINVAL;
        }
        q->urgency = (int32_t)v;
        return 0;
    case PIPIT_DETACH:
        q->detach = v != 0;
        return 0;
    case PIPIT_PROGRESS:
        q->progress = v != 0;
        return 0;
    default:
        r = set_count(q, param, v);
        if (r < 0) {
            q->sampling = before;
        }
        q->has_sampling |= r == 0;
        return r;
    }
}

int pipit_request_set_input(struct pipit_request *q, const struct pipit_lease *ids, size_t n_tokens)
{
    if (q->sent) {
        return -EBUSY;
    }
    if (ids->arena != LANE_ARENA_C2E || n_tokens == 0 || n_tokens > ids->bytes / sizeof(int32_t)) {
        return -EINVAL;
    }
    q->input = ids;
    q->input_bytes = n_tokens * sizeof(int32_t);
    return 0;
}

int pipit_request_set_output(struct pipit_request *q, const struct pipit_lease *lease)
{
    if (q->sent) {
        return -EBUSY;
    }
    if (lease->arena != LANE_ARENA_E2C) {
        return -EINVAL;
    }
    q->output = lease;
    return 0;
}

int pipit_request_set_callback(struct pipit_request *q, pipit_event_fn fn, void *user)
{
    if (q->sent) {
        return -EBUSY;
    }
    q->fn = fn;
    q->user = user;
    return 0;
}

/* ---- its events ---- */

int pipit_request_next(struct pipit_request *q, int timeout_ms, const struct pipit_event **ret)
{
    int64_t deadline_ns = clock_ns() + (int64_t)timeout_ms * 1000000;

    free(q->shown);
    q->shown = NULL;
    while (!q->head) {
        int64_t left = deadline_ns - clock_ns();
        int r;

        if (q->ended) {
            return 0;
        }
        if (!q->sent || q->fn || !q->client) {
            return -EINVAL;
        }
        left = timeout_ms < 0 ? -1 : left <= 0 ? 0 : (left + 999999) / 1000000;
        r = dispatch_own(q->client, (int)left);
        if (r < 0 && !q->head && !q->ended) {
            return r;
        }
        if (r == 0 && !q->head && (timeout_ms < 0 || left == 0)) {
            return -EAGAIN; /* over, or a signal came */
        }
    }
    q->shown = q->head;
    q->head = q->head->next;
    q->n_events--;
    if (!q->head) {
        q->tail = &q->head;
    }
    *ret = &q->shown->event;
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The table of requests: fixed slots, found through hash chains keyed with a random number (ids are
 * chosen by clients). It keeps and counts; what happens to a request is decided in inbound.c,
 * outbound.c and deliver.c. */

#include "daemon/gateway/requests.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hot.h"

void requests_init(struct requests *r, uint64_t hash_key)
{
    memset(r, 0, sizeof(*r));
    memset(r->heads, 0xff, sizeof(r->heads));
    r->hash_key = hash_key | 1;
}

void requests_finish(struct requests *r)
{
    for (int i = 0; i < REQUESTS_MAX; i++) {
        requests_gather_clear(&r->slots[i]);
    }
}

static int32_t *chain(struct requests *r, const uint8_t id[16])
{
    uint64_t half[2];

    memcpy(half, id, sizeof(half));
    half[0] = (half[0] ^ half[1] * r->hash_key) * r->hash_key;
    return &r->heads[(half[0] >> 32) % REQUESTS_MAX];
}

HOT struct request *requests_find(struct requests *r, const uint8_t id[16])
{
    for (int32_t i = *chain(r, id); i >= 0; i = r->slots[i].next) {
        if (memcmp(r->slots[i].id, id, sizeof(r->slots[i].id)) == 0) {
            return &r->slots[i];
        }
    }
    return NULL;
}

struct request *requests_add(struct requests *r, const uint8_t id[16])
{
    int32_t *head = chain(r, id);

    for (int32_t i = 0; i < REQUESTS_MAX; i++) {
        struct request *q = &r->slots[i];

        if (!q->used) {
            *q = (struct request){.used = true, .buf = -1, .next_seq = 1, .next = *head};
            memcpy(q->id, id, sizeof(q->id));
            *head = i;
            r->n_used++;
            return q;
        }
    }
    return NULL;
}

void requests_remove(struct requests *r, struct request *q)
{
    int32_t *link = chain(r, q->id);

    while (&r->slots[*link] != q) {
        link = &r->slots[*link].next;
    }
    *link = q->next;
    requests_set_orphan(r, q, 0);
    requests_gather_clear(q);
    q->used = false;
    r->n_used--;
}

bool requests_owned(const struct request *q, uint32_t uid, const uint8_t *tenant, size_t n)
{
    return q->uid == uid && q->tenant_len == n && (n == 0 || memcmp(q->tenant, tenant, n) == 0);
}

int requests_count_uid(const struct requests *r, uint32_t uid)
{
    int n = 0;

    for (int i = 0; i < REQUESTS_MAX; i++) {
        n += r->slots[i].used && r->slots[i].uid == uid;
    }
    return n;
}

void requests_set_orphan(struct requests *r, struct request *q, int64_t deadline_ns)
{
    r->n_orphans += (deadline_ns != 0) - (q->orphan_ns != 0);
    q->orphan_ns = deadline_ns;
}

static size_t id_bytes(const struct request *q, size_t n)
{
    return n * (q->kind == LANE_KIND_TOKENIZE ? sizeof(int32_t) : sizeof(int32_t) + sizeof(float));
}

/* Is it gathered whole and no sequence in the engine, or, resumed from before this process's start,
 * maybe none? Nobody counts how many of these there are, so the plan has one sum for all. */
static bool shares(const struct request *q)
{
    return q->unary &&
           (q->kind == LANE_KIND_TOKENIZE || q->kind == LANE_KIND_DETOKENIZE || q->kind == 0);
}

static size_t held_bytes(const struct request *q)
{
    const struct gathered *g = &q->gathered;

    return g->text.cap + g->reasoning.cap + g->called.cap + id_bytes(q, g->cap_tokens);
}

static bool may_grow(const struct requests *r, const struct request *q, size_t more)
{
    size_t all = more;
    size_t own = more;

    for (int i = 0; i < REQUESTS_MAX && shares(q); i++) {
        const struct request *other = &r->slots[i];

        if (other->used && shares(other)) {
            all += held_bytes(other);
            own += other->uid == q->uid ? held_bytes(other) : 0;
        }
    }
    return !shares(q) || (all <= REQUESTS_SHARED_BYTES && own <= REQUESTS_SHARED_UID);
}

/* The parts share one limit, and grow so that together they hold little more than that. */
static int add_text(const struct requests *r, struct request *q, struct gathered_text *g,
                    const uint8_t *text, size_t n)
{
    const struct gathered *all = &q->gathered;

    if (n > REQUESTS_GATHER_BYTES - all->text.n - all->reasoning.n - all->called.n) {
        return -E2BIG;
    }
    if (n > g->cap - g->n) {
        size_t cap = g->cap ? g->cap : 1024;
        uint8_t *p;

        while (cap < g->n + n) {
            cap += cap < REQUESTS_GATHER_STEP ? cap : REQUESTS_GATHER_STEP;
        }
        if (!may_grow(r, q, cap - g->cap)) {
            return -EBUSY;
        }
        p = realloc(g->at, cap);
        if (!p) {
            return -ENOMEM;
        }
        g->at = p;
        g->cap = cap;
    }
    if (n) {
        memcpy(g->at + g->n, text, n);
    }
    g->n += n;
    return 0;
}

static int add_to_call(const struct requests *r, struct request *q, bool name, const uint8_t *text,
                       size_t n)
{
    struct gathered *g = &q->gathered;
    int rc;

    if (!g->calls) {
        g->calls = calloc(REQUESTS_CALLS, sizeof(*g->calls));
        if (!g->calls) {
            return -ENOMEM;
        }
    }
    if (name ? g->n_calls == REQUESTS_CALLS : g->n_calls == 0) {
        return -E2BIG;
    }
    rc = add_text(r, q, &g->called, text, n);
    if (rc) {
        return rc;
    }
    g->n_calls += name;
    *(name ? &g->calls[g->n_calls - 1].name_bytes : &g->calls[g->n_calls - 1].arguments_bytes) +=
        (uint32_t)n;
    return 0;
}

int requests_gather_text(const struct requests *r, struct request *q, enum lane_part part,
                         const uint8_t *text, size_t n)
{
    struct gathered *g = &q->gathered;

    switch (part) {
    case LANE_PART_REASONING:
        return add_text(r, q, &g->reasoning, text, n);
    case LANE_PART_NAME:
    case LANE_PART_ARGUMENTS:
        return add_to_call(r, q, part == LANE_PART_NAME, text, n);
    default:
        return add_text(r, q, &g->text, text, n);
    }
}

static int grow_tokens(const struct requests *r, struct request *q)
{
    enum { FIRST = 256, STEP = REQUESTS_GATHER_STEP / sizeof(int32_t) };
    struct gathered *g = &q->gathered;
    size_t more = g->cap_tokens == 0 ? FIRST : g->cap_tokens < STEP ? g->cap_tokens : STEP;
    size_t cap = g->cap_tokens + more;
    void *p;

    if (id_bytes(q, cap) > (shares(q) ? REQUESTS_SHARED_UID : REQUESTS_IDS_BYTES)) {
        return -E2BIG;
    }
    if (!may_grow(r, q, id_bytes(q, more))) {
        return -EBUSY;
    }
    p = realloc(g->tokens, cap * sizeof(*g->tokens));
    if (!p) {
        return -ENOMEM;
    }
    g->tokens = p;
    if (q->kind != LANE_KIND_TOKENIZE) {
        p = realloc(g->logprobs, cap * sizeof(*g->logprobs));
        if (!p) {
            return -ENOMEM;
        }
        g->logprobs = p;
    }
    g->cap_tokens = cap;
    return 0;
}

int requests_gather_token(const struct requests *r, struct request *q, int32_t token, float logprob)
{
    struct gathered *g = &q->gathered;
    int rc = g->n_tokens == g->cap_tokens ? grow_tokens(r, q) : 0;

    if (rc) {
        return rc;
    }
    if (g->logprobs) {
        g->logprobs[g->n_tokens] = logprob;
    }
    g->tokens[g->n_tokens++] = token;
    return 0;
}

void requests_gather_clear(struct request *q)
{
    free(q->gathered.text.at);
    free(q->gathered.reasoning.at);
    free(q->gathered.called.at);
    free(q->gathered.calls);
    free(q->gathered.tokens);
    free(q->gathered.logprobs);
    q->gathered = (struct gathered){0};
}

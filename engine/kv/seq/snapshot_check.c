/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a block: every number that it holds is checked before any is used. */

#include "engine/kv/seq/snapshot_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

static int broken(struct error *reterr, const char *what)
{
    return error_set(reterr, -EBADMSG, "the saved sequence is broken: %s", what);
}

static int check_header(const struct cache *c, const struct snapshot_header *h, size_t size,
                        const char identity[64], const struct policy *p, struct error *reterr)
{
    if (memcmp(h->magic, snapshot_magic, sizeof(snapshot_magic)) != 0) {
        return broken(reterr, "it does not begin as one");
    }
    if (h->version != SNAPSHOT_VERSION) {
        return error_set(reterr, -ENOTSUP, "the saved sequence is of version %u, this is %d",
                         h->version, SNAPSHOT_VERSION);
    }
    if (memcmp(h->identity, identity, sizeof(h->identity)) != 0) {
        return error_set(reterr, -EBADMSG, "the sequence was saved with another model or overlay");
    }
    if (memchr(h->policy, 0, sizeof(h->policy)) == NULL) {
        return broken(reterr, "its policy");
    }
    if (!policy_same_saved(p, h->policy)) {
        return error_set(reterr, -EINVAL, "the sequence was saved under policy %s", h->policy);
    }
    int32_t ctx = c->geometry.config.ctx;

    if (h->bytes != size || h->n_stores != c->geometry.config.n_stores || h->n_tokens < 1 ||
        h->n_prompt < 1 || h->n_prompt > h->n_tokens || h->n_slots < 0 ||
        h->n_slots > h->n_tokens || h->n_evicted < 0) {
        return broken(reterr, "its sizes");
    }
    if (!policy_evicts(p) ? h->budget != 0 || h->n_slots != h->n_tokens : h->budget < 1) {
        return broken(reterr, "its budget");
    }
    if (h->n_tokens > policy_most_tokens(p, ctx) || h->budget > ctx) {
        return error_set(reterr, -ENOMEM,
                         "the saved sequence has %d tokens and a budget of %d, the context is %d",
                         h->n_tokens, h->budget, ctx);
    }
    return 0;
}

/* The most slots that a store of such a sequence may have. */
static int32_t most_slots(const struct cache *c, const struct policy *p, int32_t store,
                          const struct snapshot_header *h)
{
    const struct geometry *s = &c->geometry;
    int32_t budget = geometry_store_budget(s, p, h->budget, store);

    return geometry_slots(s, store, geometry_most_slots(s, p, budget, store), h->n_tokens);
}

/* At least `least` slots hold a position, no two the same: a victim is found among such. seen:
 * (n_tokens) bits. */
static int check_positions(const uint8_t *at, int32_t n, int32_t least, int32_t n_tokens,
                           uint8_t *seen, struct error *reterr)
{
    int32_t live = 0;

    memset(seen, 0, (size_t)n_tokens / 8 + 1);
    for (int32_t i = 0; i < n; i++) {
        int32_t pos;

        memcpy(&pos, at + (size_t)i * sizeof(pos), sizeof(pos));
        if (pos == -1 && least < n) {
            continue;
        }
        live++;
        if (pos < 0 || pos >= n_tokens) {
            return broken(reterr, "a position");
        }
        if (seen[pos / 8] & 1u << pos % 8) {
            return broken(reterr, "two slots of one position");
        }
        seen[pos / 8] |= (uint8_t)(1u << pos % 8);
    }
    return live < least ? broken(reterr, "empty slots") : 0;
}

static int check_finite(const uint8_t *at, uint64_t n, const char *what, struct error *reterr)
{
    for (uint64_t i = 0; i < n; i++) {
        float x;

        memcpy(&x, at + (size_t)i * sizeof(x), sizeof(x));
        if (!isfinite(x)) {
            return broken(reterr, what);
        }
    }
    return 0;
}

/* Counts of use are whole and have an end (OPS_USE_COUNT). */
static int check_counts(const uint8_t *at, uint64_t n, struct error *reterr)
{
    for (uint64_t i = 0; i < n; i++) {
        float x;

        memcpy(&x, at + i * sizeof(x), sizeof(x));
        if (!(x >= 0 && x <= OPS_USE_MAX && x - floorf(x) < 0x1p-23f)) {
            return broken(reterr, "a count of use");
        }
    }
    return 0;
}

/* `expect`: of the group's words, statistics. `least` of its slots are not empty. */
static int check_group(const struct snapshot_store *h, const struct policy *p, uint64_t expect,
                       const uint8_t *at, int32_t least, int32_t n_tokens, uint8_t *seen,
                       struct error *reterr)
{
    uint64_t own = snapshot_n_words(h) - expect;
    uint64_t n = (uint64_t)h->n_slots;
    int r = 0;

    if (h->flags & HAS_POS) {
        r = check_positions(at, h->n_slots, least, n_tokens, seen, reterr);
        at += snapshot_pad8(n * sizeof(int32_t));
    }
    if (!r && (h->flags & HAS_SCORE)) {
        r = check_finite(at, n, "a score", reterr);
        r = !r && p->place->use == OPS_USE_COUNT ? check_counts(at, n, reterr) : r;
        at += snapshot_pad8(n * sizeof(float));
    }
    if (!r && (h->flags & HAS_SUM)) {
        r = check_finite(at, own, "a sum of V", reterr);
    }
    return r ? r : check_finite(at + own * sizeof(float), expect, "a statistic", reterr);
}

/* Takes what is small out of the block, one thing after the other. */
struct taker {
    const struct cache *c;
    const struct snapshot_source *source;
    struct snapshot_header head;
    struct cache_seq seq; /* policy, place and variant of the sequence to be */
    uint8_t *held;
    int32_t *slots; /* (n_stores) */
    int32_t *first; /* (n_groups of all stores), or NULL */
    uint8_t *seen;
    uint64_t n_held;
    uint64_t at;
};

static int take(struct taker *t, uint64_t n, struct error *reterr)
{
    int r;

    if (!checked_range(t->at, n, t->source->size)) {
        return broken(reterr, "it ends early");
    }
    r = t->source->read(t->source->arg, t->at, t->held + t->n_held, (size_t)n);
    if (r) {
        return error_set_errno(reterr, r, "the saved sequence cannot be read");
    }
    t->n_held += n;
    t->at += n;
    return 0;
}

/* Of a group's n slots, those that hold something, at least. */
static int32_t least_slots(const struct taker *t, int32_t store, int32_t n)
{
    const struct policy *p = &t->seq.policy;
    int32_t budget = geometry_store_budget(&t->c->geometry, p, t->head.budget, store);
    int32_t sure = budget ? policy_sure_slots(p, budget) : n;

    return policy_divides_heads(p) && sure < n ? sure : n;
}

/* A group's first pages that are not there. */
static int32_t empty_pages(const uint8_t *at, int32_t n)
{
    int32_t n_empty = 0;

    for (; n_empty < n; n_empty++) {
        int32_t pos;

        memcpy(&pos, at + (size_t)n_empty * sizeof(pos), sizeof(pos));
        if (pos >= 0) {
            break;
        }
    }
    return n_empty / OPS_PAGE_SLOTS;
}

static int64_t pages_of(int32_t n_slots)
{
    return ((int64_t)n_slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
}

/* A sequence has as many reserved as equal heads take. */
static int check_pages(const struct taker *t, int32_t store, int32_t n_slots, struct error *reterr)
{
    const struct geometry_arrays *a = &t->c->geometry.arrays[store];
    int32_t budget = geometry_store_budget(&t->c->geometry, &t->seq.policy, t->head.budget, store);
    int64_t n = (int64_t)a->n_groups * pages_of(n_slots);

    for (int32_t g = 0; t->first && g < a->n_groups; g++) {
        n -= t->first[a->group0 + g];
    }
    return budget && n > (int64_t)a->n_groups * pages_of(budget) ? broken(reterr, "its budget") : 0;
}

/* Where tokens are evicted, a store may have fewer slots than its budget: as many as it says, and
 * all stores of equal budgets the same. */
static int check_slots(const struct taker *t, int32_t store, int32_t n, struct error *reterr)
{
    const struct geometry *g = &t->c->geometry;
    const struct policy *p = &t->seq.policy;
    int32_t most = most_slots(t->c, p, store, &t->head);

    if (!geometry_evicts(g, p, store)) {
        return 0; /* compared with the rest */
    }
    bool same = p->layers == POLICY_LAYERS_EQUAL && !policy_divides_heads(p);
    int32_t budget = geometry_store_budget(g, p, t->head.budget, store);
    int32_t kept = geometry_most_slots(g, p, budget, store);

    if (kept > g->arrays[store].cap) {
        return error_set(reterr, -ENOMEM,
                         "the saved sequence keeps positions of %d tokens a head, which the "
                         "daemon's memory plan, made for its own --kv, does not hold%s; start the "
                         "daemon with the policy that it was saved under",
                         kept, g->arrays[store].cap ? " so many of" : "");
    }
    return n < 1 || n > most || (same && n != t->head.n_slots) ? broken(reterr, "its budget") : 0;
}

static int take_store(struct taker *t, int32_t store, struct error *reterr)
{
    int32_t most = most_slots(t->c, &t->seq.policy, store, &t->head);
    struct snapshot_store want = snapshot_describe(t->c, &t->seq, store, most);
    struct snapshot_store has;
    int r = take(t, sizeof(has), reterr);

    if (r) {
        return r;
    }
    memcpy(&has, t->held + t->n_held - sizeof(has), sizeof(has));
    r = check_slots(t, store, has.n_slots, reterr);
    if (geometry_evicts(&t->c->geometry, &t->seq.policy, store)) {
        want.n_slots = has.n_slots;
    }
    if (!r && memcmp(&has, &want, sizeof(want)) != 0) {
        r = error_set(reterr, -ENOTSUP,
                      "the saved sequence's cache of layer %d is laid out otherwise", want.layer);
    }
    t->slots[store] = want.n_slots;
    for (int32_t g = 0; !r && g < want.n_groups; g++) {
        r = take(t, snapshot_state_bytes(&want), reterr);
        r = r ? r
              : check_group(&want, &t->seq.policy, snapshot_expect_words(t->c, &t->seq, store),
                            t->held + t->n_held - snapshot_state_bytes(&want),
                            least_slots(t, store, want.n_slots), t->head.n_tokens, t->seen, reterr);
        if (!r &&
            !checked_range(t->at, snapshot_pad8(snapshot_slots_bytes(&want)), t->source->size)) {
            r = broken(reterr, "it ends early");
        }
        t->at += snapshot_pad8(snapshot_slots_bytes(&want));
        if (t->first && (want.flags & HAS_POS)) {
            t->first[t->c->geometry.arrays[store].group0 + g] =
                empty_pages(t->held + t->n_held - snapshot_state_bytes(&want), want.n_slots);
        }
    }
    return r ? r : check_pages(t, store, want.n_slots, reterr);
}

/* What a sequence with this header leaves to be held, at most; the header's numbers are within the
 * plan's.
 */
static uint64_t held_bytes(const struct taker *t)
{
    uint64_t sum = sizeof(t->head) + snapshot_pad8((uint64_t)t->head.n_tokens * sizeof(int32_t));

    for (int32_t i = 0; i < t->head.n_stores; i++) {
        struct snapshot_store h =
            snapshot_describe(t->c, &t->seq, i, most_slots(t->c, &t->seq.policy, i, &t->head));

        sum += sizeof(h) + (uint64_t)h.n_groups * snapshot_state_bytes(&h);
    }
    return sum;
}

/* The header says how many slots the fullest store has, and the plan reserves by that. */
static int check_most(const struct taker *t, struct error *reterr)
{
    const struct snapshot_header *h = &t->head;
    int32_t most = 0;

    for (int32_t i = 0; i < h->n_stores; i++) {
        bool evicts = geometry_evicts(&t->c->geometry, &t->seq.policy, i);

        most = evicts && t->slots[i] > most ? t->slots[i] : most;
    }
    if (most == 0) {
        most = h->budget && h->budget < h->n_tokens ? h->budget : h->n_tokens;
    }
    return h->n_slots == most ? 0 : broken(reterr, "its sizes");
}

static int take_all(struct taker *t, struct error *reterr)
{
    int r;

    memcpy(t->held, &t->head, sizeof(t->head));
    t->n_held = sizeof(t->head);
    t->at = sizeof(t->head);
    r = take(t, snapshot_pad8((uint64_t)t->head.n_tokens * sizeof(int32_t)), reterr);
    for (int32_t i = 0; !r && i < t->head.n_stores; i++) {
        r = take_store(t, i, reterr);
    }
    r = r ? r : check_most(t, reterr);
    if (!r && t->at != t->source->size) {
        r = broken(reterr, "it is longer than its stores");
    }
    return r;
}

int snapshot_open(const struct cache *c, const struct snapshot_source *source,
                  const char identity[64], const struct policy *p, struct snapshot **ret,
                  struct error *reterr)
{
    struct taker t = {.c = c, .source = source};
    struct snapshot *s = calloc(1, sizeof(*s));
    int r;

    if (!s) {
        return error_set(reterr, -ENOMEM, "no memory for a saved sequence");
    }
    t.held = (uint8_t *)&t.head;
    r = take(&t, sizeof(t.head), reterr);
    r = r ? r : check_header(c, &t.head, source->size, identity, p, reterr);
    if (r) {
        goto fail;
    }
    t.seq = (struct cache_seq){
        .policy = *p, .place = p->place, .variant = geometry_variant(&c->geometry, p)};
    if (t.seq.variant < 0) {
        r = error_set(reterr, -ENOMEM, "it was saved under %s, of which the plan has no pages",
                      t.head.policy);
        goto fail;
    }
    if (policy_divides_heads(p) && !c->geometry.divides) {
        r = error_set(reterr, -ENOMEM, "it was saved under %s, and the plan divides no heads",
                      t.head.policy);
        goto fail;
    }
    s->held_bytes = held_bytes(&t);
    s->held = malloc(
        (size_t)(s->held_bytes + snapshot_buffer_bytes(snapshot_largest_slot(c, t.seq.variant))));
    s->slots = calloc((size_t)t.head.n_stores, sizeof(*s->slots));
    t.held = s->held;
    t.slots = s->slots;
    if (policy_divides_heads(p)) {
        s->first = calloc((size_t)c->geometry.n_groups, sizeof(*s->first));
        t.first = s->first;
    }
    t.seen = malloc((size_t)t.head.n_tokens / 8 + 1);
    r = t.held && t.slots && t.seen && (t.first || !policy_divides_heads(p))
            ? take_all(&t, reterr)
            : error_set(reterr, -ENOMEM, "no memory for a saved sequence");
    free(t.seen);
    if (r) {
        goto fail;
    }
    s->source = *source;
    memcpy(s->policy, t.head.policy, sizeof(s->policy));
    s->tokens = (const int32_t *)(const void *)(s->held + sizeof(t.head));
    s->n_tokens = t.head.n_tokens;
    s->n_slots = t.head.n_slots;
    s->budget = t.head.budget;
    s->n_stores = t.head.n_stores;
    *ret = s;
    return 0;
fail:
    snapshot_close(s);
    return r;
}

void snapshot_close(struct snapshot *s)
{
    if (s) {
        free(s->held);
        free(s->slots);
        free(s->first);
        free(s);
    }
}

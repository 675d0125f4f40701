/* SPDX-License-Identifier: Apache-2.0 */
/* One store of one sequence: where its pages, positions and scores are.
 *
 * Pages are entered in the sequence's page table on the device and in a host mirror, which knows
 * what to give back. Positions and scores are in the sequence's arrays, or, for a prompt that is
 * longer than what the sequence holds, in the one peak region; under score=shared all stores use
 * the first one's scores. */

#include <assert.h>

#include "engine/kv/home/home.h"
#include "engine/kv/seq/cache_impl.h"

int32_t cache_score_store_of(const struct cache *c, const struct cache_seq *q)
{
    int32_t store = 0;

    if (!q->place->scores || q->policy.scope != POLICY_SHARED) {
        return -1;
    }
    while (store < c->geometry.config.n_stores && !c->geometry.arrays[store].kind->evicts) {
        store++;
    }
    return store < c->geometry.config.n_stores ? store : -1;
}

struct cache_state cache_state_of(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];

    if (!q->in_peak) {
        return (struct cache_state){q->state + st->pos_off, q->state + st->score_off, st->cap};
    }
    if (q->layered) {
        return (struct cache_state){c->peak_state, c->peak_state + st->layer_score_off,
                                    st->peak_cap};
    }
    return (struct cache_state){c->peak_state + st->peak_pos_off,
                                c->peak_state + st->peak_score_off, st->peak_cap};
}

static uint8_t *score_of(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    int32_t shared = cache_score_store_of(c, q);

    return cache_state_of(c, q, shared >= 0 ? shared : store).score;
}

bool cache_is_full(const struct cache_seq *q, int32_t store)
{
    const struct cache_store *st = &q->stores[store];

    return st->budget > 0 && q->n_tokens >= q->n_prompt && st->n_slots >= st->budget;
}

/* Slots of a store that may be live once n_new more tokens are in. */
int32_t cache_slots_after(const struct cache *c, const struct cache_seq *q, int32_t store,
                          int32_t n_new)
{
    if (!cache_evicts_from(q, store)) {
        return geometry_slots(&c->geometry, store, 0, q->n_tokens + n_new);
    }
    return q->stores[store].n_slots + (cache_is_full(q, store) ? 0 : n_new);
}

int32_t cache_first_page(const struct cache *c, const struct cache_seq *q, int32_t store,
                         int32_t group)
{
    return q->stores[store].divided ? q->first[c->geometry.arrays[store].group0 + group] : 0;
}

int32_t cache_store_pages(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    int32_t n = 0;

    for (int32_t g = 0; g < c->geometry.arrays[store].n_groups; g++) {
        n += q->stores[store].n_pages - cache_first_page(c, q, store, g);
    }
    return n;
}

/* A group's pages up to `want`, all of them or none. */
static int take_row(struct cache *c, struct cache_seq *q, int32_t store, int32_t group,
                    int32_t want)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    int32_t class = geometry_class_of(&c->geometry, q->variant, store);
    int32_t first = cache_first_page(c, q, store, group);
    int32_t have = q->stores[store].n_pages > first ? q->stores[store].n_pages : first;
    size_t at = (size_t)group * (size_t)st->max_pages + (size_t)have;
    uint32_t *row = cache_host_pages(q, st) + at;
    int32_t n = want - have;
    int32_t taken = 0;
    int r = 0;

    for (; !r && taken < n; taken += !r) {
        r = pages_take(&c->classes[class], q->principal, &row[taken]);
    }
    if (!r) {
        r = c->geometry.config.ops->write(c->be, q->tables + st->pages_off + at * sizeof(uint32_t),
                                          row, (uint64_t)n * sizeof(uint32_t));
    }
    for (; r && taken > 0; taken--) {
        pages_put_back(&c->classes[class], &row[taken - 1]);
    }
    q->left.pages[class] -= (uint32_t)taken;
    return r;
}

/* What groups [0, n_groups) have taken. */
static void put_back_rows(struct cache *c, struct cache_seq *q, int32_t store, int32_t n_groups,
                          int32_t want)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    int32_t class = geometry_class_of(&c->geometry, q->variant, store);

    for (int32_t g = 0; g < n_groups; g++) {
        uint32_t *row = cache_host_pages(q, st) + (size_t)g * (size_t)st->max_pages;
        int32_t first = cache_first_page(c, q, store, g);

        for (int32_t i = q->stores[store].n_pages > first ? q->stores[store].n_pages : first;
             i < want; i++) {
            pages_put_back(&c->classes[class], &row[i]);
            q->left.pages[class]++;
        }
    }
}

int cache_take_pages(struct cache *c, struct cache_seq *q, int32_t store, int32_t n_slots)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    int32_t want = (n_slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
    int32_t have = q->stores[store].n_pages;

    if (want <= have || geometry_on_disk(&c->geometry, &q->policy, store) >= 0) {
        return 0;
    }
    int r = 0;

    for (int32_t g = 0; !r && g < st->n_groups; g++) {
        r = take_row(c, q, store, g, want);
        if (r) {
            put_back_rows(c, q, store, g, want);
        }
    }
    q->stores[store].n_pages = r ? have : want;
    return r;
}

uint32_t cache_drop_of_group(struct cache *c, struct cache_seq *q, int32_t store, int32_t group,
                             int32_t from)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    struct pages *pages = &c->classes[geometry_class_of(&c->geometry, q->variant, store)];
    uint32_t *row = cache_host_pages(q, st) + (size_t)group * (size_t)st->max_pages;
    int32_t first = cache_first_page(c, q, store, group);
    uint32_t n = 0;

    for (int32_t i = first > from ? first : from; i < q->stores[store].n_pages; i++, n++) {
        (void)pages_unref(pages, &row[i]);
    }
    return n;
}

/* Gives back a store's pages from `keep` a group on, and says how many. */
static uint32_t drop_pages(struct cache *c, struct cache_seq *q, int32_t store, int32_t keep)
{
    uint32_t n = 0;

    for (int32_t g = 0; g < c->geometry.arrays[store].n_groups; g++) {
        n += cache_drop_of_group(c, q, store, g, keep);
    }
    q->stores[store].n_pages = q->stores[store].n_pages < keep ? q->stores[store].n_pages : keep;
    return n;
}

void cache_drop_pages(struct cache *c, struct cache_seq *q, int32_t store, int32_t keep)
{
    (void)drop_pages(c, q, store, keep);
}

void cache_reserve_again(struct cache *c, struct cache_seq *q, int32_t store, uint32_t n)
{
    int32_t class = geometry_class_of(&c->geometry, q->variant, store);
    bool reserved = pages_reserve(&c->classes[class], n);

    assert(reserved);
    (void)reserved;
    q->left.pages[class] += n;
}

void cache_return_pages(struct cache *c, struct cache_seq *q, int32_t store, int32_t keep)
{
    cache_reserve_again(c, q, store, drop_pages(c, q, store, keep));
}

/* The prefix cache has pages of whole chunks and no entries of the latest tokens. So a prompt's
 * entries count from its last chunk on, which it reads itself: what it gives does not depend on
 * what was kept. */
static int32_t latest_from(const struct cache_seq *q)
{
    return q->n_prompt > 0 ? (q->n_prompt - 1) / q->policy.chunk * q->policy.chunk : 0;
}

/* The store's slots as the backend sees them, with n_slots that may be live. */
struct ops_kv cache_kv_of(const struct cache *c, const struct cache_seq *q, int32_t store,
                          int32_t n_slots)
{
    const struct geometry *s = &c->geometry;
    const struct geometry_arrays *st = &s->arrays[store];
    int32_t seq = (int32_t)(q - c->seqs);
    struct ops_kv kv = {.n_slots = n_slots};

    home_of(c, seq, store)->attach(c, seq, store, &kv);
    if (kv.layout->part_dims > 0) {
        kv.skew = (q->policy.skew ? s->config.stores[store].skew : s->config.stores[store].columns)
                      ->device;
    }
    if (geometry_centers(s, &q->policy, store)) {
        kv.center = s->config.stores[store].center->device;
    }
    kv.k_hadamard = policy_rotates(&q->policy, kv.layout->k_type);
    if (kv.k_hadamard && s->config.stores[store].balance) {
        kv.balance = s->config.stores[store].balance->device;
    }
    kv.v_hadamard = policy_rotates(&q->policy, kv.layout->v_type);
    const struct ops_weight *carry =
        kv.k_hadamard ? s->config.stores[store].carry_turned : s->config.stores[store].carry;

    if (carry && !kv.layout->k_unrotated) {
        kv.carry = carry->device;
    }
    if (geometry_keeps_sum(s, &q->policy, store)) {
        kv.v_sum = (float *)(void *)(q->state + st->sum_off);
    }
    if (ops_kv_latest_bytes(kv.layout) > 0) {
        kv.latest = q->state + st->latest_off;
        kv.latest_from = latest_from(q);
    }
    if (st->ring) {
        kv.cap = st->ring;
        kv.slot_pos = (int32_t *)(void *)(q->tables + st->ring_off);
    } else if (cache_evicts_from(q, store)) {
        struct cache_state state = cache_state_of(c, q, store);

        kv.cap = state.cap;
        kv.slot_pos = (int32_t *)(void *)state.pos;
        kv.score = q->place->scores ? (float *)(void *)score_of(c, q, store) : NULL;
    }
    return kv;
}

uint8_t *cache_state_page(const struct cache *c, const struct cache_seq *q, int32_t store,
                          int32_t at)
{
    const struct pages *p = &c->classes[geometry_class_of(&c->geometry, q->variant, store)];

    return p->pool + p->page_bytes * cache_host_pages(q, &c->geometry.arrays[store])[at];
}

void cache_guard_at(const struct cache_seq *q, int32_t store, bool cut, int32_t last,
                    struct place_guard *ret)
{
    struct place_when when = {
        .cut = cut, .budget = q->stores[store].budget, .n_prompt = q->n_prompt, .last = last};

    q->place->guard(&q->policy, &when, ret);
}

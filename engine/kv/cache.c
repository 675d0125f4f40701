/* SPDX-License-Identifier: Apache-2.0 */
/* Seats and what happens on them.
 *
 * A global store of a keep-all policy has slot = position. Of an evicting one, a token takes the
 * next slot while there are slots within the budget, then the slot of a victim; the prompt may
 * stand above the budget until it is cut. A sliding layer's store is a ring whatever the policy.
 *
 * Pages are taken as tokens come, out of what was reserved, and are entered in the seat's page
 * table on the device and in a host mirror, which knows what to give back. A prompt longer than
 * the seat's arrays for positions and scores uses the one peak region; the cut copies what is
 * left of them to the seat. */

#include "engine/kv/cache.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- creation ------------------------------------------------------------------------------ */

static int alloc_seats(struct cache *c, struct error *reterr)
{
    const struct shape *s = &c->shape;
    size_t n = (size_t)s->n_seqs;
    size_t words = (size_t)(s->table_bytes / sizeof(uint32_t));
    uint64_t state = s->state_bytes * n + s->peak_state_bytes;
    int r = 0;

    c->seqs = calloc(n, sizeof(*c->seqs));
    c->pages_host = calloc(n * words, sizeof(uint32_t));
    c->n_pages_host = calloc(n * (size_t)s->n_stores, sizeof(int32_t));
    if (!c->seqs || !c->pages_host || !c->n_pages_host) {
        return error_set(reterr, -ENOMEM, "cache: no memory for page tables");
    }
    r = s->ops->alloc(c->be, s->table_bytes * n, "page tables", &c->tables, reterr);
    if (!r && state) {
        r = s->ops->alloc(c->be, state, "policy state", &c->state, reterr);
    }
    if (r) {
        return r;
    }
    c->peak_state = c->state ? (uint8_t *)c->state + s->state_bytes * n : NULL;
    for (size_t i = 0; i < n; i++) {
        struct cache_seq *q = &c->seqs[i];

        q->tables = (uint8_t *)c->tables + s->table_bytes * i;
        q->state = c->state ? (uint8_t *)c->state + s->state_bytes * i : NULL;
        q->pages = c->pages_host + words * i;
        q->n_pages = c->n_pages_host + (size_t)s->n_stores * i;
    }
    return 0;
}

int cache_create(struct shape *shape, struct backend *be, struct cache **ret, struct error *reterr)
{
    struct cache *c = calloc(1, sizeof(*c));
    int r = 0;

    if (!c) {
        shape_finish(shape);
        return error_set(reterr, -ENOMEM, "cache: no memory");
    }
    c->shape = *shape;
    *shape = (struct shape){0};
    c->be = be;
    c->peak_holder = -1;
    for (int32_t i = 0; !r && i < c->shape.n_classes; i++) {
        const struct shape_class *k = &c->shape.classes[i];

        r = pages_create(c->shape.ops, be, k->page_bytes, k->n_pages, &c->classes[i], reterr);
    }
    if (!r) {
        r = alloc_seats(c, reterr);
    }
    if (r) {
        cache_destroy(c);
        return r;
    }
    *ret = c;
    return 0;
}

void cache_destroy(struct cache *c)
{
    if (!c) {
        return;
    }
    const struct shape *s = &c->shape;
    size_t n = (size_t)s->n_seqs;

    for (int32_t i = 0; i < s->n_classes; i++) {
        pages_destroy(&c->classes[i]);
    }
    if (c->state) {
        s->ops->free(c->be, c->state, s->state_bytes * n + s->peak_state_bytes);
    }
    if (c->tables) {
        s->ops->free(c->be, c->tables, s->table_bytes * n);
    }
    free(c->n_pages_host);
    free(c->pages_host);
    free(c->seqs);
    shape_finish(&c->shape);
    free(c);
}

/* ---- sitting down and leaving --------------------------------------------------------------- */

int cache_check(const struct cache *c, const struct policy *p, int32_t n_prompt, int32_t n_tokens,
                struct error *reterr)
{
    const struct shape *s = &c->shape;
    const struct place_ops *place = place_find(p->place);
    struct shape_need need;
    int v = shape_variant(s, p);

    if (v < 0) {
        return error_set(reterr, -ENOTSUP,
                         "the plan has no pages of this policy's precision; start the daemon with "
                         "--kv naming it");
    }
    if (p->chunk > s->max_chunk) {
        return error_set(reterr, -ENOTSUP, "chunk=%d is more than the %d rows planned for",
                         p->chunk, s->max_chunk);
    }
    shape_need(s, p, v, n_prompt, n_tokens, &need);
    if (place->evicts && (s->steady_cap == 0 || (place->scores && !s->scores) ||
                          (need.peak_state && need.peak_slots > s->peak_cap) ||
                          policy_budget(p, n_prompt, s->ctx) > s->steady_cap)) {
        return error_set(reterr, -ENOMEM,
                         "the plan holds positions and scores of %d slots a head group, this "
                         "policy needs %d; start the daemon with --kv naming it",
                         s->steady_cap, policy_budget(p, n_prompt, s->ctx));
    }
    for (int32_t i = 0; i < s->n_classes; i++) {
        if (need.pages[i] + need.peak[i] > s->classes[i].n_pages) {
            return error_set(reterr, -ENOMEM,
                             "this policy needs %u pages of %s for %d positions, the plan has %u",
                             need.pages[i] + need.peak[i], s->classes[i].name, n_tokens,
                             s->classes[i].n_pages);
        }
    }
    return 0;
}

static bool reserve(struct cache *c, const struct shape_need *need)
{
    for (int32_t i = 0; i < c->shape.n_classes; i++) {
        if (!pages_reserve(&c->classes[i], need->pages[i] + need->peak[i])) {
            while (i-- > 0) {
                pages_unreserve(&c->classes[i], need->pages[i] + need->peak[i]);
            }
            return false;
        }
    }
    return true;
}

int cache_sit(struct cache *c, const struct policy *p, uint64_t principal, int32_t n_prompt,
              int32_t n_tokens)
{
    const struct shape *s = &c->shape;
    struct shape_need need;
    int v = shape_variant(s, p);
    int32_t seat = 0;

    if (v < 0) {
        return v;
    }
    while (seat < s->n_seqs && c->seqs[seat].busy) {
        seat++;
    }
    if (seat == s->n_seqs) {
        return -EBUSY;
    }
    shape_need(s, p, v, n_prompt, n_tokens, &need);
    if ((need.peak_state && c->peak_holder >= 0) || !reserve(c, &need)) {
        return -EBUSY;
    }
    struct cache_seq *q = &c->seqs[seat];

    q->busy = true;
    q->policy = *p;
    q->place = place_find(p->place);
    q->variant = v;
    q->principal = principal;
    q->n_prompt = n_prompt;
    q->budget = q->place->evicts ? policy_budget(p, n_prompt, s->ctx) : 0;
    q->n_tokens = 0;
    q->n_slots = 0;
    q->prepared = 0;
    q->evicting = false;
    q->in_peak = need.peak_state;
    q->n_evicted = 0;
    q->left = need;
    for (int32_t i = 0; i < s->n_classes; i++) { /* one count from here on */
        q->left.pages[i] += need.peak[i];
    }
    memset(q->n_pages, 0, (size_t)s->n_stores * sizeof(*q->n_pages));
    if (q->in_peak) {
        c->peak_holder = seat;
    }
    return seat;
}

static uint32_t *host_pages(const struct cache_seq *q, const struct shape_seat *st)
{
    return q->pages + st->pages_off / sizeof(uint32_t);
}

/* Gives back a store's pages from `keep` a group on. */
static void drop_pages(struct cache *c, struct cache_seq *q, int32_t store, int32_t keep)
{
    const struct shape_seat *st = &c->shape.seats[store];
    struct pages *pages = &c->classes[shape_class_of(&c->shape, q->variant, store)];

    for (int32_t g = 0; g < st->n_groups; g++) {
        uint32_t *row = host_pages(q, st) + (size_t)g * (size_t)st->max_pages;

        for (int32_t i = keep; i < q->n_pages[store]; i++) {
            (void)pages_unref(pages, &row[i]);
        }
    }
    q->n_pages[store] = q->n_pages[store] < keep ? q->n_pages[store] : keep;
}

void cache_leave(struct cache *c, int32_t seat)
{
    struct cache_seq *q = &c->seqs[seat];

    assert(q->busy);
    for (int32_t i = 0; i < c->shape.n_stores; i++) {
        drop_pages(c, q, i, 0);
    }
    for (int32_t i = 0; i < c->shape.n_classes; i++) {
        pages_unreserve(&c->classes[i], q->left.pages[i]);
    }
    if (c->peak_holder == seat) {
        c->peak_holder = -1;
    }
    q->busy = false;
}

/* ---- a step --------------------------------------------------------------------------------- */

/* Slots of a store that may be live once n_new more tokens are in. */
static int32_t slots_after(const struct cache *c, const struct cache_seq *q, int32_t store,
                           int32_t n_new)
{
    const struct shape_seat *st = &c->shape.seats[store];
    int32_t n = q->n_tokens + n_new;

    if (st->ring) {
        return n < st->ring ? n : st->ring;
    }
    if (c->shape.stores[store].window) {
        return n;
    }
    return q->n_slots + (q->evicting ? 0 : n_new);
}

static int take_pages(struct cache *c, struct cache_seq *q, int32_t store, int32_t n_slots)
{
    const struct shape_seat *st = &c->shape.seats[store];
    int32_t class = shape_class_of(&c->shape, q->variant, store);
    int32_t want = (n_slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
    int32_t have = q->n_pages[store];

    if (want <= have) {
        return 0;
    }
    for (int32_t g = 0; g < st->n_groups; g++) {
        size_t at = (size_t)g * (size_t)st->max_pages + (size_t)have;
        uint32_t *row = host_pages(q, st) + at;

        for (int32_t i = 0; i < want - have; i++) {
            int r = pages_take(&c->classes[class], q->principal, &row[i]);

            if (r) {
                return r;
            }
            q->left.pages[class]--;
        }
        int r = c->shape.ops->write(c->be, q->tables + st->pages_off + at * sizeof(uint32_t), row,
                                    (uint64_t)(want - have) * sizeof(uint32_t));
        if (r) {
            return r;
        }
    }
    q->n_pages[store] = want;
    return 0;
}

/* The store's slots as the backend sees them, with n_slots that may be live. */
static struct ops_kv store_kv(const struct cache *c, const struct cache_seq *q, int32_t store,
                              int32_t n_slots)
{
    const struct shape *s = &c->shape;
    const struct shape_seat *st = &s->seats[store];
    const struct pages *pages = &c->classes[shape_class_of(s, q->variant, store)];
    struct ops_kv kv = {
        .layout = shape_layout(s, q->variant, store),
        .pool = pages->pool,
        .pages = (const uint32_t *)(const void *)(q->tables + st->pages_off),
        .max_pages = st->max_pages,
        .n_slots = n_slots,
    };

    if (st->ring) {
        kv.cap = st->ring;
        kv.slot_pos = (int32_t *)(void *)(q->tables + st->ring_off);
    } else if (q->budget && !s->stores[store].window) {
        uint8_t *base = q->in_peak ? c->peak_state : q->state;

        kv.cap = q->in_peak ? s->peak_cap : s->steady_cap;
        kv.slot_pos = (int32_t *)(void *)(base + (q->in_peak ? st->peak_pos_off : st->pos_off));
        if (q->place->scores) {
            kv.score = (float *)(void *)(base + (q->in_peak ? st->peak_score_off : st->score_off));
        }
    }
    return kv;
}

static bool is_evicted_from(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    return q->budget > 0 && c->shape.stores[store].window == 0;
}

static int find_victims(struct cache *c, struct cache_seq *q)
{
    struct place_guard guard;

    q->place->guard(&q->policy, q->budget, q->n_tokens, &guard);
    for (int32_t i = 0; i < c->shape.n_stores; i++) {
        if (!is_evicted_from(c, q, i)) {
            continue;
        }
        struct ops_kv kv = store_kv(c, q, i, q->n_slots);
        struct ops_victim p = {
            .kv = &kv,
            .sinks = guard.sinks,
            .pos_protect = guard.pos_protect,
            .by_position = guard.by_position,
            .shared = guard.shared,
            .victim = (int32_t *)(void *)(q->state + c->shape.seats[i].victim_off),
        };
        int r = c->shape.ops->victim(c->be, &p);

        if (r) {
            return r;
        }
    }
    return 0;
}

int cache_prepare(struct cache *c, int32_t seat, int32_t n_rows)
{
    struct cache_seq *q = &c->seqs[seat];
    int r = 0;

    assert(q->busy);
    if (q->prepared == q->n_tokens + n_rows) {
        return 0; /* the step that was given up: its victims are already overwritten */
    }
    q->evicting = q->budget > 0 && q->n_tokens >= q->n_prompt && q->n_slots >= q->budget;
    assert(!q->evicting || n_rows == 1);
    if (q->evicting) {
        r = find_victims(c, q);
    }
    for (int32_t i = 0; !r && i < c->shape.n_stores; i++) {
        r = take_pages(c, q, i, slots_after(c, q, i, n_rows));
    }
    if (!r) {
        q->prepared = q->n_tokens + n_rows;
    }
    return r;
}

void cache_view(const struct cache *c, int32_t seat, int32_t store, struct ops_seq *ret)
{
    const struct cache_seq *q = &c->seqs[seat];
    const struct shape_seat *st = &c->shape.seats[store];
    int32_t n_rows = q->prepared - q->n_tokens;

    ret->kv = store_kv(c, q, store, slots_after(c, q, store, n_rows));
    ret->victim = NULL;
    ret->ring = st->ring;
    if (st->ring) {
        ret->slot0 = q->n_tokens % st->ring;
    } else if (c->shape.stores[store].window) {
        ret->slot0 = q->n_tokens;
    } else {
        ret->slot0 = q->n_slots;
        if (q->evicting) {
            ret->victim = (const int32_t *)(const void *)(q->state + st->victim_off);
        }
    }
}

void cache_commit(struct cache *c, int32_t seat, int32_t n_rows)
{
    struct cache_seq *q = &c->seqs[seat];

    assert(q->prepared == q->n_tokens + n_rows);
    q->n_tokens += n_rows;
    if (!q->evicting) {
        q->n_slots += n_rows;
        return;
    }
    for (int32_t i = 0; i < c->shape.n_stores; i++) {
        q->n_evicted += is_evicted_from(c, q, i) ? c->shape.seats[i].n_groups : 0;
    }
}

/* What is left of positions and scores moves from the peak region to the seat. */
static int leave_peak(struct cache *c, struct cache_seq *q)
{
    const struct shape *s = &c->shape;
    uint64_t bytes = (uint64_t)q->n_slots * sizeof(int32_t);

    for (int32_t i = 0; i < s->n_stores; i++) {
        const struct shape_seat *st = &s->seats[i];

        for (int32_t g = 0; is_evicted_from(c, q, i) && g < st->n_groups; g++) {
            uint64_t to = (uint64_t)g * (uint64_t)s->steady_cap * sizeof(int32_t);
            uint64_t from = (uint64_t)g * (uint64_t)s->peak_cap * sizeof(int32_t);
            int r = s->ops->copy(c->be, q->state + st->pos_off + to,
                                 c->peak_state + st->peak_pos_off + from, bytes);

            if (!r && q->place->scores) {
                r = s->ops->copy(c->be, q->state + st->score_off + to,
                                 c->peak_state + st->peak_score_off + from, bytes);
            }
            if (r) {
                return r;
            }
        }
    }
    q->in_peak = false;
    c->peak_holder = -1;
    return 0;
}

static int cut_store(struct cache *c, struct cache_seq *q, int32_t store,
                     const struct place_guard *guard)
{
    struct ops_kv kv = store_kv(c, q, store, q->n_slots);
    struct ops_cut p = {
        .kv = &kv,
        .budget = q->budget,
        .sinks = guard->sinks,
        .pos_protect = guard->pos_protect,
        .by_position = guard->by_position,
        .shared = guard->shared,
    };
    int r = c->shape.ops->cut(c->be, &p);

    if (!r) {
        q->n_evicted += (int64_t)c->shape.seats[store].n_groups * (q->n_slots - q->budget);
    }
    return r;
}

int cache_cut(struct cache *c, int32_t seat, bool last)
{
    struct cache_seq *q = &c->seqs[seat];
    struct place_guard guard;
    int r = 0;

    if (q->budget == 0 || (!last && q->policy.prefill != POLICY_BOUNDED)) {
        return 0;
    }
    if (q->n_slots > q->budget) {
        q->place->guard(&q->policy, q->budget, q->n_tokens - 1, &guard);
        for (int32_t i = 0; !r && i < c->shape.n_stores; i++) {
            r = is_evicted_from(c, q, i) ? cut_store(c, q, i, &guard) : 0;
        }
        if (r) {
            return r;
        }
        q->n_slots = q->budget;
    }
    if (!last) {
        return 0;
    }
    for (int32_t i = 0; i < c->shape.n_stores; i++) {
        if (is_evicted_from(c, q, i)) {
            drop_pages(c, q, i, (q->budget + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS);
        }
    }
    for (int32_t i = 0; i < c->shape.n_classes; i++) {
        uint32_t peak = q->left.peak[i];

        /* Of the pages for the prompt alone, those never taken are still reserved; those taken
         * are free again. Both leave the sequence's account. */
        uint32_t unused = q->left.pages[i] < peak ? q->left.pages[i] : peak;

        pages_unreserve(&c->classes[i], unused);
        q->left.pages[i] -= unused;
        q->left.peak[i] = 0;
    }
    return q->in_peak ? leave_peak(c, q) : 0;
}

/* ---- figures -------------------------------------------------------------------------------- */

void cache_usage(const struct cache *c, int32_t seat, uint64_t *ret_bytes, int64_t *ret_slots)
{
    const struct cache_seq *q = &c->seqs[seat];

    *ret_bytes = 0;
    *ret_slots = 0;
    for (int32_t i = 0; i < c->shape.n_stores; i++) {
        int32_t n = c->shape.seats[i].n_groups;
        int32_t class = shape_class_of(&c->shape, q->variant, i);

        *ret_bytes += (uint64_t)n * (uint64_t)q->n_pages[i] * c->classes[class].page_bytes;
        *ret_slots += (int64_t)n * slots_after(c, q, i, 0);
    }
}

void cache_totals(const struct cache *c, uint64_t *ret_used, uint64_t *ret_total)
{
    *ret_used = 0;
    *ret_total = 0;
    for (int32_t i = 0; i < c->shape.n_classes; i++) {
        const struct pages *p = &c->classes[i];

        *ret_used += (uint64_t)(p->n_pages - p->n_free) * p->page_bytes;
        *ret_total += (uint64_t)p->n_pages * p->page_bytes;
    }
}

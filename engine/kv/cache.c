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
    size_t n = (size_t)s->config.n_seqs;
    size_t words = (size_t)(s->table_bytes / sizeof(uint32_t));
    uint64_t state = s->state_bytes * n + s->peak_state_bytes;
    int r = 0;

    c->seqs = calloc(n, sizeof(*c->seqs));
    c->pages_host = calloc(n * words, sizeof(uint32_t));
    c->n_pages_host = calloc(n * (size_t)s->config.n_stores, sizeof(int32_t));
    if (!c->seqs || !c->pages_host || !c->n_pages_host) {
        return error_set(reterr, -ENOMEM, "cache: no memory for page tables");
    }
    r = s->config.ops->alloc(c->be, s->table_bytes * n, "page tables", &c->tables, reterr);
    if (!r && state) {
        r = s->config.ops->alloc(c->be, state, "policy state", &c->state, reterr);
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
        q->n_pages = c->n_pages_host + (size_t)s->config.n_stores * i;
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

        r = pages_create(c->shape.config.ops, be, k->page_bytes, k->n_pages, &c->classes[i],
                         reterr);
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
    size_t n = (size_t)s->config.n_seqs;

    for (int32_t i = 0; i < s->n_classes; i++) {
        pages_destroy(&c->classes[i]);
    }
    if (c->state) {
        s->config.ops->free(c->be, c->state, s->state_bytes * n + s->peak_state_bytes);
    }
    if (c->tables) {
        s->config.ops->free(c->be, c->tables, s->table_bytes * n);
    }
    free(c->n_pages_host);
    free(c->pages_host);
    free(c->seqs);
    shape_finish(&c->shape);
    free(c);
}

/* ---- sitting down and leaving --------------------------------------------------------------- */

/* Positions, scores, and where a long prompt is read. */
static int check_state(const struct shape *s, const struct policy *p, int32_t n_prompt,
                       const struct shape_need *need, struct error *reterr)
{
    bool scores = place_find(p->place)->scores;
    int32_t budget = policy_budget(p, n_prompt, s->config.ctx);

    if (s->steady_cap < budget || (scores && !s->scores)) {
        return error_set(reterr, -ENOMEM,
                         "the plan holds %s of %d slots a head group, this policy needs %s of %d; "
                         "start the daemon with --kv naming it",
                         s->scores ? "positions and scores" : "positions", s->steady_cap,
                         scores ? "positions and scores" : "positions", budget);
    }
    for (int32_t i = 1; p->scope == POLICY_SHARED && i < s->config.n_stores; i++) {
        if (s->seats[i].n_groups != s->seats[0].n_groups) {
            return error_set(reterr, -ENOTSUP,
                             "score=shared: layers %d and %d differ in their number of heads",
                             s->config.stores[0].layer, s->config.stores[i].layer);
        }
    }
    if (need->peak_state && !need->layered && (!s->whole_peak || need->peak_slots > s->peak_cap)) {
        return error_set(reterr, -ENOMEM,
                         "the plan holds no room for reading a prompt of %d tokens in this "
                         "policy's way (prefill=); start the daemon with --kv naming it",
                         n_prompt);
    }
    if (need->layered && s->max_survivors && p->observe > s->max_survivors) {
        return error_set(reterr, -ENOMEM, "observe=%d is more than the %d rows planned for",
                         p->observe, s->max_survivors);
    }
    return 0;
}

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
    if (p->chunk > s->config.max_chunk) {
        return error_set(reterr, -ENOTSUP, "chunk=%d is more than the %d rows planned for",
                         p->chunk, s->config.max_chunk);
    }
    shape_need(s, p, v, n_prompt, n_tokens, &need);
    int r = place->evicts ? check_state(s, p, n_prompt, &need, reterr) : 0;

    if (r) {
        return r;
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

bool cache_reads_layered(const struct cache *c, const struct policy *p, int32_t n_prompt)
{
    struct shape_need need;

    shape_need(&c->shape, p, shape_variant(&c->shape, p), n_prompt, n_prompt, &need);
    return need.layered;
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
    while (seat < s->config.n_seqs && c->seqs[seat].busy) {
        seat++;
    }
    if (seat == s->config.n_seqs) {
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
    q->budget = q->place->evicts ? policy_budget(p, n_prompt, s->config.ctx) : 0;
    q->n_tokens = 0;
    q->n_slots = 0;
    q->prepared = 0;
    q->evicting = false;
    q->in_peak = need.peak_state;
    q->layered = need.layered;
    q->n_evicted = 0;
    q->left = need;
    for (int32_t i = 0; i < s->n_classes; i++) { /* one count from here on */
        q->left.pages[i] += need.peak[i];
    }
    memset(q->n_pages, 0, (size_t)s->config.n_stores * sizeof(*q->n_pages));
    if (q->in_peak) {
        c->peak_holder = seat;
    }
    return seat;
}

/* The first positions and scores of the region that the sequence uses for a store. */
struct state {
    uint8_t *pos;
    uint8_t *score;
    int32_t cap;
};

static int32_t score_store_of(const struct cache *c, const struct cache_seq *q)
{
    int32_t store = 0;

    if (!q->place->scores || q->policy.scope != POLICY_SHARED) {
        return -1;
    }
    while (c->shape.config.stores[store].window) {
        store++;
    }
    return store;
}

int32_t cache_score_store(const struct cache *c, int32_t seat)
{
    return score_store_of(c, &c->seqs[seat]);
}

static struct state state_of(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    const struct shape_seat *st = &c->shape.seats[store];

    if (!q->in_peak) {
        return (struct state){q->state + st->pos_off, q->state + st->score_off,
                              c->shape.steady_cap};
    }
    if (q->layered) {
        return (struct state){c->peak_state, c->peak_state + st->layer_score_off,
                              c->shape.peak_cap};
    }
    return (struct state){c->peak_state + st->peak_pos_off, c->peak_state + st->peak_score_off,
                          c->shape.peak_cap};
}

static uint8_t *score_of(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    int32_t shared = score_store_of(c, q);

    return state_of(c, q, shared >= 0 ? shared : store).score;
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
    for (int32_t i = 0; i < c->shape.config.n_stores; i++) {
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
    if (c->shape.config.stores[store].window) {
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
        int r = c->shape.config.ops->write(c->be, q->tables + st->pages_off + at * sizeof(uint32_t),
                                           row, (uint64_t)(want - have) * sizeof(uint32_t));
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
    } else if (q->budget && !s->config.stores[store].window) {
        struct state state = state_of(c, q, store);

        kv.cap = state.cap;
        kv.slot_pos = (int32_t *)(void *)state.pos;
        kv.score = q->place->scores ? (float *)(void *)score_of(c, q, store) : NULL;
    }
    return kv;
}

static bool is_evicted_from(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    return q->budget > 0 && c->shape.config.stores[store].window == 0;
}

static void guard_at(const struct cache_seq *q, bool cut, int32_t last, struct place_guard *ret)
{
    struct place_when when = {
        .cut = cut, .budget = q->budget, .n_prompt = q->n_prompt, .last = last};

    q->place->guard(&q->policy, &when, ret);
}

/* With shared scores the same slots hold the same positions in every store. */
static int32_t victim_store(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    int32_t shared = score_store_of(c, q);

    return shared >= 0 ? shared : store;
}

static int find_victims(struct cache *c, struct cache_seq *q)
{
    struct place_guard guard;

    guard_at(q, false, q->n_tokens, &guard);
    for (int32_t i = 0; i < c->shape.config.n_stores; i++) {
        if (!is_evicted_from(c, q, i) || victim_store(c, q, i) != i) {
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
        int r = c->shape.config.ops->victim(c->be, &p);

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
    for (int32_t i = 0; !r && i < c->shape.config.n_stores; i++) {
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
    } else if (c->shape.config.stores[store].window) {
        ret->slot0 = q->n_tokens;
    } else {
        ret->slot0 = q->n_slots;
        if (q->evicting) {
            const struct shape_seat *v = &c->shape.seats[victim_store(c, q, store)];

            ret->victim = (const int32_t *)(const void *)(q->state + v->victim_off);
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
    for (int32_t i = 0; i < c->shape.config.n_stores; i++) {
        q->n_evicted += is_evicted_from(c, q, i) ? c->shape.seats[i].n_groups : 0;
    }
}

/* What is left of a store's positions and scores moves from the peak region to the seat. */
static int move_state(struct cache *c, struct cache_seq *q, int32_t store, int32_t n_slots)
{
    const struct shape *s = &c->shape;
    const struct shape_seat *st = &s->seats[store];
    struct state from = state_of(c, q, store);
    uint64_t bytes = (uint64_t)n_slots * sizeof(int32_t);

    for (int32_t g = 0; g < st->n_groups; g++) {
        uint64_t to = (uint64_t)g * (uint64_t)s->steady_cap * sizeof(int32_t);
        uint64_t at = (uint64_t)g * (uint64_t)from.cap * sizeof(int32_t);
        int r = s->config.ops->copy(c->be, q->state + st->pos_off + to, from.pos + at, bytes);

        if (!r && q->place->scores) {
            r = s->config.ops->copy(c->be, q->state + st->score_off + to, from.score + at, bytes);
        }
        if (r) {
            return r;
        }
    }
    return 0;
}

static void leave_peak(struct cache *c, struct cache_seq *q)
{
    q->in_peak = false;
    q->layered = false;
    c->peak_holder = -1;
}

/* Scores are not negative, so one below zero goes first. While a prompt is read without cuts in
 * between, slot is position. */
static int doom(struct cache *c, const struct ops_kv *kv, int32_t slot)
{
    const float least = -1.0f;
    int r = 0;

    for (int32_t g = 0; !r && g < kv->layout->n_groups; g++) {
        r = c->shape.config.ops->write(
            c->be, kv->score + (size_t)g * (size_t)kv->cap + (size_t)slot, &least, sizeof(least));
    }
    return r;
}

static uint64_t score_bytes(const struct ops_kv *kv)
{
    return (uint64_t)kv->layout->n_groups * (uint64_t)kv->cap * sizeof(float);
}

static int cut_store(struct cache *c, struct cache_seq *q, int32_t store, int32_t n_slots,
                     const struct place_guard *guard)
{
    struct ops_kv kv = store_kv(c, q, store, n_slots);
    struct ops_cut p = {
        .kv = &kv,
        .budget = guard->budget,
        .sinks = guard->sinks,
        .pos_protect = guard->pos_protect,
        .by_position = guard->by_position,
        .shared = guard->shared,
    };
    int32_t shared = score_store_of(c, q);
    int r = 0;

    if (shared >= 0 && shared != store) { /* a cut moves scores along: work on a copy */
        float *own = (float *)(void *)state_of(c, q, store).score;

        r = c->shape.config.ops->copy(c->be, own, kv.score, score_bytes(&kv));
        kv.score = own;
    }
    if (!r && guard->drop >= 0) {
        r = doom(c, &kv, guard->drop);
    }
    if (!r) {
        r = c->shape.config.ops->cut(c->be, &p);
    }
    if (!r) {
        q->n_evicted += (int64_t)c->shape.seats[store].n_groups * (n_slots - guard->budget);
    }
    return r;
}

/* The prompt is read. Of the pages for it alone, those never taken are still reserved; those taken
 * are free again: both leave the sequence's account. */
static void end_of_peak(struct cache *c, struct cache_seq *q)
{
    for (int32_t i = 0; i < c->shape.n_classes; i++) {
        uint32_t peak = q->left.peak[i];
        uint32_t unused = q->left.pages[i] < peak ? q->left.pages[i] : peak;

        pages_unreserve(&c->classes[i], unused);
        q->left.pages[i] -= unused;
        q->left.peak[i] = 0;
    }
    if (q->in_peak) {
        leave_peak(c, q);
    }
}

int cache_cut(struct cache *c, int32_t seat, bool last)
{
    struct cache_seq *q = &c->seqs[seat];
    struct place_guard guard;
    int r = 0;

    if (q->budget == 0 || (!last && q->policy.prefill != POLICY_BOUNDED)) {
        return 0;
    }
    guard_at(q, true, q->n_tokens - 1, &guard);
    if (q->n_slots > guard.budget) {
        for (int32_t i = c->shape.config.n_stores - 1; !r && i >= 0; i--) { /* shared scores last */
            r = is_evicted_from(c, q, i) ? cut_store(c, q, i, q->n_slots, &guard) : 0;
        }
        if (r) {
            return r;
        }
        q->n_slots = guard.budget;
    }
    if (!last) {
        return 0;
    }
    for (int32_t i = 0; !r && i < c->shape.config.n_stores; i++) {
        if (is_evicted_from(c, q, i)) {
            drop_pages(c, q, i, (q->budget + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS);
            r = q->in_peak ? move_state(c, q, i, q->n_slots) : 0;
        }
    }
    end_of_peak(c, q);
    return r;
}

/* ---- layered prefill ------------------------------------------------------------------------- */

static int32_t layer_slots(const struct cache *c, int32_t store, int32_t n_tokens)
{
    int32_t ring = c->shape.seats[store].ring;

    return ring && n_tokens > ring ? ring : n_tokens;
}

int cache_layer_prepare(struct cache *c, int32_t seat, int32_t store, int32_t n_tokens)
{
    return take_pages(c, &c->seqs[seat], store, layer_slots(c, store, n_tokens));
}

void cache_layer_view(const struct cache *c, int32_t seat, int32_t store, int32_t pos0,
                      int32_t n_tokens, struct ops_seq *ret)
{
    int32_t ring = c->shape.seats[store].ring;

    ret->kv = store_kv(c, &c->seqs[seat], store, layer_slots(c, store, n_tokens));
    ret->victim = NULL;
    ret->ring = ring;
    ret->slot0 = ring ? pos0 % ring : pos0;
    ret->pos0 = pos0;
}

int cache_layer_cut(struct cache *c, int32_t seat, int32_t store)
{
    struct cache_seq *q = &c->seqs[seat];
    int32_t class = shape_class_of(&c->shape, q->variant, store);
    int32_t had = q->n_pages[store];
    struct place_guard guard;

    if (!is_evicted_from(c, q, store)) {
        return 0;
    }
    guard_at(q, true, q->n_prompt - 1, &guard);
    int r = cut_store(c, q, store, q->n_prompt, &guard);

    if (!r) {
        r = move_state(c, q, store, guard.budget);
    }
    if (r) {
        return r;
    }
    drop_pages(c, q, store, (q->budget + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS);
    /* The next store will need them. */
    uint32_t n = (uint32_t)((had - q->n_pages[store]) * c->shape.seats[store].n_groups);
    bool reserved = pages_reserve(&c->classes[class], n);

    assert(reserved);
    q->left.pages[class] += reserved ? n : 0;
    return 0;
}

void cache_layer_done(struct cache *c, int32_t seat)
{
    struct cache_seq *q = &c->seqs[seat];
    struct place_guard guard;

    guard_at(q, true, q->n_prompt - 1, &guard);
    q->n_tokens = q->n_prompt;
    q->prepared = q->n_prompt;
    q->n_slots = guard.budget;
    end_of_peak(c, q);
}

float *cache_hidden(const struct cache *c)
{
    return (float *)(void *)(c->peak_state + c->shape.hidden_off);
}

float *cache_survivors(const struct cache *c)
{
    return (float *)(void *)(c->peak_state + c->shape.survivors_off);
}

/* ---- figures -------------------------------------------------------------------------------- */

void cache_usage(const struct cache *c, int32_t seat, uint64_t *ret_bytes, int64_t *ret_slots)
{
    const struct cache_seq *q = &c->seqs[seat];

    *ret_bytes = 0;
    *ret_slots = 0;
    for (int32_t i = 0; i < c->shape.config.n_stores; i++) {
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences: creation, admission, release, and what a sequence holds.
 *
 * The cache's work is in six files that share cache_impl.h: this one; cache_store.c, one store of
 * one sequence, its pages and arrays; cache_step.c, a step's pages and victims; cache_cut.c, the
 * end of a prompt, and prompts that are read layer by layer; cache_share.c, pages of several
 * sequences; cache_keep.c, pages that stay for texts to come.
 *
 * What a sequence will need at most is reserved when it sits down and taken as tokens come, so no
 * step can run out. */

#include "engine/kv/seq/cache.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "engine/kv/home/home.h"
#include "engine/kv/seq/cache_impl.h"
#include "engine/kv/seq/step.h"

/* ---- creation -------------------------------------------------------------------------------- */

/* Host arrays of all sequences; `c` NULL: only adds up. */
static size_t lay_host(const struct geometry *s, struct memory_arena *a, struct cache *c)
{
    size_t n = (size_t)s->config.n_seqs;
    struct cache_seq *seqs = memory_arena_take(a, n * sizeof(*seqs));
    uint32_t *pages = memory_arena_take(a, n * (size_t)s->table_bytes);
    struct cache_store *stores =
        memory_arena_take(a, n * (size_t)s->config.n_stores * sizeof(*stores));
    int32_t *first =
        memory_arena_take(a, s->divides ? n * (size_t)s->n_groups * sizeof(*first) : 0);
    struct kv_step *step = memory_arena_take(a, sizeof(*step));
    struct kv_step arrays = {0};

    step_lay(a, s->config.n_seqs, &arrays);
    struct expect_work *expect = cache_expect_lay(s, a);
    struct heads_work *heads = cache_heads_lay(s, a);

    if (c) {
        c->expect = expect;
        c->heads = heads;
        c->first = first;
        *step = arrays;
        c->step = step;
        c->seqs = seqs;
        c->pages_host = pages;
        c->stores = stores;
    }
    return a->used;
}

static uint64_t state_bytes(const struct geometry *s)
{
    return s->state_bytes * (uint64_t)s->config.n_seqs + s->peak_state_bytes;
}

uint64_t cache_host_bytes(const struct geometry *s)
{
    uint64_t bytes = memory_rounded(lay_host(s, &(struct memory_arena){0}, NULL)) + prefix_bytes(s);

    for (int32_t i = 0; i < s->n_classes; i++) {
        const struct geometry_class *c = &s->classes[i];

        bytes += pages_mapped_bytes(c->page_bytes, c->part_bytes, c->n_pages);
    }
    return bytes;
}

uint64_t cache_bytes(const struct geometry *s)
{
    uint64_t bytes = memory_rounded(lay_host(s, &(struct memory_arena){0}, NULL)) +
                     memory_rounded(s->table_bytes * (uint64_t)s->config.n_seqs) +
                     memory_rounded(state_bytes(s)) + prefix_bytes(s);

    return bytes + home_bytes(s);
}

static int alloc_seqs(struct cache *c, struct error *reterr)
{
    const struct geometry *s = &c->geometry;
    size_t n = (size_t)s->config.n_seqs;
    size_t words = (size_t)(s->table_bytes / sizeof(uint32_t));
    uint64_t state = state_bytes(s);
    struct memory_arena a = {.size = lay_host(s, &(struct memory_arena){0}, NULL)};
    void *host = NULL;
    int r = memory_map(a.size, "page tables", &host, reterr);

    if (!r) {
        a.base = host;
        (void)lay_host(s, &a, c);
        r = s->config.ops->alloc(c->be, s->table_bytes * n, "page tables", &c->tables, reterr);
    }
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
        q->stores = c->stores + (size_t)s->config.n_stores * i;
        q->first = s->divides ? c->first + (size_t)s->n_groups * i : NULL;
    }
    return 0;
}

int kv_create(struct geometry *geometry, struct backend *be, struct cache **ret,
              struct error *reterr)
{
    struct cache *c = calloc(1, sizeof(*c));
    int r;

    if (!c) {
        geometry_finish(geometry);
        return error_set(reterr, -ENOMEM, "cache: no memory");
    }
    c->geometry = *geometry;
    *geometry = (struct geometry){0};
    c->be = be;
    c->peak_holder = -1;
    r = home_create(c, reterr);
    r = r ? r : alloc_seqs(c, reterr);
    r = r ? r : prefix_create(&c->geometry, &c->prefix, reterr);
    if (r) {
        kv_destroy(c);
        return r;
    }
    *ret = c;
    return 0;
}

void kv_destroy(struct cache *c)
{
    if (!c) {
        return;
    }
    const struct geometry *s = &c->geometry;

    home_destroy(c);
    if (c->state) {
        s->config.ops->free(c->be, c->state, state_bytes(s));
    }
    if (c->tables) {
        s->config.ops->free(c->be, c->tables, s->table_bytes * (uint64_t)s->config.n_seqs);
    }
    prefix_destroy(&c->prefix);
    memory_unmap(c->seqs, lay_host(s, &(struct memory_arena){0}, NULL)); /* the arena's first */
    geometry_finish(&c->geometry);
    free(c);
}

/* ---- sitting down and leaving ---------------------------------------------------------------- */

/* Positions, scores, and where a long prompt is read. */
static int check_state(const struct geometry *s, const struct policy *p,
                       const struct geometry_text *text, const struct geometry_need *need,
                       struct error *reterr)
{
    bool scores = policy_scores(p);
    int32_t mean = geometry_budget(s, p, text);

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        int32_t budget = geometry_store_budget(s, p, mean, i);

        if (s->arrays[i].cap < geometry_most_slots(s, p, budget, i) ||
            (budget && scores && !s->scores)) {
            return error_set(
                reterr, -ENOMEM,
                "this policy keeps %s of %d tokens a head, which the daemon's memory plan, made "
                "for "
                "its own --kv, does not hold%s; start the daemon with --kv naming this policy",
                scores ? "positions and scores" : "positions", geometry_most_slots(s, p, budget, i),
                s->arrays[i].cap ? " so many of" : "");
        }
    }
    int32_t first = -1;

    for (int32_t i = 0; p->scope == POLICY_SHARED && i < s->config.n_stores; i++) {
        first = first < 0 && geometry_evicts(s, p, i) ? i : first;
        if (geometry_evicts(s, p, i) && s->arrays[i].n_groups != s->arrays[first].n_groups) {
            return error_set(reterr, -ENOTSUP,
                             "score=shared: layers %d and %d differ in their number of heads",
                             s->config.stores[first].layer, s->config.stores[i].layer);
        }
    }
    if (policy_observes(p) && !s->observes) {
        return error_set(reterr, -ENOMEM,
                         "the plan holds no scratch for what the policy observes of attention; "
                         "start the daemon with --kv naming this policy");
    }
    if (policy_expects(p) && !s->expects) {
        return error_set(reterr, -ENOMEM,
                         "the plan holds no statistics of queries; start the daemon with --kv "
                         "naming this policy");
    }
    if (policy_divides_heads(p) && !s->divides) {
        return error_set(reterr, -ENOMEM,
                         "the plan holds no scratch for dividing slots among heads; start the "
                         "daemon with --kv naming this policy");
    }
    if (need->peak_state && !need->layered && (!s->whole_peak || need->beyond_peak)) {
        return error_set(reterr, -ENOMEM,
                         "the plan holds no room for reading a prompt of %d tokens in this "
                         "policy's way (prefill=); start the daemon with --kv naming it",
                         text->n_prompt);
    }
    if (need->layered && s->max_survivors && p->observe > s->max_survivors &&
        text->n_prompt > s->max_survivors) {
        return error_set(reterr, -ENOMEM, "observe=%d is more than the %d rows planned for",
                         p->observe, s->max_survivors);
    }
    return 0;
}

/* What queries that select need beside pages. */
static int check_select(const struct geometry *s, const struct policy *p, int32_t variant,
                        struct error *reterr)
{
    bool sums = false;

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        sums = sums || geometry_keeps_sum(s, p, i);
    }
    bool predicts = policy_predicts(p);

    if (policy_on_disk(p) && !s->tier.n_stores) {
        return error_set(reterr, -ENOMEM,
                         "the plan holds no file for K and V; start the daemon with --kv naming "
                         "this policy");
    }
    if (policy_on_disk(p) && variant != s->tier_variant) {
        return error_set(
            reterr, -ENOMEM,
            "the file for K and V is planned for another precision or partial key; start "
            "the daemon with --kv naming this policy");
    }
    if ((policy_selects(p) && !s->selects) || (sums && !s->sums) || (predicts && !s->predicts)) {
        return error_set(reterr, -ENOMEM,
                         "the plan holds no %s; start the daemon with --kv naming this policy",
                         sums && s->selects ? "sums of V" : "scratch for queries that select");
    }
    return geometry_check_host(s, p, reterr);
}

/* The plan has pages for the daemon's policies only. Says what this one's would have to hold. */
static int refuse_pages(const struct geometry *s, const struct policy *p, struct error *reterr)
{
    const char *own = policy_precision(&s->config.mix.part[0].policy);
    /* what a text says that names none */
    bool silent = strcmp(policy_precision(p), "f16") == 0 && strcmp(own, "f16") != 0;
    const char *keys = p->pos_new          ? " without positions (streaming, pos=new)"
                       : p->rank           ? " of a lower rank"
                       : policy_selects(p) ? " with this policy's copy of them to search in"
                       : policy_on_host(p) ? " in the host's memory"
                       : p->shared         ? " (of layers that share in int8)"
                                           : "";

    return error_set(reterr, -ENOMEM,
                     "the plan has no pages with keys in %s%s and values in %s; %s%s%sstart the "
                     "daemon with --kv naming this policy",
                     ops_kv_type_name(p->k_type), keys, ops_kv_type_name(p->v_type),
                     silent ? "name the daemon's precision, as in " : "", silent ? own : "",
                     silent ? "+full, or " : "");
}

int kv_check(const struct cache *c, const struct policy *p, const struct geometry_text *text,
             struct error *reterr)
{
    const struct geometry *s = &c->geometry;
    struct geometry_need need;
    int v = geometry_variant(s, p);

    if (v < 0) {
        return refuse_pages(s, p, reterr);
    }
    if (p->chunk > s->config.max_chunk) {
        return error_set(reterr, -ENOMEM, "chunk=%d is more than the %d rows planned for", p->chunk,
                         s->config.max_chunk);
    }
    geometry_need(s, p, v, text, &need);
    int r = check_select(s, p, v, reterr);

    if (!r && policy_evicts(p)) {
        r = check_state(s, p, text, &need, reterr);
    }
    if (r) {
        return r;
    }
    if (policy_pool_slots(p, text->n_prompt, s->config.ctx) > s->tier.pool_slots) {
        return error_set(reterr, -ENOMEM,
                         "this policy needs a pool of %d slots beside the file, the plan has %d; "
                         "start the daemon with --kv naming it",
                         policy_pool_slots(p, text->n_prompt, s->config.ctx), s->tier.pool_slots);
    }
    for (int32_t i = 0; i < s->n_classes; i++) {
        if (need.pages[i] + need.peak[i] > s->classes[i].n_pages) {
            return error_set(reterr, -ENOMEM,
                             "this policy needs %u pages of %s for %d positions, the plan has %u",
                             need.pages[i] + need.peak[i], s->classes[i].name, text->n_tokens,
                             s->classes[i].n_pages);
        }
    }
    return 0;
}

static bool reserve(struct cache *c, int32_t class, uint32_t n)
{
    struct pages *p = &c->classes[class];

    if (n > p->n_free + p->n_idle - p->n_reserved) {
        return false;
    }
    if (n > p->n_free - p->n_reserved) {
        cache_reclaim(c, class, n);
    }
    return pages_reserve(p, n);
}

bool cache_reserve(struct cache *c, const uint32_t *n)
{
    for (int32_t i = 0; i < c->geometry.n_classes; i++) {
        if (!reserve(c, i, n[i])) {
            while (i-- > 0) {
                pages_unreserve(&c->classes[i], n[i]);
            }
            return false;
        }
    }
    return true;
}

int cache_free_seq(const struct cache *c)
{
    for (int32_t i = 0; i < c->geometry.config.n_seqs; i++) {
        if (!c->seqs[i].busy) {
            return i;
        }
    }
    return -EBUSY;
}

/* Sequence and pages for what the text needs beside n_units that are kept. */
static int find_room(struct cache *c, struct geometry_need *need, int32_t variant, int32_t n_units)
{
    uint32_t kept[GEOMETRY_MAX_CLASSES];

    cache_kept_pages(c, variant, n_units, kept);
    for (int32_t i = 0; i < c->geometry.n_classes; i++) { /* one count from here on */
        need->pages[i] += need->peak[i];
        need->pages[i] -= kept[i];
    }
    if ((need->peak_state && c->peak_holder >= 0) || !cache_reserve(c, need->pages)) {
        return -EBUSY;
    }
    return 0;
}

int kv_admit(struct cache *c, const struct policy *p, uint64_t principal,
             const struct geometry_text *text, const int32_t *tokens, int32_t n_known)
{
    const struct geometry *s = &c->geometry;
    struct geometry_need need;
    int v = geometry_variant(s, p);
    int32_t seq = cache_free_seq(c);
    uint32_t unit;

    if (v < 0 || seq < 0) {
        return v < 0 ? v : seq;
    }
    int32_t n_units = cache_find_kept(c, p, principal, tokens, n_known, &unit);

    geometry_need(s, p, v, text, &need);
    cache_hold_kept(c, v, unit); /* first, so that nobody takes them for the rest */
    if (find_room(c, &need, v, n_units)) {
        cache_release_kept(c, v, unit);
        return -EBUSY;
    }
    struct cache_seq *q = &c->seqs[seq];

    q->busy = true;
    q->policy = *p;
    q->place = p->place;
    q->variant = v;
    q->principal = principal;
    q->n_prompt = text->n_prompt;
    q->n_steps = text->n_steps;
    q->budget = geometry_budget(s, p, text);
    q->n_tokens = 0;
    q->n_kept = 0;
    q->prepared = 0;
    q->evicting = false;
    q->in_peak = need.peak_state;
    q->layered = need.layered;
    q->n_evicted = 0;
    q->shares = false;
    q->left = need;
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        q->stores[i] = (struct cache_store){.budget = geometry_store_budget(s, p, q->budget, i)};
    }
    if (q->in_peak) {
        c->peak_holder = seq;
    }
    home_admit(c, seq, text);
    int r = cache_attach(c, q, unit, n_units);

    r = r ? r : cache_expect_clear(c, q);
    if (r) {
        kv_release(c, seq);
    }
    return r ? r : seq;
}

void kv_release(struct cache *c, int32_t seq)
{
    struct cache_seq *q = &c->seqs[seq];

    assert(q->busy);
    home_release(c, seq);
    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        cache_drop_pages(c, q, i, 0);
    }
    for (int32_t i = 0; i < c->geometry.n_classes; i++) {
        pages_unreserve(&c->classes[i], q->left.pages[i]);
    }
    if (c->peak_holder == seq) {
        c->peak_holder = -1;
    }
    q->busy = false;
}

int cache_refill(struct cache *c, int32_t seq, int32_t n_tokens, const int32_t *n_slots,
                 const int32_t *first, int64_t n_evicted)
{
    struct cache_seq *q = &c->seqs[seq];
    int r = 0;

    q->n_tokens = n_tokens;
    q->prepared = n_tokens;
    q->n_evicted = n_evicted;
    for (int32_t i = 0; !r && i < c->geometry.config.n_stores; i++) {
        struct cache_store *st = &q->stores[i];
        int32_t most = st->budget < n_tokens ? st->budget : n_tokens;

        st->n_slots = n_slots && most ? n_slots[i] : most;
        for (int32_t g = 0; first && g < c->geometry.arrays[i].n_groups; g++) {
            int32_t at = c->geometry.arrays[i].group0 + g;

            q->first[at] = first[at];
            st->divided = st->divided || first[at] > 0;
        }
        r = cache_take_pages(c, q, i, cache_store_slots(c, seq, i));
        r = r || !st->divided ? r : cache_point_first(c, q, i);
    }
    return r;
}

int32_t cache_on_disk(const struct cache *c, int32_t seq, int32_t store)
{
    return geometry_on_disk(&c->geometry, &c->seqs[seq].policy, store);
}

struct ops_kv cache_store_kv(const struct cache *c, int32_t seq, int32_t store)
{
    return cache_kv_of(c, &c->seqs[seq], store, cache_store_slots(c, seq, store));
}

int32_t cache_store_slots(const struct cache *c, int32_t seq, int32_t store)
{
    return cache_slots_after(c, &c->seqs[seq], store, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* heads=adaptive: the cut that divides a store's pages among its head groups (policy/heads.c).
 *
 * As with scores that a policy makes anew (cache_rescore.c), the host reads scores and positions
 * once a prompt and store, sorts those of one group at a time, and keeps of them a sum for each
 * page. What stays within a group is the backend's cut's choice, by the same order, each group
 * being shown to it as a store of its own.
 *
 * All groups' slots end at the same number, behind which the next prompt's tokens go. So a group
 * that keeps fewer pages lacks the first ones: their slots have position -1, and its page table has
 * the first page that it does have in their place, for operations that go through all slots. */

#include <string.h>

#include "engine/kv/seq/cache_impl.h"

struct heads_work {
    int32_t *pos;              /* (ctx, whole pages) of a group */
    float *score;              /* the same */
    float *page;               /* (most groups, pages of ctx) */
    struct policy_head *heads; /* (most groups) */
    int32_t *keep;             /* (most groups) pages */
};

static size_t pages_of(int32_t n_slots)
{
    return ((size_t)n_slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
}

struct heads_work *cache_heads_lay(const struct geometry *s, struct memory_arena *a)
{
    size_t groups = 0;
    struct heads_work w;

    if (!s->divides) {
        return NULL;
    }
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        size_t n = (size_t)s->arrays[i].n_groups;

        groups = s->arrays[i].cap > 0 && n > groups ? n : groups;
    }
    struct heads_work *ret = memory_arena_take(a, sizeof(*ret));

    w = (struct heads_work){
        .pos = memory_arena_take(a, pages_of(s->config.ctx) * OPS_PAGE_SLOTS * sizeof(*w.pos)),
        .score = memory_arena_take(a, pages_of(s->config.ctx) * OPS_PAGE_SLOTS * sizeof(*w.score)),
        .page = memory_arena_take(a, groups * pages_of(s->config.ctx) * sizeof(*w.page)),
        .heads = memory_arena_take(a, groups * sizeof(*w.heads)),
        .keep = memory_arena_take(a, groups * sizeof(*w.keep)),
    };
    if (ret) {
        *ret = w;
    }
    return ret;
}

static void sift(float *x, int32_t root, int32_t n)
{
    for (int32_t child; (child = 2 * root + 1) < n; root = child) {
        float held = x[root];

        child += child + 1 < n && x[child + 1] < x[child];
        if (held <= x[child]) {
            return;
        }
        x[root] = x[child];
        x[child] = held;
    }
}

/* The largest first: a heap sort, which needs no memory. */
static void sort(float *x, int32_t n)
{
    for (int32_t i = n / 2; i-- > 0;) {
        sift(x, i, n);
    }
    for (int32_t end = n; end-- > 1;) {
        float least = x[0];

        x[0] = x[end];
        x[end] = least;
        sift(x, 0, end);
    }
}

/* Of the group's slots, whose scores and positions were read: those that may not go count as the
 * first ones, and nothing. */
static struct policy_head head_of(const struct heads_work *w, const struct ops_cut *p,
                                  int32_t n_slots, float *page)
{
    int32_t n = 0;
    int32_t live = 0;

    for (int32_t s = 0; s < n_slots; s++) {
        live += w->pos[s] >= 0;
        if (w->pos[s] >= 0 && w->pos[s] >= p->sinks && w->pos[s] < p->pos_protect) {
            w->score[n++] = w->score[s];
        }
    }
    sort(w->score, n);
    for (size_t i = 0; i < pages_of(live); i++) {
        page[i] = 0;
    }
    for (int32_t i = 0; i < n; i++) {
        page[(live - n + i) / OPS_PAGE_SLOTS] += w->score[i];
    }
    return (struct policy_head){.page = page, .live = live};
}

/* A group from its first page on, as a store of one. */
static struct ops_kv alone(const struct ops_kv *kv, const struct ops_kv_layout *layout,
                           int32_t group, int32_t first)
{
    struct ops_kv own = *kv;
    size_t at = (size_t)group * (size_t)kv->cap + (size_t)first * OPS_PAGE_SLOTS;

    own.layout = layout;
    own.pages += (size_t)group * (size_t)kv->max_pages + (size_t)first;
    own.slot_pos += at;
    own.score += at;
    own.n_slots -= first * OPS_PAGE_SLOTS;
    return own;
}

static int divide(struct cache *c, const struct cache_seq *q, int32_t store,
                  const struct ops_cut *p, int32_t *ret)
{
    const struct backend_ops *ops = c->geometry.config.ops;
    const struct heads_work *w = c->heads;
    const size_t row = pages_of(c->geometry.config.ctx);
    const int32_t n_groups = p->kv->layout->n_groups;
    int r = 0;

    for (int32_t g = 0; !r && g < n_groups; g++) {
        const struct ops_kv own = alone(p->kv, p->kv->layout, g, cache_first_page(c, q, store, g));
        const uint64_t bytes = (uint64_t)own.n_slots * sizeof(int32_t);

        r = ops->read(c->be, w->pos, own.slot_pos, bytes);
        r = r ? r : ops->read(c->be, w->score, own.score, bytes);
        if (!r) {
            w->heads[g] = head_of(w, p, own.n_slots, w->page + (size_t)g * row);
        }
    }
    if (!r) {
        policy_divide(&q->policy, p->budget, w->heads, n_groups, ret);
    }
    return r;
}

/* Of a group's slots, shown alone, the first n come to end at slot `end` of the group; before them
 * are slots that hold nothing. */
static int move_state(struct cache *c, const struct ops_kv *own, const struct ops_kv *all,
                      int32_t group, int32_t n, int32_t end)
{
    const struct backend_ops *ops = c->geometry.config.ops;
    const struct heads_work *w = c->heads;
    const size_t at = (size_t)group * (size_t)all->cap;
    const int32_t some = n < own->n_slots ? n : own->n_slots;
    const uint64_t bytes = (uint64_t)some * sizeof(int32_t);
    int r = ops->read(c->be, w->pos + end - n, own->slot_pos, bytes);

    r = r ? r : ops->read(c->be, w->score + end - n, own->score, bytes);
    for (int32_t s = 0; s < end; s++) {
        if (s < end - n || s >= end - n + some) {
            w->pos[s] = -1;
            w->score[s] = 0;
        }
    }
    r = r ? r : ops->write(c->be, all->slot_pos + at, w->pos, (uint64_t)end * sizeof(*w->pos));
    return r ? r : ops->write(c->be, all->score + at, w->score, (uint64_t)end * sizeof(*w->score));
}

int cache_point_first(struct cache *c, struct cache_seq *q, int32_t store)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    const size_t n = (size_t)q->stores[store].n_pages;
    int r = 0;

    for (int32_t g = 0; !r && g < st->n_groups; g++) {
        size_t at = (size_t)g * (size_t)st->max_pages;
        uint32_t *row = cache_host_pages(q, st) + at;
        int32_t first = cache_first_page(c, q, store, g);

        for (int32_t i = 0; i < first; i++) {
            row[i] = row[first];
        }
        r = c->geometry.config.ops->write(c->be, q->tables + st->pages_off + at * sizeof(*row), row,
                                          n * sizeof(*row));
    }
    return r;
}

/* Of each group's pages keep[] stay, and come to end at page `most`. */
static int part_pages(struct cache *c, struct cache_seq *q, int32_t store, const int32_t *keep,
                      int32_t most)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    uint32_t n = 0;

    for (int32_t g = 0; g < st->n_groups; g++) {
        uint32_t *row = cache_host_pages(q, st) + (size_t)g * (size_t)st->max_pages;
        int32_t first = cache_first_page(c, q, store, g);

        n += cache_drop_of_group(c, q, store, g, first + keep[g]);
        memmove(row + most - keep[g], row + first, (size_t)keep[g] * sizeof(*row));
    }
    for (int32_t g = 0; g < st->n_groups; g++) {
        q->first[st->group0 + g] = most - keep[g];
    }
    q->stores[store].divided = true;
    q->stores[store].n_pages = most;
    q->stores[store].n_slots = most * OPS_PAGE_SLOTS;
    cache_reserve_again(c, q, store, n);
    return cache_point_first(c, q, store);
}

bool cache_cuts_apart(const struct cache_seq *q, int32_t store, int32_t n_slots, int32_t budget)
{
    return policy_divides_heads(&q->policy) &&
           (q->stores[store].divided ||
            (policy_heads_compete(&q->policy, budget) && pages_of(n_slots) > pages_of(budget)));
}

int cache_cut_apart(struct cache *c, struct cache_seq *q, int32_t store, const struct ops_cut *all)
{
    const int32_t n_groups = all->kv->layout->n_groups;
    int32_t *keep = c->heads->keep;
    struct ops_kv_layout layout = *all->kv->layout;
    int32_t most = 0;
    int r = divide(c, q, store, all, keep);

    layout.n_groups = 1;
    for (int32_t g = 0; !r && g < n_groups; g++) {
        int32_t full = all->kv->n_slots / OPS_PAGE_SLOTS; /* slots stay within what they were */

        keep[g] = keep[g] < full ? keep[g] : full;
        most = keep[g] > most ? keep[g] : most;
    }
    for (int32_t g = 0; !r && g < n_groups; g++) {
        const int32_t first = cache_first_page(c, q, store, g);
        const struct ops_kv own = alone(all->kv, &layout, g, first);
        struct ops_cut p = *all;

        p.kv = &own;
        p.budget = keep[g] * OPS_PAGE_SLOTS;
        if (c->heads->heads[g].live > p.budget) {
            q->n_evicted += c->heads->heads[g].live - p.budget;
        }
        r = c->geometry.config.ops->cut(c->be, &p);
        r = r ? r : move_state(c, &own, all->kv, g, p.budget, most * OPS_PAGE_SLOTS);
    }
    return r ? r : part_pages(c, q, store, keep, most);
}

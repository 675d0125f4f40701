/* SPDX-License-Identifier: Apache-2.0 */
/* The trie: one hash table over (root, parent, tokens), a list by age, a list of free units. Tokens
 * are compared, not only their hash, so a collision costs time and nothing else. */

#include "engine/kv/seq/prefix.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"
#include "engine/kv/policy/place.h"

/* ---- creation -------------------------------------------------------------------------------- */

static uint32_t rows_of(const struct geometry *s)
{
    uint32_t n = 0;

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        n += (uint32_t)s->arrays[i].n_groups;
    }
    return n;
}

/* As many as there are pages of K and V for; without any, as there are positions for. */
static uint32_t cap_of(const struct geometry *s)
{
    uint64_t pages = 0;
    uint32_t rows = rows_of(s) - (uint32_t)s->n_states;

    if (!geometry_keeps_prefixes(s)) {
        return 0;
    }
    if (rows == 0) {
        uint64_t n = ((uint64_t)s->config.ctx + PREFIX_TOKENS - 1) / PREFIX_TOKENS *
                     (uint64_t)s->config.n_seqs;

        return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    }
    for (int32_t i = 0; i < s->n_classes; i++) {
        pages += s->classes[i].state ? 0 : s->classes[i].n_pages;
    }
    return (uint32_t)(pages / rows);
}

static uint32_t buckets_of(uint32_t cap)
{
    uint32_t n = 1;

    while (n < cap && n < 1u << 30) {
        n *= 2;
    }
    return n;
}

static uint32_t roots_of(uint32_t cap)
{
    return cap < PREFIX_MAX_ROOTS ? cap : PREFIX_MAX_ROOTS;
}

static void lay(struct memory_arena *a, struct prefix *p)
{
    p->units = memory_arena_take(a, p->cap * sizeof(*p->units));
    p->roots = memory_arena_take(a, p->n_roots * sizeof(*p->roots));
    p->tokens = memory_arena_take(a, (size_t)p->cap * PREFIX_TOKENS * sizeof(*p->tokens));
    p->pages = memory_arena_take(a, (size_t)p->cap * p->n_rows * sizeof(*p->pages));
    p->buckets = memory_arena_take(a, p->n_buckets * sizeof(*p->buckets));
}

static size_t lay_size(const struct prefix *p)
{
    struct memory_arena plan = {0};
    struct prefix at = *p;

    lay(&plan, &at);
    return plan.used;
}

static struct prefix sizes_of(const struct geometry *s)
{
    uint32_t cap = cap_of(s);

    return (struct prefix){
        .cap = cap,
        .n_rows = rows_of(s),
        .states = s->n_states > 0,
        .n_buckets = cap ? buckets_of(cap) : 0,
        .n_roots = cap ? roots_of(cap) : 0,
        .free = PREFIX_NONE,
    };
}

uint64_t prefix_bytes(const struct geometry *s)
{
    struct prefix p = sizes_of(s);

    return memory_rounded(lay_size(&p));
}

int prefix_create(const struct geometry *s, struct prefix *ret, struct error *reterr)
{
    struct prefix p = sizes_of(s);
    struct memory_arena a = {.size = lay_size(&p)};
    void *memory = NULL;

    p.newest = p.oldest = PREFIX_NONE;
    if (p.cap == 0) {
        *ret = p;
        return 0;
    }
    int r = memory_map(a.size, "index of kept pages", &memory, reterr);

    if (r) {
        return r;
    }
    a.base = memory;
    lay(&a, &p);
    memset(p.buckets, 0xff, p.n_buckets * sizeof(*p.buckets)); /* PREFIX_NONE */
    for (uint32_t i = p.cap; i-- > 0;) {
        p.units[i].next = p.free;
        p.free = i;
    }
    *ret = p;
    return 0;
}

void prefix_destroy(struct prefix *p)
{
    memory_unmap(p->units, lay_size(p)); /* the arena's first */
    *p = (struct prefix){0};
}

/* ---- what may be kept ------------------------------------------------------------------------ */

int32_t prefix_block(const struct prefix *p, const struct policy *policy)
{
    int32_t block = policy->chunk;

    if (p->cap == 0 || policy_evicts(policy) || policy_on_disk(policy)) {
        return 0;
    }
    while (block % PREFIX_TOKENS) { /* ends: 64 chunks are whole units */
        block += policy->chunk;
    }
    return block;
}

static uint32_t find_root(const struct prefix *p, uint64_t principal, const char *policy)
{
    for (uint32_t i = 0; i < p->n_roots; i++) {
        const struct prefix_root *r = &p->roots[i];

        if (r->n_units && r->principal == principal && strcmp(r->policy, policy) == 0) {
            return i;
        }
    }
    return PREFIX_NONE;
}

static uint32_t make_root(struct prefix *p, uint64_t principal, const char *policy, int32_t variant)
{
    for (uint32_t i = 0; i < p->n_roots; i++) {
        struct prefix_root *r = &p->roots[i];

        if (r->n_units == 0) {
            r->principal = principal;
            r->variant = variant;
            memcpy(r->policy, policy, sizeof(r->policy));
            return i;
        }
    }
    return PREFIX_NONE;
}

/* ---- units ----------------------------------------------------------------------------------- */

static uint32_t bucket_of(const struct prefix *p, uint32_t root, uint32_t parent,
                          const int32_t *tokens)
{
    uint64_t h = ((uint64_t)root << 32 | parent) * UINT64_C(0x9e3779b97f4a7c15);

    for (int i = 0; i < PREFIX_TOKENS; i++) {
        h = (h ^ (uint32_t)tokens[i]) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    return (uint32_t)h & (p->n_buckets - 1);
}

static int32_t *tokens_of(const struct prefix *p, uint32_t unit)
{
    return p->tokens + (size_t)unit * PREFIX_TOKENS;
}

static uint32_t find_unit(const struct prefix *p, uint32_t root, uint32_t parent,
                          const int32_t *tokens)
{
    uint32_t i = p->buckets[bucket_of(p, root, parent, tokens)];

    while (i != PREFIX_NONE &&
           (p->units[i].root != root || p->units[i].parent != parent ||
            memcmp(tokens_of(p, i), tokens, PREFIX_TOKENS * sizeof(*tokens)) != 0)) {
        i = p->units[i].next;
    }
    return i;
}

int32_t prefix_find(struct prefix *p, uint64_t principal, const struct policy *policy,
                    const int32_t *tokens, int32_t n_units, uint32_t *ret)
{
    char text[KV_TEXT_MAX] = {0};
    uint32_t unit = PREFIX_NONE;
    int32_t n = 0;

    *ret = PREFIX_NONE;
    policy_print(policy, text, sizeof(text));
    uint32_t root = p->cap ? find_root(p, principal, text) : PREFIX_NONE;

    while (root != PREFIX_NONE && n < n_units) {
        unit = find_unit(p, root, unit, tokens + (size_t)n * PREFIX_TOKENS);
        if (unit == PREFIX_NONE) {
            break;
        }
        *ret = unit;
        n++;
    }
    return n;
}

static void unlink_age(struct prefix *p, uint32_t unit)
{
    struct prefix_unit *u = &p->units[unit];

    *(u->newer == PREFIX_NONE ? &p->newest : &p->units[u->newer].older) = u->older;
    *(u->older == PREFIX_NONE ? &p->oldest : &p->units[u->older].newer) = u->newer;
}

static void link_newest(struct prefix *p, uint32_t unit)
{
    struct prefix_unit *u = &p->units[unit];

    u->newer = PREFIX_NONE;
    u->older = p->newest;
    *(p->newest == PREFIX_NONE ? &p->oldest : &p->units[p->newest].newer) = unit;
    p->newest = unit;
}

void prefix_touch(struct prefix *p, uint32_t unit)
{
    for (; unit != PREFIX_NONE; unit = p->units[unit].parent) {
        unlink_age(p, unit);
        link_newest(p, unit);
    }
}

uint32_t prefix_add(struct prefix *p, uint64_t principal, const struct policy *policy,
                    int32_t variant, uint32_t parent, const int32_t *tokens)
{
    char text[KV_TEXT_MAX] = {0};
    uint32_t unit = p->free;
    uint32_t root;

    policy_print(policy, text, sizeof(text));
    root = parent == PREFIX_NONE ? find_root(p, principal, text) : p->units[parent].root;
    if (root == PREFIX_NONE && unit != PREFIX_NONE) {
        root = make_root(p, principal, text, variant);
    }
    if (unit == PREFIX_NONE || root == PREFIX_NONE) {
        return PREFIX_NONE;
    }
    struct prefix_unit *u = &p->units[unit];

    p->free = u->next;
    u->parent = parent;
    u->root = root;
    u->n_children = 0;
    u->checkpoint = 0;
    u->bucket = bucket_of(p, root, parent, tokens);
    u->next = p->buckets[u->bucket];
    p->buckets[u->bucket] = unit;
    memcpy(tokens_of(p, unit), tokens, PREFIX_TOKENS * sizeof(*tokens));
    p->roots[root].n_units++;
    if (parent != PREFIX_NONE) {
        p->units[parent].n_children++;
    }
    link_newest(p, unit);
    return unit;
}

void prefix_drop(struct prefix *p, uint32_t unit)
{
    struct prefix_unit *u = &p->units[unit];
    uint32_t *at = &p->buckets[u->bucket];

    assert(u->n_children == 0);
    while (*at != unit) {
        at = &p->units[*at].next;
    }
    *at = u->next;
    unlink_age(p, unit);
    p->roots[u->root].n_units--;
    if (u->parent != PREFIX_NONE) {
        p->units[u->parent].n_children--;
    }
    memset(tokens_of(p, unit), 0, PREFIX_TOKENS * sizeof(int32_t));
    u->checkpoint = 0;
    u->next = p->free;
    p->free = unit;
}

/* ---- checkpoints ------------------------------------------------------------------------------
 */

uint32_t prefix_trim(const struct prefix *p, int32_t block, uint32_t unit, int32_t *n_units)
{
    while (*n_units > 0 &&
           (*n_units * PREFIX_TOKENS % block || (p->states && p->units[unit].checkpoint == 0))) {
        unit = p->units[unit].parent;
        --*n_units;
    }
    return unit;
}

uint32_t prefix_oldest_checkpoint(const struct prefix *p, bool (*fits)(void *arg, uint32_t unit),
                                  void *arg)
{
    uint32_t oldest = PREFIX_NONE;

    for (uint32_t i = 0; i < p->cap; i++) {
        uint64_t at = p->units[i].checkpoint;

        if (at && (oldest == PREFIX_NONE || at < p->units[oldest].checkpoint) && fits(arg, i)) {
            oldest = i;
        }
    }
    return oldest;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Lists by count. Each set's entries are in 256 lists, oldest first: fifo and lru use the first one
 * (lru moves an entry to its end when it is listed), counter the one of the entry's count. A victim
 * is the first entry of the lowest list that is neither marked nor exempt, so finding one costs the
 * few that are. Where a count would pass 255 all of the set's are halved. */

#include "engine/kv/home/tier_pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { LISTS = 256 };

struct entry {
    int32_t slot;
    int32_t before; /* in its list; -1: none */
    int32_t after;
    int32_t count;
};

struct list {
    int32_t first;
    int32_t last;
};

struct tier_pool {
    struct tier_pool_config config;
    struct tier_pool_rule *rules; /* (n_seqs) */
    struct entry *entries;        /* (n_seqs, n_sets, n_slots) */
    struct list *lists;           /* (n_seqs, n_sets, LISTS) */
    int32_t *at;                  /* (n_seqs, n_sets, ctx) a slot's entry, -1: none */
    int32_t *n_used;              /* (n_seqs, n_sets) */
    uint8_t *data;                /* (n_seqs, n_sets, n_slots, slot_bytes) */
};

/* One set's part of it all. */
struct set {
    const struct tier_pool_rule *rule;
    struct entry *entries;
    struct list *lists;
    int32_t *at;
    int32_t *n_used;
    uint8_t *data;
    uint64_t slot_bytes;
};

static struct set set_of(const struct tier_pool *p, int32_t seq, int32_t set)
{
    size_t i = (size_t)seq * (size_t)p->config.n_sets + (size_t)set;
    size_t n = (size_t)p->config.n_slots;

    return (struct set){
        .rule = &p->rules[seq],
        .entries = p->entries + i * n,
        .lists = p->lists + i * LISTS,
        .at = p->at + i * (size_t)p->config.ctx,
        .n_used = p->n_used + i,
        .data = p->data + i * n * p->config.slot_bytes,
        .slot_bytes = p->config.slot_bytes,
    };
}

/* ---- creation -------------------------------------------------------------------------------- */

static size_t lay(struct memory_arena *a, const struct tier_pool_config *c, struct tier_pool *p)
{
    size_t n = (size_t)c->n_seqs * (size_t)c->n_sets;

    p->rules = memory_arena_take(a, (size_t)c->n_seqs * sizeof(*p->rules));
    p->entries = memory_arena_take(a, n * (size_t)c->n_slots * sizeof(*p->entries));
    p->lists = memory_arena_take(a, n * LISTS * sizeof(*p->lists));
    p->at = memory_arena_take(a, n * (size_t)c->ctx * sizeof(*p->at));
    p->n_used = memory_arena_take(a, n * sizeof(*p->n_used));
    p->data = memory_arena_take(a, n * (size_t)c->n_slots * c->slot_bytes);
    return a->used;
}

static size_t host_bytes(const struct tier_pool_config *c)
{
    struct tier_pool p;

    return lay(&(struct memory_arena){0}, c, &p);
}

uint64_t tier_pool_bytes(const struct tier_pool_config *c)
{
    return memory_rounded(host_bytes(c));
}

int tier_pool_create(const struct tier_pool_config *c, struct tier_pool **ret, struct error *reterr)
{
    struct tier_pool *p = calloc(1, sizeof(*p));
    void *host = NULL;

    if (!p) {
        return error_set(reterr, -ENOMEM, "pool of slots: no memory");
    }
    int r = memory_map(host_bytes(c), "pool of slots", &host, reterr);

    if (r) {
        free(p);
        return r;
    }
    p->config = *c;
    (void)lay(&(struct memory_arena){.base = host, .size = host_bytes(c)}, c, p);
    for (int32_t i = 0; i < c->n_seqs; i++) {
        tier_pool_admit(p, i, &(struct tier_pool_rule){.victim = POLICY_FIFO});
    }
    *ret = p;
    return 0;
}

void tier_pool_destroy(struct tier_pool *p)
{
    if (!p) {
        return;
    }
    memory_unmap(p->rules, host_bytes(&p->config)); /* the arena's first */
    free(p);
}

void tier_pool_admit(struct tier_pool *p, int32_t seq, const struct tier_pool_rule *rule)
{
    p->rules[seq] = *rule;
    for (int32_t i = 0; i < p->config.n_sets; i++) {
        struct set s = set_of(p, seq, i);

        memset(s.at, 0xff, (size_t)p->config.ctx * sizeof(*s.at));
        memset(s.lists, 0xff, LISTS * sizeof(*s.lists));
        *s.n_used = 0;
    }
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void unlink_entry(const struct set *s, int32_t i)
{
    struct entry *e = &s->entries[i];
    struct list *l = &s->lists[e->count];

    *(e->before < 0 ? &l->first : &s->entries[e->before].after) = e->after;
    *(e->after < 0 ? &l->last : &s->entries[e->after].before) = e->before;
}

static void append_entry(const struct set *s, int32_t i, int32_t count)
{
    struct entry *e = &s->entries[i];
    struct list *l = &s->lists[count];

    e->count = count;
    e->before = l->last;
    e->after = -1;
    *(l->last < 0 ? &l->first : &s->entries[l->last].after) = i;
    l->last = i;
}

/* Lists 2i and 2i + 1 become list i, in this order. */
static void halve(const struct set *s)
{
    for (int32_t c = 1; c < LISTS; c++) {
        while (s->lists[c].first >= 0) {
            int32_t i = s->lists[c].first;

            unlink_entry(s, i);
            append_entry(s, i, c / 2);
        }
    }
}

/* An entry that may go, or -1. */
static int32_t victim(const struct set *s, const uint8_t *marks, int32_t last)
{
    int32_t n_lists = s->rule->victim == POLICY_COUNTER ? LISTS : 1;
    int32_t newest = s->rule->victim == POLICY_COUNTER ? last - s->rule->exempt : INT32_MAX;

    for (int32_t c = 0; c < n_lists; c++) {
        for (int32_t i = s->lists[c].first; i >= 0; i = s->entries[i].after) {
            if (s->entries[i].slot <= newest && marks[s->entries[i].slot] != TIER_IN_POOL) {
                return i;
            }
        }
    }
    return -1;
}

/* ---- slots ----------------------------------------------------------------------------------- */

const uint8_t *tier_pool_find(const struct tier_pool *p, int32_t seq, int32_t set, int32_t slot)
{
    struct set s = set_of(p, seq, set);

    return s.at[slot] < 0 ? NULL : s.data + (size_t)s.at[slot] * s.slot_bytes;
}

void tier_pool_list(struct tier_pool *p, int32_t seq, int32_t set, int32_t slot)
{
    struct set s = set_of(p, seq, set);
    int32_t i = s.at[slot];

    if (i < 0 || s.rule->victim == POLICY_FIFO) {
        return;
    }
    if (s.rule->victim == POLICY_COUNTER && s.entries[i].count + 1 == LISTS) {
        halve(&s);
    }
    int32_t count = s.rule->victim == POLICY_COUNTER ? s.entries[i].count + 1 : 0;

    unlink_entry(&s, i);
    append_entry(&s, i, count);
}

void tier_pool_put(struct tier_pool *p, int32_t seq, int32_t set, int32_t slot, const uint8_t *from,
                   const uint8_t *marks, int32_t last)
{
    struct set s = set_of(p, seq, set);
    int32_t i = s.at[slot];

    if (i < 0 && *s.n_used < s.rule->n_slots) {
        i = (*s.n_used)++;
    } else if (i < 0) {
        i = victim(&s, marks, last);
        if (i < 0) {
            return;
        }
        s.at[s.entries[i].slot] = -1;
        unlink_entry(&s, i);
    }
    if (s.at[slot] < 0) {
        s.at[slot] = i;
        s.entries[i].slot = slot;
        append_entry(&s, i, 0);
    }
    memcpy(s.data + (size_t)i * s.slot_bytes, from, s.slot_bytes);
}

bool tier_pool_readmits(const struct tier_pool *p, int32_t seq)
{
    return p->rules[seq].victim != POLICY_FIFO;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that predict themselves: the search, and the counts. */

#include "engine/sched/lookup.h"

#include <stdbool.h>
#include <string.h>

enum {
    MAX_HEADS = 1 << 16,
    MIN_HEADS = 1 << 8,
    OF_ALL = 4, /* tries that the counts of all texts weigh beside a text's own */
};

/* A count's share that stays at each try: the last 32 of a text, and 256 of all, make most of it.
 */
static const float own_memory = 1.0f - 1.0f / 32;
static const float common_memory = 1.0f - 1.0f / 256;

static int32_t heads_for(int32_t cap)
{
    int32_t n = MIN_HEADS;

    while (n < cap && n < MAX_HEADS) {
        n *= 2;
    }
    return n;
}

size_t lookup_bytes(int32_t cap)
{
    return ((size_t)heads_for(cap) + (size_t)cap) * sizeof(int32_t);
}

void lookup_init(struct lookup *l, void *memory, int32_t cap)
{
    *l = (struct lookup){.n_heads = heads_for(cap), .heads = memory};
    l->before = l->heads + l->n_heads;
}

void lookup_begin(struct lookup *l)
{
    l->n = 0;
    l->at = 0;
    l->length = 0;
    l->counts = (struct lookup_counts){0};
    memset(l->heads, 0, (size_t)l->n_heads * sizeof(*l->heads));
}

void lookup_counts_init(struct lookup_counts *c)
{
    for (int i = 0; i < LOOKUP_LENGTHS; i++) {
        c->hits[i] = 1;
        c->tries[i] = 2;
    }
}

static int length_class(int32_t length)
{
    static const int32_t from[LOOKUP_LENGTHS] = {2, 3, 4, 6, 8, 16, 32, 64};
    int i = LOOKUP_LENGTHS - 1;

    while (i > 0 && length < from[i]) {
        i--;
    }
    return i;
}

static void count(struct lookup_counts *c, int i, bool hit, float memory)
{
    c->hits[i] = c->hits[i] * memory + (hit ? 1.0f : 0.0f);
    c->tries[i] = c->tries[i] * memory + 1.0f;
}

/* ---- the table of pairs --------------------------------------------------------------------- */

static int32_t *head_of(const struct lookup *l, const int32_t *tokens, int32_t end)
{
    uint64_t pair = (uint64_t)(uint32_t)tokens[end - 1] << 32 | (uint32_t)tokens[end];

    return &l->heads[(pair * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (uint64_t)(l->n_heads - 1)];
}

/* Tokens that agree, going back from `a` and `b`, a < b. */
static int32_t agreement(const int32_t *tokens, int32_t a, int32_t b)
{
    int32_t n = 0;

    while (n <= a && n < LOOKUP_LONGEST && tokens[a - n] == tokens[b - n]) {
        n++;
    }
    return n;
}

static void search(struct lookup *l, const int32_t *tokens, int32_t end)
{
    int32_t at = *head_of(l, tokens, end);

    l->at = 0;
    l->length = 1; /* less is nothing */
    for (int step = 0; at > 0 && step < LOOKUP_STEPS; step++) {
        int32_t n = agreement(tokens, at, end);

        if (n > l->length) {
            l->length = n;
            l->at = at + 1;
        }
        at = l->before[at];
    }
}

static void enter(struct lookup *l, const int32_t *tokens, int32_t end)
{
    int32_t *head = head_of(l, tokens, end);

    l->before[end] = *head;
    *head = end;
}

/* ---- the text goes on ----------------------------------------------------------------------- */

void lookup_follow(struct lookup *l, const int32_t *tokens, int32_t n, int32_t counted,
                   struct lookup_counts *all)
{
    for (int32_t i = l->n; i < n; i++) {
        bool hit = l->at > 0 && tokens[i] == tokens[l->at];

        if (l->at > 0 && i >= counted) {
            count(&l->counts, length_class(l->length), hit, own_memory);
            count(all, length_class(l->length), hit, common_memory);
        }
        if (hit) {
            l->at++;
            l->length++;
        } else {
            l->at = 0;
        }
        if (i > 0 && !hit && (i + 1 == n || i + 1 >= counted)) {
            search(l, tokens, i);
        }
        if (i > 0) {
            enter(l, tokens, i);
        }
    }
    l->n = n > l->n ? n : l->n;
}

int32_t lookup_foretell(const struct lookup *l, const int32_t *tokens, int32_t most, int32_t *ret)
{
    if (l->at == 0) {
        return 0;
    }
    for (int32_t i = 0; i < most; i++) {
        int32_t from = l->at + i;

        ret[i] = from < l->n ? tokens[from] : ret[from - l->n];
    }
    return most;
}

float lookup_chance(const struct lookup *l, int32_t i, const struct lookup_counts *all)
{
    int c = length_class(l->length + i);
    float common = all->hits[c] / all->tries[c];

    return (l->counts.hits[c] + OF_ALL * common) / (l->counts.tries[c] + OF_ALL);
}

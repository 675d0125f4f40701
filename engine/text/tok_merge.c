/* SPDX-License-Identifier: Apache-2.0 */
/* The merge loop of both algorithms: neighbouring symbols become one, best pair first, until no
 * pair is a token. Pairs wait in a binary heap ordered by (rank, position of the left symbol), so n
 * symbols take n log n steps whatever the text: a run of one letter is no worse than prose. A pair
 * that lost one of its sides meanwhile is recognised when it comes up: one side is gone, or their
 * lengths no longer add up (symbols only grow, and only to the right).
 *
 * The memory is kept from call to call: byte-level BPE runs this once for each word. */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <stdlib.h>

void tok_merge_finish(struct tok_merge *m)
{
    free(m->symbols);
    free(m->heap);
    *m = (struct tok_merge){0};
}

/* Room for one more of `size` bytes in *p, doubling. */
static int grow(void **p, size_t *cap, size_t n, size_t size)
{
    void *larger;
    size_t want;

    if (n < *cap) {
        return 0;
    }
    want = *cap ? *cap * 2 : 64;
    larger = reallocarray(*p, want, size);
    if (!larger) {
        return -ENOMEM;
    }
    *p = larger;
    *cap = want;
    return 0;
}

int tok_merge_add(struct tok_merge *m, uint32_t off, uint32_t len, int32_t id)
{
    void *p = m->symbols;
    int r = grow(&p, &m->cap_symbols, m->n_symbols, sizeof(*m->symbols));

    m->symbols = p;
    if (r < 0) {
        return r;
    }
    int32_t i = (int32_t)m->n_symbols++;
    m->symbols[i] = (struct tok_symbol){off, len, i - 1, -1, id};
    if (i > 0) {
        m->symbols[i - 1].next = i;
    }
    return 0;
}

static int heap_push(struct tok_merge *m, struct tok_merge_item item)
{
    void *p = m->heap;
    int r = grow(&p, &m->cap_heap, m->n_heap, sizeof(*m->heap));
    size_t i;

    m->heap = p;
    if (r < 0) {
        return r;
    }
    for (i = m->n_heap++; i > 0 && item.order < m->heap[(i - 1) / 2].order; i = (i - 1) / 2) {
        m->heap[i] = m->heap[(i - 1) / 2];
    }
    m->heap[i] = item;
    return 0;
}

static struct tok_merge_item heap_pop(struct tok_merge *m)
{
    struct tok_merge_item top = m->heap[0];
    struct tok_merge_item last = m->heap[--m->n_heap];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= m->n_heap) {
            break;
        }
        if (child + 1 < m->n_heap && m->heap[child + 1].order < m->heap[child].order) {
            child++;
        }
        if (last.order <= m->heap[child].order) {
            break;
        }
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

static int consider(struct tok_merge *m, const struct tok *t, const char *text,
                    tok_merge_pair *pair, int32_t left, int32_t right)
{
    uint32_t rank;
    int32_t id;

    if (left < 0 || right < 0 ||
        !pair(t, text, &m->symbols[left], &m->symbols[right], &rank, &id)) {
        return 0;
    }
    return heap_push(m,
                     (struct tok_merge_item){(uint64_t)rank << 32 | (uint32_t)left, (uint32_t)right,
                                             m->symbols[left].len + m->symbols[right].len, id});
}

int tok_merge_run(struct tok_merge *m, const struct tok *t, const char *text, tok_merge_pair *pair)
{
    int r = 0;

    m->n_heap = 0;
    for (size_t i = 1; i < m->n_symbols && r == 0; i++) {
        r = consider(m, t, text, pair, (int32_t)i - 1, (int32_t)i);
    }
    while (m->n_heap > 0 && r == 0) {
        struct tok_merge_item item = heap_pop(m);
        int32_t at = (int32_t)(uint32_t)item.order;
        struct tok_symbol *left = &m->symbols[at];
        struct tok_symbol *right = &m->symbols[item.right];

        if (left->len == 0 || right->len == 0 || left->len + right->len != item.len) {
            continue;
        }
        left->len = item.len;
        left->id = item.id;
        left->next = right->next;
        right->len = 0;
        if (left->next >= 0) {
            m->symbols[left->next].prev = at;
        }
        r = consider(m, t, text, pair, left->prev, at);
        if (r == 0) {
            r = consider(m, t, text, pair, at, left->next);
        }
    }
    return r;
}

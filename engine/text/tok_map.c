/* SPDX-License-Identifier: Apache-2.0 */
/* A hash map from bytes to token ids, for a vocabulary that is read once and never changes. The
 * slots hold ids only (4 bytes each, at most half of them used); the keys are the entries' own
 * bytes, so nothing is stored twice. Neighbouring slots are probed in turn. A file made to collide
 * costs time when it is loaded, nothing else. */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Multiply and fold, eight bytes at a time. */
static uint32_t hash(const char *key, size_t len)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ len;

    while (len > 0) {
        uint64_t word = 0;
        size_t n = len < sizeof(word) ? len : sizeof(word);

        memcpy(&word, key, n);
        h = (h ^ word) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        key += n;
        len -= n;
    }
    return (uint32_t)(h ^ (h >> 29));
}

int tok_map_init(struct tok_map *m, int32_t n, bool by_piece)
{
    size_t size = 16;

    while (size < 2 * (size_t)n) {
        size *= 2;
    }
    m->slot = malloc(size * sizeof(*m->slot));
    if (!m->slot) {
        return -ENOMEM;
    }
    memset(m->slot, 0xff, size * sizeof(*m->slot));
    m->mask = (uint32_t)(size - 1);
    m->by_piece = by_piece;
    return 0;
}

void tok_map_finish(struct tok_map *m)
{
    free(m->slot);
    m->slot = NULL;
}

/* The slot that holds the key, or the free one where it belongs. */
static int32_t *slot_of(const struct tok_map *m, const struct tok *t, const char *key, size_t len)
{
    uint32_t i = hash(key, len) & m->mask;

    while (m->slot[i] >= 0) {
        const struct tok_entry *e = &t->entries[m->slot[i]];
        size_t have = m->by_piece ? e->piece_len : e->text_len;

        if (have == len && !memcmp(t->bytes + (m->by_piece ? e->piece : e->text), key, len)) {
            break;
        }
        i = (i + 1) & m->mask;
    }
    return &m->slot[i];
}

int32_t tok_map_find(const struct tok_map *m, const struct tok *t, const char *key, size_t len)
{
    return *slot_of(m, t, key, len);
}

int32_t tok_map_add(struct tok_map *m, const struct tok *t, int32_t id)
{
    const struct tok_entry *e = &t->entries[id];
    int32_t *slot = m->by_piece ? slot_of(m, t, t->bytes + e->piece, e->piece_len)
                                : slot_of(m, t, t->bytes + e->text, e->text_len);

    if (*slot < 0) {
        *slot = id;
    }
    return *slot;
}

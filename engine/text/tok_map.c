/* SPDX-License-Identifier: Apache-2.0 */
/* A hash map from bytes to token ids, for a vocabulary that is read once and never changes. The
 * slots hold ids only (4 bytes each, at most half of them used); the keys are the entries' own
 * bytes, so nothing is stored twice. Neighbouring slots are probed in turn. The hash has a secret
 * key: a file cannot be made to collide. */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
    m->key = siphash_key_random();
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
    uint32_t i = (uint32_t)siphash(&m->key, key, len) & m->mask;

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

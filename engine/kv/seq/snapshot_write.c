/* SPDX-License-Identifier: Apache-2.0 */
/* Writing: a block as parts in a row. */

#include "engine/kv/seq/snapshot_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum part {
    PART_HEADER,
    PART_TOKENS,
    PART_STORE,
    PART_POS,
    PART_SCORE,
    PART_WORDS,
    PART_SLOTS,
    PART_END
};

struct snapshot_writer {
    struct cache *c;
    int32_t seq;
    const int32_t *tokens;
    struct snapshot_header head;
    size_t least;
    enum part part;
    int32_t store;
    int32_t group;
    struct snapshot_store h; /* of the store */
    uint64_t at;             /* in the part, which is padded to 8 bytes */
};

static uint64_t part_bytes(const struct snapshot_writer *w)
{
    const struct snapshot_store *h = &w->h;
    uint64_t n = (uint64_t)h->n_slots;

    switch (w->part) {
    case PART_HEADER:
        return sizeof(w->head);
    case PART_TOKENS:
        return (uint64_t)w->head.n_tokens * sizeof(int32_t);
    case PART_STORE:
        return sizeof(*h);
    case PART_POS:
        return h->flags & HAS_POS ? n * sizeof(int32_t) : 0;
    case PART_SCORE:
        return h->flags & HAS_SCORE ? n * sizeof(float) : 0;
    case PART_WORDS:
        return snapshot_n_words(h) * sizeof(float);
    case PART_SLOTS:
        return snapshot_slots_bytes(h);
    default:
        return 0;
    }
}

static void begin_store(struct snapshot_writer *w)
{
    bool more = w->store < w->head.n_stores;

    w->part = more ? PART_STORE : PART_END;
    w->group = 0;
    if (more) {
        w->h = snapshot_describe(w->c, &w->c->seqs[w->seq], w->store,
                                 cache_store_slots(w->c, w->seq, w->store));
    }
}

static void next_part(struct snapshot_writer *w)
{
    bool store_ends = w->part == PART_STORE && w->h.n_groups == 0;

    w->at = 0;
    if (w->part == PART_TOKENS) {
        begin_store(w);
    } else if (w->part != PART_SLOTS && !store_ends) {
        w->part++;
    } else if (++w->group < w->h.n_groups) {
        w->part = PART_POS;
    } else {
        w->store++;
        begin_store(w);
    }
}

/* n bytes of a group's entries, from byte `from` of all on. Those that no later row reads may be of
 * drafts that were undone, or of another sequence: they are written as zeros. */
static int read_latest(const struct snapshot_writer *w, const struct ops_kv *kv, uint64_t from,
                       uint8_t *buf, uint64_t n)
{
    uint64_t size = ops_kv_latest_bytes(kv->layout);
    int r = w->c->geometry.config.ops->read(w->c->be, buf, kv->latest + from, n);

    for (uint64_t i = 0; i < n; i++) {
        int32_t entry = (int32_t)((from + i) / size % OPS_LATEST_ENTRIES);
        int32_t last = w->head.n_tokens - 1;
        int32_t pos = last - (last - entry + OPS_LATEST_ENTRIES) % OPS_LATEST_ENTRIES;

        if (pos <= last - OPS_LATEST || pos < kv->latest_from) {
            buf[i] = 0;
        }
    }
    return r;
}

/* n bytes of a group's words: sums or latest entries, then statistics. */
static int read_words(const struct snapshot_writer *w, const struct ops_kv *kv, uint8_t *buf,
                      uint64_t n)
{
    const struct cache_seq *q = &w->c->seqs[w->seq];
    const struct backend_ops *ops = w->c->geometry.config.ops;
    uint64_t expect = snapshot_expect_words(w->c, q, w->store) * sizeof(float);
    uint64_t own = snapshot_n_words(&w->h) * sizeof(float) - expect;
    uint64_t first = w->at >= own ? 0 : n < own - w->at ? n : own - w->at;
    uint64_t at = (uint64_t)w->group * own + w->at;
    int r = 0;

    if (first > 0) {
        r = w->h.flags & HAS_LATEST
                ? read_latest(w, kv, at, buf, first)
                : ops->read(w->c->be, buf, (const uint8_t *)kv->v_sum + at, first);
    }
    if (!r && n > first) {
        const uint8_t *stats = (const uint8_t *)cache_expect_stats(w->c, q, w->store, w->group);

        r = ops->read(w->c->be, buf + first, stats + (w->at + first - own), n - first);
    }
    return r;
}

/* Slots whose positions say that they hold nothing may be of another sequence: zeros. */
static int clear_empty(const struct snapshot_writer *w, const struct ops_kv *kv, int32_t slot0,
                       int32_t n, uint8_t *buf)
{
    const int32_t *pos = kv->slot_pos + (size_t)w->group * (size_t)kv->cap + slot0;
    int32_t some[OPS_PAGE_SLOTS];
    int r = 0;

    for (int32_t i = 0; !r && i < n; i += OPS_PAGE_SLOTS) {
        int32_t now = n - i < OPS_PAGE_SLOTS ? n - i : OPS_PAGE_SLOTS;

        r = w->c->geometry.config.ops->read(w->c->be, some, pos + i, (uint64_t)now * sizeof(*some));
        for (int32_t s = 0; !r && s < now; s++) {
            if (some[s] < 0) {
                memset(buf + (size_t)(i + s) * w->h.slot_bytes, 0, w->h.slot_bytes);
            }
        }
    }
    return r;
}

static int read_slots(const struct snapshot_writer *w, const struct ops_kv *kv, uint8_t *buf,
                      uint64_t n)
{
    const struct cache_seq *q = &w->c->seqs[w->seq];
    const int32_t slot0 = (int32_t)(w->at / w->h.slot_bytes);
    const int32_t n_slots = (int32_t)(n / w->h.slot_bytes);
    int r = home_of(w->c, w->seq, w->store)
                ->export(w->c, w->seq, w->store, w->group, slot0, n_slots, buf);

    return r || !snapshot_has_empty(q, w->store) ? r : clear_empty(w, kv, slot0, n_slots, buf);
}

/* n bytes of the part from w->at on; of slots, whole ones. */
static int read_part(const struct snapshot_writer *w, uint8_t *buf, uint64_t n)
{
    const struct backend_ops *ops = w->c->geometry.config.ops;
    struct ops_kv kv;
    size_t at;

    switch (w->part) {
    case PART_HEADER:
        memcpy(buf, (const uint8_t *)&w->head + w->at, n);
        return 0;
    case PART_TOKENS:
        memcpy(buf, (const uint8_t *)w->tokens + w->at, n);
        return 0;
    case PART_STORE:
        memcpy(buf, (const uint8_t *)&w->h + w->at, n);
        return 0;
    default:
        break;
    }
    kv = cache_store_kv(w->c, w->seq, w->store);
    at = (size_t)w->group * (size_t)kv.cap;
    switch (w->part) {
    case PART_POS:
        return ops->read(w->c->be, buf, (const uint8_t *)(kv.slot_pos + at) + w->at, n);
    case PART_SCORE:
        return ops->read(w->c->be, buf, (const uint8_t *)(kv.score + at) + w->at, n);
    case PART_WORDS:
        return read_words(w, &kv, buf, n);
    default:
        if (w->h.flags & HAS_STATE) {
            const struct cache_seq *q = &w->c->seqs[w->seq];

            return ops->read(w->c->be, buf,
                             cache_state_page(w->c, q, w->store, q->stores[w->store].at) + w->at,
                             n);
        }
        return read_slots(w, &kv, buf, n);
    }
}

int snapshot_next(struct snapshot_writer *w, void *buf, size_t size, size_t *ret_n)
{
    size_t done = 0;

    while (w->part != PART_END && done < size) {
        uint8_t *to = (uint8_t *)buf + done;
        uint64_t bytes = part_bytes(w);
        uint64_t left = (w->at < bytes ? bytes : snapshot_pad8(bytes)) - w->at;
        uint64_t n = left < size - done ? left : size - done;
        int r = 0;

        if (w->at < bytes && w->part == PART_SLOTS) {
            n -= n % w->h.slot_bytes;
        }
        if (n == 0 && left > 0) {
            break;
        }
        if (n > 0 && w->at < bytes) {
            r = read_part(w, to, n);
        } else {
            memset(to, 0, n);
        }
        if (r) {
            return r;
        }
        w->at += n;
        done += n;
        if (w->at == snapshot_pad8(bytes)) {
            next_part(w);
        }
    }
    if (done == 0 && w->part != PART_END) {
        return -ENOBUFS;
    }
    *ret_n = done;
    return 0;
}

bool snapshot_waits(struct snapshot_writer *w, size_t size)
{
    const struct home_ops *home =
        w->part < PART_STORE || w->part == PART_END ? NULL : home_of(w->c, w->seq, w->store);
    int64_t slot = (int64_t)((w->part == PART_SLOTS ? w->at : 0) + size);

    if (!home || !home->save_waits) {
        return false;
    }
    slot /= (int64_t)w->h.slot_bytes;
    return home->save_waits(w->c, w->seq, w->store,
                            slot < w->h.n_slots ? (int32_t)slot : w->h.n_slots - 1);
}

size_t snapshot_least(const struct snapshot_writer *w)
{
    return w->least;
}

/* Of a store that evicts; where none does, of one that would. */
static int32_t most_slots(const struct cache *c, const struct cache_seq *q)
{
    int32_t most = 0;

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        bool more = cache_evicts_from(q, i) && q->stores[i].n_slots > most;

        most = more ? q->stores[i].n_slots : most;
    }
    return most > 0 ? most : q->budget && q->budget < q->n_tokens ? q->budget : q->n_tokens;
}

int snapshot_writer_create(struct cache *c, int32_t seq, const char identity[64],
                           const int32_t *tokens, struct snapshot_writer **ret)
{
    const struct cache_seq *q = &c->seqs[seq];
    uint64_t slot = snapshot_largest_slot(c, q->variant);
    struct snapshot_writer *w;

    if (!snapshot_words_fit(c, q)) {
        return -EOVERFLOW;
    }
    w = calloc(1, sizeof(*w));
    if (!w) {
        return -ENOMEM;
    }
    w->c = c;
    w->seq = seq;
    w->tokens = tokens;
    w->least = slot > 8 ? (size_t)slot : 8;
    w->head = (struct snapshot_header){
        .version = SNAPSHOT_VERSION,
        .n_stores = c->geometry.config.n_stores,
        .n_tokens = q->n_tokens,
        .n_prompt = q->n_prompt,
        .n_slots = most_slots(c, q),
        .budget = q->budget,
        .n_evicted = q->n_evicted,
        .bytes = snapshot_bytes(c, seq),
    };
    memcpy(w->head.magic, snapshot_magic, sizeof(snapshot_magic));
    memcpy(w->head.identity, identity, sizeof(w->head.identity));
    policy_print(&q->policy, w->head.policy, sizeof(w->head.policy));
    home_save_begin(c, seq);
    *ret = w;
    return 0;
}

void snapshot_writer_destroy(struct snapshot_writer *w)
{
    if (w) {
        home_save_end(w->c, w->seq);
    }
    free(w);
}

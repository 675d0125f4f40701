/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reader of saved sequences (engine/kv/seq/snapshot.h). The input's first byte names a
 * cache, the second one the read that fails (0xff: none); then come changes to a good block of that
 * cache: an offset (16 bits), a length (8 bits) and so many bytes. A length of 0 cuts the block, or
 * makes it longer, to `offset` bytes.
 *
 * Promises: a block is refused with a code and a text, and the cache is as it was; or it is loaded,
 * unless its source fails. What was loaded and is saved again is a good block that says the same:
 * its tokens, positions and scores; loaded once more, it is saved to the same bytes. A released
 * sequence leaves no page behind. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/kv.h"
#include "engine/kv/seq/cache_impl.h"
#include "engine/kv/seq/snapshot_impl.h"
#include "kernels/backend.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    N_STORES = 4,
    HEADS = 2,
    DIM = 32,
    CTX = 64,
    N_TOKENS = 21,
    N_SEQS = 2,
    CHUNK = 512,
    MOST = 1 << 17
};

static const char identity[65] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

struct world {
    const char *kv;
    bool states;
    const char *made_as; /* the policy of a cache that can make a block of its kind, or NULL */
    struct geometry_store stores[N_STORES];
    struct backend *be;
    struct cache *cache;
    struct policy policy;
    uint8_t *block;
    size_t size;
};

static struct world worlds[] = {
    {.kv = "full", .states = true},
    {.kv = "kv8+h2o:8"},
    {.kv = "kv4+keyformer:12"},
    {.kv = "fp8+sinks:2+recency:8,layers=measured"},
    {.kv = "sparq:r=3,k=9,mean=on"},
    {.kv = "fp8+infinigen:count=3,partial8=on,pool=64,victim=counter"},
    {.kv = "infinigen:count=3,pool=disk", .made_as = "infinigen:count=3"},
    {.kv = "kv8,center=off+window:9"},
};

enum { N_WORLDS = sizeof(worlds) / sizeof(worlds[0]) };

/* ---- a cache, and a block of it -----------------------------------------------------------------
 */

static void make_stores(struct world *w)
{
    static float rotation[HEADS * DIM * DIM];
    static const struct ops_weight skew = {
        .device = rotation, .n_rows = HEADS * DIM, .n_cols = DIM};

    for (int32_t i = 0; i < N_STORES; i++) {
        w->stores[i] = (struct geometry_store){.layer = i,
                                               .n_k = HEADS,
                                               .n_v = HEADS,
                                               .k_dim = DIM,
                                               .v_dim = DIM,
                                               .window = i == 1 ? 8 : 0,
                                               .weight = 1000 + i % 3 * 700,
                                               .skew = i >= 2 ? &skew : NULL,
                                               .columns = i >= 2 ? &skew : NULL};
    }
    if (w->states) {
        w->stores[2] = (struct geometry_store){.layer = 2, .state_bytes = 192};
    }
}

static void make_cache(struct world *w, const char *kv)
{
    struct backend_config config = {.n_threads = 1};
    struct backend_limits limits = {.max_rows = CHUNK,
                                    .max_decode = 1,
                                    .max_seqs = N_SEQS,
                                    .max_heads = HEADS,
                                    .max_head_dim = DIM,
                                    .max_slots = CTX,
                                    .observe = true,
                                    .select = true};
    struct geometry_config s = {.stores = w->stores,
                                .n_stores = N_STORES,
                                .ctx = CTX,
                                .n_seqs = N_SEQS,
                                .max_chunk = CHUNK,
                                .n_q = HEADS,
                                .hidden_bytes = 16,
                                .tier_dir = "/tmp"};
    struct geometry geometry;

    make_stores(w);
    require(backend_find("ref", &s.ops, NULL) == 0);
    require(s.ops->create(&config, &w->be, NULL) == 0);
    require(s.ops->reserve(w->be, &limits, NULL) == 0);
    require(policy_parse_mix(kv, &s.mix, NULL) == 0);
    w->policy = s.mix.part[0].policy;
    require(geometry_make(&s, &geometry, NULL) == 0);
    require(kv_create(&geometry, w->be, &w->cache, NULL) == 0);
}

static size_t write_block(struct world *w, int32_t seq, const int32_t *tokens, uint8_t *buf)
{
    struct snapshot_writer *writer;
    size_t at = 0;
    size_t n = 1;

    require(snapshot_writer_create(w->cache, seq, identity, tokens, &writer) == 0);
    while (n) {
        require(snapshot_next(writer, buf + at, MOST - at, &n) == 0);
        at += n;
    }
    require(at == snapshot_bytes(w->cache, seq));
    snapshot_writer_destroy(writer);
    return at;
}

static void make_block(struct world *w)
{
    struct geometry_text text = {.n_prompt = N_TOKENS, .n_tokens = N_TOKENS + 8, .n_steps = 8};
    int32_t tokens[N_TOKENS];
    int32_t seq;

    for (int32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = i * 3;
    }
    require(kv_text_filled(w->cache, &w->policy, &text, NULL) == 0);
    require(kv_check(w->cache, &w->policy, &text, NULL) == 0);
    seq = kv_admit(w->cache, &w->policy, 1, &text, NULL, 0);
    require(seq >= 0 && kv_fill(w->cache, seq) == 0);
    w->size = write_block(w, seq, tokens, w->block);
    kv_release(w->cache, seq);
}

static void make_world(struct world *w)
{
    w->block = malloc(MOST);
    require(w->block != NULL);
    make_cache(w, w->made_as ? w->made_as : w->kv);
    make_block(w);
    if (w->made_as) {
        const struct backend_ops *ops = w->cache->geometry.config.ops;

        kv_destroy(w->cache);
        ops->destroy(w->be);
        make_cache(w, w->kv);
    }
}

/* ---- a changed one ------------------------------------------------------------------------------
 */

struct source {
    const uint8_t *block;
    size_t size;
    int n_reads;
    int fails_at;
};

static int read_source(void *arg, uint64_t at, void *buf, size_t n)
{
    struct source *s = arg;

    require(at <= s->size && n <= s->size - at);
    memcpy(buf, s->block + at, n);
    return s->n_reads++ == s->fails_at ? -EIO : 0;
}

/* Loads an open block, as the scheduler does; the sequence, or -1 where it could not be. */
static int32_t load(struct world *w, struct snapshot *s, const struct source *from)
{
    struct geometry_text text = {.n_prompt = s->n_tokens,
                                 .n_tokens = s->n_tokens + 8 < CTX ? s->n_tokens + 8 : CTX,
                                 .n_steps = 8,
                                 .held = s->n_tokens,
                                 .held_slots = s->n_slots,
                                 .budget = s->budget};
    int32_t seq;
    int read = 0;

    if (s->n_tokens + 1 >= CTX || kv_check(w->cache, &w->policy, &text, NULL)) {
        return -1;
    }
    seq = kv_admit(w->cache, &w->policy, 1, &text, NULL, 0);
    require(seq >= 0);
    while (!read && !snapshot_loaded(s)) {
        uint64_t n;

        require(snapshot_load(w->cache, seq, s, 500, &n, &read) == 0);
    }
    require(read == 0 || (read == -EIO && from->n_reads == from->fails_at + 1));
    if (read) {
        kv_release(w->cache, seq);
        return -1;
    }
    require(kv_n_tokens(w->cache, seq) == s->n_tokens && kv_failed(w->cache, seq, NULL) == 0);
    return seq;
}

/* What is held of the block, without its slots. */
static void same_small(const struct snapshot *a, const struct snapshot *b, int32_t n_stores)
{
    require(a->n_tokens == b->n_tokens && a->n_slots == b->n_slots && a->budget == b->budget);
    require(memcmp(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof(*a->tokens)) == 0);
    require(memcmp(a->slots, b->slots, (size_t)n_stores * sizeof(*a->slots)) == 0);
    require(a->held_bytes == b->held_bytes);
}

static bool store_positions_same(const uint8_t *a, size_t size_a, const uint8_t *b, size_t size_b)
{
    for (int32_t store = 0; store < N_STORES; store++) {
        for (int32_t group = 0; group < HEADS; group++) {
            const int32_t *p[2];
            int32_t n[2];
            int r = snapshot_positions(a, size_a, store, group, &p[0], &n[0]);

            if (r != snapshot_positions(b, size_b, store, group, &p[1], &n[1])) {
                return false;
            }
            if (r == 0 && (n[0] != n[1] || !p[0] != !p[1] ||
                           (p[0] && memcmp(p[0], p[1], (size_t)n[0] * sizeof(**p)) != 0))) {
                return false;
            }
        }
    }
    return true;
}

/* Loads, saves, loads and saves. */
static void round_trip(struct world *w, struct snapshot *s, const struct source *from)
{
    static uint8_t again[MOST];
    static uint8_t third[MOST];
    struct source from_again = {.block = again, .fails_at = -1};
    struct snapshot_source source = {.read = read_source, .arg = &from_again};
    struct snapshot *t;
    int32_t seq = load(w, s, from);

    if (seq < 0) {
        return;
    }
    from_again.size = source.size = write_block(w, seq, s->tokens, again);
    kv_release(w->cache, seq);
    require(store_positions_same(from->block, from->size, again, from_again.size));
    require(snapshot_open(w->cache, &source, identity, &w->policy, &t, NULL) == 0);
    same_small(s, t, N_STORES);
    seq = load(w, t, &from_again);
    require(seq >= 0);
    require(write_block(w, seq, t->tokens, third) == from_again.size);
    require(memcmp(again, third, from_again.size) == 0);
    kv_release(w->cache, seq);
    snapshot_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t block[MOST];
    struct source from = {.block = block, .fails_at = -1};
    struct snapshot_source source = {.read = read_source, .arg = &from};
    struct snapshot *s = NULL;
    struct error e = {0};
    uint64_t used[2];
    uint64_t total;
    struct world *w;
    int r;

    if (size < 2) {
        return 0;
    }
    w = &worlds[data[0] % N_WORLDS];
    if (!w->cache) {
        make_world(w);
    }
    from.fails_at = data[1] == 0xff ? -1 : data[1];
    memcpy(block, w->block, w->size);
    from.size = source.size = input_change(block, w->size, data + 2, size - 2);
    kv_totals(w->cache, &used[0], &total);
    r = snapshot_open(w->cache, &source, identity, &w->policy, &s, &e);
    if (r) {
        require(e.code == r && e.text[0] && !s);
        require(r == -EBADMSG || r == -ENOTSUP || r == -EINVAL || r == -EIO);
    } else {
        round_trip(w, s, &from);
        snapshot_close(s);
    }
    kv_totals(w->cache, &used[1], &total);
    require(used[0] == used[1]);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Policies over stores of every kind: whole contexts, rings of sliding layers, shared ones. A
 * sequence gets every page that it reserves, none is missing, and all are free in the end. */

#include <criterion/criterion.h>
#include <string.h>

#include "engine/kv/kv.h"
#include "engine/kv/seq/cache_impl.h"
#include "tests/turn.h"
#include "tests/unit/engine_run.h"

/* Every eviction policy, and each way of reading a prompt, scoring and selecting beside it. */
static const char *const evicting[] = {
    "window:50%",
    "window:64",
    "sinks:4+window:100",
    "fp8+window:40%,pos=new",
    "h2o:50%",
    "h2o:50%,prefill=dense",
    "h2o:100,prefill=bounded,chunk=64",
    "h2o:30%,score=layer",
    "h2o:50%,prefill=dense,score=shared",
    "h2o:50%+sparq:r=8,k=32",
    "keyformer:50%",
    "keyformer:50%,prefill=dense",
    "keyformer:25%,mode=as-shipped",
    "keyformer:60,prefill=bounded,chunk=128",
    "recency:50%",
    "recency:90%,prefill=dense",
    "recency:33%,prefill=bounded",
};

enum { N_EVICTING = sizeof(evicting) / sizeof(evicting[0]) };

/* ---- with the engine ------------------------------------------------------------------------- */

static void whole_context(const char *model, const char *overlay, const char *kv, int32_t ctx)
{
    if (!takes_turn()) {
        return;
    }

    static int32_t ids[1200];
    struct engine *e = run_engine_overlay(model, overlay, "cpu", ctx, 2, kv);
    int32_t n_new = ctx > 128 ? 80 : ctx / 4;
    struct engine_request q;
    struct run r[2];
    struct engine_counters c;

    run_tokens(7, engine_info(e)->n_vocab, ids, ctx);
    q = run_request(ids, ctx - n_new, n_new);
    q.logits_rows = 0;
    run_submit(e, &q, &r[0]);
    q = run_request(ids, ctx / 3, n_new); /* beside it, a short one */
    q.logits_rows = 0;
    run_submit(e, &q, &r[1]);
    run_all(e);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(r[i].reason, ENGINE_LENGTH, "%s, %s, %d: %s", model, kv, ctx, r[i].error.text);
        cr_assert_eq(r[i].n_new, n_new, "%s, %s, %d", model, kv, ctx);
        run_clear(&r[i]);
    }
    engine_counters(e, &c);
    cr_assert_eq(c.kv_bytes_used, 0, "%s, %s, %d", model, kv, ctx);
    engine_destroy(e);
}

/* Windows of 24 slots, whose rings have 576: below that, they hold the whole context. */
Test(stores, each_policy_with_sliding_layers)
{
    static const int32_t ctx[] = {64, 128, 577, 640, 1200};

    for (int i = 0; i < N_EVICTING; i++) {
        for (size_t k = 0; k < sizeof(ctx) / sizeof(ctx[0]); k++) {
            whole_context("arch_gemma3.gguf", NULL, evicting[i], ctx[k]);
        }
    }
}

Test(stores, each_policy_with_recurrent_layers)
{
    for (int i = 0; i < N_EVICTING; i++) {
        whole_context("arch_qwen35.gguf", NULL, evicting[i], 64);
        whole_context("arch_qwen35_list.gguf", NULL, evicting[i], 640);
        whole_context("arch_nemotron_h.gguf", NULL, evicting[i], 64);
    }
}

Test(stores, each_policy_without)
{
    for (int i = 0; i < N_EVICTING; i++) {
        whole_context("cache_model.gguf", NULL, evicting[i], 64);
        whole_context("cache_model.gguf", NULL, evicting[i], 640);
        if (!strstr(evicting[i], "score=shared")) {
            whole_context("cache_model.gguf", "cache_swiftkv_2_3.gguf", evicting[i], 640);
        }
    }
}

/* ---- the cache alone --------------------------------------------------------------------------
 */

/* Stores of one page class, so that each one's pages can be lent to another by mistake. */
static const struct geometry_store kinds[][4] = {
    {{.layer = 0}, {.layer = 1}, {.layer = 2}, {.layer = 3}},
    {{.layer = 0, .window = 24}, {.layer = 1, .window = 24}, {.layer = 2}, {.layer = 3}},
    {{.layer = 0}, {.layer = 1, .window = 24}, {.layer = 2}, {.layer = 3, .window = 100}},
    {{.layer = 0, .window = 24}, {.layer = 1}, {.layer = 2, .window = 24}, {.layer = 3}},
    {{.layer = 0, .window = 24},
     {.layer = 1, .window = 24},
     {.layer = 2, .window = 24},
     {.layer = 3, .window = 24}},
};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]), N_STORES = 4, CHUNK = 64, ROWS = 16 };

static struct backend *be;

static int32_t layers; /* enum policy_layers of the caches that are made */

static struct cache *make(int kind, const char *kv, int32_t ctx, int32_t n_seqs)
{
    static struct geometry_store stores[N_STORES];
    struct backend_config config = {.n_threads = 1};
    struct backend_limits limits = {.max_rows = CHUNK,
                                    .max_decode = 1,
                                    .max_seqs = 1,
                                    .max_heads = 2,
                                    .max_head_dim = 4,
                                    .max_slots = ctx,
                                    .observe = true};
    struct geometry_config s = {.stores = stores,
                                .n_stores = N_STORES,
                                .ctx = ctx,
                                .n_seqs = n_seqs,
                                .max_chunk = CHUNK,
                                .n_q = 2,
                                .hidden_bytes = ROWS};
    struct geometry geometry;
    struct cache *c = NULL;
    struct error e = {0};

    memcpy(stores, kinds[kind], sizeof(stores));
    for (int i = 0; i < N_STORES; i++) {
        stores[i].n_k = stores[i].n_v = 2;
        stores[i].k_dim = stores[i].v_dim = 4;
        stores[i].weight = 1000 + i % 3 * 700;
    }
    cr_assert_eq(backend_find("ref", &s.ops, &e), 0);
    cr_assert_eq(s.ops->create(&config, &be, &e), 0, "%s", e.text);
    cr_assert_eq(s.ops->reserve(be, &limits, &e), 0, "%s", e.text);
    cr_assert_eq(policy_parse_mix(kv, &s.mix, &e), 0, "%s: %s", kv, e.text);
    s.mix.part[0].policy.layers = layers;
    cr_assert_eq(geometry_make(&s, &geometry, &e), 0, "%s: %s", kv, e.text);
    cr_assert_eq(kv_create(&geometry, be, &c, &e), 0, "%s", e.text);
    return c;
}

static void finish(struct cache *c)
{
    const struct backend_ops *ops = c->geometry.config.ops;

    kv_destroy(c);
    ops->destroy(be);
}

/* Pages that a sequence has or may take are what the cache has given away, and are counted once. */
static uint32_t check(const struct cache *c, int32_t seq)
{
    const struct cache_seq *q = &c->seqs[seq];
    const struct pages *p = &c->classes[0];
    uint32_t held = 0;

    for (int i = 0; i < N_STORES; i++) {
        held += (uint32_t)(q->stores[i].n_pages * c->geometry.arrays[i].n_groups);
    }
    cr_assert_eq(c->geometry.n_classes, 1);
    cr_assert_eq(p->n_pages - p->n_free, held);
    cr_assert_eq(p->n_reserved, q->left.pages[0]);
    return held;
}

/* Positions as the backend would write them, for the rows of the prepared step. */
static void write_rows(struct cache *c, int32_t store, const struct ops_seq *v, int32_t pos0,
                       int32_t n)
{
    for (int32_t g = 0; v->kv.slot_pos && g < c->geometry.arrays[store].n_groups; g++) {
        for (int32_t i = 0; i < n; i++) {
            int32_t slot = v->victim ? v->victim[g] : v->slot0 + i;

            v->kv.slot_pos[g * v->kv.cap + (v->ring ? slot % v->ring : slot)] = pos0 + i;
        }
    }
}

static void step(struct cache *c, int32_t seq, int32_t n)
{
    const struct cache_seq *q = &c->seqs[seq];

    cr_assert_eq(kv_step_prepare(c, seq, n), 0);
    for (int i = 0; i < N_STORES; i++) {
        struct ops_seq v = cache_view_of(c, q, i, q->n_tokens, n);

        write_rows(c, i, &v, q->n_tokens, n);
    }
    kv_step_commit(c, seq, n);
}

/* The most pages that were held while the prompt was read. */
static uint32_t read_prompt(struct cache *c, int32_t seq, int32_t n_prompt)
{
    uint32_t most = 0;

    for (int32_t at = 0; at < n_prompt; at += CHUNK) {
        int32_t n = n_prompt - at < CHUNK ? n_prompt - at : CHUNK;

        step(c, seq, n);
        most = check(c, seq) > most ? check(c, seq) : most;
        cr_assert_eq(kv_cut(c, seq, at + n == n_prompt), 0);
        (void)check(c, seq);
    }
    return most;
}

static uint32_t read_layered(struct cache *c, int32_t seq, int32_t n_prompt)
{
    uint32_t most = 0;

    for (int i = 0; i < N_STORES; i++) {
        cr_assert_eq(
            cache_take_pages(c, &c->seqs[seq], i, geometry_slots(&c->geometry, i, 0, n_prompt)), 0);
        struct ops_seq v = cache_view_of(c, &c->seqs[seq], i, 0, n_prompt);

        write_rows(c, i, &v, 0, n_prompt);
        most = check(c, seq) > most ? check(c, seq) : most;
        cr_assert_eq(kv_layer_cut(c, seq, i), 0);
        (void)check(c, seq);
    }
    kv_step_commit(c, seq, n_prompt);
    cr_assert_eq(kv_cut(c, seq, true), 0);
    return most;
}

static void fill(int kind, const char *kv, int32_t ctx, int32_t n_prompt)
{
    struct cache *c = make(kind, kv, ctx, 1);
    struct policy p = c->geometry.config.mix.part[0].policy;
    struct geometry_text text = {.n_prompt = n_prompt, .n_tokens = ctx};
    struct error e = {0};
    struct geometry_need need;

    geometry_need(&c->geometry, &p, 0, &text, &need);
    cr_assert_eq(kv_check(c, &p, &text, &e), 0, "%s: %s", kv, e.text);
    int seq = kv_admit(c, &p, 1, &text, NULL, 0);
    uint32_t most;

    cr_assert_geq(seq, 0);
    most = c->seqs[seq].layered ? read_layered(c, seq, n_prompt) : read_prompt(c, seq, n_prompt);
    for (int32_t at = n_prompt; at < ctx; at++) {
        step(c, seq, 1);
    }
    cr_assert_eq(check(c, seq), need.pages[0], "%s, kind %d, %d of %d: %u pages, planned %u", kv,
                 kind, n_prompt, ctx, check(c, seq), need.pages[0]);
    cr_assert_eq(c->seqs[seq].left.pages[0], 0, "%s, kind %d, %d of %d", kv, kind, n_prompt, ctx);
    if (p.prefill != POLICY_BOUNDED) { /* its end need not fall on budget + chunk */
        cr_assert_eq(most > need.pages[0] ? most : need.pages[0], need.pages[0] + need.peak[0],
                     "%s, kind %d, %d of %d: %u pages at most, planned %u and %u", kv, kind,
                     n_prompt, ctx, most, need.pages[0], need.peak[0]);
    }
    if (n_prompt == ctx) { /* the plan's own text */
        cr_assert_eq(c->classes[0].n_pages, need.pages[0] + need.peak[0]);
    }
    kv_release(c, seq);
    cr_assert_eq(c->classes[0].n_free, c->classes[0].n_pages);
    cr_assert_eq(c->classes[0].n_reserved, 0);
    finish(c);
}

static const char *const plain[] = {
    "full,chunk=64",
    "window:64,chunk=64",
    "window:50%,chunk=64,prefill=dense",
    "sinks:4+window:30%,chunk=64,prefill=bounded",
    "h2o:50%,chunk=64",
    "h2o:50%,chunk=64,prefill=dense",
    "keyformer:130,chunk=64,prefill=bounded",
    "recency:90%,chunk=64",
};

static void fill_all(const char *kv)
{
    static const int32_t ctx[] = {64, 65, 200, 257, 640, 1200};

    for (int kind = 0; kind < N_KINDS; kind++) {
        for (size_t k = 0; k < sizeof(ctx) / sizeof(ctx[0]); k++) {
            fill(kind, kv, ctx[k], ctx[k]);
            fill(kind, kv, ctx[k], ctx[k] / 2);
            fill(kind, kv, ctx[k], ctx[k] * 7 / 8);
        }
    }
}

Test(stores, every_reserved_page_is_used)
{
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        fill_all(plain[i]);
    }
}

/* ---- budgets of their own ----------------------------------------------------------------------
 */

Test(stores, every_reserved_page_is_used_under_unequal_budgets)
{
    for (layers = POLICY_LAYERS_PYRAMID; layers <= POLICY_LAYERS_MEASURED; layers++) {
        for (size_t i = 1; i < sizeof(plain) / sizeof(plain[0]); i++) {
            fill_all(plain[i]);
        }
    }
}

static int read_block(void *arg, uint64_t at, void *buf, size_t n)
{
    memcpy(buf, (const uint8_t *)arg + at, n);
    return 0;
}

/* Slots, positions and budgets of each store come back; a block that lies about them does not. */
Test(stores, unequal_budgets_are_saved)
{
    enum { CTX = 640, N_PROMPT = 500, SIZE = 1 << 20 };
    static const char identity[64] = "this model";
    static uint8_t block[SIZE];
    static uint8_t again[SIZE];
    static int32_t tokens[CTX];
    const struct geometry_text text = {.n_prompt = N_PROMPT, .n_tokens = CTX};
    struct error e = {0};
    uint64_t n_loaded;
    size_t size[2];
    int failed;

    layers = POLICY_LAYERS_PYRAMID;
    struct cache *c = make(2, "window:50%,chunk=64,prefill=dense", CTX, 2);
    struct policy p = c->geometry.config.mix.part[0].policy;
    struct snapshot_source source = {.read = read_block, .arg = block};
    struct snapshot *s = NULL;
    struct snapshot_writer *w;
    int seq = kv_admit(c, &p, 1, &text, NULL, 0);

    (void)read_prompt(c, seq, N_PROMPT);
    step(c, seq, 1);
    cr_assert_gt(c->seqs[seq].stores[0].n_slots, c->seqs[seq].stores[2].n_slots);
    cr_assert_eq(snapshot_writer_create(c, seq, identity, tokens, &w), 0);
    cr_assert_eq(snapshot_next(w, block, SIZE, &size[0]), 0);
    snapshot_writer_destroy(w);
    cr_assert_eq(size[0], snapshot_bytes(c, seq));
    int64_t n_evicted = c->seqs[seq].n_evicted;

    kv_release(c, seq);
    source.size = size[0];
    cr_assert_eq(snapshot_open(c, &source, identity, &p, &s, &e), 0, "%s", e.text);
    seq = kv_admit(c, &p, 1,
                   &(struct geometry_text){.n_prompt = N_PROMPT,
                                           .n_tokens = CTX,
                                           .held = s->n_tokens,
                                           .held_slots = s->n_slots,
                                           .budget = s->budget},
                   NULL, 0);
    cr_assert_geq(seq, 0);
    while (!snapshot_loaded(s)) {
        cr_assert_eq(snapshot_load(c, seq, s, 1, &n_loaded, &failed), 0);
    }
    snapshot_close(s);
    cr_assert_eq(c->seqs[seq].n_evicted, n_evicted);
    cr_assert_eq(snapshot_writer_create(c, seq, identity, tokens, &w), 0);
    cr_assert_eq(snapshot_next(w, again, SIZE, &size[1]), 0);
    snapshot_writer_destroy(w);
    cr_assert_eq(size[1], size[0]);
    cr_assert_arr_eq(again, block, size[0]);
    for (int32_t at = N_PROMPT + 1; at < CTX; at++) {
        step(c, seq, 1);
    }
    cr_assert_eq(c->seqs[seq].left.pages[0], 0);
    kv_release(c, seq);

    /* The first store's count of slots lies behind the header, the tokens, layer and groups. */
    for (int32_t n = -1; n < CTX; n += 17) {
        memcpy(again, block, size[0]);
        memcpy(again + 624 + (N_PROMPT + 1 + 1) / 2 * 8 + 8, &n, sizeof(n));
        source.arg = again;
        cr_assert_lt(snapshot_open(c, &source, identity, &p, &s, &e), 0, "%d slots", n);
    }
    finish(c);
}

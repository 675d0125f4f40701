/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent states in the cache alone: a made-up recurrence, whose state says which tokens it has
 * seen, is the same after prefix reuse, forks, saving, steps that are given up, and chunks in
 * parts. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/kv.h"
#include "engine/kv/seq/cache_impl.h"

enum { N_STORES = 4, CTX = 640, CHUNK = 64, WORDS = 25, SIZE = 1 << 20 };

static struct backend *be;
static int first_state = WORDS; /* words of the first store's */
static int alone;               /* all stores are states */

/* States of different sizes, between stores of K and V. */
static const struct geometry_store kinds[N_STORES] = {
    {.layer = 0, .state_bytes = WORDS * sizeof(uint64_t)},
    {.layer = 1, .n_k = 2, .n_v = 2, .k_dim = 4, .v_dim = 4},
    {.layer = 2, .state_bytes = 2 * WORDS * sizeof(uint64_t)},
    {.layer = 3, .n_k = 2, .n_v = 2, .k_dim = 4, .v_dim = 4},
};

static int32_t words_of(int32_t store)
{
    return store == 0 ? WORDS : 2 * WORDS;
}

static struct cache *make(const char *kv, int32_t n_seqs, bool keeps, struct geometry_store *stores)
{
    struct backend_config config = {.n_threads = 1};
    struct backend_limits limits = {.max_rows = CHUNK,
                                    .max_decode = 1,
                                    .max_seqs = 1,
                                    .max_heads = 2,
                                    .max_head_dim = 4,
                                    .max_slots = CTX,
                                    .observe = true};
    struct geometry_config s = {.stores = stores,
                                .n_stores = N_STORES,
                                .ctx = CTX,
                                .n_seqs = n_seqs,
                                .max_chunk = CHUNK,
                                .n_q = 2,
                                .keep_prefixes = keeps,
                                .hidden_bytes = 16};
    struct geometry geometry;
    struct cache *c = NULL;
    struct error e = {0};

    memcpy(stores, kinds, sizeof(kinds));
    stores[0].state_bytes = (uint64_t)first_state * sizeof(uint64_t);
    for (int i = 1; alone && i < N_STORES; i += 2) {
        stores[i] = (struct geometry_store){
            .layer = i, .state_bytes = (uint64_t)words_of(i) * sizeof(uint64_t)};
    }
    cr_assert_eq(backend_find("ref", &s.ops, &e), 0);
    cr_assert_eq(s.ops->create(&config, &be, &e), 0, "%s", e.text);
    cr_assert_eq(s.ops->reserve(be, &limits, &e), 0, "%s", e.text);
    cr_assert_eq(policy_parse_mix(kv, &s.mix, &e), 0, "%s: %s", kv, e.text);
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

/* ---- the recurrence ---------------------------------------------------------------------------
 */

static void see(uint64_t *state, int32_t n, int32_t token, int32_t pos)
{
    for (int32_t i = 0; i < n; i++) {
        state[i] = state[i] * UINT64_C(6364136223846793005) + (uint64_t)(token * 1000 + pos + i);
    }
}

static void run(const struct ops_state *s, int32_t store, const int32_t *tokens, int32_t pos0)
{
    uint64_t x[2 * WORDS] = {0};
    size_t n = (size_t)words_of(store);

    if (s->in) {
        memcpy(x, s->in, n * sizeof(*x));
    }
    for (int32_t i = 0; i < s->n_rows; i++) {
        see(x, (int32_t)n, tokens[pos0 + i], pos0 + i);
    }
    memcpy(s->out, x, n * sizeof(*x));
}

/* Rows [pos0, pos0 + n) of a chunk through every recurrent layer; not committed. */
static void run_rows(struct cache *c, int32_t seq, const int32_t *tokens, int32_t pos0, int32_t n)
{
    struct kv_rows rows = {
        .seq = seq, .n_rows = n, .pos0 = pos0, .chunk_pos0 = pos0, .chunk_rows = n};

    kv_step_begin(c);
    kv_step_add(c, &rows);
    for (int32_t i = 0; i < N_STORES; i++) {
        struct kv_args args = {.layer = i, .store = i, .rows = {.n = n}};
        const struct ops_state *s;
        int32_t n_seqs;

        if (c->geometry.arrays[i].kind->state) {
            cr_assert_eq(kv_states(c, &args, &s, &n_seqs), 0);
            cr_assert_eq(n_seqs, 1);
            run(s, i, tokens, pos0);
        }
    }
}

static void step(struct cache *c, int32_t seq, const int32_t *tokens, int32_t n)
{
    cr_assert_eq(kv_step_prepare(c, seq, n), 0);
    run_rows(c, seq, tokens, kv_n_tokens(c, seq), n);
    kv_step_commit(c, seq, n);
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* The prompt from where the sequence is, chunk by chunk, each kept for others. */
static void read_prompt(struct cache *c, int32_t seq, const int32_t *tokens, int32_t n_prompt)
{
    while (kv_n_tokens(c, seq) < n_prompt) {
        step(c, seq, tokens, min_i32(CHUNK, n_prompt - kv_n_tokens(c, seq)));
        kv_keep(c, seq, tokens, kv_n_tokens(c, seq));
    }
}

static void read_on(struct cache *c, int32_t seq, const int32_t *tokens, int32_t n)
{
    while (kv_n_tokens(c, seq) < n) {
        step(c, seq, tokens, 1);
    }
}

/* Its states are those that the tokens alone give. */
static void check(const struct cache *c, int32_t seq, const int32_t *tokens)
{
    const struct cache_seq *q = &c->seqs[seq];

    for (int32_t i = 0; i < N_STORES; i++) {
        uint64_t want[2 * WORDS] = {0};
        size_t n = (size_t)words_of(i);

        if (!c->geometry.arrays[i].kind->state || q->n_tokens == 0) {
            continue;
        }
        for (int32_t t = 0; t < q->n_tokens; t++) {
            see(want, (int32_t)n, tokens[t], t);
        }
        cr_assert_eq(memcmp(want, cache_state_page(c, q, i, q->stores[i].at), n * sizeof(*want)), 0,
                     "store %d after %d tokens", i, q->n_tokens);
    }
}

static void texts(int32_t tokens[CTX], int seed, int32_t from)
{
    for (int32_t i = from; i < CTX; i++) {
        tokens[i] = (i * 37 + seed * 101) % 997;
    }
}

static int admit(struct cache *c, const int32_t *tokens, int32_t n_prompt, int32_t n_tokens)
{
    struct policy p = c->geometry.config.mix.part[0].policy;
    struct geometry_text text = {.n_prompt = n_prompt, .n_tokens = n_tokens};
    struct error e = {0};

    cr_assert_eq(kv_check(c, &p, &text, &e), 0, "%s", e.text);
    return kv_admit(c, &p, 1, &text, tokens, n_prompt - 1);
}

/* All pages are free, but for those that are kept. */
static void check_free(const struct cache *c)
{
    for (int32_t i = 0; i < c->geometry.n_classes; i++) {
        cr_assert_eq(c->classes[i].n_free + c->classes[i].n_idle, c->classes[i].n_pages);
        cr_assert_eq(c->classes[i].n_reserved, 0);
    }
}

/* ---- tests ------------------------------------------------------------------------------------
 */

/* A test between stores of K and V, and of a model that has none. */
#define BESIDE_AND_ALONE(name)                                                                     \
    static void name(void);                                                                        \
    Test(state, name)                                                                              \
    {                                                                                              \
        name();                                                                                    \
    }                                                                                              \
    Test(state, name##_alone)                                                                      \
    {                                                                                              \
        alone = 1;                                                                                 \
        name();                                                                                    \
    }                                                                                              \
    static void name(void)

Test(state, the_plan_has_two_pages_a_sequence_and_checkpoints)
{
    struct geometry_store stores[N_STORES];

    for (int32_t n_seqs = 1; n_seqs < 5; n_seqs += 3) {
        struct cache *c = make("full,chunk=64", n_seqs, true, stores);
        uint32_t want = (uint32_t)(2 * n_seqs + (n_seqs > 2 ? 4 * n_seqs : 8));
        int n = 0;

        for (int32_t i = 0; i < c->geometry.n_classes; i++) {
            if (c->geometry.classes[i].state) {
                cr_assert_eq(c->geometry.classes[i].n_pages, want);
                n++;
            }
        }
        cr_assert_eq(n, 2, "a class for each size");
        cr_assert_eq(kv_token_slots(c), 4, "states hold no tokens");
        finish(c);
        c = make("full,chunk=64", n_seqs, false, stores);
        cr_assert_eq(c->geometry.classes[0].n_pages, 2 * (uint32_t)n_seqs);
        finish(c);
    }
}

BESIDE_AND_ALONE(a_step_that_is_given_up_leaves_it)
{
    struct geometry_store stores[N_STORES];
    struct cache *c = make("full,chunk=64", 1, false, stores);
    int32_t tokens[CTX];
    int32_t wrong[CTX];

    texts(tokens, 1, 0);
    texts(wrong, 2, 0);
    int seq = admit(c, tokens, 200, CTX);

    for (int32_t n = 0; n < 200; n = min_i32(n + CHUNK, 200)) {
        int32_t rows = min_i32(CHUNK, 200 - n);

        cr_assert_eq(kv_step_prepare(c, seq, rows), 0);
        run_rows(c, seq, wrong, n, rows); /* given up */
        run_rows(c, seq, wrong, n, rows / 2);
        check(c, seq, tokens);
        step(c, seq, tokens, rows);
        check(c, seq, tokens);
    }
    cr_assert_eq(kv_spare_rows(c, seq), 0, "no second row can be undone");
    for (int32_t n = 200; n < 210; n++) {
        cr_assert_eq(kv_step_prepare(c, seq, 1), 0);
        run_rows(c, seq, wrong, n, 1);
        kv_step_undo(c, seq);
        check(c, seq, tokens);
        step(c, seq, tokens, 1);
        check(c, seq, tokens);
    }
    kv_release(c, seq);
    check_free(c);
    finish(c);
}

Test(state, a_chunk_in_parts_is_the_chunk)
{
    struct geometry_store stores[N_STORES];
    struct cache *c = make("full,chunk=64", 1, false, stores);
    int32_t tokens[CTX];

    texts(tokens, 3, 0);
    int seq = admit(c, tokens, 128, CTX);

    for (int32_t at = 0; at < 128; at += CHUNK) {
        cr_assert_eq(kv_step_prepare(c, seq, CHUNK), 0);
        run_rows(c, seq, tokens, at, 10);
        run_rows(c, seq, tokens, at + 10, 1);
        run_rows(c, seq, tokens, at + 11, CHUNK - 11);
        kv_step_commit(c, seq, CHUNK);
        check(c, seq, tokens);
    }
    finish(c);
}

BESIDE_AND_ALONE(a_text_goes_on_from_a_checkpoint)
{
    struct geometry_store stores[N_STORES];
    struct cache *c = make("full,chunk=64", 2, true, stores);
    int32_t a[CTX];
    int32_t b[CTX];

    texts(a, 4, 0);
    memcpy(b, a, sizeof(b));
    texts(b, 5, 400); /* like the first one for 400 tokens */
    int seq = admit(c, a, 450, 500);

    cr_assert_eq(kv_n_tokens(c, seq), 0);
    read_prompt(c, seq, a, 450);
    int beside = admit(c, b, 450, 500); /* while the first one runs */

    cr_assert_eq(kv_n_tokens(c, beside), 384);
    check(c, beside, b);
    read_on(c, seq, a, 500);
    read_prompt(c, beside, b, 450);
    read_on(c, beside, b, 500);
    check(c, seq, a);
    check(c, beside, b);
    kv_release(c, seq);
    kv_release(c, beside);
    check_free(c);
    seq = admit(c, a, 450, 500);
    cr_assert_eq(kv_n_tokens(c, seq), 448);
    check(c, seq, a);
    read_prompt(c, seq, a, 450);
    check(c, seq, a);
    kv_release(c, seq);
    check_free(c);
    finish(c);
}

/* The last of use stay; a text whose checkpoint has gone goes on from an earlier one, or none. */
BESIDE_AND_ALONE(checkpoints_make_room_for_each_other)
{
    enum { N_TEXTS = 12 };
    struct geometry_store stores[N_STORES];
    struct cache *c = make("full,chunk=64", 2, true, stores);
    static int32_t tokens[N_TEXTS][CTX];
    int32_t found = 0;

    for (int i = 0; i < N_TEXTS; i++) {
        texts(tokens[i], 10 + i, 0);
        int seq = admit(c, tokens[i], 140, 160);

        read_prompt(c, seq, tokens[i], 140);
        check(c, seq, tokens[i]);
        kv_release(c, seq);
        check_free(c);
    }
    for (int i = N_TEXTS - 1; i >= 0; i--) {
        int seq = admit(c, tokens[i], 140, 160);

        cr_assert(i < N_TEXTS - 2 || kv_n_tokens(c, seq) == 128, "the latest are there");
        found += kv_n_tokens(c, seq);
        check(c, seq, tokens[i]);
        kv_release(c, seq);
    }
    cr_assert_geq(found, 4 * 128);
    cr_assert_leq(found, 8 * 128);
    check_free(c);
    finish(c);
}

BESIDE_AND_ALONE(pages_of_checkpoints_are_free_memory)
{
    struct geometry_store stores[N_STORES];
    struct cache *c = make("full,chunk=64", 2, true, stores);
    int32_t tokens[CTX];
    int seqs[2];

    for (int round = 0; round < 6; round++) {
        texts(tokens, 30 + round, 0);
        for (int i = 0; i < 2; i++) {
            seqs[i] = admit(c, tokens, CTX - 40, CTX);
            cr_assert_geq(seqs[i], 0, "round %d", round);
            read_prompt(c, seqs[i], tokens, CTX - 40);
            read_on(c, seqs[i], tokens, CTX);
            check(c, seqs[i], tokens);
        }
        kv_release(c, seqs[0]);
        kv_release(c, seqs[1]);
        check_free(c);
    }
    finish(c);
}

BESIDE_AND_ALONE(forks_part)
{
    struct geometry_store stores[N_STORES];
    struct cache *c = make("full,chunk=64", 3, false, stores);
    int32_t tokens[3][CTX];
    int seqs[3];

    texts(tokens[0], 6, 0);
    seqs[0] = admit(c, tokens[0], 100, 200);
    read_prompt(c, seqs[0], tokens[0], 100);
    read_on(c, seqs[0], tokens[0], 103);
    for (int i = 1; i < 3; i++) {
        memcpy(tokens[i], tokens[0], sizeof(tokens[i]));
        texts(tokens[i], 6 + i, 103);
        seqs[i] = kv_fork(c, seqs[0], &(struct geometry_text){.n_prompt = 100, .n_tokens = 200});
        cr_assert_geq(seqs[i], 0);
    }
    for (int32_t n = 104; n < 200; n++) {
        for (int i = 0; i < 3; i++) {
            read_on(c, seqs[i], tokens[i], n);
            check(c, seqs[i], tokens[i]);
        }
    }
    for (int i = 0; i < 3; i++) {
        kv_release(c, seqs[i]);
    }
    check_free(c);
    finish(c);
}

static int read_block(void *arg, uint64_t at, void *buf, size_t n)
{
    memcpy(buf, (const uint8_t *)arg + at, n);
    return 0;
}

BESIDE_AND_ALONE(it_is_saved)
{
    static const char identity[64] = "this model";
    static uint8_t block[SIZE];
    struct geometry_store stores[N_STORES];
    struct error e = {0};
    int32_t tokens[CTX];
    size_t size = 0;

    texts(tokens, 9, 0);
    struct cache *c = make("full,chunk=64", 2, false, stores);
    struct policy p = c->geometry.config.mix.part[0].policy;
    struct snapshot_source source = {.read = read_block, .arg = block};
    struct snapshot *s = NULL;
    struct snapshot_writer *w;
    int seq = admit(c, tokens, 100, 200);
    uint64_t loaded;
    int failed;

    read_prompt(c, seq, tokens, 100);
    step(c, seq, tokens, 1);
    cr_assert_eq(kv_step_prepare(c, seq, 1), 0);
    run_rows(c, seq, tokens, 101, 1); /* begun, not committed */
    cr_assert_eq(snapshot_writer_create(c, seq, identity, tokens, &w), 0);
    while (size < snapshot_bytes(c, seq)) {
        size_t n;

        cr_assert_eq(snapshot_next(w, block + size, 100, &n), 0);
        size += n;
    }
    snapshot_writer_destroy(w);
    kv_release(c, seq);
    source.size = size;
    cr_assert_eq(snapshot_open(c, &source, identity, &p, &s, &e), 0, "%s", e.text);
    seq = kv_admit(c, &p, 1,
                   &(struct geometry_text){.n_prompt = 150,
                                           .n_tokens = 200,
                                           .held = s->n_tokens,
                                           .held_slots = s->n_slots,
                                           .budget = s->budget},
                   NULL, 0);
    cr_assert_geq(seq, 0);
    while (!snapshot_loaded(s)) {
        cr_assert_eq(snapshot_load(c, seq, s, 1, &loaded, &failed), 0);
    }
    snapshot_close(s);
    cr_assert_eq(kv_n_tokens(c, seq), 101);
    check(c, seq, tokens);
    read_on(c, seq, tokens, 130);
    check(c, seq, tokens);
    kv_release(c, seq);
    finish(c);
    first_state = WORDS + 8; /* of another size: refused */
    c = make("full,chunk=64", 2, false, stores);
    cr_assert_eq(snapshot_open(c, &source, identity, &p, &s, &e), -ENOTSUP);
    finish(c);
}

/* Layer-wise prefill, as evicting policies have it. */
Test(state, beside_stores_that_evict)
{
    struct geometry_store stores[N_STORES];
    struct cache *c = make("h2o:50%,chunk=64,prefill=dense,score=shared", 1, true, stores);
    int32_t tokens[CTX];
    int seq = admit(c, tokens, 200, 400);

    texts(tokens, 8, 0);
    read_prompt(c, seq, tokens, 200);
    cr_assert_eq(kv_cut(c, seq, true), 0);
    for (int32_t i = 0; i < N_STORES; i++) {
        cr_assert_eq(cache_evicts_from(&c->seqs[seq], i), i % 2 == 1);
    }
    check(c, seq, tokens);
    kv_release(c, seq);
    finish(c);
}

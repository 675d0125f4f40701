/* SPDX-License-Identifier: Apache-2.0 */
/* Kept pages: a text that begins like an earlier one of its principal says, to the bit, what it
 * says cold; nobody finds another principal's or policy's; and kept pages are in nobody's way. */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/kv/store/pages.h"
#include "engine/kv/plan/plan.h"
#include "engine/kv/seq/prefix.h"
#include "kernels/backend.h"
#include "tests/turn.h"
#include "tests/unit/engine_run.h"

enum { CTX = 320, N_NEW = 8 };

struct family {
    const char *model;
    const char *overlay;
    const char *backend;
    const char *kv;
    int32_t block; /* whole chunks in whole pages; 0: nothing is kept */
};

static struct engine *open_engine(const struct family *f, int32_t n_seqs, bool keeps)
{
    run_keep_prefixes = keeps;
    return run_engine_overlay(f->model, f->overlay, f->backend, CTX, n_seqs, f->kv);
}

/* Prompts of one beginning (of 150 tokens) and different ends. */
static void make_prompt(const struct engine *e, int which, int32_t ids[CTX])
{
    int32_t n_vocab = engine_info(e)->n_vocab;

    run_tokens(90, n_vocab, ids, 150);
    run_tokens((uint64_t)(91 + which), n_vocab, ids + 150, CTX - 150);
}

static uint64_t used(struct engine *e)
{
    struct engine_counters c;

    engine_counters(e, &c);
    return c.kv_bytes_used;
}

static void run_one(struct engine *e, const struct engine_request *q, struct run *r)
{
    run_submit(e, q, r);
    run_all(e);
}

static void as_cold(const struct family *f)
{
    int32_t ids[3][CTX];
    struct run want[3];
    struct run r;
    struct run beside;
    struct engine *cold = open_engine(f, 1, false);
    struct engine *e = open_engine(f, 2, true);
    int32_t common = f->block ? 150 / f->block * f->block : 0;
    int32_t whole = f->block ? 199 / f->block * f->block : 0;
    struct engine_request q;

    for (int i = 0; i < 3; i++) {
        make_prompt(e, i, ids[i]);
        q = run_request(ids[i], 200, N_NEW);
        run_one(cold, &q, &want[i]);
    }
    q = run_request(ids[0], 200, N_NEW);
    run_one(e, &q, &r);
    cr_assert_eq(r.usage.n_cached, 0);
    cr_assert(run_same(&r, &want[0]));
    run_clear(&r);
    cr_assert_eq(used(e), 0);

    run_one(e, &q, &r); /* the same again */
    cr_assert_eq(r.usage.n_cached, whole, "%s: %d", f->kv, r.usage.n_cached);
    cr_assert(run_same(&r, &want[0]), "%s %s", f->backend, f->kv);
    run_clear(&r);

    /* Another end; and while it runs a third, and a score of its prompt. */
    q = run_request(ids[1], 200, N_NEW);
    run_submit(e, &q, &r);
    q = run_request(ids[2], 200, N_NEW);
    run_one(e, &q, &beside);
    cr_assert_eq(r.usage.n_cached, common);
    cr_assert_eq(beside.usage.n_cached, common);
    cr_assert(run_same(&r, &want[1]), "%s %s", f->backend, f->kv);
    cr_assert(run_same(&beside, &want[2]), "%s %s", f->backend, f->kv);
    run_clear(&r);
    run_clear(&beside);
    for (int i = 0; i < 3; i++) {
        run_clear(&want[i]);
    }
    q = run_request(ids[1], 200, 0);
    q.kind = ENGINE_SCORE;
    q.score_first = 140;
    q.logits_rows = 0;
    run_one(cold, &q, &want[0]);
    run_one(e, &q, &r);
    cr_assert_eq(r.usage.n_cached, f->block ? 140 / f->block * f->block : 0);
    cr_assert(run_same(&r, &want[0]), "%s %s: scores", f->backend, f->kv);
    run_clear(&r);
    run_clear(&want[0]);
    cr_assert_eq(used(e), 0);
    engine_destroy(e);
    engine_destroy(cold);
}

Test(prefix, as_cold)
{
    static const struct family families[] = {
        {"cache_model.gguf", NULL, "ref", "full,chunk=64", 64},
        {"cache_model.gguf", NULL, "cpu", "full,chunk=64", 64},
        {"cache_model.gguf", NULL, "cpu", "fp8+full,chunk=32", 64},
        {"cache_model.gguf", NULL, "cpu", "kv8+full,chunk=128", 128},
        {"cache_model.gguf", NULL, "cpu", "full,chunk=48", 192},
        {"heads_32.gguf", NULL, "cpu", "kv4+full,chunk=32",
         64}, /* its latest tokens are not kept */
        {"heads_32.gguf", NULL, "ref", "k8v4+full,chunk=64", 64},
        {"cache_model.gguf", NULL, "cpu", "full", 512},
        {"cache_model.gguf", "cache_swiftkv_2_3.gguf", "ref", "full,chunk=64", 64},
        {"cache_model.gguf", "cache_swiftkv_2_3.gguf", "cpu", "fp8+full,chunk=64", 64},
        {"arch_gemma3.gguf", NULL, "cpu", "full,chunk=64", 64}, /* its windows hold all of CTX */
        {"cache_model.gguf", NULL, "ref", "full,chunk=64+sparq:r=4,k=32,local=8,mean=on", 64},
        {"arch_qwen35.gguf", NULL, "ref", "full,chunk=64", 64}, /* from checkpoints of its states */
        {"arch_qwen35_list.gguf", NULL, "cpu", "fp8+full,chunk=32", 64},
        {"arch_lfm2.gguf", NULL, "cpu", "full,chunk=64", 64},
        {"arch_granitehybrid.gguf", NULL, "cpu", "full,chunk=64", 64},
        {"arch_nemotron_h.gguf", NULL, "ref", "full,chunk=64", 64},
        {"arch_mamba2.gguf", NULL, "ref", "full,chunk=64", 64}, /* no K and V beside them */
        {"arch_mamba2.gguf", NULL, "cpu", "kv8+full,chunk=32", 64},
        /* These drop tokens: nothing is kept, and nothing is wrong. */
        {"cache_model.gguf", NULL, "cpu", "keyformer:80,chunk=64,prefill=dense", 0},
        {"cache_model.gguf", NULL, "cpu", "h2o:50%,chunk=64", 0},
    };

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (takes_turn()) {
            as_cold(&families[i]);
        }
    }
}

Test(prefix, each_principal_and_policy_for_itself)
{
    const struct family f = {"cache_model.gguf", NULL, "ref", "full,chunk=64", 64};
    static const struct {
        uint64_t principal;
        const char *kv;
        int32_t n_cached;
    } asks[] = {
        {1, NULL, 0},   {2, NULL, 0}, {1, "full,chunk=128", 0},   {1, "full,chunk=64", 192},
        {2, NULL, 192}, {3, NULL, 0}, {1, "full,chunk=128", 128}, {0, NULL, 0},
    };
    int32_t ids[CTX];
    struct run want;
    struct run r;
    struct engine *e = open_engine(&f, 4, true);
    struct engine *cold = open_engine(&f, 1, false);
    struct engine_counters c;

    make_prompt(e, 0, ids);
    struct engine_request q = run_request(ids, 200, N_NEW);

    for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
        q.principal = asks[i].principal;
        q.kv = asks[i].kv;
        run_one(cold, &q, &want);
        run_one(e, &q, &r);
        cr_assert_eq(r.usage.n_cached, asks[i].n_cached, "%zu: %d", i, r.usage.n_cached);
        cr_assert(run_same(&r, &want), "%zu", i);
        run_clear(&r);
        run_clear(&want);
    }
    engine_counters(e, &c);
    cr_assert_eq(c.n_prefix_hits, 3);
    cr_assert_eq(c.n_prefix_tokens, 192 + 192 + 128);
    engine_destroy(e);
    engine_destroy(cold);
}

/* A plan of 5 pages a group: what is kept goes, oldest first, when it is in the way. */
Test(prefix, kept_pages_are_in_nobodys_way)
{
    const struct family f = {"cache_model.gguf", NULL, "ref", "full,chunk=64", 64};
    int32_t ids[3][CTX];
    struct run r;
    struct engine *e = open_engine(&f, 1, true);
    struct engine_request q;

    for (int i = 0; i < 3; i++) { /* three texts of nothing in common, two pages each */
        run_tokens((uint64_t)(95 + i), engine_info(e)->n_vocab, ids[i], CTX);
        q = run_request(ids[i], 129, 1);
        run_one(e, &q, &r);
        run_clear(&r);
    }
    /* Six pages were asked for while the third was read, beside its own third: the first text's
     * end is gone, and its beginning, but not what came later. */
    q = run_request(ids[2], 129, 1);
    run_one(e, &q, &r);
    cr_assert_eq(r.usage.n_cached, 128);
    run_clear(&r);
    q = run_request(ids[1], 129, 1);
    run_one(e, &q, &r);
    cr_assert_geq(r.usage.n_cached, 64);
    run_clear(&r);
    q = run_request(ids[0], 129, 1);
    run_one(e, &q, &r);
    cr_assert_eq(r.usage.n_cached, 0);
    run_clear(&r);
    q = run_request(ids[0], 100, CTX - 100); /* the whole plan */
    run_one(e, &q, &r);
    cr_assert_eq(r.n_new, CTX - 100);
    run_clear(&r);
    engine_destroy(e);
}

/* A sliding layer's ring has forgotten what a later text would begin with. */
Test(prefix, rings_keep_nothing)
{
    int32_t ids[200];
    struct run r;

    run_keep_prefixes = true;
    struct engine *e = run_engine("arch_gemma3.gguf", "ref", 1024, 1, "full,chunk=64");

    run_tokens(97, engine_info(e)->n_vocab, ids, 200);
    struct engine_request q = run_request(ids, 200, 1);

    for (int i = 0; i < 2; i++) {
        run_one(e, &q, &r);
        cr_assert_eq(r.usage.n_cached, 0);
        run_clear(&r);
    }
    engine_destroy(e);
}

Test(prefix, the_plan_grows_by_the_index_alone)
{
    struct engine_config c;
    struct plan with;
    struct plan without;
    struct error err = {0};

    engine_config_default(&c);
    c.model_path = run_data("cache_model.gguf");
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = 4096;
    c.n_seqs = 4;
    c.memory_bytes = UINT64_C(1) << 40;
    cr_assert_eq(engine_plan(&c, &without, &err), 0, "%s", err.text);
    c.keep_prefixes = true;
    cr_assert_eq(engine_plan(&c, &with, &err), 0, "%s", err.text);
    cr_assert_eq(with.kv_bytes, without.kv_bytes);
    cr_assert_gt(with.scratch_bytes, without.scratch_bytes);
    cr_assert_lt(with.scratch_bytes - without.scratch_bytes, without.kv_bytes / 20);
}

/* ---- the index alone ---------------------------------------------------------------------------
 */

/* Three units under two roots: chains, ages, collisions of tokens and room. */
Test(prefix, chains_of_the_index)
{
    enum { UNITS = 3 };
    struct prefix_unit units[UNITS] = {{.next = 1}, {.next = 2}, {.next = PREFIX_NONE}};
    struct prefix_root roots[2] = {{0}};
    int32_t room[UNITS * PREFIX_TOKENS];
    uint32_t buckets[1] = {PREFIX_NONE}; /* all in one: only tokens tell them apart */
    struct prefix x = {.cap = UNITS,
                       .n_roots = 2,
                       .n_buckets = 1,
                       .newest = PREFIX_NONE,
                       .oldest = PREFIX_NONE,
                       .units = units,
                       .roots = roots,
                       .tokens = room,
                       .buckets = buckets};
    int32_t text[2 * PREFIX_TOKENS] = {1, 2, 3};
    int32_t other[PREFIX_TOKENS] = {1, 2, 4};
    struct policy full;
    struct policy evicts;
    uint32_t found;

    cr_assert_eq(policy_parse("full,chunk=48", &full, NULL), 0);
    cr_assert_eq(policy_parse("h2o:50%", &evicts, NULL), 0);
    cr_assert_eq(prefix_block(&x, &full), 192, "whole chunks in whole units");
    cr_assert_eq(prefix_block(&x, &evicts), 0);
    cr_assert_eq(prefix_find(&x, 1, &full, text, 2, &found), 0);
    cr_assert_eq(found, PREFIX_NONE);

    uint32_t first = prefix_add(&x, 1, &full, 0, PREFIX_NONE, text);
    uint32_t second = prefix_add(&x, 1, &full, 0, first, text + PREFIX_TOKENS);
    uint32_t beside = prefix_add(&x, 2, &full, 1, PREFIX_NONE, other);

    cr_assert_eq(prefix_add(&x, 1, &full, 0, second, text), PREFIX_NONE, "no room");
    cr_assert_eq(prefix_variant(&x, beside), 1);
    cr_assert_eq(prefix_find(&x, 1, &full, text, 2, &found), 2);
    cr_assert_eq(found, second);
    cr_assert_eq(prefix_find(&x, 1, &full, text, 1, &found), 1, "no more than was asked for");
    cr_assert_eq(found, first);
    cr_assert_eq(prefix_find(&x, 2, &full, text, 2, &found), 0, "another principal's");
    cr_assert_eq(prefix_find(&x, 1, &full, other, 1, &found), 0, "the third token differs");
    cr_assert_eq(prefix_find(&x, 1, &evicts, text, 2, &found), 0, "another policy's");

    prefix_touch(&x, second); /* its parent is newer still, so the oldest is a leaf */
    cr_assert_eq(x.oldest, beside);
    cr_assert_eq(x.newest, first);
    prefix_drop(&x, beside);
    cr_assert_eq(x.oldest, second);
    cr_assert_eq(prefix_find(&x, 2, &full, other, 1, &found), 0);
    prefix_drop(&x, second);
    cr_assert_eq(prefix_find(&x, 1, &full, text, 2, &found), 1);
    prefix_drop(&x, first);
    cr_assert_eq(x.oldest, PREFIX_NONE);
    cr_assert_eq(roots[0].n_units + roots[1].n_units, 0);
    cr_assert_neq(prefix_add(&x, 3, &full, 0, PREFIX_NONE, text), PREFIX_NONE, "roots are free");
}

Test(prefix, zeroed_before_another_principal)
{
    const struct backend_ops *ops;
    struct backend_config config = {.n_threads = 1};
    struct backend *be;
    struct pages p;
    uint32_t a;
    uint32_t again;

    cr_assert_eq(backend_find("ref", &ops, NULL), 0);
    cr_assert_eq(ops->create(&config, &be, NULL), 0);
    cr_assert_eq(pages_create(ops, be, 64, 1, &p, NULL), 0);
    cr_assert(pages_reserve(&p, 1));
    cr_assert_eq(pages_take(&p, 1, &a), 0);
    memset(p.pool, 7, 64);
    pages_keep(&p, a);
    again = a;
    cr_assert(!pages_unref(&p, &again));
    cr_assert_eq(p.n_idle, 1);
    pages_ref(&p, a);
    cr_assert_eq(p.n_idle, 0);
    again = a;
    cr_assert(!pages_unref(&p, &again));
    pages_let_go(&p, a);
    cr_assert_eq(p.n_idle, 0);
    cr_assert_eq(p.n_free, 1);
    cr_assert(pages_reserve(&p, 1));
    cr_assert_eq(pages_take(&p, 2, &a), 0);
    for (int i = 0; i < 64; i++) {
        cr_assert_eq(p.pool[i], 0);
    }
    cr_assert(pages_unref(&p, &a));
    pages_destroy(&p);
    ops->destroy(be);
}

/* Two hundred requests of two principals over six beginnings, forked, cancelled, of many lengths,
 * in a plan of three sequences: each that ends says what it says alone. */
Test(prefix, among_many)
{
    enum { N = 200, TEXTS = 6, LENGTHS = 4 };
    static const int32_t length[LENGTHS] = {70, 135, 200, 262};
    const struct family f = {"cache_model.gguf", NULL, "cpu", "full,chunk=32", 64};
    static int32_t ids[TEXTS][CTX];
    static struct run want[TEXTS][LENGTHS];
    static struct run r[N];
    int of[N][2];
    struct engine *cold = open_engine(&f, 1, false);
    struct engine *e = open_engine(&f, 3, true);
    struct engine_counters c;

    for (int t = 0; t < TEXTS; t++) {
        make_prompt(e, t, ids[t]);
        for (int l = 0; l < LENGTHS; l++) {
            struct engine_request q = run_request(ids[t], length[l], N_NEW);

            run_one(cold, &q, &want[t][l]);
        }
    }
    for (int i = 0; i < N; i++) {
        uint32_t dice[4];

        rng_philox(rng_key_make(99), (uint32_t[4]){(uint32_t)i, 0, 0, 0}, dice);
        of[i][0] = (int)(dice[0] % TEXTS);
        of[i][1] = (int)(dice[1] % LENGTHS);
        struct engine_request q = run_request(ids[of[i][0]], length[of[i][1]], N_NEW);

        q.principal = dice[2] & 1;
        q.fork_of = i ? r[i - 1].handle : 0;
        run_submit(e, &q, &r[i]);
        for (uint32_t k = 0; k < ((dice[2] >> 1) & 3); k++) {
            (void)run_step(e);
        }
        if (dice[3] % 5 == 0) {
            (void)engine_cancel(e, r[i].handle, ENGINE_CANCELLED);
        }
    }
    run_all(e);
    for (int i = 0; i < N; i++) {
        cr_assert(r[i].done);
        cr_assert(r[i].reason == ENGINE_CANCELLED || run_same(&r[i], &want[of[i][0]][of[i][1]]),
                  "%d", i);
        run_clear(&r[i]);
    }
    engine_counters(e, &c);
    cr_assert_gt(c.n_prefix_hits, N / 4, "%d hits", (int)c.n_prefix_hits);
    cr_assert_eq(c.kv_bytes_used, 0);
    for (int t = 0; t < TEXTS; t++) {
        for (int l = 0; l < LENGTHS; l++) {
            run_clear(&want[t][l]);
        }
    }
    engine_destroy(e);
    engine_destroy(cold);
}

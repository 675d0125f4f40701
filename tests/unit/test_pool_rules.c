/* SPDX-License-Identifier: Apache-2.0 */
/* InfiniGen's pool of so many slots: who goes is never somebody who has gone. A text of 256 tokens
 * in a pool of 80 % needs 51 evictions; by the rule of the authors' simulation, where what was
 * evicted stays a candidate and keeps the smallest count, one entry is evicted 51 times. Then the
 * engine: the pool holds what it was given and no more, on both backends. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/policy/place.h"
#include "kernels/backend.h"
#include "tests/unit/engine_run.h"

enum { TEXT = 256, POOL = TEXT * 4 / 5, GROUPS = 2, N_PROMPT = 50, N_NEW = 40 };

struct pool {
    int32_t pos[GROUPS * POOL];
    float score[GROUPS * POOL];
    int32_t victim[GROUPS];
    bool gone[GROUPS][TEXT];
};

/* How a lookup by count goes when the dead stay in it: distinct entries evicted of n evictions. */
static int old_rule(int n)
{
    int count[TEXT] = {0};
    bool evicted[TEXT] = {false};
    int distinct = 0;

    for (int i = 0; i < n; i++) {
        int least = 0;

        for (int j = 1; j < POOL + i; j++) {
            least = count[j] < count[least] ? j : least;
        }
        distinct += !evicted[least];
        evicted[least] = true;
    }
    return distinct;
}

static void one_step(const struct backend_ops *ops, struct backend *be, const struct policy *p,
                     struct pool *pool, int32_t last)
{
    const struct ops_kv_layout l = {.n_groups = GROUPS, .k_heads = 1, .v_heads = 1};
    const struct ops_kv kv = {
        .layout = &l, .cap = POOL, .n_slots = POOL, .slot_pos = pool->pos, .score = pool->score};
    const struct place_when when = {.budget = POOL, .n_prompt = 10, .last = last};
    struct place_guard guard;

    p->place->guard(p, &when, &guard);
    const struct ops_victim op = {.kv = &kv,
                                  .sinks = guard.sinks,
                                  .pos_protect = guard.pos_protect,
                                  .by_position = guard.by_position,
                                  .shared = guard.shared,
                                  .victim = pool->victim};

    cr_assert_eq(ops->victim(be, &op), 0);
    for (int32_t g = 0; g < GROUPS; g++) {
        int32_t slot = pool->victim[g];

        cr_assert(slot >= 0 && slot < POOL);
        int32_t at = g * POOL + slot;
        int32_t pos = pool->pos[at];

        cr_assert(pos >= 0 && pos < last && !pool->gone[g][pos], "%d goes twice", pos);
        cr_assert(p->victim != POLICY_COUNTER || pos <= last - p->exempt, "%d is exempt", pos);
        /* Nothing is listed here, so what was listed longest ago is the oldest, too. */
        cr_assert(p->victim == POLICY_COUNTER || pos == last - POOL, "%d is not the oldest", pos);
        for (int32_t i = 0; i < POOL && p->victim == POLICY_COUNTER; i++) {
            cr_assert(pool->pos[g * POOL + i] > last - p->exempt ||
                      pool->score[g * POOL + i] >= pool->score[at]);
        }
        /* Between the search and the writing, as prediction does (ops.h USE_LAST): a row that was
         * written in the last step had no score of its own until now. */
        for (int32_t i = 0; i < POOL && p->victim == POLICY_LRU; i++) {
            float *score = &pool->score[g * POOL + i];

            *score =
                *score > (float)pool->pos[g * POOL + i] ? *score : (float)pool->pos[g * POOL + i];
        }
        pool->gone[g][pos] = true;
        pool->pos[at] = last;
        pool->score[at] = 0;
    }
}

Test(pool_rules, the_dead_do_not_go_again)
{
    static const char *const rules[] = {"fifo", "lru", "counter"};
    static const char *const backends[] = {"ref", "cpu"};

    cr_assert_eq(old_rule(TEXT - POOL), 1, "the rule of the authors' simulation");
    for (int b = 0; b < 2; b++) {
        const struct backend_ops *ops = NULL;
        const struct backend_config config = {.n_threads = 1, .cpu_mask = UINT32_MAX};
        const struct backend_limits limits = {.max_rows = 1,
                                              .max_decode = 1,
                                              .max_seqs = 1,
                                              .max_cols = 16,
                                              .max_outputs = 16,
                                              .max_heads = 1,
                                              .max_head_dim = 16,
                                              .max_slots = TEXT,
                                              .select = true};
        struct backend *be = NULL;
        struct error e = {0};

        cr_assert_eq(backend_find(backends[b], &ops, &e), 0, "%s", e.text);
        cr_assert_eq(ops->create(&config, &be, &e), 0, "%s", e.text);
        cr_assert_eq(ops->reserve(be, &limits, &e), 0, "%s", e.text);
        for (int i = 0; i < 3; i++) {
            char text[64];
            struct policy p;
            struct pool *pool = calloc(1, sizeof(*pool));
            int n_gone = 0;

            (void)snprintf(text, sizeof(text), "infinigen:pool=%d,victim=%s", POOL, rules[i]);
            cr_assert_eq(policy_parse(text, &p, &e), 0, "%s", e.text);
            for (int32_t j = 0; j < GROUPS * POOL; j++) {
                pool->pos[j] = j % POOL;
            }
            for (int32_t last = POOL; last < TEXT; last++) {
                one_step(ops, be, &p, pool, last);
            }
            for (int32_t pos = 0; pos < TEXT; pos++) {
                n_gone += pool->gone[0][pos];
            }
            cr_assert_eq(n_gone, TEXT - POOL);
            free(pool);
        }
        ops->destroy(be);
    }
}

static void answers(const char *backend, const char *kv, int n, struct run *r)
{
    struct engine *e =
        run_engine_overlay("cache_model.gguf", "cache_skew.gguf", backend, 128, 3, kv);

    for (int i = n - 1; i >= 0; i--) { /* the one that is compared sits behind others */
        int32_t ids[N_PROMPT];

        run_tokens(60 + (uint64_t)i, engine_info(e)->n_vocab, ids, N_PROMPT - 7 * i);
        struct engine_request q = run_request(ids, N_PROMPT - 7 * i, N_NEW);

        run_submit(e, &q, &r[i]);
        (void)run_step(e);
    }
    run_all(e);
    engine_destroy(e);
}

/* Prompts that are cut, and prompts that are not; the same alone and in company. */
Test(pool_rules, a_pool_holds_what_it_was_given)
{
    static const char *const backends[] = {"ref", "cpu"};
    static const char *const pools[] = {
        "infinigen:count=9,pool=64,victim=fifo", "infinigen:count=9,pool=64,victim=lru",
        "infinigen:count=9,pool=64,victim=counter,exempt=8",
        "sinks:2+infinigen:alpha=1,partial8=on,pool=40,victim=counter,exempt=4"};

    for (int i = 0; i < 8; i++) {
        struct run alone;
        struct run many[3];
        const char *kv = pools[i % 4];
        int32_t size = i % 4 == 3 ? 40 : 64;

        answers(backends[i / 4], kv, 1, &alone);
        answers(backends[i / 4], kv, 3, many);
        cr_assert_eq(alone.reason, ENGINE_LENGTH, "%s", alone.error.text);
        cr_assert(run_same(&alone, &many[0]), "%s %s", backends[i / 4], kv);
        int64_t whole = N_PROMPT + N_NEW - 1; /* the last token is not read */
        int64_t gone = alone.usage.n_evicted;

        cr_assert_gt(gone, 0);
        cr_assert_eq(gone % (whole - size), 0, "%ld of %ld", (long)gone, (long)(whole - size));
        /* Groups that drop hold the pool, the others the whole text. */
        int64_t pooled = gone / (whole - size);

        cr_assert_eq((alone.usage.n_slots - pooled * size) % whole, 0);
        cr_assert_gt(alone.usage.n_slots, pooled * size);
        run_clear(&alone);
        for (int j = 0; j < 3; j++) {
            run_clear(&many[j]);
        }
    }
}

/* With room for the whole text, and a list of all of it, a pool is no policy at all; a smaller one
 * says something else, and what it says depends on the rule. */
Test(pool_rules, only_what_is_lost_is_missed)
{
    struct run full;
    struct run wide;
    struct run r[3];

    answers("ref", "full", 1, &full);
    answers("ref", "infinigen:share=100%,pool=128,victim=lru", 1, &wide);
    answers("ref", "infinigen:count=6,pool=52,victim=fifo", 1, &r[0]);
    answers("ref", "infinigen:count=6,pool=52,victim=lru", 1, &r[1]);
    answers("ref", "infinigen:count=6,pool=52,victim=counter,exempt=8", 1, &r[2]);
    cr_assert(run_same(&full, &wide));
    for (int i = 0; i < 3; i++) {
        cr_assert_not(run_same(&r[i], &full));
        cr_assert_not(run_same(&r[i], &r[(i + 1) % 3]));
        run_clear(&r[i]);
    }
    run_clear(&full);
    run_clear(&wide);
}

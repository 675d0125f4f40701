/* SPDX-License-Identifier: Apache-2.0 */
/* Forks: sequences that share pages say, to the bit, what each says alone; a page is copied by who
 * writes it; and when all have gone every page and every reservation is back. */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/store/pages.h"
#include "engine/kv/plan/plan.h"
#include "kernels/backend.h"
#include "tests/turn.h"
#include "tests/unit/engine_run.h"

enum { N_PROMPT = 75, N_NEW = 60, N_FORKS = 3, CTX = 160 };

struct family {
    const char *model;
    const char *overlay;
    const char *backend;
    const char *kv;
};

static struct engine *open_engine(const struct family *f, int32_t n_seqs)
{
    return run_engine_overlay(f->model, f->overlay, f->backend, CTX, n_seqs, f->kv);
}

/* Request i of the family: its own seed, and length. */
static struct engine_request member(const int32_t *ids, int i)
{
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

    q.sampler.temperature = 1.2f;
    q.sampler.repeat_penalty = 1.1f;
    q.sampler.seed = (uint64_t)(100 + i);
    return q;
}

static uint64_t used(struct engine *e)
{
    struct engine_counters c;

    engine_counters(e, &c);
    return c.kv_bytes_used;
}

/* Nothing is held, and as many whole sequences as the plan says find room at once. */
static void all_is_back(struct engine *e, const int32_t *ids, int32_t n_seqs)
{
    struct run r[8];
    struct engine_request q = run_request(ids, 20, CTX - 20);
    struct engine_counters c;

    cr_assert_eq(used(e), 0);
    for (int32_t i = 0; i < n_seqs; i++) {
        run_submit(e, &q, &r[i]);
    }
    (void)run_step(e);
    engine_counters(e, &c);
    cr_assert_eq(c.n_running, n_seqs, "a reservation was lost");
    run_all(e);
    for (int32_t i = 0; i < n_seqs; i++) {
        run_clear(&r[i]);
    }
    cr_assert_eq(used(e), 0);
}

static void alone(const struct family *f, const int32_t *ids, struct run ret[N_FORKS + 1])
{
    struct engine *e = open_engine(f, 1);

    for (int i = 0; i <= N_FORKS; i++) {
        struct engine_request q = member(ids, i);

        run_submit(e, &q, &ret[i]);
        run_all(e);
    }
    engine_destroy(e);
}

/* Three forks of a prompt, one of them forked itself; each draws its own first token. */
static void of_one_prompt(const struct family *f)
{
    if (!takes_turn()) {
        return;
    }

    int32_t ids[N_PROMPT];
    struct run want[N_FORKS + 1];
    struct run r[N_FORKS + 1];
    struct engine *e = open_engine(f, N_FORKS + 1);

    run_tokens(81, engine_info(e)->n_vocab, ids, N_PROMPT);
    alone(f, ids, want);
    for (int i = 0; i <= N_FORKS; i++) {
        struct engine_request q = member(ids, i);

        q.fork_of = i == 0 ? 0 : r[i == N_FORKS ? i - 1 : 0].handle;
        run_submit(e, &q, &r[i]);
    }
    while (r[0].n_new < 1) {
        (void)run_step(e);
    }
    uint64_t few = used(e);

    run_all(e);
    for (int i = 0; i <= N_FORKS; i++) {
        cr_assert(run_same(&r[i], &want[i]), "%s %s: member %d", f->backend, f->kv, i);
        cr_assert_eq(r[i].usage.n_cached, i == 0 || i == N_FORKS ? r[i].usage.n_cached : N_PROMPT);
        cr_assert_eq(r[i].usage.n_evicted, want[i].usage.n_evicted);
        cr_assert_eq(r[i].usage.n_slots, want[i].usage.n_slots);
    }
    cr_assert_leq(few, want[0].usage.kv_bytes, "%s: four hold more than one", f->kv);
    all_is_back(e, ids, N_FORKS + 1);
    for (int i = 0; i <= N_FORKS; i++) {
        run_clear(&r[i]);
        run_clear(&want[i]);
    }
    engine_destroy(e);
}

/* A running sequence is forked after some tokens, as often as there are sequences, and each fork
 * goes its own way; one is cancelled under the others. */
static void in_the_middle(const struct family *f)
{
    if (!takes_turn()) {
        return;
    }

    int32_t ids[N_PROMPT];
    struct run want[N_FORKS + 1];
    struct run r[N_FORKS + 1];
    struct engine *e = open_engine(f, N_FORKS + 1);
    struct engine *other = open_engine(f, 1);
    struct engine_request q;

    run_tokens(82, engine_info(e)->n_vocab, ids, N_PROMPT);
    q = member(ids, 0);
    run_submit(other, &q, &want[0]);
    run_all(other);
    run_submit(e, &q, &r[0]);
    for (int i = 1; i <= N_FORKS; i++) {
        int32_t at = 7 * i;

        q = member(ids, i);
        q.forced = want[0].tokens;
        q.n_forced = at;
        q.report_forced = false;
        run_submit(other, &q, &want[i]);
        run_all(other);
        while (r[0].n_new < at) {
            (void)run_step(e);
        }
        q.fork_of = r[0].handle;
        run_submit(e, &q, &r[i]);
    }
    while (r[0].n_new < 40) {
        (void)run_step(e);
    }
    cr_assert_eq(engine_cancel(e, r[1].handle, ENGINE_CANCELLED), 0);
    run_all(e);
    cr_assert(run_same(&r[0], &want[0]), "%s %s: the parent", f->backend, f->kv);
    for (int i = 1; i <= N_FORKS; i++) {
        size_t n = (size_t)r[i].n_new;

        cr_assert_eq(r[i].usage.n_cached, N_PROMPT, "%s: %d", f->kv, i);
        cr_assert(i == 1 ? n > 5 : n == (size_t)(N_NEW - 7 * i), "%zu", n);
        cr_assert_eq(memcmp(r[i].tokens, want[i].tokens, n * sizeof(int32_t)), 0,
                     "%s %s: forked after %d", f->backend, f->kv, 7 * i);
        cr_assert_eq(memcmp(r[i].logprobs, want[i].logprobs, n * sizeof(float)), 0,
                     "%s %s: forked after %d", f->backend, f->kv, 7 * i);
    }
    all_is_back(e, ids, N_FORKS + 1);
    for (int i = 0; i <= N_FORKS; i++) {
        run_clear(&r[i]);
        run_clear(&want[i]);
    }
    engine_destroy(other);
    engine_destroy(e);
}

static const struct family families[] = {
    {"cache_model.gguf", NULL, "ref", "full"},
    {"cache_model.gguf", NULL, "cpu", "full"},
    {"cache_model.gguf", NULL, "cpu", "fp8+full,chunk=16"},
    {"cache_model.gguf", NULL, "ref", "keyformer:40"},
    {"cache_model.gguf", NULL, "cpu", "fp8+keyformer:40,prefill=dense"},
    {"cache_model.gguf", NULL, "cpu", "kv8+h2o:100,score=shared"},
    {"cache_model.gguf", NULL, "ref", "sinks:2+window:70"},
    {"cache_model.gguf", "cache_swiftkv_2_3.gguf", "ref", "full"},
    {"cache_model.gguf", "cache_swiftkv_2_3.gguf", "cpu", "fp8+keyformer:70"},
    {"cache_model.gguf", NULL, "ref", "sparq:r=4,k=32,local=8,mean=on"},
    {"cache_model.gguf", NULL, "ref", "h2o:70+sparq:r=4,k=32,local=8,mean=on"},
    {"cache_model.gguf", "cache_skew.gguf", "cpu", "infinigen:alpha=1,cap=50%"},
    {"cache_model.gguf", "cache_skew.gguf", "cpu", "infinigen:count=9,pool=80,victim=counter"},
    {"cache_model.gguf", NULL, "cpu", "fp8+expected:40,every=3"},
    {"cache_model.gguf", "cache_scores.gguf", "cpu", "fp8+kvzap:40"},
    {"heads_32.gguf", NULL, "cpu", "kv4"},
    {"heads_32.gguf", NULL, "ref", "k8v4+h2o:40"},
    {"arch_gemma3.gguf", NULL, "cpu", "full"},
    {"arch_qwen35.gguf", NULL, "ref", "full"},
    {"arch_qwen35_list.gguf", NULL, "cpu", "fp8+keyformer:40"},
    {"arch_lfm2.gguf", NULL, "cpu", "full"},
    {"arch_granitehybrid.gguf", NULL, "ref", "full"},
    {"arch_nemotron_h.gguf", NULL, "cpu", "fp8+keyformer:40"},
    {"arch_mamba2.gguf", NULL, "cpu", "full"},
};

Test(fork, of_one_prompt)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        of_one_prompt(&families[i]);
    }
}

Test(fork, in_the_middle)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        in_the_middle(&families[i]);
    }
}

/* Another principal's, another prompt, another policy, one that is gone: nothing is shared, and
 * nothing is said otherwise. */
Test(fork, only_of_ones_own_text)
{
    const struct family f = {"cache_model.gguf", NULL, "ref", "full"};
    int32_t ids[N_PROMPT];
    struct run want[N_FORKS + 1];
    struct run parent;
    struct run r[4];
    struct engine *e = open_engine(&f, 5);

    run_tokens(83, engine_info(e)->n_vocab, ids, N_PROMPT);
    alone(&f, ids, want);
    struct engine_request q = member(ids, 0);

    run_submit(e, &q, &parent);
    for (int i = 0; i < 4; i++) {
        q = member(ids, 1);
        q.fork_of = i == 3 ? 4711 : parent.handle;
        q.principal = i == 0 ? 9 : 0;
        q.n_prompt -= i == 1;
        q.kv = i == 2 ? "full,chunk=64" : NULL;
        run_submit(e, &q, &r[i]);
    }
    run_all(e);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(r[i].usage.n_cached, 0, "%d", i);
        cr_assert(i == 1 || run_same(&r[i], &want[1]), "%d", i);
        run_clear(&r[i]);
    }
    cr_assert(run_same(&parent, &want[0]));
    run_clear(&parent);
    for (int i = 0; i <= N_FORKS; i++) {
        run_clear(&want[i]);
    }
    engine_destroy(e);
}

/* A parent that is cancelled while forks wait for its prompt; and more forks than sequences. */
Test(fork, without_a_parent_or_room)
{
    const struct family f = {"cache_model.gguf", NULL, "cpu", "full,chunk=16"};
    int32_t ids[N_PROMPT];
    struct run want[N_FORKS + 1];
    struct run r[N_FORKS + 1];
    struct engine *e = open_engine(&f, 2);

    run_tokens(84, engine_info(e)->n_vocab, ids, N_PROMPT);
    alone(&f, ids, want);
    for (int i = 0; i <= N_FORKS; i++) {
        struct engine_request q = member(ids, i);

        q.fork_of = i ? r[0].handle : 0;
        run_submit(e, &q, &r[i]);
    }
    (void)run_step(e);
    cr_assert_eq(engine_cancel(e, r[0].handle, ENGINE_CANCELLED), 0);
    run_all(e);
    for (int i = 1; i <= N_FORKS; i++) {
        cr_assert(run_same(&r[i], &want[i]), "%d", i);
    }
    for (int i = 0; i <= N_FORKS; i++) {
        struct engine_request q = member(ids, i);

        run_clear(&r[i]);
        q.fork_of = i ? r[0].handle : 0;
        run_submit(e, &q, &r[i]);
    }
    run_all(e);
    cr_assert_eq(r[1].usage.n_cached, N_PROMPT);
    for (int i = 0; i <= N_FORKS; i++) {
        cr_assert(run_same(&r[i], &want[i]), "%d", i);
        run_clear(&r[i]);
        run_clear(&want[i]);
    }
    all_is_back(e, ids, 2);
    engine_destroy(e);
}

Test(fork, pages)
{
    const struct backend_ops *ops;
    struct backend_config config = {.n_threads = 1};
    struct backend *be;
    struct pages p;
    uint32_t a;
    uint32_t b;
    uint32_t c;

    cr_assert_eq(backend_find("ref", &ops, NULL), 0);
    cr_assert_eq(ops->create(&config, &be, NULL), 0);
    cr_assert_eq(pages_create(ops, be, 64, 3, &p, NULL), 0);
    cr_assert(pages_reserve(&p, 3));
    cr_assert(!pages_reserve(&p, 1));
    cr_assert_eq(pages_take(&p, 1, &a), 0);
    memset(p.pool + 64 * a, 7, 64);
    pages_share(&p, a);
    pages_share(&p, a);
    cr_assert_eq(p.n_reserved, 2);
    b = a;
    c = a;
    cr_assert_eq(pages_own(&p, 1, &b), 1);
    cr_assert_neq(a, b);
    cr_assert_eq(p.pool[64 * b + 63], 7);
    cr_assert_eq(p.n_reserved, 1);
    cr_assert(!pages_unref(&p, &c), "still the first one's");
    cr_assert_eq(p.n_reserved, 0, "nobody will need a copy any more");
    cr_assert_eq(pages_own(&p, 1, &a), 0);
    cr_assert(pages_unref(&p, &a));
    cr_assert(pages_unref(&p, &b));
    cr_assert_eq(p.n_free, 3);
    pages_destroy(&p);
    ops->destroy(be);
}

/* A prompt is then read in pieces, and a step may end between its last layer and its first token:
 * the fork waits on. */
Test(fork, beside_one_that_decodes)
{
    enum { PIECES = 200, ROUNDS = 6 };
    static int32_t ids[2][PIECES];
    struct engine *e = run_engine("cache_model.gguf", "cpu", 320, 4, "full");

    for (int k = 0; k < ROUNDS; k++) {
        struct run decoding;
        struct run parent;
        struct run fork;

        run_tokens(7 + (uint64_t)k, engine_info(e)->n_vocab, ids[0], 16);
        run_tokens(100 + (uint64_t)k, engine_info(e)->n_vocab, ids[1], PIECES);
        struct engine_request q = run_request(ids[0], 16, 250);

        run_submit(e, &q, &decoding);
        while (decoding.n_new < 40) {
            (void)run_step(e);
        }
        q = run_request(ids[1], PIECES, 10);
        run_submit(e, &q, &parent);
        q.fork_of = parent.handle;
        run_submit(e, &q, &fork);
        while (!fork.done) {
            (void)run_step(e);
        }
        cr_assert_eq(fork.usage.n_cached, PIECES, "round %d: it read the prompt anew", k);
        cr_assert_eq(engine_cancel(e, decoding.handle, ENGINE_CANCELLED), 0);
        run_all(e);
        run_clear(&decoding);
        run_clear(&parent);
        run_clear(&fork);
    }
    engine_destroy(e);
}

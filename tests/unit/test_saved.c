/* SPDX-License-Identifier: Apache-2.0 */
/* Saved sequences: one that left and came back says, to the bit, what it would have said; a text
 * may go on from one; and nothing that is wrong with a block does harm. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "engine/kv/seq/snapshot.h"
#include "tests/turn.h"
#include "tests/unit/engine_run.h"

enum { N_PROMPT = 60, N_NEW = 24 };

struct saved {
    void *p;
    size_t size;
};

/* Runs until `at` new tokens are there, and saves. */
static struct saved leave(struct engine *e, const struct engine_request *q, int32_t at)
{
    struct saved s = {0};
    struct run r;
    struct error err = {0};

    run_submit(e, q, &r);
    cr_assert_eq(engine_save(e, r.handle, &s.p, &s.size, &err), -ENOENT, "it waits");
    while (r.n_new < at) {
        (void)run_step(e);
    }
    err.code = 0;
    cr_assert_eq(engine_save(e, r.handle, &s.p, &s.size, &err), 0, "%s", err.text);
    cr_assert_eq(engine_cancel(e, r.handle, ENGINE_CANCELLED), 0);
    run_all(e);
    run_clear(&r);
    return s;
}

static void come_back(const char *backend, const char *model, const char *overlay, const char *kv)
{
    if (!takes_turn()) {
        return;
    }

    static const int32_t at[] = {1, 2, 13};
    int32_t ids[N_PROMPT];
    struct run whole;
    struct engine *e = run_engine_overlay(model, overlay, backend, 128, 2, kv);

    run_tokens(51, engine_info(e)->n_vocab, ids, N_PROMPT);
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

    q.sampler.temperature = 0.9f;
    q.sampler.seed = 5;
    run_submit(e, &q, &whole);
    run_all(e);
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        struct saved s = leave(e, &q, at[i]);
        struct engine *other = run_engine_overlay(model, overlay, backend, 128, 1, kv);
        struct engine_request again = q;
        struct run r;

        again.saved = s.p;
        again.saved_size = s.size;
        again.forced = whole.tokens;
        again.n_forced = at[i];
        run_submit(other, &again, &r);
        free(s.p);
        run_all(other);
        cr_assert_eq(r.usage.n_cached, N_PROMPT);
        cr_assert_eq(r.n_new, N_NEW - at[i], "%s: %d", kv, r.n_new);
        cr_assert_eq(memcmp(r.tokens, whole.tokens + at[i], (size_t)r.n_new * sizeof(int32_t)), 0,
                     "%s differs after %d", kv, at[i]);
        cr_assert_eq(memcmp(r.logprobs, whole.logprobs + at[i], (size_t)r.n_new * sizeof(float)), 0,
                     "%s differs after %d", kv, at[i]);
        cr_assert_eq(r.usage.n_evicted, whole.usage.n_evicted);
        cr_assert_eq(r.usage.n_slots, whole.usage.n_slots);
        run_clear(&r);
        engine_destroy(other);
    }
    run_clear(&whole);
    engine_destroy(e);
}

Test(saved, as_if_it_had_never_left)
{
    static const char *const backends[] = {"ref", "cpu"};

    for (int b = 0; b < 2; b++) {
        come_back(backends[b], "cache_model.gguf", NULL, "full");
        come_back(backends[b], "cache_model.gguf", NULL, "kv8+keyformer:20");
        come_back(backends[b], "cache_model.gguf", NULL, "sparq:r=3,k=9,mean=on");
        come_back(backends[b], "cache_model.gguf", NULL,
                  "fp8+h2o:20+sparq:r=3,k=9,mean=on,layout=rank8");
        come_back(backends[b], "cache_model.gguf", "cache_swiftkv_2_3.gguf", "window:20+topv:5");
        come_back(backends[b], "cache_model.gguf", NULL, "bf16+sinks:2+window:20");
        come_back(backends[b], "cache_model.gguf", NULL, "k16v8+h2o:20,score=shared");
        come_back(backends[b], "cache_model.gguf", NULL, "keyformer:20,mode=as-shipped");
        come_back(backends[b], "cache_model.gguf", "cache_swiftkv_2_3.gguf", "fp8+recency:20");
        come_back(backends[b], "cache_model.gguf", "cache_skew.gguf", "fp8+infinigen:count=9");
        come_back(backends[b], "cache_model.gguf", "cache_skew.gguf",
                  "fp8+infinigen:count=9,partial8=on,pool=65,victim=counter,exempt=8");
        come_back(backends[b], "cache_model.gguf", "cache_skew.gguf",
                  "infinigen:alpha=1,pool=40,victim=lru");
        come_back(backends[b], "cache_model.gguf", "cache_skew.gguf",
                  "infinigen:count=9,pool=disk");
        come_back(backends[b], "cache_model.gguf", "cache_skew.gguf",
                  "fp8+infinigen:count=9,partial8=on,pool=disk");
        come_back(backends[b], "cache_model.gguf", "cache_skew.gguf",
                  "infinigen:alpha=1,pool=40,full=spill,victim=lru");
        come_back(backends[b], "heads_32.gguf", NULL, "kv4"); /* with its latest tokens */
        come_back(backends[b], "heads_32.gguf", NULL, "k8v4+keyformer:40");
        come_back(backends[b], "heads_32.gguf", "heads_32_shared.gguf", "kv4,shared=kv8");
        come_back(backends[b], "cache_model.gguf", NULL, "fp8+expected:20,every=5");
        come_back(backends[b], "cache_model.gguf", NULL,
                  "expected:20,every=7+sparq:r=3,k=9,mean=on");
        come_back(backends[b], "heads_32.gguf", NULL, "kv4+expected:40,every=3");
        come_back(backends[b], "cache_model.gguf", "cache_scores.gguf", "fp8+kvzap:20");
        come_back(backends[b], "arch_qwen2.gguf", NULL, "kv8+expected:20,every=5");
        come_back(backends[b], "arch_gemma3.gguf", NULL, "full");
        come_back(backends[b], "arch_qwen35.gguf", NULL, "full");
        come_back(backends[b], "arch_qwen35_list.gguf", NULL, "fp8+h2o:20");
        come_back(backends[b], "arch_lfm2.gguf", NULL, "full");
        come_back(backends[b], "arch_granitehybrid.gguf", NULL, "full");
        come_back(backends[b], "arch_nemotron_h.gguf", NULL, "fp8+h2o:20");
        come_back(backends[b], "arch_mamba2.gguf", NULL, "full");
        come_back(backends[b], "arch_qwen2.gguf", NULL, "fp8"); /* centered */
        come_back(backends[b], "arch_qwen2.gguf", NULL, "kv8,center=off+h2o:20");
        come_back(backends[b], "arch_qwen2.gguf", NULL, "kv8,rot=off");
    }
}

/* A block says nothing of who was served before: what a prompt left in the device's memory of its
 * slot is not in the next one's block, not even where that has too few tokens to replace it. */
Test(saved, nothing_of_the_one_before)
{
    static const char *const kv[] = {"expected:20,every=5", "kv8+expected:20,every=5,cov=off"};
    static const int32_t lengths[] = {3, 4, 9};
    int32_t ids[N_PROMPT];

    for (size_t i = 0; i < 2 * sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct engine *used = run_engine("cache_model.gguf", "cpu", 128, 1, kv[i % 2]);
        struct engine *fresh = run_engine("cache_model.gguf", "cpu", 128, 1, kv[i % 2]);

        run_tokens(71, engine_info(used)->n_vocab, ids, N_PROMPT);
        struct engine_request q = run_request(ids, N_PROMPT, N_NEW);
        struct saved other = leave(used, &q, 13);

        run_tokens(72, engine_info(used)->n_vocab, ids, N_PROMPT);
        q = run_request(ids, lengths[i / 2], N_NEW);
        struct saved one = leave(used, &q, 3);
        struct saved want = leave(fresh, &q, 3);

        cr_assert_eq(one.size, want.size);
        cr_assert_eq(memcmp(one.p, want.p, one.size), 0, "%s: a prompt of %d", kv[i % 2],
                     lengths[i / 2]);
        free(other.p);
        free(one.p);
        free(want.p);
        engine_destroy(used);
        engine_destroy(fresh);
    }
}

static const float four_bits = 0.1f;

/* A block says nothing of the backend that made it: K, V and scores are in canonical form. The
 * other backend rounds otherwise, so what comes after is the same tokens (greedy) and nearly the
 * same probabilities: `near`. With FP8 in the cache that is less near where the processor sums its
 * products in f16 (tol_attention_half in tests/kernels/tolerance.h): 2e-3 once, 1e-4 elsewhere. In
 * 4 bits a code of a new token may be the next one: 0.04, where whole runs of two backends differ
 * by up to 0.14. */
static void come_back_elsewhere(const char *from, const char *to, const char *model,
                                const char *overlay, const char *kv, float near)
{
    int32_t ids[N_PROMPT];
    struct run whole;
    struct engine *e = run_engine_overlay(model, overlay, from, 128, 2, kv);
    struct engine *other = run_engine_overlay(model, overlay, to, 128, 1, kv);

    run_tokens(51, engine_info(e)->n_vocab, ids, N_PROMPT);
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

    run_submit(e, &q, &whole);
    run_all(e);
    struct saved s = leave(e, &q, 13);
    struct run r;

    q.saved = s.p;
    q.saved_size = s.size;
    q.forced = whole.tokens;
    q.n_forced = 13;
    run_submit(other, &q, &r);
    run_all(other);
    cr_assert_eq(r.reason, ENGINE_LENGTH, "%s", r.error.text);
    cr_assert_eq(r.usage.n_cached, N_PROMPT);
    cr_assert_eq(r.n_new, N_NEW - 13);
    for (int32_t i = 0; i < r.n_new; i++) {
        cr_assert_eq(r.tokens[i], whole.tokens[13 + i], "%s to %s, %s: token %d", from, to, kv, i);
        cr_assert_float_eq(r.logprobs[i], whole.logprobs[13 + i], near,
                           "%s to %s, %s: token %d: %g, %g", from, to, kv, i, (double)r.logprobs[i],
                           (double)whole.logprobs[13 + i]);
    }
    cr_assert_eq(r.usage.n_slots, whole.usage.n_slots);
    free(s.p);
    run_clear(&r);
    run_clear(&whole);
    engine_destroy(other);
    engine_destroy(e);
}

Test(saved, from_one_backend_to_another)
{
    static const char *const ways[][2] = {{"cpu", "ref"}, {"ref", "cpu"}};
    static const char model[] = "cache_model.gguf";
    const float f32 = 1e-3f;
    const float fp8 = cpu_flags() & CPU_AVX512_FP16 ? 1e-2f : f32;

    for (int i = 0; i < 2; i++) {
        const char *from = ways[i][0];
        const char *to = ways[i][1];

        come_back_elsewhere(from, to, model, NULL, "full", f32);
        come_back_elsewhere(from, to, model, NULL, "kv8+keyformer:20", fp8);
        come_back_elsewhere(from, to, model, NULL, "fp8+h2o:20+sparq:r=3,k=9,mean=on,layout=rank8",
                            fp8);
        come_back_elsewhere(from, to, model, NULL, "k16v8+h2o:20,score=shared", fp8);
        come_back_elsewhere(from, to, model, NULL, "expected:20,every=5", f32);
        come_back_elsewhere(from, to, model, "cache_swiftkv_2_3.gguf", "fp8+recency:20", fp8);
        come_back_elsewhere(from, to, model, "cache_skew.gguf",
                            "fp8+infinigen:count=9,partial8=on,pool=65,victim=counter,exempt=8",
                            fp8);
        come_back_elsewhere(from, to, model, "cache_skew.gguf", "infinigen:count=9,pool=disk", f32);
        come_back_elsewhere(from, to, "arch_qwen2.gguf", NULL, "kv8", fp8); /* centered */
        come_back_elsewhere(from, to, "heads_32.gguf", NULL, "kv4", four_bits);
        come_back_elsewhere(from, to, "heads_32.gguf", NULL, "k8v4", four_bits);
        come_back_elsewhere(from, to, "heads_32.gguf", "heads_32_shared.gguf", "kv4,shared=kv8",
                            four_bits);
    }
}

/* To a module and back: a GPU's, or the emulated one's (tests/cuda/meson.build names it). */
Test(saved, from_the_cpu_to_a_module_and_back)
{
    const char *module = getenv("PIPIT_MODULE");

    if (!module) {
        cr_skip_test("PIPIT_MODULE names none");
    }
    /* one of the ways for each commit */
    for (int i = turn_begin(2), n = getenv("PIPIT_PHASE") ? 1 : 2; n > 0; n--, i = 1 - i) {
        const char *from = i ? module : "cpu";
        const char *to = i ? "cpu" : module;

        come_back_elsewhere(from, to, "cache_model.gguf", NULL, "full", 1e-2f);
        come_back_elsewhere(from, to, "cache_model.gguf", NULL, "fp8+h2o:20", 1e-2f);
        come_back_elsewhere(from, to, "arch_qwen2.gguf", NULL, "kv8", 1e-2f); /* centered */
        come_back_elsewhere(from, to, "heads_32.gguf", NULL, "kv4", four_bits);
        come_back_elsewhere(from, to, "heads_32.gguf", NULL, "k8v4", four_bits);
        come_back_elsewhere(from, to, "heads_32.gguf", "heads_32_shared.gguf", "kv4,shared=kv8",
                            four_bits);
    }
}

/* What is whole, but more than the plan holds, is not called broken. */
Test(saved, more_than_the_plan_holds)
{
    static const struct {
        const char *kv; /* planned */
        int32_t ctx;
        const char *says;
    } cases[] = {
        {"full", 128, "that it was saved under"},
        {"sparq:r=4,k=9", 128, "that it was saved under"},
        {"h2o:20", 128, "so many of; start the daemon with the policy that it was saved under"},
        {"h2o:40", 64, "the context is 64"},
    };
    int32_t ids[N_PROMPT];
    struct engine *e = run_engine("cache_model.gguf", "cpu", 128, 1, "h2o:40");

    run_tokens(51, engine_info(e)->n_vocab, ids, N_PROMPT);
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);
    struct saved s = leave(e, &q, 13);

    engine_destroy(e);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_request again = run_request(ids, N_PROMPT, 2);
        struct error err = {0};
        uint64_t handle;

        e = run_engine("cache_model.gguf", "cpu", cases[i].ctx, 1, cases[i].kv);
        again.kv = "h2o:40";
        again.saved = s.p;
        again.saved_size = s.size;
        cr_assert_eq(engine_submit(e, &again, &handle, &err), -ENOMEM, "%s: %s", cases[i].kv,
                     err.text);
        cr_assert_not_null(strstr(err.text, cases[i].says), "%s: %s", cases[i].kv, err.text);
        engine_destroy(e);
    }
    free(s.p);
}

/* A block that holds all of the text (saved between a step's rows and its token) is not used, and
 * the request is like any other: it shares kept pages, too. */
Test(saved, all_of_the_text)
{
    enum { LONG = 200, KNOWN = 4 };
    int32_t ids[LONG];
    struct run whole;
    struct run r;

    run_keep_prefixes = true;
    struct engine *e = run_engine("cache_model.gguf", "cpu", 320, 2, "full,chunk=64");

    run_tokens(51, engine_info(e)->n_vocab, ids, LONG);
    struct engine_request q = run_request(ids, LONG, N_NEW);

    run_submit(e, &q, &whole);
    run_all(e);
    struct saved s = leave(e, &q, KNOWN + 1); /* LONG + KNOWN tokens are in the cache */

    q.saved = s.p;
    q.saved_size = s.size;
    q.forced = whole.tokens;
    q.n_forced = KNOWN;
    run_submit(e, &q, &r);
    free(s.p);
    run_all(e);
    cr_assert_eq(r.reason, ENGINE_LENGTH, "%s", r.error.text);
    cr_assert_eq(r.usage.n_cached, 192);
    cr_assert_eq(r.n_new, N_NEW);
    cr_assert_eq(memcmp(r.tokens, whole.tokens, sizeof(int32_t) * N_NEW), 0);
    run_clear(&r);
    run_clear(&whole);
    engine_destroy(e);
}

/* On ref a prompt's rows and an answer's rows compute alike, so going on equals reading it all. */
Test(saved, a_second_turn)
{
    int32_t ids[100];
    struct run first;
    struct run cold;
    struct run warm;
    struct engine *e = run_engine("cache_model.gguf", "ref", 128, 1, "f32");

    run_tokens(52, engine_info(e)->n_vocab, ids, 100);
    struct engine_request q = run_request(ids, 40, 10);

    run_submit(e, &q, &first);
    run_all(e);
    memcpy(ids + 40, first.tokens, 10 * sizeof(int32_t));
    struct saved s = leave(e, &q, 9);

    q = run_request(ids, 90, 10);
    run_submit(e, &q, &cold);
    run_all(e);
    q.saved = s.p;
    q.saved_size = s.size;
    run_submit(e, &q, &warm);
    run_all(e);
    free(s.p);
    cr_assert_eq(warm.usage.n_cached, 48);
    cr_assert(run_same(&cold, &warm));
    run_clear(&first);
    run_clear(&cold);
    run_clear(&warm);
    engine_destroy(e);
}

Test(saved, a_second_turn_cuts_again)
{
    int32_t ids[100];
    struct run r;
    struct engine *e = run_engine("cache_model.gguf", "ref", 128, 1, "h2o:20,prefill=dense");

    run_tokens(53, engine_info(e)->n_vocab, ids, 100);
    struct engine_request q = run_request(ids, 40, 10);
    struct saved s = leave(e, &q, 5);

    q = run_request(ids, 90, 10);
    q.forced = NULL;
    struct error err = {0};
    uint64_t h;

    q.saved = s.p;
    q.saved_size = s.size;
    cr_assert_eq(engine_submit(e, &q, &h, &err), -EINVAL, "the answer was another");
    cr_assert(strstr(err.text, "differs from the text at token"), "%s", err.text);
    free(s.p);

    q = run_request(ids, 40, 10);
    run_submit(e, &q, &r);
    run_all(e);
    memcpy(ids + 40, r.tokens, 10 * sizeof(int32_t));
    run_clear(&r);
    q = run_request(ids, 40, 10);
    s = leave(e, &q, 9);
    q = run_request(ids, 90, 10);
    q.saved = s.p;
    q.saved_size = s.size;
    run_submit(e, &q, &r);
    run_all(e);
    cr_assert_eq(r.n_new, 10);
    cr_assert_eq(r.usage.n_cached, 48);
    cr_assert_eq(r.usage.n_slots % 20, 0);
    run_clear(&r);
    free(s.p);
    engine_destroy(e);
}

/* Where a store's group has its positions in a block (layout: engine/kv/seq/snapshot.c). */
static int32_t *positions(const struct saved *s, int32_t *ret_n)
{
    const int32_t *at;

    cr_assert_eq(snapshot_positions(s->p, s->size, 1, 0, &at, ret_n), 0);
    cr_assert_not_null(at);
    return (int32_t *)(uintptr_t)at;
}

/* A victim is found among slots with different positions: what has others would end the device. */
Test(saved, positions_that_leave_no_victim_are_refused)
{
    static const char *const kv[] = {"h2o:20", "fp8+keyformer:20", "window:20", "recency:20"};

    for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
        int32_t ids[N_PROMPT];
        struct engine *e = run_engine("cache_model.gguf", "cpu", 128, 1, kv[i]);
        struct error err = {0};
        uint64_t h;

        run_tokens(54, engine_info(e)->n_vocab, ids, N_PROMPT);
        struct engine_request q = run_request(ids, N_PROMPT, 8);
        struct saved s = leave(e, &q, 3);
        struct run r;
        int32_t n;
        int32_t *pos = positions(&s, &n);

        run_submit(e, &q, &r);
        run_all(e);
        q.forced = r.tokens;
        q.n_forced = 3;
        q.saved = s.p;
        q.saved_size = s.size;
        cr_assert_eq(n, 20);
        int32_t first = pos[0];

        pos[0] = -1;
        cr_assert_eq(engine_submit(e, &q, &h, &err), -EBADMSG, "%s", kv[i]);
        cr_assert(strstr(err.text, "a position"), "%s", err.text);
        pos[0] = pos[n - 1];
        err.code = 0;
        cr_assert_eq(engine_submit(e, &q, &h, &err), -EBADMSG, "%s", kv[i]);
        cr_assert(strstr(err.text, "two slots of one position"), "%s", err.text);
        pos[0] = first;
        err.code = 0;
        cr_assert_eq(engine_submit(e, &q, &h, &err), 0, "%s: %s", kv[i], err.text);
        cr_assert_eq(engine_cancel(e, h, ENGINE_CANCELLED), 0);
        free(s.p);
        run_clear(&r);
        engine_destroy(e);
    }
}

/* A block on a disk: what is read of it may fail, or change, at any time. */
struct disk {
    const struct saved *s;
    uint64_t n_reads;
    uint64_t fails_at;
    bool nan; /* slots come as numbers that are none */
    bool loading;
};

static int read_disk(void *arg, uint64_t at, void *buf, size_t n)
{
    struct disk *d = arg;

    cr_assert_leq(at + n, d->s->size);
    memcpy(buf, (const uint8_t *)d->s->p + at, n);
    if (d->nan && d->loading) {
        memset(buf, 0xff, n);
    }
    return d->n_reads++ == d->fails_at ? -EIO : 0;
}

Test(saved, a_block_that_cannot_be_read_ends_its_own_request)
{
    int32_t ids[N_PROMPT];
    struct engine *e = run_engine("cache_model.gguf", "cpu", 128, 2, "fp8+h2o:20");
    struct run whole;
    uint64_t n_refused = 0;
    uint64_t n_ended = 0;
    uint64_t h;

    run_tokens(55, engine_info(e)->n_vocab, ids, N_PROMPT);
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);
    struct saved s = leave(e, &q, 3);

    run_submit(e, &q, &whole);
    run_all(e);
    struct engine_request again = q;

    again.forced = whole.tokens;
    again.n_forced = 3;
    again.saved_read = read_disk;
    again.saved_size = s.size;
    for (uint64_t i = 0;; i++) {
        struct disk d = {.s = &s, .fails_at = i};
        struct error err = {0};
        struct run r;
        struct run beside;

        again.saved_arg = &d;
        memset(&r, 0, sizeof(r));
        again.user = &r;
        if (engine_submit(e, &again, &h, &err)) {
            cr_assert(strstr(err.text, "cannot be read"), "%s", err.text);
            n_refused++;
            continue;
        }
        engine_cancel(e, h, ENGINE_CANCELLED);
        run_all(e);
        d.n_reads = 0;
        run_submit(e, &again, &r);
        run_submit(e, &q, &beside);
        run_all(e);
        cr_assert(r.done);
        cr_assert_eq(memcmp(beside.tokens, whole.tokens, N_NEW * sizeof(int32_t)), 0, "the other");
        run_clear(&beside);
        if (d.n_reads <= i) {
            cr_assert_eq(r.n_new, N_NEW - 3);
            run_clear(&r);
            break;
        }
        cr_assert_eq(r.n_new, 0);
        n_ended++;
        run_clear(&r);
    }
    cr_assert_gt(n_refused, 3);
    cr_assert_gt(n_ended, 3);

    /* Slots may hold anything: an answer follows, of some tokens. */
    struct disk d = {.s = &s, .fails_at = UINT64_MAX, .nan = true};
    struct run r;

    again.saved_arg = &d;
    run_submit(e, &again, &r);
    d.loading = true;
    run_all(e);
    cr_assert(r.done);
    for (int32_t i = 0; i < r.n_new; i++) {
        cr_assert(r.tokens[i] >= 0 && r.tokens[i] < engine_info(e)->n_vocab);
    }
    run_clear(&r);
    run_clear(&whole);
    free(s.p);
    engine_destroy(e);
}

/* A pool's counts, which halving reads as whole numbers. */
Test(saved, a_count_that_no_pool_has_is_refused)
{
    static const float bad[] = {1e30f, 256, -1, 0.5f};
    int32_t ids[N_PROMPT];
    struct engine *e = run_engine_overlay("cache_model.gguf", "cache_skew.gguf", "ref", 128, 1,
                                          "infinigen:count=9,pool=40,victim=counter,exempt=4");
    struct run r;
    uint64_t h;
    int n_refused = 0;

    run_tokens(56, engine_info(e)->n_vocab, ids, N_PROMPT);
    struct engine_request q = run_request(ids, N_PROMPT, 8);
    struct saved s = leave(e, &q, 3);
    uint8_t *bytes = s.p;

    run_submit(e, &q, &r);
    run_all(e);
    q.forced = r.tokens;
    q.n_forced = 3;
    q.saved = s.p;
    q.saved_size = s.size;
    for (size_t at = 0; at + 4 <= s.size; at += 4) {
        struct error err = {0};
        uint8_t was[4];
        struct run bent = {.n_vocab = 1};

        memcpy(was, bytes + at, 4);
        memcpy(bytes + at, &bad[at / 4 % 4], 4);
        q.user = &bent;
        q.logits_rows = 0;
        if (engine_submit(e, &q, &h, &err) == 0) {
            cr_assert_eq(engine_cancel(e, h, ENGINE_CANCELLED), 0);
            run_all(e);
        }
        n_refused += strstr(err.text, "a count of use") != NULL;
        memcpy(bytes + at, was, 4);
    }
    cr_assert_geq(n_refused, 40, "%d", n_refused);
    run_clear(&r);
    free(s.p);
    engine_destroy(e);
}

Test(saved, broken_blocks_are_refused)
{
    int32_t ids[N_PROMPT];
    struct engine *e = run_engine("cache_model.gguf", "ref", 128, 1, "fp8+h2o:20");
    struct error err = {0};
    uint64_t h;

    run_tokens(54, engine_info(e)->n_vocab, ids, N_PROMPT);
    struct engine_request q = run_request(ids, N_PROMPT, 8);
    struct saved s = leave(e, &q, 3);
    struct run r;

    run_submit(e, &q, &r);
    run_all(e);
    q.forced = r.tokens;
    q.n_forced = 3;
    q.saved = s.p;
    /* Cut short anywhere. */
    for (size_t n = 0; n < s.size; n += n < 1200 ? 1 : 97) {
        err.code = 0;
        q.saved_size = n;
        cr_assert_lt(engine_submit(e, &q, &h, &err), 0, "%zu bytes", n);
    }
    /* A byte turned over: refused, or (in K, V, scores, positions) an answer that may differ. */
    q.saved_size = s.size;
    for (int i = 0; i < 300; i++) {
        uint8_t *bytes = s.p;
        uint32_t out[4];

        rng_philox(rng_key_make(77), (uint32_t[4]){(uint32_t)i, 0, 0, 0}, out);
        size_t at = i < 200 ? out[0] % 700 : out[0] % s.size;

        bytes[at] ^= (uint8_t)(1u << (out[1] % 8));
        err.code = 0;
        struct run bent;

        memset(&bent, 0, sizeof(bent));
        q.user = &bent;
        bent.n_vocab = 1;
        bent.logits = NULL;
        q.logits_rows = 0;
        if (engine_submit(e, &q, &h, &err) == 0) {
            run_all(e);
            cr_assert(bent.done);
        }
        bytes[at] ^= (uint8_t)(1u << (out[1] % 8));
    }
    /* Another policy, another model. */
    struct engine *other = run_engine("cache_model.gguf", "ref", 128, 1, "fp8+h2o:24");

    err.code = 0;
    cr_assert_eq(engine_submit(other, &q, &h, &err), -EINVAL);
    cr_assert(strstr(err.text, "was saved under policy fp8,center=auto+sinks:0+h2o:20"), "%s",
              err.text);
    engine_destroy(other);
    other = run_engine_overlay("cache_model.gguf", "cache_swiftkv_2_3.gguf", "ref", 128, 1,
                               "fp8+h2o:20");
    err.code = 0;
    cr_assert_eq(engine_submit(other, &q, &h, &err), -EBADMSG);
    cr_assert(strstr(err.text, "another model or overlay"), "%s", err.text);
    engine_destroy(other);
    free(s.p);
    run_clear(&r);
    engine_destroy(e);
}

/* One is saved in slices when it is done; another one runs, or waits for its sequence, meanwhile.
 */
struct sliced {
    struct engine *e;
    uint64_t handle; /* of the one to be saved */
    struct saved whole;
    uint64_t bytes;
    size_t least;
    int32_t n_others; /* tokens of all others */
};

static void on_event(void *arg, const struct engine_event *ev)
{
    struct sliced *x = arg;
    struct error err = {0};

    if (ev->user != x) {
        x->n_others += ev->type == ENGINE_EV_TOKEN;
    } else if (ev->type == ENGINE_EV_DONE) {
        cr_assert_eq(engine_save(x->e, x->handle, &x->whole.p, &x->whole.size, &err), 0, "%s",
                     err.text);
        cr_assert_eq(engine_save_begin(x->e, x->handle, &x->bytes, &x->least, &err), 0, "%s",
                     err.text);
    }
}

static void save_in_slices(const char *kv, int32_t n_seqs, size_t more)
{
    struct sliced x = {.e = run_engine("cache_model.gguf", "cpu", 128, n_seqs, kv)};
    int32_t ids[N_PROMPT];
    uint64_t other;
    uint8_t *got;
    size_t done = 0;
    size_t n = 1;
    struct error err = {0};

    run_tokens(51, engine_info(x.e)->n_vocab, ids, N_PROMPT);
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

    q.user = &x;
    cr_assert_eq(engine_submit(x.e, &q, &x.handle, &err), 0, "%s", err.text);
    q.user = NULL;
    q.max_tokens = 2 * N_NEW;
    cr_assert_eq(engine_submit(x.e, &q, &other, &err), 0, "%s", err.text);
    while (!x.bytes) {
        int r = engine_step(x.e, on_event, &x);

        cr_assert(r > 0 || x.bytes);
    }
    cr_assert_eq(x.bytes, x.whole.size);
    got = malloc(x.bytes + x.least + more);
    cr_assert_eq(engine_save_next(x.e, x.handle, got, 0, &n, &err), -ENOBUFS);
    for (int32_t others = x.n_others; n > 0; others = x.n_others) {
        int r = engine_step(x.e, on_event, &x);

        if (n_seqs == 1) {
            cr_assert(r == 0 && x.n_others == 0, "it has no seq, and nothing is to be done");
        }
        cr_assert(n_seqs == 1 || r == 0 || x.n_others > others || others == 0);
        n = 0;
        cr_assert_eq(engine_save_next(x.e, x.handle, got + done, x.least + more, &n, &err), 0, "%s",
                     err.text);
        done += n;
        cr_assert_leq(done, x.bytes);
    }
    cr_assert_eq(done, x.bytes);
    cr_assert_eq(memcmp(got, x.whole.p, done), 0, "%s, slices of %zu", kv, x.least + more);
    engine_save_end(x.e, x.handle);
    cr_assert_eq(engine_save_next(x.e, x.handle, got, 1, &n, &err), -ENOENT);
    while (engine_step(x.e, on_event, &x) > 0) {
    }
    cr_assert_eq(x.n_others, 2 * N_NEW);
    free(got);
    free(x.whole.p);
    engine_destroy(x.e);
}

Test(saved, slices)
{
    static const char *const kv[] = {"full", "fp8+keyformer:24", "kv8+sinks:2+window:30", "topv:8"};

    for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
        save_in_slices(kv[i], 2, 0);
        save_in_slices(kv[i], 2, 37);
        save_in_slices(kv[i], 1, 4096);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* engine/kv/plan/plan.h and geometry.h: bytes known by arithmetic, the share that each axis leaves,
 * refusals with numbers. The shapes are SmolLM2-135M's: 30 layers, 3 K and V heads of 64, context
 * 8192. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/plan/plan.h"

enum { CTX = 8192, LAYERS = 30 };

static const uint64_t full = UINT64_C(30) * 2 * 192 * 2 * 8192;

static uint64_t extra_seq_bytes;

static int32_t
    joined; /* tokens of a prompt that a step of the next plans should take; 0: a chunk */

/* A MiB, which no rounding hides, for each 512 tokens of a prompt beyond the first. */
static uint64_t no_scratch(const void *arg, int32_t ctx, int32_t n_seqs, int32_t prompt_rows,
                           uint64_t *ret_host)
{
    uint64_t more = (uint64_t)(prompt_rows - 512) / 512 << 20;

    *ret_host = 600 + more / 4;
    return 1000 + more;
}

static uint64_t device_available; /* of the next plans; 0: one memory */
static uint64_t limit;            /* of the memory, as the user set it */

static int make_heads(int32_t n_k, int32_t n_v, const char *backend, const char *kv,
                      int32_t n_stores, int32_t ctx, int32_t n_seqs, uint64_t available,
                      struct plan *ret, struct error *e)
{
    static const struct ops_weight skew;
    struct geometry_store stores[LAYERS];
    struct geometry geometry = {0};
    struct plan_input in = {
        .geometry = {.stores = stores,
                     .n_stores = n_stores,
                     .ctx = ctx,
                     .n_seqs = n_seqs,
                     .max_chunk = 512,
                     .hidden_bytes = 576 * 4},
        .ctx_model = CTX,
        .weights_bytes = 5000,
        .mapped_bytes = 7000,
        .index_bytes = 200,
        .extra_bytes = 300,
        .extra_seq_bytes = extra_seq_bytes,
        .available_bytes = available,
        .device_available_bytes = device_available,
        .limit_bytes = limit,
        .most_seqs = 8,
        .joined_rows = joined,
        .scratch = no_scratch,
    };

    for (int32_t i = 0; i < LAYERS; i++) {
        stores[i] = (struct geometry_store){.layer = i,
                                            .n_k = n_k,
                                            .n_v = n_v,
                                            .k_dim = 64,
                                            .v_dim = 64,
                                            .deep = n_stores < LAYERS && i == n_stores - 1,
                                            .shared = n_stores < LAYERS && i == n_stores - 1,
                                            .skew = i >= 2 ? &skew : NULL};
    }
    cr_assert_eq(backend_find(backend, &in.geometry.ops, e), 0);
    cr_assert_eq(policy_parse_mix(kv, &in.geometry.mix, e), 0, "%s", e->text);
    int r = plan_make(&in, ret, &geometry, e);

    geometry_finish(&geometry);
    return r;
}

static int make(const char *kv, int32_t n_stores, int32_t ctx, int32_t n_seqs, uint64_t available,
                struct plan *ret, struct error *e)
{
    return make_heads(3, 3, "ref", kv, n_stores, ctx, n_seqs, available, ret, e);
}

static struct plan plan_of(const char *kv, int32_t n_stores)
{
    struct plan p;
    struct error e = {0};

    cr_assert_eq(make(kv, n_stores, CTX, 1, UINT64_MAX, &p, &e), 0, "%s: %s", kv, e.text);
    return p;
}

static double share(uint64_t bytes)
{
    return 100.0 * (double)bytes / (double)full;
}

Test(plan, cache_bytes_are_exact)
{
    cr_assert_eq(full, 188743680);
    cr_assert_eq(plan_of("full", 30).kv_bytes, full);
    cr_assert_eq(plan_of("f32", 30).kv_bytes, 2 * full);
    cr_assert_eq(plan_of("bf16", 30).kv_bytes, full);
    cr_assert_eq(plan_of("fp8", 30).kv_bytes, UINT64_C(30) * 3 * 2 * (64 + 2) * 8192);
    cr_assert_eq(plan_of("kv8", 30).kv_bytes, plan_of("fp8", 30).kv_bytes);
    cr_assert_eq(plan_of("q8_0", 30).kv_bytes * 32, plan_of("full", 30).kv_bytes * 17);
    cr_assert_eq(plan_of("q4_0", 30).kv_bytes * 32, plan_of("full", 30).kv_bytes * 9);
    cr_assert_eq(plan_of("kv4", 30).kv_bytes * 32, plan_of("full", 30).kv_bytes * 9);
    cr_assert_float_eq(share(plan_of("fp8", 30).kv_bytes), 51.6, 0.05);
    /* SwiftKV split 15 with one group: 16 stores; split 14 with one group of 16: 15. */
    cr_assert_float_eq(share(plan_of("full", 16).kv_bytes), 53.3, 0.05);
    cr_assert_float_eq(share(plan_of("full", 15).kv_bytes), 50.0, 0.05);
    cr_assert_float_eq(share(plan_of("fp8+keyformer:50%", 15).kv_bytes), 12.9, 0.05);
    cr_assert_float_eq(share(plan_of("kv4", 15).kv_bytes), 14.1, 0.05);
    cr_assert_eq(plan_of("kv4,shared=kv8", 15).kv_bytes,
                 UINT64_C(3) * 2 * (14 * 36 + (64 + 2)) * 8192);
    cr_assert_eq(plan_of("kv4,shared=kv8", 30).kv_bytes, plan_of("kv4", 30).kv_bytes);
}

Test(plan, sums)
{
    struct plan p = plan_of("full", 30);

    cr_assert_eq(p.lane_bytes, 300);
    cr_assert_eq(p.weights_bytes, 5000);
    cr_assert_eq(p.policy_bytes, 0);
    cr_assert_eq(p.prefill_peak_bytes, 0);
    cr_assert_eq(p.index_bytes, 200);
    cr_assert_gt(p.scratch_bytes, 1000, "the cache's tables are in it");
    cr_assert_eq(p.total_bytes, p.weights_bytes + p.kv_bytes + p.policy_bytes +
                                    p.prefill_peak_bytes + p.scratch_bytes + p.index_bytes +
                                    p.lane_bytes);
    cr_assert_eq(p.n_classes, 1);
    cr_assert_eq(p.page_classes[0].n_pages, 30 * 3 * 128);
    cr_assert_eq(p.page_classes[0].page_bytes, 64 * 256);
    cr_assert_str_eq(p.policy, "f16+full,chunk=512");
}

Test(plan, policy_state_and_peak)
{
    struct plan p = plan_of("keyformer:50%,prefill=dense", 30);
    uint64_t slots = UINT64_C(30) * 3 * 4096;

    cr_assert_eq(p.kv_bytes, full / 2);
    /* Eight bytes a slot and head group, and a victim's index. */
    cr_assert_geq(p.policy_bytes, slots * 8);
    cr_assert_leq(p.policy_bytes, slots * 8 + 30 * 64);
    /* Dense: the other half of the pages, and positions and scores of a whole prompt. */
    cr_assert_eq(p.prefill_peak_bytes, full / 2 + UINT64_C(30) * 3 * 8192 * 8);
    /* Bounded: one chunk above the budget. */
    p = plan_of("keyformer:50%,prefill=bounded", 30);
    cr_assert_eq(p.prefill_peak_bytes, full / 16 + UINT64_C(30) * 3 * (4096 + 512) * 8);
    /* Layered, the default: one store's, and the hidden states. */
    p = plan_of("keyformer:50%", 30);
    cr_assert_eq(p.prefill_peak_bytes,
                 full / 60 + UINT64_C(3) * 8192 * 8 + UINT64_C(8192) * 576 * 4);
    p = plan_of("window:1024", 30);
    cr_assert_eq(p.kv_bytes, full / 8);
    cr_assert_leq(p.policy_bytes, UINT64_C(30) * (3 * 1024 * 4 + 64));
}

Test(plan, unequal_heads)
{
    static const char *const backends[] = {"ref", "cpu"};
    struct plan sigma;
    struct plan gqa;
    struct error e = {0};

    for (int i = 0; i < 2; i++) { /* 4 K and 16 V heads: 20 of 32 */
        cr_assert_eq(make_heads(4, 16, backends[i], "full", 26, CTX, 1, UINT64_MAX, &sigma, &e), 0);
        cr_assert_eq(make_heads(16, 16, backends[i], "full", 26, CTX, 1, UINT64_MAX, &gqa, &e), 0);
        cr_assert_eq(sigma.kv_bytes * 8, gqa.kv_bytes * 5, "%s: not 37.5 %% less", backends[i]);
    }
}

Test(plan, copies_of_k)
{
    struct plan p;
    struct error e = {0};

    cr_assert_eq(make_heads(3, 3, "cpu", "sparq:layout=2k", 30, CTX, 1, UINT64_MAX, &p, &e), 0);
    cr_assert_eq(p.kv_bytes, full / 2 * 3);
    cr_assert(strstr(p.page_classes[0].name, "K twice"), "%s", p.page_classes[0].name);
    cr_assert_eq(make_heads(3, 3, "cpu", "sparq:layout=rank8", 30, CTX, 1, UINT64_MAX, &p, &e), 0);
    cr_assert_eq(p.kv_bytes, full / 2 * 3 + UINT64_C(30) * 3 * (64 + 2) * 8192);
    cr_assert_eq(make_heads(3, 3, "cpu", "sparq", 30, CTX, 1, UINT64_MAX, &p, &e), 0);
    cr_assert_eq(p.kv_bytes, full);
}

/* 19 of 64 dims of the stores that can be predicted. */
Test(plan, partial_keys)
{
    static const char *const backends[] = {"ref", "cpu"};
    uint64_t heads = UINT64_C(28) * 3 * 8192;
    struct plan p;
    struct error e = {0};

    for (int i = 0; i < 2; i++) {
        cr_assert_eq(make_heads(3, 3, backends[i], "infinigen", 30, CTX, 1, UINT64_MAX, &p, &e), 0);
        cr_assert_eq(p.kv_bytes, full + heads * 19 * 2);
        cr_assert_eq(make_heads(3, 3, backends[i], "f32+infinigen", 30, CTX, 1, UINT64_MAX, &p, &e),
                     0);
        cr_assert_eq(p.kv_bytes, 2 * full + heads * 19 * 4);
        cr_assert_eq(
            make_heads(3, 3, backends[i], "infinigen:partial8=on", 30, CTX, 1, UINT64_MAX, &p, &e),
            0);
        cr_assert_eq(p.kv_bytes, full + heads * (19 + 2), "%s", backends[i]);
        cr_assert(strstr(p.page_classes[1].name, " + fp8 1x19") ||
                      strstr(p.page_classes[0].name, " + fp8 1x19"),
                  "%s", p.page_classes[0].name);
        cr_assert_eq(make_heads(3, 3, backends[i], "infinigen=50%;infinigen:partial8=on=50%", 30,
                                CTX, 2, UINT64_MAX, &p, &e),
                     0, "%s", e.text);
        cr_assert_eq(p.n_classes, 3);
    }
}

Test(plan, what_queries_read)
{
    struct plan p = plan_of("sparq:r=16", 30);
    struct error e = {0};

    cr_assert_eq(p.kv_bytes, full);
    cr_assert_eq(p.policy_bytes, 0, "no mean where queries share heads");
    p = plan_of("sparq:r=16,mean=on", 30);
    cr_assert_eq(p.policy_bytes, UINT64_C(30) * 3 * 64 * 4);
    p = plan_of("topv:100", 30);
    cr_assert_eq(p.kv_bytes, full);
    cr_assert_eq(p.policy_bytes, 0);
    cr_assert_eq(make("sparq:r=65", 30, CTX, 1, UINT64_MAX, &p, &e), -EINVAL);
    cr_assert(strstr(e.text, "r=65, but keys have 64 dims"), "%s", e.text);
}

/* Split 14 of 30, one group of 16: 15 stores, of which one is deep. */
Test(plan, swiftkv_fp8_keyformer_in_each_way_of_reading_a_prompt)
{
    const uint64_t page = UINT64_C(2) * 64 * (64 + 2);
    const uint64_t groups = UINT64_C(15) * 3;
    struct {
        const char *kv;
        uint64_t peak;
    } cases[] = {
        {"fp8+keyformer:50%,prefill=dense", groups * (64 * page + 8192 * 8)},
        {"fp8+keyformer:50%,prefill=bounded", groups * (8 * page + (4096 + 512) * 8)},
        /* one store at a time, the prompt's hidden states, and 64 rows that are observed */
        {"fp8+keyformer:50%,prefill=layered",
         3 * (64 * page + 8192 * 8) + (UINT64_C(8192) + 64) * 576 * 4},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct plan p = plan_of(cases[i].kv, 15);

        cr_assert_float_eq(share(p.kv_bytes), 12.9, 0.05);
        cr_assert_eq(p.kv_bytes, groups * 64 * page);
        cr_assert_leq(p.policy_bytes, groups * 4096 * 8 + 15 * 64);
        cr_assert_eq(p.prefill_peak_bytes, cases[i].peak, "%s: %zu", cases[i].kv,
                     (size_t)p.prefill_peak_bytes);
    }
}

Test(plan, refusal_offers_only_what_fits)
{
    struct plan p;
    struct error e = {0};

    /* Not one sequence of that context, but shorter ones. */
    cr_assert_eq(make("full", 30, CTX, 2, full, &p, &e), -ENOMEM);
    cr_assert(strstr(e.text, "a context of") && !strstr(e.text, ", or "), "%s", e.text);
    /* Shorter ones and fewer. */
    e = (struct error){0};
    cr_assert_eq(make("full", 30, CTX, 4, 2 * full, &p, &e), -ENOMEM);
    cr_assert(strstr(e.text, "with 4 sequences, or 1 sequence with a context of 8192 would fit"),
              "%s", e.text);
    /* Nothing: the rest alone is too much. */
    e = (struct error){0};
    cr_assert_eq(make("full", 30, CTX, 1, 10000, &p, &e), -ENOMEM);
    cr_assert_eq(p.max_ctx, 0);
    cr_assert_eq(p.max_sequences, 0);
    cr_assert(strstr(e.text, "no context fits with 1 sequence: even one of 2 tokens needs"), "%s",
              e.text);
    cr_assert(!strstr(e.text, "context of 0"), "%s", e.text);

    struct plan q;

    e = (struct error){0};
    cr_assert_eq(make("full", 30, 2, 1, p.least_bytes, &q, &e), 0, "%s", e.text);
    cr_assert_eq(make("full", 30, 2, 1, p.least_bytes - 1, &q, &e), -ENOMEM);
}

/* Without a number a plan has as many sequences as half of the free memory holds, or all of a
 * limit, and one where that is too little. */
Test(plan, sequences_follow_from_memory)
{
    const uint64_t rest = 1 << 20; /* more than all but the pages */
    const struct {
        uint64_t free;
        bool limited;
        int32_t n_seqs;
    } cases[] = {
        {2 * (3 * full + rest), false, 3},
        {2 * (3 * full), false, 2},
        {UINT64_MAX, false, 8},
        {20 * full, false, 8},
        {full + rest, false, 1},
        {3 * full + rest, true, 3},
        {2 * full, true, 1},
    };
    struct error e = {0};
    struct plan p;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        limit = cases[i].limited ? cases[i].free : 0;
        cr_assert_eq(make("full", 30, CTX, 0, cases[i].free, &p, &e), 0, "%s", e.text);
        cr_assert_eq(p.n_seqs, cases[i].n_seqs, "case %zu: %d", i, p.n_seqs);
        cr_assert_eq(p.kv_bytes, (uint64_t)p.n_seqs * full);
        cr_assert_eq(p.available_bytes, cases[i].free);
        cr_assert_geq(p.max_sequences, p.n_seqs);
    }
    limit = 0;
    cr_assert_eq(make("full", 30, 0, 0, full / 2, &p, &e), 0, "%s", e.text);
    cr_assert(p.ctx_is_cut);
    cr_assert_eq(p.n_seqs, 1, "a context that does not fit is not divided");
    cr_assert_eq(make("full", 30, CTX, 0, full / 2, &p, &e), -ENOMEM);
    cr_assert_eq(p.n_seqs, 1);
}

Test(plan, refusal_has_numbers)
{
    struct plan p;
    struct error e = {0};

    cr_assert_eq(make("full", 30, CTX, 2, full, &p, &e), -ENOMEM);
    cr_assert_not(p.fits);
    cr_assert_eq(p.max_sequences, 0, "the rest takes some of it");
    cr_assert_gt(p.max_ctx, 4000);
    cr_assert_lt(p.max_ctx, 4096);
    cr_assert(strstr(e.text, "would fit"), "%s", e.text);

    struct plan q;

    e.code = 0;
    cr_assert_eq(make("full", 30, p.max_ctx, 2, full, &q, &e), 0, "%s", e.text);
    cr_assert_neq(make("full", 30, p.max_ctx + 1, 2, full, &q, &e), 0);
    e.code = 0;
    /* Context 0 takes what fits. */
    cr_assert_eq(make("full", 30, 0, 2, full, &q, &e), 0);
    cr_assert_eq(q.ctx, p.max_ctx);
    cr_assert(q.ctx_is_cut);
    cr_assert_not(p.ctx_is_cut, "asked for");
    cr_assert_eq(make("full", 30, 0, 2, 10000, &q, &e), -ENOMEM);
}

Test(plan, a_device_of_its_own)
{
    struct plan p = plan_of("full", 30);
    struct error e = {0};
    uint64_t device = p.total_bytes - p.host_bytes;
    uint64_t host = p.host_bytes + p.mapped_bytes;

    cr_assert_gt(p.host_bytes, 600 + 200 + 300, "scratch, index, lanes; the cache's tables");
    cr_assert_lt(p.host_bytes, 600 + 200 + 300 + 200000);
    device_available = device;
    cr_assert_eq(make("full", 30, CTX, 1, host, &p, &e), 0, "%s", e.text);
    cr_assert_neq(make("full", 30, CTX, 1, host - 1, &p, &e), 0, "the host lacks a byte");
    cr_assert(strstr(e.text, "of the device") && strstr(e.text, "of the host's"), "%s", e.text);
    device_available = device - 1;
    cr_assert_neq(make("full", 30, CTX, 1, UINT64_MAX, &p, &e), 0, "the device lacks a byte");
    cr_assert_not(p.fits);
    cr_assert_gt(p.max_ctx, CTX - 100);
    cr_assert_lt(p.max_ctx, CTX);
    device_available = 0;
}

static char *printed(const struct plan *p)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    plan_print_table(p, f);
    (void)fclose(f);
    return text;
}

/* A step takes several chunks of a prompt where memory is left for it, to the byte; else one, with
 * the same context and as many sequences. */
Test(plan, chunks_are_joined_where_memory_is_left)
{
    const uint64_t more = 3 << 20; /* of no_scratch(), a quarter of it the host's */
    struct error e = {0};
    struct plan one = plan_of("full", 30);
    struct plan p;

    cr_assert_eq(one.prompt_rows, 512);
    cr_assert_eq(one.joined_rows, 0);
    uint64_t all = one.total_bytes + one.mapped_bytes + more;

    joined = 2048;
    cr_assert_eq(make("full", 30, CTX, 1, all, &p, &e), 0, "%s", e.text);
    cr_assert_eq(p.prompt_rows, 2048);
    cr_assert_eq(p.total_bytes, one.total_bytes + more);
    cr_assert_eq(p.scratch_bytes, one.scratch_bytes + more);
    cr_assert_eq(p.host_bytes, one.host_bytes + more / 4);
    cr_assert_eq(p.total_bytes, p.weights_bytes + p.kv_bytes + p.policy_bytes +
                                    p.prefill_peak_bytes + p.scratch_bytes + p.index_bytes +
                                    p.lane_bytes);
    char *text = printed(&p);

    cr_assert(strstr(text, "prompts are read by 2048 tokens a step while"), "%s", text);
    free(text);
    cr_assert_eq(make("full", 30, CTX, 1, all - 1, &p, &e), 0, "%s", e.text);
    cr_assert_eq(p.prompt_rows, 512, "a byte is lacking");
    cr_assert_eq(p.total_bytes, one.total_bytes);
    text = printed(&p);
    cr_assert(strstr(text, "by 512 tokens a step; 2048, which is faster, takes 3.0 MiB more"), "%s",
              text);
    free(text);

    device_available = one.total_bytes - one.host_bytes + more - more / 4;
    cr_assert_eq(make("full", 30, CTX, 1, one.host_bytes + one.mapped_bytes + more / 4, &p, &e), 0);
    cr_assert_eq(p.prompt_rows, 2048);
    cr_assert_eq(make("full", 30, CTX, 1, one.host_bytes + one.mapped_bytes, &p, &e), 0);
    cr_assert_eq(p.prompt_rows, 512, "the host lacks some");
    device_available--;
    cr_assert_eq(make("full", 30, CTX, 1, UINT64_MAX, &p, &e), 0);
    cr_assert_eq(p.prompt_rows, 512, "the device lacks a byte");
    device_available = 0;

    /* A context and sequences that follow from memory are those of steps of a chunk. */
    struct plan q;

    for (int32_t n_seqs = 0; n_seqs <= 2; n_seqs += 2) {
        int32_t ctx = n_seqs ? 0 : CTX;

        joined = 0;
        cr_assert_eq(make("full", 30, ctx, n_seqs, full, &p, &e), n_seqs ? 0 : -ENOMEM);
        joined = 2048;
        cr_assert_eq(make("full", 30, ctx, n_seqs, full, &q, &e), n_seqs ? 0 : -ENOMEM);
        cr_assert_eq(q.ctx, p.ctx);
        cr_assert_eq(q.n_seqs, p.n_seqs);
        cr_assert_eq(q.max_ctx, p.max_ctx);
        cr_assert_eq(q.max_sequences, p.max_sequences);
        cr_assert_eq(q.prompt_rows, 512);
    }
    /* No more rows than there can be tokens of prompts. */
    cr_assert_eq(make("full", 30, 700, 2, UINT64_MAX, &p, &e), 0, "%s", e.text);
    cr_assert_eq(p.prompt_rows, 1400);
    cr_assert_eq(make("full", 30, 700, 1, UINT64_MAX, &p, &e), 0, "%s", e.text);
    cr_assert_eq(p.prompt_rows, 512);
    joined = 0;
}

Test(plan, mix_shares_the_bytes)
{
    struct plan p;
    struct error e = {0};

    cr_assert_eq(make("full=60%;fp8+keyformer:50%=40%", 30, CTX, 4, UINT64_MAX, &p, &e), 0, "%s",
                 e.text);
    cr_assert_eq(p.n_classes, 2);
    cr_assert_leq(p.kv_bytes, 4 * full);
    cr_assert_gt(p.kv_bytes, 4 * full - 200000, "rounded down to pages");
    cr_assert_eq(make("full=90%;f32=10%", 30, CTX, 2, UINT64_MAX, &p, &e), -ENOMEM);
    cr_assert(strstr(e.text, "does not hold one sequence"));
    /* What is said to do does, and what cannot be is not said: a sequence of f32 takes as much as
     * two full ones, all that there is. */
    cr_assert(strstr(e.text, "policy 2: it would with 20 sequences instead of 2"), "%s", e.text);
    e.code = 0;
    cr_assert_eq(make("full=90%;f32=10%", 30, CTX, 20, UINT64_MAX, &p, &e), 0, "%s", e.text);
    cr_assert_eq(make("full=90%;f32=10%", 30, CTX, 3, UINT64_MAX, &p, &e), -ENOMEM);
    cr_assert(strstr(e.text, "would with 67%, or with 20 sequences instead of 3"), "%s", e.text);
    e.code = 0;
    cr_assert_eq(make("full=33%;f32=67%", 30, CTX, 3, UINT64_MAX, &p, &e), -ENOMEM);
    cr_assert(strstr(e.text, "under policy 1: it would with 34%, or"), "%s", e.text);
}

Test(plan, prints)
{
    struct plan p = plan_of("full", 30);
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    plan_print_json(&p, f);
    plan_print_table(&p, f);
    (void)fclose(f);
    cr_assert(strstr(text, "\"kv_bytes\": 188743680"), "%s", text);
    cr_assert(strstr(text, "\"fits\": true"));
    cr_assert(strstr(text, "keys and values") && strstr(text, "\"tier_bytes\": 0"), "%s", text);
    cr_assert_null(strstr(text, "partial keys"), "a row of nothing: %s", text);
    free(text);
}

/* What the process around the engine holds for each sequence. */
Test(plan, the_callers_part)
{
    struct plan p;
    struct plan with;
    struct error e;

    cr_assert_eq(make("full", LAYERS, CTX, 3, UINT64_MAX, &p, &e), 0, "%s", e.text);
    extra_seq_bytes = 1000;
    cr_assert_eq(make("full", LAYERS, CTX, 3, UINT64_MAX, &with, &e), 0, "%s", e.text);
    extra_seq_bytes = 0;
    cr_expect_eq(p.lane_bytes, 300);
    cr_expect_eq(with.lane_bytes, 3300);
    cr_expect_eq(with.total_bytes, p.total_bytes + 3000);
}

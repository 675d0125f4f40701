/* SPDX-License-Identifier: Apache-2.0 */
/* synthetic prompts (engine_request.synthetic): the cache holds what a read prompt of that length
 * would leave, decoding goes on from there, and wrong uses are refused. engine_work(): bytes known
 * by arithmetic. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "tests/unit/engine_run.h"

static void same_counts(const char *backend, const char *overlay, const char *kv)
{
    int32_t ids[300];
    struct run r[2];
    struct engine *e = run_engine_overlay("cache_model.gguf", overlay, backend, 300, 1, kv);
    struct engine_request q = run_request(ids, 200, 40);

    q.logits_rows = 0;
    run_tokens(61, engine_info(e)->n_vocab, ids, 300);
    q.forced = ids + 200;
    q.n_forced = 1;
    for (int i = 0; i < 2; i++) {
        q.synthetic = i == 1;
        run_submit(e, &q, &r[i]);
        run_all(e);
        cr_assert(r[i].done && r[i].reason == ENGINE_LENGTH);
        run_clear(&r[i]);
    }
    cr_assert_eq(r[1].usage.n_new, r[0].usage.n_new);
    cr_assert_eq(r[1].usage.kv_bytes, r[0].usage.kv_bytes, "%s: %zu and %zu bytes", kv,
                 (size_t)r[1].usage.kv_bytes, (size_t)r[0].usage.kv_bytes);
    cr_assert_eq(r[1].usage.n_slots, r[0].usage.n_slots);
    engine_destroy(e);
}

Test(synthetic, holds_what_a_read_prompt_leaves)
{
    static const char *const kv[] = {"full", "kv8", "keyformer:50%,min=2", "fp8+h2o:64",
                                     "sinks:4+window:60"};

    for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
        same_counts("ref", NULL, kv[i]);
        same_counts("cpu", NULL, kv[i]);
        same_counts("cpu", "cache_swiftkv_2_3.gguf", kv[i]);
    }
}

Test(synthetic, wrong_uses_are_refused)
{
    int32_t ids[20] = {0};
    uint64_t handle;
    struct error err = {0};
    struct engine *e = run_engine("cache_model.gguf", "ref", 64, 1, "full");
    struct engine_request q = run_request(ids, 10, 4);

    q.synthetic = true;
    cr_assert_eq(engine_submit(e, &q, &handle, &err), -EINVAL, "the first new token is unknown");
    engine_destroy(e);
}

/* Twice the tokens are twice the bytes; half of the slots in about half of the bits are a quarter.
 */
Test(synthetic, work_of_a_step)
{
    struct engine_work w;
    struct error err = {0};
    struct engine *e = run_engine("cache_model.gguf", "ref", 256, 2, "full=50%;fp8+h2o:64=50%");

    cr_assert_eq(engine_work(e, "full", 100, 128, &w, &err), 0, "%s", err.text);
    uint64_t full = w.kv_bytes;

    cr_assert_eq(w.state_bytes, 0);
    cr_assert_gt(w.weight_bytes, 0);
    cr_assert_gt(w.prompt_flops, 0);
    cr_assert_eq(engine_work(e, "full", 100, 256, &w, &err), 0, "%s", err.text);
    cr_assert_eq(w.kv_bytes, 2 * full);
    cr_assert_eq(engine_work(e, "fp8+h2o:64", 100, 128, &w, &err), 0, "%s", err.text);
    cr_assert_lt(w.kv_bytes, full / 2, "64 of 128 slots, and in 8 bits");
    cr_assert_gt(w.state_bytes, 0);
    cr_assert_neq(engine_work(e, "kv8", 100, 128, &w, &err), 0);
    engine_destroy(e);
}

/* Six layers of two head groups, one K and one V head of 8 dims in f32: of 128 slots K is 8 dims of
 * 8 lines, V (padded to 16 dims) a line a slot. */
enum { N_LAYERS = 6, N_GROUPS = 2, K_LINES = 64, V_LINES = 128, PART_LINES = 4 * 8 };

static struct engine_work lines_of(const char *const *overlays, size_t n_overlays, const char *plan,
                                   const char *kv)
{
    struct engine_config c;
    struct engine_work w;
    struct engine *e;
    struct error err = {0};
    char model[256];

    (void)snprintf(model, sizeof(model), "%s", run_data("cache_model.gguf"));
    engine_config_default(&c);
    c.model_path = model;
    c.overlay_paths = overlays;
    c.n_overlays = n_overlays;
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = 256;
    c.kv = plan;
    cr_assert_eq(engine_create(&c, NULL, NULL, &e, &err), 0, "%s", err.text);
    cr_assert_eq(engine_work(e, kv, 100, 128, &w, &err), 0, "%s: %s", kv, err.text);
    engine_destroy(e);
    return w;
}

static void reads_lines(const char *kv, const struct engine_work *w, double lines)
{
    cr_assert_lt(fabs((double)w->kv_bytes - 64 * lines), 1, "%s: %.2f lines, wanted %.2f", kv,
                 (double)w->kv_bytes / 64, lines);
}

Test(synthetic, work_of_queries_that_select)
{
    const int heads = N_LAYERS * N_GROUPS;
    struct engine_work w = lines_of(NULL, 0, "f32", "f32");

    reads_lines("full", &w, heads * (K_LINES + V_LINES));
    cr_assert_eq(w.state_bytes, 0);
    w = lines_of(NULL, 0, "f32", "f32+topv:16");
    reads_lines("topv", &w, heads * (K_LINES + 16));
    w = lines_of(NULL, 0, "f32+sparq:r=2,k=16,local=1,layout=2k",
                 "f32+sparq:r=2,k=16,local=1,layout=2k,mean=off");
    reads_lines("sparq, 2k", &w, heads * (2 * 8 + 16 + 16));
    cr_assert_eq(w.state_bytes, 0);
    /* with it a sum of V a head, read and written */
    w = lines_of(NULL, 0, "f32+sparq:mean=on,r=2", "f32+sparq:r=8,k=16,local=1,mean=on");
    reads_lines("sparq of all dims", &w, heads * (K_LINES + 16));
    cr_assert_eq(w.state_bytes, (uint64_t)heads * 2 * 8 * sizeof(float));
    /* a plan of 64 slots: K 4 lines a dim */
    w = lines_of(NULL, 0, "f32+window:64+topv:16", "f32+window:64+topv:16");
    reads_lines("window and topv", &w, heads * (K_LINES / 2 + 16));
}

Test(synthetic, work_of_what_is_chosen_ahead)
{
    char skew[256];
    char deep[256];
    const char *overlays[2] = {deep, skew};
    const char *kv = "f32+infinigen:count=7,partial=0.5";
    double empty = 1;
    struct engine_work full;
    struct engine_work w;

    /* 7 of 127 beside the row's own slot; a line of 16 slots has none of them */
    for (int i = 0; i < 16; i++) {
        empty *= (120.0 - i) / (127.0 - i);
    }
    double some = 8 * (1 + 7 * (1 - empty)) + 8;

    (void)snprintf(skew, sizeof(skew), "%s", run_data("cache_skew.gguf"));
    full = lines_of(&overlays[1], 1, "f32", "f32");
    w = lines_of(&overlays[1], 1, kv, kv);
    reads_lines(kv, &w, N_GROUPS * (2 * (K_LINES + V_LINES) + 4 * (PART_LINES + some)));
    cr_assert_eq(w.weight_bytes, full.weight_bytes + 4 * 32 * 32 * sizeof(float),
                 "four query projections twice");
    /* layers 2, 3 and 4 share a store: each reads what was chosen once */
    (void)snprintf(skew, sizeof(skew), "%s", run_data("cache_skew_2_3.gguf"));
    (void)snprintf(deep, sizeof(deep), "%s", run_data("cache_swiftkv_2_3.gguf"));
    full = lines_of(overlays, 2, "f32", "f32");
    reads_lines("groups of layers", &full, N_LAYERS * N_GROUPS * (K_LINES + V_LINES));
    w = lines_of(overlays, 2, kv, kv);
    reads_lines(kv, &w, N_GROUPS * (2 * (K_LINES + V_LINES) + 4 * some + 2 * PART_LINES));
    cr_assert_eq(w.weight_bytes, full.weight_bytes + 2 * 32 * 32 * sizeof(float));
}

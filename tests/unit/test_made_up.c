/* SPDX-License-Identifier: Apache-2.0 */
/* Made-up prompts (engine_request.made_up): the cache holds what a read prompt of that length would
 * leave, decoding goes on from there, and wrong uses are refused. engine_work(): bytes known by
 * arithmetic. */

#include <criterion/criterion.h>
#include <errno.h>

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
        q.made_up = i == 1;
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

Test(made_up, holds_what_a_read_prompt_leaves)
{
    static const char *const kv[] = {"full", "kv8", "keyformer:50%,min=2", "fp8+h2o:64",
                                     "sinks:4+window:60"};

    for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
        same_counts("ref", NULL, kv[i]);
        same_counts("cpu", NULL, kv[i]);
        same_counts("cpu", "cache_swiftkv_2_3.gguf", kv[i]);
    }
}

Test(made_up, wrong_uses_are_refused)
{
    int32_t ids[20] = {0};
    uint64_t handle;
    struct error err = {0};
    struct engine *e = run_engine("cache_model.gguf", "ref", 64, 1, "full");
    struct engine_request q = run_request(ids, 10, 4);

    q.made_up = true;
    cr_assert_eq(engine_submit(e, &q, &handle, &err), -EINVAL, "the first new token is unknown");
    engine_destroy(e);
}

/* Twice the tokens are twice the bytes; half of the slots in about half of the bits are a quarter.
 */
Test(made_up, work_of_a_step)
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

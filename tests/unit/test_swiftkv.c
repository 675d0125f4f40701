/* SPDX-License-Identifier: Apache-2.0 */
/* SwiftKV and AcrossKV on models made here: what must be equal is equal to the bit, groups hold the
 * stores they should, and files that do not fit are refused by name. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv/plan/plan.h"
#include "tests/unit/engine_run.h"
#include "tests/unit/tiny_model.h"

static char dir[] = "/tmp/test-swiftkv-XXXXXX";
static char base[64];
static char overlay[64];

static void set_up(void)
{
    cr_assert(mkdtemp(dir));
    (void)snprintf(base, sizeof(base), "%s/base.gguf", dir);
    (void)snprintf(overlay, sizeof(overlay), "%s/overlay.gguf", dir);
}

static void tear_down(void)
{
    (void)unlink(base);
    (void)unlink(overlay);
    (void)rmdir(dir);
}

TestSuite(swiftkv, .init = set_up, .fini = tear_down);

static int create(struct engine **ret, const char *kv, bool with_overlay, struct error *e)
{
    struct engine_config c;
    const char *overlays[1] = {overlay};

    engine_config_default(&c);
    c.model_path = base;
    c.overlay_paths = overlays;
    c.n_overlays = with_overlay;
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = 128;
    c.kv = kv;
    return engine_create(&c, NULL, NULL, ret, e);
}

static void answer(const char *kv, struct run *r)
{
    int32_t ids[60];
    struct engine *e;
    struct error err = {0};

    cr_assert_eq(create(&e, kv, true, &err), 0, "%s", err.text);
    run_tokens(41, TINY_VOCAB, ids, 60);
    struct engine_request q = run_request(ids, 60, 20);

    run_submit(e, &q, r);
    run_all(e);
    cr_assert_eq(r->n_new, 20);
    engine_destroy(e);
}

Test(swiftkv, group_one_is_no_sharing)
{
    struct run a;
    struct run b;

    tiny_model(base, 6, NULL);
    tiny_overlay(overlay, base, 6, 2, 1, false, NULL, NULL);
    answer("f32", &a);
    tiny_overlay(overlay, base, 6, 2, -1, false, NULL, NULL);
    answer("f32", &b);
    cr_assert(run_same(&a, &b));
    run_clear(&a);
    run_clear(&b);
}

Test(swiftkv, groups_of_equal_projections_are_group_one)
{
    static const int32_t groups[] = {2, 3, 4, 5, 16};
    struct run one;

    tiny_model(base, 7, NULL);
    tiny_overlay(overlay, base, 7, 2, 1, true, NULL, NULL);
    answer("f32", &one);
    cr_assert_eq(one.usage.n_slots, 79 * TINY_KV_HEADS * 7);
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        int32_t stores = 2 + (5 + groups[i] - 1) / groups[i];
        struct run r;

        tiny_overlay(overlay, base, 7, 2, groups[i], true, NULL, NULL);
        answer("f32", &r);
        cr_assert(run_same(&one, &r), "groups of %d differ", groups[i]);
        cr_assert_eq(r.usage.n_slots, 79 * TINY_KV_HEADS * stores);
        run_clear(&r);
    }
    run_clear(&one);
}

/* Groups of unequal sizes: those of equal projections are as no sharing, and sizes that are equal
 * all but for the last are as one size. */
Test(swiftkv, groups_of_unequal_sizes)
{
    static const uint32_t sizes[][6] = {{5}, {1, 4}, {2, 3}, {3, 2}, {1, 1, 3}, {1, 1, 1, 1, 1}};
    static const uint32_t pairs[] = {2, 2, 1, 0};
    struct run one;
    struct run r;

    tiny_model(base, 7, NULL);
    tiny_overlay(overlay, base, 7, 2, 1, true, NULL, NULL);
    answer("f32", &one);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const struct tiny_bend bend = {.sizes = sizes[i]};
        int32_t stores = 2;

        for (const uint32_t *n = sizes[i]; *n; n++) {
            stores++;
        }
        tiny_overlay(overlay, base, 7, 2, -1, true, NULL, &bend);
        answer("f32", &r);
        cr_assert(run_same(&one, &r), "%zu", i);
        cr_assert_eq(r.usage.n_slots, 79 * TINY_KV_HEADS * stores);
        run_clear(&r);
    }
    run_clear(&one);
    tiny_overlay(overlay, base, 7, 2, 2, false, NULL, NULL);
    answer("f32", &one);
    tiny_overlay(overlay, base, 7, 2, -1, false, NULL, &(struct tiny_bend){.sizes = pairs});
    answer("f32", &r);
    cr_assert(run_same(&one, &r));
    run_clear(&r);
    run_clear(&one);
}

/* An overlay's output projections are read in place of the base's, in deep layers. */
Test(swiftkv, outputs_of_its_own)
{
    const struct tiny_bend same = {.outputs = TINY_OUTPUTS_OF_BASE};
    const struct tiny_bend own = {.outputs = TINY_OUTPUTS_OWN};
    const struct tiny_bend in_base = {.own_from = 2};
    struct run runs[4];

    tiny_model(base, 6, NULL);
    tiny_overlay(overlay, base, 6, 2, 2, false, NULL, NULL);
    answer("f32", &runs[0]);
    tiny_overlay(overlay, base, 6, 2, 2, false, NULL, &same);
    answer("f32", &runs[1]);
    tiny_overlay(overlay, base, 6, 2, 2, false, NULL, &own);
    answer("f32", &runs[2]);
    tiny_model(base, 6, &in_base);
    tiny_overlay(overlay, base, 6, 2, 2, false, NULL, NULL);
    answer("f32", &runs[3]);
    cr_assert(run_same(&runs[0], &runs[1]));
    cr_assert(!run_same(&runs[0], &runs[2]));
    cr_assert(run_same(&runs[2], &runs[3]));
    for (int i = 0; i < 4; i++) {
        run_clear(&runs[i]);
    }
}

Test(swiftkv, sixteen_deep_layers_hold_one_store)
{
    struct run r;

    tiny_model(base, 18, NULL);
    tiny_overlay(overlay, base, 18, 2, 16, false, NULL, NULL);
    answer("full", &r);
    cr_assert_eq(r.usage.n_slots, 79 * TINY_KV_HEADS * 3);
    run_clear(&r);
}

Test(swiftkv, chunks_change_nothing)
{
    static const int chunks[] = {1, 7, 16, 59};
    struct run whole;

    tiny_model(base, 6, NULL);
    tiny_overlay(overlay, base, 6, 2, 2, false, NULL, NULL);
    answer("f32", &whole);
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        struct run r;
        char kv[64];

        (void)snprintf(kv, sizeof(kv), "f32+full,chunk=%d", chunks[i]);
        answer(kv, &r);
        cr_assert(run_same(&whole, &r), "%s", kv);
        run_clear(&r);
    }
    run_clear(&whole);
}

static void refused(int code, const char *holds)
{
    struct engine *e;
    struct error err = {0};

    cr_assert_eq(create(&e, NULL, true, &err), code, "%s", err.text);
    cr_assert(strstr(err.text, holds), "%s, not: %s", err.text, holds);
}

Test(swiftkv, overlays_that_do_not_fit)
{
    const char *zeros = "0000000000000000000000000000000000000000000000000000000000000000";
    static const struct {
        struct tiny_bend bend;
        int code;
        const char *holds;
    } bends[] = {
        {{.drop = "blk.2.attn_k_swiftkv.weight"},
         -EBADMSG,
         "blk.2.attn_k_swiftkv.weight is missing"},
        {{.drop = "norm_swiftkv.weight"}, -EBADMSG, "norm_swiftkv.weight is missing"},
        {{.misshape = "blk.3.attn_q_swiftkv.weight"},
         -EBADMSG,
         "blk.3.attn_q_swiftkv.weight is (17"},
        {{.extra = "blk.3.attn_k_swiftkv.weight"}, -EBADMSG, "nothing reads tensor blk.3.attn_k"},
        {{.outputs = TINY_OUTPUTS_OWN, .misshape = "blk.3.attn_output_swiftkv.weight"},
         -EBADMSG,
         "blk.3.attn_output_swiftkv.weight is (17"},
        {{.outputs = TINY_OUTPUTS_OWN, .drop = "blk.3.attn_output_swiftkv.weight"},
         -EBADMSG,
         "blk.3.attn_output_swiftkv.weight is missing, that of layer 2"},
        {{.outputs = TINY_OUTPUTS_OWN, .drop = "blk.4.attn_output_swiftkv.weight"},
         -EBADMSG,
         "blk.5.attn_output_swiftkv.weight is there, that of layer 4"},
        {{.extra = "blk.1.attn_output_swiftkv.weight"},
         -EBADMSG,
         "nothing reads tensor blk.1.attn_output_swiftkv.weight"},
        {{.extra = "blk.0.attn_q.weight"}, -EBADMSG, "add tensors, not replace"},
        {{.key = "pipit.swiftkv.key_value_group_size", .value = 0}, -EBADMSG, "group_size"},
        {{.key = "pipit.swiftkv.num_key_value_layers", .value = 0}, -EBADMSG, "key_value_layers"},
        {{.key = "pipit.swiftkv.num_key_value_layers", .value = 7}, -EBADMSG, "key_value_layers"},
    };

    tiny_model(base, 6, NULL);
    for (size_t i = 0; i < sizeof(bends) / sizeof(bends[0]); i++) {
        tiny_overlay(overlay, base, 6, 2, 2, false, NULL, &bends[i].bend);
        refused(bends[i].code, bends[i].holds);
    }
    tiny_overlay(overlay, base, 6, 2, 2, false, zeros, NULL);
    refused(-EBADMSG, "made for another base file (SHA-256 0000000000000000..., this one is ");
    tiny_overlay(overlay, base, 6, 2, 2, false, "short", NULL);
    refused(-EBADMSG, "made for another base file");
}

/* Base texts have 256 tokens. */
Test(swiftkv, the_longest_text_is_the_shorter_one)
{
    static const int32_t longest[][2] = {{0, 256}, {64, 64}, {256, 256}, {257, 256}};

    tiny_model(base, 6, NULL);
    for (size_t i = 0; i < sizeof(longest) / sizeof(longest[0]); i++) {
        struct error err = {0};
        struct engine *e;

        tiny_overlay(overlay, base, 6, 2, 2, false, NULL,
                     &(struct tiny_bend){.longest = (uint32_t)longest[i][0]});
        cr_assert_eq(create(&e, NULL, true, &err), 0, "%s", err.text);
        cr_assert_eq(engine_plan_of(e)->ctx_model, longest[i][1]);
        engine_destroy(e);
    }
    tiny_overlay(
        overlay, base, 6, 2, 2, false, NULL,
        &(struct tiny_bend){.longest = 64, .key = "pipit.swiftkv.context_length", .value = 0});
    refused(-EBADMSG, "pipit.swiftkv.context_length");
}

/* One wide head in place of two: half of the slots, other policies too; the prompt in chunks. */
Test(swiftkv, wide_stores)
{
    static const char *const policies[] = {
        "f32",
        "kv8",
        "fp8",
        "fp8+keyformer:30",
        "kv8+recency:30%",
        "f32+sinks:4+window:16,pos=new",
        "f16+sparq:r=4,k=16,mean=on",
        "f32+topv:9",
    };
    const struct tiny_bend wide = {.wide = true};
    struct run whole;
    struct run r;

    tiny_model(base, 7, NULL);
    tiny_overlay(overlay, base, 7, 2, 5, false, NULL, &wide);
    answer("f32", &whole);
    cr_assert_eq(whole.usage.n_slots, 79 * (TINY_KV_HEADS * 2 + 1));
    answer("f32+full,chunk=7", &r);
    cr_assert(run_same(&whole, &r));
    run_clear(&r);
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        answer(policies[i], &r);
        run_clear(&r);
    }
    tiny_overlay(overlay, base, 7, 2, 2, false, NULL, &wide);
    answer("f32", &r);
    cr_assert(!run_same(&whole, &r));
    run_clear(&r);
    run_clear(&whole);
}

Test(swiftkv, wide_stores_that_do_not_fit)
{
    static const struct {
        struct tiny_bend bend;
        const char *holds;
    } bends[] = {
        {{.drop = "blk.3.attn_q_map_swiftkv.weight"}, "blk.3.attn_q_map_swiftkv.weight is missing"},
        {{.drop = "blk.5.attn_v_map_swiftkv.weight"}, "blk.5.attn_v_map_swiftkv.weight is missing"},
        {{.drop = "blk.2.attn_freqs_swiftkv.weight"}, "blk.2.attn_freqs_swiftkv.weight is missing"},
        {{.misshape = "blk.3.attn_q_map_swiftkv.weight"},
         "blk.3.attn_q_map_swiftkv.weight is (5, 24), but must be (4, 24): 4 heads' maps of 4 to "
         "6"},
        {{.misshape = "blk.4.attn_v_map_swiftkv.weight"},
         "blk.4.attn_v_map_swiftkv.weight is (6, 16), but must be (5, 16): 4 heads' maps of 5 to "
         "4"},
        {{.misshape = "blk.2.attn_freqs_swiftkv.weight"},
         "blk.2.attn_freqs_swiftkv.weight must be 3 F32"},
        {{.bad_freq = NAN}, "attn_freqs_swiftkv.weight: entry 1 is nan, no frequency from 0 to 1"},
        {{.bad_freq = INFINITY}, "attn_freqs_swiftkv.weight: entry 1 is inf, no frequency"},
        {{.bad_freq = -1e-3f}, "attn_freqs_swiftkv.weight: entry 1 is -0.001, no frequency"},
        {{.extra = "blk.3.attn_freqs_swiftkv.weight"}, "nothing reads tensor blk.3.attn_freqs"},
        {{.key = "pipit.swiftkv.key_length", .value = 5}, "are 5 and 5: wide stores need both"},
        {{.drop_key = "pipit.swiftkv.value_length"}, "are 6 and 0: wide stores need both"},
        {{.drop_key = "pipit.swiftkv.key_length"}, "are 0 and 5: wide stores need both"},
        {{.key = "pipit.swiftkv.key_length", .value = 4096}, "pipit.swiftkv.key_length"},
        {{.key = "pipit.swiftkv.value_length", .value = 4}, "blk.2.attn_v_swiftkv.weight is (16"},
    };

    tiny_model(base, 6, NULL);
    for (size_t i = 0; i < sizeof(bends) / sizeof(bends[0]); i++) {
        struct tiny_bend bend = bends[i].bend;

        bend.wide = true;
        tiny_overlay(overlay, base, 6, 2, 2, false, NULL, &bend);
        refused(-EBADMSG, bends[i].holds);
    }
    tiny_overlay(overlay, base, 6, 2, 2, false, NULL,
                 &(struct tiny_bend){.wide = true, .extra = "blk.4.attn_skew.weight"});
    refused(-ENOTSUP, "blk.4.attn_skew.weight: not offered where queries read a wide store");
    tiny_overlay(overlay, base, 6, 2, 2, false, NULL,
                 &(struct tiny_bend){.extra = "blk.3.attn_q_map_swiftkv.weight"});
    refused(-EBADMSG, "nothing reads tensor blk.3.attn_q_map_swiftkv.weight");
}

/* gpt-oss slides in every other layer, the last one not; glm4moe may norm queries and keys. */
Test(swiftkv, wide_stores_of_layers_that_differ)
{
    static const struct {
        const char *model;
        int32_t n_layers;
    } models[] = {{"arch_gpt_oss.gguf", 4}, {"arch_glm4moe.gguf", 3}};

    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        char *path = realpath(run_data(models[i].model), NULL);

        cr_assert_not_null(path);
        (void)unlink(base);
        cr_assert_eq(symlink(path, base), 0);
        tiny_overlay(overlay, base, models[i].n_layers, 1, 1, false, NULL,
                     &(struct tiny_bend){.wide = true});
        refused(-ENOTSUP, "wide stores are not offered for models that slide, norm");
        free(path);
    }
}

Test(swiftkv, sizes_that_do_not_fit)
{
    static const uint32_t bad[][6] = {{3}, {5},          {4, 1}, {2, 1}, {1, 1, 1, 1, 1},
                                      {0}, {1u << 31, 3}};
    static const uint32_t good[] = {3, 1, 0};

    tiny_model(base, 6, NULL);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tiny_overlay(overlay, base, 6, 2, -1, false, NULL, &(struct tiny_bend){.sizes = bad[i]});
        refused(-EBADMSG, "group_sizes must list whole numbers from 1 on whose sum is 4");
    }
    tiny_overlay(overlay, base, 6, 2, 2, false, NULL, &(struct tiny_bend){.sizes = good});
    refused(-EBADMSG, "the only key of group sizes");
}

Test(swiftkv, one_for_the_other)
{
    struct engine *e;
    struct error err = {0};

    tiny_model(base, 6, NULL);
    tiny_model(overlay, 6, NULL);
    refused(-EBADMSG, "is no overlay");
    tiny_overlay(overlay, base, 6, 2, 2, false, NULL, NULL);
    cr_assert_eq(rename(overlay, base), 0);
    cr_assert_eq(create(&e, NULL, false, &err), -EBADMSG, "%s", err.text);
    cr_assert(strstr(err.text, "this is an overlay, not a model"), "%s", err.text);
}

Test(swiftkv, an_architecture_that_is_not_known)
{
    struct engine *e;
    struct error err = {0};

    tiny_model(base, 2, &(struct tiny_bend){.arch = "a-name-of-31-characters-at-most"});
    cr_assert_eq(create(&e, NULL, false, &err), -ENOTSUP, "%s", err.text);
    cr_assert(strstr(err.text, "a-name-of-31-characters-at-most is not offered") &&
                  strstr(err.text, "this build knows llama, ") &&
                  strstr(err.text, " more (guide/install.md)"),
              "%s", err.text);
}

Test(swiftkv, bases_that_do_not_fit)
{
    static const struct {
        struct tiny_bend bend;
        int code;
        const char *holds;
    } bends[] = {
        {{.drop = "blk.1.ffn_up.weight"}, -EBADMSG, "blk.1.ffn_up.weight is missing"},
        {{.drop = "token_embd.weight"}, -EBADMSG, "token_embd.weight is missing"},
        {{.misshape = "blk.0.attn_output.weight"},
         -EBADMSG,
         "blk.0.attn_output.weight is (17, 16)"},
        {{.extra = "blk.0.ffn_gate_inp.weight"}, -ENOTSUP, "not part of architecture llama"},
        {{.drop_key = "llama.block_count"}, -EBADMSG, "llama.block_count is missing"},
        {{.key = "llama.block_count", .value = 0}, -EBADMSG, "llama.block_count"},
        {{.key = "llama.attention.head_count_kv", .value = 3}, -EBADMSG, "no multiple"},
        {{.key = "llama.embedding_length", .value = 15}, -EBADMSG, ""},
        {{.key = "llama.context_length", .value = 0}, -EBADMSG, "llama.context_length"},
    };
    struct engine *e;

    for (size_t i = 0; i < sizeof(bends) / sizeof(bends[0]); i++) {
        struct error err = {0};

        tiny_model(base, 4, &bends[i].bend);
        cr_assert_eq(create(&e, NULL, false, &err), bends[i].code, "%zu: %s", i, err.text);
        cr_assert(strstr(err.text, bends[i].holds), "%s, not: %s", err.text, bends[i].holds);
    }
}

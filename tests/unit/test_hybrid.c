/* SPDX-License-Identifier: Apache-2.0 */
/* Models with recurrent layers (qwen35, lfm2, granitehybrid, nemotron_h, mamba2): files whose keys
 * are missing or contradict each other are refused by the key's name, backends without the
 * operations by theirs; and only layers with attention have K and V. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv/plan/plan.h"
#include "engine/model/model.h"
#include "tests/unit/bend.h"
#include "tests/unit/engine_run.h"

Test(hybrid, keys_that_are_missing_or_wrong)
{
    static const struct bend_case cases[] = {
        {{.key = NULL}, 0, NULL},
        {{.key = "qwen35.ssm.conv_kernel", .drop = true}, -EBADMSG, "ssm.conv_kernel is missing"},
        {{.key = "qwen35.ssm.v_head_reordered", .value = 0}, -EBADMSG, "ssm.v_head_reordered"},
        {{.key = "qwen35.ssm.v_head_reordered", .boolean = true, .value = 0},
         -ENOTSUP,
         "qwen35.ssm.v_head_reordered: V heads in groups"},
        {{.key = "qwen35.ssm.v_head_reordered", .boolean = true, .value = 1}, 0, NULL},
        {{.key = "qwen35.ssm.group_count", .drop = true}, -EBADMSG, "ssm.group_count is missing"},
        {{.key = "qwen35.ssm.time_step_rank", .drop = true},
         -EBADMSG,
         "ssm.time_step_rank is missing"},
        {{.key = "qwen35.ssm.state_size", .drop = true}, -EBADMSG, "ssm.state_size is missing"},
        {{.key = "qwen35.ssm.inner_size", .drop = true}, -EBADMSG, "ssm.inner_size is missing"},
        {{.key = "qwen35.ssm.conv_kernel", .value = 1}, -EBADMSG, "qwen35.ssm.conv_kernel"},
        {{.key = "qwen35.ssm.conv_kernel", .value = 9}, -EBADMSG, "qwen35.ssm.conv_kernel"},
        {{.key = "qwen35.ssm.conv_kernel", .value = 3}, -EBADMSG, "blk.0.ssm_conv1d.weight is (4"},
        {{.key = "qwen35.ssm.state_size", .value = 24}, -ENOTSUP, "only multiples of 16"},
        {{.key = "qwen35.ssm.state_size", .value = 0}, -EBADMSG, "qwen35.ssm.state_size"},
        {{.key = "qwen35.ssm.state_size", .value = 512}, -EBADMSG, "qwen35.ssm.state_size"},
        {{.key = "qwen35.ssm.group_count", .value = 0}, -EBADMSG, "qwen35.ssm.group_count"},
        {{.key = "qwen35.ssm.group_count", .value = 4}, -EBADMSG, "must be a multiple of"},
        {{.key = "qwen35.ssm.group_count", .value = 3}, -EBADMSG, "blk.0.attn_qkv.weight"},
        {{.key = "qwen35.ssm.time_step_rank", .value = 4}, -EBADMSG, "ssm.inner_size is 96"},
        {{.key = "qwen35.ssm.inner_size", .value = 97}, -EBADMSG, "6 heads (ssm.time_step_rank)"},
        {{.key = "qwen35.full_attention_interval", .value = 0},
         -EBADMSG,
         "qwen35.full_attention_interval"},
        {{.key = "qwen35.full_attention_interval", .value = 9},
         -ENOTSUP,
         "qwen35.full_attention_interval: all of 5 layers"},
        {{.key = "qwen35.full_attention_interval", .value = 2}, -EBADMSG, "blk.1.attn_qkv.weight"},
        {{.key = "qwen35.full_attention_interval", .value = 1}, -EBADMSG, "blk.0.attn_qkv.weight"},
        {{.key = "qwen35.nextn_predict_layers", .value = 6},
         -EBADMSG,
         "qwen35.nextn_predict_layers"},
        {{.key = "qwen35.nextn_predict_layers", .value = 0}, -ENOTSUP, "blk.5.nextn"},
        {{.key = "qwen35.attention.value_length", .value = 8},
         -EBADMSG,
         "qwen35.attention.value_length is 8"},
        {{.key = "qwen35.rope.dimension_count", .value = 18}, -EBADMSG, "rope.dimension_count"},
        {{.key = "qwen35.rope.dimension_sections", .value = 4}, -EBADMSG, "dimension_sections"},
        {{.key = "qwen35.rope.dimension_sections", .drop = true}, 0, NULL},
    };

    bend_cases("arch_qwen35.gguf", cases, sizeof(cases) / sizeof(cases[0]));
}

Test(hybrid, lists_that_are_wrong)
{
    static const uint32_t all[] = {1, 1, 1, 1};
    static const uint32_t three[] = {0, 1, 1};
    static const uint32_t two[] = {0, 2, 1, 0};
    static const uint32_t of_last[] = {1, 1, 1, 7};
    static const uint32_t large[] = {5000, 1, 1, 0};
    static const uint32_t heads[] = {2, 0, 0, 2};
    static const char layers[] = "qwen35.attention.recurrent_layers";
    static const char kv[] = "qwen35.attention.head_count_kv";
    static const char sections[] = "qwen35.rope.dimension_sections";
    static const struct bend_case cases[] = {
        {{.key = layers, .list = all, .n_list = 4}, -ENOTSUP, "qwen35.attention.recurrent_layers"},
        {{.key = layers, .list = three, .n_list = 3}, -EBADMSG, "recurrent_layers"},
        {{.key = layers, .list = two, .n_list = 4}, -EBADMSG, "entry 1 is 2"},
        {{.key = sections, .list = three, .n_list = 2}, -EBADMSG, "a list of 3 or 4 numbers"},
        {{.key = sections, .list = of_last, .n_list = 4}, -ENOTSUP, "pair 3 of 8"},
        {{.key = sections, .list = large, .n_list = 4}, -EBADMSG, "entry 0 is 5000"},
        {{.key = sections, .list = all, .n_list = 3}, 0, NULL},
        {{.key = kv, .list = heads, .n_list = 4}, 0, NULL},
        {{.key = kv, .list = heads, .n_list = 4, .less = layers}, 0, NULL}, /* it says so, too */
        {{.key = kv, .list = three, .n_list = 3, .less = layers}, -EBADMSG, "head_count_kv"},
        {{.key = kv, .list = all, .n_list = 4, .less = layers}, -EBADMSG, "blk.0.attn_k.weight"},
    };

    bend_cases("arch_qwen35_list.gguf", cases, sizeof(cases) / sizeof(cases[0]));
}

/* Convolutions: layers without K and V heads. */
Test(hybrid, convolutions_keys)
{
    static const uint32_t none[] = {0, 0, 0, 0, 0};
    static const uint32_t four[] = {0, 2, 0, 0};
    static const uint32_t queries[] = {0, 4, 0, 0, 0};
    static const uint32_t other[] = {2, 2, 0, 0, 1};
    static const uint32_t three[] = {0, 3, 0, 0, 1};
    static const char kv[] = "lfm2.attention.head_count_kv";
    static const struct bend_case cases[] = {
        {{.key = NULL}, 0, NULL},
        {{.key = "lfm2.shortconv.l_cache", .drop = true}, -EBADMSG, "l_cache is missing"},
        {{.key = "lfm2.shortconv.l_cache", .value = 1}, -EBADMSG, "lfm2.shortconv.l_cache"},
        {{.key = "lfm2.shortconv.l_cache", .value = 9}, -EBADMSG, "lfm2.shortconv.l_cache"},
        {{.key = "lfm2.shortconv.l_cache", .value = 4},
         -EBADMSG,
         "blk.0.shortconv.conv.weight is (3"},
        {{.key = kv, .drop = true}, -EBADMSG, "attention.head_count_kv is missing"},
        {{.key = kv, .value = 0}, -ENOTSUP, "attention.head_count_kv: all of 5 layers"},
        {{.key = kv, .list = none, .n_list = 5}, -ENOTSUP, "all of 5 layers are recurrent"},
        {{.key = kv, .list = four, .n_list = 4}, -EBADMSG, "head_count_kv"},
        {{.key = kv, .list = three, .n_list = 5}, -EBADMSG, "4 query heads are no multiple of 3"},
        {{.key = kv, .list = other, .n_list = 5}, -EBADMSG, "blk.0.attn_q.weight is missing"},
        {{.key = "lfm2.attention.head_count", .list = queries, .n_list = 5},
         -EBADMSG,
         "layer 4 has 1 K heads and no queries"},
        {{.tensor = "token_embd_norm.weight"}, -EBADMSG, "token_embd_norm.weight is missing"},
        {{.tensor = "blk.2.shortconv.in_proj.weight"}, -EBADMSG, "shortconv.in_proj.weight is mis"},
        {{.tensor = "blk.2.shortconv.out_proj.weight"}, -EBADMSG, "shortconv.out_proj.weight is m"},
    };

    bend_cases("arch_lfm2.gguf", cases, sizeof(cases) / sizeof(cases[0]));
}

/* State spaces; and layers that are one of three. */
Test(hybrid, state_space_keys)
{
    static const uint32_t none[] = {0, 0, 0, 0, 0};
    static const uint32_t first[] = {48, 48, 0, 0, 48};
    static const char kv[] = "nemotron_h.attention.head_count_kv";
    static const struct bend_case cases[] = {
        {{.key = NULL}, 0, NULL},
        {{.key = "nemotron_h.attention.layer_norm_rms_epsilon", .drop = true}, 0, NULL},
        {{.key = "nemotron_h.ssm.conv_kernel", .value = 4}, -EBADMSG, "blk.0.ssm_conv1d.weight is"},
        {{.key = "nemotron_h.ssm.state_size", .value = 25}, -EBADMSG, "blk.0.ssm_in.weight is"},
        {{.key = "nemotron_h.ssm.state_size", .value = 257}, -EBADMSG, "nemotron_h.ssm.state_size"},
        {{.key = "nemotron_h.ssm.group_count", .value = 3}, -EBADMSG, "ssm.group_count, 3"},
        {{.key = "nemotron_h.ssm.inner_size", .value = 65}, -EBADMSG, "ssm.inner_size, 65"},
        {{.key = "nemotron_h.ssm.inner_size", .value = 40}, -ENOTSUP, "heads of 20 values"},
        {{.key = "nemotron_h.ssm.time_step_rank", .drop = true}, -EBADMSG, "time_step_rank is mis"},
        {{.key = "nemotron_h.feed_forward_length", .list = none, .n_list = 5},
         -EBADMSG,
         "blk.1.ssm_in.weight is missing"},
        {{.key = "nemotron_h.feed_forward_length", .list = first, .n_list = 5},
         -ENOTSUP,
         "models whose first layer is an FFN"},
        {{.key = kv, .list = none, .n_list = 5}, -ENOTSUP, "models without attention"},
        {{.key = "nemotron_h.expert_count", .value = 4}, -ENOTSUP, "nemotron_h.expert_count is 4"},
    };
    static const char *const names[] = {
        "0.attn_norm.weight",
        "0.ssm_in.weight",
        "0.ssm_conv1d.weight",
        "0.ssm_a",
        "0.ssm_d",
        "0.ssm_dt.bias",
        "0.ssm_norm.weight",
        "0.ssm_out.weight",
        "1.attn_norm.weight",
        "1.ffn_up.weight",
        "1.ffn_down.weight",
        "2.attn_k.weight",
    };
    char full[64];

    bend_cases("arch_nemotron_h.gguf", cases, sizeof(cases) / sizeof(cases[0]));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct bend b = {.tensor = full};

        (void)snprintf(full, sizeof(full), "blk.%s", names[i]);
        bend_refused("arch_nemotron_h.gguf", &b, -EBADMSG, full);
        b.wider = true;
        bend_refused("arch_nemotron_h.gguf", &b, -EBADMSG, full);
    }
    bend_refused("arch_nemotron_h.gguf", &(struct bend){.tensor = "blk.0.ssm_conv1d.bias"}, 0,
                 NULL);
}

/* FFNs alone that are mixtures of experts without gates. */
Test(hybrid, experts_in_layers_of_their_own)
{
    static const struct bend_case cases[] = {
        {{.key = NULL}, 0, NULL},
        {{.key = "nemotron_h_moe.expert_used_count", .drop = true}, -EBADMSG, "used_count is miss"},
        {{.key = "nemotron_h_moe.expert_used_count", .value = 5}, -EBADMSG, "expert_used_count"},
        {{.key = "nemotron_h_moe.expert_group_count", .value = 2}, -ENOTSUP, "experts in groups"},
        {{.key = "nemotron_h_moe.expert_gating_func", .value = 3}, 0, NULL}, /* a sigmoid */
        {{.key = "nemotron_h_moe.expert_feed_forward_length", .value = 24},
         -EBADMSG,
         "blk.1.ffn_up_exps.weight is"},
        {{.key = "nemotron_h_moe.expert_shared_feed_forward_length", .value = 0},
         -ENOTSUP,
         "blk.1.ffn_"},
        {{.key = "nemotron_h_moe.expert_count", .value = 0},
         -EBADMSG,
         "blk.1.ffn_up.weight is mis"},
        {{.tensor = "blk.1.exp_probs_b.bias"}, -EBADMSG, "exp_probs_b.bias is missing"},
        {{.tensor = "blk.1.ffn_up_exps.weight"}, -EBADMSG, "ffn_up_exps.weight is missing"},
        {{.tensor = "blk.3.ffn_down_shexp.weight"}, -EBADMSG, "ffn_down_shexp.weight is missing"},
        {{.tensor = "blk.3.ffn_gate_inp.weight", .wider = true}, -EBADMSG, "blk.3.ffn_gate_inp"},
    };

    bend_cases("arch_nemotron_h_moe.gguf", cases, sizeof(cases) / sizeof(cases[0]));
}

/* No layer has keys and values, and keys of such layers say nothing. */
Test(hybrid, a_model_without_attention)
{
    static const struct bend_case cases[] = {
        {{.key = NULL}, 0, NULL},
        {{.key = "mamba2.feed_forward_length", .value = 48}, 0, NULL},
        {{.key = "mamba2.feed_forward_length", .drop = true}, 0, NULL},
        {{.key = "mamba2.attention.head_count", .value = 4}, 0, NULL},
        {{.key = "mamba2.attention.head_count", .drop = true}, 0, NULL},
        {{.key = "mamba2.attention.head_count_kv", .value = 3}, 0, NULL},
        {{.key = "mamba2.ssm.conv_kernel", .value = 3}, -EBADMSG, "blk.0.ssm_conv1d.weight is"},
        {{.key = "mamba2.ssm.group_count", .value = 3}, -EBADMSG, "ssm.group_count, 3"},
        {{.key = "mamba2.ssm.state_size", .drop = true}, -EBADMSG, "state_size is missing"},
        {{.key = "mamba2.ssm.time_step_rank", .value = 8}, -ENOTSUP, "heads of 8 values"},
        {{.key = "mamba2.expert_count", .value = 4}, -ENOTSUP, "mamba2.expert_count is 4"},
        {{.tensor = "blk.2.ssm_conv1d.bias"}, 0, NULL},
        {{.tensor = "blk.2.ssm_in.weight"}, -EBADMSG, "blk.2.ssm_in.weight is missing"},
        {{.tensor = "blk.1.ssm_norm.weight", .wider = true}, -EBADMSG, "blk.1.ssm_norm.weight"},
    };

    bend_cases("arch_mamba2.gguf", cases, sizeof(cases) / sizeof(cases[0]));
}

/* Three layers have a state of 3 rows of 160 channels and 4 matrices of 16 by 24. Neither context
 * nor precision changes what a sequence takes. */
Test(hybrid, without_attention_a_context_is_free)
{
    const uint64_t state = (3 * 160 + 4 * 16 * 24) * sizeof(float);
    static const char *const kv[] = {"full", "kv8+full", "f32+full,chunk=64"};
    struct engine_config c;
    struct plan plan;
    struct plan longer;
    struct error e = {0};

    for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
        for (int keeps = 0; keeps < 2; keeps++) {
            uint64_t pages = 3 * (2 * 3 + (keeps ? 4 * 3 : 0));

            cr_assert_eq(bend_plan(run_data("arch_mamba2.gguf"), kv[i], keeps, &plan, &e), 0, "%s",
                         e.text);
            cr_assert_eq(plan.n_stores, 3);
            cr_assert_eq(plan.n_states, 3);
            cr_assert_eq(plan.n_checkpoints, keeps ? 12 : 0);
            cr_assert_eq(plan.n_classes, 1);
            cr_assert_eq(plan.recurrent_bytes, pages * state, "%zu", (size_t)plan.recurrent_bytes);
            cr_assert_eq(plan.kv_bytes, plan.recurrent_bytes);
        }
    }
    engine_config_default(&c);
    c.model_path = run_data("arch_mamba2.gguf");
    c.n_threads = 1;
    for (int b = 0; b < 2; b++) {
        c.backend = b ? "cpu" : "ref";
        c.ctx = 1024;
        cr_assert_eq(engine_plan(&c, &plan, &e), 0, "%s", e.text);
        c.ctx = 1 << 20;
        cr_assert_eq(engine_plan(&c, &longer, &e), 0, "%s", e.text);
        cr_assert_eq(longer.kv_bytes, plan.kv_bytes);
        cr_assert_lt(longer.scratch_bytes - plan.scratch_bytes, 64 << 20, "%zu beside %zu",
                     (size_t)longer.scratch_bytes, (size_t)plan.scratch_bytes);
    }
}

Test(hybrid, without_attention_policies_have_nothing_to_act_on)
{
    static const struct {
        const char *kv;
        const char *text;
    } cases[] = {
        {"window:64", "no keys and values to drop tokens"},
        {"sinks:4+window:64", "no keys and values to drop tokens"},
        {"fp8+h2o:50%", "all layers of this model are recurrent"},
        {"expected:64", "only \"full\" is offered"},
        {"sparq:r=4,k=32", "no keys and values to choose"},
        {"infinigen:alpha=4", "no keys and values to choose"},
        {"kv8,rot=on", "no keys and values to rotate"},
    };
    struct engine *e = run_engine("arch_mamba2.gguf", "ref", 256, 1, "full");
    struct plan plan;
    int32_t ids[20];

    run_tokens(8, engine_info(e)->n_vocab, ids, 20);
    cr_assert_eq(engine_info(e)->token_slots, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err = {0};

        cr_assert_eq(bend_plan(run_data("arch_mamba2.gguf"), cases[i].kv, true, &plan, &err),
                     -ENOTSUP, "%s: %s", cases[i].kv, err.text);
        cr_assert(strstr(err.text, cases[i].text), "%s: %s", cases[i].kv, err.text);
        struct engine_request q = run_request(ids, 20, 4);

        q.kv = cases[i].kv; /* a request's own */
        cr_assert_lt(engine_check(e, &q, &err), 0, "%s", cases[i].kv);
        cr_assert(err.text[0]);
    }
    engine_destroy(e);
}

Test(hybrid, tensors_that_are_missing_or_wrong)
{
    static const char *const names[] = {
        "attn_qkv.weight",
        "attn_gate.weight",
        "ssm_alpha.weight",
        "ssm_beta.weight",
        "ssm_conv1d.weight",
        "ssm_a",
        "ssm_dt.bias",
        "ssm_norm.weight",
        "ssm_out.weight",
        "attn_norm.weight",
        "post_attention_norm.weight",
    };
    char full[64];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct bend b = {.tensor = full};

        (void)snprintf(full, sizeof(full), "blk.1.%s", names[i]);
        bend_refused("arch_qwen35.gguf", &b, -EBADMSG, full);
        b.wider = true;
        bend_refused("arch_qwen35.gguf", &b, -EBADMSG, full);
    }
    bend_refused("arch_qwen35.gguf", &(struct bend){.tensor = "blk.2.attn_q_norm.weight"}, -EBADMSG,
                 "blk.2.attn_q_norm.weight is missing");
    bend_refused("arch_qwen35.gguf", &(struct bend){.tensor = "blk.5.attn_q.weight"}, 0, NULL);
    bend_refused("arch_qwen35.gguf",
                 &(struct bend){.tensor = "blk.1.ssm_dt.bias", .name = "blk.1.ssm_dt"}, 0, NULL);
    bend_refused("arch_qwen35.gguf",
                 &(struct bend){.tensor = "blk.1.ssm_dt.bias", .name = "blk.1.ssm_time"}, -EBADMSG,
                 "blk.1.ssm_dt.bias is missing");
}

/* What the model needs and these operations lack; NULL: nothing. */
static void check_lacks(const char *file, const struct backend_ops *ops, const char *name)
{
    struct gguf *g;
    struct model *m;
    struct error e = {0};

    cr_assert_eq(gguf_open(run_data(file), &g, &e), 0, "%s", e.text);
    struct model_source source = {.base = g};

    cr_assert_eq(model_open(&source, &m, &e), 0, "%s", e.text);
    const char *lacks = model_lacks(m, ops);

    cr_assert_str_eq(lacks ? lacks : "nothing", name ? name : "nothing", "%s", file);
    model_close(m);
    gguf_close(g);
}

/* The plan of a backend without an operation names it. */
Test(hybrid, a_backend_without_the_operations)
{
    const struct backend_ops *ref;
    struct error e = {0};

    cr_assert_eq(backend_find("ref", &ref, &e), 0);
    struct backend_ops no_conv = *ref;
    struct backend_ops no_delta = *ref;
    struct backend_ops no_gate = *ref;
    struct backend_ops no_scan = *ref;

    no_conv.conv = NULL;
    no_delta.delta = NULL;
    no_gate.gate = NULL;
    no_scan.scan = NULL;
    check_lacks("arch_qwen35.gguf", ref, NULL);
    check_lacks("arch_qwen35.gguf", &no_conv, "conv");
    check_lacks("arch_qwen35.gguf", &no_delta, "delta");
    check_lacks("arch_qwen35.gguf", &no_gate, "gate");
    check_lacks("arch_granitehybrid.gguf", ref, NULL);
    check_lacks("arch_granitehybrid.gguf", &no_delta, NULL);
    check_lacks("arch_granitehybrid.gguf", &no_scan, "scan");
}

/* Four of five layers have a state of 3 rows of 160 channels and 6 matrices of 16 by 16; what a
 * token takes is the fifth's. */
Test(hybrid, only_attention_has_pages)
{
    const uint64_t state = (3 * 160 + 6 * 16 * 16) * sizeof(float);
    char path[512];
    struct plan plan;
    struct error e = {0};

    (void)snprintf(path, sizeof(path), "%s", run_data("arch_qwen35.gguf"));
    for (int keeps = 0; keeps < 2; keeps++) {
        uint64_t pages = 4 * (2 * 3 + (keeps ? 4 * 3 : 0));

        cr_assert_eq(bend_plan(path, "f32+full", keeps, &plan, &e), 0, "%s", e.text);
        cr_assert_eq(plan.n_stores, 5);
        cr_assert_eq(plan.n_states, 4);
        cr_assert_eq(plan.n_checkpoints, keeps ? 12 : 0);
        cr_assert_eq(plan.recurrent_bytes, pages * state, "%zu", (size_t)plan.recurrent_bytes);
        cr_assert_eq(plan.kv_bytes - plan.recurrent_bytes, 3 * 256 * 2 * 16 * sizeof(float));
    }
    uint64_t full = plan.kv_bytes - plan.recurrent_bytes;

    cr_assert_eq(bend_plan(path, "f32+window:64", false, &plan, &e), 0, "%s", e.text);
    cr_assert_eq(plan.recurrent_bytes, 4 * 2 * 3 * state, "no policy changes a state");
    cr_assert_eq(plan.kv_bytes - plan.recurrent_bytes, full / 4, "64 of 256 tokens");
}

/* What is said of a token: attention's K and V in f16, one head of 16 dims in one layer. */
Test(hybrid, states_are_no_tokens)
{
    int32_t ids[100];
    struct run r;
    struct engine *e = run_engine("arch_qwen35.gguf", "ref", 256, 1, "window:20");

    run_tokens(7, engine_info(e)->n_vocab, ids, 100);
    struct engine_request q = run_request(ids, 100, 10);

    run_submit(e, &q, &r);
    run_all(e);
    cr_assert_eq(r.usage.n_slots, 20);
    cr_assert_eq(r.usage.n_evicted, 109 - 20);
    cr_assert_eq(r.usage.kv_bytes_full, 109 * 2 * 16 * 2, "%zu", (size_t)r.usage.kv_bytes_full);
    run_clear(&r);
    engine_destroy(e);
}

/* The root mean square difference of logits between a cache of some precision and an f32 one. */
static double loss_of(const char *model, const char *kv)
{
    static const char *const exact = "f32";
    int32_t ids[60];
    struct run r[2];
    double sum = 0;

    for (int i = 0; i < 2; i++) {
        struct engine *e = run_engine(model, "cpu", 128, 1, i ? kv : exact);

        run_tokens(51, engine_info(e)->n_vocab, ids, 60);
        struct engine_request q = run_request(ids, 60, 24);

        q.forced = r[0].tokens;
        q.n_forced = i ? 23 : 0;
        run_submit(e, &q, &r[i]);
        run_all(e);
        cr_assert_eq(r[i].n_new, 24);
        engine_destroy(e);
    }
    for (int32_t i = 0; i < 24 * r[0].n_vocab; i++) {
        double d = (double)r[1].logits[i] - (double)r[0].logits[i];

        sum += d * d;
    }
    run_clear(&r[0]);
    run_clear(&r[1]);
    return sqrt(sum);
}

/* Queries with gates between them are balanced with their keys, too: see test_center.c. */
Test(hybrid, keys_are_balanced)
{
    const struct bend b = {.uneven = true};
    char from[512];
    char to[64];

    (void)snprintf(from, sizeof(from), "%s", run_data("arch_qwen35.gguf"));
    (void)snprintf(to, sizeof(to), "/tmp/pipit-hybrid-%d.gguf", (int)getpid());
    bend_file(from, to, &b);
    double even = loss_of(from, "kv8");
    double uneven = loss_of(to, "kv8");
    double off = loss_of(to, "kv8,rot=off");

    cr_assert_lt(uneven, 1.5 * even, "%g, %g where dims are even", uneven, even);
    cr_assert_gt(off, 4 * even, "%g, %g where dims are even", off, even);
    (void)unlink(to);
}

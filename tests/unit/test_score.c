/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of a map: to the slots of their rows (kernels/score.h), and what kvzap makes of them. */

#include <criterion/criterion.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/kv/policy/policy.h"
#include "kernels/score.h"
#include "tests/unit/engine_run.h"

enum { CAP = 12, GROUPS = 2, HEADS = 2, LD = 16 };

static void put(struct backend *be, const struct ops_seq *seq, const float *x, float *score)
{
    struct ops_score p = {.x = x, .ldx = LD, .seqs = seq, .n_seqs = 1};

    for (int i = 0; i < GROUPS * CAP; i++) {
        score[i] = -7;
    }
    cr_assert_eq(score_host(be, &p), 0);
}

/* Rows 1 and 2 of three: to slots one after the other, to victims. */
Test(score, to_the_slots_of_rows)
{
    static const float x[3][LD] = {
        {9, 9, 9, 9}, {0, 1, -2, 0.5f}, {200, 0, NAN, -INFINITY}}; /* exp(200) is no float */
    const struct ops_kv_layout layout = {.n_groups = GROUPS, .k_heads = HEADS};
    static const int32_t victim[GROUPS] = {4, 11};
    const struct backend_ops *ops = NULL;
    struct backend *be = NULL;
    struct error e = {0};
    float score[GROUPS * CAP];
    struct ops_seq seq = {
        .row0 = 1, .n_rows = 2, .slot0 = 5, .kv = {.layout = &layout, .cap = CAP, .score = score}};

    cr_assert_eq(backend_find("ref", &ops, &e), 0, "%s", e.text);
    cr_assert_eq(ops->create(&(struct backend_config){.n_threads = 1}, &be, &e), 0, "%s", e.text);
    put(be, &seq, &x[0][0], score);
    for (int i = 0; i < GROUPS * CAP; i++) {
        float want = i == 5         ? 1 + expf(1)
                     : i == CAP + 5 ? expf(-2) + expf(0.5f)
                     : i == 6       ? FLT_MAX
                     : i == CAP + 6 ? 0
                                    : -7;

        cr_assert_float_eq(score[i], want, want > 1e9f ? 0 : 1e-6f, "slot %d: %g, not %g", i,
                           (double)score[i], (double)want);
    }
    seq = (struct ops_seq){.row0 = 1, .n_rows = 1, .slot0 = 3, .victim = victim, .kv = seq.kv};
    put(be, &seq, &x[0][0], score);
    cr_assert_float_eq(score[4], 1 + expf(1), 1e-6f);
    cr_assert_float_eq(score[CAP + 11], expf(-2) + expf(0.5f), 1e-6f);
    cr_assert_eq(score[3], -7);
    ops->destroy(be);
}

/* More rows than are taken at once. */
Test(score, of_many_rows)
{
    enum { MANY = 700 };
    static float x[MANY][LD];
    static float score[MANY + 9];
    const struct ops_kv_layout layout = {.n_groups = 1, .k_heads = 1};
    const struct ops_seq seq = {
        .n_rows = MANY, .slot0 = 9, .kv = {.layout = &layout, .cap = MANY + 9, .score = score}};
    const struct ops_score p = {.x = &x[0][0], .ldx = LD, .seqs = &seq, .n_seqs = 1};
    const struct backend_ops *ops = NULL;
    struct backend *be = NULL;
    struct error e = {0};

    cr_assert_eq(backend_find("ref", &ops, &e), 0, "%s", e.text);
    cr_assert_eq(ops->create(&(struct backend_config){.n_threads = 1}, &be, &e), 0, "%s", e.text);
    for (int i = 0; i < MANY; i++) {
        x[i][0] = (float)i / 100;
    }
    cr_assert_eq(score_host(be, &p), 0);
    for (int i = 0; i < MANY; i++) {
        cr_assert_eq(score[9 + i], expf(x[i][0]), "row %d", i);
    }
    cr_assert_eq(score[8], 0);
    ops->destroy(be);
}

/* Without maps, or where layers have no hidden states of their own. */
Test(score, kvzap_needs_maps)
{
    const struct backend_ops *ops = NULL;
    struct policy p;
    struct error e = {0};

    cr_assert_eq(backend_find("ref", &ops, &e), 0, "%s", e.text);
    cr_assert_eq(policy_parse("kvzap:64", &p, &e), 0, "%s", e.text);
    struct policy_host h = {.ops = ops, .no_part_keys = -1, .uneven = {-1, -1}, .no_surrogate = -1};

    cr_assert_eq(policy_check_host(&p, &h, &e), 0, "%s", e.text);
    h.no_surrogate = 3;
    cr_assert_eq(policy_check_host(&p, &h, &e), -ENOTSUP);
    cr_assert(strstr(e.text, "layer 3 has no map"), "%s", e.text);
    cr_assert(strstr(e.text, "pipit-calibrate --scores"), "%s", e.text);
    h.untapped = true;
    e.code = 0;
    cr_assert_eq(policy_check_host(&p, &h, &e), -ENOTSUP);
    cr_assert(strstr(e.text, "no tool makes such maps"), "%s", e.text);
    h.no_surrogate = -1;
    h.split = true;
    e.code = 0;
    cr_assert_eq(policy_check_host(&p, &h, &e), -ENOTSUP);
    cr_assert(strstr(e.text, "SwiftKV's split"), "%s", e.text);
}

static int start(const char *kv, const char *overlay, const char *model, struct error *e)
{
    const char *overlays[1] = {overlay ? run_data(overlay) : NULL};
    struct engine_config c;
    struct engine *engine = NULL;
    char path[512];

    (void)snprintf(path, sizeof(path), "%s", run_data(model));
    engine_config_default(&c);
    c.model_path = path;
    c.overlay_paths = overlays;
    c.n_overlays = overlay ? 1 : 0;
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = 128;
    c.n_seqs = 1;
    c.kv = kv;
    *e = (struct error){0};
    int r = engine_create(&c, NULL, NULL, &engine, e);

    engine_destroy(engine);
    return r;
}

Test(score, engines_without_maps_do_not_start)
{
    struct error e;

    cr_assert_eq(start("kvzap:20", NULL, "cache_model.gguf", &e), -ENOTSUP);
    cr_assert(strstr(e.text, "layer 0 has no map"), "%s", e.text);
    cr_assert_eq(start("kvzap:20", "cache_scores.gguf", "arch_llama.gguf", &e), -EBADMSG);
    cr_assert(strstr(e.text, "another base"), "%s", e.text);
    cr_assert_eq(start("kvzap:20", "cache_scores.gguf", "cache_model.gguf", &e), 0, "%s", e.text);
}

/* The remedy is named where there is one. */
Test(score, no_tool_is_named_that_refuses_the_model)
{
    static const struct {
        const char *model;
        const char *kv;
        const char *says;
    } cases[] = {
        {"arch_qwen35.gguf", "kvzap:20", "no tool makes such maps"},
        {"arch_gemma4_dense.gguf", "kvzap:20", "no tool makes such maps"},
        {"arch_lfm2.gguf", "h2o:20,layers=measured", "no tool measures them"},
        {"arch_lfm2.gguf", "infinigen:count=9", "no tool makes one"},
        {"arch_qwen2.gguf", "kvzap:20", "pipit-calibrate --scores"},
        {"arch_qwen2.gguf", "h2o:20,layers=measured", "pipit-calibrate makes"},
        {"arch_qwen2.gguf", "infinigen:count=9", "pipit-skew makes"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_config config = {.model_path = run_data(cases[i].model),
                                       .kv = cases[i].kv,
                                       .backend = "cpu",
                                       .ctx = 128,
                                       .n_seqs = 1,
                                       .n_threads = 1};
        struct error e = {0};
        struct engine *engine;

        cr_assert_eq(engine_create(&config, NULL, NULL, &engine, &e), -ENOTSUP, "%s",
                     cases[i].model);
        cr_assert(strstr(e.text, cases[i].says), "%s: %s", cases[i].model, e.text);
    }
}

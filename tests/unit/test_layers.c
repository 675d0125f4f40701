/* SPDX-License-Identifier: Apache-2.0 */
/* engine/kv/policy/layers.c: whatever the rule, the word and the number of layers, all budgets sum
 * to what equal ones have, no layer lacks a slot that may be evicted, a pyramid falls, weights are
 * followed, and a larger budget takes nothing from anybody. What has no meaning is refused. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv/policy/place.h"
#include "gguf/gguf.h"
#include "tests/unit/engine_run.h"

enum { MOST = 96, UNBOUND = 1 << 24 };

static struct policy parse(const char *text)
{
    struct policy p;
    struct error e = {0};

    cr_assert_eq(policy_parse(text, &p, &e), 0, "%s: %s", text, e.text);
    return p;
}

static void budgets(const struct policy *p, int32_t budget, const int32_t *weights, int32_t n,
                    int32_t ctx, int32_t *ret)
{
    struct policy_share s = {.n = n};

    for (int32_t i = 0; weights && i < n; i++) {
        s.sum += weights[i];
    }
    for (int32_t i = 0; i < n; i++) {
        s.rank = i;
        s.weight = weights ? weights[i] : 0;
        ret[i] = policy_store_budget(p, budget, &s, ctx);
    }
}

static const char *const words[] = {
    "sinks:4+window:100",
    "h2o:50%",
    "sinks:3+h2o:400,recent=90%",
    "snapkv:200,observe=16",
    "streaming:100",
    "keyformer:100",
    "recency:100,recent=0%",
    "keyformer:300,mode=as-shipped",
    "h2o:10%,min=40",
};

static int64_t sum_of(const int32_t *b, int32_t n)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < n; i++) {
        sum += b[i];
    }
    return sum;
}

Test(layers, the_sum_is_that_of_equal_budgets)
{
    int32_t weights[MOST];
    int32_t b[MOST];
    int32_t before[MOST];

    for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++) {
        for (int rule = POLICY_LAYERS_EQUAL; rule <= POLICY_LAYERS_MEASURED; rule++) {
            struct policy p = parse(words[k]);

            p.layers = rule;
            for (int32_t n = 1; n <= MOST; n += n < 8 ? 1 : 11) {
                memset(before, 0, sizeof(before));
                for (int32_t budget = 60; budget < 9000; budget += budget < 300 ? 1 : 371) {
                    int32_t least = policy_least_budget(&p, budget);

                    for (int32_t i = 0; i < n; i++) {
                        weights[i] = (i * 37 + 11) % 23 * 2000;
                    }
                    budgets(&p, budget, weights, n, UNBOUND, b);
                    for (int32_t i = 0; i < n; i++) {
                        cr_assert(b[i] >= least, "%s, layer %d of %d: %d of %d", words[k], i, n,
                                  b[i], budget);
                        cr_assert(b[i] >= before[i], "%s: less of %d than of less", words[k],
                                  budget);
                        cr_assert(least == budget ||
                                      p.sinks + p.place->spared(&p, b[i]) + 1 <= b[i],
                                  "%s: nothing may be evicted of %d", words[k], b[i]);
                    }
                    memcpy(before, b, sizeof(b));
                    cr_assert_leq(sum_of(b, n), (int64_t)n * budget);
                    cr_assert_gt(sum_of(b, n), (int64_t)n * (budget - 1), "%s: %d of %d", words[k],
                                 (int)sum_of(b, n), n * budget);
                }
            }
        }
    }
}

Test(layers, a_pyramid_falls_by_equal_steps)
{
    struct policy p = parse("window:100,layers=pyramid");
    int32_t b[MOST];

    budgets(&p, 100, NULL, 11, UNBOUND, b);
    cr_assert_eq(b[0], 195, "twice the mean less the last's");
    cr_assert_eq(b[10], 5, "a twentieth of the mean");
    for (int i = 1; i < 11; i++) {
        cr_assert_eq(b[i - 1] - b[i], 19);
    }
    p = parse("snapkv:100,observe=39,layers=pyramid");
    budgets(&p, 100, NULL, 11, UNBOUND, b);
    cr_assert_eq(b[10], 40, "the prompt's window, and a slot beside it");
    cr_assert_eq(b[0], 160);
    budgets(&p, 100, NULL, 11, 120, b);
    cr_assert_eq(b[0], 120, "never more than the context");
}

Test(layers, weights_are_followed)
{
    static const int32_t weights[] = {1, 3, 0, 4};
    static const int32_t none[] = {0, 0, 0, 0};
    struct policy p = parse("window:102,layers=measured");
    int32_t b[MOST];

    cr_assert_eq(policy_least_budget(&p, 102), 2);
    budgets(&p, 102, weights, 4, UNBOUND, b);
    cr_assert_eq(b[0], 52);
    cr_assert_eq(b[1], 152);
    cr_assert_eq(b[2], 2, "what every layer has");
    cr_assert_eq(b[3], 202);
    budgets(&p, 102, none, 4, UNBOUND, b);
    cr_assert_eq(b[3], 102, "weights of sliding layers alone say nothing of the others");
}

Test(layers, what_has_no_meaning_is_refused)
{
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        {"h2o:64,layers=deep", "layers is one of equal pyramid measured"},
        {"h2o:64,score=shared,layers=pyramid", "the same tokens in all layers"},
        {"snapkv:33,layers=pyramid", "leave no layer less than another"},
        {"h2o:64,recent=100%,layers=measured", "leave no layer less than another"},
        {"sinks:28+h2o:50%,min=40,layers=pyramid", "leave no layer less than another"},
        {"sparq:k=8,layers=pyramid", "sparq takes the options"},
    };
    struct policy p;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error e = {0};

        cr_assert_eq(policy_parse(cases[i].text, &p, &e), -EINVAL, "%s", cases[i].text);
        cr_assert(strstr(e.text, cases[i].says), "%s: %s", cases[i].text, e.text);
    }
}

Test(layers, measured_needs_weights)
{
    struct policy p = parse("h2o:64,layers=measured");
    struct policy_host h = {.no_part_keys = -1, .uneven = {-1, -1}};
    struct error e = {0};

    cr_assert_eq(policy_check_host(&p, &h, &e), -ENOTSUP);
    cr_assert(strstr(e.text, "pipit-calibrate"), "%s", e.text);
    h.softcap = true; /* which it refuses */
    e.code = 0;
    cr_assert_eq(policy_check_host(&p, &h, &e), -ENOTSUP);
    cr_assert(strstr(e.text, "no tool measures them"), "%s", e.text);
    h.weighed = true;
    cr_assert_eq(policy_check_host(&p, &h, &e), 0);
}

Test(layers, the_canonical_text_names_what_differs)
{
    char text[KV_TEXT_MAX];
    struct policy p = parse("snapkv:300,layers=equal");

    policy_print(&p, text, sizeof(text));
    cr_assert_null(strstr(text, "layers"), "texts that were saved stay valid: %s", text);
    p = parse("snapkv:300,layers=pyramid");
    policy_print(&p, text, sizeof(text));
    cr_assert(strstr(text, ",layers=pyramid"), "%s", text);
    p = parse(text);
    cr_assert_eq(p.layers, POLICY_LAYERS_PYRAMID);
}

/* ---- weights of an overlay ---- */

static const char model[] = "stories260K.gguf";

static int open_weighed(const float *weights, size_t n, struct engine **ret, struct error *e)
{
    char path[64];
    const char *overlays[] = {path};
    struct engine_config c = {.model_path = run_data(model),
                              .overlay_paths = overlays,
                              .n_overlays = 1,
                              .kv = "h2o:64,layers=measured",
                              .backend = "cpu",
                              .ctx = 256,
                              .n_seqs = 1,
                              .n_threads = 1};
    struct gguf_writer *w;
    char sha[65];
    int r;

    (void)snprintf(path, sizeof(path), "/tmp/pipit_test_layers_%d.gguf", (int)getpid());
    cr_assert_eq(gguf_sha256(c.model_path, NULL, sha, e), 0, "%s", e->text);
    cr_assert_eq(gguf_writer_create(path, &w, e), 0, "%s", e->text);
    cr_assert_eq(gguf_writer_str(w, "general.architecture", "llama", 5), 0);
    cr_assert_eq(gguf_writer_str(w, "pipit.overlay.base_sha256", sha, 64), 0);
    cr_assert_eq(gguf_writer_array(w, "pipit.cache.layer_weights", GGUF_F32, weights, n), 0);
    cr_assert_eq(gguf_writer_finish(w, e), 0, "%s", e->text);
    r = engine_create(&c, NULL, NULL, ret, e);
    cr_assert_eq(unlink(path), 0);
    return r;
}

static void answer(struct engine *e, const char *kv, struct run *r)
{
    int32_t ids[100];

    run_tokens(7, engine_info(e)->n_vocab, ids, 100);
    struct engine_request q = run_request(ids, 100, 60);

    q.kv = kv;
    run_submit(e, &q, r);
    run_all(e);
    cr_assert_eq(r->reason, ENGINE_LENGTH, "%s", r->error.text);
}

Test(layers, an_overlay_brings_weights)
{
    static const float same[] = {3, 3, 3, 3, 3};
    static const float steep[] = {9, 1, 1, 1, 1};
    struct engine *e;
    struct error err = {0};
    struct run equal;
    struct run measured;

    cr_assert_eq(open_weighed(same, 5, &e, &err), 0, "%s", err.text);
    answer(e, "h2o:64", &equal);
    answer(e, "h2o:64,layers=measured", &measured);
    cr_assert(run_same(&equal, &measured), "equal weights are equal budgets");
    run_clear(&measured);
    engine_destroy(e);
    cr_assert_eq(open_weighed(steep, 5, &e, &err), 0, "%s", err.text);
    answer(e, "h2o:64,layers=measured", &measured);
    cr_assert(!run_same(&equal, &measured), "other tokens are evicted");
    run_clear(&measured);
    run_clear(&equal);
    engine_destroy(e);
}

Test(layers, bad_weights_are_refused)
{
    static const struct {
        float weights[5];
        size_t n;
        int code;
        const char *says;
    } cases[] = {
        {{1, 1, 1, 1}, 4, -EBADMSG, "layer_weights"},
        {{1, -1, 1, 1, 1}, 5, -EBADMSG, "no weight of layer 1"},
        {{1, 1, NAN, 1, 1}, 5, -EBADMSG, "no weight of layer 2"},
        {{0, 0, 0, 0, 0}, 5, -ENOTSUP, "pipit-calibrate"},
    };
    struct engine *e;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err = {0};

        cr_assert_eq(open_weighed(cases[i].weights, cases[i].n, &e, &err), cases[i].code, "%zu: %s",
                     i, err.text);
        cr_assert(strstr(err.text, cases[i].says), "%s", err.text);
    }
}

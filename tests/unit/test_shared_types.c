/* SPDX-License-Identifier: Apache-2.0 */
/* shared=kv8: stores that several layers read are kept in 8 bits, the others in four. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/plan/plan.h"
#include "tests/unit/engine_run.h"

enum { N_PROMPT = 60, N_NEW = 12 };

static const char *const backends[] = {"ref", "cpu"};
static const char model[] = "heads_32.gguf";
static const char overlay[] = "heads_32_shared.gguf"; /* layer 0 alone, layers 1 and 2 share */

/* Logits of some tokens that are given; `kv` NULL: the engine's own. */
static void run_given(struct engine *e, const char *kv, struct run *ret)
{
    int32_t ids[N_PROMPT];
    int32_t forced[N_NEW];

    run_tokens(51, engine_info(e)->n_vocab, ids, N_PROMPT);
    run_tokens(52, engine_info(e)->n_vocab, forced, N_NEW);
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

    q.kv = kv;
    q.forced = forced;
    q.n_forced = N_NEW - 1;
    run_submit(e, &q, ret);
    run_all(e);
    cr_assert_eq(ret->reason, ENGINE_LENGTH, "%s", ret->error.text);
}

static double distance(const struct run *a, const struct run *b)
{
    double sum = 0;

    for (int32_t i = 0; i < N_NEW * a->n_vocab; i++) {
        double d = (double)a->logits[i] - (double)b->logits[i];

        sum += d * d;
    }
    return sqrt(sum / (N_NEW * a->n_vocab));
}

static void run_under(const char *backend, const char *over, const char *kv, struct run *ret)
{
    struct engine *e = run_engine_overlay(model, over, backend, 128, 1, kv);

    run_given(e, NULL, ret);
    engine_destroy(e);
}

/* Layer 0 has pages of four bits, the store of layers 1 and 2 pages of eight; both backends read
 * them alike, and as neither type alone would. */
Test(shared_types, of_a_store_that_two_layers_read)
{
    struct run run[2];
    struct run four[2];

    for (int b = 0; b < 2; b++) {
        struct engine *e =
            run_engine_overlay(model, overlay, backends[b], 128, 1, "kv4,shared=kv8");
        const struct plan *plan = engine_plan_of(e);
        struct run other;

        cr_assert_eq(plan->n_classes, 2);
        cr_assert_str_eq(plan->page_classes[0].name, "kv4 1x32 + kv4 1x32");
        cr_assert_str_eq(plan->page_classes[1].name, "i8 1x32 + fp8 1x32");
        run_given(e, NULL, &run[b]);
        engine_destroy(e);
        run_under(backends[b], overlay, "kv8", &other);
        cr_assert_gt(distance(&run[b], &other), 1e-3, "%s", backends[b]);
        run_clear(&other);
        run_under(backends[b], overlay, "kv4", &four[b]);
        cr_assert_gt(distance(&run[b], &four[b]), 1e-3, "%s", backends[b]);
    }
    /* values between two codes go one way or the other, by rounding of what comes before */
    cr_assert_lt(distance(&run[0], &run[1]), 1.5 * distance(&four[0], &four[1]), "%g of %g",
                 distance(&run[0], &run[1]), distance(&four[0], &four[1]));
    for (int b = 0; b < 2; b++) {
        run_clear(&run[b]);
        run_clear(&four[b]);
    }
}

Test(shared_types, nothing_changes_where_no_layer_shares)
{
    struct run plain;
    struct run same;

    run_under("cpu", NULL, "kv4", &plain);
    run_under("cpu", NULL, "kv4,shared=kv8", &same);
    cr_assert_eq(distance(&plain, &same), 0);
    run_clear(&plain);
    run_clear(&same);
}

/* Pages are of one kind or the other, so a plan must have both for a request to choose. */
Test(shared_types, a_request_chooses_among_what_is_planned)
{
    struct engine *e = run_engine_overlay(model, overlay, "cpu", 128, 1, "kv4");
    struct error err = {0};
    int32_t ids[N_PROMPT];
    uint64_t handle;
    struct run alone;
    struct run chosen;

    run_tokens(51, engine_info(e)->n_vocab, ids, N_PROMPT);
    struct engine_request q = run_request(ids, N_PROMPT, N_NEW);

    q.kv = "kv4,shared=kv8";
    cr_assert_eq(engine_submit(e, &q, &handle, &err), -ENOMEM);
    cr_assert_not_null(strstr(err.text, "layers that share"), "%s", err.text);
    err.code = 0;
    q.kv = "full"; /* f16: not what was meant */
    cr_assert_eq(engine_submit(e, &q, &handle, &err), -ENOMEM);
    cr_assert_not_null(strstr(err.text, "precision, as in kv4+full, or start"), "%s", err.text);
    engine_destroy(e);
    run_under("cpu", overlay, "kv4,shared=kv8", &alone);
    e = run_engine_overlay(model, overlay, "cpu", 128, 4, "kv4=50%;kv4,shared=kv8=50%");
    run_given(e, "kv4,shared=kv8", &chosen);
    cr_assert_eq(distance(&alone, &chosen), 0);
    engine_destroy(e);
    run_clear(&alone);
    run_clear(&chosen);
}

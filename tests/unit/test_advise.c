/* SPDX-License-Identifier: Apache-2.0 */
/* The policy that is chosen for a memory limit: the first of the table of advice whose plan fits,
 * to the byte, and the engine that is made with it. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/kv/kv.h"
#include "engine/kv/policy/advice.h"
#include "tests/unit/engine_run.h"

enum { CTX = 131072, MOST = 16 };

static char model[512];
static const char *model_name = "stories260K.gguf"; /* whose heads have 8 dims: not in four bits */

static struct engine_config config(const char *kv, int32_t ctx, uint64_t limit)
{
    struct engine_config c;

    (void)snprintf(model, sizeof(model), "%s", run_data(model_name));
    engine_config_default(&c);
    c.model_path = model;
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = ctx;
    c.kv = kv;
    c.memory_bytes = limit;
    return c;
}

/* 0 where the model has no such cache. */
static uint64_t needs(const char *kv, int32_t ctx)
{
    struct engine_config c = config(kv, ctx, UINT64_C(1) << 40);
    struct plan p;
    struct error e = {0};
    int r = engine_plan(&c, &p, &e);

    cr_assert(r == 0 || r == -ENOTSUP, "%s: %s", kv, e.text);
    return r ? 0 : p.total_bytes + p.mapped_bytes;
}

static int the_first_that_fits(void)
{
    const struct policy_advice *a;
    struct error e = {0};
    struct plan p;
    uint64_t before = UINT64_MAX;
    int n = 0;

    for (int i = 0; (a = policy_advice(i)); i++) {
        const struct policy_advice *got = NULL;
        uint64_t bytes = needs(a->kv, CTX);
        struct engine_config c = config("auto", CTX, bytes);

        if (bytes == 0 || bytes >= before) {
            continue; /* not for it; or its scores take more than its cache gives back */
        }
        n++;
        cr_assert_eq(engine_advise(&c, &p, &got, &e), 0, "%s: %s", a->kv, e.text);
        cr_assert_str_eq(got->kv, a->kv);
        cr_assert_eq(p.advice, got);
        cr_assert_eq(p.total_bytes + p.mapped_bytes, bytes);
        cr_assert_eq(engine_plan(&c, &p, &e), 0);
        cr_assert_eq(p.advice, got, "the plan of auto is the advice's");
        before = bytes;
    }

    struct engine_config c = config("auto", CTX, before - 1);

    cr_assert_eq(engine_plan(&c, &p, &e), -ENOMEM);
    cr_assert(strstr(e.text, "the plan needs"), "%s", e.text);
    cr_assert_eq(p.total_bytes + p.mapped_bytes, before,
                 "what needs least is refused with its own figures");
    return n;
}

Test(advise, the_first_that_fits)
{
    cr_assert_geq(the_first_that_fits(), 2); /* full and kv8 */
    model_name = "heads_32.gguf";
    cr_assert_geq(the_first_that_fits(), 4); /* k8v4 and kv4 too */
}

Test(advise, losses_are_in_order)
{
    const struct policy_advice *a = policy_advice(0);

    cr_assert_str_eq(a->kv, "full");
    for (int i = 1; policy_advice(i); i++) {
        const struct policy_advice *next = policy_advice(i);

        cr_assert(next->most >= a->most && next->least <= next->most);
        cr_assert(next->bytes <= a->bytes || (strstr(a->kv, "kv4") && !strstr(next->kv, "kv4")),
                  "%s holds more than %s: only for heads that 4 bits do not take", next->kv, a->kv);
        cr_assert(next->bytes < a->bytes || !strstr(next->kv, "expected"),
                  "%s is no cheaper than %s", next->kv, a->kv);
        cr_assert(next->evicts || !a->evicts, "what evicts nothing comes first");
        a = next;
    }
    cr_assert_null(policy_advice(-1));
    cr_assert_null(policy_advice(MOST));
}

/* Nobody asked for the whole context: it is cut before anything is evicted. */
Test(advise, a_context_is_cut_before_tokens_are_evicted)
{
    uint64_t bytes = needs("kv8", 0);
    struct engine_config c = config("auto", 0, bytes);
    struct error e = {0};
    struct plan p;

    cr_assert_eq(engine_plan(&c, &p, &e), 0, "%s", e.text);
    cr_assert_str_eq(p.advice->kv, "kv8");
    cr_assert_not(p.ctx_is_cut);
    c.memory_bytes = bytes - 1;
    cr_assert_eq(engine_plan(&c, &p, &e), 0, "%s", e.text);
    cr_assert_str_eq(p.advice->kv, "kv8");
    cr_assert(p.ctx_is_cut);
}

Test(advise, an_engine_takes_it)
{
    struct engine_config c = config("auto", 2048, needs("kv8", 2048));
    struct error e = {0};
    struct engine *engine;

    cr_assert_eq(engine_create(&c, NULL, NULL, &engine, &e), 0, "%s", e.text);
    cr_assert(strncmp(engine_info(engine)->kv, "kv8,", 4) == 0, "%s", engine_info(engine)->kv);
    cr_assert_str_eq(engine_plan_of(engine)->advice->kv, "kv8");
    engine_destroy(engine);
    c.model_path = "/nowhere.gguf";
    cr_assert_neq(engine_create(&c, NULL, NULL, &engine, &e), 0);
    cr_assert(strstr(e.text, "/nowhere.gguf"), "%s", e.text);
}

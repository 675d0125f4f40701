/* SPDX-License-Identifier: Apache-2.0 */
/* engine/sched/sched.h without the library around it: a small model on `ref`, and the rules of its
 * core. Who is admitted next, what a step is made of, what a cancel and an interrupt do, and that
 * every request ends with exactly one DONE and gives its sequence back. */

#include <criterion/criterion.h>
#include <string.h>

#include "engine/sched/sched.h"
#include "gguf/gguf.h"
#include "tests/unit/engine_run.h"

enum { CTX = 64, CHUNK = 16, MOST = 16 };

static struct {
    struct gguf *file;
    struct model *model;
    const struct backend_ops *ops;
    struct backend *be;
    struct geometry_store stores[64];
    struct cache *cache;
    struct sched *sched;
} w;

static struct told {
    int32_t n_tokens;
    int32_t first; /* the first token, */
    int order;     /* and the how-manieth of all first tokens it was */
    int n_done;
    enum engine_reason reason;
} told[MOST];
static int n_first;

static void begin(int32_t n_seqs)
{
    struct backend_config bc = {.n_threads = 1};
    struct backend_limits limits = {
        .max_rows = CHUNK + n_seqs, .max_decode = n_seqs, .max_seqs = n_seqs, .max_slots = CTX};
    struct geometry_config gc = {
        .stores = w.stores, .ctx = CTX, .n_seqs = n_seqs, .max_chunk = CHUNK, .n_q = 0};
    struct geometry g;
    struct error e = {0};

    memset(told, 0, sizeof(told));
    n_first = 0;
    cr_assert_eq(gguf_open(run_data("stories260K.gguf"), &w.file, &e), 0, "%s", e.text);
    cr_assert_eq(model_open(&(struct model_source){.base = w.file}, &w.model, &e), 0, "%s", e.text);
    cr_assert_eq(backend_find("ref", &w.ops, &e), 0);
    cr_assert_eq(w.ops->create(&bc, &w.be, &e), 0, "%s", e.text);
    model_limits(w.model, &limits);
    cr_assert_eq(w.ops->reserve(w.be, &limits, &e), 0, "%s", e.text);
    gc.ops = w.ops;
    gc.n_stores = w.model->n_stores;
    gc.n_q = limits.max_heads;
    for (int32_t i = 0; i < w.model->n_stores; i++) {
        const struct model_store *s = &w.model->stores[i];

        w.stores[i] = (struct geometry_store){
            .layer = s->layer, .n_k = s->n_k, .n_v = s->n_v, .k_dim = s->k_dim, .v_dim = s->v_dim};
    }
    cr_assert_eq(policy_parse_mix("full,chunk=16", &gc.mix, &e), 0, "%s", e.text);
    cr_assert_eq(geometry_make(&gc, &g, &e), 0, "%s", e.text);
    cr_assert_eq(kv_create(&g, w.be, &w.cache, &e), 0, "%s", e.text);
    cr_assert_eq(model_load(w.model, w.ops, w.be, &bc, NULL, NULL, &e), 0, "%s", e.text);
    cr_assert_eq(sched_create(&(struct sched_config){.model = w.model,
                                                     .cache = w.cache,
                                                     .identity = "a model of this test",
                                                     .ctx = CTX,
                                                     .n_seqs = n_seqs,
                                                     .batch_tokens = CHUNK + n_seqs,
                                                     .max_chunk = CHUNK},
                              &w.sched, &e),
                 0, "%s", e.text);
}

static void end(void)
{
    uint64_t used;
    uint64_t total;

    kv_totals(w.cache, &used, &total);
    cr_assert_eq(used, 0, "%llu bytes of pages are left behind", (unsigned long long)used);
    sched_destroy(w.sched);
    kv_destroy(w.cache);
    model_close(w.model);
    w.ops->destroy(w.be);
    gguf_close(w.file);
}

static void on_event(void *arg, const struct engine_event *ev)
{
    struct told *t = ev->user;

    (void)arg;
    cr_assert_eq(t->n_done, 0, "nothing follows a DONE");
    if (ev->type == ENGINE_EV_TOKEN) {
        if (t->n_tokens++ == 0) {
            t->first = ev->token;
            t->order = ++n_first;
        }
    } else if (ev->type == ENGINE_EV_DONE) {
        t->n_done++;
        t->reason = ev->reason;
    }
}

static uint64_t submit(int i, uint64_t principal, int32_t urgency, int32_t n_prompt, int32_t n_new)
{
    int32_t ids[CTX] = {0};
    struct engine_request q = run_request(ids, n_prompt, n_new);
    struct error e = {0};
    uint64_t handle = 0;

    run_tokens((uint64_t)i + 1, w.model->h.n_vocab, ids, n_prompt);
    q.kv = "full,chunk=16";
    q.principal = principal;
    q.urgency = urgency;
    q.user = &told[i];
    cr_assert_eq(sched_submit(w.sched, &q, &handle, &e), 0, "%s", e.text);
    return handle;
}

static int step(void)
{
    return sched_step(w.sched, on_event, NULL);
}

static void run(void)
{
    int n = 0;

    while (step() > 0) {
        cr_assert_lt(n++, 1000, "it ends");
    }
}

/* One sequence: turns go round principals; within one by priority, then by age. */
Test(sched, turns)
{
    begin(1);
    (void)submit(0, 1, 0, 5, 3); /* runs first: it is alone when the first step begins */
    cr_assert_gt(step(), 0);
    (void)submit(1, 1, 0, 5, 3);
    (void)submit(2, 1, 7, 5, 3);
    (void)submit(3, 2, 0, 5, 3);
    (void)submit(4, 2, 0, 5, 3);
    (void)submit(5, 3, -9, 5, 3);
    run();
    cr_assert_eq(told[0].order, 1);
    cr_assert_eq(told[3].order, 2, "who was never served, the older one");
    cr_assert_eq(told[5].order, 3, "whatever its priority among other users");
    cr_assert_eq(told[2].order, 4, "the first user's turn: the higher priority");
    cr_assert_eq(told[4].order, 5);
    cr_assert_eq(told[1].order, 6);
    end();
}

/* What a request says depends on nobody else, whatever steps it shares. */
Test(sched, company_changes_nothing)
{
    int32_t alone[6];

    begin(1);
    for (int i = 0; i < 6; i++) {
        (void)submit(i, 1, 0, 3 + 9 * i, 4);
    }
    run();
    for (int i = 0; i < 6; i++) {
        alone[i] = told[i].first;
        cr_assert_eq(told[i].n_tokens, 4);
        cr_assert_eq(told[i].n_done, 1);
        cr_assert_eq(told[i].reason, ENGINE_LENGTH);
    }
    end();
    begin(3);
    for (int i = 0; i < 6; i++) {
        (void)submit(i, (uint64_t)i % 2, 0, 3 + 9 * i, 4);
    }
    run();
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(told[i].first, alone[i], "request %d", i);
        cr_assert_eq(told[i].n_tokens, 4);
    }
    end();
}

/* A large request is not overtaken for ever by small ones that come behind it. */
Test(sched, the_one_whose_turn_it_is_is_waited_for)
{
    begin(2);
    (void)submit(0, 1, 0, 4, 20);
    (void)submit(1, 2, 0, 4, 6);
    cr_assert_gt(step(), 0);
    (void)submit(2, 3, 0, 40, 20); /* the whole context */
    (void)submit(3, 1, 0, 4, 2);
    (void)submit(4, 2, 0, 4, 2);
    run();
    cr_assert_eq(told[2].order, 3, "before those who were served already");
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(told[i].n_done, 1, "request %d", i);
    }
    end();
}

Test(sched, cancels)
{
    struct engine_counters counters;
    uint64_t waits;
    uint64_t runs;

    begin(1);
    runs = submit(0, 1, 0, 5, 40);
    waits = submit(1, 1, 0, 5, 3);
    (void)submit(2, 1, 0, 5, 3);
    cr_assert_gt(step(), 0);
    cr_assert_eq(sched_cancel(w.sched, waits, ENGINE_CANCELLED), 0);
    cr_assert_gt(step(), 0);
    cr_assert_eq(told[1].n_done, 1, "one that waits ends at the next step");
    cr_assert_eq(told[1].n_tokens, 0);
    cr_assert_eq(sched_cancel(w.sched, runs, ENGINE_CANCELLED), 0);
    run();
    cr_assert_eq(told[0].n_done, 1);
    cr_assert_eq(told[0].reason, ENGINE_CANCELLED);
    cr_assert_lt(told[0].n_tokens, 40);
    cr_assert_eq(told[2].n_tokens, 3, "its sequence went to the next one");
    cr_assert_neq(sched_cancel(w.sched, runs, ENGINE_CANCELLED), 0, "it is gone");
    sched_counters(w.sched, &counters);
    cr_assert_eq(counters.n_running, 0);
    cr_assert_eq(counters.n_queued, 0);
    cr_assert_eq(counters.kv_bytes_used, 0);
    end();
}

/* A step that was interrupted is taken up by the next one, and says what it would have said. */
Test(sched, interrupts)
{
    int32_t first;
    int n = 0;

    begin(2);
    (void)submit(0, 1, 0, 30, 5);
    run();
    first = told[0].first;
    end();
    begin(2);
    (void)submit(0, 1, 0, 30, 5);
    do {
        if (n % 2 == 0) { /* seen before the first operation: that step gets no further */
            sched_interrupt(w.sched);
        }
        cr_assert_lt(n++, 1000, "it gets on");
    } while (step() > 0);
    cr_assert_eq(told[0].first, first);
    cr_assert_eq(told[0].n_tokens, 5);
    end();
}

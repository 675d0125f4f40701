/* SPDX-License-Identifier: Apache-2.0 */
/* The host side of the cuda backend under a whole engine, over the fake run-time library: what is
 * allocated is in the plan and stays as it is; a decode step is one graph, with these kernels, in
 * this order; a device that shares the host's memory is planned as one.
 *
 *     test_cuda_host MODULE FOLDER */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/kv/plan/plan.h"
#include "engine/kv/policy/advice.h"
#include "tests/cuda/fake_engine.h"

enum { GRAIN = 2 << 20, ALLOCS = 24 /* that the plan rounds up */ };

/* ---- the plan ----------------------------------------------------------------------------------
 */

static bool allocated(uint64_t bytes)
{
    const struct fake_call *c;
    int n;

    c = fake.log(&n);
    for (int i = 0; i < n; i++) {
        if (c[i].kind == FAKE_ALLOC && c[i].bytes == bytes) {
            return true;
        }
    }
    return false;
}

/* Device memory, as the driver rounds it, and what it may take for graphs, are within the plan; so
 * are the bytes themselves within the plan without what it rounds up. */
static void plan_holds(int device, const char *model, const char *kv)
{
    const struct fake_device *d = &fake_devices[device];
    const struct plan *p;
    struct engine *e = NULL;
    struct error err = {0};
    uint64_t planned;
    uint64_t most;
    int r;

    fake.start(d);
    r = fake_engine(model, kv, 3, &e, &err);
    expect(r == 0, "%s %s: %s", model, kv, err.text);
    if (r < 0) {
        return;
    }
    p = engine_plan_of(e);
    planned = d->integrated ? p->total_bytes : p->total_bytes - p->host_bytes;
    expect((p->device_available_bytes == 0) == (d->integrated != 0), "%s: whose memory it is", kv);
    expect(p->prompt_rows == (d->integrated || p->ctx <= 256 ? 512 : 2048),
           "%s: %d tokens of a prompt in a step", kv, p->prompt_rows);
    expect(fake.device_bytes(GRAIN) + fake.pinned_bytes() <= planned,
           "%s %s: %llu of %llu planned bytes", model, kv,
           (unsigned long long)fake.device_bytes(GRAIN), (unsigned long long)planned);
    expect(fake.device_bytes(1) + fake.pinned_bytes() <= planned - (uint64_t)ALLOCS * GRAIN,
           "%s %s: %llu bytes, %llu planned without what is rounded up", model, kv,
           (unsigned long long)fake.device_bytes(1),
           (unsigned long long)planned - (uint64_t)ALLOCS * GRAIN);
    expect(fake_count(FAKE_ALLOC) <= ALLOCS, "%s: %d allocations", kv, fake_count(FAKE_ALLOC));
    expect(allocated(p->weights_bytes), "%s: the weights are one allocation, as planned", kv);
    expect(allocated(p->page_classes[0].page_bytes * p->page_classes[0].n_pages),
           "%s: and so are the pages", kv);
    most = fake.most_bytes();
    fake.log_clear();
    expect(fake_run(e, 2) == 0 && fake_run(e, 3) == 0, "%s: two batches", kv);
    expect(fake_count(FAKE_ALLOC) == 0, "%s: nothing is allocated after the start", kv);
    expect(fake_count(FAKE_GRAPH_LAUNCH) > 0, "%s: steps are graphs", kv);
    expect(fake.most_bytes() - most <= 6 * d->graph_bytes, "%s: but for graphs", kv);
    expect(fake.device_bytes(GRAIN) + fake.pinned_bytes() <= planned, "%s: graphs are planned", kv);
    engine_destroy(e);
    expect_clean(kv);
}

/* Graphs beyond what the plan has for them: fewer, or none, and steps go on. */
static void graphs_bounded(uint64_t bytes, bool some)
{
    char news[256] = "";
    struct fake_device d = fake_devices[SM_90];
    struct engine *e = NULL;
    struct error err = {0};

    d.graph_bytes = bytes;
    fake.start(&d);
    expect(fake_engine("stories260K", "full", 3, &e, &err) == 0, "%s", err.text);
    if (!e) {
        return;
    }
    for (int i = 1; i <= 3; i++) {
        expect(fake_run(e, i) == 0, "%d sequences", i);
    }
    expect((fake_count(FAKE_GRAPH_LAUNCH) > 0) == some, "%llu bytes a graph: graphs",
           (unsigned long long)bytes);
    expect(engine_news(e, news, sizeof(news)) != some, "%llu bytes a graph: something is said",
           (unsigned long long)bytes);
    expect(some || strstr(news, "kernel by kernel"), "%llu bytes a graph: \"%s\" is said",
           (unsigned long long)bytes, news);
    expect(!engine_news(e, news, sizeof(news)), "once");
    expect(fake.device_bytes(GRAIN) + fake.pinned_bytes() <=
               engine_plan_of(e)->total_bytes - engine_plan_of(e)->host_bytes,
           "%llu bytes a graph: within the plan", (unsigned long long)bytes);
    engine_destroy(e);
    expect_clean("graphs beyond the plan");
}

/* A driver that does not say what is free costs no step: graphs count as the plan has them. */
static void free_unknown(void)
{
    struct engine *e = NULL;
    struct error err = {0};

    fake.start(&fake_devices[SM_90]);
    expect(fake_engine("stories260K", "full", 3, &e, &err) == 0, "%s", err.text);
    if (!e) {
        return;
    }
    fake.fail_free(2);
    for (int i = 1; i <= 3; i++) {
        int r = fake_run(e, i);

        expect(r == 0, "free memory is not known, %d sequences: %d", i, r);
    }
    expect(fake_count(FAKE_GRAPH_LAUNCH) > 0, "free memory is not known: graphs");
    engine_destroy(e);
    expect_clean("free memory is not known");
}

/* Graphs of which the device takes exactly what is left, or nothing, are counted as well. */
static void graph_takes_all(void)
{
    struct fake_device d = fake_devices[SM_90];
    struct engine *e = NULL;
    struct error err = {0};
    uint64_t held;

    fake.start(&d);
    expect(fake_engine("stories260K", "full", 1, &e, &err) == 0, "%s", err.text);
    if (!e) {
        return;
    }
    held = fake.device_bytes(1);
    fake.graph_bytes(d.memory - held);
    expect(fake_run(e, 1) == 0, "a request");
    expect(fake_count(FAKE_GRAPH) > 0, "a graph was made");
    expect(fake.device_bytes(1) == held, "a graph keeps all that was free");
    fake.graph_bytes(1 << 20);
    for (int i = 0; i < 20; i++) {
        expect(fake_run(e, 1) == 0, "request %d after", i);
    }
    expect(fake_count(FAKE_GRAPH_LAUNCH) > 0, "room comes back, graphs do not");
    engine_destroy(e);
    expect_clean("a graph takes all that is free");
}

/* ---- graphs ------------------------------------------------------------------------------------
 */

static bool same(const struct fake_call *c, const char *name)
{
    return strncmp(c->name + (c->name[0] == '('), name, strlen(name)) == 0;
}

/* Each step is handed over before the tokens of the one before it are waited for, and nothing else
 * is: `n` calls of a request's decode steps. */
static void begun_ahead(const struct fake_call *c, int n)
{
    int n_steps = 0;
    int n_events = 0;

    for (int i = 0; i < n; i++) {
        n_steps += c[i].kind == FAKE_GRAPH_LAUNCH ||
                   (c[i].kind == FAKE_LAUNCH && same(&c[i], "sample_rows"));
        n_events += c[i].kind == FAKE_EVENT;
        expect(c[i].kind != FAKE_EVENT || n_steps > n_events || n_events == FAKE_NEW - 1,
               "token %d is waited for when %d steps are under way", n_events, n_steps);
        expect(c[i].kind != FAKE_WAIT || n_steps == 0, "a wait for everything at step %d", n_steps);
        expect(c[i].kind != FAKE_READ || n_steps == 0 || c[i].bytes == sizeof(int32_t),
               "step %d reads %llu bytes", n_steps, (unsigned long long)c[i].bytes);
    }
    expect(n_steps == FAKE_NEW - 1 && n_events == FAKE_NEW - 1, "%d steps, %d waits", n_steps,
           n_events);
}

/* A step of the stories model (5 layers of f32): these kernels in this order, all later steps a
 * launch of them, in which rope + store, attention and the draw are changed. From sm_90 on those
 * that wait for themselves begin early. */
static void graph_of_a_step(int device)
{
    static const char *const layer[] = {"prepare_rows", "rows_f32", "rope_store",   "decode_stream",
                                        "prepare_rows", "rows_f32", "prepare_rows", "rows_f32",
                                        "prepare_rows", "rows_f32"};
    enum { LAYER = sizeof(layer) / sizeof(layer[0]), LAYERS = 5, STEP = 1 + LAYERS * LAYER + 4 };
    const struct fake_call *c;
    struct engine *e = NULL;
    struct error err = {0};
    int nodes[STEP];
    int n;
    int n_nodes = 0;
    int n_launches = 0;
    int n_wait = 0; /* nodes that could begin early */
    int n_early = 0;

    fake.start(&fake_devices[device]);
    expect(fake_engine("stories260K", "full", 1, &e, &err) == 0, "%s", err.text);
    if (!e) {
        return;
    }
    fake.log_clear();
    expect(fake_run(e, 1) == 0, "a request");
    c = fake.log(&n);
    for (int i = 0; i < n; i++) {
        if (c[i].kind == FAKE_NODE) {
            nodes[n_nodes++ % STEP] = i;
            n_wait += same(&c[i], "prepare_rows") || same(&c[i], "decode_stream") ||
                      same(&c[i], "gather_rows");
        }
        n_early += c[i].kind == FAKE_EARLY;
        if (c[i].kind == FAKE_GRAPH || c[i].kind == FAKE_GRAPH_LAUNCH) {
            expect(c[i].n == STEP, "%d nodes of %d", c[i].n, STEP);
            n_launches += c[i].kind == FAKE_GRAPH_LAUNCH;
        }
        if (c[i].kind == FAKE_CHANGE) {
            expect(same(&c[i], "rope_store") || same(&c[i], "decode_stream") ||
                       same(&c[i], "sample_rows"),
                   "%s is changed", c[i].name);
        }
    }
    begun_ahead(c, n);
    expect(n_nodes == STEP, "one graph of %d nodes: %d", STEP, n_nodes);
    expect(n_early == (device == SM_86 ? 0 : n_wait), "%d of %d nodes begin early", n_early,
           n_wait);
    /* the first new token comes of the prompt, the first step goes kernel by kernel */
    expect(n_launches == FAKE_NEW - 2, "%d launches", n_launches);
    for (int i = 0; i < STEP && n_nodes == STEP; i++) {
        const char *want = i == 0 ? "embed" : layer[(i - 1) % LAYER];

        if (i >= STEP - 4) { /* rows that need logits, their norm, the head, the token */
            static const char *const last[] = {"gather_rows", "prepare_rows", "rows_f32",
                                               "sample_rows"};

            want = last[i - (STEP - 4)];
        }
        expect(same(&c[nodes[i]], want), "node %d is %s, not %s", i, c[nodes[i]].name, want);
    }
    engine_destroy(e);
    expect_clean("a step as a graph");
}

/* An engine that has answered a request, of which the log has the decode steps; NULL: none. */
static struct engine *decode_logged(const char *model, const char *kv)
{
    struct engine *e = NULL;
    struct error err = {0};

    fake.start(&fake_devices[SM_90]);
    expect(fake_engine(model, kv, 1, &e, &err) == 0, "%s", err.text);
    if (!e) {
        return NULL;
    }
    expect(fake_submit(e, &err) == 0 && engine_step(e, fake_ignore, NULL) > 0, "a prompt: %s",
           err.text);
    fake.log_clear();
    while (engine_step(e, fake_ignore, NULL) > 0) {
    }
    return e;
}

/* Layers score their slots at different tokens: behind the step, so that all steps are one graph.
 */
static void scores_behind_the_graph(void)
{
    static const char *const kernels[] = {"expect_future", "expect_keys", "expect_softmax",
                                          "expect_scores"};
    const struct fake_call *c;
    struct engine *e;
    int n_launches = 0;
    int n_scores = 0;
    int n;

    e = decode_logged("stories260K", "expected:20,every=5");
    if (!e) {
        return;
    }
    c = fake.log(&n);
    for (int i = 0; i < n; i++) {
        bool scores = c[i].kind == FAKE_LAUNCH && strstr(c[i].name, "expect_");

        n_launches += c[i].kind == FAKE_GRAPH_LAUNCH;
        expect(c[i].kind != FAKE_NODE || !strstr(c[i].name, "expect_"), "%s is in a graph",
               c[i].name);
        expect(!scores || same(&c[i], kernels[n_scores % 4]), "%s, not %s", c[i].name,
               kernels[n_scores % 4]);
        n_scores += scores;
    }
    expect(fake_count(FAKE_GRAPH) == 1, "%d graphs", fake_count(FAKE_GRAPH));
    expect(n_launches == FAKE_NEW - 2, "%d launches", n_launches);
    expect(n_scores == 4 * (FAKE_NEW - 1), "%d kernels that score", n_scores);
    engine_destroy(e);
    expect_clean("scores behind a graph");
}

/* A step that predicts: layer i - 1 first chooses for layer i (from the third on), the choice
 * stays on the device, and all of it is one graph. Nothing but the token comes back. */
static void graph_that_foretells(void)
{
    static const char *const ahead[] = {"prepare_rows", "rows_f32",       "rope_store",
                                        "skew_queries", "rank_predicted", "sum_predicted",
                                        "predict"};
    static const char *const all[] = {"decode_stream"};
    static const char *const chosen[] = {"attend_chosen"};
    static const char *const before[] = {"prepare_rows", "rows_f32"};
    static const char *const store[] = {"rope_store"};
    static const char *const after[] = {"prepare_rows", "rows_f32",     "prepare_rows",
                                        "rows_f32",     "prepare_rows", "rows_f32"};
    static const char *const last[] = {"gather_rows", "prepare_rows", "rows_f32", "sample_rows"};
    enum { LAYERS = 6, MOST = 1 + LAYERS * 19 + 4 };
    const char *want[MOST] = {"embed"};
    int n_want = 1;
    const struct fake_call *c;
    struct engine *e;
    int n_nodes = 0;
    int n_launches = 0;
    int n;

    for (int i = 0; i < LAYERS; i++) {
        struct {
            const char *const *names;
            int n;
        } parts[] = {{ahead, i >= 1 && i + 1 < LAYERS ? 7 : 0},
                     {before, 2},
                     {store, 1},
                     {i >= 2 ? chosen : all, 1},
                     {after, 6}};

        for (int k = 0; k < 5; k++) {
            for (int j = 0; j < parts[k].n; j++) {
                want[n_want++] = parts[k].names[j];
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        want[n_want++] = last[i];
    }
    e = decode_logged("cache_model", "infinigen:count=9");
    if (!e) {
        return;
    }
    c = fake.log(&n);
    for (int i = 0; i < n; i++) {
        if (c[i].kind == FAKE_NODE) {
            expect(n_nodes < n_want && same(&c[i], want[n_nodes]), "node %d is %s, not %s", n_nodes,
                   c[i].name, n_nodes < n_want ? want[n_nodes] : "the last");
            n_nodes++;
        }
        n_launches += c[i].kind == FAKE_GRAPH_LAUNCH;
        expect(c[i].kind != FAKE_READ || c[i].bytes == sizeof(int32_t), "%llu bytes are read",
               (unsigned long long)c[i].bytes);
    }
    expect(n_nodes == n_want, "%d nodes of %d", n_nodes, n_want);
    expect(n_launches == FAKE_NEW - 2, "%d launches", n_launches);
    engine_destroy(e);
    expect_clean("a step that predicts");
}

/* Pages in memory of the host: they are the host's sum, the rest the device's; what a layer will
 * read is brought on a branch that its attention joins, and nothing but the token comes back. */
static void pool_on_the_host(void)
{
    const struct fake_call *c;
    const struct plan *p;
    struct engine *e = NULL;
    struct error err = {0};
    uint64_t pages = 0;
    int n_brings = 0;
    int n_launched = 0; /* of them kernel by kernel */
    int branch = 0;     /* the last bring's number, until it is joined */
    int from = 0;       /* and what it follows */
    int n;

    fake.start(&fake_devices[SM_90]);
    expect(fake_engine("cache_model", "infinigen:count=9,pool=host", 1, &e, &err) == 0, "%s",
           err.text);
    if (!e) {
        return;
    }
    p = engine_plan_of(e);
    for (int32_t i = 0; i < p->n_classes; i++) {
        pages += strstr(p->page_classes[i].name, "(host)")
                     ? p->page_classes[i].page_bytes * p->page_classes[i].n_pages
                     : 0;
    }
    expect(pages > 0 && fake.mapped_bytes() == pages, "%llu bytes are mapped, of %llu",
           (unsigned long long)fake.mapped_bytes(), (unsigned long long)pages);
    expect(p->host_bytes >= pages, "they are the host's");
    expect(fake.device_bytes(1) + fake.pinned_bytes() <= p->total_bytes - p->host_bytes,
           "%llu bytes of the device, %llu planned", (unsigned long long)fake.device_bytes(1),
           (unsigned long long)(p->total_bytes - p->host_bytes));
    expect(fake_submit(e, &err) == 0 && engine_step(e, fake_ignore, NULL) > 0, "a prompt: %s",
           err.text);
    fake.log_clear();
    while (engine_step(e, fake_ignore, NULL) > 0) {
    }
    c = fake.log(&n);
    for (int i = 0; i < n; i++) {
        expect(c[i].kind != FAKE_READ || c[i].bytes == sizeof(int32_t), "%llu bytes are read",
               (unsigned long long)c[i].bytes);
        if (c[i].kind == FAKE_LAUNCH && same(&c[i], "bring")) {
            n_launched++;
            expect(c[i].stream == 1, "kernel by kernel it has a stream of its own");
            expect(i > 0 && c[i - 1].kind == FAKE_FOLLOW && c[i - 1].stream == 1,
                   "which waits for the kernels before");
        }
        if (c[i].kind != FAKE_NODE) {
            continue;
        }
        if (same(&c[i], "bring")) {
            n_brings++;
            branch = c[i].node;
            from = c[i].after[0];
            expect(from == branch - 1, "bring follows the attention before");
        } else if (branch && c[i].node == branch + 1) {
            expect(c[i].after[0] == from && c[i].after[1] == 0, "the main chain goes on beside it");
        }
        if (same(&c[i], "attend_chosen")) {
            expect(branch > 0 && c[i].after[1] == branch, "attention waits for what was brought");
        } else {
            expect(c[i].after[1] == 0 || same(&c[i], "bring"), "%s waits for a branch", c[i].name);
        }
    }
    expect(n_brings == 4 && n_launched >= 4, "%d layers are brought, %d kernel by kernel", n_brings,
           n_launched);
    engine_destroy(e);
    expect(fake.mapped_bytes() == 0, "mapped memory is given back");
    expect_clean("pool=host");
    for (int device = 0; device < N_DEVICES; device++) {
        if (fake_devices[device].integrated) {
            fake.start(&fake_devices[device]);
            e = NULL;
            expect(fake_engine("cache_model", "infinigen:count=9,pool=host", 1, &e, &err) ==
                           -ENOTSUP &&
                       strstr(err.text, "shares its memory"),
                   "pool=host where there is one memory: \"%s\"", err.text);
            expect_clean("pool=host, one memory");
        }
    }
}

static void note_token(void *arg, const struct engine_event *ev)
{
    *(bool *)arg |= ev->type == ENGINE_EV_TOKEN;
}

/* Waits of the host for everything until a request has its first token; so many cuts are made. */
static int waits_of_a_prompt(const char *kv, int n_cuts)
{
    const struct fake_call *c;
    struct engine *e = NULL;
    struct error err = {0};
    bool token = false;
    int n_made = 0;
    int n_waits;
    int n;

    fake.start(&fake_devices[SM_90]);
    expect(fake_engine("stories260K", kv, 1, &e, &err) == 0, "%s: %s", kv, err.text);
    if (!e) {
        return -1;
    }
    fake.log_clear();
    expect(fake_submit(e, &err) == 0, "%s: %s", kv, err.text);
    while (!token && engine_step(e, note_token, &token) > 0) {
    }
    c = fake.log(&n);
    for (int i = 0; i < n; i++) {
        n_made += c[i].kind == FAKE_LAUNCH && same(&c[i], "close_gaps");
    }
    expect(n_made == n_cuts, "%s: %d cuts", kv, n_made);
    n_waits = fake_count(FAKE_WAIT);
    engine_destroy(e);
    expect_clean(kv);
    return n_waits;
}

/* A policy's budget holds what must stay by its rules, so no cut is waited for. snapkv pools scores
 * on the host. */
static void cuts_unwaited(void)
{
    enum { STORES = 5 };
    static const struct {
        const char *kv;
        int n_cuts; /* of a store */
    } cases[] = {
        {"h2o:20", 1},
        {"h2o:20,recent=100%", 1},
        {"sinks:4+h2o:20", 1},
        {"h2o:20,prefill=layered", 1},
        {"h2o:20,prefill=bounded,chunk=16", 2},
        {"keyformer:20", 1},
        {"keyformer:20,mode=as-shipped", 1},
        {"recency:20", 1},
        {"expected:20", 1},
        {"kv8+sinks:4+window:16", 1},
    };
    int n_full = waits_of_a_prompt("full", 0);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int n = waits_of_a_prompt(cases[i].kv, STORES * cases[i].n_cuts);

        expect(n == n_full, "%s: %d waits up to the first token, %d under full", cases[i].kv, n,
               n_full);
    }
}

/* What the file's slots would have to go to is not memory of the host. */
static void no_disk(void)
{
    struct engine *e = NULL;
    struct error err = {0};

    fake.start(&fake_devices[SM_90]);
    expect(fake_engine("cache_model", "infinigen:count=9,pool=disk", 1, &e, &err) == -ENOTSUP &&
               strstr(err.text, "has memory of its own"),
           "pool=disk: \"%s\"", err.text);
    expect_clean("pool=disk");
}

/* SwiftKV's prompt: K and V of all four deep stores of every row are one product of eight parts,
 * behind the shallow layers, and one row goes on. */
static void deep_product(void)
{
    enum { SHALLOW = 2, DEEP = 4, TILE = 4 };
    const char *overlays[1];
    static char path[2][512];
    const struct fake_call *c;
    struct engine_config config;
    struct engine *e = NULL;
    struct error err = {0};
    int n_products = 0;
    int n_deep = 0;
    int n_stores = 0;
    int n;

    fake.start(&fake_devices[SM_90]);
    (void)snprintf(path[0], sizeof(path[0]), "%s/cache_model.gguf", fake_folder);
    (void)snprintf(path[1], sizeof(path[1]), "%s/cache_swiftkv_2_1.gguf", fake_folder);
    engine_config_default(&config);
    overlays[0] = path[1];
    config.model_path = path[0];
    config.overlay_paths = overlays;
    config.n_overlays = 1;
    config.backend = fake_path;
    config.ctx = 128;
    config.n_threads = 1;
    expect(engine_create(&config, NULL, NULL, &e, &err) == 0, "%s", err.text);
    if (!e) {
        return;
    }
    fake.log_clear();
    expect(fake_submit(e, &err) == 0 && engine_step(e, fake_ignore, NULL) >= 0, "a prompt: %s",
           err.text);
    c = fake.log(&n);
    for (int i = 0; i < n; i++) {
        bool product = c[i].kind == FAKE_LAUNCH && same(&c[i], "rows_f32");

        n_products += product;
        n_stores += n_deep > 0 && n_products == 4 * SHALLOW + 1 && same(&c[i], "rope_store");
        if (product && c[i].grid[0] == 2 * DEEP && c[i].grid[1] == FAKE_PROMPT / TILE) {
            expect(n_products == 4 * SHALLOW + 1, "the deep product is number %d", n_products);
            n_deep++;
        }
        expect(!product || n_products <= 4 * SHALLOW + 1 || c[i].grid[1] == 1,
               "product %d is of more than a row", n_products);
    }
    expect(n_deep == 1, "%d deep products", n_deep);
    expect(n_products == 4 * SHALLOW + 1 + 4 * DEEP + 1, "%d products", n_products);
    expect(n_stores == DEEP, "%d stores of what it gave", n_stores);
    engine_destroy(e);
    expect_clean("SwiftKV's prompt");
}

/* Launches in the log are of blocks of which no two fit a multiprocessor: it has 1 KB more than a
 * block may ask for, and keeps 1 KB of each. */
static void alone_on_a_multiprocessor(const struct fake_device *d)
{
    int n;
    const struct fake_call *c = fake.log(&n);

    for (int i = 0; i < n; i++) {
        expect(c[i].kind != FAKE_LAUNCH || 2 * (c[i].shared + 1024) > d->shared_max + 1024,
               "two blocks of %zu bytes fit a multiprocessor", c[i].shared);
    }
}

/* A decode row of 16-bit weights is one launch, norm included, whatever its columns; two rows with
 * a norm are two. */
static void fused_products(void)
{
    static const int32_t cols[] = {64, 6656, 8192, 10240, 12288};
    static uint16_t rows[16 * 12288];
    static const float ones[12288];
    struct backend_limits limits = {.max_rows = 2, .max_decode = 2, .max_cols = 12288};
    struct backend_config config = {0};
    struct backend *be = NULL;
    struct error err = {0};
    void *x = NULL;
    int r;

    fake.start(&fake_devices[SM_90]);
    r = fake.ops->create(&config, &be, &err);
    r = r ? r : fake.ops->reserve(be, &limits, &err);
    r = r ? r : fake.ops->alloc(be, 4 * sizeof(ones), "x", &x, &err);
    for (int i = 0; !r && i < 2 * 5; i++) {
        enum dtype type = i % 2 ? DTYPE_BF16 : DTYPE_F16;
        int32_t n = cols[i / 2];
        struct ops_weight_desc dw = {.name = "w",
                                     .type = type,
                                     .role = OPS_ROLE_MATMUL,
                                     .n_rows = 16,
                                     .n_cols = n,
                                     .data = rows};
        struct ops_weight_desc dn = {.name = "n",
                                     .type = DTYPE_F32,
                                     .role = OPS_ROLE_VECTOR,
                                     .n_rows = 1,
                                     .n_cols = n,
                                     .data = ones};
        struct ops_weight w = {0};
        struct ops_weight norm = {0};

        r = fake.ops->weight_create(be, &dw, &w, &err);
        r = r ? r : fake.ops->weight_create(be, &dn, &norm, &err);
        for (int k = 1; !r && k <= 2; k++) {
            struct ops_matmul p = {
                .rows = {k, k}, .norm = {.w = &norm, .eps = 1e-5f}, .x = x, .ldx = n, .n_parts = 1};
            bool fused = k == 1;

            p.part[0].w = &w;
            p.part[0].y = (float *)x + 2 * (size_t)n;
            p.part[0].ldy = 16;
            fake.log_clear();
            r = fake.ops->matmul(be, &p);
            expect(fake_count(FAKE_LAUNCH) == (fused ? 1 : 2), "%d rows of %d columns: %d launches",
                   k, n, fake_count(FAKE_LAUNCH));
            if (fused) {
                alone_on_a_multiprocessor(&fake_devices[SM_90]);
            }
        }
        fake.ops->weight_destroy(be, &w);
        fake.ops->weight_destroy(be, &norm);
    }
    expect(r == 0, "%d: %s", r, err.text);
    fake.ops->free(be, x, 0);
    fake.ops->destroy(be);
    expect_clean("fused products");
}

/* q, k and v of decode rows are normed, rotated and stored by the product that makes them: a launch
 * for each type of weight, and one more to prepare the rows but for one row of 16 bits alone. What
 * the products do not store goes the long way. */
static void fused_stores(void)
{
    enum { K = 256, DIM = 64 };
    static const struct {
        enum dtype type[3];
        int32_t n, n_decode;
        int launches;
    } cases[] = {
        {{DTYPE_BF16, DTYPE_BF16, DTYPE_BF16}, 1, 1, 1},
        {{DTYPE_F16, DTYPE_F16, DTYPE_F16}, 4, 4, 2},
        {{DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q4_K}, 1, 1, 2},
        {{DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K}, 8, 8, 3},
        {{DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K}, 9, 9, 4}, /* gemm_q_few stores no heads */
        {{DTYPE_BF16, DTYPE_BF16, DTYPE_Q8_0}, 1, 1, 3},
        {{DTYPE_F32, DTYPE_F32, DTYPE_F32}, 1, 1, 3},
        {{DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_Q8_0}, 2, 1, 4},
        {{DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_Q8_0}, 17, 17, 4},
    };
    static const int32_t heads[3] = {4, 2, 2};
    struct backend_limits limits = {.max_rows = 32,
                                    .max_decode = 32,
                                    .max_seqs = 32,
                                    .max_cols = K,
                                    .max_heads = 4,
                                    .max_head_dim = DIM,
                                    .max_slots = 64};
    struct ops_kv_layout l = {.n_groups = 2,
                              .k_heads = 1,
                              .v_heads = 1,
                              .k_dim = DIM,
                              .v_dim = DIM,
                              .k_type = OPS_KV_FP8,
                              .v_type = OPS_KV_FP8};
    struct backend_config config = {0};
    struct backend *be = NULL;
    struct error err = {0};
    void *at = NULL;
    int r;

    fake.start(&fake_devices[SM_90]);
    r = fake.ops->create(&config, &be, &err);
    r = r ? r : fake.ops->reserve(be, &limits, &err);
    r = r ? r : fake.ops->kv_layout(&l, &err);
    r = r ? r : fake.ops->alloc(be, 1 << 20, "operands", &at, &err);
    for (size_t i = 0; !r && i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ops_rows rows = {cases[i].n, cases[i].n_decode};
        struct ops_seq seqs[32] = {0};
        struct ops_weight w[3];
        struct ops_matmul m = {.rows = rows, .x = at, .ldx = K, .n_parts = 3};
        struct ops_rope_store p = {.rows = rows,
                                   .q = at,
                                   .k = at,
                                   .v = at,
                                   .ldq = 4 * DIM,
                                   .ldk = 2 * DIM,
                                   .ldv = 2 * DIM,
                                   .n_q = heads[0],
                                   .n_k = heads[1],
                                   .n_v = heads[2],
                                   .k_dim = DIM,
                                   .seqs = seqs,
                                   .n_seqs = cases[i].n};

        for (int k = 0; k < 3; k++) {
            w[k] = (struct ops_weight){.type = cases[i].type[k],
                                       .role = OPS_ROLE_MATMUL,
                                       .n_rows = heads[k] * DIM,
                                       .n_cols = K,
                                       .device = at};
            m.part[k].w = &w[k];
            m.part[k].y = at;
            m.part[k].ldy = heads[k] * DIM;
        }
        for (int32_t k = 0; k < cases[i].n; k++) {
            seqs[k] = (struct ops_seq){.row0 = k, .n_rows = 1, .pos0 = k};
            seqs[k].kv = (struct ops_kv){
                .layout = &l, .pool = at, .pages = at, .max_pages = 1, .cap = 64, .n_slots = 1};
        }
        fake.log_clear();
        r = fake.ops->qkv_store(be, &m, &p);
        /* 17 sequences are stored by two launches */
        expect(fake_count(FAKE_LAUNCH) == cases[i].launches,
               "case %zu of fused stores: %d launches", i, fake_count(FAKE_LAUNCH));
    }
    expect(r == 0, "%d: %s", r, err.text);
    fake.ops->free(be, at, 0);
    fake.ops->destroy(be);
    expect_clean("fused stores");
}

/* The host sleeps until the device is done only when it is asked to: both by events and streams. */
static void waits_as_asked(void)
{
    for (int asleep = 0; asleep < 2; asleep++) {
        struct backend_config config = {.n_threads = 1, .wait_asleep = asleep};
        struct backend *be = NULL;
        struct error err = {0};

        fake.start(&fake_devices[SM_90]);
        expect(fake.ops->create(&config, &be, &err) == 0, "%s", err.text);
        expect(fake.waits() == (asleep ? 4 + 1 : 0), "asleep %d: flags %u", asleep, fake.waits());
        fake.ops->destroy(be);
        expect_clean("waits");
    }
}

/* Expected weights lose least among what evicts, and the device scores by them. */
static void advice_expects(void)
{
    char path[512];
    struct engine_config c;
    struct plan p;
    struct error err = {0};
    const struct policy_advice *advice = NULL;

    (void)snprintf(path, sizeof(path), "%s/heads_32.gguf", fake_folder);
    engine_config_default(&c);
    c.model_path = path;
    c.backend = fake_path;
    c.ctx = 16384;
    c.n_seqs = 32; /* so that caches are most of it */
    c.kv = "kv4+expected:50%ctx";
    fake.start(&fake_devices[SM_90]);
    expect(engine_plan(&c, &p, &err) == 0, "expected: %s", err.text);
    c.memory_bytes = p.total_bytes - p.host_bytes; /* the device's; the host has as many */
    expect(engine_advise(&c, &p, &advice, &err) == 0, "advice: %s", err.text);
    expect(advice && strcmp(advice->kv, c.kv) == 0, "advice: %s", advice ? advice->kv : "none");
    expect_clean("advice");
}

int main(int argc, char **argv)
{
    static const char *const kv[] = {
        "full", "fp8", "kv8+h2o:64", "keyformer:50%", "sinks:4+window:60", "sparq:r=4,k=16"};

    if (argc != 3) {
        (void)fprintf(stderr, "usage: test_cuda_host MODULE FOLDER\n");
        return 2;
    }
    fake_folder = argv[2];
    fake_open(argv[1]);
    for (int device = 0; device < N_DEVICES; device++) {
        for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++) {
            plan_holds(device, "stories260K", kv[i]);
        }
        plan_holds(device, "cache_model", "infinigen:alpha=2,cap=50%");
        plan_holds(device, "cache_model", "fp8+infinigen:count=9,pool=60,victim=counter,exempt=8");
        plan_holds(device, "arch_gemma3", "full");
        plan_holds(device, "arch_sigma_uneven", "fp8");
        plan_holds(device, "arch_qwen2moe", "full");
        plan_holds(device, "arch_qwen35moe", "full");
        plan_holds(device, "arch_lfm2", "full");
        plan_holds(device, "arch_gpt_oss", "full");
        fake_ctx = 4096; /* several chunks of a prompt in a step, but on a board */
        plan_holds(device, "stories260K", "full");
        plan_holds(device, "arch_qwen2moe", "fp8");
        plan_holds(device, "cache_model", "infinigen:count=9");
        fake_ctx = 256;
    }
    graphs_bounded(12 << 20, true);             /* room for some of them */
    graphs_bounded((uint64_t)1 << 30, false);   /* not for one */
    graphs_bounded((uint64_t)500 << 30, false); /* the driver has not got it either */
    free_unknown();
    graph_takes_all();
    graph_of_a_step(SM_90);
    graph_of_a_step(SM_86);
    graph_that_foretells();
    scores_behind_the_graph();
    no_disk();
    pool_on_the_host();
    cuts_unwaited();
    deep_product();
    fused_products();
    fused_stores();
    waits_as_asked();
    advice_expects();
    printf("%d failed\n", n_failed);
    return n_failed > 0;
}

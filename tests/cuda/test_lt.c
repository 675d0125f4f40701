/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill by cublasLt under a whole engine, over the fake run-time library and a fake cublasLt
 * (lt/lt.h): one algorithm a shape whatever the number of rows, layouts, the kernels of a prompt's
 * layer, memory within the plan; each call of the library failing once; shapes that it refuses;
 * where it is not used; and a library that is absent, of another version, or not what it says.
 *
 *     test_cuda_lt MODULE LIBRARY BF16_MODEL F16_MODEL Q4_K_MODEL [absent|partial|old] */

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/kv/plan/plan.h"
#include "tests/cuda/fake_open.h"
#include "tests/cuda/lt/lt.h"

enum { GRAIN = 2 << 20, N_NEW = 3, MAX_PROMPT = 200, MIB = 1 << 20 };
static const int layers_of[3] = {5, 5, 3}; /* of each model */
/* Of a layer: q, k and v are one; gate and up, where the slab holds both or needs none. */
static const int products_of[3] = {4, 4, 5};

static struct {
    void (*start)(void);
    const struct fake_lt_call *(*log)(int *ret_n);
    void (*log_clear)(void);
    const char *(*broken)(void);
    int (*objects)(void);
    void (*fail)(int n, int status);
    int (*pending)(void);
    void (*refuse)(uint64_t m, uint64_t n);
    void (*code)(uint64_t bytes);
} lt;
static const char *models[3]; /* BF16, F16, Q4_K */
static struct error last;

static void start(const struct fake_device *d)
{
    fake.start(d);
    lt.start();
}

static struct engine *make(int model, enum engine_prefill prefill)
{
    struct engine_config c;
    struct engine *e = NULL;

    engine_config_default(&c);
    c.model_path = models[model];
    c.backend = fake_path;
    c.ctx = 256;
    c.n_seqs = 2;
    c.n_threads = 1;
    c.prefill = prefill;
    last = (struct error){0};
    return engine_create(&c, NULL, NULL, &e, &last) < 0 ? NULL : e;
}

static struct engine *must(int model, enum engine_prefill prefill)
{
    struct engine *e = make(model, prefill);

    expect(e != NULL, "an engine: %s", last.text);
    if (!e) {
        exit(1);
    }
    return e;
}

static bool says(const struct engine *e, const char *text)
{
    return strstr(engine_info(e)->backend, text) != NULL;
}

static void end(struct engine *e, const char *what)
{
    engine_destroy(e);
    expect_clean(what);
    expect(lt.objects() == 0, "%s: %d objects of cublasLt are held", what, lt.objects());
    expect(!lt.broken(), "%s: cublasLt: %s", what, lt.broken() ? lt.broken() : "");
}

static void on_event(void *arg, const struct engine_event *ev)
{
    int *n_errors = arg;

    *n_errors += ev->type == ENGINE_EV_DONE && ev->reason == ENGINE_ERROR;
}

/* A prompt of n tokens. Returns what the engine does, or how many requests ended with an error. */
static int ask(struct engine *e, int32_t n)
{
    int32_t prompt[MAX_PROMPT];
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = prompt,
                               .n_prompt = n,
                               .max_tokens = N_NEW,
                               .ignore_end = true,
                               .sampler = sampler_params_default()};
    int n_errors = 0;
    uint64_t handle;
    int r;

    for (int i = 0; i < n; i++) {
        prompt[i] = 1 + i % 20;
    }
    r = engine_submit(e, &q, &handle, &last);
    while (r >= 0 && (r = engine_step(e, on_event, &n_errors)) > 0) {
    }
    return r < 0 ? r : n_errors;
}

/* ---- what is asked for ----------------------------------------------------------------------- */

/* All products of a shape take one algorithm, all the plan's workspace is offered. */
static void pinned(const struct fake_lt_call *c, int n, size_t workspace, bool bf16)
{
    for (int i = 0; i < n; i++) {
        expect(c[i].workspace == workspace, "%zu bytes of workspace, not %zu", c[i].workspace,
               workspace);
        expect((c[i].bf16 != 0) == bf16 && c[i].k % 32 == 0 && c[i].lda == (int64_t)c[i].k &&
                   c[i].ldb == ((int64_t)c[i].k + 255) / 256 * 256 && c[i].ldd >= (int64_t)c[i].m,
               "(%d, %d, %d), rows %d, %d, %d apart", (int)c[i].m, (int)c[i].n, (int)c[i].k,
               (int)c[i].lda, (int)c[i].ldb, (int)c[i].ldd);
        for (int k = 0; k < i; k++) {
            expect(c[k].m != c[i].m || c[k].k != c[i].k || c[k].algo == c[i].algo,
                   "%d and %d rows of (%d, %d) by two algorithms", (int)c[k].n, (int)c[i].n,
                   (int)c[i].m, (int)c[i].k);
        }
    }
}

static int seen(const struct fake_lt_call *c, int n, uint64_t rows)
{
    int sum = 0;

    for (int i = 0; i < n; i++) {
        sum += c[i].n == rows;
    }
    return sum;
}

static void all_rows(int device, int model, size_t workspace)
{
    static const int32_t prompts[] = {2, 3, 7, 16, 17, 40, 64, 65, 128, 129, 200};
    const struct fake_lt_call *c;
    const struct fake_call *f;
    struct engine *e;
    int n;
    int n_f;

    start(&fake_devices[device]);
    e = must(model, ENGINE_PREFILL_AUTO);
    expect(says(e, "prefill cublasLt 13.1.0") && !says(e, "own tiles"), "%s",
           engine_info(e)->backend);
    c = lt.log(&n);
    expect(seen(c, n, 1) > 0 && seen(c, n, 257) > 0, "shapes are tried with few and many rows");
    pinned(c, n, workspace, model != 1);
    for (size_t i = 0; i < sizeof(prompts) / sizeof(prompts[0]); i++) {
        lt.log_clear();
        fake.log_clear();
        expect(ask(e, prompts[i]) == 0, "a prompt of %d", prompts[i]);
        f = fake.log(&n_f);
        for (int k = 0; k < n_f; k++) {
            expect(f[k].kind != FAKE_ALLOC, "memory is taken while a prompt is read");
        }
        c = lt.log(&n);
        expect(n == products_of[model] * layers_of[model] && seen(c, n, (uint64_t)prompts[i]) == n,
               "a prompt of %d: %d products", prompts[i], n);
        pinned(c, n, workspace, model != 1);
    }
    end(e, "prompts of all lengths");
}

/* The algorithms of a prompt are those of another, of any length. */
static void same_for_all(void)
{
    enum { N = 4 * 5 };
    static struct fake_lt_call first[N];
    struct engine *e;
    const struct fake_lt_call *c;
    int n;

    start(&fake_devices[SM_90]);
    e = must(0, ENGINE_PREFILL_CUBLAS);
    for (int i = 1; i <= 150; i++) {
        lt.log_clear();
        expect(ask(e, 1 + i) == 0, "a prompt of %d", 1 + i);
        c = lt.log(&n);
        expect(n == N, "%d products", n);
        for (int k = 0; k < n && n == N; k++) {
            first[k] = i == 1 ? c[k] : first[k];
            expect(c[k].algo == first[k].algo && c[k].m == first[k].m && c[k].k == first[k].k,
                   "%d rows: product %d by another algorithm", 1 + i, k);
        }
    }
    end(e, "one algorithm");
}

static bool named(const struct fake_call *c, const char *name)
{
    return c->kind == FAKE_LAUNCH &&
           strncmp(c->name + (c->name[0] == '('), name, strlen(name)) == 0;
}

/* The kernels of a prompt's layer, from its first product's preparation on. */
static void layer(int model, const char *const *want, int n_want)
{
    const struct fake_call *c;
    struct engine *e;
    int first = 0;
    int n;

    start(&fake_devices[SM_90]);
    e = must(model, ENGINE_PREFILL_AUTO);
    fake.log_clear();
    expect(ask(e, 40) == 0, "a prompt");
    c = fake.log(&n);
    while (first < n && !named(&c[first], "prepare_rows")) {
        first++;
    }
    for (int i = 0; i < 2 * n_want; i++) {
        expect(first + i < n && named(&c[first + i], want[i % n_want]), "kernel %d is %s, not %s",
               i, first + i < n ? c[first + i].name : "none", want[i % n_want]);
    }
    end(e, "a layer");
}

static void layers(void)
{
    static const char *const bf16[] = {
        "prepare_rows",   "cublasLtMatmul", "rope_store",     "prefill_mma", "prepare_rows",
        "cublasLtMatmul", "prepare_rows",   "cublasLtMatmul", "lt_pass",     "cublasLtMatmul"};
    static const char *const f16[] = {
        "prepare_rows",   "cublasLtMatmul", "lt_finish",      "lt_finish",
        "lt_finish",      "rope_store",     "prefill_mma",    "prepare_rows",
        "cublasLtMatmul", "lt_finish",      "prepare_rows",   "cublasLtMatmul",
        "lt_finish",      "prepare_rows",   "cublasLtMatmul", "lt_finish"};
    static const char *const blocks[] = {
        "prepare_rows", "unpack_q",      "unpack_q",       "unpack_q", "cublasLtMatmul",
        "rope_store",   "prefill_wgmma", "prepare_rows",   "unpack_q", "cublasLtMatmul",
        "prepare_rows", "unpack_q",      "cublasLtMatmul", "unpack_q", "cublasLtMatmul",
        "lt_pass",      "unpack_q",      "cublasLtMatmul"};

    layer(0, bf16, sizeof(bf16) / sizeof(bf16[0]));
    layer(1, f16, sizeof(f16) / sizeof(f16[0]));
    layer(2, blocks, sizeof(blocks) / sizeof(blocks[0]));
}

/* What cublasLt adds to the plan is what it adds to what is held, to the byte: the workspace, sums
 * of 514 rows by the most outputs, and the largest quantised weight as bf16. */
static void planned(int device, int model, uint64_t workspace, uint64_t outputs, uint64_t weights)
{
    uint64_t extra = workspace + (515 * outputs * 4 + 255) / 256 * 256 + 2 * weights;
    uint64_t plan[2];
    uint64_t held[2];

    for (int i = 0; i < 2; i++) {
        struct engine *e;

        start(&fake_devices[device]);
        e = must(model, i ? ENGINE_PREFILL_CUBLAS : ENGINE_PREFILL_OWN);
        plan[i] = engine_plan_of(e)->total_bytes - engine_plan_of(e)->host_bytes;
        held[i] = fake.device_bytes(1);
        expect(fake.device_bytes(GRAIN) + fake.pinned_bytes() <= plan[i], "within the plan");
        expect(i || lt.objects() == 0, "own tiles hold nothing of cublasLt");
        expect(ask(e, 100) == 0, "a prompt");
        end(e, "planned");
    }
    expect(held[1] - held[0] == extra, "%llu bytes more are held, not %llu",
           (unsigned long long)(held[1] - held[0]), (unsigned long long)extra);
    expect(plan[1] - plan[0] + 4096 >= extra && plan[1] - plan[0] <= extra + 4096,
           "%llu bytes more are held, %llu planned", (unsigned long long)extra,
           (unsigned long long)(plan[1] - plan[0]));
}

/* Quantised weights by `auto`: where 16-bit products are fast. Else as without the library. */
static void cards(void)
{
    static const int devices[] = {SM_86, SM_90, SM_120};

    for (int i = 0; i < 3; i++) {
        bool fast = devices[i] == SM_90;
        uint64_t held;
        struct engine *e;
        int n;

        start(&fake_devices[devices[i]]);
        e = must(2, ENGINE_PREFILL_AUTO);
        expect(says(e, "of quantised weights as bf16") == fast, "%s", engine_info(e)->backend);
        held = fake.device_bytes(1);
        lt.log_clear();
        expect(ask(e, 40) == 0, "a prompt");
        (void)lt.log(&n);
        expect(n == (fast ? products_of[2] * layers_of[2] : 0), "%d products", n);
        end(e, "auto");
        start(&fake_devices[devices[i]]);
        e = must(2, ENGINE_PREFILL_CUBLAS);
        expect(says(e, "of quantised weights as bf16"), "%s", engine_info(e)->backend);
        expect(fake.device_bytes(1) == held + (fast ? 0 : 512 * 256 * 2),
               "a slab where it is used");
        end(e, "asked for");
    }
}

/* A weight larger than what is unpacked at a time: slabs of whole waves, each with a shape of its
 * own, one behind the other into one row of results. */
static void slabs(void)
{
    enum { ROWS = 5000, COLS = 64, N = 40 };
    static const uint64_t want[] = {2048, 2048, ROWS - 2 * 2048};
    const struct backend_config config = {.prefill = BACKEND_PREFILL_CUBLAS};
    const struct backend_limits limits = {.max_rows = N,
                                          .max_cols = COLS,
                                          .max_outputs = ROWS,
                                          .max_quantised = (uint64_t)3000 * COLS};
    struct ops_weight_desc desc = {
        .name = "w", .type = DTYPE_Q8_0, .role = OPS_ROLE_MATMUL, .n_rows = ROWS, .n_cols = COLS};
    uint8_t *data = calloc(ROWS, COLS / 32 * 34);
    struct backend *be = NULL;
    struct ops_weight w = {0};
    void *x = NULL;
    void *y = NULL;
    const struct fake_lt_call *c;
    int n = 0;

    desc.data = data;
    start(&fake_devices[SM_90]);
    expect(data && fake.ops->create(&config, &be, &last) == 0 &&
               be->ops->reserve(be, &limits, &last) == 0 &&
               be->ops->weight_create(be, &desc, &w, &last) == 0 &&
               be->ops->alloc(be, (uint64_t)N * COLS * 4, "x", &x, &last) == 0 &&
               be->ops->alloc(be, (uint64_t)N * ROWS * 4, "y", &y, &last) == 0,
           "a weight: %s", last.text);
    lt.log_clear();
    if (y) {
        struct ops_matmul p = {.rows = {.n = N}, .x = x, .ldx = COLS, .n_parts = 1};

        p.part[0].w = &w;
        p.part[0].y = y;
        p.part[0].ldy = ROWS;
        expect(be->ops->matmul(be, &p) == 0 && be->ops->sync(be) == 0, "a product");
    }
    c = lt.log(&n);
    expect(n == 3, "%d products", n);
    for (int i = 0; i < n && i < 3; i++) {
        expect(c[i].m == want[i] && c[i].n == N && c[i].ldd == (ROWS + 15) / 16 * 16,
               "slab %d: %d rows, %d apart", i, (int)c[i].m, (int)c[i].ldd);
        expect((c[i].algo == c[0].algo) == (i < 2), "slab %d: an algorithm of its shape", i);
    }
    if (be) {
        be->ops->free(be, x, 0);
        be->ops->free(be, y, 0);
        be->ops->weight_destroy(be, &w);
        be->ops->destroy(be);
    }
    free(data);
    expect_clean("slabs");
    expect(!lt.broken(), "slabs: %s", lt.broken() ? lt.broken() : "");
}

/* ---- what goes wrong --------------------------------------------------------------------------
 */

/* Each call at the start, or while weights are loaded: own tiles, for all or for some shapes; a
 * prompt is read; nothing is held. Asked for by name, it is an error only as the library starts. */
static void fails_at_start(int status)
{
    int n_all = 0;
    int n_some = 0;
    int n_refused = 0;
    bool pending = false;

    for (int n = 1; !pending && n < 1 << 20; n += n < 120 ? 1 : n / 3) {
        struct engine *e;
        int n_products;

        start(&fake_devices[SM_90]);
        lt.fail(n, status);
        e = make(0, n % 2 ? ENGINE_PREFILL_AUTO : ENGINE_PREFILL_CUBLAS);
        pending = lt.pending();
        lt.fail(0, 0);
        if (!e) {
            expect(n % 2 == 0 && strstr(last.text, "prefill by cublasLt: ") &&
                       strstr(last.text, "status "),
                   "call %d: %s", n, last.text);
            n_refused++;
            expect_clean("no engine");
            expect(lt.objects() == 0, "no engine: %d objects are held", lt.objects());
            continue;
        }
        n_all += says(e, "prefill own tiles (");
        n_some += says(e, "own tiles for 1 of ");
        lt.log_clear();
        expect(ask(e, 40) == 0, "call %d: a prompt: %s", n, last.text);
        (void)lt.log(&n_products); /* more, where the shape is that of several weights */
        expect(pending || says(e, "own tiles") || n_products > products_of[0] * layers_of[0],
               "call %d: %s, %d products", n, engine_info(e)->backend, n_products);
        end(e, "a call of cublasLt fails at the start");
    }
    expect(pending && n_all > 3 && n_some > 10 && n_refused > 3,
           "status %d: %d times all, %d times some, %d times no engine", status, n_all, n_some,
           n_refused);
}

/* A call that fails later is an error with a cause, and not another arithmetic. */
static void fails_later(int status, int want)
{
    int n_failed_here = 0;
    bool pending = false;

    for (int n = 1; !pending && n < 5000; n += n < 30 ? 1 : 17) {
        struct engine *e;
        char news[256] = "";
        int r;

        start(&fake_devices[SM_90]);
        e = must(0, ENGINE_PREFILL_AUTO);
        fake.log_clear();
        lt.fail(n, status);
        r = ask(e, 40);
        pending = lt.pending();
        lt.fail(0, 0);
        expect(pending ? r == 0 : r == want, "call %d: %d, not %d", n, r, want);
        expect(pending || (engine_news(e, news, sizeof(news)) && strstr(news, "cublasLt, matmul")),
               "call %d: \"%s\" is said", n, news);
        n_failed_here += !pending;
        end(e, "a call of cublasLt fails later");
    }
    expect(n_failed_here > 30, "status %d: %d failures", status, n_failed_here);
}

/* The device is lost in a product. */
static void lost(int model)
{
    int n_lost = 0;

    for (int n = 1; n < 400; n += 7) {
        struct engine *e;
        int r;

        start(&fake_devices[SM_90]);
        e = must(model, ENGINE_PREFILL_AUTO);
        fake.fail(n, 700);
        r = ask(e, 40);
        n_lost += !fake.pending() && r == -ENODEV;
        expect(fake.pending() || r == -ENODEV, "lost in call %d: %d", n, r);
        fake.fail(0, 0);
        end(e, "a device lost in a product");
    }
    expect(n_lost > 5, "%d losses", n_lost);
}

static void refused(void)
{
    const struct fake_call *f;
    struct engine *e;
    int n_tiles = 0;
    int n;

    start(&fake_devices[SM_90]);
    lt.refuse(0, 77); /* a number of rows: not this algorithm then, for any */
    e = must(0, ENGINE_PREFILL_AUTO);
    expect(says(e, "numbers of rows") && says(e, "own tiles for 4 of 4 shapes"), "%s",
           engine_info(e)->backend);
    lt.log_clear();
    expect(ask(e, 40) == 0, "a prompt");
    (void)lt.log(&n);
    expect(n == 0, "%d products all the same", n);
    end(e, "refused");

    start(&fake_devices[SM_90]);
    lt.refuse(64,
              1); /* output and down projection; q, too, but that is a part of one with k and v */
    e = must(0, ENGINE_PREFILL_AUTO);
    expect(says(e, "own tiles for 2 of 4 shapes"), "%s", engine_info(e)->backend);
    lt.log_clear();
    fake.log_clear();
    expect(ask(e, 40) == 0, "a prompt");
    (void)lt.log(&n);
    expect(n == 2 * layers_of[0], "%d products by cublasLt", n);
    f = fake.log(&n);
    for (int i = 0; i < n; i++) {
        n_tiles += named(&f[i], "tiles_half");
    }
    expect(n_tiles == 2 * layers_of[0], "%d products by own tiles", n_tiles);
    end(e, "projections refused");

    start(&fake_devices[SM_90]);
    lt.refuse(128, 1); /* q, k and v as one: then they are three */
    e = must(0, ENGINE_PREFILL_AUTO);
    expect(!says(e, "own tiles"), "%s", engine_info(e)->backend);
    lt.log_clear();
    expect(ask(e, 40) == 0, "a prompt");
    (void)lt.log(&n);
    expect(n == 6 * layers_of[0], "%d products by cublasLt", n);
    end(e, "q, k and v refused as one");
}

/* What the library takes for itself is gone before the plan asks what is free, and it takes nothing
 * later: a device that has the plan's bytes beside it and no more is enough. */
static void library_memory(int model)
{
    enum { CODE = 24 * MIB };
    struct fake_device d = fake_devices[SM_90];
    const struct plan *p;
    struct engine *e;
    uint64_t taken;
    uint64_t need = 0;

    for (int i = 0; i < 2; i++) {
        start(&d);
        lt.code(CODE);
        e = must(model, ENGINE_PREFILL_AUTO);
        expect(!says(e, "own tiles") && says(e, ", its code "), "%s", engine_info(e)->backend);
        p = engine_plan_of(e);
        taken = fake.library_bytes();
        expect(taken >= 4 * (uint64_t)CODE, "%llu bytes are the library's",
               (unsigned long long)taken);
        expect(p->device_available_bytes + taken <= d.memory,
               "the plan counts on %llu of %llu bytes, of which the library has %llu",
               (unsigned long long)p->device_available_bytes, (unsigned long long)d.memory,
               (unsigned long long)taken);
        need = p->total_bytes - p->host_bytes + taken;
        expect(ask(e, 100) == 0, "a prompt");
        expect(fake.library_bytes() == taken, "the library takes more when a prompt is read");
        end(e, "the library's memory");
        d.memory = need; /* of the second round; trials fit, too */
    }
}

static void elsewhere(void)
{
    struct engine *e;
    int n;

    start(&fake_devices[SM_87]);
    e = must(0, ENGINE_PREFILL_AUTO);
    expect(says(e, "prefill own tiles, as on all shared memory"), "%s", engine_info(e)->backend);
    expect(lt.objects() == 0 && ask(e, 40) == 0, "own tiles on shared memory");
    end(e, "shared memory");
    start(&fake_devices[SM_87]);
    e = must(0, ENGINE_PREFILL_CUBLAS);
    expect(says(e, "prefill cublasLt 13.1.0"), "%s", engine_info(e)->backend);
    expect(ask(e, 40) == 0, "cublasLt on shared memory");
    end(e, "shared memory, asked for");
    start(&fake_devices[SM_90]);
    e = must(0, ENGINE_PREFILL_OWN);
    expect(says(e, "prefill own tiles"), "%s", engine_info(e)->backend);
    expect(ask(e, 40) == 0, "own tiles");
    (void)lt.log(&n);
    expect(n == 0 && lt.objects() == 0, "own tiles: %d products", n);
    end(e, "own tiles");
}

/* No library that can be used: said, and done without; or, asked for by name, an error. */
static void without(const char *want)
{
    struct engine *e;

    fake.start(&fake_devices[SM_90]);
    e = must(0, ENGINE_PREFILL_AUTO);
    expect(says(e, "prefill own tiles (") && says(e, want), "\"%s\" says \"%s\"",
           engine_info(e)->backend, want);
    expect(ask(e, 40) == 0, "a prompt");
    engine_destroy(e);
    expect_clean(want);
    e = make(0, ENGINE_PREFILL_CUBLAS);
    expect(!e && strstr(last.text, "prefill by cublasLt: ") && strstr(last.text, want),
           "\"%s\" says \"%s\"", last.text, want);
    expect_clean(want);
}

static void lt_open(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);

    if (!library) {
        printf("FAILED: %s\n", dlerror());
        exit(1);
    }
#define FIND(NAME) *(void **)&lt.NAME = dlsym(library, "fake_lt_" #NAME)
    FIND(start);
    FIND(log);
    FIND(log_clear);
    FIND(broken);
    FIND(objects);
    FIND(fail);
    FIND(pending);
    FIND(refuse);
    FIND(code);
#undef FIND
}

int main(int argc, char **argv)
{
    static const int statuses[] = {3, 14};
    const char *mode = argc > 6 ? argv[6] : "";

    if (argc < 6) {
        (void)fprintf(stderr, "usage: test_cuda_lt MODULE LIBRARY BF16 F16 Q4_K [MODE]\n");
        return 2;
    }
    fake_open(argv[1]);
    models[0] = argv[3];
    models[1] = argv[4];
    models[2] = argv[5];
    if (mode[0]) {
        without(strcmp(mode, "absent") == 0    ? "cannot open shared object"
                : strcmp(mode, "partial") == 0 ? "has no cublasLt"
                                               : "is 12.9, this build needs 13");
    } else {
        lt_open(argv[2]);
        all_rows(SM_90, 0, 32 * MIB);
        all_rows(SM_90, 1, 32 * MIB);
        all_rows(SM_86, 0, 4 * MIB);
        all_rows(SM_90, 2, 32 * MIB);
        same_for_all();
        layers();
        planned(SM_90, 0, 32 * MIB, 176, 0);
        planned(SM_86, 0, 4 * MIB, 176, 0);
        planned(SM_90, 2, 32 * MIB, 512, 512 * 256);
        planned(SM_86, 2, 4 * MIB, 512, 512 * 256);
        cards();
        slabs();
        library_memory(0);
        library_memory(2);
        for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
            fails_at_start(statuses[i]);
        }
        fails_later(13, -EIO);
        fails_later(3, 1); /* no memory: the request ends with it, the engine goes on */
        lost(0);
        lost(2);
        refused();
        elsewhere();
    }
    printf("cuda_lt %s: %d failed\n", mode, n_failed);
    return n_failed > 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda backend when calls of the CUDA library fail, on the emulated module: every call in turn
 * fails once, as out of memory and as a device fault; errors are errno with a cause, nothing is
 * held afterwards, and after a fault every call answers -ENODEV. A graph that cannot be had is done
 * without. So do slots that are brought from the host's memory beside a step. Also: no device, no
 * such module, a file that is none; memory that another process took, at the start and later; and
 * that steps of decode rows go as one graph. */

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"

enum { OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, N = 64, STEPS = 6, SLOTS = 40, DIM = 8 };

static void (*emu_fail)(int n, int code);
static uint64_t (*emu_held)(void);
static void (*emu_devices)(int n);
static void (*emu_integrated)(int yes);
static int (*emu_pending)(void);
static void (*emu_counts)(int ret[4]);
static int n_failed;

static void expect(bool ok, const char *what, int n)
{
    if (!ok) {
        printf("FAILED: %s (call %d)\n", what, n);
        n_failed++;
    }
}

/* A store of one head whose page lies in the host's memory, and a page of the device. */
struct away {
    struct ops_kv_layout layout;
    void *home;
    void *staging;
    void *page;  /* its number, 0 */
    float *rows; /* device (2, DIM): a query of zeros; what attention makes of it */
};

static int away_make(struct backend *be, struct away *a, struct error *e)
{
    static const uint32_t zero = 0;
    void *rows = NULL;
    int r;

    *a = (struct away){.layout = {.n_groups = 1,
                                  .k_heads = 1,
                                  .v_heads = 1,
                                  .k_dim = DIM,
                                  .v_dim = DIM,
                                  .k_type = OPS_KV_F32,
                                  .v_type = OPS_KV_F32}};
    r = be->ops->kv_layout(&a->layout, e);
    r = r ? r : be->ops->alloc_mapped(be, a->layout.page_bytes, "a page", &a->home, e);
    r = r ? r : be->ops->alloc(be, a->layout.page_bytes, "staging", &a->staging, e);
    r = r ? r : be->ops->alloc(be, sizeof(zero), "its number", &a->page, e);
    r = r ? r : be->ops->alloc(be, sizeof(float[2][DIM]), "rows", &rows, e);
    a->rows = rows;
    return r ? r : be->ops->write(be, a->page, &zero, sizeof(zero));
}

static void away_free(struct backend *be, struct away *a)
{
    be->ops->free_mapped(be, a->home, a->layout.page_bytes);
    be->ops->free(be, a->staging, a->layout.page_bytes);
    be->ops->free(be, a->page, sizeof(uint32_t));
    be->ops->free(be, a->rows, sizeof(float[2][DIM]));
}

/* All values of all slots, at home. */
static int away_fill(struct backend *be, struct away *a, float value)
{
    float slots[SLOTS][2 * DIM];
    struct ops_kv kv = {.layout = &a->layout, .pool = a->home, .pages = a->page, .max_pages = 1};
    struct ops_kv_slots p = {.kv = &kv, .n_slots = SLOTS, .host = slots};

    for (int i = 0; i < SLOTS * 2 * DIM; i++) {
        slots[i / (2 * DIM)][i % (2 * DIM)] = i % (2 * DIM) < DIM ? 1.0f : value;
    }
    return be->ops->kv_import(be, &p);
}

/* They come to staging, and are read there. */
static int away_bring(struct backend *be, struct away *a)
{
    struct ops_kv home = {
        .layout = &a->layout, .pool = a->home, .pages = a->page, .max_pages = 1, .n_slots = SLOTS};
    struct ops_kv staged = home;
    struct ops_bring_seq s = {.from = home, .own = -1, .n = SLOTS};
    struct ops_bring b = {.seqs = &s, .n_seqs = 1};
    struct ops_seq seq = {.n_rows = 1, .pos0 = SLOTS - 1, .slot0 = SLOTS - 1};
    struct ops_attention p = {.rows = {1, 1},
                              .q = a->rows,
                              .out = a->rows + DIM,
                              .ldq = DIM,
                              .ldo = DIM,
                              .n_q = 1,
                              .scale = 1,
                              .seqs = &seq,
                              .n_seqs = 1};
    int r;

    staged.pool = a->staging;
    s.to = staged;
    seq.kv = staged;
    r = be->ops->bring(be, &b);
    return r ? r : be->ops->attention(be, &p);
}

/* A block of Q8_0 a row: packed, and read back by embed. Beside it, where `a` says so, what is
 * brought. */
static int quantised(struct backend *be, float *device, struct away *a, struct error *e)
{
    enum { BLOCK = 34, ROWS = 3 };
    static uint8_t rows[ROWS][BLOCK];
    struct ops_weight_desc desc = {.name = "q",
                                   .type = DTYPE_Q8_0,
                                   .role = OPS_ROLE_EMBED,
                                   .n_rows = ROWS,
                                   .n_cols = 32,
                                   .data = rows};
    struct ops_weight w = {0};
    int32_t ids[2];
    struct ops_embed p = {.ids = ids, .w = &w, .scale = 1, .y = device, .ld = 32};
    float back[2][32];
    float read[DIM] = {0};
    int r;

    for (int i = 0; i < ROWS * BLOCK; i++) {
        rows[i / BLOCK][i % BLOCK] = (uint8_t)(i % BLOCK == 0 ? 0 : i % BLOCK == 1 ? 0x3c : i);
    }
    r = be->ops->weights_reserve(be, be->ops->weight_bytes(NULL, &desc), e);
    if (r == 0) {
        r = be->ops->weight_create(be, &desc, &w, e);
    }
    for (int step = 0; step < STEPS && r == 0; step++) { /* of one or two decode rows */
        ids[0] = step % ROWS;
        ids[1] = (step + 1) % ROWS;
        p.rows = (struct ops_rows){1 + step / 2 % 2, 1 + step / 2 % 2};
        r = a ? away_fill(be, a, (float)(step + 1)) : 0;
        r = r ? r : be->ops->embed(be, &p);
        r = r || !a ? r : away_bring(be, a);
        if (r == 0) {
            r = be->ops->read(be, back, device, sizeof(back));
        }
        r = r || !a ? r : be->ops->read(be, read, a->rows + DIM, sizeof(read));
        expect(r || !a || fabsf(read[DIM - 1] - (float)(step + 1)) < 1e-5f, "what was brought",
               step);
        for (int i = 0; i < p.rows.n && r == 0; i++) {
            expect(back[i][5] == (float)(int8_t)rows[ids[i]][7], "a quantised row", step);
        }
    }
    if (r == 0) {
        expect(be->ops->weights_reserve(be, 1, e) == -EBUSY, "one model's weights", 0);
    }
    be->ops->weight_destroy(be, &w);
    return r;
}

static bool brings; /* the work is done with slots on the host, too */

/* Two weights, a buffer, a norm and a read. Returns the first error. */
static int work(struct backend *be, struct error *e)
{
    struct away a = {0};
    static const float ones[N] = {1, 2, 3};
    struct ops_weight_desc desc = {.name = "w",
                                   .type = DTYPE_F32,
                                   .role = OPS_ROLE_VECTOR,
                                   .n_rows = 1,
                                   .n_cols = N,
                                   .data = ones};
    struct ops_weight w = {0};
    struct ops_norm_op p = {.rows = {1, 1}, .ldx = N, .ldy = N, .n_cols = N};
    float back[N];
    void *x = NULL;
    int r = be->ops->weight_create(be, &desc, &w, e);

    if (r < 0) {
        return r;
    }
    r = be->ops->alloc(be, sizeof(ones), "x", &x, e);
    if (r == 0) {
        r = be->ops->write(be, x, ones, sizeof(ones));
    }
    if (r == 0) {
        p.norm = (struct ops_norm){.w = &w, .eps = 1e-5f};
        p.x = x;
        p.y = x;
        r = be->ops->norm(be, &p);
    }
    if (r == 0) {
        r = be->ops->read(be, back, x, sizeof(back));
    }
    if (r == 0 && brings) {
        r = away_make(be, &a, e);
    }
    if (r == 0) {
        r = quantised(be, x, brings ? &a : NULL, e);
    }
    if (r == -ENODEV) {
        char text[256];

        be->ops->describe(be, text, sizeof(text));
        expect(strstr(text, "lost: ") != NULL, "the description says that the device is lost", 0);
        expect(be->ops->sync(be) == -ENODEV, "later calls answer -ENODEV", 0);
    }
    away_free(be, &a);
    be->ops->free(be, x, sizeof(ones));
    be->ops->weight_destroy(be, &w);
    return r;
}

static int once(const struct backend_ops *ops, struct error *e)
{
    static const struct backend_limits limits = {.max_rows = 4,
                                                 .max_decode = 2,
                                                 .max_seqs = 2,
                                                 .max_cols = N,
                                                 .max_outputs = N,
                                                 .max_heads = 2,
                                                 .max_head_dim = 32,
                                                 .max_slots = 64};
    struct backend_config config = {0};
    struct backend *be = NULL;
    int r = ops->create(&config, &be, e);

    if (r == 0) {
        r = ops->reserve(be, &limits, e);
    }
    if (r == 0) {
        r = work(be, e);
    }
    ops->destroy(be);
    return r;
}

static void each_call(const struct backend_ops *ops, int code, int want)
{
    int n = 0;
    int n_survived = 0;
    bool pending;

    do {
        struct error e = {0};
        int r;

        emu_fail(++n, code);
        r = once(ops, &e);
        pending = emu_pending();
        emu_fail(0, 0);
        expect(r == 0 || r == want || r == -ENODEV, "the errno", n);
        expect(emu_held() == 0, "nothing is held", n);
        n_survived += r == 0 && !pending;
    } while (!pending && n < 1000);
    expect(code != OUT_OF_MEMORY || n_survived > 5, "a graph is done without", n_survived);
    expect(n > 10 && n < 1000, "calls were counted", n);
    printf("%d calls failed one by one with %d\n", n - 1, code);
}

/* Steps of one shape: the first goes kernel by kernel, the second becomes a graph, which all later
 * ones change and launch. */
static void graphs(const struct backend_ops *ops)
{
    struct error e = {0};
    int n[4];

    emu_counts(n);
    expect(once(ops, &e) == 0, e.text, 0);
    emu_counts(n);
    expect(n[1] == 1, "one graph", n[1]);
    expect(n[3] == STEPS - 1, "launches of it", n[3]);
    expect(n[2] == STEPS - 2, "changes of it", n[2]);
}

/* Another process takes the device's memory: at the start the numbers are said; later nothing is
 * allocated, so what runs goes on. */
static void memory_taken(const struct backend_ops *ops)
{
    static const struct backend_limits limits = {.max_rows = 1 << 16,
                                                 .max_cols = 1 << 15,
                                                 .max_heads = 2,
                                                 .max_head_dim = 32,
                                                 .max_slots = 64};
    struct backend_config config = {0};
    struct backend *be = NULL;
    struct error e = {0};

    expect(ops->create(&config, &be, &e) == 0, e.text, 0);
    expect(ops->reserve(be, &limits, &e) == -ENOMEM, "too much scratch", 0);
    expect(strstr(e.text, "bytes, the device has") != NULL, e.text, 0);
    ops->destroy(be);
    expect(emu_held() == 0, "nothing is held", 0);
}

int main(int argc, char **argv)
{
    const struct backend_ops *ops;
    struct error e = {0};
    void *module;

    if (argc != 2 || backend_find(argv[1], &ops, &e) < 0) {
        printf("FAILED: %s\n", e.text);
        return 1;
    }
    module = dlopen(argv[1], RTLD_NOW);
    *(void **)&emu_fail = dlsym(module, "emu_fail");
    *(void **)&emu_held = dlsym(module, "emu_held");
    *(void **)&emu_devices = dlsym(module, "emu_devices");
    *(void **)&emu_integrated = dlsym(module, "emu_integrated");
    *(void **)&emu_pending = dlsym(module, "emu_pending");
    *(void **)&emu_counts = dlsym(module, "emu_counts");
    expect(once(ops, &e) == 0, e.text, 0);
    graphs(ops);
    memory_taken(ops);
    for (int shared = 0; shared < 2; shared++) {
        emu_integrated(shared);
        expect(once(ops, &e) == 0, e.text, 0);
        each_call(ops, OUT_OF_MEMORY, -ENOMEM);
        each_call(ops, ILLEGAL_ADDRESS, -ENODEV);
        brings = true;
        expect(once(ops, &e) == 0, e.text, 0);
        graphs(ops);
        each_call(ops, OUT_OF_MEMORY, -ENOMEM);
        each_call(ops, ILLEGAL_ADDRESS, -ENODEV);
        brings = false;
    }
    emu_integrated(0);
    emu_devices(0);
    e = (struct error){0};
    expect(backend_find(argv[1], &ops, &e) == -ENODEV, "no device", 0);
    expect(strstr(e.text, "no CUDA device") != NULL, e.text, 0);
    e = (struct error){0};
    expect(backend_find("./none.so", &ops, &e) == -ENOENT, "no such module", 0);
    e = (struct error){0};
    expect(backend_find(argv[0], &ops, &e) == -ENOEXEC, "not a module", 0);
    expect(e.text[0] != '\0', "a cause", 0);
    printf("%d failed\n", n_failed);
    return n_failed > 0;
}

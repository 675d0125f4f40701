/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda backend when calls of the CUDA library fail, on the emulated module: every call in turn
 * fails once, as out of memory and as a device fault; errors are errno with a cause, nothing is
 * held afterwards, and after a fault every call answers -ENODEV. Also: no device, no such module,
 * a file that is none. */

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"

enum { OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, N = 64 };

static void (*emu_fail)(int n, int code);
static uint64_t (*emu_held)(void);
static void (*emu_devices)(int n);
static int n_failed;

static void expect(bool ok, const char *what, int n)
{
    if (!ok) {
        printf("FAILED: %s (call %d)\n", what, n);
        n_failed++;
    }
}

/* A weight, a buffer, a norm and a read. Returns the first error. */
static int work(struct backend *be, struct error *e)
{
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
    if (r == -ENODEV) {
        char text[256];

        be->ops->describe(be, text, sizeof(text));
        expect(strstr(text, "lost: ") != NULL, "the description says that the device is lost", 0);
        expect(be->ops->sync(be) == -ENODEV, "later calls answer -ENODEV", 0);
    }
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
    int r;

    do {
        struct error e = {0};

        emu_fail(++n, code);
        r = once(ops, &e);
        emu_fail(0, 0);
        expect(r == 0 || r == want || r == -ENODEV, "the errno", n);
        expect(emu_held() == 0, "nothing is held", n);
    } while (r != 0 && n < 1000);
    expect(n > 10 && n < 1000, "calls were counted", n);
    printf("%d calls failed one by one with %d\n", n - 1, code);
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
    expect(once(ops, &e) == 0, "nothing fails", 0);
    each_call(ops, OUT_OF_MEMORY, -ENOMEM);
    each_call(ops, ILLEGAL_ADDRESS, -ENODEV);
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

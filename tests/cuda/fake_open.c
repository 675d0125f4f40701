/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda/fake_open.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct fake fake;
const char *fake_path;
int n_failed;

#define GIB ((uint64_t)1 << 30)

const struct fake_device fake_devices[N_DEVICES] = {
    [SM_86] = {8, 6, 84, 0, 99 << 10, 24 * GIB, 1 << 20, 12080, 1, 0},
    [SM_87] = {8, 7, 8, 1, 163 << 10, 16 * GIB, 1 << 20, 12060, 1, 0},
    [SM_90] = {9, 0, 132, 0, 227 << 10, 141 * GIB, 1 << 20, 13000, 1, 0},
    [SM_120] = {12, 0, 170, 0, 99 << 10, 32 * GIB, 1 << 20, 13000, 1, 0},
};

void expect(bool ok, const char *format, ...)
{
    va_list args;

    if (ok) {
        return;
    }
    n_failed++;
    printf("FAILED: ");
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    printf("\n");
}

void expect_clean(const char *what)
{
    expect(!fake.broken(), "%s: %s", what, fake.broken() ? fake.broken() : "");
    expect(fake.device_bytes(1) == 0 && fake.pinned_bytes() == 0 && fake.objects() == 0,
           "%s: %llu bytes, %llu pinned, %d objects are held", what,
           (unsigned long long)fake.device_bytes(1), (unsigned long long)fake.pinned_bytes(),
           fake.objects());
}

void fake_open(const char *path)
{
    struct error e = {0};
    void *module;

    fake_path = path;
    if (backend_find(path, &fake.ops, &e) < 0) {
        printf("FAILED: %s: %s\n", path, e.text);
        exit(1);
    }
    module = dlopen(path, RTLD_NOW);
#define FIND(NAME) *(void **)&fake.NAME = dlsym(module, "fake_" #NAME)
    FIND(start);
    FIND(log);
    FIND(log_clear);
    FIND(fail);
    FIND(refuse);
    FIND(ran);
    FIND(fail_free);
    FIND(graph_bytes);
    FIND(pending);
    FIND(broken);
    FIND(waits);
    FIND(device_bytes);
    FIND(most_bytes);
    FIND(pinned_bytes);
    FIND(mapped_bytes);
    FIND(library_bytes);
    FIND(objects);
#undef FIND
}

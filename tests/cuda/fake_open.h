/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_CUDA_FAKE_OPEN_H
#define PIPIT_TESTS_CUDA_FAKE_OPEN_H

/* The module over the fake run-time library (fake/fake.h), opened by its path: its functions, some
 * devices, and what tests expect. */

#include <stdbool.h>
#include <stddef.h>

#include "kernels/backend.h"
#include "tests/cuda/fake/fake.h"

struct fake {
    const struct backend_ops *ops; /* the backend's table, whatever device it finds */
    void (*start)(const struct fake_device *d);
    const struct fake_call *(*log)(int *ret_n);
    void (*log_clear)(void);
    void (*fail)(int n, int code);
    void (*refuse)(enum fake_kind kind, int code, int times);
    uint64_t (*ran)(int *ret_n);
    void (*fail_free)(int code);
    void (*graph_bytes)(uint64_t bytes);
    int (*pending)(void);
    const char *(*broken)(void);
    unsigned (*waits)(void);
    uint64_t (*device_bytes)(uint64_t grain);
    uint64_t (*most_bytes)(void);
    uint64_t (*pinned_bytes)(void);
    uint64_t (*mapped_bytes)(void);
    uint64_t (*library_bytes)(void);
    int (*objects)(void);
};

extern struct fake fake;
extern const char *fake_path;

/* One of each limit of shared memory, and one that shares its memory: Orin. */
enum { SM_86, SM_87, SM_90, SM_120, N_DEVICES };
extern const struct fake_device fake_devices[N_DEVICES];

/* Ends the program when the module cannot be opened. */
void fake_open(const char *path);

extern int n_failed;
void expect(bool ok, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Nothing is held and no rule was broken since fake.start(). */
void expect_clean(const char *what);

#endif

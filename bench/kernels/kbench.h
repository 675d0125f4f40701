/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BENCH_KERNELS_KBENCH_H
#define PIPIT_BENCH_KERNELS_KBENCH_H

/* What the files of pipit-kbench share: the device under measurement, how a piece of work is timed
 * on it, and how a figure is printed. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/cuda/bench.h"

struct kbench {
    const struct backend_ops *ops;
    struct backend *be;
    const struct cuda_bench *clock;
    bool small;           /* sizes for an emulated device */
    const char *only;     /* part of a figure's name, or NULL: all */
    double read_rate;     /* bytes a second; 0 until measured */
    uint64_t cold_bytes;  /* rotated buffers hold at least so much: more than the caches */
    uint8_t *noise;       /* host (KBENCH_NOISE): bytes that are small numbers in every format */
    int n_printed;
};

enum { KBENCH_NOISE = 8 << 20 };

/* One round of the work: `n` pieces, each on another buffer, launched one behind the other. */
typedef int kbench_round(struct kbench *k, void *arg, int n);

/* ns of one piece: rounds as graphs, behind each other, between two marks; the median of some
 * samples. */
int kbench_time(struct kbench *k, kbench_round *round, void *arg, int n, double *ret_ns,
                struct error *reterr) WARN_UNUSED;

bool kbench_wants(const struct kbench *k, const char *name);
/* One CSV line; bytes that a piece must read, 0: none; work in operations, 0: none. */
void kbench_print(struct kbench *k, const char *name, double ns, double bytes, double work);

/* Device memory of `bytes` full of noise. */
int kbench_fill(struct kbench *k, uint64_t bytes, void **ret, struct error *reterr) WARN_UNUSED;

/* How many buffers of `bytes` are rotated. */
int kbench_copies(const struct kbench *k, uint64_t bytes);

/* ---- the figures ----------------------------------------------------------------------------- */

int kbench_rates(struct kbench *k, struct error *reterr) WARN_UNUSED;     /* rates.c */
int kbench_launches(struct kbench *k, struct error *reterr) WARN_UNUSED;  /* rates.c */
int kbench_products(struct kbench *k, struct error *reterr) WARN_UNUSED;  /* products.c */
int kbench_attention(struct kbench *k, struct error *reterr) WARN_UNUSED; /* attention.c */
int kbench_sampling(struct kbench *k, struct error *reterr) WARN_UNUSED;  /* rates.c */

#endif

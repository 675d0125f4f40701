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

/* ---- main.c ---------------------------------------------------------------------------------- */

bool kbench_wants(const struct kbench *k, const char *name);
/* One CSV line; bytes that a piece must read, 0: none; work in operations, 0: none. */
void kbench_print(struct kbench *k, const char *name, double ns, double bytes, double work);

/* Device memory of `bytes` full of noise. */
int kbench_fill(struct kbench *k, uint64_t bytes, void **ret, struct error *reterr) WARN_UNUSED;

/* How many buffers of `bytes` are rotated. */
int kbench_copies(const struct kbench *k, uint64_t bytes);

/* `n` weights of noise at ret, of which `ret_n` are there afterwards, after a failure too. */
int kbench_weights(struct kbench *k, const struct ops_weight_desc *like, int n,
                   struct ops_weight *ret, int *ret_n, struct error *reterr) WARN_UNUSED;

/* What most figures need of scratch. A figure that needs other limits reserves them, and these
 * again behind itself: so a new figure changes no old one's memory. */
struct backend_limits kbench_limits(const struct kbench *k);

/* ---- time.c ---------------------------------------------------------------------------------- */

/* One round of the work: `n` pieces, each on another buffer, launched one behind the other. */
typedef int kbench_round(struct kbench *k, void *arg, int n);

/* ns of one piece: rounds as graphs, behind each other, between two marks; the median of some
 * samples. */
int kbench_time(struct kbench *k, kbench_round *round, void *arg, int n, double *ret_ns,
                struct error *reterr) WARN_UNUSED;

struct kbench_kernel {
    const char *kernel; /* its name without template arguments; NULL: the list's end */
    double bytes;       /* that it must read in a piece */
};

/* A line "NAME: KERNEL" for each kernel of the work: what its launches take in one piece, by events
 * behind each of them, on average. Launched one by one, so the sum is more than kbench_time's.
 * `known` has some kernels' bytes; NULL: lines are also of what an event alone takes, which is in
 * all of them. */
int kbench_kernels(struct kbench *k, kbench_round *round, void *arg, int n, const char *name,
                   const struct kbench_kernel *known, struct error *reterr) WARN_UNUSED;

/* ---- the figures ----------------------------------------------------------------------------- */

int kbench_rates(struct kbench *k, struct error *reterr) WARN_UNUSED;     /* rates.c */
int kbench_launches(struct kbench *k, struct error *reterr) WARN_UNUSED;  /* rates.c */
int kbench_products(struct kbench *k, struct error *reterr) WARN_UNUSED;  /* products.c */
int kbench_experts(struct kbench *k, struct error *reterr) WARN_UNUSED;   /* experts.c */
int kbench_attention(struct kbench *k, struct error *reterr) WARN_UNUSED; /* attention.c */
int kbench_select(struct kbench *k, struct error *reterr) WARN_UNUSED;    /* select.c */
int kbench_sampling(struct kbench *k, struct error *reterr) WARN_UNUSED;  /* rates.c */

#endif

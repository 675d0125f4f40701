/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BENCH_SPEED_BENCH_H
#define PIPIT_BENCH_SPEED_BENCH_H

/* What the files of pipit-bench share: samples and their medians, one engine under measurement,
 * and the machine's own limits. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"

enum { BENCH_MAX_REPEATS = 64, BENCH_MAX_BATCH = 64 };

/* Decode steps that may pass beyond those of a sample (run.c). */
enum { RUNNER_SPARE = 4 };

/* ---- samples (main.c) ------------------------------------------------------------------------ */

/* Repeats of one figure. A sample during which the kernel took a CPU from one of the process's
 * threads (involuntary context switches) is not clean; where others are, it does not count. */
struct series {
    int n;
    double value[BENCH_MAX_REPEATS];
    bool clean[BENCH_MAX_REPEATS];
};

struct summary {
    double median;
    double min;
    double max;
    int n_clean;
};

void series_add(struct series *s, double value, bool clean);
struct summary series_summary(const struct series *s);

/* Involuntary context switches of this process so far. */
long bench_switches(void);

double bench_median(double *v, int n); /* sorts v */

/* ---- one engine (run.c) ---------------------------------------------------------------------- */

struct runner;

struct runner_config {
    struct engine_config engine;
    int n_batch;
    bool real; /* read prompts to get to a depth, instead of making their K and V up */
};

int runner_create(const struct runner_config *c, struct runner **ret,
                  struct error *reterr) WARN_UNUSED;
void runner_destroy(struct runner *r); /* takes NULL */
struct engine *runner_engine(const struct runner *r);

/* ns from submitting n_batch prompts to the last of their first tokens. */
int runner_prefill(struct runner *r, int32_t n_prompt, double *ret_ns, bool *ret_clean,
                   struct error *reterr) WARN_UNUSED;

/* Sits n_batch sequences down at a depth, from where n_new tokens may be decoded; times the median
 * step of a sample of n_steps, over clean steps where there are any; ends them. A sample may pass
 * RUNNER_SPARE tokens more. */
int runner_begin(struct runner *r, int32_t depth, int32_t n_new, struct error *reterr) WARN_UNUSED;
int runner_steps(struct runner *r, int n_steps, double *ret_ns, bool *ret_clean,
                 struct error *reterr) WARN_UNUSED;
int runner_end(struct runner *r, struct error *reterr) WARN_UNUSED;

/* ---- the machine (machine.c) ----------------------------------------------------------------- */

struct machine;

/* Room for working sets of up to max_bytes. */
int machine_create(int n_threads, uint64_t max_bytes, struct machine **ret,
                   struct error *reterr) WARN_UNUSED;
void machine_destroy(struct machine *m); /* takes NULL */

/* Bytes a second that all threads read together, of a working set of `bytes`, the best of some
 * passes. */
double machine_read(struct machine *m, uint64_t bytes);

/* Operations a second (a multiplication and an addition are two) of all threads with everything in
 * registers: int8 and bf16 products as the fastest unit of this CPU does them, and which that is.
 */
double machine_peak_int8(struct machine *m, const char **ret_unit);
double machine_peak_bf16(struct machine *m, const char **ret_unit);
/* bf16 products of tiles loaded from L1 and L2, one load a product; 0 where the CPU has none. */
double machine_fed_bf16(struct machine *m);

/* Bytes/s of reading pieces of `bytes` (a power of two, of 64 at least) from everywhere, the best
 * of some distances at which they are asked for. */
int machine_read_pieces(struct machine *m, uint32_t bytes, double *ret_rate, struct error *reterr);

/* ---- a device with memory of its own (device.c) ------------------------------------------------
 */

struct device;

/* Copies are of `bytes`, more than its caches hold. *ret is NULL where the backend computes in the
 * host's memory. */
int device_create(const char *backend, uint64_t bytes, struct device **ret,
                  struct error *reterr) WARN_UNUSED;
void device_destroy(struct device *d); /* takes NULL */

/* Bytes a second that copies within the device's memory read and write. */
double device_copy(struct device *d);

/* ---- kernels of a device (kernels.c) ----------------------------------------------------------
 */

struct kernels;

/* To write a CSV file of what each kernel takes. Behind the first engine; -ENOTSUP: its backend has
 * no clock of that kind. */
int kernels_create(const char *path, struct kernels **ret, struct error *reterr) WARN_UNUSED;
int kernels_finish(struct kernels *k, struct error *reterr) WARN_UNUSED; /* takes NULL */

/* Between the two each kernel is timed by itself; the rows begin with `label`. */
void kernels_begin(struct kernels *k);
int kernels_end(struct kernels *k, const char *label, struct error *reterr) WARN_UNUSED;

/* ---- requests that arrive (serve.c) ---------------------------------------------------------- */

struct serve_config {
    struct engine_config engine;
    uint64_t kv_bytes; /* of keys and values: as many sequences as fit sit at once */
    const char *rates; /* requests a second, by commas; 0: all at the start */
    int n_requests;
    int n_clients; /* of whom each asks again when its answer is over; 0: requests arrive */
    int32_t n_prompt;
    int32_t n_long; /* of the one in the middle; 0: n_prompt */
    int32_t n_new;
    int32_t urgency;
    const char *label;
    bool header;
};

/* Prints one CSV line for each rate. */
int serve_run(const struct serve_config *c, struct error *reterr) WARN_UNUSED;

#endif

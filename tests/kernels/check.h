/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_KERNELS_CHECK_H
#define PIPIT_TESTS_KERNELS_CHECK_H

/* Checks one operation of one backend against the reference, and times it, from one body:
 *
 *     check_case(c, "rows %d", n);                    a fresh case
 *     struct check_buf *x = check_buf(c, "x", bytes); fill x->init
 *     while (check_call(c)) {                         once a side; in bench mode again and again
 *         p.x = check_dev(c, x); c->err = c->ops->norm(c->be, &p);
 *     }
 *     check_floats(c, y, n, ld, n_cols, &tol_reduce); compare
 *
 * Sides: 0 the reference, 1 the backend under test with 2 threads, 2 and 3 the same with 1 and 3
 * threads, whose every output must equal side 1's bit for bit. Buffers lie between guard bytes.
 *
 *     check_norm [--backend cpu|ref|cuda|FILE.so] [--mask NAME] [--filter TEXT] [--every N]
 *                [--sides N]
 *                [--bench [--cpu-time] [--threads N]]
 *
 * The backend cpu is run once for each set of instructions this CPU has. --sides N takes the first
 * N, 2 to 4. --every N takes one case of N only, for CPUs that are emulated: which, $PIPIT_PHASE
 * says (tests/turn.h; tools/test.sh: other ones for each commit). Exits 77 when the backend is
 * absent. Each program defines check_op(). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"
#include "kernels/backend.h"
#include "tests/kernels/tolerance.h"

enum { CHECK_SIDES = 4, CHECK_GUARD = 256, CHECK_BUFS = 192, CHECK_SAMPLES = 200 };
enum { CHECK_FLUSH = 64 << 20 };

struct check_buf {
    const char *what;
    size_t bytes;
    uint8_t *init;             /* what every side starts from */
    uint8_t *dev[CHECK_SIDES]; /* first guard byte */
    uint8_t *out[CHECK_SIDES]; /* what the sides made of it */
};

struct check {
    /* for the body */
    const struct backend_ops *ops; /* of the side being called */
    struct backend *be;
    int side;
    int err;              /* what the call returned: 0, or the same on all sides */
    uint64_t bench_bytes; /* bytes that the case has to move, for GB/s */
    bool bench;
    bool first; /* variant: what concerns the reference alone need be done once */
    /* inside */
    struct backend *sides[CHECK_SIDES];
    struct check_buf bufs[CHECK_BUFS];
    int n_bufs;
    char name[160];
    const char *variant;
    const char *filter;
    int every;  /* cases: one of so many; 0: all */
    int phase;  /* which of them */
    int n_cases;
    int errs[CHECK_SIDES];
    bool warm; /* false in a side's first call: set up what buffers cannot hold */
    int n_samples;
    double started;
    double samples[CHECK_SAMPLES];
    bool cpu_time;
    bool few; /* --few: on an emulator, cases that differ in more than numbers */
    enum backend_prefill prefill; /* of the backend under test */
    int n_threads;    /* of side 1 */
    int n_sides;      /* called: --sides, else all */
    uint8_t *flush;   /* (CHECK_FLUSH) */
    double copy_rate; /* bytes/s, read and written, of a copy that does not fit the L2 */
    uint32_t counter;
    uint32_t words[4];
    struct rng_key key; /* of the case's name */
    int n_failed;
    int n_passed;
};

void check_op(struct check *c);
extern const struct backend_limits check_limits;
/* The instruction sets (base/cpu.h) that kernels of this operation are chosen by: variants that
 * differ in others only are the same to it. */
extern const uint32_t check_flags;

/* Random numbers, the same for a case in every run. */
float check_uniform(struct check *c);                         /* (0, 1) */
int32_t check_range(struct check *c, int32_t lo, int32_t hi); /* [lo, hi] */
float check_normal(struct check *c);
void check_fill(struct check *c, struct check_buf *b, float scale); /* normal f32 */

/* False: left out by --filter or --every, do nothing more. */
bool check_case(struct check *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
struct check_buf *check_buf(struct check *c, const char *what, size_t bytes);
void *check_dev(const struct check *c, const struct check_buf *b); /* NULL for NULL */
/* Ends the call before and begins the next; false when all sides have had theirs. */
bool check_call(struct check *c);
void check_clear(struct check *c);
void check_fail(struct check *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
void check_require(int r, const char *what);
/* Does the backend under test multiply rows of class prefill as tiles of bf16? And by weights of
 * this type? */
bool check_has_tiles(const struct check *c);
bool check_has_tiles_of(const struct check *c, enum dtype type);
/* Does it multiply all of them by quantised weights rounded to bf16 (a GPU, by cublasLt)? */
bool check_has_unpacked(const struct check *c);
/* Does it multiply prefill attention in the cache's 16 bits (a GPU)? */
bool check_has_mma(const struct check *c);
/* Does it sum FP8 keys and values of rows of class decode in f16? */
bool check_has_half(const struct check *c);
/* Does it take FP8 codes below 2^-15 of a head's largest for 0 there? */
bool check_has_flush(const struct check *c);
/* Does it multiply their keys of this type with queries of 15 or 16 bits? */
bool check_has_int_keys(const struct check *c, enum ops_kv_type k_type);
/* And values of this type with weights of 15 or 16 bits? */
bool check_has_int_values(const struct check *c, enum ops_kv_type v_type);
double check_now(void);

/* n rows of n_cols, `ld` apart, of `got` against `want`. */
void check_rows(struct check *c, const char *what, const float *got, const float *want, int32_t n,
                int32_t ld, int32_t n_cols, const struct tolerance *tol);
/* Side 1 against the reference, and nothing written between the rows. */
void check_floats(struct check *c, const struct check_buf *b, int32_t n, int32_t ld, int32_t n_cols,
                  const struct tolerance *tol);
void check_bits(struct check *c, const char *what, const void *got, const void *want, size_t bytes);
/* After a comparison: the next calls are the reference's once more, on what it left. */
void check_reference_again(struct check *c);
/* What lies in the reference's buffer now, against what the comparison read there, bit by bit. */
void check_same(struct check *c, const char *what, struct check_buf *b);

#endif

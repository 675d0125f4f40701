/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_CUDA_LT_LT_H
#define PIPIT_TESTS_CUDA_LT_LT_H

/* A cublasLt for tests: it computes the product on the CPU, where the stream lets it (the emulator;
 * the fake run-time library only notes it), and writes down what was asked for.
 *
 * Its heuristics offer three algorithms: one that needs 64 MiB of workspace, one that divides sums
 * (both for who does not say that he wants none), and the one to take. fake_lt_broken() keeps the
 * first rule that was broken: operands that are not (K, M) transposed and (K, N); types other than
 * 16 bits and f32 sums; rows nearer than they are long, or not aligned; an algorithm of another
 * shape, or not from here; less workspace than it said; more memory than was said. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fake_lt_call {
    uint64_t m, n, k;
    int64_t lda, ldb, ldd;
    int bf16;
    int add;       /* to what was there */
    uint64_t algo; /* which one, of all that were ever offered */
    size_t workspace;
};

/* The log is emptied, the rules hold again, nothing fails. */
void fake_lt_start(void);
const struct fake_lt_call *fake_lt_log(int *ret_n);
void fake_lt_log_clear(void);
const char *fake_lt_broken(void);
/* Handles, descriptors and layouts that are held. */
int fake_lt_objects(void);
/* The n-th call from now on that can fail does, with `status`; 0: none. */
void fake_lt_fail(int n, int status);
int fake_lt_pending(void);
/* Products with fewer columns of the result than n add up in another order; 0: none. */
void fake_lt_few(uint64_t n);
/* and of these only: 1 those that are added to what is there, 2 the first row, 3 the middle one
 * (both of three or more), 4 the last; 0: all. */
void fake_lt_where(int where);
/* An algorithm takes so many bytes of the device as it is first run, and keeps them. */
void fake_lt_code(uint64_t bytes);
/* No algorithm is taken for n columns, of results of m rows (0: any); n = 0: all are. */
void fake_lt_refuse(uint64_t m, uint64_t n);

#ifdef __cplusplus
}
#endif

#endif

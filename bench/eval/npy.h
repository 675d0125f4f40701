/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BENCH_EVAL_NPY_H
#define PIPIT_BENCH_EVAL_NPY_H

/* Rows of f32 as a NumPy .npy file (format version 1.0), written front to back. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct npy;

int npy_create(const char *path, int64_t n_rows, int64_t n_cols, struct npy **ret,
               struct error *reterr) WARN_UNUSED;
int npy_write(struct npy *n, const float *rows, int64_t n_rows, struct error *reterr) WARN_UNUSED;
/* Closes; -EIO when fewer rows were written than promised. Frees n; takes NULL. */
int npy_finish(struct npy *n, struct error *reterr) WARN_UNUSED;

#endif

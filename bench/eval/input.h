/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_EVAL_INPUT_H
#define PIPIT_EVAL_INPUT_H

/* What pipit-eval scores, from files. */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* A regular file's bytes, with one byte of room behind them; the caller frees *ret. */
int input_file(const char *path, char **ret, size_t *ret_len, struct error *reterr) WARN_UNUSED;

/* A file's token ids and one more, 0, of which no row is asked: the last id then has a row, too.
 * The caller frees *ret. */
int input_ids(const char *path, int32_t **ret, int32_t *ret_n, struct error *reterr) WARN_UNUSED;

#endif

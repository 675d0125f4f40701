/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_PACK_H
#define PIPIT_KERNELS_CPU_PACK_H

/* Between a file's rows and panels (kernels/cpu/panel.h). Both ways are exact. */

#include <stddef.h>
#include <stdint.h>

#include "quant/dtype.h"

/* Fills one panel from n_rows (1..16) rows as in the file, row_bytes apart. `panel` holds
 * panel_bytes() and is zeroed: absent rows stay zero. n_cols is whole blocks. */
void pack_panel(enum dtype type, const uint8_t *rows, size_t row_bytes, int n_rows, int32_t n_cols,
                uint8_t *panel);

/* Decodes row `row` of packed panels to f32, bit for bit what dtype_decode() gives of the file. */
void pack_decode_row(enum dtype type, const uint8_t *panels, int32_t row, int32_t n_cols, float *y);

#endif

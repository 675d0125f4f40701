/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_TABLE_KV_H
#define PIPIT_KERNELS_CPU_TABLE_KV_H

/* The cache's part of the table of inner kernels (kernels/cpu/table.h): slots of rope, store,
 * attention and selection, as X(function type, slot). */

/* clang-format off */
#define CPU_SLOTS_KV(X)
/* clang-format on */

#endif

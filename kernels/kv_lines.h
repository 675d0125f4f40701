/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_KV_LINES_H
#define PIPIT_KERNELS_KV_LINES_H

/* Lines of 64 bytes that one new token's query moves of a store, in the backend cpu's page
 * (kernels/cpu/kv_page.h: K by dim, V and copies of K by slot): each line once, whatever it is read
 * for. What is asked for is less where a line holds more than that.
 *
 * Of slots that were chosen nothing is known but how many there are: the latest `local` and any
 * others, each as likely as the next. Lines that hold at least one of them are then a matter of
 * chance, and what is returned is their mean:
 *
 *     a line of w slots, none of them local, of n - local of which k - local are chosen:
 *     1 - C(n - local - w, k - local) / C(n - local, k - local)
 *
 * which is exact where a line holds one slot, or all are read. Keys that are chosen together lie
 * together, too, so a text's own choices move fewer (docs/design/sparse-attention.md). */

#include "kernels/ops.h"

/* Of an array of rows of row_bytes, 64 rows a page and each page on a line of its own: lines that
 * hold some of k of the n rows. */
double kv_lines_some(int32_t n, int32_t k, int32_t local, uint64_t row_bytes);

/* Of one head group, K, V and scales; n slots are visible. GIVEN: `k` slots, the row's own among
 * them; what lists them is below. */
double kv_lines_read(const struct ops_kv_layout *l, const struct ops_select *s, int32_t n);

/* Of one head group's partial keys, all of which choosing a layer ahead reads. */
double kv_lines_part(const struct ops_kv_layout *l, int32_t n);

#endif

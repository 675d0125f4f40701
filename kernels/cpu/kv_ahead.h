/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_AHEAD_H
#define PIPIT_KERNELS_CPU_KV_AHEAD_H

/* Where the lines lie that decode attention asks for ahead of reading them (struct cpu_kv_ahead).
 *
 * A core's L2 follows many streams at once, one a 4 KiB block of addresses, while an L1 has few
 * fill buffers (panel_ahead() in panel_body.h), so several blocks are asked for at once:
 *
 *   skewed      each eighth line is of the same block, 8 lines of it while the block before it goes
 *               through its next 8: block i of the list is complete when line 64 i is reached. For
 *               what is read block by block, soon.
 *   abreast     a line of each of n_streams blocks in turn; all are complete together. For pages
 * that are not made of whole blocks: read in parts, while the next ones are asked for.
 *
 * Blocks begin at multiples of 4 KiB: where each lay across such a border, two threads of a
 * Sapphire Rapids Xeon read 21 GB/s instead of 26.
 *
 * Memory works while something is asked for, and idles in arithmetic that asks for nothing: with an
 * even pace the time of a chunk is the longer of the two, without it the sum. */

#include "kernels/cpu/table_kv.h"

enum {
    KV_AHEAD_LINE = 65536,
    KV_AHEAD_BYTES = 4096,
    KV_AHEAD_SKEWED = 8,
    KV_AHEAD_ABREAST = 24, /* at most; 32 is what an L2 follows */
};

static inline const uint8_t *kv_ahead_line(const struct cpu_kv_ahead *a, uint32_t at)
{
    uint32_t line = at / KV_AHEAD_LINE;
    uint32_t slice = line & 7;
    uint32_t turn;

    if (!a->n_streams) {
        return a->block[(line >> 6) + KV_AHEAD_SKEWED - slice] + 512 * slice + 64 * (line >> 3 & 7);
    }
    turn = (uint32_t)((uint64_t)line * a->inverse >> 24); /* line / n_streams */
    return a->block[(turn >> 6) * a->n_streams + line - turn * a->n_streams] + 64 * (turn & 63);
}

/* What a row of `bytes`, read in lines, asks for at each of them. */
static inline uint32_t kv_ahead_step(const struct cpu_kv_ahead *a, size_t bytes)
{
    size_t lines = (bytes + 63) / 64;

    return a ? (uint32_t)((uint64_t)a->step * bytes / (64 * lines)) : 0;
}

#endif

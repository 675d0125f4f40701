/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_PREFETCH_H
#define PIPIT_KERNELS_CPU_KV_PREFETCH_H

/* Where the lines lie that decode attention asks for ahead of reading them (struct cpu_kv_prefetch).
 *
 * A core's L2 follows many streams at once, one a 4 KiB block of addresses, while an L1 has few
 * fill buffers (panel_prefetch() in panel_body.h), so several blocks are asked for at once:
 *
 *   skewed      each eighth line is of the same block, 8 lines of it while the block before it goes
 *               through its next 8: block i of the list is complete when line 64 i is reached. For
 *               what is read block by block, soon.
 *   abreast     a line of each of n_streams blocks in turn; all are complete together. For pages
 *               that are not made of whole blocks: read in parts, while the next ones are asked
 *               for.
 *
 * Blocks begin at multiples of 4 KiB: where each lay across such a border, two threads of a
 * Sapphire Rapids Xeon read 21 GB/s instead of 26.
 *
 * Memory works while something is asked for, and idles in arithmetic that asks for nothing: with an
 * even pace the time of a chunk is the longer of the two, without it the sum. Lines are asked for
 * by eights: to find each line's address by itself takes more instructions than to multiply 64 FP8
 * numbers. */

#include "kernels/cpu/table_kv.h"

enum {
    KV_PREFETCH_LINE = 65536,
    KV_PREFETCH_BYTES = 4096,
    KV_PREFETCH_LOT = 8, /* lines asked for together */
    KV_PREFETCH_SKEWED = 8,
    KV_PREFETCH_ABREAST = 24, /* at most; 32 is what an L2 follows */
    KV_PREFETCH_ROWS = 8, /* rows of K or V that kernels read between two looks at what is due */
};

/* The next KV_PREFETCH_LOT lines. */
static inline __attribute__((always_inline)) void kv_prefetch_lot(struct cpu_kv_prefetch *a)
{
    if (!a->n_streams) {
#pragma GCC unroll 8
        for (int i = 0; i < KV_PREFETCH_LOT; i++) {
            __builtin_prefetch(a->block[KV_PREFETCH_SKEWED - i] + 512 * i + a->offset, 0, 3);
        }
        a->offset += 64;
        a->block += a->offset >> 9;
        a->offset &= 511;
        return;
    }
    for (int i = 0; i < KV_PREFETCH_LOT; i++) {
        __builtin_prefetch(a->block[a->stream] + a->offset, 0, 3);
        if (++a->stream == a->n_streams) {
            a->stream = 0;
            a->offset += 64;
            if (a->offset == KV_PREFETCH_BYTES) {
                a->offset = 0;
                a->block += a->n_streams;
            }
        }
    }
}

/* Asks for what is due (in 1 / KV_PREFETCH_LINE) with something done; less than a lot stays due. */
static inline __attribute__((always_inline)) void kv_prefetch_due(struct cpu_kv_prefetch *a,
                                                                  uint32_t due)
{
    a->due += due;
    while (a->due >= KV_PREFETCH_LOT * KV_PREFETCH_LINE) {
        a->due -= KV_PREFETCH_LOT * KV_PREFETCH_LINE;
        kv_prefetch_lot(a);
    }
}

/* What each KV_PREFETCH_ROWS of n_rows make due, which are `bytes` in all. */
static inline uint32_t kv_prefetch_share(const struct cpu_kv_prefetch *a, size_t bytes,
                                         int32_t n_rows)
{
    uint32_t looks = ((uint32_t)n_rows + KV_PREFETCH_ROWS - 1) / KV_PREFETCH_ROWS;

    return a && looks ? (uint32_t)((uint64_t)a->step * bytes / 64) / looks : 0;
}

#endif

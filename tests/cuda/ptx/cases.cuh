/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_CUDA_PTX_CASES_CUH
#define PIPIT_TESTS_CUDA_PTX_CASES_CUH

/* What a case of side.cuh gets: words of its lane, shared memory (filled, at a multiple of 1,024)
 * and global memory that all lanes see. */

#include <stdint.h>

enum { PTX_IN = 80, PTX_OUT = 128, PTX_SHARED = 32 << 10, PTX_GLOBAL = 16 << 10 };

struct ptx_lane {
    uint32_t in[PTX_IN];
    uint32_t *out;         /* (PTX_OUT), starts as zeroes */
    uint8_t *shared;       /* (PTX_SHARED) */
    const uint8_t *global; /* (PTX_GLOBAL) */
};

#endif

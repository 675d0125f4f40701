/* SPDX-License-Identifier: Apache-2.0 */
/* The primitives as the emulator has them. */
#define PTX_SIDE_EMU 1
#include "tests/cuda/ptx/side.cuh"

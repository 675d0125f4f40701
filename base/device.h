/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_DEVICE_H
#define PIPIT_BASE_DEVICE_H

/* Marks an inline function of a header as one that CUDA kernels call too; nothing elsewhere. */

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

#endif

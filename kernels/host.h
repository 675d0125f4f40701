/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_HOST_H
#define PIPIT_KERNELS_HOST_H

/* "Device" memory that is ordinary memory: the memory functions of struct backend_ops for the
 * backends `ref` and `cpu`. `be` is not looked at. */

#include "kernels/backend.h"

int host_alloc(struct backend *be, uint64_t bytes, const char *what, void **ret,
               struct error *reterr);
void host_free(struct backend *be, void *device, uint64_t bytes);
int host_free_bytes(struct backend *be, uint64_t *ret);
int host_write(struct backend *be, void *device, const void *host, uint64_t bytes);
int host_read(struct backend *be, void *host, const void *device, uint64_t bytes);
int host_copy(struct backend *be, void *device, const void *from_device, uint64_t bytes);
int host_zero(struct backend *be, void *device, uint64_t bytes);
int host_sync(struct backend *be);

#endif

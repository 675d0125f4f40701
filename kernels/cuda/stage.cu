/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of pinned buffers for the small host arrays of a call (row ids, sequences). A slot is filled
 * by as many calls as fit; before a slot is used again its event says that the device has read it. */

#include "kernels/cuda/cuda.h"

#include <errno.h>
#include <string.h>

int cuda_stage_create(struct cuda_backend *b, struct error *reterr)
{
    for (int i = 0; i < CUDA_STAGES; i++) {
        struct cuda_stage *s = &b->stage[i];
        int err = cuda_check(b, cudaHostAlloc((void **)&s->host, CUDA_STAGE_BYTES, 0), "cudaHostAlloc");

        if (!err) {
            err = cuda_check(b, cudaMalloc((void **)&s->device, CUDA_STAGE_BYTES), "cudaMalloc");
        }
        if (!err) {
            err = cuda_check(b, cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming),
                             "cudaEventCreate");
        }
        if (err) {
            return error_set(reterr, err, "CUDA parameter staging: %s", b->err_text);
        }
    }
    return 0;
}

void cuda_stage_destroy(struct cuda_backend *b)
{
    for (int i = 0; i < CUDA_STAGES; i++) {
        if (b->stage[i].done) {
            (void)cudaEventDestroy(b->stage[i].done);
        }
        (void)cudaFree(b->stage[i].device);
        (void)cudaFreeHost(b->stage[i].host);
    }
}

static int next_slot(struct cuda_backend *b)
{
    struct cuda_stage *s = &b->stage[b->stage_next];
    int err = cuda_check(b, cudaEventRecord(s->done, b->stream), "cudaEventRecord");

    if (err) {
        return err;
    }
    b->stage_next = (b->stage_next + 1) % CUDA_STAGES;
    b->stage_used = 0;
    return cuda_check(b, cudaEventSynchronize(b->stage[b->stage_next].done), "cudaEventSynchronize");
}

int cuda_stage_put(struct cuda_backend *b, const void *host, size_t bytes, const void **ret_device)
{
    if (bytes > CUDA_STAGE_BYTES) {
        return -EINVAL;
    }
    if (b->stage_used + bytes > CUDA_STAGE_BYTES) {
        int err = next_slot(b);

        if (err) {
            return err;
        }
    }
    struct cuda_stage *s = &b->stage[b->stage_next];
    uint8_t *from = s->host + b->stage_used;

    memcpy(from, host, bytes);
    *ret_device = s->device + b->stage_used;
    int err = cuda_check(b,
                         cudaMemcpyAsync(s->device + b->stage_used, from, bytes,
                                         cudaMemcpyHostToDevice, b->stream),
                         "parameters to the device");
    b->stage_used = (b->stage_used + bytes + 255) / 256 * 256;
    return err;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda backend's table of operations, the module's entry point, and what it says of itself.
 *
 * The device is opened in device.cu, its memory is memory.cu's, scratch scratch.cu's; an operation
 * is in the file of its family. Every call of the table comes from one thread. */

#include <cstdio>

#include "kernels/cuda/backend.cuh"
#include "kernels/cuda/cublas.cuh"

extern "C" {
#include "kernels/module.h"
}

static void describe(const struct backend *be, char *buf, size_t size)
{
    const struct cuda *cu = reinterpret_cast<const struct cuda *>(be);
    char prefill[400];

    cuda_lt_describe(cu, prefill, sizeof(prefill));
    (void)snprintf(buf, size, "cuda: %s, %d multiprocessors, prefill_mma, %s%s%s%s",
                   cu->device_name, cu->n_sms, prefill,
                   cu->integrated ? ", shared memory with the host" : "",
                   cu->lost ? ", lost: " : "", cu->lost ? cu->cause : "");
}

static bool news(struct backend *be, char *buf, size_t size)
{
    struct cuda *cu = cuda_of(be);
    bool any = cu->news[0] != '\0';

    if (any) {
        (void)snprintf(buf, size, "%s", cu->news);
        cu->news[0] = '\0';
    }
    return any;
}

const struct backend_ops cuda_backend = {
    .name = "cuda",
    .selects = true,
    .async = true,
    .create = cuda_create,
    .destroy = cuda_destroy,
    .describe = describe,
    .news = news,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .alloc_mapped = cuda_alloc_mapped,
    .free_mapped = cuda_free_mapped,
    .bring = cuda_bring,
    .free_bytes = cuda_free_bytes,
    .write = cuda_write,
    .read = cuda_read,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .sync = cuda_sync,
    .scratch_bytes = cuda_scratch_bytes,
    .reserve = cuda_reserve,
    .weights_try = cuda_lt_weights_try,
    .weights_reserve = cuda_weights_reserve,
    .weight_bytes = cuda_weight_bytes,
    .weight_create = cuda_weight_create,
    .weight_destroy = cuda_weight_destroy,
    .kv_layout = cuda_kv_layout,
    .embed = cuda_embed,
    .norm = cuda_norm,
    .matmul = cuda_matmul,
    .experts = cuda_experts,
    .gather = cuda_gather,
    .mul = cuda_mul,
    .softcap = cuda_softcap,
    .rope_store = cuda_rope_store,
    .qkv_store = cuda_qkv_store,
    .attention = cuda_attention,
    .predict = cuda_predict,
    .conv = cuda_conv,
    .delta = cuda_delta,
    .gate = cuda_gate,
    .scan = cuda_scan,
    .kv_sum = cuda_kv_sum,
    .victim = cuda_victim,
    .cut = cuda_cut,
    .expect = cuda_expect,
    .kv_export = cuda_kv_export,
    .kv_import = cuda_kv_import,
    .sample = cuda_sample,
    .fetch = cuda_fetch,
    .fetched = cuda_fetched,
};

extern "C" __attribute__((visibility("default"))) const struct module pipit_backend_module;
const struct module pipit_backend_module = {
    .magic = MODULE_MAGIC,
    .ops_bytes = sizeof(struct backend_ops),
    .version = PIPIT_VERSION,
    .ops = &cuda_backend,
    .probe = cuda_probe,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* A fault may bring the pages around the one that is read, too, where they are in the page cache:
 * each part of a row counts as much as the kernel maps around a fault, by its default. What is let
 * go stays in the page cache as long as nobody needs the memory. */

#include "engine/model/ple.h"

enum { AROUND_BYTES = 64 << 10 };

uint64_t ple_resident_bytes(const struct model_ple *t)
{
    return t->bytes < PLE_RESIDENT_BYTES ? t->bytes : PLE_RESIDENT_BYTES;
}

void ple_read(struct model_ple *t, int32_t layer, const int32_t *ids, int32_t n, float scale,
              int32_t width, float *dst, int32_t ld)
{
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *row = t->data + (uint64_t)ids[i] * t->row_bytes;
        float *to = dst + (size_t)i * (size_t)ld;

        if (t->touched + AROUND_BYTES > PLE_RESIDENT_BYTES) {
            gguf_drop_range(t->file, t->data, t->bytes);
            t->touched = 0;
        }
        t->touched += AROUND_BYTES;
        dtype_decode(t->type, row + (uint64_t)layer * t->layer_bytes, to, (uint64_t)width);
        for (int32_t c = 0; c < width; c++) {
            to[c] *= scale;
        }
    }
}

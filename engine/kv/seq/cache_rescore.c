/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy makes of the scores at the end of a prompt, before the cut ranks by them (SnapKV
 * pools neighbours). It is a pass on the host: scores are a sixty-fourth of the bytes of f16 K and
 * V of a head of 64, read and written once a prompt and store, and every backend then chooses by
 * the same bits. */

#include <string.h>

#include "engine/kv/seq/cache_impl.h"

enum { CHUNK = 1024 };

static int rescore_group(struct cache *c, const struct policy *p, float *score, int32_t n)
{
    const struct backend_ops *ops = c->geometry.config.ops;
    float in[PLACE_HALO + CHUNK + PLACE_HALO] = {0};
    float out[CHUNK];
    int32_t have = 0; /* scores that are read, */
    int r = 0;

    for (int32_t at = 0; !r && at < n; at += CHUNK) {
        int32_t end = at + CHUNK + PLACE_HALO < n ? at + CHUNK + PLACE_HALO : n;
        int32_t rows = at + CHUNK < n ? CHUNK : n - at;

        if (at > 0) { /* of which these are the old ones of this chunk and before it */
            memmove(in, in + CHUNK, 2 * PLACE_HALO * sizeof(*in));
        }
        memset(in + PLACE_HALO + (have - at), 0,
               (size_t)(CHUNK + PLACE_HALO - (have - at)) * sizeof(*in));
        if (end > have) {
            r = ops->read(c->be, in + PLACE_HALO + (have - at), score + have,
                          (uint64_t)(end - have) * sizeof(*in));
            have = end;
        }
        if (!r) {
            p->place->rescore(p, in + PLACE_HALO, rows, out);
            r = ops->write(c->be, score + at, out, (uint64_t)rows * sizeof(*out));
        }
    }
    return r;
}

int cache_rescore(struct cache *c, const struct cache_seq *q, const struct ops_kv *kv, int32_t n)
{
    int r = 0;

    for (int32_t g = 0; !r && g < kv->layout->n_groups; g++) {
        r = rescore_group(c, &q->policy, kv->score + (size_t)g * (size_t)kv->cap, n);
    }
    return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/pace.h"

enum { TIMES = 4 };

void pace_begin(struct pace *p, uint64_t bytes)
{
    const uint64_t most = UINT64_C(1) << 30; /* no text is that long: nothing overflows */

    bytes = bytes < PACE_LEAST ? PACE_LEAST : bytes > most ? most : bytes;
    p->kib = bytes / 1024;
    if (p->ns_per_kib > INT64_MAX / TIMES / (int64_t)p->kib) {
        atomic_store(&p->limit_ns, INT64_MAX);
    } else {
        atomic_store(&p->limit_ns, TIMES * p->ns_per_kib * (int64_t)p->kib);
    }
}

void pace_end(struct pace *p, int64_t took_ns)
{
    int64_t took = took_ns / (int64_t)p->kib;

    p->ns_per_kib = took > p->ns_per_kib ? took : p->ns_per_kib - (p->ns_per_kib - took) / 4;
}

int64_t pace_limit_ns(const struct pace *p)
{
    return atomic_load(&p->limit_ns);
}

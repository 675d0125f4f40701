/* SPDX-License-Identifier: Apache-2.0 */
/* What a device with memory of its own moves in a second: copies within it, both directions
 * counted, between buffers larger than its caches. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/speed/bench.h"
#include "kernels/backend.h"

enum { LEAST_NS = 20 * 1000 * 1000 };

struct device {
    const struct backend_ops *ops;
    struct backend *be;
    uint64_t bytes; /* of each */
    void *from;
    void *to;
};

int device_create(const char *backend, uint64_t bytes, struct device **ret, struct error *reterr)
{
    static const struct backend_config config = {.n_threads = 1};
    struct device *d;
    const struct backend_ops *ops;
    uint64_t available;
    int r = backend_find(backend ? backend : "auto", &ops, reterr);

    *ret = NULL;
    if (r || strcmp(ops->name, "cuda") != 0) {
        return r;
    }
    d = calloc(1, sizeof(*d));
    if (!d) {
        return error_set(reterr, -ENOMEM, "no memory for the device's bandwidth");
    }
    d->ops = ops;
    d->bytes = bytes;
    r = ops->create(&config, &d->be, reterr);
    if (!r &&
        ops->free_bytes(d->be, &available) == 1) { /* the host's memory: machine_read measures it */
        device_destroy(d);
        return 0;
    }
    r = r ? r : ops->alloc(d->be, bytes, "bandwidth", &d->from, reterr);
    r = r ? r : ops->alloc(d->be, bytes, "bandwidth", &d->to, reterr);
    if (r) {
        device_destroy(d);
        return r;
    }
    *ret = d;
    return 0;
}

void device_destroy(struct device *d)
{
    if (!d) {
        return;
    }
    if (d->be) {
        d->ops->free(d->be, d->from, d->bytes);
        d->ops->free(d->be, d->to, d->bytes);
        d->ops->destroy(d->be);
    }
    free(d);
}

double device_copy(struct device *d)
{
    int64_t t0;
    int64_t ns = 0;
    int n = 0;

    if (d->ops->copy(d->be, d->to, d->from, d->bytes) < 0 || d->ops->sync(d->be) < 0) {
        return 0;
    }
    t0 = clock_ns();
    while (ns < LEAST_NS) {
        for (int i = 0; i < 8; i++, n++) {
            if (d->ops->copy(d->be, d->to, d->from, d->bytes) < 0) {
                return 0;
            }
        }
        if (d->ops->sync(d->be) < 0) {
            return 0;
        }
        ns = clock_ns() - t0;
    }
    return 2.0 * (double)d->bytes * n / ((double)ns / 1e9);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the CPU backends. What could still be allocated is the least of the kernel's
 * MemAvailable and of the control group's limit less what this process has mapped through
 * base/memory.h; both only as an answer to a question, never as a promise. */

#include "kernels/host.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/memory.h"

int host_alloc(struct backend *be, uint64_t bytes, const char *what, void **ret,
               struct error *reterr)
{
    (void)be;
    if (bytes > SIZE_MAX) {
        return error_set(reterr, -ENOMEM, "%s: %" PRIu64 " bytes", what, bytes);
    }
    return memory_map((size_t)bytes, what, ret, reterr);
}

void host_free(struct backend *be, void *device, uint64_t bytes)
{
    (void)be;
    memory_unmap(device, (size_t)bytes);
}

int host_free_bytes(struct backend *be, uint64_t *ret)
{
    uint64_t limit = cgroup_memory_max("/proc/self/cgroup", "/sys/fs/cgroup");
    uint64_t used = memory_mapped_bytes();
    uint64_t available = UINT64_MAX;
    uint64_t kb;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");

    (void)be;
    if (!f) {
        return -errno;
    }
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kb) == 1) {
            available = kb * 1024;
            break;
        }
    }
    (void)fclose(f);
    limit = limit > used ? limit - used : 0;
    *ret = limit < available ? limit : available;
    return 1;
}

int host_write(struct backend *be, void *device, const void *host, uint64_t bytes)
{
    (void)be;
    if (bytes > 0) {
        memcpy(device, host, (size_t)bytes);
    }
    return 0;
}

int host_read(struct backend *be, void *host, const void *device, uint64_t bytes)
{
    return host_write(be, host, device, bytes);
}

int host_copy(struct backend *be, void *device, const void *from_device, uint64_t bytes)
{
    return host_write(be, device, from_device, bytes);
}

int host_zero(struct backend *be, void *device, uint64_t bytes)
{
    (void)be;
    if (bytes > 0) {
        memset(device, 0, (size_t)bytes);
    }
    return 0;
}

int host_sync(struct backend *be)
{
    (void)be;
    return 0;
}

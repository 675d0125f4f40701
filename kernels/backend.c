/* SPDX-License-Identifier: Apache-2.0 */
/* The list of backends. `ref` and `cpu` are always there; `cuda` is a module that may be absent, or
 * find no device. */

#include "kernels/backend.h"

#include <errno.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/module.h"
#include "kernels/ref/ref.h"

bool backend_passed_by(const char *name, const struct backend_ops *found, struct error *ret_cause)
{
    const struct backend_ops *device;

    return strcmp(name, "auto") == 0 && found == &cpu_backend &&
           module_open_cuda(&device, ret_cause) < 0;
}

int backend_find(const char *name, const struct backend_ops **ret, struct error *reterr)
{
    if (strcmp(name, "ref") == 0) {
        *ret = &ref_backend;
        return 0;
    }
    if (strcmp(name, "cpu") == 0) {
        *ret = &cpu_backend;
        return 0;
    }
    if (strcmp(name, "auto") == 0) {
        if (module_open_cuda(ret, NULL) < 0) {
            *ret = &cpu_backend;
        }
        return 0;
    }
    if (strcmp(name, "cuda") == 0) {
        int r = module_open_cuda(ret, reterr);

        if (r < 0) {
            (void)error_prefix(reterr, "backend \"cuda\"");
        }
        return r;
    }
    if (strchr(name, '/')) {
        return module_open(name, ret, reterr);
    }
    return error_set(reterr, -EINVAL, "backend \"%s\" is unknown, known are auto, ref, cpu, cuda",
                     name);
}

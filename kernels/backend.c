/* SPDX-License-Identifier: Apache-2.0 */
/* The list of backends. `ref` is always there; `cpu` is. `cuda` is a module that may be absent. */

#include "kernels/backend.h"

#include <errno.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

int backend_find(const char *name, const struct backend_ops **ret, struct error *reterr)
{
    if (strcmp(name, "ref") == 0) {
        *ret = &ref_backend;
        return 0;
    }
    if (strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0) {
        *ret = &cpu_backend;
        return 0;
    }
    if (strcmp(name, "cuda") == 0) {
        return error_set(reterr, -ENODEV, "backend \"cuda\" is not part of this build");
    }
    return error_set(reterr, -EINVAL, "backend \"%s\" is unknown, known are auto, ref, cpu, cuda",
                     name);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Finding and opening backend modules. A module stays open for the life of the process: its tables
 * and the CUDA library's own threads refer to its code.
 *
 * Where libpipit-cuda.so is looked for: where it is installed (MODULE_DIR), then beside the running
 * program as a build folder has it. Both are places that only the owner of the program writes. */

#include "kernels/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int check(const char *path, const struct module *m, struct error *reterr)
{
    if (!m || m->magic != MODULE_MAGIC) {
        return error_set(reterr, -ENOEXEC, "%s is not a backend module of pipit", path);
    }
    if (m->ops_bytes != sizeof(struct backend_ops) || strcmp(m->version, PIPIT_VERSION) != 0) {
        return error_set(reterr, -ENOEXEC, "%s is of pipit %.20s, this program is of %s", path,
                         m->version, PIPIT_VERSION);
    }
    return 0;
}

int module_open(const char *path, const struct backend_ops **ret, struct error *reterr)
{
    const struct module *m;
    void *handle;
    int r;

    if (access(path, R_OK) < 0) {
        return error_set_errno(reterr, -errno, "backend module %s", path);
    }
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        return error_set(reterr, -ENOEXEC, "backend module: %s", dlerror());
    }
    m = dlsym(handle, MODULE_SYMBOL);
    r = check(path, m, reterr);
    if (r == 0) {
        r = m->probe(reterr);
    }
    if (r == 0) {
        *ret = m->ops;
    }
    return r;
}

int module_open_cuda(const struct backend_ops **ret, struct error *reterr)
{
    static const char *const beside[] = {"../kernels/cuda", "../../kernels/cuda"};
    char program[PATH_MAX];
    char path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    char *slash;

    if (access(MODULE_DIR "/libpipit-cuda.so", R_OK) == 0) {
        return module_open(MODULE_DIR "/libpipit-cuda.so", ret, reterr);
    }
    program[n > 0 ? n : 0] = '\0';
    slash = strrchr(program, '/');
    for (size_t i = 0; slash && i < sizeof(beside) / sizeof(beside[0]); i++) {
        (void)snprintf(path, sizeof(path), "%.*s/%s/libpipit-cuda.so", (int)(slash - program),
                       program, beside[i]);
        if (access(path, R_OK) == 0) {
            return module_open(path, ret, reterr);
        }
    }
    return error_set(reterr, -ENODEV, "%s/libpipit-cuda.so is not installed", MODULE_DIR);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Finding and opening backend modules. A module stays open for the life of the process: its tables
 * and the CUDA library's own threads refer to its code.
 *
 * Where libpipit-cuda.so is looked for: where it is installed (MODULE_DIR), then, for a program
 * that has not been installed, as a build folder has it: the build's top one or two folders up.
 * Code is not taken from a folder that others may write: file and folders must belong to root or to
 * the program's owner and be writable for nobody else but the program's group. */

#include "kernels/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void *last; /* opened */

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
    last = handle;
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

const void *module_symbol(const char *name)
{
    return last ? dlsym(last, name) : NULL;
}

/* May code be taken from `path`? Its last `depth` components are looked at. */
static bool trusted(char *path, int depth, const struct stat *program)
{
    struct stat st;

    for (int i = 0; i < depth; i++) {
        char *slash = strrchr(path, '/');

        if (!slash || lstat(path, &st) < 0 || S_ISLNK(st.st_mode) ||
            (st.st_uid != 0 && st.st_uid != program->st_uid) || (st.st_mode & S_IWOTH) ||
            ((st.st_mode & S_IWGRP) && st.st_gid != program->st_gid)) {
            return false;
        }
        *slash = '\0';
    }
    return true;
}

int module_beside(const char *program, char *ret, size_t size)
{
    static const char *const below = "kernels/cuda/libpipit-cuda.so";
    char top[PATH_MAX];
    char path[PATH_MAX + 64];
    struct stat st;

    if (strlen(program) >= sizeof(top) || stat(program, &st) < 0) {
        return -ENOENT;
    }
    (void)snprintf(top, sizeof(top), "%s", program);
    for (int up = 0; up < 3; up++) { /* the program, its folder, that one's folder */
        char *slash = strrchr(top, '/');

        if (!slash) {
            break;
        }
        *slash = '\0';
        (void)snprintf(path, sizeof(path), "%s/%s", top, below);
        if (up > 0 && access(path, R_OK) == 0 && (size_t)snprintf(ret, size, "%s", path) < size &&
            trusted(path, 4, &st)) {
            return 0;
        }
    }
    return -ENOENT;
}

int module_open_cuda(const struct backend_ops **ret, struct error *reterr)
{
    char program[PATH_MAX];
    char path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);

    if (access(MODULE_DIR "/libpipit-cuda.so", R_OK) == 0) {
        return module_open(MODULE_DIR "/libpipit-cuda.so", ret, reterr);
    }
    program[n > 0 ? n : 0] = '\0';
    if (module_beside(program, path, sizeof(path)) == 0) {
        return module_open(path, ret, reterr);
    }
    return error_set(reterr, -ENODEV,
                     "%s/libpipit-cuda.so is not installed and none is beside the program (ninja "
                     "kernels/cuda/libpipit-cuda.so makes it in a build folder)",
                     MODULE_DIR);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Finding and opening backend modules. A module stays open for the life of the process: its tables
 * and the CUDA library's own threads refer to its code.
 *
 * Where libpipit-cuda.so is looked for: where it is installed (MODULE_DIR), then, for a program
 * that has not been installed, as a build folder has it: the build's top one or two folders up.
 *
 * Code is not taken from where others may put it. The file and its folders must belong to root or
 * to the program's owner and be writable for nobody else but the program's group. Folders are
 * looked at from the file up to the first that the program lies in, too: who may write that one's
 * parent may replace the program itself. Links are followed, and both paths looked at. A module
 * that fails this is an error with its cause, never passed over in silence. */

#include "kernels/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULE_FILE "libpipit-cuda.so"

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

/* May others than root, the program's owner and its group write `st`? Then why. */
static bool others_write(const struct stat *st, const struct stat *program, char *ret, size_t size)
{
    unsigned mode = st->st_mode & 07777;

    if (st->st_uid != 0 && st->st_uid != program->st_uid) {
        (void)snprintf(ret, size, "belongs to uid %u", st->st_uid);
    } else if (S_ISLNK(st->st_mode)) { /* its mode says nothing */
        return false;
    } else if (mode & S_IWOTH) {
        (void)snprintf(ret, size, "may be written by all users (mode %04o)", mode);
    } else if ((mode & S_IWGRP) && st->st_gid != program->st_gid) {
        (void)snprintf(ret, size, "may be written by group %u (mode %04o)", st->st_gid, mode);
    } else {
        return false;
    }
    return true;
}

static bool lies_in(const char *program, const char *folder)
{
    size_t n = strlen(folder);

    return strcmp(folder, "/") == 0 || (strncmp(program, folder, n) == 0 && program[n] == '/');
}

/* Looks at `file` and its folders, up to the first that `program` lies in. */
static int check_place(const char *file, const char *program, struct error *reterr)
{
    char path[PATH_MAX];
    char why[96];
    struct stat own;
    struct stat st;

    if (stat(program, &own) < 0) {
        return error_set(reterr, -EIO, "the program's own file %s: %s", program, strerror(errno));
    }
    (void)snprintf(path, sizeof(path), "%s", file);
    for (;;) {
        char *slash = strrchr(path, '/');

        if (lstat(path, &st) < 0) {
            return error_set_errno(reterr, -errno, "backend module %s", path);
        }
        if (others_write(&st, &own, why, sizeof(why))) {
            return error_set(reterr, -EPERM,
                             "%s %s: a backend module is taken only from where nobody but root and "
                             "the program's owner may put one",
                             path, why);
        }
        if (!slash || lies_in(program, path)) {
            return 0;
        }
        slash[slash == path] = '\0';
    }
}

/* The module in `file`, links followed. -ENOENT: none is there; reterr is not written then. */
static int take(const char *file, const char *program, char *ret, size_t size, struct error *reterr)
{
    char real[PATH_MAX];
    int r;

    if (access(file, F_OK) < 0) {
        return errno == ENOENT || errno == ENOTDIR
                   ? -ENOENT
                   : error_set_errno(reterr, -errno, "backend module %s", file);
    }
    if (!realpath(file, real)) {
        return error_set_errno(reterr, -errno, "backend module %s", file);
    }
    r = check_place(file, program, reterr);
    r = r < 0 ? r : check_place(real, program, reterr);
    if (r == 0 && (size_t)snprintf(ret, size, "%s", real) >= size) {
        r = error_set_errno(reterr, -ENAMETOOLONG, "backend module %s", real);
    }
    return r;
}

int module_beside(const char *program, char *ret, size_t size, struct error *reterr)
{
    char top[PATH_MAX];
    char path[PATH_MAX + 64];
    int r = -ENOENT;

    (void)snprintf(top, sizeof(top), "%s", program);
    /* the program, its folder, that one's folder */
    for (int up = 0; up < 3 && r == -ENOENT; up++) {
        char *slash = strrchr(top, '/');

        if (!slash) {
            break;
        }
        *slash = '\0';
        (void)snprintf(path, sizeof(path), "%s/kernels/cuda/" MODULE_FILE, top);
        if (up > 0) {
            r = take(path, program, ret, size, reterr);
        }
    }
    return r;
}

int module_find(const char *folder, const char *program, char *ret, size_t size,
                struct error *reterr)
{
    char path[PATH_MAX];
    int r;

    (void)snprintf(path, sizeof(path), "%s/" MODULE_FILE, folder);
    r = take(path, program, ret, size, reterr);
    r = r == -ENOENT ? module_beside(program, ret, size, reterr) : r;
    if (r == -ENOENT) {
        return error_set(reterr, -ENODEV,
                         "%s is not installed and none is beside the program (ninja "
                         "kernels/cuda/" MODULE_FILE " makes it in a build folder)",
                         path);
    }
    return r;
}

int module_open_cuda(const struct backend_ops **ret, struct error *reterr)
{
    char program[PATH_MAX];
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    int r;

    program[n > 0 ? n : 0] = '\0';
    r = module_find(MODULE_DIR, program, path, sizeof(path), reterr);
    return r < 0 ? r : module_open(path, ret, reterr);
}

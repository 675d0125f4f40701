/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_MODULE_H
#define PIPIT_KERNELS_MODULE_H

/* A backend in a shared object of its own, opened at run time, so that programs start on machines
 * that lack what it needs. The object exports `const struct module pipit_backend_module`. Module
 * and program must come from one build: the version and the table's size are compared. */

#include "kernels/backend.h"

#define MODULE_MAGIC 0x7069706d6f643031ull
#define MODULE_SYMBOL "pipit_backend_module"

struct module {
    uint64_t magic;
    uint64_t ops_bytes;  /* sizeof(struct backend_ops) */
    const char *version; /* of the build */
    const struct backend_ops *ops;
    int (*probe)(struct error *reterr); /* 0 when a device can be used */
};

/* Opens `path` (never closed again) and probes. -ENOENT: no such file; -ENOEXEC: not a module, or
 * of another build; -ENODEV: no device. */
int module_open(const char *path, const struct backend_ops **ret, struct error *reterr) WARN_UNUSED;

/* A symbol of the module that was opened last, for benches; NULL: it has none, or none was. */
const void *module_symbol(const char *name);

/* The CUDA module of the build folder that `program`, a real path, lies in: its path. -ENOENT: none
 * is there, and reterr is not written; -EPERM: others could have put it there. */
int module_beside(const char *program, char *ret, size_t size, struct error *reterr) WARN_UNUSED;

/* The one installed in `folder`, else the one beside `program`. -ENODEV: neither is there. */
int module_find(const char *folder, const char *program, char *ret, size_t size,
                struct error *reterr) WARN_UNUSED;

/* Finds this program's CUDA module (MODULE_DIR, or beside it) and opens it. */
int module_open_cuda(const struct backend_ops **ret, struct error *reterr) WARN_UNUSED;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/module.c: a module beside an uninstalled program is taken only from folders that nobody
 * else can have written. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "kernels/module.h"

static char top[] = "/tmp/pipit-module-XXXXXX";

static void file(const char *name, mode_t mode, bool folder)
{
    char path[256];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/%s", top, name);
    if (folder) {
        cr_assert_eq(mkdir(path, 0755), 0, "%s", path);
    } else {
        f = fopen(path, "we");
        cr_assert(f, "%s", path);
        (void)fclose(f);
    }
    cr_assert_eq(chmod(path, mode), 0);
}

static void set_mode(const char *name, mode_t mode)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", top, name);
    cr_assert_eq(chmod(path, mode), 0);
}

static int beside(const char *name, char *ret, size_t size)
{
    char program[256];

    (void)snprintf(program, sizeof(program), "%s/%s", top, name);
    return module_beside(program, ret, size);
}

Test(module, beside_a_program)
{
    char got[256];
    char want[256];

    cr_assert(mkdtemp(top));
    file("kernels", 0755, true);
    file("kernels/cuda", 0755, true);
    file("kernels/cuda/libpipit-cuda.so", 0644, false);
    file("daemon", 0755, true);
    file("daemon/front", 0755, true);
    file("daemon/front/deep", 0755, true);
    file("daemon/front/pipitd", 0755, false);
    file("daemon/tool", 0755, false);
    file("daemon/front/deep/far", 0755, false);
    (void)snprintf(want, sizeof(want), "%s/kernels/cuda/libpipit-cuda.so", top);
    cr_assert_eq(beside("daemon/front/pipitd", got, sizeof(got)), 0);
    cr_assert_str_eq(got, want);
    cr_assert_eq(beside("daemon/tool", got, sizeof(got)), 0);
    cr_assert_eq(beside("daemon/front/deep/far", got, sizeof(got)), -ENOENT, "three folders up");
    cr_assert_eq(beside("daemon/none", got, sizeof(got)), -ENOENT);
    cr_assert_eq(beside("daemon/tool", got, 10), -ENOENT, "no room for the path");
    set_mode("kernels", 0777);
    cr_assert_eq(beside("daemon/tool", got, sizeof(got)), -ENOENT, "a folder that all may write");
    set_mode("kernels", 0755);
    set_mode("", 01777);
    cr_assert_eq(beside("daemon/tool", got, sizeof(got)), -ENOENT, "as /tmp");
    set_mode("", 0700);
    set_mode("kernels/cuda/libpipit-cuda.so", 0666);
    cr_assert_eq(beside("daemon/tool", got, sizeof(got)), -ENOENT, "a file that all may write");
    set_mode("kernels/cuda/libpipit-cuda.so", 0644);
    if (geteuid() == 0) {
        (void)snprintf(got, sizeof(got), "%s/kernels/cuda", top);
        cr_assert_eq(chown(got, 65534, 65534), 0);
        cr_assert_eq(beside("daemon/tool", got, sizeof(got)), -ENOENT, "another's folder");
    }
    (void)snprintf(got, sizeof(got), "rm -rf %s", top);
    cr_assert_eq(system(got), 0);
}

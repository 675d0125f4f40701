/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/module.c: a module is taken only from where nobody else can have put it, and the cause
 * names the folder or file that says otherwise. */

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "kernels/module.h"

#define BESIDE "kernels/cuda/libpipit-cuda.so"
#define INSTALLED "inst/lib/pipit/libpipit-cuda.so"

static char top[PATH_MAX]; /* a real path, each case's own */

static char *path_of(const char *name)
{
    static char path[512];

    (void)snprintf(path, sizeof(path), name[0] ? "%s/%s" : "%s", top, name);
    return path;
}

static void file(const char *name, mode_t mode, bool folder)
{
    const char *path = path_of(name);
    FILE *f;

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
    cr_assert_eq(chmod(path_of(name), mode), 0);
}

/* A build folder, and beside it what an installation has. */
static void make_tree(void)
{
    char made[] = "/tmp/pipit-module-XXXXXX";

    cr_assert(mkdtemp(made));
    cr_assert(realpath(made, top));
    file("kernels", 0755, true);
    file("kernels/cuda", 0755, true);
    file(BESIDE, 0644, false);
    file("daemon", 0755, true);
    file("daemon/front", 0755, true);
    file("daemon/front/deep", 0755, true);
    file("daemon/front/pipitd", 0755, false);
    file("daemon/tool", 0755, false);
    file("daemon/front/deep/far", 0755, false);
    file("inst", 0755, true);
    file("inst/bin", 0755, true);
    file("inst/bin/pipitd", 0755, false);
    file("inst/lib", 0755, true);
    file("inst/lib/pipit", 0755, true);
    file(INSTALLED, 0644, false);
}

static void remove_tree(void)
{
    char command[PATH_MAX + 8];

    (void)snprintf(command, sizeof(command), "rm -rf %s", top);
    cr_assert_eq(system(command), 0);
}

static int beside(const char *name, char *ret, size_t size, struct error *e)
{
    *e = (struct error){0};
    return module_beside(path_of(name), ret, size, e);
}

static int find(const char *folder, const char *name, char *ret, size_t size, struct error *e)
{
    char dir[512];

    *e = (struct error){0};
    (void)snprintf(dir, sizeof(dir), "%s", path_of(folder));
    return module_find(dir, path_of(name), ret, size, e);
}

Test(module, beside_a_program, .init = make_tree, .fini = remove_tree)
{
    struct error e;
    char got[512];

    cr_assert_eq(beside("daemon/front/pipitd", got, sizeof(got), &e), 0, "%s", e.text);
    cr_assert_str_eq(got, path_of(BESIDE));
    cr_assert_eq(beside("daemon/tool", got, sizeof(got), &e), 0, "%s", e.text);
    cr_assert_eq(beside("daemon/front/deep/far", got, sizeof(got), &e), -ENOENT, "three up");
    cr_assert_eq(e.code, 0, "none is there, and nothing is said: %s", e.text);
    cr_assert_eq(beside("daemon/tool", got, 10, &e), -ENAMETOOLONG, "no room for the path");
    cr_assert_eq(e.code, -ENAMETOOLONG);
    cr_assert_eq(beside("daemon/none", got, sizeof(got), &e), -EIO, "no such program");
    cr_assert(strstr(e.text, "daemon/none"), "%s", e.text);
}

Test(module, installed_first, .init = make_tree, .fini = remove_tree)
{
    struct error e;
    char got[512];

    cr_assert_eq(find("inst/lib/pipit", "inst/bin/pipitd", got, sizeof(got), &e), 0, "%s", e.text);
    cr_assert_str_eq(got, path_of(INSTALLED));
    cr_assert_eq(find("inst/lib/pipit", "daemon/tool", got, sizeof(got), &e), 0, "%s", e.text);
    cr_assert_str_eq(got, path_of(INSTALLED), "before the one beside the program");
    cr_assert_eq(find("inst/lib", "daemon/tool", got, sizeof(got), &e), 0, "%s", e.text);
    cr_assert_str_eq(got, path_of(BESIDE));
    cr_assert_eq(find("inst/lib", "daemon/front/deep/far", got, sizeof(got), &e), -ENODEV);
    cr_assert(strstr(e.text, "inst/lib/libpipit-cuda.so is not installed and none is beside"), "%s",
              e.text);
}

/* The program's module is refused for what `name` is, which the cause names first. */
static void refused(const char *program, const char *name, const char *why)
{
    struct error e;
    char got[512];
    char want[600];
    int r = find("inst/lib/pipit", program, got, sizeof(got), &e);

    cr_assert_eq(r, -EPERM, "%s %s: %d", name, why, r);
    cr_assert_eq(e.code, -EPERM);
    (void)snprintf(want, sizeof(want), "%s %s", path_of(name), why);
    cr_assert_eq(strncmp(e.text, want, strlen(want)), 0, "\"%s\", not \"%s\"", e.text, want);
}

static void taken(const char *program, const char *what)
{
    struct error e;
    char got[512];

    cr_assert_eq(find("inst/lib/pipit", program, got, sizeof(got), &e), 0, "%s: %s", what, e.text);
}

/* Each folder and the file itself: written by all, by a group, another's. */
static void each(const char *program, const char *const *names)
{
    struct stat st;
    char why[64];

    for (int i = 0; names[i]; i++) {
        const char *name = names[i];

        cr_assert_eq(stat(path_of(name), &st), 0);
        taken(program, name);
        set_mode(name, (st.st_mode & 07777) | 0002);
        (void)snprintf(why, sizeof(why), "may be written by all users (mode %04o)",
                       (st.st_mode & 07777) | 0002);
        refused(program, name, why);
        set_mode(name, (st.st_mode & 07777) | 01022);
        refused(program, name, "may be written by all users (mode 1");
        set_mode(name, (st.st_mode & 07777) | 0020);
        taken(program, "the program's group");
        if (geteuid() == 0) {
            cr_assert_eq(chown(path_of(name), 0, 65534), 0);
            refused(program, name, "may be written by group 65534 (mode 0");
            set_mode(name, st.st_mode & 07777);
            taken(program, "another group, which may not write");
            cr_assert_eq(chown(path_of(name), 65534, 0), 0);
            refused(program, name, "belongs to uid 65534");
            cr_assert_eq(chown(path_of(name), st.st_uid, st.st_gid), 0);
        }
        set_mode(name, st.st_mode & 07777);
    }
}

Test(module, each_component_installed, .init = make_tree, .fini = remove_tree)
{
    static const char *const names[] = {INSTALLED, "inst/lib/pipit", "inst/lib", "inst", NULL};

    each("inst/bin/pipitd", names);
    set_mode("", 0777); /* who writes there may replace the program, too */
    taken("inst/bin/pipitd", "a folder above both");
    refused("daemon/tool", "", "may be written by all users (mode 0777)"); /* not above both */
}

Test(module, each_component_beside, .init = make_tree, .fini = remove_tree)
{
    static const char *const names[] = {BESIDE, "kernels/cuda", "kernels", "", NULL};

    cr_assert_eq(unlink(path_of(INSTALLED)), 0);
    each("daemon/tool", names);
    each("daemon/front/pipitd", names);
    set_mode("daemon", 0777); /* the program's own place is not the module's */
    taken("daemon/tool", "the program's folder");
}

/* What a link names counts, and where the link lies. */
Test(module, links, .init = make_tree, .fini = remove_tree)
{
    struct error e;
    char got[512];
    char to[512];

    cr_assert_eq(unlink(path_of(INSTALLED)), 0);
    file("open", 0755, true);
    file("open/real.so", 0644, false);
    (void)snprintf(to, sizeof(to), "%s", path_of("open/real.so"));
    cr_assert_eq(symlink(to, path_of(INSTALLED)), 0);
    cr_assert_eq(find("inst/lib/pipit", "inst/bin/pipitd", got, sizeof(got), &e), 0, "%s", e.text);
    cr_assert_str_eq(got, to);
    set_mode("open", 0777);
    refused("inst/bin/pipitd", "open", "may be written by all users (mode 0777)");
    set_mode("open", 0755);
    set_mode("inst/lib", 0777);
    refused("inst/bin/pipitd", "inst/lib", "may be written by all users (mode 0777)");
    set_mode("inst/lib", 0755);
    if (geteuid() == 0) {
        cr_assert_eq(lchown(path_of(INSTALLED), 65534, 65534), 0);
        refused("inst/bin/pipitd", INSTALLED, "belongs to uid 65534");
    }
}

/* A folder that cannot be looked into is not the same as no module. */
Test(module, closed_folder)
{
    struct error e;
    char got[512];

    if (geteuid() == 0) { /* who looks into every folder */
        cr_assert_eq(setuid(65534), 0);
    }
    make_tree();
    set_mode("inst/lib", 0600);
    cr_assert_eq(find("inst/lib/pipit", "inst/bin/pipitd", got, sizeof(got), &e), -EACCES);
    cr_assert(strstr(e.text, INSTALLED ": Permission denied"), "%s", e.text);
    set_mode("inst/lib", 0755);
    remove_tree();
}

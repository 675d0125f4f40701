/* SPDX-License-Identifier: Apache-2.0 */
/* Where the daemon may be: the one place that knows the runtime directories, and the library's one
 * look at the environment.
 *
 * What the program names, a folder or an instance, goes before the environment; of both a folder
 * goes before an instance. A folder that somebody named is the only place looked at: falling back
 * to another daemon would answer from another model without a word. Without one: the user's own
 * daemon, the machine's, and the one of a machine without /run/user. A folder in /tmp can be made
 * by anybody, so it counts only when it is ours and closed to others; so does the folder above it,
 * through which it could be renamed. */

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/client.h"

static void add(struct pipit_client *c, const char *origin, const char *fmt, ...) PRINTF_LIKE(3, 4);

static void add(struct pipit_client *c, const char *origin, const char *fmt, ...)
{
    struct place *p = &c->places[c->n_places++];
    va_list args;
    int n;

    p->origin = origin;
    va_start(args, fmt);
    n = vsnprintf(p->path, sizeof(p->path), fmt, args);
    va_end(args);
    p->err = n < 0 || (size_t)n >= sizeof(p->path) ? -ENAMETOOLONG : 0;
}

static bool instance_ok(const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i])) {
            return false;
        }
    }
    return n > 0 && n <= 64 && name[0] != '.';
}

int find_places(struct pipit_client *c, struct pipit_error *reterr)
{
    const char *env_dir = c->instance ? NULL : getenv("PIPIT_RUNTIME_DIR");
    const char *env_instance = c->instance ? NULL : getenv("PIPIT_INSTANCE");
    const char *instance = c->instance                     ? c->instance
                           : env_instance && *env_instance ? env_instance
                                                           : "default";
    unsigned uid = (unsigned)geteuid();

    if (!instance_ok(instance)) {
        return pipit_fail(reterr, -EINVAL, PIPIT_E_LOCAL,
                          "'%.70s' is no name of an instance: letters, digits, '.', '_' and '-', "
                          "at most 64, not beginning with '.'",
                          instance);
    }
    c->n_places = 0;
    if (c->runtime_dir) {
        add(c, "given", "%s/lane.sock", c->runtime_dir);
        return 0;
    }
    if (env_dir && *env_dir) {
        add(c, "$PIPIT_RUNTIME_DIR", "%s/lane.sock", env_dir);
        return 0;
    }
    add(c, "user", "/run/user/%u/pipit/%s/lane.sock", uid, instance);
    add(c, "system", "/run/pipit/%s/lane.sock", instance);
    add(c, "tmp", "/tmp/pipit-%u/%s/lane.sock", uid, instance);
    return 0;
}

static int check_folder(const char *path)
{
    struct stat st;

    if (lstat(path, &st) < 0) {
        return -errno;
    }
    if (!S_ISDIR(st.st_mode)) {
        return -ENOTDIR;
    }
    return st.st_uid != geteuid() || (st.st_mode & 077) ? -EPERM : 0;
}

int find_check(const struct place *place)
{
    char folder[SOCKET_PATH_MAX + 1];
    int r;

    if (strcmp(place->origin, "tmp") != 0) {
        return 0;
    }
    (void)snprintf(folder, sizeof(folder), "%s", place->path);
    *strrchr(folder, '/') = '\0';
    r = check_folder(folder);
    if (r == 0) {
        *strrchr(folder, '/') = '\0';
        r = check_folder(folder);
    }
    return r;
}

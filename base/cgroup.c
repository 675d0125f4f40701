/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/self/cgroup, whose lines are "id:controllers:path", and asks every folder from that
 * path up to the root: a parent's limit binds its children too. Version 2 has id 0 and no
 * controller names; version 1 has one line for each mounted hierarchy, found under a folder named
 * like the controllers. In a container the path can name a folder that is not visible; walking up
 * then still meets the container's own root, where the limit shows. */

#include "base/cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Looks at the limit in one folder; `state` is the least so far. */
typedef void look_fn(const char *folder, void *state);

static bool read_line(const char *folder, const char *name, char *line, int size)
{
    char path[PATH_MAX];
    FILE *f;
    bool ok;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path)) {
        return false;
    }
    f = fopen(path, "re");
    if (!f) {
        return false;
    }
    ok = fgets(line, size, f) != NULL;
    (void)fclose(f);
    return ok;
}

static void walk_up(const char *mount, const char *group, look_fn *look, void *state)
{
    char path[PATH_MAX];
    size_t top = strlen(mount);

    if (snprintf(path, sizeof(path), "%s%s", mount, group) >= (int)sizeof(path)) {
        return;
    }
    for (;;) {
        look(path, state);
        char *slash = strrchr(path, '/');

        if (!slash || (size_t)(slash - path) < top) {
            return;
        }
        *slash = '\0';
    }
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = list; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == '\0')) {
            return true;
        }
    }
    return false;
}

static void each_group(const char *proc_cgroup, const char *root, const char *controller,
                       look_fn *look_v2, look_fn *look_v1, void *state)
{
    char line[PATH_MAX + 256];
    char mount[PATH_MAX];
    FILE *f = fopen(proc_cgroup, "re");

    if (!f) {
        return;
    }
    while (fgets(line, sizeof(line), f)) {
        char *list = strchr(line, ':');
        char *group = list ? strchr(list + 1, ':') : NULL;

        if (!group) {
            continue;
        }
        *group++ = '\0';
        list++;
        group[strcspn(group, "\n")] = '\0';
        if (*list == '\0') {
            walk_up(root, group, look_v2, state);
        } else if (has_word(list, controller) &&
                   snprintf(mount, sizeof(mount), "%s/%s", root, list) < (int)sizeof(mount)) {
            walk_up(mount, group, look_v1, state);
        }
    }
    (void)fclose(f);
}

static void least_quota(double quota, double period, double *least)
{
    if (quota > 0 && period > 0 && (*least < 0 || quota / period < *least)) {
        *least = quota / period;
    }
}

static void look_cpu_v2(const char *folder, void *state)
{
    char line[128];
    double quota;
    double period;

    /* "max 100000" or "150000 100000" */
    if (read_line(folder, "cpu.max", line, sizeof(line)) &&
        sscanf(line, "%lf %lf", &quota, &period) == 2) {
        least_quota(quota, period, state);
    }
}

static void look_cpu_v1(const char *folder, void *state)
{
    char quota[64];
    char period[64];

    /* -1: none */
    if (read_line(folder, "cpu.cfs_quota_us", quota, sizeof(quota)) &&
        read_line(folder, "cpu.cfs_period_us", period, sizeof(period))) {
        least_quota(strtod(quota, NULL), strtod(period, NULL), state);
    }
}

static void least_memory(const char *folder, const char *name, uint64_t *least)
{
    char line[64];
    unsigned long long v;

    /* "max" has no number and is no limit. */
    if (read_line(folder, name, line, sizeof(line)) && sscanf(line, "%llu", &v) == 1 &&
        v < *least) {
        *least = v;
    }
}

static void look_memory_v2(const char *folder, void *state)
{
    least_memory(folder, "memory.max", state);
}

static void look_memory_v1(const char *folder, void *state)
{
    least_memory(folder, "memory.limit_in_bytes", state);
}

double cgroup_cpu_quota(const char *proc_cgroup, const char *root)
{
    double least = -1;

    each_group(proc_cgroup, root, "cpu", look_cpu_v2, look_cpu_v1, &least);
    return least;
}

uint64_t cgroup_memory_max(const char *proc_cgroup, const char *root)
{
    uint64_t least = UINT64_MAX;

    each_group(proc_cgroup, root, "memory", look_memory_v2, look_memory_v1, &least);
    /* Version 1 writes "no limit" as a number near 2^63. */
    return least >= (uint64_t)INT64_MAX / 2 ? UINT64_MAX : least;
}

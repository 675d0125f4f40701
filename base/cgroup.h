/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_CGROUP_H
#define PIPIT_BASE_CGROUP_H

/* Limits that a control group (version 2, or version 1 beside it) puts on this process: the least
 * along the path from its group to the root. `proc_cgroup` is "/proc/self/cgroup" and `root`
 * "/sys/fs/cgroup", except in tests. What cannot be read is no limit. */

#include <stdint.h>

/* CPUs' worth of time per unit of time, e.g. 1.5; a negative number without a quota. */
double cgroup_cpu_quota(const char *proc_cgroup, const char *root);

/* Bytes of memory the group may use in all, UINT64_MAX without a limit. */
uint64_t cgroup_memory_max(const char *proc_cgroup, const char *root);

#endif

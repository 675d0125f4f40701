/* SPDX-License-Identifier: Apache-2.0 */
/* base/cpu.h against the kernel's own list of features, and base/cgroup.h on made-up trees. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/cpu.h"

Test(cpu, flags_have_names)
{
    cr_assert_str_eq(cpu_flag_name(0), "avx2");
    cr_assert_str_eq(cpu_flag_name(6), "amx_bf16");
    cr_assert_str_eq(cpu_flag_name(11), "fp16");
    cr_assert_null(cpu_flag_name(12));
    cr_assert_null(cpu_flag_name(-1));
}

Test(cpu, implied_flags)
{
    uint32_t f = cpu_flags();

    cr_assert_eq(f, cpu_flags());
    if (f & (CPU_AVX512_VNNI | CPU_AVX512_BF16 | CPU_AVX512_FP16)) {
        cr_assert(f & CPU_AVX512);
    }
    if (f & CPU_AVX512) {
        cr_assert(f & CPU_AVX2);
    }
}

/* The kernel's list shows what the CPU has; AMX may still be refused to a process. */
Test(cpu, agrees_with_the_kernel)
{
    static const struct {
        const char *word;
        uint32_t flag;
    } rows[] = {{" avx2 ", CPU_AVX2},
                {" avx512vl ", CPU_AVX512},
                {" avx512_vnni ", CPU_AVX512_VNNI},
                {" avx512_bf16 ", CPU_AVX512_BF16},
                {" avx512_fp16 ", CPU_AVX512_FP16},
                {" avx_vnni ", CPU_AVX_VNNI},
                {" asimddp ", CPU_DOTPROD},
                {" i8mm ", CPU_I8MM}};
    static char text[1 << 16];
    FILE *f = fopen("/proc/cpuinfo", "re");

    if (!f) {
        cr_skip_test("no /proc/cpuinfo");
    }
    bool found = false;
    while (!found && fgets(text, sizeof(text) - 1, f)) {
        found = strncmp(text, "flags\t", 6) == 0 || strncmp(text, "Features\t", 9) == 0;
    }
    (void)fclose(f);
    if (!found) {
        cr_skip_test("no list of features in /proc/cpuinfo");
    }
    text[strcspn(text, "\n")] = ' ';
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool there = strstr(text, rows[i].word) != NULL;

        cr_assert_eq(there, (cpu_flags() & rows[i].flag) != 0, "%s", rows[i].word);
    }
}

Test(cpu, count_is_within_the_machine)
{
    cr_assert_geq(cpu_count(), 1);
    cr_assert_leq(cpu_count(), sysconf(_SC_NPROCESSORS_CONF));
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    for (char *p = path + strlen(dir) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        (void)mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "we");
    cr_assert(f, "%s", path);
    (void)fputs(text, f);
    (void)fclose(f);
}

static void check_cgroup(const char *proc, const char *const files[][2], double cpus,
                         uint64_t memory)
{
    char dir[] = "/tmp/test-cgroup-XXXXXX";
    char proc_path[64];
    char command[64];

    cr_assert(mkdtemp(dir));
    put(dir, "proc", proc);
    for (size_t i = 0; files[i][0]; i++) {
        put(dir, files[i][0], files[i][1]);
    }
    (void)snprintf(proc_path, sizeof(proc_path), "%s/proc", dir);
    cr_assert_float_eq(cgroup_cpu_quota(proc_path, dir), cpus, 1e-9);
    cr_assert_eq(cgroup_memory_max(proc_path, dir), memory);
    (void)snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

Test(cgroup, version_2_takes_the_least_on_the_path)
{
    check_cgroup("0::/a.slice/b.service\n",
                 (const char *const[][2]){{"a.slice/b.service/cpu.max", "max 100000\n"},
                                          {"a.slice/b.service/memory.max", "4096000\n"},
                                          {"a.slice/cpu.max", "150000 100000\n"},
                                          {"a.slice/memory.max", "max\n"},
                                          {"cpu.max", "400000 100000\n"},
                                          {NULL, NULL}},
                 1.5, 4096000);
}

Test(cgroup, version_2_folder_that_is_not_visible)
{
    check_cgroup("0::/kubepods/pod1/abc\n",
                 (const char *const[][2]){
                     {"cpu.max", "50000 100000\n"}, {"memory.max", "1000000\n"}, {NULL, NULL}},
                 0.5, 1000000);
}

Test(cgroup, version_1)
{
    check_cgroup(
        "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:cpuset:/\n",
        (const char *const[][2]){{"cpu,cpuacct/docker/x/cpu.cfs_quota_us", "200000\n"},
                                 {"cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n"},
                                 {"cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
                                 {"cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
                                 {"memory/docker/x/memory.limit_in_bytes", "9223372036854771712\n"},
                                 {NULL, NULL}},
        2.0, UINT64_MAX);
}

Test(cgroup, nothing_to_read_is_no_limit)
{
    cr_assert_lt(cgroup_cpu_quota("/nonexistent", "/nonexistent"), 0);
    cr_assert_eq(cgroup_memory_max("/nonexistent", "/nonexistent"), UINT64_MAX);
}

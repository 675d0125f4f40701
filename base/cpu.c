/* SPDX-License-Identifier: Apache-2.0 */
/* CPU features and the number of CPUs. On x86 a feature counts only if the operating system keeps
 * its registers (XGETBV), and AMX only once the kernel has granted tile data to this process: the
 * first cpu_flags() asks for it, and must therefore run before threads that use tiles are made.
 * On Arm the kernel's hwcap words say it all. Asked once; concurrent first calls are safe and find
 * the same answer. */

#include "base/cpu.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "base/cgroup.h"

#define KNOWN (1u << 31) /* not a flag: the word has been filled */

#if defined(__x86_64__)

#define XCR0_AVX 0x6u     /* xmm, ymm */
#define XCR0_AVX512 0xe6u /* and opmask, both zmm halves */
#define XCR0_AMX 0x60000u /* tile configuration, tile data */
#define REQ_XCOMP_PERM 0x1023
#define XFEATURE_TILE_DATA 18

static uint64_t xcr0(void)
{
    uint32_t lo;
    uint32_t hi;

    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool bit(uint32_t word, int n)
{
    return word >> n & 1;
}

static uint32_t amx_flags(uint32_t leaf7_edx)
{
    /* bf16 22, tile 24, int8 25 */
    if (!bit(leaf7_edx, 24) || syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XFEATURE_TILE_DATA) != 0) {
        return 0;
    }
    return (bit(leaf7_edx, 25) ? CPU_AMX_INT8 : 0u) | (bit(leaf7_edx, 22) ? CPU_AMX_BF16 : 0u);
}

static uint32_t avx512_flags(uint32_t b7, uint32_t c7, uint32_t d7, uint32_t a71)
{
    /* F 16, DQ 17, CD 28, BW 30, VL 31 */
    if (!bit(b7, 16) || !bit(b7, 17) || !bit(b7, 28) || !bit(b7, 30) || !bit(b7, 31)) {
        return 0;
    }
    return CPU_AVX512 | (bit(c7, 11) ? CPU_AVX512_VNNI : 0u) |
           (bit(a71, 5) ? CPU_AVX512_BF16 : 0u) | (bit(d7, 23) ? CPU_AVX512_FP16 : 0u);
}

static uint32_t ask(void)
{
    uint32_t a;
    uint32_t b1;
    uint32_t c1;
    uint32_t d;
    uint32_t max7;
    uint32_t b7;
    uint32_t c7;
    uint32_t d7;
    uint32_t a71 = 0;
    uint32_t b;
    uint32_t c;
    uint32_t flags = 0;

    /* OSXSAVE 27; FMA 12, F16C 29, AVX 28 */
    if (!__get_cpuid(1, &a, &b1, &c1, &d) || !bit(c1, 27) ||
        !__get_cpuid_count(7, 0, &max7, &b7, &c7, &d7)) {
        return 0;
    }
    if (max7 >= 1) {
        (void)__get_cpuid_count(7, 1, &a71, &b, &c, &d);
    }
    uint64_t os = xcr0();

    if ((os & XCR0_AVX) != XCR0_AVX || !bit(c1, 28) || !bit(c1, 12) || !bit(c1, 29) ||
        !bit(b7, 5)) {
        return 0;
    }
    flags |= CPU_AVX2 | (bit(a71, 4) ? CPU_AVX_VNNI : 0u);
    if ((os & XCR0_AVX512) == XCR0_AVX512) {
        flags |= avx512_flags(b7, c7, d7, a71);
    }
    if ((os & XCR0_AMX) == XCR0_AMX) {
        flags |= amx_flags(d7);
    }
    return flags;
}

#elif defined(__aarch64__)

static uint32_t ask(void)
{
    unsigned long cap = getauxval(AT_HWCAP);
    unsigned long cap2 = getauxval(AT_HWCAP2);
    uint32_t flags = 0;

    flags |= cap & HWCAP_ASIMD ? CPU_NEON : 0u;
    flags |= cap & HWCAP_ASIMDDP ? CPU_DOTPROD : 0u;
    flags |= (cap & HWCAP_ASIMDHP) && (cap & HWCAP_FPHP) ? CPU_FP16 : 0u;
#ifdef HWCAP2_I8MM
    flags |= cap2 & HWCAP2_I8MM ? CPU_I8MM : 0u;
#else
    (void)cap2;
#endif
    return flags;
}

#else

static uint32_t ask(void)
{
    return 0;
}

#endif

uint32_t cpu_flags(void)
{
    static _Atomic uint32_t known;
    uint32_t v = atomic_load_explicit(&known, memory_order_relaxed);

    if (!(v & KNOWN)) {
        v = ask() | KNOWN;
        atomic_store_explicit(&known, v, memory_order_relaxed);
    }
    return v & ~KNOWN;
}

const char *cpu_flag_name(int bit_no)
{
    static const char *const names[] = {"avx2",        "avx512",   "avx512_vnni", "avx512_bf16",
                                        "avx512_fp16", "amx_int8", "amx_bf16",    "avx_vnni",
                                        "neon",        "dotprod",  "i8mm",        "fp16"};

    return bit_no >= 0 && (size_t)bit_no < sizeof(names) / sizeof(names[0]) ? names[bit_no] : NULL;
}

static int affinity_count(void)
{
    /* The kernel refuses a set smaller than its own; few machines have more than 1,024 CPUs. */
    for (int cpus = 1024; cpus <= 1 << 16; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        int n = 0;
        int r;

        if (!set) {
            break;
        }
        r = sched_getaffinity(0, bytes, set);
        if (r == 0) {
            n = CPU_COUNT_S(bytes, set);
        }
        CPU_FREE(set);
        if (r == 0 && n > 0) {
            return n;
        }
        if (errno != EINVAL) {
            break;
        }
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n > 0 ? (int)n : 1;
}

int cpu_count(void)
{
    int n = affinity_count();
    double quota = cgroup_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");

    /* To the nearest: at 1.5 CPUs a second thread still gains, at 1.2 it is mostly throttled. */
    if (quota > 0 && quota + 0.5 < n) {
        n = (int)(quota + 0.5);
    }
    return n > 0 ? n : 1;
}

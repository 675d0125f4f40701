/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch: which inner kernel serves which slot, decided once from CPU flags.
 *
 * Plain C first, then each instruction set in order of strength; a later one replaces what it can
 * do better and leaves the rest. A mask (struct backend_config) takes flags away, so that a test
 * forces any variant that this CPU can run. */

#include "kernels/cpu/table.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/arm/arm.h"
#include "kernels/x86/x86.h"

void cpu_table_init(struct cpu_table *t, uint32_t flags)
{
    memset(t, 0, sizeof(*t));
    cpu_table_dense_c(t);
    cpu_table_kv_c(t);
#if defined(__x86_64__)
    if (flags & CPU_AVX2) {
        x86_table_avx2(t);
        if (flags & CPU_AVX_VNNI) {
            x86_table_avxvnni(t);
        }
        if (flags & CPU_AVX512) {
            x86_table_avx512(t);
            if (flags & CPU_AVX512_VNNI) {
                x86_table_avx512vnni(t);
            }
            if (flags & CPU_AVX512_FP16) {
                x86_table_kv_avx512fp16(t);
            }
            if ((flags & CPU_AVX512_BF16) && (flags & CPU_AMX_BF16)) {
                x86_table_amx(t);
            }
        }
    }
#elif defined(__aarch64__)
    if (flags & CPU_NEON) {
        arm_table_neon(t);
        if (flags & CPU_DOTPROD) {
            arm_table_dotprod(t);
            if (flags & CPU_I8MM) {
                arm_table_i8mm(t);
            }
        }
    }
#else
    (void)flags;
#endif
}

cpu_panel_fn *cpu_table_panel(const struct cpu_table *t, enum dtype type)
{
    switch (type) {
    case DTYPE_F32:
        return t->panel_f32;
    case DTYPE_F16:
        return t->panel_f16;
    case DTYPE_BF16:
        return t->panel_bf16;
    case DTYPE_Q4_0:
        return t->panel_q4_0;
    case DTYPE_Q4_1:
        return t->panel_q4_1;
    case DTYPE_Q5_0:
        return t->panel_q5_0;
    case DTYPE_Q5_1:
        return t->panel_q5_1;
    case DTYPE_Q8_0:
        return t->panel_q8_0;
    case DTYPE_Q2_K:
        return t->panel_q2_k;
    case DTYPE_Q3_K:
        return t->panel_q3_k;
    case DTYPE_Q4_K:
        return t->panel_q4_k;
    case DTYPE_Q5_K:
        return t->panel_q5_k;
    case DTYPE_Q6_K:
        return t->panel_q6_k;
    case DTYPE_IQ4_NL:
        return t->panel_iq4_nl;
    case DTYPE_IQ4_XS:
        return t->panel_iq4_xs;
    case DTYPE_MXFP4:
        return t->panel_mxfp4;
    }
    return NULL;
}

void cpu_table_describe(const struct cpu_table *t, char *buf, size_t size)
{
    size_t used = 0;

#define ADD_NAME(type, slot)                                                                       \
    if (used < size && t->slot) {                                                                  \
        used +=                                                                                    \
            (size_t)snprintf(buf + used, size - used, "%s%s", used ? " " : "", t->slot##_name);    \
    }
    CPU_SLOTS_DENSE(ADD_NAME)
    CPU_SLOTS_KV(ADD_NAME)
    CPU_SLOTS_RECUR(ADD_NAME)
    CPU_SLOTS_TILE(ADD_NAME)
    CPU_SLOTS_SELECT(ADD_NAME)
    CPU_SLOTS_EXPECT(ADD_NAME)
#undef ADD_NAME
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_CUDA_PTX_PTX_CUH
#define PIPIT_TESTS_CUDA_PTX_PTX_CUH

/* The interpreter of inline PTX: what asm.py puts in the place of each asm statement of
 * kernels/cuda/prim.cuh, and what the test asks of it. One thread of the process calls all of it;
 * lanes are fibers of tests/cuda/emu. */

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

struct ptx_operand {
    const char *constraint;
    void *at; /* of an output, the variable; valid until the statement's group is waited for */
    size_t bytes;
    uint64_t bits;
};

template <typename T> static inline struct ptx_operand ptx_out(const char *constraint, T &x)
{
    struct ptx_operand o = {constraint, &x, sizeof(T), 0};

    if (constraint[0] == '+') {
        memcpy(&o.bits, &x, sizeof(T));
    }
    return o;
}

template <typename T> static inline struct ptx_operand ptx_in(const char *constraint, T x)
{
    struct ptx_operand o = {constraint, NULL, sizeof(T), 0};

    memcpy(&o.bits, &x, sizeof(T));
    return o;
}

/* Executes statement `site` for the lane that runs. An instruction that is unknown, or used against
 * its rules, sets ptx_failure() and does nothing. */
void ptx_run(int site, std::initializer_list<struct ptx_operand> operands);

/* The statements, made by asm.py. */
struct ptx_site {
    int line; /* of prim.cuh */
    const char *text;
};
extern const struct ptx_site ptx_sites[];
extern const int ptx_n_sites;

/* A fault put into one statement: part of its text replaced, or bits of an input flipped. */
struct ptx_fault {
    int site;
    size_t at, n;   /* of the text */
    const char *to; /* in their place; NULL: the text stays */
    size_t operand;
    uint64_t bits; /* of that operand that are flipped */
};

/* A block begins: nothing is under way. `global`: what prefetches and copies may read. */
void ptx_begin(const void *global, size_t global_bytes);
/* NULL: none from now on. */
void ptx_set_fault(const struct ptx_fault *fault);
/* What went wrong first since ptx_begin(), or NULL. */
const char *ptx_failure(void);
/* Times that a statement was executed since the start. */
uint64_t ptx_count(int site);
/* Bits of a generic address in the shared window, of which the lowest ten are those of `p`. */
uint32_t ptx_shared_address(const void *p);

/* Numbers, exactly. `bf16`: bfloat16 instead of binary16; rounding to nearest even, or to zero. */
double ptx_half_value(uint16_t bits, bool bf16);
uint16_t ptx_half_of(double x, bool bf16, bool to_zero);

#endif

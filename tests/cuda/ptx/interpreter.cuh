/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_CUDA_PTX_INTERPRETER_CUH
#define PIPIT_TESTS_CUDA_PTX_INTERPRETER_CUH

/* What the interpreter's files share: interpreter.cc has texts, memory and what a lane does alone,
 * matrices.cc what lanes do together. */

#include "tests/cuda/ptx/ptx.cuh"

#include "tests/cuda/emu/emu_impl.cuh"

#include <map>
#include <string>
#include <vector>

enum { MAX_LANES = 128, SHARED_BASE = 1024, MAX_SITES = 256 };

typedef std::vector<std::string> strings;

struct instruction {
    std::string name, text;
    strings args;
};

/* One statement of one lane. */
struct frame {
    std::vector<struct ptx_operand> operands;
    std::map<std::string, uint64_t> registers;
};

void ptx_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
float ptx_float_of(uint32_t bits);
/* A NaN is 0x7fffffff. */
uint32_t ptx_bits_of(float x);

/* The members of {a list}. */
strings ptx_members(const std::string &list);
/* Are there so many operands, and lists of such lengths (0: no list)? */
bool ptx_has(const struct instruction *in, std::initializer_list<size_t> sizes);
struct ptx_operand *ptx_operand_of(struct frame *f, const std::string &name);
uint64_t ptx_get(struct frame *f, const std::string &name);
void ptx_set(struct frame *f, const std::string &name, uint64_t value);
/* The value of the register in [name]. */
uint64_t ptx_address(struct frame *f, const std::string &arg);
/* Shared memory at an address that is a multiple of `align`; NULL: a failure. */
void *ptx_shared_at(uint64_t address, size_t bytes, size_t align);

/* matrices.cc: false, there is no such instruction. */
bool ptx_step_matrix(struct frame *f, const struct instruction *in);
void ptx_begin_matrices(void);

#endif

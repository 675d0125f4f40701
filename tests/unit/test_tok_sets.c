/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer on vocabularies that are not in the tree: vectors made with the package tokenizers,
 * and llama.cpp's own cases. What is absent is named; the test is skipped as a whole when all are.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/tok_cases.h"

static const char *const names[] = {"llama-spm",   "smollm2",       "gpt-2",     "gpt-2/smollm",
                                    "gpt-2/qwen2", "gpt-2/default", "llama-bpe", "llama-bpe/qwen2"};
static const char *const sets[] = {"ggml-vocab-gpt-2.gguf", "ggml-vocab-llama-bpe.gguf",
                                   "ggml-vocab-llama-spm.gguf"};

enum { N_NAMES = sizeof(names) / sizeof(names[0]), N_SETS = sizeof(sets) / sizeof(sets[0]) };

static bool have_set(size_t i)
{
    return access(tok_cases_shared(sets[i]), R_OK) == 0;
}

/* Not cr_log_warn(): a warning makes Criterion's exit code 1. */
Test(tok_sets, vectors)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        if (tok_cases_vectors(names[i]) == 0) {
            (void)fprintf(stderr, "SKIP: the vocabulary %s is not here\n", names[i]);
        }
    }
}

Test(tok_sets, llama_cpp)
{
    for (size_t i = 0; i < N_SETS; i++) {
        if (have_set(i)) {
            tok_cases_set(sets[i]);
        } else {
            (void)fprintf(stderr, "SKIP: %s is not here\n", tok_cases_shared(sets[i]));
        }
    }
}

/* Criterion has no exit code for "all skipped", and its main cannot be replaced (each test is a run
 * of the program of its own), so this comes before main. */
__attribute__((constructor)) static void skip_without_vocabularies(void)
{
    const char *smollm2 = getenv("PIPIT_SMOLLM2");
    bool any = smollm2 && access(smollm2, R_OK) == 0;

    for (size_t i = 0; i < N_SETS; i++) {
        any = any || have_set(i);
    }
    if (!any) {
        (void)printf("SKIP: no vocabulary is here: neither $PIPIT_SMOLLM2 nor %s\n",
                     tok_cases_shared(sets[0]));
        exit(77);
    }
}

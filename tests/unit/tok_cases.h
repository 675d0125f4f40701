/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_UNIT_TOK_CASES_H
#define PIPIT_TESTS_UNIT_TOK_CASES_H

/* Texts with the ids that other implementations gave them: tests/data/tok_vectors.txt (made by
 * make_tok_vectors.py) and the cases that llama.cpp ships beside three vocabularies. The
 * vocabularies:
 * stories260K is in the tree, smollm2 is $PIPIT_SMOLLM2, the others lie in
 * $PIPIT_SHARED/data/tokenizer ($PIPIT_SHARED unset: ../shared beside the source root). */

/* Checks all vectors of a vocabulary ("gpt-2/qwen2": gpt-2 with the pre-tokenizer qwen2); returns
 * how many, 0 when the vocabulary is not here. */
int tok_cases_vectors(const char *name);

/* Where a vocabulary file would be; static memory. */
const char *tok_cases_shared(const char *file);

/* llama.cpp's 47 cases beside the vocabulary file, which is there. */
void tok_cases_set(const char *gguf_name);

#endif

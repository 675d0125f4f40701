/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_WORD_H
#define PIPIT_BASE_WORD_H

/* Which word was meant by a mistyped one. */

#include <stddef.h>

/* Insertions, deletions, changes and swapped neighbours that turn one word into the other; 40 for
 * words longer than that. */
size_t word_distance(const char *a, size_t n_a, const char *b, size_t n_b);

/* A distance at which one of n letters is another word, not a mistyped one. */
size_t word_far(size_t n);

#endif

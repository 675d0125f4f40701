/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer on the vocabulary that is always there: stories260K, against SentencePiece's
 * definition. */

#include <criterion/criterion.h>

#include "tests/unit/tok_cases.h"

Test(tok_vectors, stories260K)
{
    cr_assert_gt(tok_cases_vectors("stories260K"), 0);
}

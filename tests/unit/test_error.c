/* SPDX-License-Identifier: Apache-2.0 */
/* base/error.h: the first cause wins, prefixes nest, long texts are cut, NULL is welcome. */

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"

Test(error, first_cause_wins)
{
    struct error e = {0};

    cr_assert_eq(error_set(&e, -EINVAL, "threads: %d is not in 1..8", 9), -EINVAL);
    cr_assert_eq(error_set(&e, -ENOMEM, "later and vaguer"), -ENOMEM);
    cr_assert_eq(e.code, -EINVAL);
    cr_assert_str_eq(e.text, "threads: 9 is not in 1..8");
}

Test(error, errno_text_and_prefix)
{
    struct error e = {0};

    cr_assert_eq(error_set_errno(&e, -ENOENT, "cannot open %s", "a.gguf"), -ENOENT);
    cr_assert_str_eq(e.text, "cannot open a.gguf: No such file or directory");
    cr_assert_eq(error_prefix(&e, "model"), -ENOENT);
    cr_assert_str_eq(e.text, "model: cannot open a.gguf: No such file or directory");
}

Test(error, null_is_welcome)
{
    cr_assert_eq(error_set(NULL, -EBUSY, "x"), -EBUSY);
    cr_assert_eq(error_set_errno(NULL, -EBUSY, "x"), -EBUSY);
    cr_assert_eq(error_prefix(NULL, "x"), 0);
}

Test(error, long_texts_are_cut)
{
    struct error e = {0};
    char big[1000];

    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    cr_assert_eq(error_set_errno(&e, -EIO, "%s", big), -EIO);
    cr_assert_eq(strlen(e.text), sizeof(e.text) - 1);
    cr_assert_eq(error_prefix(&e, "%s", big), -EIO);
    cr_assert_eq(strlen(e.text), sizeof(e.text) - 1);
}

Test(error, fits_by_whole_words)
{
    char to[24];

    error_fit(to, sizeof(to), "just as long as it may b");
    cr_assert_str_eq(to, "just as long as it...");
    error_fit(to, sizeof(to), "just as long as it may.");
    cr_assert_str_eq(to, "just as long as it may.");
    error_fit(to, sizeof(to), "");
    cr_assert_str_eq(to, "");
    error_fit(to, sizeof(to), "a/path/without/any/blank/in/it");
    cr_assert_str_eq(to, "a/path/without/any/b...");
    cr_assert_eq(sizeof("a/path/without/any/b..."), sizeof(to));
    error_fit(to, sizeof(to), "ääääääääääääääääääää");
    cr_assert_str_eq(to, "ääääääääää...", "whole characters");
}

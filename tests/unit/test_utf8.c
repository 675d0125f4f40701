/* SPDX-License-Identifier: Apache-2.0 */
/* base/utf8.h: every code point, and the malformed forms that decoders have been fooled by. */

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "base/utf8.h"

static int encode(uint32_t c, char ret[4])
{
    if (c < 0x80) {
        ret[0] = (char)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (int i = n - 1; i > 0; i--) {
        ret[i] = (char)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    ret[0] = (char)(0xf0u << (4 - n) | c);
    return n;
}

Test(utf8, every_code_point)
{
    char s[4];

    for (uint32_t c = 0; c < 0x120000; c++) {
        bool good = c < 0x110000 && !(c >= 0xd800 && c < 0xe000);
        int n = encode(c, s);

        cr_assert_eq(utf8_character(s, (size_t)n), good ? n : 0, "U+%04X", c);
        for (int cut = 0; good && cut < n; cut++) {
            cr_assert_eq(utf8_character(s, (size_t)cut), -1, "U+%04X cut to %d", c, cut);
        }
    }
}

Test(utf8, malformed)
{
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80",
                                      "\xff",
                                      "\xc3(",
                                      "\xe2\x82(",
                                      "\xed\xa0\x80"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_eq(utf8_character(bad[i], strlen(bad[i])), 0, "%zu", i);
        cr_assert_not(utf8_valid(bad[i], strlen(bad[i])));
    }
    cr_assert(utf8_valid("a\0b \xc3\xa4 \xf0\x9f\x90\xa6", 11));
    cr_assert_not(utf8_valid("\xf0\x9f\x90", 3));
    cr_assert(utf8_valid("", 0));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Well-formedness by table 3-7 of the Unicode standard: the first byte fixes the length and the
 * range of the second; all later bytes are 80..BF. */

#include "base/utf8.h"

#include <stdint.h>

int utf8_character(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    uint8_t low = 0x80;
    uint8_t high = 0xbf;
    size_t len;

    if (n == 0) {
        return -1;
    }
    if (p[0] < 0x80) {
        return 1;
    }
    if (p[0] < 0xc2 || p[0] > 0xf4) {
        return 0;
    }
    len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : low;
    high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : high;
    for (size_t i = 1; i < len; i++) {
        if (i == n) {
            return -1;
        }
        if (p[i] < low || p[i] > high) {
            return 0;
        }
        low = 0x80;
        high = 0xbf;
    }
    return (int)len;
}

bool utf8_valid(const char *s, size_t n)
{
    while (n > 0) {
        int len = utf8_character(s, n);

        if (len <= 0) {
            return false;
        }
        s += len;
        n -= (size_t)len;
    }
    return true;
}

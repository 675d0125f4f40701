/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_HEX_H
#define PIPIT_BASE_HEX_H

/* Bytes as text: two lower-case digits each. */

#include <stddef.h>
#include <stdint.h>

/* ret: 2 n digits and a NUL. */
static inline void hex_of(const uint8_t *bytes, size_t n, char *ret)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        ret[2 * i] = digits[bytes[i] >> 4];
        ret[2 * i + 1] = digits[bytes[i] & 15];
    }
    ret[2 * n] = '\0';
}

#endif

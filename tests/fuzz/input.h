/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_FUZZ_INPUT_H
#define PIPIT_TESTS_FUZZ_INPUT_H

/* A fuzzer's bytes, taken one after the other. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct input {
    const uint8_t *p;
    size_t left;
};

/* The next byte; 0 behind the last one. */
static inline uint8_t take(struct input *in)
{
    if (in->left == 0) {
        return 0;
    }
    in->left--;
    return *in->p++;
}

/* Changes something good, of n bytes, in place: a position of two bytes, a length and so many bytes
 * that overwrite it, again and again. A length of 0 makes the position its end; so `block` has room
 * for 65,535 bytes. Returns how many bytes it has now. */
static inline size_t input_change(uint8_t *block, size_t n, const uint8_t *p, size_t left)
{
    while (left >= 3) {
        size_t at = (size_t)(p[0] | p[1] << 8);
        size_t len = p[2];

        p += 3;
        left -= 3;
        if (len == 0) {
            memset(block + n, 0, at > n ? at - n : 0);
            n = at;
            continue;
        }
        len = len < left ? len : left;
        at = n ? at % n : 0;
        len = len < n - at ? len : n - at;
        memcpy(block + at, p, len);
        p += len;
        left -= len;
    }
    return n;
}

#endif

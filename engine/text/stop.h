/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_STOP_H
#define PIPIT_ENGINE_TEXT_STOP_H

/* Stop strings of one sequence, found across the borders of tokens. The longest end of the text
 * that could still become a stop string is held back; everything before it is given out at once.
 * The hit is the stop string that is complete first, and of several complete at the same byte the
 * longest; this does not depend on how the text was cut into pieces. The stop string itself is not
 * given out.
 *
 * Stop strings are valid UTF-8, so with pieces of complete UTF-8 in, complete UTF-8 comes out. A
 * plain struct without pointers: it may be copied and saved. */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { STOP_MAX_STRINGS = 16, STOP_MAX_BYTES = 256 };

struct stop_text {
    const char *ptr;
    size_t len;
};

struct stop {
    int32_t n;
    int32_t hit;                                       /* -1, or which one was found */
    uint16_t n_held;                                   /* the largest of `matched` */
    uint16_t len[STOP_MAX_STRINGS];
    /* bytes of each one that the text ends with */
    uint16_t matched[STOP_MAX_STRINGS];
    char held[STOP_MAX_BYTES];
    char text[STOP_MAX_STRINGS][STOP_MAX_BYTES];
    uint8_t border[STOP_MAX_STRINGS][STOP_MAX_BYTES];  /* border[i]: longest border of text[0..i] */
};

/* -E2BIG: more than 16 strings or one over 256 bytes; -EINVAL: an empty one, or no UTF-8. n may be
 * 0. */
int stop_init(struct stop *s, const struct stop_text *texts, size_t n,
              struct error *reterr) WARN_UNUSED;

/* Takes `len` bytes; writes what may be given out to `out`, which holds len + STOP_MAX_BYTES bytes
 * and is not `in`; returns its bytes. After a hit (s->hit >= 0) nothing more comes. */
size_t stop_push(struct stop *s, const char *in, size_t len, char *out);

/* The end without a hit: gives out what is held back, at most STOP_MAX_BYTES - 1 bytes. */
size_t stop_flush(struct stop *s, char *out);

#endif

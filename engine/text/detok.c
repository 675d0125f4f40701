/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of tokens to characters, one byte at a time: `held` is always the proper beginning of some
 * character (or empty). A byte that completes it lets it out; one that cannot follow turns what is
 * held into U+FFFD, and is looked at again as a beginning. That is the rule of maximal subparts,
 * and since it knows no borders but the bytes' own, the cut into tokens cannot matter. */

#include "engine/text/detok.h"

#include <string.h>

#include "base/utf8.h"
#include "engine/text/tok.h"

static const char REPLACEMENT[3] = {'\xef', '\xbf', '\xbd'}; /* U+FFFD */

static size_t put(char *out, const void *bytes, size_t n)
{
    memcpy(out, bytes, n);
    return n;
}

static size_t feed(struct detok *d, uint8_t byte, char *out)
{
    size_t n = 0;
    int size;

    d->held[d->n_held++] = byte;
    size = utf8_character((const char *)d->held, d->n_held);
    if (size == 0 && d->n_held > 1) {
        n = put(out, REPLACEMENT, sizeof(REPLACEMENT));
        d->held[0] = byte;
        d->n_held = 1;
        size = utf8_character((const char *)d->held, 1);
    }
    if (size > 0) {
        n += put(out + n, d->held, d->n_held);
    } else if (size == 0) {
        n += put(out + n, REPLACEMENT, sizeof(REPLACEMENT));
    }
    if (size >= 0) {
        d->n_held = 0;
    }
    return n;
}

void detok_init(struct detok *d, const struct tok *t, int32_t prev, bool show_special)
{
    *d = (struct detok){.tok = t, .show_special = show_special, .prev = prev};
}

size_t detok_bound(const struct tok *t)
{
    /* A byte gives at most one U+FFFD; the bytes held before it come out with the first. */
    return 3 * tok_max_piece(t) + 6;
}

size_t detok_push(struct detok *d, int32_t id, char *out)
{
    const char *piece;
    size_t len;
    size_t n = 0;

    if (d->show_special) {
        tok_token_text(d->tok, id, &piece, &len);
    } else {
        tok_piece(d->tok, id, &piece, &len);
    }
    if (len > 0 && piece[0] == ' ' && !tok_is_control(d->tok, id) &&
        tok_space_after(d->tok, d->prev)) {
        piece++;
        len--;
    }
    d->prev = id;
    for (size_t i = 0; i < len; i++) {
        n += feed(d, (uint8_t)piece[i], out + n);
    }
    return n;
}

size_t detok_flush(struct detok *d, char *out)
{
    size_t n = d->n_held ? put(out, REPLACEMENT, sizeof(REPLACEMENT)) : 0;

    d->n_held = 0;
    return n;
}

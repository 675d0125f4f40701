/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings by Knuth, Morris and Pratt, all side by side: matched[i] is how many bytes of string
 * i the text ends with. What is held back is the longest of these ends; it is kept as bytes,
 * because which string it belongs to changes. A byte costs a step or two for each string, nothing
 * is compared again. */

#include "engine/text/stop.h"

#include <errno.h>
#include <string.h>

#include "base/utf8.h"

/* One more byte: how much of string i the text ends with now. */
static uint16_t step(const struct stop *s, int32_t i, uint16_t matched, char byte)
{
    while (matched > 0 && (matched == s->len[i] || s->text[i][matched] != byte)) {
        matched = s->border[i][matched - 1];
    }
    return s->text[i][matched] == byte ? (uint16_t)(matched + 1) : 0;
}

int stop_init(struct stop *s, const struct stop_text *texts, size_t n, struct error *reterr)
{
    *s = (struct stop){.hit = -1};
    if (n > STOP_MAX_STRINGS) {
        return error_set(reterr, -E2BIG, "%zu stop strings (at most %d)", n, STOP_MAX_STRINGS);
    }
    for (size_t i = 0; i < n; i++) {
        if (texts[i].len > STOP_MAX_BYTES) {
            return error_set(reterr, -E2BIG, "stop string %zu has %zu bytes (at most %d)", i + 1,
                             texts[i].len, STOP_MAX_BYTES);
        }
        if (texts[i].len == 0) {
            return error_set(reterr, -EINVAL, "stop string %zu is empty", i + 1);
        }
        if (!utf8_valid(texts[i].ptr, texts[i].len)) {
            return error_set(reterr, -EINVAL, "stop string %zu is not valid UTF-8", i + 1);
        }
        s->len[i] = (uint16_t)texts[i].len;
        memcpy(s->text[i], texts[i].ptr, texts[i].len);
        for (uint16_t j = 1; j < s->len[i]; j++) {
            s->border[i][j] = (uint8_t)step(s, (int32_t)i, s->border[i][j - 1], s->text[i][j]);
        }
        s->n++;
    }
    return 0;
}

size_t stop_push(struct stop *s, const char *in, size_t len, char *out)
{
    size_t n = 0;

    if (s->hit >= 0) {
        return 0;
    }
    if (s->n == 0) {
        memcpy(out, in, len);
        return len;
    }
    for (size_t k = 0; k < len; k++) {
        uint16_t longest = 0;
        uint16_t whole = 0;

        for (int32_t i = 0; i < s->n; i++) {
            s->matched[i] = step(s, i, s->matched[i], in[k]);
            longest = s->matched[i] > longest ? s->matched[i] : longest;
            if (s->matched[i] == s->len[i] && s->len[i] > whole) {
                whole = s->len[i];
                s->hit = i;
            }
        }
        /* What is held, and this byte, less the end that stays (or the stop string itself). */
        uint16_t have = (uint16_t)(s->n_held + 1);
        uint16_t stay = s->hit >= 0 ? whole : longest;
        uint16_t go = (uint16_t)(have - stay);
        s->held[s->n_held] = in[k];
        memcpy(out + n, s->held, go);
        n += go;
        memmove(s->held, s->held + go, stay);
        s->n_held = stay;
        if (s->hit >= 0) {
            s->n_held = 0;
            break;
        }
    }
    return n;
}

size_t stop_flush(struct stop *s, char *out)
{
    size_t n = s->n_held;

    memcpy(out, s->held, n);
    s->n_held = 0;
    memset(s->matched, 0, sizeof(s->matched));
    return n;
}

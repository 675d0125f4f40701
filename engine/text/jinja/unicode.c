/* SPDX-License-Identifier: Apache-2.0 */
/* What Python's str knows of characters: white space from a table, the rest from PCRE2's Unicode
 * properties, which the tokenizer uses anyway. PCRE2 has one-to-one case mappings; the few that
 * grow (a German sharp s becomes SS) stand in method_case.c. ASCII never gets that far. */

#include <string.h>

#include "base/utf8.h"
#include "engine/text/jinja/value.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

uint32_t juni_at(const char *s, size_t len, size_t *ret_len)
{
    int n = utf8_character(s, len);
    uint8_t first = (uint8_t)s[0];
    uint32_t c;

    *ret_len = n > 0 ? (size_t)n : 1;
    if (n <= 0) {
        return 0xdc00u + first;
    }
    c = n == 1 ? first : n == 2 ? first & 0x1f : n == 3 ? first & 0x0f : first & 0x07;
    for (int i = 1; i < n; i++) {
        c = c << 6 | ((uint8_t)s[i] & 0x3f);
    }
    return c;
}

bool juni_space(uint32_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f) || c == 0x85 ||
           c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

static size_t encode(uint32_t c, char s[4])
{
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    size_t n = 0;

    s[n++] = (char)(more ? (0xff00 >> (more + 1) & 0xff) | c >> (6 * more) : c);
    while (more-- > 0) {
        s[n++] = (char)(0x80 | (c >> (6 * more) & 0x3f));
    }
    return n;
}

static bool is_scalar(uint32_t c)
{
    return c < 0x110000 && (c < 0xd800 || c > 0xdfff);
}

/* A pattern is compiled for each question about a character that is not ASCII. Such questions are
 * rare (repr, case filters), and no state outlives the call. */
static bool matches(const char *pattern, uint32_t c)
{
    char s[4];
    size_t n = encode(c, s);
    size_t at;
    int err;
    bool yes = false;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &err, &at, NULL);
    pcre2_match_data *data = code ? pcre2_match_data_create(1, NULL) : NULL;

    if (data) {
        yes = pcre2_match(code, (PCRE2_SPTR)s, n, 0, 0, data, NULL) > 0;
    }
    pcre2_match_data_free(data);
    pcre2_code_free(code);
    return yes;
}

bool juni_printable(uint32_t c)
{
    return c < 0x7f ? c >= 0x20 : is_scalar(c) && !matches("[\\p{C}\\p{Z}]", c);
}

bool juni_letter(uint32_t c)
{
    return c < 0x80 ? (c | 0x20) >= 'a' && (c | 0x20) <= 'z' : is_scalar(c) && matches("\\p{L}", c);
}

bool juni_digit(uint32_t c)
{
    return c < 0x80 ? c >= '0' && c <= '9' : is_scalar(c) && matches("\\p{Nd}", c);
}

static uint32_t change_case(uint32_t c, const char *replacement)
{
    char s[4];
    PCRE2_UCHAR out[16];
    size_t n_out = sizeof(out);
    size_t n = encode(c, s);
    size_t at;
    int err;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR) ".", 1, PCRE2_UTF, &err, &at, NULL);
    int r = code
                ? pcre2_substitute(code, (PCRE2_SPTR)s, n, 0, PCRE2_SUBSTITUTE_EXTENDED, NULL, NULL,
                                   (PCRE2_SPTR)replacement, PCRE2_ZERO_TERMINATED, out, &n_out)
                : 0;

    pcre2_code_free(code);
    return r == 1 ? juni_at((const char *)out, n_out, &at) : c;
}

uint32_t juni_upper(uint32_t c)
{
    if (c < 0x80) {
        return c >= 'a' && c <= 'z' ? c - 32 : c;
    }
    return is_scalar(c) ? change_case(c, "\\U$0") : c;
}

uint32_t juni_lower(uint32_t c)
{
    if (c < 0x80) {
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    }
    return is_scalar(c) ? change_case(c, "\\L$0") : c;
}

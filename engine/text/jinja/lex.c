/* SPDX-License-Identifier: Apache-2.0 */
/* Text to tokens, with Jinja's white space control: {%- and -%} strip to the next text, a block tag
 * takes the blanks before it on its line and the line end behind it (lstrip_blocks, trim_blocks).
 * A tag's end is looked for only where no bracket is open, so {{ {'a': {}} }} is one expression. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/jinja/ast.h"

enum { IN_DATA, IN_VARIABLE, IN_BLOCK };

static bool starts(const struct jinja *t, size_t at, const char *s)
{
    size_t n = strlen(s);

    return t->len - at >= n && memcmp(t->source + at, s, n) == 0;
}

static size_t space(const struct jinja *t, size_t at)
{
    size_t n;

    while (at < t->len && juni_space(juni_at(t->source + at, t->len - at, &n))) {
        at += n;
    }
    return at;
}

/* Copies the source with its line ends made \n and without the last one. */
void jlex_start(struct jinja *t, const char *source, size_t len)
{
    char *s = jalloc(&t->base, len + 1);
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r') {
            s[n++] = '\n';
            i += i + 1 < len && source[i + 1] == '\n';
        } else {
            s[n++] = source[i];
        }
    }
    t->len = n > 0 && s[n - 1] == '\n' ? n - 1 : n;
    t->source = s;
    t->lex_line = 1;
    t->state = IN_DATA;
    t->line_starting = true;
}

static void move(struct jinja *t, size_t to)
{
    for (; t->pos < to; t->pos++) {
        t->lex_line += t->source[t->pos] == '\n';
    }
}

static _Noreturn void fail(struct jinja *t, const char *what)
{
    t->base.line = t->lex_line;
    jfail(&t->base, -EBADMSG, "%s", what);
}

/* ---- data ------------------------------------------------------------------------------------ */

/* The end of the text before a tag at `tag` whose sign is `sign`. */
static size_t text_end(const struct jinja *t, size_t from, size_t tag, char sign, bool is_block)
{
    size_t end = tag;
    size_t n;

    if (sign == '-') {
        size_t last = from;

        for (size_t i = from; i < tag; i += n) {
            if (!juni_space(juni_at(t->source + i, tag - i, &n))) {
                last = i + n;
            }
        }
        return last;
    }
    if (sign == '+' || !is_block) {
        return end;
    }
    while (end > from && t->source[end - 1] != '\n') {
        end--;
    }
    if (end == from && !t->line_starting) {
        return tag;
    }
    for (size_t i = end; i < tag; i += n) {
        if (!juni_space(juni_at(t->source + i, tag - i, &n))) {
            return tag;
        }
    }
    return end;
}

/* Past the end of a block tag at `at`: "%}" or "#}" with its sign and what the sign strips. 0: no
 * end stands here. */
static size_t block_end(const struct jinja *t, size_t at, const char *end, bool trim)
{
    if (starts(t, at, end)) {
        at += 2;
        return trim && at < t->len && t->source[at] == '\n' ? at + 1 : at;
    }
    if (at < t->len && t->source[at] == '-' && starts(t, at + 1, end)) {
        return space(t, at + 3);
    }
    return at < t->len && t->source[at] == '+' && starts(t, at + 1, end) ? at + 3 : 0;
}

static void skip_comment(struct jinja *t, size_t at)
{
    for (; at + 2 <= t->len; at++) {
        size_t end = block_end(t, at, "#}", true);

        if (end) {
            move(t, end);
            t->line_starting = t->source[end - 1] == '\n';
            return;
        }
    }
    fail(t, "a comment has no end");
}

/* Is the tag at `at` (behind its sign) "raw"? Returns the position behind it, 0 if not. */
static size_t raw_begin(const struct jinja *t, size_t at)
{
    size_t p = space(t, at);

    if (!starts(t, p, "raw")) {
        return 0;
    }
    p = space(t, p + 3);
    return starts(t, p, "%}") ? p + 2 : starts(t, p, "-%}") ? space(t, p + 3) : 0;
}

static struct jtoken text_token(struct jinja *t, size_t from, size_t to)
{
    struct jtoken tok = {.type = T_TEXT, .line = t->lex_line};

    tok.value = jstr_new(&t->base, t->source + from, to - from, MARK_TEMPLATE);
    return tok;
}

static struct jtoken lex_raw(struct jinja *t, size_t from)
{
    move(t, from);
    for (size_t at = from; at + 2 <= t->len; at++) {
        char sign;
        size_t p;
        size_t end;

        if (!starts(t, at, "{%")) {
            continue;
        }
        sign = at + 2 < t->len ? t->source[at + 2] : '\0';
        p = space(t, at + 2 + (sign == '-' || sign == '+'));
        if (!starts(t, p, "endraw")) {
            continue;
        }
        end = block_end(t, space(t, p + 6), "%}", true);
        if (end) {
            struct jtoken tok;

            t->line_starting = false;
            tok = text_token(t, from, text_end(t, from, at, sign, true));
            move(t, end);
            t->line_starting = t->source[end - 1] == '\n';
            return tok;
        }
    }
    fail(t, "a raw block has no end");
}

/* Text up to the next tag, then the tag's beginning. T_TEXT with no bytes is skipped by the
 * caller. */
static struct jtoken lex_data(struct jinja *t)
{
    size_t from = t->pos;
    size_t at = from;
    struct jtoken tok = {0};
    char kind;
    char sign;

    while (at + 1 < t->len &&
           !(t->source[at] == '{' &&
             (t->source[at + 1] == '{' || t->source[at + 1] == '%' || t->source[at + 1] == '#'))) {
        at++;
    }
    if (at + 1 >= t->len) {
        tok = text_token(t, from, t->len);
        move(t, t->len);
        return tok;
    }
    kind = t->source[at + 1];
    sign = at + 2 < t->len ? t->source[at + 2] : '\0';
    if (!t->data_done) {
        size_t end = text_end(t, from, at, sign, kind != '{');

        t->data_done = true;
        tok = text_token(t, from, end);
        move(t, at);
        return tok;
    }
    t->data_done = false;
    at += sign == '-' || sign == '+' ? 3 : 2;
    t->line_starting = false;
    if (kind == '#') {
        skip_comment(t, at);
        return text_token(t, at, at);
    }
    if (kind == '%') {
        size_t raw = raw_begin(t, at);

        if (raw) {
            return lex_raw(t, raw);
        }
    }
    move(t, at);
    t->state = kind == '{' ? IN_VARIABLE : IN_BLOCK;
    t->n_open = 0;
    tok.type = kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN;
    tok.line = t->lex_line;
    return tok;
}

/* ---- inside tags ----------------------------------------------------------------------------- */

static bool lex_end(struct jinja *t, struct jtoken *tok)
{
    bool block = t->state == IN_BLOCK;
    size_t end = 0;

    if (t->n_open > 0) {
        return false;
    }
    if (block) {
        end = block_end(t, t->pos, "%}", true);
    } else if (starts(t, t->pos, "}}")) {
        end = t->pos + 2;
    } else if (starts(t, t->pos, "-}}")) {
        end = space(t, t->pos + 3);
    }
    if (!end) {
        return false;
    }
    tok->type = block ? T_BLOCK_END : T_VAR_END;
    move(t, end);
    t->line_starting = t->source[end - 1] == '\n';
    t->state = IN_DATA;
    return true;
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : 99;
}

/* Digits with single underscores between them; returns the end. */
static size_t digits(const struct jinja *t, size_t at, int base)
{
    while (at < t->len &&
           (digit(t->source[at]) < base ||
            (t->source[at] == '_' && at + 1 < t->len && digit(t->source[at + 1]) < base))) {
        at++;
    }
    return at;
}

static void lex_number(struct jinja *t, struct jtoken *tok)
{
    char text[64];
    size_t n = 0;
    size_t from = t->pos;
    size_t end;
    int base = 10;
    int64_t v = 0;

    if (t->source[from] == '0' && from + 2 < t->len) {
        char c = (char)(t->source[from + 1] | 0x20);

        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        from += base == 10 ? 0 : 2;
    }
    end = digits(t, from, base);
    tok->type = T_INT;
    if (base == 10) {
        size_t e = end;

        if (e + 1 < t->len && t->source[e] == '.' && digit(t->source[e + 1]) < 10) {
            e = digits(t, e + 1, 10);
            tok->type = T_FLOAT;
        }
        if (e + 1 < t->len && (t->source[e] | 0x20) == 'e') {
            size_t x = e + 1 + (t->source[e + 1] == '-' || t->source[e + 1] == '+');

            if (x < t->len && digit(t->source[x]) < 10) {
                e = digits(t, x, 10);
                tok->type = T_FLOAT;
            }
        }
        end = e;
    }
    for (size_t i = from; i < end; i++) {
        if (t->source[i] == '_') {
            continue;
        }
        if (tok->type == T_INT && (__builtin_mul_overflow(v, (int64_t)base, &v) ||
                                   __builtin_add_overflow(v, (int64_t)digit(t->source[i]), &v))) {
            fail(t, "an integer does not fit in 64 bits");
        }
        if (n + 1 < sizeof(text)) {
            text[n++] = t->source[i];
        }
    }
    text[n] = '\0';
    tok->value = tok->type == T_INT ? jint(v) : jfloat(strtod(text, NULL));
    move(t, end);
}

/* A number of up to `max` digits behind a backslash; -1: fewer than `min`. */
static int64_t escape_number(const char *s, size_t len, int base, size_t min, size_t max, size_t *i)
{
    int64_t v = 0;
    size_t n = 0;

    while (n < max && *i + n < len && digit(s[*i + n]) < base) {
        v = v * base + digit(s[*i + n]);
        n++;
    }
    *i += n;
    return n < min ? -1 : v;
}

/* One escape at s[*i], behind the backslash, as Python's unicode-escape has them. */
static void unescape(struct jinja *t, struct jbuf *o, const char *s, size_t len, size_t *i)
{
    static const char from[] = "\\'\"abfnrtv";
    static const char to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s[*i];
    const char *plain = c ? strchr(from, c) : NULL;
    int64_t v;

    if (plain) {
        jbuf_put(o, &to[plain - from], 1, MARK_TEMPLATE);
        (*i)++;
        return;
    }
    if (c == '\n') {
        (*i)++;
        return;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;

        (*i)++;
        v = escape_number(s, len, 16, n, n, i);
        if (v < 0 || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff)) {
            fail(t, "a string has a malformed escape");
        }
    } else if (digit(c) < 8) {
        v = escape_number(s, len, 8, 1, 3, i);
    } else {
        jbuf_put(o, "\\", 1, MARK_TEMPLATE); /* not an escape: both stay */
        return;
    }
    jbuf_char(o, (uint32_t)v, MARK_TEMPLATE);
}

static void lex_string(struct jinja *t, struct jtoken *tok)
{
    char quote = t->source[t->pos];
    size_t from = t->pos + 1;
    size_t end = from;
    struct jbuf o = {.b = &t->base};

    while (end < t->len && t->source[end] != quote) {
        end += t->source[end] == '\\' ? 2 : 1;
    }
    if (end >= t->len) {
        fail(t, "a string has no end");
    }
    for (size_t i = from; i < end;) {
        size_t run = i;

        while (run < end && t->source[run] != '\\') {
            run++;
        }
        jbuf_put(&o, t->source + i, run - i, MARK_TEMPLATE);
        i = run + 1;
        if (run < end) {
            unescape(t, &o, t->source, end, &i);
        }
    }
    tok->type = T_STRING;
    tok->value = jbuf_done(&o);
    move(t, end + 1);
}

static void brackets(struct jinja *t, enum jtoken_type type, char c)
{
    if (type == T_LPAREN || type == T_LBRACKET || type == T_LBRACE) {
        if (t->n_open == JINJA_MAX_DEPTH) {
            jfail(&t->base, -E2BIG, "more than %d brackets are open", (int)JINJA_MAX_DEPTH);
        }
        t->open[t->n_open++] = c == '(' ? ')' : (char)(c + 2);
    } else if (type == T_RPAREN || type == T_RBRACKET || type == T_RBRACE) {
        if (t->n_open == 0 || t->open[--t->n_open] != c) {
            jfail(&t->base, -EBADMSG, "a '%c' closes nothing", c);
        }
    }
}

static void lex_operator(struct jinja *t, struct jtoken *tok)
{
    static const struct {
        char text[3];
        enum jtoken_type type;
    } ops[] = {{"//", T_FLOORDIV}, {"**", T_POW},     {"==", T_EQ},    {"!=", T_NE},
               {">=", T_GE},       {"<=", T_LE},      {"+", T_ADD},    {"-", T_SUB},
               {"/", T_DIV},       {"*", T_MUL},      {"%", T_MOD},    {"~", T_TILDE},
               {"[", T_LBRACKET},  {"]", T_RBRACKET}, {"(", T_LPAREN}, {")", T_RPAREN},
               {"{", T_LBRACE},    {"}", T_RBRACE},   {">", T_GT},     {"<", T_LT},
               {"=", T_ASSIGN},    {".", T_DOT},      {":", T_COLON},  {"|", T_PIPE},
               {",", T_COMMA},     {";", T_SEMICOLON}};

    t->base.line = t->lex_line;
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (starts(t, t->pos, ops[i].text)) {
            tok->type = ops[i].type;
            brackets(t, tok->type, t->source[t->pos]);
            move(t, t->pos + strlen(ops[i].text));
            return;
        }
    }
    jfail(&t->base, -EBADMSG, "an unexpected character (byte 0x%02x)",
          (unsigned)(uint8_t)t->source[t->pos]);
}

static bool name_byte(char c)
{
    return c == '_' || (uint8_t)c >= 0x80 || digit(c) < 10 ||
           ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

static struct jtoken lex_tag(struct jinja *t)
{
    struct jtoken tok = {0};
    char c;

    for (;;) {
        size_t from = t->pos;

        tok.line = t->lex_line;
        if (lex_end(t, &tok)) {
            return tok;
        }
        move(t, space(t, t->pos));
        if (t->pos == from) {
            break;
        }
    }
    if (t->pos >= t->len) {
        fail(t, "a tag has no end");
    }
    c = t->source[t->pos];
    if (digit(c) < 10) {
        lex_number(t, &tok);
    } else if (c == '\'' || c == '"') {
        lex_string(t, &tok);
    } else if (name_byte(c)) {
        size_t end = t->pos;

        while (end < t->len && name_byte(t->source[end])) {
            end++;
        }
        tok.type = T_NAME;
        tok.name = jname_of(t, t->source + t->pos, end - t->pos);
        move(t, end);
    } else {
        lex_operator(t, &tok);
    }
    return tok;
}

struct jtoken jlex_next(struct jinja *t)
{
    while (t->state == IN_DATA) {
        struct jtoken tok;

        if (t->pos >= t->len) {
            return (struct jtoken){.type = T_EOF, .line = t->lex_line};
        }
        tok = lex_data(t);
        if (tok.type != T_TEXT || jstr_of(tok.value)->len > 0) {
            return tok;
        }
    }
    return lex_tag(t);
}

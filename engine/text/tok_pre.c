/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenizers of byte-level BPE: regular expressions (tok_patterns.c), run by PCRE2, that cut a
 * text into words; no merge crosses their borders.
 *
 * Each stage cuts what the stage before left; what a pattern does not match is a word too. A stage
 * sees its part as a whole text, so that "not followed by a word character" is true at its end, as
 * in the original tokenizers. Bytes that are no UTF-8 are words of their own, and PCRE2 never sees
 * them.
 *
 * The interpreter is used, not the JIT: it needs no memory that is both writable and executable,
 * and takes a small part of the time of the merges after it. */

#include "engine/text/tok_impl.h"

#include <errno.h>
#include <string.h>

#include "base/utf8.h"

static int compile(struct tok_pre *p, const char *pattern, struct error *reterr)
{
    int code;
    size_t where;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &where, NULL);

    if (!re) {
        return error_set(reterr, code == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -ENOTSUP,
                         "PCRE2 cannot compile the pattern of pre-tokenizer '%s' (error %d)",
                         p->name, code);
    }
    p->stage[p->n_stages++] = re;
    return 0;
}

/* A stage that cuts in threes says so before its pattern. */
static int compile_stage(struct tok_pre *p, const char *stage, struct error *reterr)
{
    static const char *const marks[] = {
        [TOK_THREES_ALONE] = TOK_PRE_THREES, [TOK_THREES_BEFORE] = TOK_PRE_BEFORE_THREES};

    for (uint8_t i = TOK_THREES_ALONE; i <= TOK_THREES_BEFORE; i++) {
        if (!strncmp(stage, marks[i], strlen(marks[i]))) {
            p->threes[p->n_stages] = i;
            return compile(p, stage + strlen(marks[i]), reterr);
        }
    }
    return compile(p, stage, reterr);
}

int tok_pre_init(struct tok_pre *p, const char *name, size_t len, struct error *reterr)
{
    const struct tok_pre_rule *rule = tok_pre_rule_find(name, len, &p->name);
    int r = 0;

    if (!rule) {
        return error_set(reterr, -ENOTSUP,
                         "pre-tokenizer '%.*s' (key 'tokenizer.ggml.pre') is not known",
                         (int)(len < 64 ? len : 64), name);
    }
    p->flags = rule->flags;
    for (int i = 0; i < TOK_MAX_STAGES && rule->stage[i] && r == 0; i++) {
        r = compile_stage(p, rule->stage[i], reterr);
    }
    p->context = pcre2_match_context_create(NULL);
    if (r == 0 && !p->context) {
        r = error_set(reterr, -ENOMEM, "no memory for the pre-tokenizer");
    }
    if (r == 0) {
        /* A run of spaces costs a step a byte; the caller limits texts, not PCRE2. All patterns are
         * tok_patterns.c's own, a model only names one, and each takes linear time (test_tok_pre).
         */
        (void)pcre2_set_match_limit(p->context, UINT32_MAX);
    }
    return r;
}

void tok_pre_finish(struct tok_pre *p)
{
    for (int i = 0; i < p->n_stages; i++) {
        pcre2_code_free(p->stage[i]);
    }
    pcre2_match_context_free(p->context);
    *p = (struct tok_pre){0};
}

struct job {
    const struct tok_pre *pre;
    pcre2_match_data *scratch;
    tok_pre_word *word;
    void *arg;
};

static int cut(const struct job *j, int stage, const char *text, size_t len);

/* Bytes of the first `n` characters. */
static size_t characters(const char *text, size_t len, size_t n)
{
    size_t i = 0;

    while (i < len && (n > 0 || ((uint8_t)text[i] & 0xc0) == 0x80)) {
        n -= ((uint8_t)text[i] & 0xc0) != 0x80;
        i++;
    }
    return i;
}

/* The stage's first match from `from` on; without one, the empty text at the end. -ENOMEM, or
 * -ELOOP for a limit of PCRE2: of steps, of depth, of heap. */
static int match(const struct job *j, int stage, const char *text, size_t len, size_t from,
                 size_t *ret_begin, size_t *ret_end)
{
    int n = pcre2_match(j->pre->stage[stage], (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK,
                        j->scratch, j->pre->context);
    const size_t *at = pcre2_get_ovector_pointer(j->scratch);

    if (n < 0 && n != PCRE2_ERROR_NOMATCH) {
        return n == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -ELOOP;
    }
    *ret_begin = n > 0 ? at[0] : len;
    *ret_end = n > 0 ? at[1] : len;
    return 0;
}

/* Digits in threes from the right: 1234567 as 1, 234, 567. The digits are words of their own
 * (TOK_PRE_THREES), or a word begins before each three and nowhere else (TOK_PRE_BEFORE_THREES). */
static int cut_threes(const struct job *j, int stage, const char *text, size_t len)
{
    bool alone = j->pre->threes[stage] == TOK_THREES_ALONE;
    size_t word = 0;
    size_t from = 0;
    int r = 0;

    while (from < len && r == 0) {
        size_t end;
        size_t at;
        size_t n_digits = 0;

        r = match(j, stage, text, len, from, &at, &end);
        if (r < 0) {
            return r;
        }
        for (size_t i = at; i < end; i++) {
            n_digits += ((uint8_t)text[i] & 0xc0) != 0x80;
        }
        if (alone && r == 0) {
            r = cut(j, stage + 1, text + word, at - word);
            word = at;
        }
        at += characters(text + at, end - at, n_digits % 3);
        while (at < end && r == 0) {
            r = cut(j, stage + 1, text + word, at - word);
            word = at;
            at += characters(text + at, end - at, 3);
        }
        if (alone && r == 0) {
            r = cut(j, stage + 1, text + word, end - word);
            word = end;
        }
        from = end;
    }
    return r == 0 ? cut(j, stage + 1, text + word, len - word) : r;
}

/* Valid UTF-8 through the stages from `stage` on. */
static int cut(const struct job *j, int stage, const char *text, size_t len)
{
    size_t pos = 0;
    int r = 0;

    if (len == 0) {
        return 0;
    }
    if (stage >= TOK_MAX_STAGES || stage == j->pre->n_stages) { /* the first: what -O3 can see */
        return j->word(j->arg, text, (uint32_t)len);
    }
    if (j->pre->threes[stage]) {
        return cut_threes(j, stage, text, len);
    }
    while (pos < len && r == 0) {
        size_t begin;
        size_t end;

        r = match(j, stage, text, len, pos, &begin, &end);
        if (r == 0) {
            r = cut(j, stage + 1, text + pos, begin - pos);
        }
        if (r == 0) {
            r = cut(j, stage + 1, text + begin, end - begin);
        }
        pos = end; /* no pattern matches nothing, so this moves on */
    }
    return r;
}

int tok_pre_split(const struct tok_pre *p, pcre2_match_data *scratch, const char *text,
                  uint32_t len, tok_pre_word *word, void *arg)
{
    const struct job job = {p, scratch, word, arg};
    uint32_t pos = 0;
    int r = 0;

    while (pos < len && r == 0) {
        uint32_t valid = pos;
        uint32_t broken;
        int n;

        while (valid < len && (n = utf8_character(text + valid, len - valid)) > 0) {
            valid += (uint32_t)n;
        }
        broken = valid;
        while (broken < len && utf8_character(text + broken, len - broken) <= 0) {
            broken++;
        }
        r = cut(&job, 0, text + pos, valid - pos);
        if (r == 0 && broken > valid) {
            r = word(arg, text + valid, broken - valid);
        }
        pos = broken;
    }
    return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenizers of byte-level BPE: regular expressions that cut a text into words, no merge
 * crosses their borders. The patterns are those of the models' own tokenizers, run by PCRE2; `\s`
 * is written out as Unicode's White_Space, since PCRE2's own adds U+180E. No pattern looks behind.
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

#define SPACES                                                                                     \
    "\\t\\n\\x0b\\f\\r "                                                                           \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"               \
    "\\x{3000}"
#define SPACE "[" SPACES "]"
#define NO_SPACE "[^" SPACES "]"
#define ENDINGS "'s|'t|'re|'ve|'m|'ll|'d"

#define GPT2                                                                                       \
    ENDINGS "| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+|" SPACE "+(?!" NO_SPACE ")|" SPACE  \
            "+"
#define LLAMA3(digits)                                                                             \
    "(?i:" ENDINGS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SPACES                        \
    "\\p{L}\\p{N}]+[\\r\\n]*|" SPACE "*[\\r\\n]+|" SPACE "+(?!" NO_SPACE ")|" SPACE "+"

/* One row a name; the first name with the same patterns is the one that is shown. */
static const struct pattern {
    const char *name;
    const char *stage[TOK_MAX_STAGES];
} patterns[] = {
    {"gpt-2", {GPT2}},
    {"smollm", {"\\p{N}", GPT2}},
    {"llama-bpe", {LLAMA3("\\p{N}{1,3}")}},
    {"llama3", {LLAMA3("\\p{N}{1,3}")}},
    {"llama-v3", {LLAMA3("\\p{N}{1,3}")}},
    {"qwen2", {LLAMA3("\\p{N}")}},
    {"deepseek-r1-qwen", {LLAMA3("\\p{N}")}},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

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

int tok_pre_init(struct tok_pre *p, const char *name, size_t len, struct error *reterr)
{
    const struct pattern *found = NULL;
    int r = 0;

    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]) && !found; i++) {
        if (strlen(patterns[i].name) == len && !memcmp(patterns[i].name, name, len)) {
            found = &patterns[i];
        }
    }
    if (!found) {
        return error_set(
            reterr, -ENOTSUP,
            "pre-tokenizer '%.*s' is not known (known: gpt-2, smollm, llama-bpe, qwen2, "
            "default)",
            (int)(len < 64 ? len : 64), name);
    }
    p->name = found->name;
    for (int i = 0; i < TOK_MAX_STAGES && found->stage[i] && r == 0; i++) {
        r = compile(p, found->stage[i], reterr);
    }
    p->context = pcre2_match_context_create(NULL);
    if (r == 0 && !p->context) {
        r = error_set(reterr, -ENOMEM, "no memory for the pre-tokenizer");
    }
    if (r == 0) {
        /* A run of spaces costs a step a byte; the caller limits texts, not PCRE2. */
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
    while (pos < len && r == 0) {
        int n = pcre2_match(j->pre->stage[stage], (PCRE2_SPTR)text, len, pos, PCRE2_NO_UTF_CHECK,
                            j->scratch, j->pre->context);
        const size_t *at = pcre2_get_ovector_pointer(j->scratch);
        size_t begin = n > 0 ? at[0] : len;
        size_t end = n > 0 ? at[1] : len;

        if (n < 0 && n != PCRE2_ERROR_NOMATCH) {
            return -ENOMEM; /* its heap: the only limit left */
        }
        r = cut(j, stage + 1, text + pos, begin - pos);
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

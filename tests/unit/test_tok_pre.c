/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of engine/text/tok_patterns.c: where each cuts texts, against the models' own
 * expressions run by the package tokenizers (tests/golden/make_pre_vectors.py); names; long runs.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/sanitized.h"
#include "engine/text/tok_impl.h"

static const char *const rules[] = {
    "gpt-2",      "smollm",   "llama-bpe", "glm4",         "dbrx",           "qwen2",
    "qwen35",     "ufakzeka", "laguna",    "minicpm5",     "seed-coder",     "bailingmoe",
    "exaone-moe", "jais-2",   "tekken",    "gpt-4o",       "tiny_aya",       "youtu",
    "kimi-k2",    "afmoe",    "superbpe",  "deepseek-llm", "deepseek-coder", "deepseek-v3",
    "spark2_5",   "falcon",   "bloom",     "viking",       "chameleon",      "default",
};

enum { N_RULES = sizeof(rules) / sizeof(rules[0]) };

static struct tok_pre open_rule(const char *name)
{
    struct error e = {0};
    struct tok_pre p = {0};

    cr_assert_eq(tok_pre_init(&p, name, strlen(name), &e), 0, "%s: %s", name, e.text);
    return p;
}

struct cutting {
    const char *want; /* lengths that are still to come; NULL: any */
    size_t total;
    const char *what;
};

static int one_word(void *arg, const char *word, uint32_t len)
{
    struct cutting *c = arg;

    (void)word;
    cr_assert_gt(len, 0);
    c->total += len;
    if (c->want) {
        char *end;

        cr_assert_eq(strtoul(c->want, &end, 10), len, "%s: a word of %u bytes, wanted %s", c->what,
                     len, c->want);
        c->want = *end == ',' ? end + 1 : end;
    }
    return 0;
}

static void cut(const struct tok_pre *p, const char *text, size_t len, struct cutting *c)
{
    pcre2_match_data *scratch = pcre2_match_data_create(1, NULL);

    cr_assert(scratch);
    cr_assert_eq(tok_pre_split(p, scratch, text, (uint32_t)len, one_word, c), 0);
    cr_assert_eq(c->total, len);
    pcre2_match_data_free(scratch);
}

Test(tok_pre, words)
{
    char path[4096];
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/pre_vectors.txt", getenv("PIPIT_TEST_DATA"));
    f = fopen(path, "re");
    cr_assert(f, "%s", path);
    for (; getline(&line, &cap, f) >= 0; n++) {
        char *hex = strchr(line, ' ');
        char *want = strchr(hex + 1, ' ');
        char text[2048];
        size_t len = 0;
        struct cutting c = {want + 1, 0, line};
        struct tok_pre p;

        *hex++ = *want = '\0';
        for (; len < sizeof(text) && hex[2 * len]; len++) {
            const char digits[3] = {hex[2 * len], hex[2 * len + 1], '\0'};

            text[len] = (char)strtoul(digits, NULL, 16);
        }
        p = open_rule(line);
        cut(&p, text, len, &c);
        cr_assert_eq(*c.want, '\n', "%s: more words wanted: %s", line, c.want);
        tok_pre_finish(&p);
    }
    cr_assert_gt(n, 500);
    free(line);
    (void)fclose(f);
}

Test(tok_pre, names)
{
    static const char *const same[][2] = {
        {"lfm2", "llama-bpe"},
        {"falcon3", "llama-bpe"},
        {"pixtral", "llama-bpe"},
        {"stablelm2", "qwen2"},
        {"hunyuan", "qwen2"},
        {"megrez", "qwen2"},
        {"starcoder", "smollm"},
        {"refact", "smollm"},
        {"command-r", "smollm"},
        {"mpt", "gpt-2"},
        {"olmo", "gpt-2"},
        {"exaone4", "gpt-2"},
        {"llama4", "gpt-4o"},
        {"minimax-m2", "gpt-4o"},
        {"hunyuan-dense", "deepseek-v3"},
        {"llada-moe", "bailingmoe"},
        {"glm5", "glm4"},
        {"chatglm-bpe", "dbrx"},
    };
    const char *name;

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        const struct tok_pre_rule *r = tok_pre_rule_find(same[i][0], strlen(same[i][0]), &name);

        cr_assert(r, "%s", same[i][0]);
        cr_assert_str_eq(name, same[i][0]);
        cr_assert_eq(r, tok_pre_rule_find(same[i][1], strlen(same[i][1]), &name), "%s", name);
    }
    cr_assert_null(tok_pre_rule_find("qwen", 4, &name));
    cr_assert_null(tok_pre_rule_find("", 0, &name));
}

Test(tok_pre, flags)
{
    static const struct {
        const char *name;
        unsigned flags;
    } rows[] = {{"gpt-2", 0},
                {"qwen35", 0},
                {"llama-bpe", TOK_PRE_IGNORE_MERGES | TOK_PRE_ADD_BOS},
                {"tekken", TOK_PRE_IGNORE_MERGES | TOK_PRE_ADD_BOS},
                {"chameleon", TOK_PRE_ADD_BOS},
                {"glm4", TOK_PRE_IGNORE_MERGES},
                {"dbrx", 0}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tok_pre p = open_rule(rows[i].name);

        cr_assert_eq(p.flags, rows[i].flags, "%s", rows[i].name);
        tok_pre_finish(&p);
    }
}

/* No rule looks back over a run again and again: 64 KiB of one character take a moment.
 * A sanitizer gets a quarter of them. */
Test(tok_pre, long_runs)
{
    static const char *const units[] = {
        "a", "A",        "1",  "\xe0\xa5\xa7", " ",  "\n",  "\xcc\x81",    "\xe6\xbc\xa2",
        "!", "\xc2\xbd", "a ", "1a",           "' ", " \n", "\xe1\x9a\x80"};
    /* what a pattern may have wanted the run not to be followed by */
    static const char ends[] = {'x', '1', '.'};
    enum { SIZE = 1 << (SANITIZED ? 14 : 16) };
    char *text = malloc(SIZE + 8);
    clock_t begin = clock();

    cr_assert(text);
    for (size_t i = 0; i < N_RULES; i++) {
        struct tok_pre p = open_rule(rules[i]);

        for (size_t j = 0; j < sizeof(ends) * sizeof(units) / sizeof(units[0]); j++) {
            const char *unit = units[j / sizeof(ends)];
            struct cutting c = {NULL, 0, rules[i]};
            size_t len = 0;

            for (; len < SIZE; len += strlen(unit)) {
                memcpy(text + len, unit, strlen(unit));
            }
            text[len++] = ends[j % sizeof(ends)];
            cut(&p, text, len, &c);
        }
        tok_pre_finish(&p);
    }
    free(text);
    cr_assert_lt((double)(clock() - begin) / CLOCKS_PER_SEC, 20.0);
}

Test(tok_pre, limit_of_steps)
{
    struct tok_pre p = open_rule("llama-bpe");
    struct cutting c = {NULL, 0, "limit"};
    pcre2_match_data *scratch = pcre2_match_data_create(1, NULL);
    char spaces[4096];

    memset(spaces, ' ', sizeof(spaces));
    (void)pcre2_set_match_limit(p.context, 10);
    cr_assert_eq(tok_pre_split(&p, scratch, spaces, sizeof(spaces), one_word, &c), -ELOOP);
    pcre2_match_data_free(scratch);
    tok_pre_finish(&p);
}

Test(tok_pre, broken_utf8)
{
    static const char text[] = "a\xff\xfe b\xe6\xbc";

    for (size_t i = 0; i < N_RULES; i++) {
        struct tok_pre p = open_rule(rules[i]);
        struct cutting c = {NULL, 0, rules[i]};

        cut(&p, text, sizeof(text) - 1, &c);
        tok_pre_finish(&p);
    }
}

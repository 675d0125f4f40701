/* SPDX-License-Identifier: Apache-2.0 */
/* engine/text/calls/calls.h: answers in every format, whole, byte by byte, and cut at every byte;
 * with markers as tokens and as text; what breaks; how templates choose. */

#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sanitized.h"
#include "base/utf8.h"
#include "engine/text/calls/calls.h"
#include "tests/unit/tok_spec.h"

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"parameters\":{\"type\":"
    "\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
    "\"on\":{\"type\":\"boolean\"},\"any\":{}}}}},"
    "{\"name\":\"python\",\"parameters\":{\"type\":\"object\",\"properties\":{\"code\":"
    "{\"type\":\"string\"}}}}]";

/* What comes out: "text", <reasoning>, name{arguments}, and all of it put together again. */
struct heard {
    char said[8192];
    size_t n;
    char raw[8192];
    size_t n_raw;
    enum calls_part last;
    bool any;
    bool characters; /* the pieces that are pushed have no halves of any */
};

static void hear(void *arg, enum calls_part part, const char *text, size_t len)
{
    static const char *const open[] = {"\"", "<", "@", "", ""};
    static const char *const close[] = {"\"", ">", "", "", ""};
    struct heard *h = arg;

    cr_assert(len > 0);
    cr_assert(!h->characters || utf8_valid(text, len), "half a character in %.*s", (int)len, text);
    if (part != CALLS_NAME && part != CALLS_ARGUMENTS) {
        cr_assert_lt(h->n_raw + len, sizeof(h->raw));
        memcpy(h->raw + h->n_raw, text, len);
        h->n_raw += len;
    }
    if (part == CALLS_MARK) {
        return;
    }
    cr_assert_lt(h->n + len + 4, sizeof(h->said));
    if (!h->any || h->last != part || part >= CALLS_NAME) {
        h->n += (size_t)sprintf(h->said + h->n, "%s%s", h->any ? close[h->last] : "", open[part]);
    }
    memcpy(h->said + h->n, text, len);
    h->n += len;
    h->said[h->n] = '\0';
    h->last = part;
    h->any = true;
}

static void hear_end(struct heard *h)
{
    static const char *const close[] = {"\"", ">", "", "", ""};

    if (h->any) {
        (void)sprintf(h->said + h->n, "%s", close[h->last]);
    }
}

static const char *const tokens[] = {"<tool_call>",
                                     "</tool_call>",
                                     "<think>",
                                     "</think>",
                                     "[TOOL_CALLS]",
                                     "[ARGS]",
                                     "[CALL_ID]",
                                     "[THINK]",
                                     "[/THINK]",
                                     "<|channel|>",
                                     "<|message|>",
                                     "<|start|>",
                                     "<|end|>",
                                     "<|call|>",
                                     "<|return|>",
                                     "<|constrain|>",
                                     "<|python_tag|>",
                                     "<|tool_call>",
                                     "<tool_call|>",
                                     "<|channel>",
                                     "<channel|>",
                                     "<|\"|>",
                                     "<|tool_call_start|>",
                                     "<|tool_call_end|>",
                                     "<|tool_call|>"};

static size_t token_at(const char *p, size_t len)
{
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        size_t n = strlen(tokens[i]);

        if (n <= len && !memcmp(p, tokens[i], n)) {
            return n;
        }
    }
    return 0;
}

enum cut { WHOLE, BYTES, TOKENS };

static const struct calls_format *format(const char *name)
{
    const struct calls_format *f;
    struct error e;

    cr_assert_eq(calls_choose(name, NULL, 0, &f, &e), 0, "%s", e.text);
    return f;
}

static struct calls *begin(const char *name, const struct tok *tok, bool tools, struct heard *h)
{
    struct calls *c;
    struct error e;
    json_t *list = tools ? json_loads(TOOLS, 0, NULL) : NULL;

    *h = (struct heard){0};
    cr_assert_eq(calls_create(format(name), tok, list, hear, h, &c, &e), 0, "%s", e.text);
    json_decref(list);
    return c;
}

/* Returns whether it was broken. */
static bool parse(const char *name, const char *prompt, const char *text, size_t len, enum cut cut,
                  bool ended, struct heard *h)
{
    struct calls *c = begin(name, NULL, true, h);
    bool broken;

    h->characters = cut == WHOLE && utf8_valid(text, len);
    calls_begin(c, prompt, strlen(prompt));
    for (size_t i = 0; i < len;) {
        size_t n = cut == WHOLE ? len : 1;
        size_t special = cut == TOKENS ? token_at(text + i, len - i) : 0;

        if (special) {
            calls_push(c, text[i + 1] == '|' ? CALLS_CONTROL : CALLS_ADDED, text + i, special);
            n = special;
        } else {
            calls_push(c, CALLS_PLAIN, text + i, n);
        }
        i += n;
    }
    calls_finish(c, ended);
    hear_end(h);
    cr_assert_eq(h->n_raw, len, "%s: %zu bytes of %zu: %s", name, h->n_raw, len, text);
    cr_assert(memcmp(h->raw, text, len) == 0, "%s: another text than %s", name, text);
    broken = calls_broken(c);
    calls_destroy(c);
    return broken;
}

struct answer {
    const char *format;
    const char *prompt;
    const char *text;
    const char *said;
    bool broken;
};

#define CALL_JSON "{\"name\": \"get_time\", \"arguments\": {\"city\": \"Oslo\"}}"
#define START "<|start|>assistant"

static const struct answer answers[] = {
    /* Hermes, Qwen 2.5 and 3 */
    {"hermes", "", "Hello, world!\nWhat's up?", "\"Hello, world!\nWhat's up?\"", false},
    {"hermes", "", "<tool_call>\n" CALL_JSON "\n</tool_call>", "@get_time{\"city\": \"Oslo\"}",
     false},
    {"hermes", "",
     "One moment.\n<tool_call>\n" CALL_JSON "\n</tool_call>\n<tool_call>" CALL_JSON
     "</tool_call> Done.",
     "\"One moment.\n\"@get_time{\"city\": \"Oslo\"}@get_time{\"city\": \"Oslo\"}\"Done.\"", false},
    {"hermes", "",
     "<think>\nHm, <tool_call>?\n</think>\n\n<tool_call>\n" CALL_JSON "\n</tool_call>",
     "<Hm, <tool_call>?>@get_time{\"city\": \"Oslo\"}", false},
    {"hermes", "<|im_start|>assistant\n<think>\n", "So.\n</think>\n\nYes.", "<So.>\"Yes.\"", false},
    {"hermes", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "Yes.", "\"Yes.\"", false},
    {"hermes", "",
     "<tool_call>{\"arguments\": {\"a\": [1, {\"b\": \"}\\\"\\u00e9\"}], \"c\": null}, \"name\": "
     "\"f\"}"
     "</tool_call>",
     "@f{\"a\": [1, {\"b\": \"}\\\"\\u00e9\"}], \"c\": null}", false},
    {"hermes", "",
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"k\": \"\xe2\x82\xac "
     "\xf0\x9f\x98\x80\"}}</tool_call>",
     "@f{\"k\": \"\xe2\x82\xac \xf0\x9f\x98\x80\"}", false},
    {"hermes", "", "<tool_call>{\"name\": \"f\"}</tool_call>", "@f{}", false},
    {"hermes", "", "<tool_call>{\"name\": \"f\", \"arguments\": {'a': 1}}</tool_call>x",
     "\"<tool_call>{\"name\": \"f\", \"arguments\": {'a': 1}}</tool_call>x\"", true},
    {"hermes", "", "<tool_call>{\"name\": \"f g\", \"arguments\": {}}</tool_call>",
     "\"<tool_call>{\"name\": \"f g\", \"arguments\": {}}</tool_call>\"", true},
    {"hermes", "", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
     "\"<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>\"", true},
    {"hermes", "", "<tool_call>\n" CALL_JSON, "\"<tool_call>\n" CALL_JSON "\"", true},
    {"hermes", "", "a <tool_cal b", "\"a <tool_cal b\"", false},
    /* Qwen3-Coder and 3.5 */
    {"qwen-xml", "",
     "<tool_call>\n<function=get_time>\n<parameter=city>\nNew\n\"York\"\n</"
     "parameter>\n<parameter=n>\n"
     "12\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n<parameter=any>\n[1, 2]\n</parameter>\n"
     "</function>\n</tool_call>",
     "@get_time{\"city\": \"New\\n\\\"York\\\"\", \"n\": 12, \"on\": true, \"any\": [1, 2]}",
     false},
    {"qwen-xml", "",
     "<function=get_time>\n<parameter=city>\n12\n</parameter>\n</function>\n</tool_call>",
     "@get_time{\"city\": \"12\"}", false},
    {"qwen-xml", "", "<tool_call><function=f></function></tool_call>", "@f{}", false},
    {"qwen-xml", "",
     "<tool_call><function=python><parameter=code>\nprint('</parameter>')\n\n</parameter></"
     "function>"
     "</tool_call>",
     "@python{\"code\": \"print('</parameter>')\\n\"}", false},
    {"qwen-xml", "", "<tool_call><function=f><parameter=a>1</function></tool_call>",
     "\"<tool_call><function=f><parameter=a>1</function></tool_call>\"", true},
    /* Llama 3 */
    {"llama3", "", "{\"name\": \"get_time\", \"parameters\": {\"city\": \"Oslo\"}}",
     "@get_time{\"city\": \"Oslo\"}", false},
    {"llama3", "",
     "\n{\"type\": \"function\", \"function\": {\"name\": \"get_time\", \"parameters\": "
     "{}}}; {\"name\": \"python\", \"parameters\": {\"code\": \"1\"}}",
     "@get_time{}@python{\"code\": \"1\"}", false},
    {"llama3", "", "{\"answer\": 42}", "\"{\"answer\": 42}\"", false},
    {"llama3", "", "{\"name\": \"Bob\", \"parameters\": {}}",
     "\"{\"name\": \"Bob\", \"parameters\": {}}\"", true},
    {"llama3", "", "It is {\"name\": \"get_time\"}", "\"It is {\"name\": \"get_time\"}\"", false},
    {"llama3", "", "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "@f{\"a\": 1}",
     false},
    {"llama3", "", "<|python_tag|>brave_search.call(query=\"a \\\"b\\\"\")",
     "@brave_search{\"query\": \"a \\\"b\\\"\"}", false},
    {"llama3", "", "<|python_tag|>print(\"x\")\nprint(2)",
     "@python{\"code\": \"print(\\\"x\\\")\\nprint(2)\"}", false},
    /* Mistral */
    {"mistral", "",
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, "
     "{\"name\": \"g\", \"arguments\": {}}]",
     "@f{\"a\": 1}@g{}", false},
    {"mistral", "", "Well. [TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]000000002[ARGS]{}",
     "\"Well. \"@f{\"a\": 1}@g{}", false},
    {"mistral", "", "[THINK]I'm [TOOL_CALLS]f[ARGS]{}\n[/THINK]Hello",
     "<I'm [TOOL_CALLS]f[ARGS]{}>\"Hello\"", false},
    {"mistral", "", "[TOOL_CALLS]f[ARGS]{\"a\": }", "\"[TOOL_CALLS]f[ARGS]{\"a\": }\"", true},
    {"mistral", "", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]", "@f{}\"[TOOL_CALLS]g[ARGS]\"",
     true},
    /* gpt-oss */
    {"harmony", START,
     "<|channel|>analysis<|message|>I'm\nthinking<|end|>" START
     "<|channel|>final<|message|>Hello\n",
     "<I'm\nthinking>\"Hello\n\"", false},
    {"harmony", START,
     "<|channel|>analysis<|message|>Hm<|end|>" START
     "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
     "<Hm>@f{\"a\": 1}", false},
    {"harmony", START, " to=functions.f<|channel|>analysis<|message|>{\"a\": 1}", "@f{\"a\": 1}",
     false},
    {"harmony", START,
     "<|channel|>commentary<|message|>First.<|end|>" START
     "<|channel|>commentary to=functions.f<|message|>{}<|end|>" START
     "<|channel|>commentary to=functions.g<|message|>{}<|call|>",
     "\"First.\"@f{}@g{}", false},
    {"harmony", START,
     "<|channel|>commentary to=assistant<|channel|>analysis<|message|>I<|end|>" START
     "<|channel|>final<|message|>A",
     "<I>\"A\"", false},
    {"harmony", START, "<|channel|>commentary to=python <|constrain|>code<|message|>print(1)",
     "\"<|channel|>commentary to=python <|constrain|>code<|message|>print(1)\"", true},
    {"harmony", START, "Just text.", "\"Just text.\"", false},
    /* Gemma 4 */
    {"gemma4", "", "<|channel>thought\nI'm\nthinking<channel|>Hello", "<I'm\nthinking>\"Hello\"",
     false},
    {"gemma4", "", "<|channel>thought<channel|>Hello", "\"Hello\"", false},
    {"gemma4", "", "<|channel>I thought<channel|>Hello", "<I thought>\"Hello\"", false},
    {"gemma4", "",
     "A<|tool_call>call:f{s:<|\"|>a "
     "\"b\"\n<|\"|>,n:-1.5e10,t:true,l:[<|\"|>x<|\"|>,{k:null}],o:{}}<tool_call|>"
     "<|tool_call>call:g{}<tool_call|>",
     "\"A\"@f{\"s\":\"a "
     "\\\"b\\\"\\n\",\"n\":-1.5e10,\"t\":true,\"l\":[\"x\",{\"k\":null}],\"o\":{}}@g{}",
     false},
    {"gemma4", "", "<|tool_call>call:f{a:1<tool_call|>", "\"<|tool_call>call:f{a:1<tool_call|>\"",
     true},
    /* LFM2 */
    {"lfm2", "",
     "Let me.<|tool_call_start|>[f(a=1, b=\"x\\n\\\"\", c=True, d={'k': [None, -2.5]}), A.g()]"
     "<|tool_call_end|>",
     "\"Let me.\"@f{\"a\": 1, \"b\": \"x\\n\\\"\", \"c\": true, \"d\": {\"k\": [null, "
     "-2.5]}}@A.g{}",
     false},
    {"lfm2", "", "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {}}]<|tool_call_end|>",
     "@f{}", false},
    {"lfm2", "", "<|tool_call_start|>[f(1)]<|tool_call_end|>",
     "\"<|tool_call_start|>[f(1)]<|tool_call_end|>\"", true},
    {"lfm2", "", "<think>a</think>b", "<a>\"b\"", false},
    /* Granite 3 */
    {"granite", "",
     "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
     "\"arguments\": {}}]",
     "@f{\"a\": 1}@g{}", false},
    {"granite", "", "<think>I'm</think><response>Hello</response>", "<I'm>\"Hello\"", false},
    {"none", "", "<think>a</think>b <tool_call>{}</tool_call>",
     "<a>\"b <tool_call>{}</tool_call>\"", false},
    /* characters of several bytes where a call turns out to be none */
    {"llama3", "", "{\"na\xc3\xafve\": 1}", "\"{\"na\xc3\xafve\": 1}\"", false},
    {"llama3", "", "{\"\xe5\xa7\x93\": 1}", "\"{\"\xe5\xa7\x93\": 1}\"", false},
    {"llama3", "", "{\xf0\x9f\x98\x80}", "\"{\xf0\x9f\x98\x80}\"", false},
    {"harmony", START, "\xc3\x85.", "\"\xc3\x85.\"", false},
};

enum { N_ANSWERS = sizeof(answers) / sizeof(answers[0]) };

static void check(const struct answer *a, enum cut cut)
{
    struct heard h;
    bool broken = parse(a->format, a->prompt, a->text, strlen(a->text), cut, true, &h);

    cr_expect_str_eq(h.said, a->said, "%s, cut %d: %s\ngives   %s\nwants   %s", a->format, (int)cut,
                     a->text, h.said, a->said);
    cr_expect_eq(broken, a->broken, "%s, cut %d: %s", a->format, (int)cut, a->text);
}

Test(calls, whole)
{
    for (int i = 0; i < N_ANSWERS; i++) {
        check(&answers[i], WHOLE);
    }
}

Test(calls, byte_by_byte)
{
    for (int i = 0; i < N_ANSWERS; i++) {
        check(&answers[i], BYTES);
    }
}

/* Markers in reasoning that are tokens, and quotes, are no markers either. */
Test(calls, tokens)
{
    for (int i = 0; i < N_ANSWERS; i++) {
        check(&answers[i], TOKENS);
    }
}

/* parse() itself checks that nothing is lost. A call that is not whole is never told. */
Test(calls, cut_at_every_byte)
{
    for (int i = 0; i < N_ANSWERS; i++) {
        const struct answer *a = &answers[i];

        for (size_t len = 0; len < strlen(a->text); len++) {
            struct heard h;
            struct heard again;
            bool broken = parse(a->format, a->prompt, a->text, len, WHOLE, false, &h);

            cr_expect_eq(parse(a->format, a->prompt, a->text, len, BYTES, false, &again), broken);
            cr_expect_str_eq(h.said, again.said);
            for (const char *p = h.said; (p = strchr(p, '@')); p++) {
                size_t n = strcspn(p + 1, "@<\"");

                cr_expect(broken || a->broken || memmem(a->said, strlen(a->said), p, n + 1),
                          "%s: '%.*s' gives %s", a->format, (int)len, a->text, h.said);
            }
        }
    }
}

/* With the token in the vocabulary its spelling is text: a model that quotes it calls nothing. */
Test(calls, marker_as_token_only)
{
    struct tok_spec *spec = calloc(1, sizeof(*spec));
    struct tok *t;
    struct error e;
    struct heard h;
    struct calls *c;

    tok_spec_bpe(spec);
    (void)tok_spec_add(spec, "<tool_call>", 4, 0);
    (void)tok_spec_add(spec, "</tool_call>", 4, 0);
    spec->n_kinds = spec->n;
    cr_assert_eq(tok_spec_make(spec, &t, NULL, &e), 0, "%s", e.text);
    c = begin("hermes", t, true, &h);
    calls_push(c, CALLS_PLAIN, "<tool_call>" CALL_JSON "</tool_call>",
               strlen("<tool_call>" CALL_JSON "</tool_call>"));
    calls_push(c, CALLS_ADDED, "<tool_call>", 11);
    calls_push(c, CALLS_PLAIN, CALL_JSON, strlen(CALL_JSON));
    calls_push(c, CALLS_ADDED, "</tool_call>", 12);
    calls_finish(c, true);
    hear_end(&h);
    cr_expect_str_eq(h.said,
                     "\"<tool_call>" CALL_JSON "</tool_call>\"@get_time{\"city\": \"Oslo\"}");
    cr_expect_not(calls_broken(c));
    cr_expect_eq(calls_count(c), 1);
    calls_destroy(c);
    tok_destroy(t);
    free(spec);
}

Test(calls, without_tools)
{
    struct heard h;
    struct calls *c = begin("hermes", NULL, false, &h);
    const char *text = "<think>a</think><tool_call>" CALL_JSON "</tool_call>";

    calls_push(c, CALLS_PLAIN, text, strlen(text));
    calls_finish(c, true);
    hear_end(&h);
    cr_expect_str_eq(h.said, "<a>\"<tool_call>" CALL_JSON "</tool_call>\"");
    calls_destroy(c);
}

static size_t n_text;

static void count(void *arg, enum calls_part part, const char *text, size_t len)
{
    (void)text;
    n_text += part == CALLS_TEXT ? len : 0;
    *(size_t *)arg += part == CALLS_NAME;
}

/* A call over the limit, and more calls than the limit, are text. */
Test(calls, too_much)
{
    size_t n = 0;
    size_t size = CALLS_MAX_BYTES + 1000;
    char *big = malloc(size);
    json_t *list = json_array();
    struct calls *c;
    struct error e;

    cr_assert_eq(calls_create(format("hermes"), NULL, list, count, &n, &c, &e), 0);
    memset(big, 'x', size);
    calls_push(c, CALLS_PLAIN, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"", 44);
    calls_push(c, CALLS_PLAIN, big, size);
    calls_push(c, CALLS_PLAIN, "\"}}</tool_call>", 15);
    calls_finish(c, true);
    cr_expect(calls_broken(c));
    cr_expect_eq(n, 0);
    cr_expect_eq(n_text, size + 44 + 15);
    calls_destroy(c);

    cr_assert_eq(calls_create(format("hermes"), NULL, list, count, &n, &c, &e), 0);
    for (int i = 0; i < CALLS_MAX_CALLS + 3; i++) {
        calls_push(c, CALLS_PLAIN, "<tool_call>{\"name\": \"f\"}</tool_call>", 36);
    }
    calls_finish(c, true);
    cr_expect_eq(n, CALLS_MAX_CALLS);
    cr_expect_eq(calls_count(c), CALLS_MAX_CALLS);
    cr_expect(calls_broken(c));
    calls_destroy(c);
    json_decref(list);
    free(big);
}

/* Of the definitions nothing is kept but names and types, in the one block that the plan counts for
 * each sequence. */
Test(calls, takes_what_the_plan_counts)
{
    enum { SIZE = 200 << 10 };
    char *text = malloc(SIZE + 100);
    size_t len = (size_t)sprintf(text, "[{\"name\": \"f\", \"x\": [{}");
    struct mallinfo2 before;
    struct mallinfo2 after;
    size_t n = 0;
    struct calls *c;
    struct error e;
    json_t *list;

    while (len < SIZE) {
        len += (size_t)sprintf(text + len, ",{}");
    }
    len += (size_t)sprintf(text + len, "]}]");
    (void)mallopt(M_MMAP_THRESHOLD, 128 << 10); /* in pages of its own, as the first one is */
    before = mallinfo2();
    list = json_loadb(text, len, 0, NULL);
    cr_assert_not_null(list);
    cr_assert_eq(calls_create(format("hermes"), NULL, list, count, &n, &c, &e), 0);
    json_decref(list);
    after = mallinfo2();
    n = after.hblkhd + after.uordblks - before.hblkhd - before.uordblks;
    /* A sanitizer's malloc tells nothing. */
#if !SANITIZED
    cr_expect(n >= CALLS_BYTES && n < CALLS_BYTES + 4096, "%zu", n); /* malloc keeps a little */
#endif
    calls_destroy(c);
    free(text);
}

Test(calls, names_over_the_limit)
{
    json_t *properties = json_object();
    json_t *list =
        json_pack("[{s:s, s:{s:o}}]", "name", "f", "parameters", "properties", properties);
    struct calls *c;
    struct error e = {0};
    size_t n = 0;
    char name[16];

    for (int i = 0; i < 2000; i++) {
        (void)sprintf(name, "argument%06d", i);
        (void)json_object_set_new(properties, name, json_pack("{s:s}", "type", "string"));
    }
    cr_expect_eq(calls_create(format("qwen-xml"), NULL, list, count, &n, &c, &e), -E2BIG);
    cr_expect(strstr(e.text, "32768"), "%s", e.text);
    json_decref(list);
}

static void whole_characters(void *arg, enum calls_part part, const char *text, size_t len)
{
    (void)part;
    cr_assert(utf8_valid(text, len), "half a character in a piece of %zu bytes", len);
    *(size_t *)arg += len;
}

/* Where something is full it is told between two characters, whichever byte of one would be the
 * first too many. */
Test(calls, full_between_characters)
{
    static const struct {
        const char *format;
        const char *prompt;
        const char *text;
        size_t size;
    } rows[] = {{"hermes", "", "<tool_call>", CALLS_MAX_BYTES + 100},
                {"llama3", "", "{\"name\": \"", CALLS_MAX_BYTES + 100},
                {"harmony", START, "<|channel|>", 1000},
                {"hermes", "", "", 10000}, /* ordinary text, all in one piece */
                {"none", "<think>", "", 10000}};
    static char text[CALLS_MAX_BYTES + 1000];
    json_t *list = json_loads(TOOLS, 0, NULL);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) * 4; i++) {
        size_t n_told = 0;
        size_t n = (size_t)sprintf(text, "%s%.*s", rows[i / 4].text, (int)(i % 4), "xxx");
        struct calls *c;
        struct error e;

        while (n < rows[i / 4].size) {
            n += (size_t)sprintf(text + n, "\xf0\x9f\x98\x80");
        }
        cr_assert_eq(
            calls_create(format(rows[i / 4].format), NULL, list, whole_characters, &n_told, &c, &e),
            0);
        calls_begin(c, rows[i / 4].prompt, strlen(rows[i / 4].prompt));
        calls_push(c, CALLS_PLAIN, text, n);
        calls_finish(c, true);
        cr_expect_eq(n_told, n);
        calls_destroy(c);
    }
    json_decref(list);
}

/* A brace and much white space begin no call: nobody reads all of it for each byte more. */
Test(calls, space_behind_a_brace)
{
    static char space[4096];
    size_t n = 0;
    json_t *list = json_array();
    struct calls *c;
    struct error e;

    memset(space, ' ', sizeof(space));
    cr_assert_eq(calls_create(format("llama3"), NULL, list, count, &n, &c, &e), 0);
    calls_push(c, CALLS_PLAIN, "{", 1);
    calls_push(c, CALLS_PLAIN, space, 1000);
    cr_expect_eq(n_text, 0, "may be one");
    calls_push(c, CALLS_PLAIN, space, sizeof(space));
    cr_expect_eq(n_text, 1001 + sizeof(space));
    cr_expect_not(calls_broken(c));
    calls_destroy(c);
    json_decref(list);
}

/* What follows a call that was none keeps its white space. */
Test(calls, space_behind_text)
{
    static const char text[] = "<tool_call>" CALL_JSON "</tool_call> <tool_call>{}</tool_call> x";
    struct heard h;

    cr_expect(parse("hermes", "", text, sizeof(text) - 1, WHOLE, true, &h));
    cr_expect_str_eq(h.said, "@get_time{\"city\": \"Oslo\"}\"<tool_call>{}</tool_call> x\"");
}

Test(calls, deep_json)
{
    char text[1024] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ";
    struct heard h;

    memset(text + strlen(text), '[', 100);
    cr_expect(parse("hermes", "", text, strlen(text), WHOLE, true, &h));
    memset(text + strlen(text), ']', 100);
    strcat(text, "}}</tool_call>");
    cr_expect(parse("hermes", "", text, strlen(text), WHOLE, true, &h),
              "over the depth that is read");
}

Test(calls, choice)
{
    static const struct {
        const char *text;
        const char *name;
    } rows[] = {{"..<tool_call>..", "hermes"},
                {"<tool_call><function=a><parameter=b>", "qwen-xml"},
                {"[TOOL_CALLS]", "mistral"},
                {"<|channel|>x<|message|>", "harmony"},
                {"'<|tool_call>call:' '<tool_call|>'", "gemma4"},
                {"List of tools: [", "lfm2"},
                {"<|tool_list_start|>", "lfm2"},
                {"<|tool_call|>", "granite"},
                {"<|start_header_id|> \"parameters\"", "llama3"},
                {"<|im_start|>", "none"}};
    const struct calls_format *f;
    struct error e = {0};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        cr_assert_eq(calls_choose(NULL, rows[i].text, strlen(rows[i].text), &f, &e), 0);
        cr_expect_str_eq(calls_format_name(f), rows[i].name);
    }
    cr_expect_eq(calls_choose("llama4", "", 0, &f, &e), -EINVAL);
    cr_expect(strstr(e.text, "hermes"), "%s", e.text);
    cr_assert_eq(calls_choose("mistral", "<tool_call>", 11, &f, &e), 0);
    cr_expect_str_eq(calls_format_name(f), "mistral");
}

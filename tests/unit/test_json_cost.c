/* SPDX-License-Identifier: Apache-2.0 */
/* What tools take while a template writes them is what the plan holds for a text: so much for each
 * byte, and so much for each JSON value (daemon/options/engine_options.h). The worst that was found
 * are small objects. malloc and its kin are wrapped to be counted. */

#include <criterion/criterion.h>
#include <jansson.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/options/engine_options.h"
#include "daemon/worker/ask.h"
#include "engine/text/jinja/jinja.h"
#include "engine/text/tok.h"
#include "tests/unit/tok_spec.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);

static size_t held;
static size_t most;

static size_t bytes(void *p)
{
    return p ? malloc_usable_size(p) + sizeof(size_t) : 0;
}

static void *more(void *p)
{
    held += bytes(p);
    most = held > most ? held : most;
    return p;
}

void *__wrap_malloc(size_t n)
{
    return more(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return more(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n)
{
    held -= bytes(p);
    return more(__real_realloc(p, n));
}

void __wrap_free(void *p)
{
    held -= bytes(p);
    __real_free(p);
}

static void bind(void *arg, struct jinja_run *r)
{
    jinja_set(r, "tools", jinja_json(r, arg, false));
}

Test(json_cost, of_a_value)
{
    static const char *const units[] = {
        "{},", "[],", "1,", "\"\",", "{\"\":{}},", "{\"a\":1,\"b\":2},", "[[[[]]]],"};
    static const char source[] = "{{ tools | tojson(indent=4) }}";
    struct jinja *program;
    struct error e = {0};

    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    cr_assert_eq(jinja_compile(source, sizeof(source) - 1, &program, &e), 0, "%s", e.text);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        static char text[96 << 10];
        size_t len = (size_t)sprintf(text, "[{\"name\":\"f\",\"x\":[");
        struct ask ask = {0};
        struct jinja_output out = {0};
        struct jinja_limits limits;
        size_t n_values;
        json_t *list;

        do {
            len += (size_t)sprintf(text + len, "%s", units[i]);
            ask.tools = (struct chat_text){text, len};
            n_values = ask_json_values(&ask);
        } while (len + 100 < sizeof(text) && n_values + 16 < ENGINE_JSON_VALUES);
        len--;
        len += (size_t)sprintf(text + len, "]}]");
        most = held;

        size_t before = held;

        list = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
        cr_assert_not_null(list, "%s", units[i]);
        limits = jinja_limits_for(len);
        cr_assert_eq(jinja_render(program, &limits, 0, bind, list, &out, &e), 0, "%s", e.text);
        json_decref(list);
        cr_expect_leq(most - before, len * ENGINE_TEXT_COST + n_values * ENGINE_JSON_COST,
                      "%s: %zu bytes for %zu with %zu values", units[i], most - before, len,
                      n_values);
        jinja_output_finish(&out);
    }
    jinja_destroy(program);
}

/* Every text of a request counts, wherever it stands. */
Test(json_cost, all_texts_are_counted)
{
    static const char *const four = "[,:{";
    struct chat_text text = {four, 4};
    struct chat_call call = {.id = text, .name = text, .arguments = text};
    struct chat_message m = {
        .text = four, .len = 4, .reasoning = text, .name = text, .call_id = text, .n_calls = 1};
    struct ask ask = {.prompt_len = 4,
                      .messages = &m,
                      .n_messages = 1,
                      .calls = &call,
                      .n_calls = 1,
                      .tools = text};

    cr_expect_eq(ask_bytes(&ask), 9 * 4);
    cr_expect_eq(ask_json_values(&ask), 2 * 4);
}

/* A unigram vocabulary whose rules make three bytes of one: its normal form, the best cut of each
 * of its bytes, and its ids. */
Test(json_cost, of_a_text_that_grows)
{
    enum { LEN = 1 << 18 };
    static struct tok_spec spec;
    static char text[LEN];
    struct error e = {0};
    int32_t *ids;
    struct tok *t;
    size_t before;
    size_t n;

    memset(text, 'a', sizeof(text));
    tok_spec_unigram(&spec);
    tok_spec_replace_a(&spec, "zzz"); /* no token: a byte each */
    cr_assert_eq(tok_spec_make(&spec, &t, NULL, &e), 0, "%s", e.text);
    before = held;
    most = held;
    cr_assert_eq(tok_encode_new(t, text, LEN, 0, &ids, &n, &e), 0, "%s", e.text);
    cr_assert_geq(n, 3 * LEN);
    cr_assert_leq(most - before, (size_t)LEN * ENGINE_TEXT_COST, "%zu bytes of a text of %d",
                  most - before, LEN);
    cr_assert_geq(most - before, (size_t)LEN * 48, "what is counted is there");
    free(ids);
    tok_destroy(t);
}

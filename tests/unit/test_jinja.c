/* SPDX-License-Identifier: Apache-2.0 */
/* engine/text/jinja/jinja.h: every feature against what Jinja2 makes of it
 * (tests/data/jinja_vectors.jsonl, made by tests/golden/make_jinja_vectors.py), the marks through
 * every operation on strings, and templates that mean harm. */

#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/jinja/jinja.h"

static struct error e;
static struct jinja_output out;

/* `arg`: a JSON object; names that end in "_token" are trusted. */
static void bind(void *arg, struct jinja_run *r)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)arg, name, value)
    {
        bool trusted = strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_token") == 0;

        jinja_set(r, name, jinja_json(r, value, trusted));
    }
}

static int run(const char *source, size_t len, json_t *vars, const struct jinja_limits *limits)
{
    struct jinja *t;
    int r;

    e = (struct error){0};
    jinja_output_finish(&out);
    r = jinja_compile(source, len, &t, &e);
    if (r == 0) {
        r = jinja_render(t, limits, 1764028800, bind, vars, &out, &e);
        jinja_destroy(t);
    }
    return r;
}

static FILE *vectors(void)
{
    const char *dir = getenv("PIPIT_TEST_DATA");
    char path[4096];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/jinja_vectors.jsonl", dir ? dir : "tests/data");
    f = fopen(path, "re");
    cr_assert(f, "%s", path);
    return f;
}

Test(jinja, vectors)
{
    const struct jinja_limits limits = jinja_limits_for(0);
    FILE *f = vectors();
    char *line = NULL;
    size_t cap = 0;
    json_t *vars = NULL;
    int n = 0;
    int bad = 0;

    while (getline(&line, &cap, f) > 0) {
        json_t *c = json_loads(line, JSON_ALLOW_NUL, NULL);
        json_t *t = json_object_get(c, "template");
        json_t *want = json_object_get(c, "text");
        int r;

        cr_assert(c);
        if (!vars) {
            vars = json_incref(json_object_get(c, "vars"));
            json_decref(c);
            continue;
        }
        r = run(json_string_value(t), json_string_length(t), vars, &limits);
        n++;
        if (want ? r < 0 || out.len != json_string_length(want) ||
                       memcmp(out.text, json_string_value(want), out.len) != 0
                 : r == 0) {
            bad++;
            (void)fprintf(stderr, "%s\n  wanted %s\n  got    %s\n", json_string_value(t),
                          want ? json_string_value(want) : "a failure", r < 0 ? e.text : out.text);
        }
        cr_assert(r == 0 || (strstr(e.text, "chat template, line ") && e.code == r), "%s", e.text);
        json_decref(c);
    }
    free(line);
    (void)fclose(f);
    json_decref(vars);
    cr_assert(n > 150, "%d vectors", n);
    cr_assert_eq(bad, 0, "%d of %d differ", bad, n);
}

/* ---- marks ----------------------------------------------------------------------------------- */

/* The output with users' bytes in brackets. */
static const char *marked(const char *source)
{
    static char text[4096];
    json_t *vars = json_loads("{\"u\": \"<|x|>\", \"n\": 12, \"l\": [\"<|\", \"x|>\"], \"d\": "
                              "{\"<|k\": \"v|>\"}, \"s\": \" aAa \","
                              " \"x_token\": \"<|T|>\", \"b\": true}",
                              0, NULL);
    const struct jinja_limits limits = jinja_limits_for(0);
    size_t n = 0;
    size_t at = 0;

    cr_assert_eq(run(source, strlen(source), vars, &limits), 0, "%s: %s", source, e.text);
    for (size_t i = 0; i < out.n_spans; i++) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%.*s%s",
                              out.spans[i].trusted ? "" : "[", (int)out.spans[i].len, out.text + at,
                              out.spans[i].trusted ? "" : "]");
        at += out.spans[i].len;
    }
    cr_assert_eq(at, out.len);
    json_decref(vars);
    return text;
}

Test(jinja, marks_go_along)
{
    static const char *const cases[][2] = {
        {"a{{ u }}b{{ x_token }}", "a[<|x|>]b<|T|>"},
        {"{{ '<|' ~ u ~ '|>' }}", "<|[<|x|>]|>"},
        {"{{ '<|' + u }}", "<|[<|x|>]"},
        {"{{ u[1:3] }}{{ u[::-1] }}{{ u[0] }}", "[|x>|x|<<]"},
        {"{{ (u ~ x_token)[3:7] }}", "[|>]<|"},
        {"{{ s.strip() }}{{ s | trim }}{{ s | upper }}{{ s | title }}{{ s.replace('A', '<|T|>') }}",
         "[aAaaAa AAA  Aaa  a]<|T|>[a ]"},
        {"{{ u | replace('x', x_token) }}", "[<|]<|T|>[|>]"},
        {"{{ x_token | replace('T', u) }}", "<|[<|x|>]|>"},
        {"{{ l | join }}{{ l | join('-') }}{{ '+'.join(l) }}", "[<|x|><|]-[x|><|]+[x|>]"},
        {"{{ u.split('x') | join('x') }}{{ u.partition('|')[2] }}", "[<|]x[|>x|>]"},
        {"{{ l | tojson }}", "[[\"<|\", \"x|>\"]]"},
        {"{{ [u, x_token] | tojson }}", "[[\"<|x|>\", \"]<|T|>[\"]]"},
        {"{{ d | tojson(indent=1) }}", "[{\n \"<|k\": \"v|>\"\n}]"},
        {"{{ d }}{{ l }}", "[{'<|k': 'v|>'}['<|', 'x|>']]"},
        {"{{ n }}{{ n + 1 }}{{ n | string }}{{ n * 2 ~ b }}{{ 5 }}", "[12131224True]5"},
        {"{{ '12' | int }}{{ (n ~ '') | int }}", "12[12]"},
        {"{{ '%s|%d' % (u, n) }}", "[<|x|>]|[12]"},
        {"{{ '<{}>{:>4}'.format(u, n) }}", "<[<|x|>]>  [12]"},
        {"{% set a %}<{{ u }}>{% endset %}{{ a }}", "<[<|x|>]>"},
        {"{% macro m(t) %}({{ t }}){% endmacro %}{{ m(u) }}{{ m(x_token) }}", "([<|x|>])(<|T|>)"},
        {"{% filter upper %}a{{ u }}{% endfilter %}", "A[<|X|>]"},
        {"{% set ns = namespace(t='') %}{% for x in l %}{% set ns.t = ns.t + x + '.' %}{% endfor "
         "%}{{ ns.t }}",
         "[<|].[x|>]."},
        {"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "[<|k]=[v|>]"},
        {"{% for c in u %}{{ c }},{% endfor %}", "[<],[|],[x],[|],[>],"},
        {"{{ ('a' ~ u) | indent }}{{ u | center(7) }}{{ u | escape }}",
         "a[<|x|>] [<|x|>] [&lt;|x|&gt;]"},
        {"{{ u if b }}{{ nope or u }}{{ u | default('q') }}", "[<|x|><|x|><|x|>]"},
        {"{{ 'x' * 2 ~ u * 2 }}", "xx[<|x|><|x|>]"},
        {"{{ '\\u00e9'.upper() }}{{ u.rsplit('x', 1)[1] }}{{ u.removeprefix('<') }}",
         "\xc3\x89[|>|x|>]"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_expect_str_eq(marked(cases[i][0]), cases[i][1], "%s", cases[i][0]);
    }
}

/* A refusal quotes the template's words, never a user's. */
Test(jinja, failures_hold_no_text_of_users)
{
    static const char *const cases[] = {"{{ raise_exception('role ' ~ u ~ '!') }}", "{{ u + 1 }}",
                                        "{{ u.index(l[1] ~ 'z') }}", "{{ d[u].x }}",
                                        "{{ u | int + u }}"};
    const struct jinja_limits limits = jinja_limits_for(0);
    json_t *vars =
        json_loads("{\"u\": \"SECRET\", \"l\": [\"a\", \"SECRET\"], \"d\": {}}", 0, NULL);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_expect_eq(run(cases[i], strlen(cases[i]), vars, &limits), -EINVAL, "%s", cases[i]);
        cr_expect(!strstr(e.text, "SECRET"), "%s", e.text);
        cr_expect(strstr(e.text, "line 1: "), "%s", e.text);
    }
    cr_expect_eq(run(cases[0], strlen(cases[0]), vars, &limits), -EINVAL);
    cr_expect_str_eq(e.text, "chat template, line 1: role *!");
    json_decref(vars);
}

Test(jinja, the_line_is_told)
{
    const struct jinja_limits limits = jinja_limits_for(0);
    json_t *vars = json_object();

    cr_assert_eq(run("a\n{% if x %}\n{{ 1 + }}{% endif %}", 33, vars, &limits), -EBADMSG);
    cr_assert(strstr(e.text, "line 3: unexpected '}}'"), "%s", e.text);
    cr_assert_eq(run("a\r\n\r\n{{ 1 }}\n{{ x.y }}", 23, vars, &limits), -EINVAL);
    cr_assert(strstr(e.text, "line 4: 'x' is undefined"), "%s", e.text);
    cr_assert_eq(run("\n{% for x in [1] %}", 19, vars, &limits), -EBADMSG);
    cr_assert(strstr(e.text, "'endfor' is missing"), "%s", e.text);
    json_decref(vars);
}

/* ---- harm ------------------------------------------------------------------------------------ */

Test(jinja, harm_is_limited)
{
    static const char *const cases[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}xxxxxxxxxx{% endfor %}{% endfor "
        "%}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% macro m() %}{{ caller() }}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}"
        "{% call m() %}x{% endcall %}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ 'x' * 999999999999 }}",
        "{{ [1] * 999999999999 }}",
        "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% endfor "
        "%}{{ ns.s }}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(s={}) %}{% for i in range(9999) %}{% set ns.s = {'a': ns.s} %}{% "
        "endfor %}"
        "{{ ns.s | tojson }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%.999999999f' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'x'.center(99999999999) }}",
        "{{ 'x'.zfill(99999999999) }}",
        "{{ '\t'.expandtabs(99999999999) }}",
        "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
        "{{ ['x' * 9999] * 9999 | join }}{{ (['x' * 9999] * 9999) | join }}",
        "{{ 'x' | indent(99999999999) }}",
        "{{ [] | batch(99999999999, 1) | list }}{{ [1] | batch(100000, 1) | list | join | length }}"
        "{{ range(100001) }}",
        "{{ range(9223372036854775807) }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ 2 ** 64 }}",
        "{{ 3 ** 9223372036854775807 }}",
        "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ -(-9223372036854775807 - 1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ [].__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['x'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.x }}",
        "{{ strftime_now('%9999999d') }}",
        "{{ [1].append(2) }}",
        "{% for x in [1, 2] %}{{ {}.update({1: 2}) }}{% endfor %}",
    };
    const struct jinja_limits limits = jinja_limits_for(0);
    json_t *vars = json_object();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int r = run(cases[i], strlen(cases[i]), vars, &limits);

        cr_expect(r == -E2BIG || r == -EINVAL, "%s: %d %s", cases[i], r, e.text);
        cr_expect(strstr(e.text, "chat template, line 1: "), "%s", e.text);
    }
    json_decref(vars);
}

/* Syntax nested until something gives. */
Test(jinja, nesting_is_limited)
{
    static const char *const units[] = {
        "{% if 1 %}",       "{{ (",        "{{ [",  "{{ {1:",   "{{ not ",         "{{ -",
        "{% for x in y %}", "{{ a.b(",     "{{ a[", "{{ x if ", "{% macro m() %}", "{{ a|default(",
        "{% set a %}",      "{{ a is in ("};
    const struct jinja_limits limits = jinja_limits_for(0);
    json_t *vars = json_object();
    char *text = malloc(1 << 20);

    cr_assert(text);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        size_t n = strlen(units[i]);
        size_t from = strncmp(units[i], "{{", 2) == 0 ? 3 : 0; /* "{{ " once */
        size_t len = n;
        int r;

        memcpy(text, units[i], n);
        while (len + n < 200000) {
            memcpy(text + len, units[i] + from, n - from);
            len += n - from;
        }
        r = run(text, len, vars, &limits);
        cr_expect(r == -E2BIG || r == -EBADMSG, "%s: %d %s", units[i], r, e.text);
    }
    for (int k = 0; k < 2; k++) { /* chains that are no nesting to the reader, but are to a tree */
        size_t len = (size_t)snprintf(text, 100, "{{ 1");
        int r;

        while (len < 200000) {
            len += (size_t)snprintf(text + len, 100, k ? "|string" : "+1");
        }
        len += (size_t)snprintf(text + len, 100, " }}");
        r = run(text, len, vars, &limits);
        cr_expect(r == 0 || r == -E2BIG, "%d %s", r, e.text);
    }
    memset(text, 'x', 1 << 20);
    cr_expect_eq(run(text, JINJA_MAX_SOURCE, vars, &limits), 0, "%s", e.text);
    cr_expect_eq(run(text, (size_t)JINJA_MAX_SOURCE + 1, vars, &limits), -E2BIG);
    free(text);
    json_decref(vars);
}

Test(jinja, limits_are_the_callers)
{
    const char *loop = "{% for i in range(1000) %}{{ i }}{% endfor %}";
    struct jinja_limits limits = jinja_limits_for(0);
    json_t *vars = json_object();

    cr_assert_eq(run(loop, strlen(loop), vars, &limits), 0, "%s", e.text);
    cr_assert_eq(out.len, 2890);
    limits.steps = 1000;
    cr_assert_eq(run(loop, strlen(loop), vars, &limits), -E2BIG);
    cr_assert(strstr(e.text, "too many steps"), "%s", e.text);
    limits = jinja_limits_for(0);
    limits.output_bytes = 1000;
    cr_assert_eq(run(loop, strlen(loop), vars, &limits), -E2BIG);
    cr_assert(strstr(e.text, "writes more than 1000 bytes"), "%s", e.text);
    limits = jinja_limits_for(0);
    limits.memory_bytes = 1000;
    cr_assert_eq(run(loop, strlen(loop), vars, &limits), -E2BIG);
    cr_assert(strstr(e.text, "more than 1000 bytes of memory"), "%s", e.text);
    json_decref(vars);
}

Test(jinja, bytes_that_are_no_utf8)
{
    const struct jinja_limits limits = jinja_limits_for(0);
    const char *source =
        "\xff{{ '\xfe'[0] }}{{ '\xc3' | upper }}{{ '\x80' | length }}{{ '\xfe' | tojson }}\xc3";
    json_t *vars = json_object();

    cr_assert_eq(run(source, strlen(source), vars, &limits), 0, "%s", e.text);
    cr_assert_str_eq(out.text, "\xff\xfe\xc3"
                               "1\"\xfe\"\xc3");
    json_decref(vars);
}

Test(jinja, mentions)
{
    struct jinja *t;

    cr_assert_eq(jinja_compile("{{ m['tools'] }}", 16, &t, &e), 0);
    cr_assert(jinja_mentions(t, "tools"));
    cr_assert_not(jinja_mentions(t, "bos_token"));
    jinja_destroy(t);
    jinja_destroy(NULL);
}

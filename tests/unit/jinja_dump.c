/* SPDX-License-Identifier: Apache-2.0 */
/* The template engine as a filter, for comparing it with Jinja2.
 *
 *   jinja_dump [NOW]                 NOW: seconds since 1970 for strftime_now, 0 unless given
 *
 * Each line of standard input is a JSON object: "template", and "vars", an object. Variables whose
 * names end in "_token" are trusted, as are messages' roles. The answer is a line of JSON:
 * {"text": ..., "user": [[from, to], ...]}, the byte ranges that are not trusted, or {"error": ...,
 * "code": n}. */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/jinja/jinja.h"

static bool ends_in_token(const char *name)
{
    size_t n = strlen(name);

    return n > 6 && strcmp(name + n - 6, "_token") == 0;
}

static void bind(void *arg, struct jinja_run *r)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)arg, name, value)
    {
        jinja_set(r, name, jinja_json(r, value, ends_in_token(name)));
    }
}

static json_t *spans(const struct jinja_output *out)
{
    json_t *user = json_array();
    size_t at = 0;

    for (size_t i = 0; i < out->n_spans; i++) {
        if (!out->spans[i].trusted) {
            json_array_append_new(
                user, json_pack("[I,I]", (json_int_t)at, (json_int_t)(at + out->spans[i].len)));
        }
        at += out->spans[i].len;
    }
    return user;
}

static json_t *answer(const json_t *line, int64_t now)
{
    const json_t *source = json_object_get(line, "template");
    json_t *vars = json_object_get(line, "vars");
    struct jinja_limits limits = jinja_limits_for(0);
    struct jinja_output out;
    struct error e = {0};
    struct jinja *t;
    json_t *a;
    int r = jinja_compile(json_string_value(source), json_string_length(source), &t, &e);

    if (r == 0) {
        r = jinja_render(t, &limits, now, bind, vars, &out, &e);
        jinja_destroy(t);
    }
    if (r < 0) {
        return json_pack("{s:s,s:i}", "error", e.text, "code", r);
    }
    a = json_object();
    json_object_set_new(a, "text", json_stringn_nocheck(out.text, out.len));
    json_object_set_new(a, "user", spans(&out));
    jinja_output_finish(&out);
    return a;
}

int main(int argc, char **argv)
{
    int64_t now = argc > 1 ? strtoll(argv[1], NULL, 10) : 0;
    char *text = NULL;
    size_t cap = 0;

    while (getline(&text, &cap, stdin) >= 0) {
        json_t *line = json_loads(text, JSON_ALLOW_NUL, NULL);
        json_t *a = line ? answer(line, now) : json_pack("{s:s}", "error", "no JSON");
        char *s = json_dumps(a, JSON_COMPACT);

        (void)printf("%s\n", s ? s : "{\"error\":\"not UTF-8\"}");
        (void)fflush(stdout);
        free(s);
        json_decref(a);
        json_decref(line);
    }
    free(text);
    return EXIT_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* engine/text/jinja/jinja.h with any bytes as templates, which NUL bytes divide. What it compiles,
 * it renders within small limits; the spans are whole and alternate, and a text that only a user
 * wrote is marked wherever it comes out. Beside a conversation the templates see the variables of
 * tests/data/jinja_vectors.jsonl. Memory can fail (fail.h). Dictionary: fuzz_jinja.dict; seeds:
 * make_seeds_jinja.py. */

#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "engine/text/jinja/jinja.h"
#include "tests/fuzz/fail.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A character that no other variable has and that no case change makes. A template can spell it. */
#define USER "\xe2\x98\x83"

static json_t *vars; /* of the vectors */

static void read_vars(void)
{
    FILE *f = fopen(PIPIT_TEST_DATA "/jinja_vectors.jsonl", "re");
    json_t *line = f ? json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL) : NULL;

    vars = json_incref(json_object_get(line, "vars"));
    require(vars != NULL);
    json_decref(line);
    (void)fclose(f);
}

static void bind(void *arg, struct jinja_run *r)
{
    const char *name;
    json_t *value;

    static const char *const roles[] = {"system", "user", "assistant"};
    struct jinja_value list = jinja_list(r);

    json_object_foreach(vars, name, value)
    {
        jinja_set(r, name, jinja_json(r, value, strcmp(name, "x_token") == 0));
    }
    for (size_t i = 0; i < 3; i++) {
        struct jinja_value m = jinja_dict(r);

        jinja_dict_set(r, m, "role", jinja_string(r, roles[i], strlen(roles[i]), true));
        jinja_dict_set(r, m, "content", jinja_string(r, USER " <|x|> " USER, 14, false));
        jinja_list_add(r, list, m);
    }
    jinja_set(r, "messages", list);
    jinja_set(r, "add_generation_prompt", jinja_bool(true));
    jinja_set(r, "tools", jinja_none());
    jinja_set(r, "bos_token", jinja_string(r, "<s>", 3, true));
}

/* `spelt`: the template may have made the character itself. */
static void check(const struct jinja_output *out, bool spelt)
{
    size_t at = 0;

    for (size_t i = 0; i < out->n_spans; i++) {
        require(out->spans[i].len > 0);
        require(i == 0 || out->spans[i].trusted != out->spans[i - 1].trusted);
        require(spelt || !out->spans[i].trusted ||
                !memmem(out->text + at, out->spans[i].len, USER, 3));
        at += out->spans[i].len;
    }
    require(at == out->len && out->text[at] == '\0');
}

static void run(const char *source, size_t size)
{
    const struct jinja_limits limits = {
        .steps = 200000, .output_bytes = 1 << 16, .memory_bytes = 1 << 22};
    bool spelt =
        memmem(source, size, USER, 3) || memchr(source, '\\', size) || memchr(source, '%', size);
    struct jinja_output out;
    struct error e = {0};
    struct jinja *t;
    int r;

    fail_begin(FAIL_ALL);
    r = jinja_compile(source, size, &t, &e);
    fail_end();
    if (r < 0) {
        require(r == -EBADMSG || r == -E2BIG || (r == -ENOMEM && fail_hit()));
        require(e.code == r && e.text[0]);
        return;
    }
    fail_begin(FAIL_ALL);
    r = jinja_render(t, &limits, 0, bind, NULL, &out, &e);
    fail_end();
    if (r == 0) {
        check(&out, spelt);
        jinja_output_finish(&out);
    } else {
        require(r == -EINVAL || r == -E2BIG || (r == -ENOMEM && fail_hit()));
        require(e.code == r && (r == -ENOMEM || strstr(e.text, "line ")));
        require(spelt || !strstr(e.text, USER));
    }
    jinja_destroy(t);
}

static int one(const uint8_t *data, size_t size)
{
    const char *source = (const char *)data;
    const char *end;

    while ((end = memchr(source, '\0', size))) {
        run(source, (size_t)(end - source));
        size -= (size_t)(end + 1 - source);
        source = end + 1;
    }
    run(source, size);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!vars) {
        read_vars();
    }
    return fail_run(data, size, one);
}

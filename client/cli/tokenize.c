/* SPDX-License-Identifier: Apache-2.0 */
/* pipit tokenize and pipit detokenize. */

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/answer.h"

static uint32_t timeout_ms(const struct settings *s)
{
    double ms = s->timeout * 1000;

    return ms <= 0 ? 0 : ms > 4e9 ? 4000000000u : ms < 1 ? 1 : (uint32_t)ms;
}

/* Once connected, "timed out" is the limit that the user set. */
static int failed(const struct pipit_error *e)
{
    int code = report(e);

    return e->code == PIPIT_E_TIMED_OUT ? EXIT_CANCELLED : code;
}

static int flushed(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return EXIT_OK;
    }
    if (errno != EPIPE) {
        say("cannot write: %s", strerror(errno));
        return EXIT_INTERNAL;
    }
    return EXIT_CANCELLED;
}

static int print_ids(const struct settings *s, const int32_t *ids, size_t n)
{
    if (s->json) {
        json_t *list = json_array();
        json_t *obj = json_pack("{s:i, s:I, s:o}", "v", 1, "count", (json_int_t)n, "tokens", list);

        for (size_t i = 0; i < n; i++) {
            (void)json_array_append_new(list, json_integer(ids[i]));
        }
        (void)json_dumpf(obj, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(obj);
    } else if (s->count) {
        (void)printf("%zu\n", n);
    } else {
        for (size_t i = 0; i < n; i++) {
            (void)printf("%d\n", ids[i]);
        }
    }
    return flushed();
}

int tokenize_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    struct pipit_error e = {0};
    struct text text = {0};
    int32_t *ids = NULL;
    size_t n;
    int code = input_prompt(command_find("tokenize"), words, &text);

    if (code == 0) {
        code = cli_open(s, &c);
    }
    if (code == 0) {
        code = pipit_client_tokenize(c, text.data, text.len, timeout_ms(s), &ids, &n, &e) < 0
                   ? failed(&e)
                   : print_ids(s, ids, n);
    }
    free(ids);
    free(text.data);
    pipit_client_destroy(c);
    return code;
}

/* Ids from text, apart by white space or commas. */
static int parse_ids(const char *text, int32_t **ids, size_t *n, size_t *cap)
{
    const char *p = text + strspn(text, " \t\r\n,");

    while (*p) {
        size_t len = strcspn(p, " \t\r\n,");
        char *end;
        long v;

        errno = 0;
        v = strtol(p, &end, 10);
        if (end != p + len || errno || v < 0 || v > INT32_MAX) {
            return usage_error("detokenize", "'%.*s' is not a token id", len > 60 ? 60 : (int)len,
                               p);
        }
        if (*n == *cap) {
            size_t more = *cap ? *cap * 2 : 256;
            int32_t *grown = realloc(*ids, more * sizeof(**ids));

            if (!grown) {
                say("no memory for the ids");
                return EXIT_INTERNAL;
            }
            *ids = grown;
            *cap = more;
        }
        (*ids)[(*n)++] = (int32_t)v;
        p += len;
        p += strspn(p, " \t\r\n,");
    }
    return 0;
}

static int collect_ids(const struct option_list *words, int32_t **ids, size_t *n)
{
    size_t cap = 0;
    int code = 0;

    if (words->n && strcmp(words->v[0], "-") != 0 && words->v[0][0] != '@') {
        for (size_t i = 0; code == 0 && i < words->n; i++) {
            code = parse_ids(words->v[i], ids, n, &cap);
        }
    } else {
        struct text text = {0};

        code = input_prompt(command_find("detokenize"), words, &text);
        if (code == 0) {
            code = parse_ids(text.data, ids, n, &cap);
        }
        free(text.data);
    }
    return code;
}

int detokenize_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    struct pipit_error e = {0};
    int32_t *ids = NULL;
    char *text = NULL;
    size_t n = 0;
    size_t len = 0;
    int code = collect_ids(words, &ids, &n);

    if (code == 0) {
        code = cli_open(s, &c);
    }
    if (code == 0 && n) {
        code =
            pipit_client_detokenize(c, ids, n, timeout_ms(s), &text, &len, &e) < 0 ? failed(&e) : 0;
    }
    if (code == 0) {
        (void)fwrite(text, 1, len, stdout);
        (void)putchar('\n');
        code = flushed();
    }
    free(text);
    free(ids);
    pipit_client_destroy(c);
    return code;
}

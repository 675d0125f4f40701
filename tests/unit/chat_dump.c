/* SPDX-License-Identifier: Apache-2.0 */
/* Chat rendering as a filter, for comparing it with a template engine.
 *
 *   chat_dump MODEL.gguf [TEMPLATE]     TEMPLATE: a file instead of the model's own template
 *
 * Each line of standard input is a conversation: "role hex role hex ..." ("-" for an empty text);
 * the answer is the line of ids of the prompt for the assistant's next turn, or "! " and why not.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat.h"
#include "engine/text/tok.h"
#include "gguf/gguf.h"

enum { MAX_TEMPLATE = 1 << 16, MAX_MESSAGES = 64 };

static size_t unhex(char *text)
{
    size_t n = 0;

    for (size_t i = 0; text[i] && text[i] != '-'; i += 2) {
        const char digits[3] = {text[i], text[i + 1], '\0'};

        text[n++] = (char)strtoul(digits, NULL, 16);
    }
    return n;
}

static int detect(const struct gguf *g, const char *path, struct chat *c, struct error *reterr)
{
    static char text[MAX_TEMPLATE];
    FILE *f = path ? fopen(path, "re") : NULL;
    size_t n;

    if (!path) {
        return chat_open(g, c, reterr);
    }
    if (!f) {
        return error_set(reterr, -ENOENT, "%s cannot be read", path);
    }
    n = fread(text, 1, sizeof(text), f);
    (void)fclose(f);
    return chat_init(text, n, c, reterr);
}

static void dump(const struct chat *c, const struct tok *t, char *line)
{
    struct chat_message m[MAX_MESSAGES] = {0};
    struct error e = {0};
    int32_t *ids;
    size_t n = 0;
    char *rest;

    for (char *role = strtok_r(line, " \n", &rest); role && n < MAX_MESSAGES; n++) {
        char *text = strtok_r(NULL, " \n", &rest);

        if (!text || chat_role_parse(role, strlen(role), &m[n].role, &e) < 0) {
            break;
        }
        m[n].text = text;
        m[n].len = unhex(text);
        role = strtok_r(NULL, " \n", &rest);
    }
    if (e.code || chat_render(c, t, m, n, true, &ids, &n, &e) < 0) {
        (void)printf("! %s\n", e.text);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        (void)printf("%s%d", i ? " " : "", ids[i]);
    }
    (void)printf("\n");
    free(ids);
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct gguf *g;
    struct tok *t;
    struct chat c;
    char *line = NULL;
    size_t cap = 0;

    if (argc < 2 || gguf_open(argv[1], &g, &e) < 0 || tok_create(g, &t, &e) < 0 ||
        detect(g, argc > 2 ? argv[2] : NULL, &c, &e) < 0) {
        (void)fprintf(stderr, "%s\n", argc < 2 ? "usage: chat_dump MODEL.gguf [TEMPLATE]" : e.text);
        return EXIT_FAILURE;
    }
    gguf_close(g);
    while (getline(&line, &cap, stdin) >= 0) {
        dump(&c, t, line);
    }
    free(line);
    chat_finish(&c);
    tok_destroy(t);
    return EXIT_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* pipit session: the user's saved conversations. The daemon keeps them; here they are listed and
 * removed. They are begun and continued by 'pipit ask --session' and 'pipit chat --session'. */

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/answer.h"

static int written(void)
{
    if (fflush(stdout) || ferror(stdout)) {
        say("cannot write: %s", strerror(errno));
        return errno == EPIPE ? EXIT_CANCELLED : EXIT_INTERNAL;
    }
    return EXIT_OK;
}

/* A line of the daemon's list: name, tab, bytes, tab, seconds since 1970. */
static void print_line(const struct settings *s, char *line)
{
    char *bytes = strchr(line, '\t');
    char *when = bytes ? strchr(bytes + 1, '\t') : NULL;
    json_t *obj;

    if (!when) {
        return;
    }
    *bytes++ = '\0';
    *when++ = '\0';
    if (!s->json) {
        (void)printf("%-32s %12s bytes\n", line, bytes);
        return;
    }
    obj = json_pack("{s:s, s:I, s:I}", "name", line, "bytes", (json_int_t)strtoll(bytes, NULL, 10),
                    "modified", (json_int_t)strtoll(when, NULL, 10));
    if (obj) {
        (void)json_dumpf(obj, stdout, JSON_PRESERVE_ORDER);
        (void)putchar('\n');
        json_decref(obj);
    }
}

static int list(const struct settings *s, struct pipit_client *c)
{
    struct pipit_error e = {0};
    char *text = NULL;
    size_t len = 0;

    if (pipit_client_sessions(c, &text, &len, &e) < 0) {
        return report(&e);
    }
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n');

        if (end) {
            *end = '\0';
        }
        print_line(s, line);
        line = end ? end + 1 : line + strlen(line);
    }
    free(text);
    return written();
}

static int remove_all(struct pipit_client *c, const struct option_list *names)
{
    int code = EXIT_OK;

    for (size_t i = 1; i < names->n && code == EXIT_OK; i++) {
        struct pipit_error e = {0};

        if (pipit_client_session_remove(c, names->v[i], &e) < 0) {
            code = report(&e);
        }
    }
    return code;
}

int session_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    bool lists = words->n == 1 && strcmp(words->v[0], "list") == 0;
    bool removes = words->n > 1 && strcmp(words->v[0], "rm") == 0;
    int code;

    if (!lists && !removes) {
        return usage_error("session", "what is wanted: list, or rm NAME...");
    }
    code = cli_open(s, &c);
    if (code == 0) {
        code = lists ? list(s, c) : remove_all(c, words);
    }
    pipit_client_destroy(c);
    return code;
}

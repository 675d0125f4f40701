/* SPDX-License-Identifier: Apache-2.0 */
/* pipit requests: who asked what, without a text. */

#include <errno.h>
#include <jansson.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/answer.h"

enum { FIELDS = 10, BYTES_TEXT = 32 };
enum field { NUMBER, ID, USER, KIND, STATE, AGE, PLACE, NEW, IN, OUT };

static json_int_t number(const char *text)
{
    return (json_int_t)strtoll(text, NULL, 10);
}

static const char *user_name(const char *uid)
{
    const struct passwd *p = getpwuid((uid_t)strtoul(uid, NULL, 10));

    return p ? p->pw_name : uid;
}

static void print_json(char *const f[FIELDS])
{
    json_t *obj = json_pack("{s:s, s:I, s:s, s:s, s:f, s:I, s:I, s:I, s:I}", "id", f[ID], "uid",
                            number(f[USER]), "kind", f[KIND], "state", f[STATE], "age_s",
                            (double)number(f[AGE]) / 1e3, "place", number(f[PLACE]), "new_tokens",
                            number(f[NEW]), "bytes_in", number(f[IN]), "bytes_out", number(f[OUT]));

    if (obj) {
        (void)json_dumpf(obj, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
        (void)putchar('\n');
        json_decref(obj);
    }
}

static void print_text(char *const f[FIELDS])
{
    char in[BYTES_TEXT];
    char out[BYTES_TEXT];

    (void)printf(
        "%s %-10s %-10s %-7s %8.1f s  %5s %7s  %10s %10s\n", f[ID], user_name(f[USER]), f[KIND],
        f[STATE], (double)number(f[AGE]) / 1e3, strcmp(f[PLACE], "0") == 0 ? "-" : f[PLACE], f[NEW],
        bytes_text((uint64_t)number(f[IN]), in), bytes_text((uint64_t)number(f[OUT]), out));
}

/* Lines that lack a field are passed over; a newer daemon's may have more. */
static bool cut(char *line, char *ret[FIELDS])
{
    int n = 0;

    for (char *field = strsep(&line, "\t"); field && n < FIELDS; field = strsep(&line, "\t")) {
        ret[n++] = field;
    }
    return n == FIELDS;
}

static int list(const struct settings *s, struct pipit_client *c)
{
    struct pipit_error e = {0};
    char *text = NULL;
    size_t len = 0;
    char *next;

    if (pipit_client_requests(c, &text, &len, &e) < 0) {
        return report(&e);
    }
    next = text;
    if (!s->json && len > 0) {
        (void)printf("%-32s %-10s %-10s %-7s %8s    %5s %7s  %10s %10s\n", "ID", "USER", "KIND",
                     "STATE", "AGE", "PLACE", "TOKENS", "IN", "OUT");
    }
    for (char *line = strsep(&next, "\n"); line; line = strsep(&next, "\n")) {
        char *f[FIELDS];

        if (cut(line, f)) {
            (s->json ? print_json : print_text)(f);
        }
    }
    free(text);
    if (fflush(stdout) || ferror(stdout)) {
        say("cannot write: %s", strerror(errno));
        return errno == EPIPE ? EXIT_CANCELLED : EXIT_INTERNAL;
    }
    return EXIT_OK;
}

int requests_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    int code;

    if (words->n) {
        return usage_error("requests", "'%.60s' is not an option", words->v[0]);
    }
    code = cli_open(s, &c);
    if (code == 0) {
        code = list(s, c);
    }
    pipit_client_destroy(c);
    return code;
}

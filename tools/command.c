/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXIT_USAGE = 2, EXIT_NO_MEMORY = 4, EXIT_BAD_FILE = 6, EXIT_INTERNAL = 8 };

static int exit_code(int r)
{
    switch (r) {
    case 0:
        return EXIT_SUCCESS;
    case -EINVAL:
        return EXIT_USAGE;
    case -ENOMEM:
        return EXIT_NO_MEMORY;
    case -EBADMSG:
    case -ENOENT:
    case -EACCES:
        return EXIT_BAD_FILE;
    default:
        return EXIT_INTERNAL;
    }
}

static int print_help(const struct option_table *table, struct error *reterr)
{
    char *text = options_help(table);
    int r = text ? 0 : error_set(reterr, -ENOMEM, "no memory for the help text");

    if (text && (fputs(text, stdout) == EOF || fflush(stdout))) {
        r = error_set_errno(reterr, -errno, "cannot print the help text");
    }
    free(text);
    return r;
}

int command_main(const struct command *c, int argc, char **argv)
{
    struct option_list words = {0};
    struct error e = {0};
    int r = options_load(c->table, c->config, argc, argv, NULL, NULL,
                         c->takes_words ? &words : NULL, &e);

    if (!r) {
        r = *c->help ? print_help(c->table, &e) : c->run(c->config, &words, &e);
    }
    if (!r && (fflush(stdout) || ferror(stdout))) { /* an earlier flush may have failed */
        r = error_set(&e, -EIO, "cannot write all of the output");
    }
    if (r) {
        (void)fprintf(stderr, "%s: %s\n", c->name, e.text);
    }
    options_list_clear(&words);
    options_clear(c->table, c->config);
    return exit_code(r);
}

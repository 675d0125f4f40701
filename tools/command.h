/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_COMMAND_H
#define PIPIT_TOOLS_COMMAND_H

/* What the main() of every tool and bench program does: reads the command line, answers --help,
 * runs the command, prints its error on stderr behind the program's name, and turns it into the
 * exit code that the manual lists. */

#include <stdbool.h>

#include "base/options.h"

struct command {
    const char *name; /* of the program */
    const struct option_table *table;
    void
        *config; /* what the table's rows point into; holds the defaults that are not in the rows */
    const bool *help; /* the flag of --help, in *config */
    bool takes_words; /* may words that are no options follow? */
    /* 0 or a negative errno, with its cause. `words` is empty where none are taken. */
    int (*run)(const void *config, const struct option_list *words, struct error *reterr);
};

/* Exit code: 0; 2 the command line is wrong (-EINVAL); 4 no memory; 6 a file is missing, unreadable
 * or broken; 8 the rest. Frees what *config holds. */
int command_main(const struct command *c, int argc, char **argv);

#endif

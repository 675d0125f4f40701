/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_OPTIONS_H
#define PIPIT_BASE_OPTIONS_H

/* Settings as a table. One row per setting says its name, type, range, default and help; from the
 * rows come the command line (GNU style), the configuration file (`key = value`, keys are the
 * option names), the environment (PIPIT_NAME, dashes as underscores), and --help. A later source
 * wins: default, file, environment, command line.
 *
 *     struct config { int64_t threads; char *model; struct option_list overlays; bool help; };
 *     static const struct option_row rows[] = {
 *         {"model", 'm', OPTION_STRING, offsetof(struct config, model), .metavar = "FILE", ...},
 *         {"threads", 't', OPTION_INT, offsetof(struct config, threads), 0, 1024, .fallback = "0",
 *         ...},
 *     };
 *
 * Values in the config struct, by type:
 *     OPTION_FLAG    bool          --name, --no-name, --name=false; yes/no, on/off, true/false, 1/0
 *     OPTION_INT     int64_t
 *     OPTION_FLOAT   double        finite
 *     OPTION_BYTES   uint64_t      4096, 64K, 1.5GiB: K, M, G, T and KiB .. TiB are powers of 1024,
 *                                  KB .. TB powers of 1000
 *     OPTION_STRING  char *        owned by the struct; NULL when never set
 *     OPTION_ENUM    int           index into `words`
 *     OPTION_LIST    option_list   repeats; a later source replaces the whole list
 *
 * Errors are -EINVAL, texts name the option (or FILE:LINE and key, or the variable), the value and
 * the allowed range; an unknown name gets the nearest known one. -ENOMEM, or open(2)'s errno for a
 * file. The config struct begins zeroed and may be half filled after an error; options_clear()
 * frees what it holds either way. Not thread-safe; nothing here prints or reads the environment by
 * itself. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum option_type {
    OPTION_FLAG,
    OPTION_INT,
    OPTION_FLOAT,
    OPTION_BYTES,
    OPTION_STRING,
    OPTION_ENUM,
    OPTION_LIST,
};

enum {
    OPTION_ARGV_ONLY = 1, /* neither in files nor in the environment: --help, --config */
    OPTION_HIDDEN = 2,    /* not in --help */
};

struct option_list {
    char **v; /* owned, like its strings */
    size_t n;
};

struct option_row {
    const char *name; /* "lane-bytes": lower case, digits, dashes */
    char letter;      /* 'n' for -n, or 0 */
    enum option_type type;
    size_t offset; /* of the value in the config struct */
    /* Inclusive, for int, float and bytes; both 0: any. Infinity: no limit on that side. */
    double min;
    double max;
    const char *const *words; /* enum: NULL-terminated */
    const char *fallback;     /* the default, as a user would write it; NULL: zero */
    const char *metavar;      /* "FILE"; NULL: "N", "BYTES" ... by type */
    const char *help;         /* one or two lines without a final stop */
    unsigned flags;
    uint32_t commands; /* set of commands that know the row; 0: all */
};

struct option_table {
    const struct option_row *rows;
    size_t n_rows;      /* at most 256 */
    const char *usage;  /* "pipit ask [PROMPT|-|@FILE] [OPTION]..." */
    const char *intro;  /* what the program does, for --help; may be NULL */
    uint32_t command;   /* one bit: rows whose `commands` has it, or is 0, are known; 0: all rows */
};

/* Everything, in order of precedence: defaults, the file that the option `config_option` names on
 * the command line or in the environment (NULL: none), `env` (NULL: none), argv[1..). What is
 * not an option goes to *ret_positionals (NULL: refused), "-" included; "--" ends the options. */
int options_load(const struct option_table *t, void *config, int argc, char *const argv[],
                 char *const env[], const char *config_option,
                 struct option_list *ret_positionals, struct error *reterr) WARN_UNUSED;

/* The same, source by source. */
int options_defaults(const struct option_table *t, void *config, struct error *reterr) WARN_UNUSED;
int options_file(const struct option_table *t, void *config, const char *path,
                 struct error *reterr) WARN_UNUSED;
int options_environ(const struct option_table *t, void *config, char *const env[],
                    struct error *reterr) WARN_UNUSED;
int options_argv(const struct option_table *t, void *config, int argc, char *const argv[],
                 struct option_list *ret_positionals, struct error *reterr) WARN_UNUSED;

void options_clear(const struct option_table *t, void *config);
void options_list_clear(struct option_list *list);

/* Writes every row's value as `--name=value` (a list once an element, strings never set not at all)
 * and appends them to *args, which owns them. -ENOMEM, with what was appended so far in place. */
int options_args(const struct option_table *t, const void *config,
                 struct option_list *args) WARN_UNUSED;

/* Appends one formatted word, which the list then owns. -ENOMEM, with the list as it was. */
int options_arg(struct option_list *args, const char *fmt, ...) PRINTF_LIKE(2, 3) WARN_UNUSED;

/* The text of --help, to be freed by the caller; NULL without memory. */
char *options_help(const struct option_table *t);

/* For other parsers of values (policy texts): bytes as above. 0 or -EINVAL. */
int options_parse_bytes(const char *text, uint64_t *ret) WARN_UNUSED;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The sources of settings: defaults, configuration file, environment, command line. Each walks its
 * own syntax and hands (row, text) to options_row_set(). The command line is walked twice by
 * options_load(): first only for the name of the configuration file, because the file has to be
 * read before the words that override it.
 *
 * A file's key given twice is refused unless it is a list: the second line would silently win. On
 * the command line the last one wins, as everywhere. */

#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/options_row.h"

#define MAX_FILE_BYTES (1 << 20)

int options_defaults(const struct option_table *t, void *config, struct error *reterr)
{
    struct options_seen seen = {0};
    char where[80];

    for (size_t i = 0; i < t->n_rows; i++) {
        const struct option_row *row = &t->rows[i];

        if (!row->fallback || !options_row_known(t, row)) {
            continue;
        }
        (void)snprintf(where, sizeof(where), "default of --%s", row->name);
        int r = options_row_set(t, row, config, row->fallback, &seen, where, reterr);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

void options_clear(const struct option_table *t, void *config)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        void *value = (char *)config + t->rows[i].offset;

        if (t->rows[i].type == OPTION_STRING) {
            free(*(char **)value);
            *(char **)value = NULL;
        } else if (t->rows[i].type == OPTION_LIST) {
            options_list_clear(value);
        }
    }
}

static int unknown(const struct option_table *t, const char *where, const char *dashes,
                   const char *name, size_t n, struct error *reterr)
{
    const char *near = options_row_nearest(t, name, n);
    int shown = n > 60 ? 60 : (int)n;

    if (near) {
        return error_set(reterr, -EINVAL, "%sunknown option %s%.*s; did you mean %s%s?", where,
                         dashes, shown, name, dashes, near);
    }
    return error_set(reterr, -EINVAL, "%sunknown option %s%.*s", where, dashes, shown, name);
}

/* ---- configuration file ---- */

static char *trim(char *s)
{
    char *end = s + strlen(s);

    while (isspace((unsigned char)*s)) {
        s++;
    }
    while (end > s && isspace((unsigned char)end[-1])) {
        end--;
    }
    *end = '\0';
    return s;
}

static int file_line(const struct option_table *t, void *config, const char *path, int line_no,
                     char *line, struct options_seen *seen, struct error *reterr)
{
    const struct option_row *row;
    char where[200];
    char *key = trim(line);
    char *value = strchr(key, '=');

    (void)snprintf(where, sizeof(where), "%.140s:%d: ", path, line_no);
    if (*key == '\0' || *key == '#') {
        return 0;
    }
    if (!value) {
        return error_set(reterr, -EINVAL, "%sa line is 'key = value' or a comment", where);
    }
    *value++ = '\0';
    key = trim(key);
    value = trim(value);
    row = options_row_find(t, key, strlen(key));
    if (!row) {
        return unknown(t, where, "", key, strlen(key), reterr);
    }
    if (row->flags & OPTION_ARGV_ONLY) {
        return error_set(reterr, -EINVAL, "%s%s is for the command line only", where, row->name);
    }
    if (row->type != OPTION_LIST && seen->row[row - t->rows]) {
        return error_set(reterr, -EINVAL, "%s%s is given a second time", where, row->name);
    }
    size_t n = strlen(value);
    if (n >= 2 && value[0] == '"' && value[n - 1] == '"') { /* keeps spaces at the ends */
        value[n - 1] = '\0';
        value++;
    }
    (void)snprintf(where, sizeof(where), "%.140s:%d: %s", path, line_no, row->name);
    return options_row_set(t, row, config, value, seen, where, reterr);
}

int options_file(const struct option_table *t, void *config, const char *path, struct error *reterr)
{
    struct options_seen seen = {0};
    AUTO_FREE char *line = NULL;
    size_t room = 0;
    size_t total = 0;
    int line_no = 0;
    int r = 0;
    ssize_t n;
    FILE *f = fopen(path, "re");

    if (!f) {
        return error_set_errno(reterr, -errno, "cannot open the configuration file %.140s", path);
    }
    while (r == 0 && (n = getline(&line, &room, f)) >= 0) {
        line_no++;
        total += (size_t)n;
        if (total > MAX_FILE_BYTES || strlen(line) != (size_t)n) {
            r = error_set(reterr, -EINVAL, "%.140s:%d: not a configuration file (%s)", path,
                          line_no,
                          total > MAX_FILE_BYTES ? "larger than 1 MiB" : "it holds a zero byte");
            break;
        }
        r = file_line(t, config, path, line_no, line, &seen, reterr);
    }
    if (r == 0 && ferror(f)) {
        r = error_set_errno(reterr, -errno, "cannot read the configuration file %.140s", path);
    }
    (void)fclose(f);
    return r;
}

/* ---- environment ---- */

static void variable_name(const struct option_row *row, char *ret, size_t size)
{
    (void)snprintf(ret, size, "PIPIT_%s", row->name);
    for (char *p = ret; *p; p++) {
        *p = (char)(*p == '-' ? '_' : toupper((unsigned char)*p));
    }
}

static const char *variable_find(char *const env[], const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; env && env[i]; i++) {
        if (strncmp(env[i], name, n) == 0 && env[i][n] == '=') {
            return env[i] + n + 1;
        }
    }
    return NULL;
}

/* Unknown PIPIT_ variables are not refused: several programs share the prefix. */
int options_environ(const struct option_table *t, void *config, char *const env[],
                    struct error *reterr)
{
    struct options_seen seen = {0};
    char name[80];

    for (size_t i = 0; i < t->n_rows; i++) {
        const struct option_row *row = &t->rows[i];
        const char *text;

        if (!options_row_known(t, row) || (row->flags & OPTION_ARGV_ONLY)) {
            continue;
        }
        variable_name(row, name, sizeof(name));
        text = variable_find(env, name);
        int r = text ? options_row_set(t, row, config, text, &seen, name, reterr) : 0;
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

/* ---- command line ---- */

/* Where a walk over argv delivers: an option with its text, or (row NULL) a positional. */
struct walk {
    const struct option_table *t;
    int argc;
    char *const *argv;
    int next; /* index of the word to look at */
    int (*got)(struct walk *w, const struct option_row *row, const char *text, const char *where,
               struct error *reterr);
    void *config;
    struct options_seen seen;
    struct option_list *positionals;
    const char *wanted; /* walk_find(): name of the one option looked for */
    const char *found;
};

static int take_value(struct walk *w, const struct option_row *row, const char *attached,
                      const char *where, struct error *reterr)
{
    const char *text = attached;

    if (!text && row->type == OPTION_FLAG) {
        text = "true";
    }
    if (!text) {
        if (w->next >= w->argc) {
            return error_set(reterr, -EINVAL, "%s needs a value", where);
        }
        text = w->argv[w->next++];
    }
    return w->got(w, row, text, where, reterr);
}

static int walk_long(struct walk *w, const char *word, struct error *reterr)
{
    size_t n = strcspn(word, "=");
    const char *attached = word[n] == '=' ? word + n + 1 : NULL;
    const struct option_row *row = options_row_find(w->t, word, n);
    char where[80];

    if (!row && n > 3 && strncmp(word, "no-", 3) == 0 && !attached) {
        row = options_row_find(w->t, word + 3, n - 3);
        if (row && row->type == OPTION_FLAG) {
            return w->got(w, row, "false", word, reterr);
        }
        row = NULL;
    }
    if (!row) {
        return unknown(w->t, "", "--", word, n, reterr);
    }
    (void)snprintf(where, sizeof(where), "option --%s", row->name);
    return take_value(w, row, attached, where, reterr);
}

static int walk_letters(struct walk *w, const char *letters, struct error *reterr)
{
    char where[80];

    for (const char *p = letters; *p; p++) {
        const struct option_row *row = NULL;

        for (size_t i = 0; i < w->t->n_rows && !row; i++) {
            if (w->t->rows[i].letter == *p && options_row_known(w->t, &w->t->rows[i])) {
                row = &w->t->rows[i];
            }
        }
        if (!row) {
            return error_set(reterr, -EINVAL, "unknown option -%c in '%.60s'", *p, letters - 1);
        }
        (void)snprintf(where, sizeof(where), "option -%c (--%s)", *p, row->name);
        if (row->type != OPTION_FLAG) { /* the rest of the word, or the next word */
            return take_value(w, row, p[1] ? p + 1 : NULL, where, reterr);
        }
        int r = take_value(w, row, NULL, where, reterr);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int walk(struct walk *w, struct error *reterr)
{
    bool options_end = false;
    int r = 0;

    w->next = 1;
    while (r == 0 && w->next < w->argc) {
        const char *word = w->argv[w->next++];

        if (options_end || word[0] != '-' || word[1] == '\0') {
            r = w->got(w, NULL, word, "", reterr);
        } else if (strcmp(word, "--") == 0) {
            options_end = true;
        } else if (word[1] == '-') {
            r = walk_long(w, word + 2, reterr);
        } else {
            r = walk_letters(w, word + 1, reterr);
        }
    }
    return r;
}

static int got_set(struct walk *w, const struct option_row *row, const char *text,
                   const char *where, struct error *reterr)
{
    if (row) {
        return options_row_set(w->t, row, w->config, text, &w->seen, where, reterr);
    }
    if (!w->positionals) {
        return error_set(reterr, -EINVAL, "'%.100s' is not an option", text);
    }
    if (options_list_add(w->positionals, text) < 0) {
        return error_set(reterr, -ENOMEM, "no memory for the command line");
    }
    return 0;
}

static int got_find(struct walk *w, const struct option_row *row, const char *text,
                    const char *where, struct error *reterr)
{
    if (row && strcmp(row->name, w->wanted) == 0) {
        w->found = text;
    }
    return 0;
}

int options_argv(const struct option_table *t, void *config, int argc, char *const argv[],
                 struct option_list *ret_positionals, struct error *reterr)
{
    struct walk w = {.t = t, .argc = argc, .argv = argv, .got = got_set, .config = config};
    struct option_list positionals = {0};
    int r;

    w.positionals = ret_positionals ? &positionals : NULL;
    r = walk(&w, reterr);
    if (r < 0) {
        options_list_clear(&positionals);
        return r;
    }
    if (ret_positionals) {
        *ret_positionals = positionals;
    }
    return 0;
}

int options_load(const struct option_table *t, void *config, int argc, char *const argv[],
                 char *const env[], const char *config_option, struct option_list *ret_positionals,
                 struct error *reterr)
{
    struct walk w = {.t = t, .argc = argc, .argv = argv, .got = got_find, .wanted = config_option};
    char name[80];
    int r = options_defaults(t, config, reterr);

    if (r == 0 && config_option) {
        const struct option_row *row = options_row_find(t, config_option, strlen(config_option));

        r = walk(&w, reterr);
        if (r == 0 && row && !w.found) {
            variable_name(row, name, sizeof(name));
            w.found = variable_find(env, name);
        }
        if (r == 0 && w.found) {
            r = options_file(t, config, w.found, reterr);
        }
    }
    if (r == 0) {
        r = options_environ(t, config, env, reterr);
    }
    if (r == 0) {
        r = options_argv(t, config, argc, argv, ret_positionals, reterr);
    }
    return r;
}

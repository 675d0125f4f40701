/* SPDX-License-Identifier: Apache-2.0 */
/* The text of --help: usage, introduction, then one entry per row, names on the left, help wrapped
 * on the right with the default and the range in brackets. 80 columns. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/options_row.h"

enum { LEFT = 30, WIDTH = 80 };

static const char *metavar(const struct option_row *row)
{
    static const char *const by_type[] = {"", "N", "X", "BYTES", "TEXT", "WORD", "TEXT"};

    return row->metavar ? row->metavar : by_type[row->type];
}

/* Words of `text` between columns LEFT and WIDTH, beginning at column `at`. */
static void wrap(FILE *f, const char *text, int at)
{
    while (*text) {
        int n = (int)strcspn(text, " \n");

        if (at > LEFT && at + 1 + n > WIDTH) {
            (void)fprintf(f, "\n%*s", LEFT, "");
            at = LEFT;
        }
        at += fprintf(f, "%s%.*s", at > LEFT ? " " : "", n, text);
        text += n;
        text += strspn(text, " \n");
    }
    (void)fputc('\n', f);
}

static void entry(FILE *f, const struct option_row *row)
{
    char left[96];
    char right[1024];
    char range[256];
    size_t n;
    int at = row->letter ? snprintf(left, sizeof(left), "  -%c, --%s", row->letter, row->name)
                         : snprintf(left, sizeof(left), "      --%s", row->name);

    if (row->type != OPTION_FLAG) {
        at += snprintf(left + at, sizeof(left) - (size_t)at, " %s%s", metavar(row),
                       row->type == OPTION_LIST ? "..." : "");
    }
    (void)snprintf(right, sizeof(right), "%s", row->help ? row->help : "");
    options_row_range(row, range, sizeof(range));
    n = strlen(right);
    if (row->fallback && row->type != OPTION_FLAG && *range) {
        (void)snprintf(right + n, sizeof(right) - n, " [%s; default %s]", range, row->fallback);
    } else if (row->fallback && row->type != OPTION_FLAG) {
        (void)snprintf(right + n, sizeof(right) - n, " [default %s]", row->fallback);
    } else if (*range) {
        (void)snprintf(right + n, sizeof(right) - n, " [%s]", range);
    } else if (row->fallback && strcmp(row->fallback, "true") == 0) {
        (void)snprintf(right + n, sizeof(right) - n, " [default on; --no-%s]", row->name);
    }
    if (at + 2 > LEFT) {
        (void)fprintf(f, "%s\n%*s", left, LEFT, "");
    } else {
        (void)fprintf(f, "%-*s", LEFT, left);
    }
    wrap(f, right, LEFT);
}

char *options_help(const struct option_table *t)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    if (!f) {
        return NULL;
    }
    (void)fprintf(f, "usage: %s\n", t->usage);
    if (t->intro) {
        (void)fprintf(f, "\n%s\n", t->intro);
    }
    (void)fputc('\n', f);
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct option_row *row = &t->rows[i];

        if (options_row_known(t, row) && !(row->flags & OPTION_HIDDEN)) {
            entry(f, row);
        }
    }
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

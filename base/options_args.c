/* SPDX-License-Identifier: Apache-2.0 */
/* Settings written back as a command line, for a program that has the same rows. Numbers are
 * written so that reading them gives the same value. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/options.h"

int options_arg(struct option_list *args, const char *fmt, ...)
{
    char **v = realloc(args->v, (args->n + 1) * sizeof(char *));
    va_list ap;
    int rc;

    if (!v) {
        return -ENOMEM;
    }
    args->v = v;
    va_start(ap, fmt);
    rc = vasprintf(&args->v[args->n], fmt, ap);
    va_end(ap);
    if (rc < 0) {
        return -ENOMEM;
    }
    args->n++;
    return 0;
}

static int append_text(struct option_list *args, const char *name, const char *value)
{
    return options_arg(args, "--%s=%s", name, value);
}

static int append_value(struct option_list *args, const struct option_row *row, const void *value)
{
    const struct option_list *list = value;
    char text[32];
    int rc = 0;

    switch (row->type) {
    case OPTION_FLAG:
        return append_text(args, row->name, *(const bool *)value ? "true" : "false");
    case OPTION_ENUM:
        return append_text(args, row->name, row->words[*(const int *)value]);
    case OPTION_STRING:
        return *(char *const *)value ? append_text(args, row->name, *(char *const *)value) : 0;
    case OPTION_LIST:
        for (size_t i = 0; rc == 0 && i < list->n; i++) {
            rc = append_text(args, row->name, list->v[i]);
        }
        return rc;
    case OPTION_INT:
        (void)snprintf(text, sizeof(text), "%lld", (long long)*(const int64_t *)value);
        break;
    case OPTION_BYTES:
        (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)*(const uint64_t *)value);
        break;
    case OPTION_FLOAT:
        (void)snprintf(text, sizeof(text), "%.17g", *(const double *)value);
        break;
    }
    return append_text(args, row->name, text);
}

int options_args(const struct option_table *t, const void *config, struct option_list *args)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < t->n_rows; i++) {
        rc = append_value(args, &t->rows[i], (const char *)config + t->rows[i].offset);
    }
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One row of an option table: lookup by name, the nearest name to a mistyped one (edit distance
 * with transpositions), and the parsers of values with their ranges. A value is stored only when
 * all of its text was understood. */

#include "base/options_row.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/word.h"

bool options_row_known(const struct option_table *t, const struct option_row *row)
{
    return t->command == 0 || row->commands == 0 || (row->commands & t->command) != 0;
}

const struct option_row *options_row_find(const struct option_table *t, const char *name, size_t n)
{
    assert(t->n_rows <= OPTIONS_MAX_ROWS);
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct option_row *row = &t->rows[i];

        if (options_row_known(t, row) && strlen(row->name) == n &&
            memcmp(row->name, name, n) == 0) {
            return row;
        }
    }
    return NULL;
}

const char *options_row_nearest(const struct option_table *t, const char *name, size_t n)
{
    const char *nearest = NULL;
    size_t best = word_far(n);

    for (size_t i = 0; i < t->n_rows; i++) {
        const struct option_row *row = &t->rows[i];
        size_t n_row = strlen(row->name);
        /* An abbreviation is nearer than any typing error. */
        bool begins = n >= 2 && n < n_row && memcmp(row->name, name, n) == 0;
        size_t d = begins ? 0 : word_distance(name, n, row->name, n_row);

        if (!options_row_known(t, row) || (row->flags & OPTION_HIDDEN)) {
            continue;
        }
        if (d < best || (d == best && !nearest)) {
            best = d;
            nearest = row->name;
        }
    }
    return nearest;
}

static void print_limit(const struct option_row *row, double v, char *ret, size_t size)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;

    if (row->type != OPTION_BYTES) {
        (void)snprintf(ret, size, "%.10g", v);
        return;
    }
    for (; u < 4 && v >= 1024 && fmod(v, 1024) == 0; u++) {
        v /= 1024;
    }
    (void)snprintf(ret, size, "%.0f%s", v, units[u]);
}

void options_row_range(const struct option_row *row, char *ret, size_t size)
{
    char min[48];
    char max[48];
    size_t used = 0;

    *ret = '\0';
    if (row->type == OPTION_ENUM) {
        for (int i = 0; row->words[i] && used < size; i++) {
            const char *sep = i == 0 ? "" : row->words[i + 1] ? ", " : " or ";
            int r = snprintf(ret + used, size - used, "%s%s", sep, row->words[i]);

            used += r > 0 ? (size_t)r : 0;
        }
        return;
    }
    if (row->type == OPTION_FLAG || row->type == OPTION_STRING || row->type == OPTION_LIST ||
        (row->min == 0 && row->max == 0)) {
        return;
    }
    print_limit(row, row->min, min, sizeof(min));
    print_limit(row, row->max, max, sizeof(max));
    if (isinf(row->max)) {
        (void)snprintf(ret, size, "at least %s", min);
    } else if (isinf(row->min)) {
        (void)snprintf(ret, size, "at most %s", max);
    } else {
        (void)snprintf(ret, size, "%s..%s", min, max);
    }
}

static bool in_range(const struct option_row *row, double v)
{
    return (row->min == 0 && row->max == 0) || (v >= row->min && v <= row->max);
}

static int parse_flag(const char *text, bool *ret)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};

    for (int i = 0; i < 4; i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *ret = strcasecmp(text, yes[i]) == 0;
            return 0;
        }
    }
    return -EINVAL;
}

static bool begins_number(const char *text)
{
    return isdigit((unsigned char)text[0]) ||
           ((text[0] == '-' || text[0] == '+' || text[0] == '.') &&
            (isdigit((unsigned char)text[1]) || text[1] == '.'));
}

int options_parse_bytes(const char *text, uint64_t *ret)
{
    /* clang-format off */
    static const struct { const char *unit; double factor; } units[] = {
        {"", 1}, {"B", 1},
        {"K", 0x1p10}, {"KiB", 0x1p10}, {"KB", 1e3}, {"M", 0x1p20}, {"MiB", 0x1p20}, {"MB", 1e6},
        {"G", 0x1p30}, {"GiB", 0x1p30}, {"GB", 1e9}, {"T", 0x1p40}, {"TiB", 0x1p40}, {"TB", 1e12},
    };
    /* clang-format on */
    char *end;

    if (!isdigit((unsigned char)text[0])) {
        return -EINVAL;
    }
    errno = 0;
    unsigned long long whole = strtoull(text, &end, 10);
    if (*end == '\0' && errno == 0) {
        *ret = whole; /* a double would lose the low bits */
        return 0;
    }
    double v = strtod(text, &end);
    while (*end == ' ') {
        end++;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcasecmp(end, units[i].unit) == 0) {
            v *= units[i].factor;
            if (!(v < 0x1p64)) {
                return -EINVAL;
            }
            *ret = (uint64_t)v;
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_int(const struct option_row *row, const char *text, int64_t *ret)
{
    char *end;

    errno = 0;
    long long v = begins_number(text) ? strtoll(text, &end, 10) : 0;
    if (!begins_number(text) || errno != 0 || *end != '\0' || !in_range(row, (double)v)) {
        return -EINVAL;
    }
    *ret = v;
    return 0;
}

static int parse_float(const struct option_row *row, const char *text, double *ret)
{
    char *end;
    double v = begins_number(text) ? strtod(text, &end) : 0;

    if (!begins_number(text) || *end != '\0' || !isfinite(v) || !in_range(row, v)) {
        return -EINVAL;
    }
    *ret = v;
    return 0;
}

static int parse_enum(const struct option_row *row, const char *text, int *ret)
{
    for (int i = 0; row->words[i]; i++) {
        if (strcmp(row->words[i], text) == 0) {
            *ret = i;
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_string(const char *text, char **ret)
{
    char *copy = strdup(text);

    if (!copy) {
        return -ENOMEM;
    }
    free(*ret);
    *ret = copy;
    return 0;
}

int options_list_add(struct option_list *list, const char *text)
{
    char **v = realloc(list->v, (list->n + 1) * sizeof(*v));

    if (!v) {
        return -ENOMEM;
    }
    list->v = v;
    v[list->n] = strdup(text);
    if (!v[list->n]) {
        return -ENOMEM;
    }
    list->n++;
    return 0;
}

void options_list_clear(struct option_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        free(list->v[i]);
    }
    free(list->v);
    *list = (struct option_list){0};
}

static int refuse(const struct option_row *row, const char *text, const char *where,
                  struct error *reterr)
{
    static const char *const kinds[] = {
        "true or false", "a whole number", "a number", "a size such as 64MiB", "", "", ""};
    char range[160];

    options_row_range(row, range, sizeof(range));
    if (row->type == OPTION_ENUM) {
        return error_set(reterr, -EINVAL, "%s: '%.60s' is not %s", where, text, range);
    }
    if (*range) {
        return error_set(reterr, -EINVAL, "%s: '%.60s' is not %s, %s", where, text,
                         kinds[row->type], range);
    }
    return error_set(reterr, -EINVAL, "%s: '%.60s' is not %s", where, text, kinds[row->type]);
}

int options_row_set(const struct option_table *t, const struct option_row *row, void *config,
                    const char *text, struct options_seen *seen, const char *where,
                    struct error *reterr)
{
    void *value = (char *)config + row->offset;
    uint64_t bytes;
    int r = -EINVAL;

    switch (row->type) {
    case OPTION_FLAG:
        r = parse_flag(text, value);
        break;
    case OPTION_INT:
        r = parse_int(row, text, value);
        break;
    case OPTION_FLOAT:
        r = parse_float(row, text, value);
        break;
    case OPTION_BYTES:
        r = options_parse_bytes(text, &bytes);
        if (r == 0 && !in_range(row, (double)bytes)) {
            r = -EINVAL;
        }
        if (r == 0) {
            *(uint64_t *)value = bytes;
        }
        break;
    case OPTION_STRING:
        r = parse_string(text, value);
        break;
    case OPTION_ENUM:
        r = parse_enum(row, text, value);
        break;
    case OPTION_LIST:
        if (!seen->row[row - t->rows]) {
            options_list_clear(value);
        }
        r = options_list_add(value, text);
        break;
    }
    seen->row[row - t->rows] = true;
    if (r == -ENOMEM) {
        return error_set(reterr, r, "%s: no memory for its value", where);
    }
    return r < 0 ? refuse(row, text, where, reterr) : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_OPTIONS_ROW_H
#define PIPIT_BASE_OPTIONS_ROW_H

/* Inside base/options*.c: finding a row and setting its value from text. */

#include "base/options.h"

enum { OPTIONS_MAX_ROWS = 256 };

/* Which rows one source has set: lists are replaced by a source's first mention, then appended. */
struct options_seen {
    bool row[OPTIONS_MAX_ROWS];
};

/* `n` bytes of name; NULL when no row of this command has it. */
const struct option_row *options_row_find(const struct option_table *t, const char *name, size_t n);
bool options_row_known(const struct option_table *t, const struct option_row *row);

/* The known name nearest to a mistyped one, or NULL when none is near. */
const char *options_row_nearest(const struct option_table *t, const char *name, size_t n);

/* `where` ("option --threads", "a.conf:3: threads") begins the error's text. */
int options_row_set(const struct option_table *t, const struct option_row *row, void *config,
                    const char *text, struct options_seen *seen, const char *where,
                    struct error *reterr) WARN_UNUSED;

/* "1..64", "at least 1", "auto, ref or cpu": empty when anything goes. */
void options_row_range(const struct option_row *row, char *ret, size_t size);

int options_list_add(struct option_list *list, const char *text) WARN_UNUSED;

#endif

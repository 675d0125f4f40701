/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_CLIENT_CLI_BATCH_H
#define PIPIT_CLIENT_CLI_BATCH_H

/* pipit batch: batch.c keeps the window of lines and its loop; batch_line.c makes a request of a
 * line. */

#include <jansson.h>

#include "client/cli/answer.h"

/* A line's JSON object checked and made a request: settings first, then what the object says. 0, or
 * -EINVAL with the cause (*ret is then NULL), -ENOMEM. */
int batch_line_request(const struct settings *s, struct pipit_client *c, json_t *line,
                       struct pipit_request **ret, struct error *reterr) WARN_UNUSED;

/* json.c: a line of output: json_last() with the line's number and, where it has one, its
 * custom_id. */
void json_batch(struct out *o, const struct pipit_client *c, const struct answer *a, size_t index,
                json_t *custom_id);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_BULK_H
#define PIPIT_DAEMON_FRONT_BULK_H

/* Answers too long for a record: a text of the front's own, written into a lease of the client's. */

#include <stddef.h>
#include <stdint.h>

struct lane;
struct lease;

/* For lane_send_error(): NULL for none. */
const uint8_t *bulk_id(const uint8_t id[16]);

/* The e2c lease of that name, or NULL after telling the client that it is not its own. `id`: the
 * question's, which every answer bears; zero for none. */
struct lease *bulk_lease(struct lane *l, const uint8_t id[16], uint32_t buf, uint32_t generation);

/* LANE_BULK and LANE_DONE, or an error when the text (`what`, for its words) does not fit. */
void bulk_text(struct lane *l, const uint8_t id[16], const struct lease *lease, uint32_t buf,
               const char *what, const char *text, size_t n);

#endif

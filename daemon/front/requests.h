/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_REQUESTS_H
#define PIPIT_DAEMON_FRONT_REQUESTS_H

/* The list of requests that run or wait, for people: everybody's for root and the daemon's own
 * user, else the asking user's. Never a text. */

#include <stdbool.h>

struct front;
struct lane;
struct lane_record;

/* May this client see and end everybody's requests? */
bool requests_admin(const struct lane *l);

/* LANE_REQUESTS_GET */
void requests_serve(struct front *f, struct lane *l, const struct lane_record *rec);

#endif

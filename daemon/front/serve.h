/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_SERVE_H
#define PIPIT_DAEMON_FRONT_SERVE_H

/* What each record of a client means. */

#include <stdbool.h>

struct lane;
struct lane_record;

/* A checked record. true: the lane is to be closed (its answer says why). */
bool serve_record(struct lane *l, struct lane_record *r);

#endif

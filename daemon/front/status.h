/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_STATUS_H
#define PIPIT_DAEMON_FRONT_STATUS_H

/* What the front says about itself: hello and pong, status, metrics, and systemd's STATUS=. */

#include <stdint.h>

struct front;
struct lane;
struct lane_record;

uint32_t status_state(const struct front *f); /* enum lane_state */

/* A LANE_HELLO_REPLY or LANE_PONG but for the lane's own fields. */
void status_hello(const struct front *f, struct lane_record *ret, uint32_t type);

/* As the client of the lane may see it (figures.h). */
void status_record(const struct front *f, const struct lane *l, struct lane_record *ret);

/* LANE_METRICS_GET: Prometheus text into the named lease, LANE_BULK and LANE_DONE, or LANE_ERROR. */
void status_metrics(struct front *f, struct lane *l, const struct lane_record *r);

/* STATUS= for systemd, when something has changed. */
void status_notify(struct front *f);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_GATEWAY_H
#define PIPIT_DAEMON_FRONT_GATEWAY_H

/* Supervision of pipit-gateway in plain runs (under systemd it is a unit of its own that connects
 * to gateway.sock).
 *
 * The front starts `pipit-gateway --lane-fd 3 --runtime-dir DIR`: descriptor 3 is one end of a
 * socketpair on which the front is a lane's peer, as if the gateway had connected: the gateway says
 * LANE_HELLO first. That lane is privileged (LANE_F_PRINCIPAL is allowed). The gateway binds
 * DIR/zmq.sock and ends when descriptor 3 reports the end of the connection. When it dies, for whatever reason, it is
 * started again at once, then (if it lives less than a second) after 50 ms at most; its requests
 * are orphans for 10 s, so that its clients can RESUME. */

#include <stdbool.h>

#include "base/error.h"

struct front;
struct gateway;

/* Starts the gateway; without a program to start, says so and goes on (0). */
int gateway_create(struct front *f, struct gateway **ret, struct error *reterr) WARN_UNUSED;
void gateway_destroy(struct gateway *g); /* ends the child; takes NULL */

/* A child was reaped: true if it was the gateway, which is then started again. */
bool gateway_reaped(struct gateway *g, int pid, int status);

#endif

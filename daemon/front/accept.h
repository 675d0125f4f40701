/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_ACCEPT_H
#define PIPIT_DAEMON_FRONT_ACCEPT_H

/* The doors: lane.sock, and gateway.sock where systemd made one. */

#include "base/error.h"

struct front;

int accept_start(struct front *f, struct error *reterr) WARN_UNUSED;
void accept_stop(struct front *f);

#endif

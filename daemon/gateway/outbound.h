/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_OUTBOUND_H
#define PIPIT_DAEMON_GATEWAY_OUTBOUND_H

/* From the front to clients: a record becomes an Event of whoever waits for it. */

#include "daemon/gateway/gateway.h"

void outbound_record(struct gateway *g, const struct lane_record *r);

#endif

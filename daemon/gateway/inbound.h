/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_INBOUND_H
#define PIPIT_DAEMON_GATEWAY_INBOUND_H

/* From clients to the front: one message becomes a record, or an Error to its sender. */

#include "daemon/gateway/gateway.h"

/* Needs a free request buffer (door_buf_free). `body` stays the caller's. */
void inbound_message(struct gateway *g, const struct router_peer *peer, zmq_msg_t *body);

/* Tells the sender of a message that is not one frame. */
void inbound_malformed(struct gateway *g, const struct router_peer *peer);

#endif

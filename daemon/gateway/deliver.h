/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_DELIVER_H
#define PIPIT_DAEMON_GATEWAY_DELIVER_H

/* Events to clients: packing, sending, what happens with those who read slowly or have gone. */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/gateway/gateway.h"
#include "proto/zmq/fault.h"
#include "proto/zmq/pipit.pb-c.h"

/* Limits of what waits for one client that does not read, for all of them, and for how long. */
enum {
    DELIVER_CLIENT_BYTES = 256 << 10,
    DELIVER_ALL_BYTES = 64 << 20,
    DELIVER_STALL_S = 30,
    DELIVER_RETRY_MS = 10,
    DELIVER_ORPHAN_S = 10,
};

/* Packs and sends `e` to a client (0 or a stale handle: nobody). `last`: this event ends its request
 * and is kept even for a client that does not read. */
void deliver_event(struct gateway *g, uint64_t client, const Pipit__Event *e, bool last);

/* Sends an Event that is packed already. */
void deliver_packed(struct gateway *g, uint64_t client, const uint8_t *data, size_t size);

/* Tells a sender what was wrong with its message; id may be NULL. */
void deliver_fault(struct gateway *g, uint64_t client, const uint8_t *id, const struct fault *f);

/* The same to a peer that is no client (refused identity, full table); if it cannot be sent at
 * once it is not sent. */
void deliver_refusal(struct gateway *g, const struct router_peer *p, const uint8_t *id,
                     const struct fault *f);

/* Tries again with every client that has something waiting. */
void deliver_retry(struct gateway *g);

/* Cancels detached requests whose client has been away too long. */
void deliver_orphans(struct gateway *g);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_ITEMS_H
#define PIPIT_DAEMON_GATEWAY_ITEMS_H

/* A checked Request as the items (proto/lane/tlv.h) that a lane's request carries. */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/lane/record.h"
#include "proto/zmq/pipit.pb-c.h"

/* The kind of request that a body asks for, or 0: it is none that runs in the engine. */
uint32_t items_kind(const Pipit__Request *r);

/* The saved conversation that it names, or NULL. */
const ProtobufCBinaryData *items_session(const Pipit__Request *r);

/* Writes the items; -E2BIG when they do not fit `cap`. */
int items_write(const Pipit__Request *r, uint8_t *buf, size_t cap, uint32_t *ret_bytes) WARN_UNUSED;

#endif

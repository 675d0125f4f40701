/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_OUTGOING_H
#define PIPIT_DAEMON_FRONT_OUTGOING_H

/* Records for the engine that its socket has not taken yet, in order. The ring is larger than
 * everything that can be under way at once (a request, a cancel and a credit for each sequence and
 * tokenizing request, an opening and a closing for each lane); an engine that lets it fill hangs.
 */

#include <stdbool.h>

#include "base/error.h"
#include "proto/lane/record.h"

struct outgoing;

struct outgoing *outgoing_create(void);    /* NULL without memory */
void outgoing_destroy(struct outgoing *o); /* takes NULL */
void outgoing_clear(struct outgoing *o);

/* Adds a record, with duplicates of two descriptors or with none (-1). A credit replaces one of the
 * same request that still waits. -ENOBUFS when the ring is full, -EMFILE. */
int outgoing_push(struct outgoing *o, const struct lane_record *r, int fd0, int fd1) WARN_UNUSED;

/* Adds a record with one descriptor, which is the ring's from then on, also after -ENOBUFS. */
int outgoing_give(struct outgoing *o, const struct lane_record *r, int fd) WARN_UNUSED;

/* Sends what the socket takes: true when nothing is left. */
bool outgoing_flush(struct outgoing *o, int fd);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_SUCCESSOR_H
#define PIPIT_DAEMON_FRONT_SUCCESSOR_H

/* What a front leaves to the next: its journal, a descriptor of which systemd keeps
 * (FileDescriptorStoreMax= in the unit). A front that is killed is started again with it, takes
 * over its requests, and clients RESUME them; one that ends in order takes it back. Without systemd
 * there is nobody to keep it, and the death of the front ends its requests. */

#include "base/error.h"

struct front;

/* The predecessor's journal where there is one that can be used, else a new one; kept by systemd.
 */
int successor_open(struct front *f, struct error *reterr) WARN_UNUSED;
/* Its requests, once there is a loop and an engine. */
void successor_adopt(struct front *f);
/* At an end in order: there will be no heir. */
void successor_disown(struct front *f);

#endif

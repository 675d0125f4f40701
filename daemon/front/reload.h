/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_RELOAD_H
#define PIPIT_DAEMON_FRONT_RELOAD_H

/* `systemctl reload`: the configuration is read again. A mistake in it (the log names file, line,
 * key and the allowed range) changes nothing; otherwise what may change while running does at once,
 * and the log names what waits for a restart. */

#include <stdbool.h>

#include "base/error.h"

struct front;

void reload_run(struct front *f);

/* For a new model: could the configuration be used? Then, when nothing runs any more, what counts
 * for the next engine process is taken over, too; a mistake made meanwhile keeps the old one in
 * force. */
int reload_check(const struct front *f, struct error *reterr) WARN_UNUSED;
void reload_engine(struct front *f);

/* The engine became ready under what reload_engine() took over, or all ends: that stays. */
void reload_settle(struct front *f);
/* Or it refused it: true if another configuration was in force before, which is again, and `cause`
 * is kept for whoever asks. */
bool reload_take_back(struct front *f, const char *cause);

#endif

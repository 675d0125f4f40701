/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_RELOAD_H
#define PIPIT_DAEMON_FRONT_RELOAD_H

/* `systemctl reload`: the configuration is read again. A mistake in it (the log names file, line,
 * key and the allowed range) changes nothing; otherwise what may change while running does at once,
 * and the log names what waits for a restart. */

#include "base/error.h"

struct front;

void reload_run(struct front *f);

/* For a new model: could the configuration be used? Then, when nothing runs any more, what counts
 * for the next engine process is taken over, too; a mistake made meanwhile keeps the old one in
 * force. */
int reload_check(const struct front *f, struct error *reterr) WARN_UNUSED;
void reload_engine(struct front *f);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_RELOAD_H
#define PIPIT_DAEMON_FRONT_RELOAD_H

/* `systemctl reload`: the configuration is read again. A mistake in it (the log names file, line,
 * key and the allowed range) changes nothing; otherwise what may change while running does at once,
 * and the log names what waits for a restart. */

struct front;

void reload_run(struct front *f);

#endif

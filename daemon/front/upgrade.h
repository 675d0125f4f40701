/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_UPGRADE_H
#define PIPIT_DAEMON_FRONT_UPGRADE_H

/* A package that is replaced while its daemon runs. The engine and the gateway that start
 * afterwards are of the new version; this front is of the old one. It hands over: no waiting
 * request is given to the engine, those that run get 30 s for their end, then the process ends with
 * an exit code by which systemd starts the next front. That one has sockets and journal, and
 * clients RESUME (successor.h).
 *
 * Where our own file was not replaced, the other is the old one: it is refused, and is the new one
 * at its next start. */

#include <stdbool.h>

struct front;

/* pipit-engine ends with it when it was started by a front of another version. */
enum { EXIT_OTHER_VERSION = 7 };

/* Somebody is of another version, or may be: `why`. True: this front hands over. False: its file is
 * the one it was started from, or there is no service manager to start the next. */
bool upgrade_begin(struct front *f, const char *why);

/* After every batch of events: hands over when nothing runs, and does not return then. */
void upgrade_check(struct front *f);

#endif

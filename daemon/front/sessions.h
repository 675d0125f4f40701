/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_SESSIONS_H
#define PIPIT_DAEMON_FRONT_SESSIONS_H

/* Saved conversations, the front's part: whose they are. Each uid has a folder of mode 0700,
 * sessions/UID, below the state directory (a request that names a tenant has no session, so nobody
 * has more room, or more to write, by naming many); the engine gets the folder's descriptor with a request, and writes and reads in it
 * (daemon/worker/session.h). The front lists and removes files and never opens one.
 *
 * The state directory is --state-dir, else $STATE_DIRECTORY (systemd's), else $XDG_STATE_HOME/pipit,
 * else ~/.local/state/pipit, each but the first with a folder of the instance. It is made when first
 * needed; where that fails, requests with sessions are refused, and nothing else. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/lane/record.h"

struct config;
struct front;
struct lane;

/* A descriptor of the uid's folder, made if need be; or a negative errno. */
int sessions_folder(const struct config *c, uint32_t uid, struct error *reterr);

/* What is left of what this uid's saves may write, over whichever door; false where there is no limit or it is not known.
 * Makes nothing. */
struct budget;
bool sessions_budget(const struct config *c, uint32_t uid, struct budget *ret);

/* LANE_SESSION, about the sessions of `uid`: LANE_BULK and LANE_DONE, or LANE_ERROR. */
void sessions_serve(struct front *f, struct lane *l, uint32_t uid, const struct lane_record *r);

#endif

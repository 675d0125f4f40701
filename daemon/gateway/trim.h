/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_TRIM_H
#define PIPIT_DAEMON_GATEWAY_TRIM_H

/* Gives back what malloc keeps. libzmq holds a message's frames until its last one has come, and
 * bounds neither their number nor their sum; when such a peer is gone they are free, but lie
 * between what is not, and malloc keeps their pages for good: 197 MB of them with 0.1 in use. */

#include <stdint.h>

enum { TRIM_AFTER_MS = 2000 };

struct trim {
    int64_t next_ns; /* 0: nothing has happened since the last time */
};

/* Something happened: in TRIM_AFTER_MS pages are given back, if that was not due already. */
void trim_wish(struct trim *t, int64_t now_ns);

/* Gives back where that is due. */
void trim_due(struct trim *t, int64_t now_ns);

/* Until it is due; -1: it is not wished for. */
long trim_timeout_ms(const struct trim *t, int64_t now_ns);

#endif

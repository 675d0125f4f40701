/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_BUDGET_H
#define PIPIT_BASE_BUDGET_H

/* A limit on bytes written a day, which survives restarts and reboots: flash wears by what is
 * written to it, however little of that stays.
 *
 *     used   grows by what is written, and shrinks by limit / 86400 in each second: what may be
 *            written at once is a day's worth, in the long run limit bytes a day
 *
 * It is kept as it is, whatever the limit was meanwhile: above the limit (which was larger, or
 * none) it shrinks by used / 86400 in each second, so that a day after the last write all is
 * forgiven; with no limit that comes to what a day writes.
 *
 * A day is 24 hours in which the machine runs, asleep or awake (CLOCK_BOOTTIME and the boot's id),
 * so no clock has to be right: of the time while it was off nothing is known, and what ran before
 * the last reboot counts up to the last write only. Both err towards writing less.
 *
 * It lies in a file BUDGET_FILE of the folder it is about, in two slots of a page each, with a sum,
 * of which the older is overwritten: a write that is cut short leaves the other. It is not synced:
 * what the kernel has, a crash of ours does not take, and a power cut forgets some seconds of
 * writing at most. One process writes it, any may read. */

#include <stdint.h>

#include "base/error.h"

#define BUDGET_FILE ".writes"

struct budget_time {
    uint8_t boot[16]; /* of this start of the machine; zeros: not known */
    int64_t ns;       /* since then */
};

struct budget {
    uint64_t limit;   /* bytes a day; 0: any number */
    uint64_t used;    /* bytes that are not forgiven yet, at `at`; may be over the limit */
    uint64_t written; /* bytes in all, ever */
    uint64_t serial;  /* of the slot; 0: nothing has been written yet */
    struct budget_time at;
};

void budget_now(struct budget_time *ret);

/* What the folder's file says at `now`, under this limit. A file that is missing, or of which
 * neither slot is sound, is a fresh budget. 0, or what the system says. Makes nothing. */
int budget_read(int dir, uint64_t limit, const struct budget_time *now,
                struct budget *ret) WARN_UNUSED;

uint64_t budget_left(const struct budget *b); /* bytes; UINT64_MAX where there is no limit */

/* Seconds until so many bytes are left, rounded up; 0: they are; -1: never, it is over the limit.
 */
int64_t budget_wait_s(const struct budget *b, uint64_t bytes);

/* Counts bytes and writes the file, which is made where it is not. -EDQUOT, and nothing is counted,
 * when they are not left; or what the system says. */
int budget_charge(int dir, struct budget *b, uint64_t bytes) WARN_UNUSED;

/* Takes back some of what was charged and not written after all; `b` as it is now. */
int budget_give_back(int dir, struct budget *b, uint64_t bytes) WARN_UNUSED;

#endif

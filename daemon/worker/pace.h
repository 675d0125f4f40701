/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_PACE_H
#define PIPIT_DAEMON_WORKER_PACE_H

/* How long the text in progress may give no sign of life: four times what texts of its length have
 * taken lately. So a long text is not taken for one that hangs because the ones before were short,
 * and one that was slow for a reason of its own (a suspended machine) does not excuse all that
 * follow: what is known rises at once and falls by a quarter of the difference with each text.
 * Texts below PACE_LEAST count as that long: they tell of wake-ups, not of reading.
 *
 * begin and end: the thread that reads. limit: any thread. */

#include <stdatomic.h>
#include <stdint.h>

enum { PACE_LEAST = 16 << 10 };

struct pace {
    atomic_int_least64_t limit_ns; /* of the text in progress; 0: nothing is known yet */
    uint64_t kib; /* of the text in progress */
    int64_t ns_per_kib;
};

void pace_begin(struct pace *p, uint64_t bytes);
/* The longest that it gave none. */
void pace_end(struct pace *p, int64_t took_ns);
int64_t pace_limit_ns(const struct pace *p);

#endif

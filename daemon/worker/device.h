/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_DEVICE_H
#define PIPIT_DAEMON_WORKER_DEVICE_H

/* At boot a GPU's driver may be there before its device files are (udev, nvidia-persistenced). An
 * engine that started in between would run on the CPU for as long as it lives, or fail.
 *
 * Seen on no machine yet: written from the driver's documented files, tested with made-up folders.
 */

#include <stdbool.h>

enum { DEVICE_WAIT_MS = 15000 };

/* Is a card bound to the nvidia driver, or this a Tegra, while the files through which it is used
 * are missing? `root`: "" for this machine's /sys, /proc and /dev. */
bool device_is_late(const char *root);

/* Is the machine up for less than two minutes? Later on files that are not there will not come: a
 * container without the card, or a host that makes them when they are first used. */
bool device_is_booting(void);

#endif

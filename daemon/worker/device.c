/* SPDX-License-Identifier: Apache-2.0 */
/* Three places: a folder a card below the driver's in /sys; the board's names in the device tree,
 * which are strings one behind the other; and the device files themselves. */

#include "daemon/worker/device.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 512, TREE_BYTES = 1024, MOST_CARDS = 32, BOOT_S = 120 };

static bool exists(const char *root, const char *path)
{
    char full[PATH_BYTES];
    int n = snprintf(full, sizeof(full), "%s%s", root, path);

    return n > 0 && (size_t)n < sizeof(full) && access(full, F_OK) == 0;
}

/* Cards are links named by their PCI address, 0000:01:00.0, beside the driver's own files. */
static bool has_card(const char *root)
{
    char full[PATH_BYTES];
    int n = snprintf(full, sizeof(full), "%s/sys/bus/pci/drivers/nvidia", root);
    DIR *d = n > 0 && (size_t)n < sizeof(full) ? opendir(full) : NULL;
    bool found = false;

    if (!d) {
        return false;
    }
    for (const struct dirent *e; !found && (e = readdir(d));) {
        found = strlen(e->d_name) > 6 && e->d_name[4] == ':';
    }
    (void)closedir(d);
    return found;
}

static bool is_tegra(const char *root)
{
    char full[PATH_BYTES];
    char names[TREE_BYTES];
    int len = snprintf(full, sizeof(full), "%s/proc/device-tree/compatible", root);
    FILE *f = len > 0 && (size_t)len < sizeof(full) ? fopen(full, "re") : NULL;
    size_t n = f ? fread(names, 1, sizeof(names), f) : 0;

    if (f) {
        (void)fclose(f);
    }
    return n > 0 && memmem(names, n, "nvidia,tegra", 12) != NULL;
}

/* Any of them: a container may have been given another than the first. */
static bool has_card_file(const char *root)
{
    char path[32];
    bool found = false;

    for (int i = 0; i < MOST_CARDS && !found; i++) {
        (void)snprintf(path, sizeof(path), "/dev/nvidia%d", i);
        found = exists(root, path);
    }
    return found;
}

bool device_is_booting(void)
{
    struct timespec t;

    return clock_gettime(CLOCK_BOOTTIME, &t) == 0 && t.tv_sec < BOOT_S;
}

bool device_is_late(const char *root)
{
    if (has_card(root)) {
        return !exists(root, "/dev/nvidiactl") || !has_card_file(root);
    }
    return is_tegra(root) && !exists(root, "/dev/nvmap");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/worker/device.h, with folders that look like a machine's /sys, /proc and /dev. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/worker/device.h"

static char root[64];

static void begin(void)
{
    (void)strcpy(root, "/tmp/pipit-device-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void end(void)
{
    char command[128];

    (void)snprintf(command, sizeof(command), "rm -rf '%s'", root);
    cr_assert_eq(system(command), 0);
}

/* A file, and the folders above it. */
static void make(const char *path, const char *text, size_t n)
{
    char full[256];
    FILE *f;

    (void)snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        (void)mkdir(full, 0700);
        *p = '/';
    }
    f = fopen(full, "we");
    cr_assert_not_null(f, "%s", full);
    cr_assert_eq(fwrite(text, 1, n, f), n);
    (void)fclose(f);
}

Test(device, a_machine_without_one_waits_for_nothing, .init = begin, .fini = end)
{
    cr_assert_not(device_is_late(root));
    make("/sys/bus/pci/drivers/nouveau/0000:01:00.0", "", 0);
    make("/sys/bus/pci/drivers/nvidia/module", "", 0);
    make("/proc/device-tree/compatible", "raspberrypi,4\0brcm,bcm2711", 27);
    cr_assert_not(device_is_late(root));
}

Test(device, a_card_is_late_until_its_files_are_there, .init = begin, .fini = end)
{
    make("/sys/bus/pci/drivers/nvidia/0000:01:00.0", "", 0);
    cr_assert(device_is_late(root));
    make("/dev/nvidiactl", "", 0);
    cr_assert(device_is_late(root));
    make("/dev/nvidia-uvm", "", 0);
    cr_assert(device_is_late(root));
    make("/dev/nvidia3", "", 0);
    cr_assert_not(device_is_late(root));
}

Test(device, a_tegra_is_known_by_its_second_name, .init = begin, .fini = end)
{
    make("/proc/device-tree/compatible", "nvidia,p3768-0000+p3767-0000\0nvidia,tegra234", 44);
    cr_assert(device_is_late(root));
    make("/dev/nvmap", "", 0);
    cr_assert_not(device_is_late(root));
}

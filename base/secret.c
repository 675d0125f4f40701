/* SPDX-License-Identifier: Apache-2.0 */
/* A limit of 1 byte forbids more than one of 0: no file is so small, and the kernel starts no crash
 * reporter for it, while it ignores 0 where core_pattern is a pipe. */

#include "base/secret.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/resource.h>

int secret_no_core(void)
{
    if (setrlimit(RLIMIT_CORE, &(struct rlimit){1, 1}) == 0) {
        return 0;
    }
    return setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}) ? -errno : 0;
}

void secret_hide(void)
{
    (void)prctl(PR_SET_DUMPABLE, 0);
}

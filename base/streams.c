/* SPDX-License-Identifier: Apache-2.0 */
#include "base/streams.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int streams_hold(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        int got;

        if (fcntl(fd, F_GETFD) >= 0) {
            continue;
        }
        /* The lowest number that is free, which is this one: those below it are open by now. */
        got = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        if (got < 0) {
            return -errno;
        }
    }
    return 0;
}

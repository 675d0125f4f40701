/* SPDX-License-Identifier: Apache-2.0 */
/* libzmq 4.3.4 (src/thread.cpp) sets the scheduling of every thread that it starts to what it is
 * already, and aborts when the kernel refuses. Our sandbox does refuse: the whole group of calls
 * that change priorities and limits is closed to this process. So the loader finds this function
 * before libc's; nothing else here calls it. It belongs to the executable, not to a library of
 * ours: an archive's member would not be linked for a reference from a shared library. */

#include <pthread.h>

__attribute__((visibility("default"))) int pthread_setschedparam(pthread_t thread, int policy,
                                                                 const struct sched_param *param)
{
    (void)thread;
    (void)policy;
    (void)param;
    return 0;
}

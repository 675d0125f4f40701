/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded into the daemon's processes by the soaks (LD_PRELOAD), in builds with AddressSanitizer:
 * who connects to the abstract socket "pipit-live-PID" is told the bytes of heap that are in use,
 * as text. What such a process has resident says little: the sanitizer's allocator keeps the pages
 * of what was freed, and their shadow (an eighth) is never given back, so a gateway that held 600
 * MB of a hostile peer's frames for a second and freed them stays at 700 MB with one of them in
 * use.
 *
 * A thread of its own, which sleeps in accept(2) and ends with the process. Not for production:
 * whoever may connect to abstract sockets may ask. */

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static void *serve(void *arg)
{
    int fd = (int)(ptrdiff_t)arg;

    for (;;) {
        int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        char text[32];
        int n;

        if (peer < 0) {
            return NULL;
        }
        n = snprintf(text, sizeof(text), "%zu\n", __sanitizer_get_current_allocated_bytes());
        (void)send(peer, text, (size_t)n, MSG_NOSIGNAL);
        (void)close(peer);
    }
}

__attribute__((constructor)) static void start(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_t thread;
    sigset_t all;
    sigset_t before;
    int n;

    if (!__sanitizer_get_current_allocated_bytes || fd < 0) {
        return;
    }
    n = snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1, "pipit-live-%d", (int)getpid());
    (void)sigfillset(&all); /* the process's signals are its own threads' */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    if (bind(fd, (struct sockaddr *)&a,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) ||
        listen(fd, 4) || pthread_create(&thread, NULL, serve, (void *)(ptrdiff_t)fd)) {
        (void)fprintf(stderr, "live_heap: cannot be asked\n");
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

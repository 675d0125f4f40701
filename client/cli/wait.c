/* SPDX-License-Identifier: Apache-2.0 */
/* pipit wait: until a daemon answers and its model can be used, or until it is known that this will
 * not be. A daemon started by hand ends when its first load fails; it leaves the cause in its
 * runtime directory. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/cli/answer.h"

/* A note that a daemon left which could not start (daemon/front/rundir.h) NOTE_SECONDS ago
 * or less. In a folder of ours, or of whoever the folder's sockets would be. */
#define NOTE_SECONDS 30.0

struct failure {
    char text[512];
    struct timespec at; /* written */
    int64_t seen_ns;    /* first; 0: none */
};

static bool read_failure(const char *socket_path, struct failure *ret)
{
    char path[256];
    char text[512];
    struct timespec now;
    struct stat folder;
    struct stat st;
    char *slash;
    ssize_t n;

    (void)snprintf(path, sizeof(path) - sizeof("failure"), "%s", socket_path);
    slash = strrchr(path, '/');
    if (!slash) {
        return false;
    }
    *slash = 0;
    if (stat(path, &folder)) {
        return false;
    }
    memcpy(slash, "/failure", sizeof("/failure"));
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != folder.st_uid) {
        return false;
    }
    (void)clock_gettime(CLOCK_REALTIME, &now);
    n = read(fd, text, sizeof(text) - 1);
    if (n <= 0 || difftime(now.tv_sec, st.st_mtim.tv_sec) > NOTE_SECONDS) {
        return false;
    }
    text[n] = 0;
    text[strcspn(text, "\n")] = 0;
    slash = strchr(text, ' ');
    ret->at = st.st_mtim;
    (void)snprintf(ret->text, sizeof(ret->text), "%s", slash ? slash + 1 : text);
    for (char *c = ret->text; *c; c++) {
        *c = (unsigned char)*c < ' ' || *c == 127 ? '?' : *c;
    }
    return true;
}

/* Nobody answers: was there one, which could not load its model? A daemon that starts meanwhile
 * removes the note once it has the folder's lock, so the same note is seen twice, some time apart.
 * One from before we began may be of the last try, and the daemon we are to wait for on its way to
 * the lock: it is given longer. (To try the lock would make that daemon's own try fail.) */
#define FAILURE_NS INT64_C(500000000)
#define OLD_FAILURE_NS INT64_C(3000000000)

static int look_for_failure(struct pipit_client *c, const struct timespec *start, struct failure *f)
{
    const struct timespec was = f->at;
    struct pipit_place place;
    bool found = false;
    bool old;

    for (size_t i = 0; !found && pipit_client_place(c, i, &place) == 0; i++) {
        bool ours = place.err != -EPERM && place.err != -ENAMETOOLONG;

        found = ours && read_failure(place.path, f);
    }
    if (!found) {
        f->seen_ns = 0;
        return -1;
    }
    if (f->seen_ns == 0 || was.tv_sec != f->at.tv_sec || was.tv_nsec != f->at.tv_nsec) {
        f->seen_ns = clock_ns();
    }
    old = f->at.tv_sec < start->tv_sec ||
          (f->at.tv_sec == start->tv_sec && f->at.tv_nsec < start->tv_nsec);
    if (clock_ns() - f->seen_ns < (old ? OLD_FAILURE_NS : FAILURE_NS)) {
        return -1;
    }
    say("the daemon ended: %s", f->text);
    return EXIT_MODEL;
}

/* -1: not yet. */
static int look(const struct settings *s, struct pipit_client *c, struct pipit_error *e)
{
    const struct pipit_info *info = pipit_client_info(c);
    int r = info ? pipit_client_ping(c, e) : -ENOTCONN;

    if (r < 0) {
        r = pipit_client_connect(c, e);
    }
    if (r == -EINVAL) {
        return usage_error("wait", "%s", e->text);
    }
    info = pipit_client_info(c);
    if (r < 0 || !info) {
        return -1;
    }
    switch (info->state) {
    case PIPIT_STATE_UNLOADED: /* loads at the first use */
        if (s->load) {
            e->code = 0;
            return pipit_client_control(c, PIPIT_CONTROL_LOAD, 0, e) < 0 && e->code != 0 &&
                           e->code != PIPIT_E_SHUTDOWN
                       ? report(e)
                       : -1;
        }
        return EXIT_OK;
    case PIPIT_STATE_READY:
        return EXIT_OK;
    case PIPIT_STATE_FAILED:
        return report_model(c);
    default:
        e->code = 0; /* it answers: what is missing now is the model */
        return -1;
    }
}

/* After so long it says what it waits for. */
#define WAIT_QUIET_NS INT64_C(2000000000)

static const char *missing(const struct pipit_error *e)
{
    return e->code ? e->text : "the model is still being loaded";
}

int wait_run(struct settings *s, const struct option_list *words)
{
    struct pipit_client *c = NULL;
    struct pipit_error e = {0};
    const int64_t start_ns = clock_ns();
    const int64_t deadline_ns = start_ns + (int64_t)(s->timeout * 1e9);
    int64_t seen_ns = start_ns; /* a daemon, or its socket */
    struct failure failure = {0};
    struct timespec start;
    bool told = false;
    int code =
        words->n ? usage_error("wait", "'%.60s' is not an option", words->v[0]) : cli_client(s, &c);

    if (code == 0) {
        uint32_t ms = s->timeout > 0 && s->timeout < 5 ? (uint32_t)(s->timeout * 1000) + 1 : 5000;

        code = pipit_client_set_timeout_ms(c, ms) < 0 || pipit_client_set_reconnect_ms(c, 0) < 0 ||
                       interrupt_init() < 0
                   ? EXIT_INTERNAL
                   : -1;
    }
    (void)clock_gettime(CLOCK_REALTIME, &start);
    while (code < 0) {
        struct pollfd p = {.fd = interrupt_fd(), .events = POLLIN};
        int signal;

        code = look(s, c, &e);
        if (code < 0 && e.code == PIPIT_E_UNREACHABLE) {
            code = look_for_failure(c, &start, &failure);
        }
        if (code >= 0) {
            break;
        }
        if (s->timeout > 0 && clock_ns() >= deadline_ns) {
            say("not ready within %g s: %s", s->timeout, missing(&e));
            code = EXIT_CANCELLED;
            break;
        }
        seen_ns = e.code == PIPIT_E_UNREACHABLE ? seen_ns : clock_ns();
        if (s->timeout == 0 && (double)(clock_ns() - seen_ns) > s->patience * 1e9) {
            code = report(&e);
            break;
        }
        if (!told && failure.seen_ns == 0 && clock_ns() - start_ns > WAIT_QUIET_NS) {
            told = true;
            say("waiting: %s", missing(&e));
        }
        (void)poll(&p, 1, 50);
        signal = interrupt_take();
        if (signal) {
            code = signal == SIGINT ? EXIT_INTERRUPTED : EXIT_CANCELLED;
        }
    }
    pipit_client_destroy(c);
    return code;
}

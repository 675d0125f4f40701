/* SPDX-License-Identifier: Apache-2.0 */
/* poll(2) over the socket and the records' eventfd. The engine must never make the front wait and
 * the front never makes us wait long, so there is no buffer here but the rings: when the socket is
 * full one record is held, when the ring of commands is full the socket is not read.
 *
 * A cancel goes to the worker as a command, which it reads between two steps. A step that has then
 * run for INTERRUPT_NS is interrupted; shorter ones are left alone, since an interrupted batch
 * costs the others in it time. */

#include "daemon/worker/io.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cputime.h"
#include "base/log.h"
#include "base/sock.h"
#include "daemon/worker/mapping.h"
#include "daemon/worker/worker.h"

#define INTERRUPT_NS 20000000
#define PULSE_NS 1000000000
enum { READ_BURST = 64, FULL_WAIT_MS = 2 };

struct io {
    struct worker *w;
    int fd;
    struct lane_record held; /* taken from the ring, not yet by the socket */
    bool holds;
    bool of_ring;           /* what it holds; else a heartbeat of its own */
    struct command waiting; /* taken from the socket, not yet by the ring */
    bool waits;
    struct lane_record state; /* the last LANE_ENGINE_STATE */
    int64_t state_ns;
    int threads[CPUTIME_THREADS]; /* states of our threads, still to be handed to the front */
    int n_threads;
    bool knows_threads;
    int64_t interrupt_ns; /* when a step that began before is to be interrupted; 0: never */
    bool gone;
};

static void note_state(struct io *io, const struct lane_record *r)
{
    if (r->h.type == LANE_ENGINE_STATE) {
        io->state = *r;
        io->state_ns = clock_ns();
    }
}

/* The front tells hung from starved by our threads' states. All that work in steps exist when the
 * model is ready; the front has them before it hears that. 0 when it does, else as sock_send. */
static int tell_threads(struct io *io)
{
    struct lane_record r;
    int rc = 0;

    if (!io->knows_threads) {
        io->knows_threads = true;
        io->n_threads = cputime_open_threads(io->threads, CPUTIME_THREADS);
    }
    lane_record_init(&r, LANE_ENGINE_THREADS, NULL);
    while (rc == 0 && io->n_threads > 0) {
        int n = io->n_threads < SOCK_MAX_FDS ? io->n_threads : SOCK_MAX_FDS;
        const int *fds = io->threads + io->n_threads - n;

        rc = sock_send(io->fd, &r, sizeof(r), fds, n);
        for (int i = 0; i < n && rc != -EAGAIN; i++) {
            (void)close(fds[i]);
        }
        io->n_threads -= rc == -EAGAIN ? 0 : n;
    }
    return rc;
}

static bool says_ready(const struct lane_record *r)
{
    return r->h.type == LANE_ENGINE_STATE && r->e_state.state == LANE_READY;
}

/* false: the socket is full, or gone. */
static bool send_held(struct io *io)
{
    int rc;

    if (!io->holds) {
        return true;
    }
    rc = says_ready(&io->held) ? tell_threads(io) : 0;
    if (rc == 0) {
        rc = sock_send(io->fd, &io->held, sizeof(io->held), NULL, 0);
    }
    if (rc == -EAGAIN) {
        return false;
    }
    io->gone = rc != 0;
    io->holds = false;
    if (rc == 0 && io->of_ring) {
        atomic_fetch_add(&io->w->n_sent, 1);
    }
    return rc == 0;
}

/* Every state that goes out says how the thread that reads texts is. */
static void look_at_texts(struct io *io, struct lane_record *r)
{
    if (r->h.type == LANE_ENGINE_STATE) {
        r->e_state.text_ms = texts_stuck_ms(&io->w->texts, clock_ns());
    }
}

static bool waits(const struct io *io)
{
    return atomic_load(&io->w->waits) || atomic_load(&io->w->files);
}

static bool busy(const struct io *io)
{
    return atomic_load(&io->w->step_ns) != 0 || waits(io);
}

/* In a long step the worker says nothing: its heartbeat is told for it. Where every request waits
 * for its reader, or the disk for a session, there is no step, and nothing is wrong. */
static bool beat(struct io *io, int64_t now)
{
    bool due = busy(io) && !io->holds && io->state_ns && now - io->state_ns >= PULSE_NS;

    if (due) {
        engine_heartbeat(atomic_load(&io->w->engine), &io->state.e_state.last_step_ns,
                         &io->state.e_state.longest_step_ns);
        int64_t files = atomic_load(&io->w->files_ns);

        if (files > io->state.e_state.last_step_ns) {
            io->state.e_state.last_step_ns = files;
        }
        if (waits(io)) {
            io->state.e_state.last_step_ns = now;
        }
        io->held = io->state;
        look_at_texts(io, &io->held);
        io->holds = true;
        io->of_ring = false;
        io->state_ns = now;
        (void)send_held(io);
    }
    return due && io->holds;
}

/* The worker's go first: somebody waits for each of them, and of a text that is tokenized there may
 * be 100,000. The heartbeat goes before both, however many there are. */
static void send_records(struct io *io)
{
    while (send_held(io) && !beat(io, clock_ns())) {
        io->of_ring = ring_pop(&io->w->records, &io->held);
        io->holds = io->of_ring || ring_pop(&io->w->texts.records, &io->held);
        if (!io->holds) {
            return;
        }
        look_at_texts(io, &io->held);
        note_state(io, &io->held);
    }
}

/* The front's order to end: also while the model loads, and in the middle of a step. */
static void drain(struct io *io)
{
    struct engine *e = atomic_load(&io->w->engine);

    atomic_store(&io->w->drain, true);
    if (e) {
        engine_interrupt(e);
    }
}

static void pass_on(struct io *io)
{
    struct engine *e = atomic_load(&io->w->engine);

    if (io->waits && ring_push(&io->w->commands, &io->waiting)) {
        io->waits = false;
        if (e) {
            engine_notice(e);
        }
    }
}

static void take_record(struct io *io, struct lane_record *r, const int *fds, int n_fds)
{
    struct error e = {0};

    io->waiting = (struct command){.rec = *r, .dir = -1};
    if (r->h.type == LANE_ENGINE_LANE_OPEN) {
        if (n_fds != 2 || mapping_make(&r->e_lane, fds, &io->waiting, &e)) {
            log_error("%s", n_fds == 2 ? e.text : "a lane without its descriptors");
            return;
        }
    } else if (r->h.type == LANE_ENGINE_REQUEST && n_fds == 1) {
        io->waiting.dir = fds[0];
    } else if (r->h.type == LANE_ENGINE_DRAIN) {
        drain(io);
    } else if (r->h.type == LANE_ENGINE_CANCEL && io->interrupt_ns == 0) {
        io->interrupt_ns = clock_ns() + INTERRUPT_NS;
    }
    io->waits = true;
    pass_on(io);
}

static void read_records(struct io *io)
{
    for (int i = 0; i < READ_BURST && !io->waits; i++) {
        struct lane_record r;
        struct error e = {0};
        int fds[SOCK_MAX_FDS];
        int n_fds = 0;
        ssize_t n = sock_recv(io->fd, &r, sizeof(r), fds, &n_fds);

        if (n == -EAGAIN) {
            return;
        }
        if (n <= 0) {
            io->gone = true;
            return;
        }
        if (lane_record_check(&r, (uint64_t)n, LANE_PEER_FRONT_TO_ENGINE, &e)) {
            log_error("from the front: %s", e.text);
            io->gone = true;
            return;
        }
        take_record(io, &r, fds, n_fds);
    }
}

/* Is the step that a cancelled request may be in still running? */
static void interrupt_step(struct io *io, int64_t now)
{
    int64_t began;

    if (io->interrupt_ns == 0 || now < io->interrupt_ns) {
        return;
    }
    began = atomic_load(&io->w->step_ns);
    if (began && began < io->interrupt_ns - INTERRUPT_NS) {
        engine_interrupt(atomic_load(&io->w->engine));
    }
    io->interrupt_ns = 0;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int timeout_ms(const struct io *io, int64_t now)
{
    int64_t at = INT64_MAX;

    if (io->waits) {
        return FULL_WAIT_MS;
    }
    if (io->interrupt_ns) {
        at = io->interrupt_ns;
    }
    if (busy(io)) {
        at = least(at, now + PULSE_NS);
    }
    if (at == INT64_MAX) {
        return -1;
    }
    return at <= now ? 0 : (int)((at - now + 999999) / 1000000);
}

int io_run(struct worker *w, int front_fd)
{
    struct io io = {.w = w, .fd = front_fd};
    int code = -1;

    while (!io.gone) {
        struct pollfd p[3] = {{.fd = front_fd},
                              {.fd = w->records.wake_fd, .events = POLLIN},
                              {.fd = w->texts.records.wake_fd, .events = POLLIN}};
        bool empty;

        /* Read before the ring is emptied: when it says that the thread has ended, all its records
         * are in the ring. */
        code = atomic_load(&w->exit_code);
        send_records(&io);
        if (code >= 0 && !io.holds && ring_empty(&w->records) && ring_empty(&w->texts.records)) {
            return code;
        }
        p[0].events = (short)((io.waits ? 0 : POLLIN) | (io.holds ? POLLOUT : 0));
        empty = ring_sleep(&w->records);
        empty = (ring_sleep(&w->texts.records) && empty) || io.holds;
        if (poll(p, 3, empty ? timeout_ms(&io, clock_ns()) : 0) < 0 && errno != EINTR) {
            log_error("poll: %s", strerror(errno));
            return 8;
        }
        ring_awake(&w->records);
        ring_awake(&w->texts.records);
        pass_on(&io);
        if (p[0].revents & (POLLIN | POLLHUP | POLLERR)) {
            read_records(&io);
        }
        interrupt_step(&io, clock_ns());
        (void)beat(&io, clock_ns());
    }
    /* The front is gone; nobody is left to answer. */
    return code >= 0 ? code : 8;
}

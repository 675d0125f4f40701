/* SPDX-License-Identifier: Apache-2.0 */
/* The client handle: making it, its settings, the first connection, and the questions about the
 * daemon as a whole. The life of the connection is in link.c, reading in dispatch.c. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "client/lib/client.h"

enum {
    METRICS_BYTES = 65536,
    REQUESTS_BYTES = 32 << 10,
    SESSIONS_BYTES = 16 << 10,
    SESSIONS_MOST = 128 << 10
};

int pipit_client_create(struct pipit_client **ret)
{
    struct pipit_client *c = calloc(1, sizeof(*c));
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = WAKE_TIMER};
    int r;

    if (!c) {
        return -ENOMEM;
    }
    c->pid = getpid();
    c->sock = -1;
    c->timeout_ms = 5000;
    c->reconnect_ms = 15000;
    memcpy(c->program, "libpipit", sizeof("libpipit"));
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    c->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (c->epoll_fd < 0 || c->timer_fd < 0 ||
        epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->timer_fd, &ev) < 0) {
        r = -errno;
        pipit_client_destroy(c);
        return r;
    }
    *ret = c;
    return 0;
}

void pipit_client_destroy(struct pipit_client *c)
{
    if (!c) {
        return;
    }
    for (struct pipit_request *q = c->requests; q; q = q->next) {
        q->client = NULL; /* a caller's slip: its destroy finds nobody to tell */
    }
    link_close(c);
    close_fd(&c->epoll_fd);
    close_fd(&c->timer_fd);
    report_free(c->report);
    free(c->spare);
    free(c->runtime_dir);
    free(c->instance);
    free(c);
}

static int set_string(struct pipit_client *c, char **field, const char *value)
{
    char *copy = NULL;

    if (c->state != LINK_NEW && c->state != LINK_LOST) {
        return -EBUSY;
    }
    if (value && !(copy = strdup(value))) {
        return -ENOMEM;
    }
    free(*field);
    *field = copy;
    return 0;
}

int pipit_client_set_runtime_dir(struct pipit_client *c, const char *dir)
{
    return set_string(c, &c->runtime_dir, dir);
}

int pipit_client_set_instance(struct pipit_client *c, const char *name)
{
    return set_string(c, &c->instance, name);
}

int pipit_client_set_program(struct pipit_client *c, const char *name)
{
    size_t n = strlen(name);

    if (n >= sizeof(c->program)) {
        return -EINVAL;
    }
    memset(c->program, 0, sizeof(c->program));
    memcpy(c->program, name, n);
    return 0;
}

int pipit_client_set_timeout_ms(struct pipit_client *c, uint32_t ms)
{
    if (ms == 0 || ms > 3600000) {
        return -EINVAL;
    }
    c->timeout_ms = ms;
    return 0;
}

int pipit_client_set_reconnect_ms(struct pipit_client *c, uint32_t ms)
{
    if (ms > 86400000) {
        return -EINVAL;
    }
    c->reconnect_ms = ms;
    return 0;
}

int pipit_client_set_arena_bytes(struct pipit_client *c, uint64_t to_daemon, uint64_t from_daemon)
{
    c->want_c2e = to_daemon;
    c->want_e2c = from_daemon;
    return 0;
}

static int may_connect(struct pipit_client *c, struct pipit_error *reterr)
{
    int r = dispatch_check(c, reterr);

    if (r == 0 && c->state != LINK_NEW && c->state != LINK_LOST && c->state != LINK_DOWN) {
        r = pipit_fail(reterr, -EISCONN, PIPIT_E_LOCAL, "the client is connected already");
    }
    if (r == 0) {
        memset(&c->hello, 0, sizeof(c->hello));
        c->give_up_ns = 0;
    }
    return r;
}

int pipit_client_connect(struct pipit_client *c, struct pipit_error *reterr)
{
    int r = may_connect(c, reterr);

    if (r == 0) {
        r = find_places(c, reterr);
    }
    if (r == 0) {
        c->by_fd = false;
        r = link_open(c, reterr);
    }
    if (r == 0) {
        r = dispatch_until_up(c, reterr);
    }
    if (r < 0 && r != -EISCONN && r != -EPERM && r != -EDEADLK) {
        for (size_t i = 0; i < c->n_places; i++) {
            if (c->places[i].err == 0 && strcmp(c->places[i].path, c->path) == 0) {
                c->places[i].err = r;
            }
        }
    }
    return r;
}

int pipit_client_connect_fd(struct pipit_client *c, int fd, struct pipit_error *reterr)
{
    int r = may_connect(c, reterr);

    if (r < 0) {
        close_fd(&fd);
        return r;
    }
    c->n_places = 0;
    c->path[0] = '\0';
    r = link_adopt(c, fd, reterr);
    return r < 0 ? r : dispatch_until_up(c, reterr);
}

int pipit_client_place(const struct pipit_client *c, size_t i, struct pipit_place *ret)
{
    if (i >= c->n_places) {
        return -ENOENT;
    }
    *ret = (struct pipit_place){c->places[i].origin, c->places[i].path, c->places[i].err};
    return 0;
}

const struct pipit_info *pipit_client_info(const struct pipit_client *c)
{
    return c->hello.magic ? &c->info : NULL;
}

int pipit_client_fd(const struct pipit_client *c)
{
    return c->epoll_fd;
}

int pipit_client_watch(struct pipit_client *c, int fd, int events)
{
    struct epoll_event ev = {.events = (uint32_t)events, .data.u32 = WAKE_FOREIGN};

    if (fd < 0 || fd == c->epoll_fd || fd == c->timer_fd || fd == c->sock) {
        return -EINVAL;
    }
    if (events < 0) {
        return epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, &ev) ? -errno : 0;
    }
    if (epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0) {
        return 0;
    }
    return errno == EEXIST && epoll_ctl(c->epoll_fd, EPOLL_CTL_MOD, fd, &ev) == 0 ? 0 : -errno;
}

int pipit_client_status(struct pipit_client *c, const struct pipit_status **ret,
                        struct pipit_error *reterr)
{
    const struct lane_status *s = &c->status_body;
    struct lane_record ask;
    int r;

    lane_record_init(&ask, LANE_STATUS_GET, NULL);
    r = dispatch_call(c, &ask, NULL, LANE_STATUS, reterr);
    if (r < 0) {
        return r;
    }
    c->status_body = c->call.answer.status;
    c->status = (struct pipit_status){
        .front_epoch = s->front_epoch,
        .model_epoch = s->model_epoch,
        .state = s->state,
        .progress = s->progress,
        .n_running = s->n_running,
        .n_queued = s->n_queued,
        .n_lanes = s->n_lanes,
        .n_restarts = s->n_restarts,
        .n_requests = s->n_requests,
        .n_prompt_tokens = s->n_prompt_tokens,
        .n_new_tokens = s->n_new_tokens,
        .kv_bytes_used = s->kv_bytes_used,
        .kv_bytes_total = s->kv_bytes_total,
        .plan_bytes = s->plan_bytes,
        .step_age_ns = s->step_age_ns,
        .uptime_ns = s->uptime_ns,
        .ctx = s->ctx,
        .n_seqs = s->n_seqs,
        .model = s->model,
        .backend = s->backend,
    };
    *ret = &c->status;
    return 0;
}

int pipit_client_ping(struct pipit_client *c, struct pipit_error *reterr)
{
    struct lane_record ask;

    lane_record_init(&ask, LANE_PING, NULL);
    return dispatch_call(c, &ask, NULL, LANE_PONG, reterr);
}

/* A cancel has no answer of its own when it succeeds: the daemon handles records in order, so the
 * pong of a ping sent after it says that no error came. */
int pipit_client_cancel(struct pipit_client *c, const uint8_t id[16], struct pipit_error *reterr)
{
    struct lane_record ask;
    struct lane_record ping;

    lane_record_init(&ask, LANE_CANCEL, id);
    lane_record_init(&ping, LANE_PING, NULL);
    return dispatch_call(c, &ask, &ping, LANE_PONG, reterr);
}

int pipit_client_control(struct pipit_client *c, enum pipit_control what, uint32_t limit_ms,
                         struct pipit_error *reterr)
{
    struct lane_record ask;

    lane_record_init(&ask, LANE_CONTROL, NULL);
    ask.control.op = what;
    ask.control.limit_ms = limit_ms;
    return dispatch_call(c, &ask, NULL, LANE_PONG, reterr);
}

int client_fetch_text(struct pipit_client *c, struct lane_record *ask, size_t bytes, char **ret,
                      size_t *ret_len, struct pipit_error *reterr)
{
    const struct lane_bulk_body *b = &c->call.answer.bulk;
    struct pipit_lease *l = NULL;
    char *copy = NULL;
    int r = pipit_lease_get(c, PIPIT_FROM_DAEMON, bytes, &l, reterr);

    if (r < 0) {
        return r;
    }
    if (ask->h.type == LANE_SESSION) {
        ask->session.buf = l->buf;
        ask->session.generation = l->generation;
    } else {
        ask->lease.arena = LANE_ARENA_E2C;
        ask->lease.buf = l->buf;
        ask->lease.generation = l->generation;
    }
    r = dispatch_call(c, ask, NULL, LANE_BULK, reterr);
    if (r == 0 && (b->buf != l->buf || b->generation != l->generation || b->offset > l->bytes ||
                   b->n_bytes > l->bytes - b->offset)) {
        r = pipit_fail(reterr, -EBADMSG, PIPIT_E_PROTOCOL,
                       "the daemon announced data outside the output lease");
    }
    if (r == 0 && !(copy = malloc((size_t)b->n_bytes + 1))) {
        r = pipit_fail(reterr, -ENOMEM, PIPIT_E_LOCAL, "no memory for the daemon's text");
    }
    if (r == 0) {
        memcpy(copy, (const uint8_t *)pipit_lease_read(l) + b->offset, (size_t)b->n_bytes);
        copy[b->n_bytes] = '\0';
        *ret_len = (size_t)b->n_bytes;
        *ret = copy;
    }
    pipit_lease_put(l);
    return r;
}

int pipit_client_metrics(struct pipit_client *c, char **ret, size_t *ret_len,
                         struct pipit_error *reterr)
{
    struct lane_record ask;

    lane_record_init(&ask, LANE_METRICS_GET, NULL);
    return client_fetch_text(c, &ask, METRICS_BYTES, ret, ret_len, reterr);
}

/* The last line's name. false: there is none, or it does not come behind `after`. */
static bool last_name(const char *text, size_t len, char after[LANE_SESSION_NAME + 1])
{
    const char *line;
    size_t n;

    if (!text || len < 2) {
        return false;
    }
    line = memrchr(text, '\n', len - 1);
    line = line ? line + 1 : text;
    n = strcspn(line, "\t\n");
    if (!lane_session_name_ok(line, n) || (strlen(after) == n && memcmp(after, line, n) == 0)) {
        return false;
    }
    memcpy(after, line, n);
    after[n] = '\0';
    return true;
}

/* The daemon reads the folder for each page, so pages are large where the lane has room for them.
 */
static size_t page_bytes(const struct pipit_client *c)
{
    uint64_t n = c->info.from_daemon_bytes / 4;

    return n < SESSIONS_BYTES ? SESSIONS_BYTES : n > SESSIONS_MOST ? SESSIONS_MOST : (size_t)n;
}

/* Page by page, until one is empty. */
int pipit_client_sessions(struct pipit_client *c, char **ret, size_t *ret_len,
                          struct pipit_error *reterr)
{
    char after[LANE_SESSION_NAME + 1] = "";
    struct lane_record ask;
    char *all = NULL;
    size_t n = 0;

    for (;;) {
        char *page = NULL;
        size_t len = 0;
        char *more;
        int r;

        lane_record_init(&ask, LANE_SESSION, NULL);
        ask.session.op = LANE_SESSION_LIST;
        memcpy(ask.session.name, after, strlen(after));
        r = client_fetch_text(c, &ask, page_bytes(c), &page, &len, reterr);
        more = r == 0 && page ? realloc(all, n + len + 1) : NULL;
        if (!more) {
            free(page);
            free(all);
            return r ? r
                     : pipit_fail(reterr, -ENOMEM, PIPIT_E_LOCAL,
                                  "no memory for the daemon's text");
        }
        all = more;
        memcpy(all + n, page, len + 1);
        n += len;
        r = last_name(page, len, after);
        free(page);
        if (!r) {
            break;
        }
    }
    *ret = all;
    *ret_len = n;
    return 0;
}

/* Page by page, until one is empty; each begins behind the number of the last one's last line. */
int pipit_client_requests(struct pipit_client *c, char **ret, size_t *ret_len,
                          struct pipit_error *reterr)
{
    struct lane_record ask;
    char *all = NULL;
    size_t n = 0;
    uint64_t last = 0;
    int r = link_wanted(c, reterr);

    r = r ? r : dispatch_until_up(c, reterr);
    if (r == 0 && !(c->info.features & LANE_FEATURE_REQUESTS)) {
        r = pipit_fail(reterr, -ENOTSUP, PIPIT_E_UNSUPPORTED,
                       "this daemon is older and lists no requests");
    }
    while (r == 0) {
        char *page = NULL;
        size_t at = n;
        size_t len = 0;
        char *more;

        lane_record_init(&ask, LANE_REQUESTS_GET, NULL);
        ask.lease.offset = last;
        r = client_fetch_text(c, &ask, REQUESTS_BYTES, &page, &len, reterr);
        more = r == 0 && page ? realloc(all, n + len + 1) : NULL;
        if (!more) {
            r = r ? r
                  : pipit_fail(reterr, -ENOMEM, PIPIT_E_LOCAL, "no memory for the daemon's text");
            free(page);
            break;
        }
        all = more;
        memcpy(all + at, page, len + 1);
        n += len;
        for (size_t i = at; i + 1 < n; i++) { /* the page's last line begins there */
            at = all[i] == '\n' ? i + 1 : at;
        }
        uint64_t seen = strtoull(all + at, NULL, 10);

        free(page);
        if (seen <= last) { /* an empty page, or none that goes on */
            *ret = all;
            *ret_len = n;
            return 0;
        }
        last = seen;
    }
    free(all);
    return r;
}

int pipit_client_session_remove(struct pipit_client *c, const char *name,
                                struct pipit_error *reterr)
{
    struct lane_record ask;
    char *text = NULL;
    size_t len;
    int r;

    if (!lane_session_name_ok(name, strlen(name))) {
        return pipit_fail(reterr, -EINVAL, PIPIT_E_INVALID,
                          "session name: allowed are 1..64 letters, digits, '.', '_' and '-', the "
                          "first no '.'");
    }
    lane_record_init(&ask, LANE_SESSION, NULL);
    ask.session.op = LANE_SESSION_REMOVE;
    memcpy(ask.session.name, name, strlen(name));
    r = client_fetch_text(c, &ask, SESSIONS_BYTES, &text, &len, reterr);
    free(text);
    return r;
}

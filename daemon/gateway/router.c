/* SPDX-License-Identifier: Apache-2.0 */
/* libzmq as a hostile-peer-facing socket. What it is told, and why:
 *
 *   ROUTER_MANDATORY  otherwise sends to slow or vanished clients "succeed" and are dropped
 *   MAXMSGSIZE, HWM   bound a frame and a pipe; endless MORE frames are bounded by neither, so the
 *                     process has a limit on its memory and is expendable
 *   HANDSHAKE_IVL     1 s: a connection that never speaks ZMTP is closed
 *   LINGER 0          closing never waits for a client
 *   ZAP_DOMAIN        makes libzmq ask us about each connection; without it NULL asks nobody
 *
 * A peer's identity is the `Peer-Address` property of a message, which libzmq fills from
 * SO_PEERCRED. libzmq 4.3.4 loses it on the routing-id frame after a poll, so it is read from the
 * body's frame. No property, no service.
 *
 * Routing ids: libzmq counts them up from a random start, 0 and four bytes, drawn with rand() that
 * it seeds from clock and pid. We seed it again from the kernel before the ROUTER is made, because
 * a peer may claim any free id, and would get the remaining answers of a client that went away. */

#include "daemon/gateway/router.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hot.h"
#include "base/sock.h"

enum { ROUTER_SNDHWM = 64, ROUTER_RCVHWM = 16, HANDSHAKE_MS = 1000, ROUTER_BACKLOG = 128 };

bool router_id_is_own(const struct router_peer *p)
{
    return p->id_len == 5 && p->id[0] == 0;
}

bool router_parse_address(const char *text, size_t len, uint32_t *ret_uid)
{
    static const char host[] = "localhost:";
    uint64_t part[3] = {0};
    size_t i = sizeof(host) - 1;

    if (len < i || memcmp(text, host, i) != 0) {
        return false;
    }
    for (int n = 0; n < 3; n++) {
        size_t from = i;

        for (; i < len && text[i] >= '0' && text[i] <= '9' && part[n] <= UINT32_MAX; i++) {
            part[n] = part[n] * 10 + (uint64_t)(text[i] - '0');
        }
        if (i == from || part[n] > UINT32_MAX) {
            return false;
        }
        if (n < 2 && (i >= len || text[i++] != ':')) {
            return false;
        }
    }
    *ret_uid = (uint32_t)part[0];
    return i == len;
}

static int set_int(void *socket, int option, int value, struct error *reterr)
{
    if (zmq_setsockopt(socket, option, &value, sizeof(value))) {
        return error_set(reterr, -EINVAL, "libzmq refuses option %d = %d: %s", option, value,
                         zmq_strerror(errno));
    }
    return 0;
}

static int set_options(struct router *r, size_t max_message, struct error *reterr)
{
    static const struct {
        int option;
        int value;
    } options[] = {
        {ZMQ_ROUTER_MANDATORY, 1}, {ZMQ_SNDHWM, ROUTER_SNDHWM},       {ZMQ_RCVHWM, ROUTER_RCVHWM},
        {ZMQ_LINGER, 0},           {ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS}, {ZMQ_BACKLOG, ROUTER_BACKLOG},
    };
    int64_t max = (int64_t)max_message;

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        int rc = set_int(r->socket, options[i].option, options[i].value, reterr);

        if (rc) {
            return rc;
        }
    }
    if (zmq_setsockopt(r->socket, ZMQ_MAXMSGSIZE, &max, sizeof(max)) ||
        zmq_setsockopt(r->socket, ZMQ_ZAP_DOMAIN, "pipit", 5)) {
        return error_set(reterr, -EINVAL, "libzmq refuses a limit on messages: %s",
                         zmq_strerror(errno));
    }
    return 0;
}

static bool folder_is_open(const char *path)
{
    char folder[SOCK_PATH_MAX];
    const char *slash = strrchr(path, '/');
    struct stat st;

    (void)snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) : 1,
                   slash ? path : ".");
    return stat(folder[0] ? folder : "/", &st) != 0 || (st.st_mode & S_IWOTH);
}

static int bind_socket(struct router *r, const char *path, int listen_fd, struct error *reterr)
{
    char endpoint[SOCK_PATH_MAX + 16];
    struct sockaddr_un a;
    mode_t mask;
    int rc = sock_address(path, &a, reterr);

    if (rc) {
        return rc;
    }
    (void)snprintf(endpoint, sizeof(endpoint), "ipc://%s", path);
    if (listen_fd >= 0) {
        /* libzmq closes what it adopts, and accepts without asking whether anybody still waits;
         * systemd hands sockets over blocking. */
        int fd = fcntl(listen_fd, F_DUPFD_CLOEXEC, 0);

        if (fd < 0 || fcntl(fd, F_SETFL, O_NONBLOCK)) {
            return error_set_errno(reterr, -errno, "descriptor %d is no listening socket",
                                   listen_fd);
        }
        rc = set_int(r->socket, ZMQ_USE_FD, fd, reterr);
        if (rc) {
            return rc;
        }
    }
    /* As for lane.sock: who may enter the folder may connect (which takes write permission), but
     * never everyone where everyone may write. */
    mask = umask(folder_is_open(path) ? 0177 : 0111);
    if (zmq_bind(r->socket, endpoint)) {
        rc = error_set(reterr, -EADDRINUSE, "%s: cannot be bound: %s", path, zmq_strerror(errno));
    }
    (void)umask(mask);
    return rc;
}

int router_open(struct router *r, const char *path, int listen_fd, size_t max_message,
                struct error *reterr)
{
    unsigned seed = 0;
    int rc;

    *r = (struct router){.context = zmq_ctx_new(), .unread = true};
    if (!r->context) {
        return error_set(reterr, -ENOMEM, "libzmq cannot start: %s", zmq_strerror(errno));
    }
    r->zap = zmq_socket(r->context, ZMQ_REP);
    if (!r->zap || zmq_bind(r->zap, "inproc://zeromq.zap.01")) {
        rc = error_set(reterr, -EIO, "the ZAP handler cannot start: %s", zmq_strerror(errno));
        goto fail;
    }
    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) {
        rc = error_set_errno(reterr, -errno, "no random numbers");
        goto fail;
    }
    srand(seed);
    r->socket = zmq_socket(r->context, ZMQ_ROUTER);
    if (!r->socket) {
        rc = error_set(reterr, -EIO, "no ROUTER socket: %s", zmq_strerror(errno));
        goto fail;
    }
    rc = set_options(r, max_message, reterr);
    if (rc == 0) {
        rc = bind_socket(r, path, listen_fd, reterr);
    }
    if (rc == 0) {
        return 0;
    }
fail:
    router_close(r);
    return rc;
}

void router_close(struct router *r)
{
    static const int zero;

    if (r->socket) {
        (void)zmq_close(r->socket);
    }
    if (r->zap) {
        (void)zmq_setsockopt(r->zap, ZMQ_LINGER, &zero, sizeof(zero));
        (void)zmq_close(r->zap);
    }
    if (r->context) {
        (void)zmq_ctx_term(r->context);
    }
    *r = (struct router){0};
}

HOT static bool receive_frame(void *socket, zmq_msg_t *m)
{
    int rc;

    do {
        rc = zmq_msg_recv(m, socket, ZMQ_DONTWAIT);
    } while (rc < 0 && errno == EINTR);
    return rc >= 0;
}

/* libzmq waits for its own threads' words even when it does not wait for the peer; EINTR says that
 * nothing was sent, not that nobody is there. */
HOT static int send_frame(void *socket, const void *data, size_t size, int flags)
{
    int rc;

    do {
        rc = zmq_send(socket, data, size, flags);
    } while (rc < 0 && errno == EINTR);
    return rc;
}

HOT static int send_message(void *socket, zmq_msg_t *m, int flags)
{
    int rc;

    do {
        rc = zmq_msg_send(m, socket, flags);
    } while (rc < 0 && errno == EINTR);
    return rc;
}

static void drop_rest(void *socket, zmq_msg_t *m)
{
    while (zmq_msg_more(m) && receive_frame(socket, m)) {
    }
}

int router_fd(void *socket)
{
    int fd = -1;
    size_t size = sizeof(fd);

    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) ? -1 : fd;
}

void router_woken(struct router *r, bool read_now)
{
    int events;
    size_t size = sizeof(events);

    r->unread = true;
    if (!read_now) {
        (void)zmq_getsockopt(r->socket, ZMQ_EVENTS, &events, &size);
    }
}

HOT int router_receive(struct router *r, struct router_peer *ret_peer, zmq_msg_t *ret_body)
{
    zmq_msg_t m;
    const char *address;

    (void)zmq_msg_init(&m);
    if (!receive_frame(r->socket, &m)) {
        (void)zmq_msg_close(&m);
        r->unread = false;
        return 0;
    }
    *ret_peer = (struct router_peer){0};
    if (zmq_msg_size(&m) > sizeof(ret_peer->id) || !zmq_msg_more(&m)) {
        goto bad;
    }
    ret_peer->id_len = (uint8_t)zmq_msg_size(&m);
    memcpy(ret_peer->id, zmq_msg_data(&m), ret_peer->id_len);
    if (!receive_frame(r->socket, &m)) {
        goto bad;
    }
    address = zmq_msg_gets(&m, "Peer-Address");
    ret_peer->known = address && router_parse_address(address, strlen(address), &ret_peer->uid);
    if (zmq_msg_size(&m) == 0 && zmq_msg_more(&m)) {
        ret_peer->delimiter = true;
        if (!receive_frame(r->socket, &m)) {
            goto bad;
        }
    }
    if (zmq_msg_more(&m)) {
        goto bad;
    }
    (void)zmq_msg_init(ret_body);
    (void)zmq_msg_move(ret_body, &m);
    (void)zmq_msg_close(&m);
    return 1;
bad:
    drop_rest(r->socket, &m);
    (void)zmq_msg_close(&m);
    return -EBADMSG;
}

HOT int router_send(struct router *r, const uint8_t *id, size_t id_len, bool delimiter,
                    zmq_msg_t *body)
{
    r->unread = true;
    /* A client is refused at the first frame or not at all: the later ones go where it went. */
    if (send_frame(r->socket, id, id_len, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) {
        return errno == EAGAIN ? -EAGAIN : -EHOSTUNREACH;
    }
    if (delimiter && send_frame(r->socket, "", 0, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) {
        return -EHOSTUNREACH;
    }
    if (send_message(r->socket, body, ZMQ_DONTWAIT) < 0) {
        return -EHOSTUNREACH;
    }
    return 0;
}

enum { ZAP_VERSION, ZAP_REQUEST_ID, ZAP_DOMAIN, ZAP_ADDRESS, ZAP_FRAMES };

/* RFC 27: version, request id, domain, address, identity, mechanism; answered with version, request
 * id, status code, status text, user id, metadata. */
static bool answer_zap(void *zap)
{
    zmq_msg_t frame[ZAP_FRAMES];
    char user[16] = "";
    uint32_t uid = 0;
    bool more = true;
    bool ok;
    int n = 0;

    for (; more && n < ZAP_FRAMES; n++) {
        (void)zmq_msg_init(&frame[n]);
        if (!receive_frame(zap, &frame[n])) {
            (void)zmq_msg_close(&frame[n]);
            break;
        }
        more = zmq_msg_more(&frame[n]);
    }
    if (n == 0) {
        return false;
    }
    if (more) {
        zmq_msg_t rest;

        (void)zmq_msg_init(&rest);
        while (receive_frame(zap, &rest) && zmq_msg_more(&rest)) {
        }
        (void)zmq_msg_close(&rest);
    }
    ok = n == ZAP_FRAMES && router_parse_address(zmq_msg_data(&frame[ZAP_ADDRESS]),
                                                 zmq_msg_size(&frame[ZAP_ADDRESS]), &uid);
    if (ok) {
        (void)snprintf(user, sizeof(user), "%u", uid);
    }
    (void)send_frame(zap, "1.0", 3, ZMQ_SNDMORE);
    (void)send_frame(zap, n > ZAP_REQUEST_ID ? zmq_msg_data(&frame[ZAP_REQUEST_ID]) : "",
                     n > ZAP_REQUEST_ID ? zmq_msg_size(&frame[ZAP_REQUEST_ID]) : 0, ZMQ_SNDMORE);
    (void)send_frame(zap, ok ? "200" : "400", 3, ZMQ_SNDMORE);
    (void)send_frame(zap, "", 0, ZMQ_SNDMORE);
    (void)send_frame(zap, user, strlen(user), ZMQ_SNDMORE);
    (void)send_frame(zap, "", 0, 0);
    for (int i = 0; i < n; i++) {
        (void)zmq_msg_close(&frame[i]);
    }
    return true;
}

void router_admit(struct router *r)
{
    while (answer_zap(r->zap)) {
    }
}

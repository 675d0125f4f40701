/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes libpipit with a daemon that says anything. The input is a script of both sides: its first
 * byte says how the daemon's hello is bent (0: not at all), then come actions, a byte each:
 *
 *     0  a record: type, request (0 none, 1 and 2, 3 another), seq (0: the one due), then how many
 *        changes to its body: offset, length, bytes
 *     1  request i is made and sent: i, kind and bits (1 an output lease, 2 a callback)
 *     2  request i is cancelled         3  dispatch
 *     4  request i: events are read     5  a call that waits for its answer: which
 *     6  bytes in the daemon's arena: offset (16 bits), length, bytes
 *     7  a lease is taken or put        8  request i is resumed
 *     9  request i gives credit         10 request i is destroyed
 *     11 the daemon hangs up            12 another client connects by path: how
 *     13 a descriptor of the program's is watched, or no longer
 *
 * A record has a body that makes sense before it is changed. Calls that wait are answered by a
 * thread, from a list of records behind them.
 *
 * Promises: whatever the daemon says, what the client sends is valid; a request's events come in
 * order and end once; texts end in a NUL; bulk data lies in the request's lease; errors have a
 * text; everything is given back. Memory can fail, and while it connects, calls (fail.h). Seeds of
 * both: make_seeds_client.py. */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/sock.h"
#include "client/pipit.h"
#include "proto/lane/record.h"
#include "tests/fuzz/fail.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    ARENA_BYTES = 1 << 18,
    REQUEST_BYTES = 1 << 14,
    N_REQUESTS = 2,
    N_LEASES = 3,
    CALLS = 14,
    ANSWERS = 6
};

struct ask {
    struct pipit_request *q;
    struct pipit_lease *out;
    uint8_t id[16];
    uint64_t next_seq; /* that the daemon sends */
    uint64_t seen_seq; /* of the last event */
    bool ended;
};

struct play {
    struct input in;
    struct pipit_client *client;
    int daemon;
    uint8_t *e2c;
    struct ask asks[N_REQUESTS];
    struct pipit_lease *leases[N_LEASES];
    uint32_t generation;
    int watched; /* or -1 */
};

/* A length and so many bytes: where they lie. */
static const uint8_t *take_bytes(struct input *in, size_t *ret_n)
{
    size_t n = take(in);
    const uint8_t *p = in->p;

    *ret_n = n < in->left ? n : in->left;
    in->p += *ret_n;
    in->left -= *ret_n;
    return p;
}

/* ---- the daemon's side --------------------------------------------------------------------------
 */

static int make_arena(size_t bytes, bool seal)
{
    int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    require(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    require(!seal || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    return fd;
}

static void change(struct lane_record *r, struct input *in, unsigned n)
{
    while (n-- > 0) {
        size_t at = sizeof(r->h) + take(in) % (sizeof(*r) - sizeof(r->h));
        size_t len;
        const uint8_t *p = take_bytes(in, &len);

        memcpy((uint8_t *)r + at, p, len < sizeof(*r) - at ? len : sizeof(*r) - at);
    }
}

static void fill_hello(struct lane_hello_reply *h)
{
    *h = (struct lane_hello_reply){.magic = LANE_MAGIC,
                                   .abi_major = LANE_ABI_MAJOR,
                                   .record_bytes = LANE_RECORD_BYTES,
                                   .front_epoch = 7,
                                   .lane_id = 1,
                                   .c2e_bytes = ARENA_BYTES,
                                   .e2c_bytes = ARENA_BYTES,
                                   .state = LANE_READY,
                                   .max_request_bytes = REQUEST_BYTES,
                                   .max_lease_bytes = ARENA_BYTES - REQUEST_BYTES,
                                   .features = LANE_FEATURE_REPORT | LANE_FEATURE_REQUESTS,
                                   .ctx = 512,
                                   .n_vocab = 100,
                                   .request_buf = 1,
                                   .request_generation = 1,
                                   .model = "fake"};
}

/* bent: bit 0 an arena that may shrink, 1 one descriptor, 2 none, 3 a small arena, 4 changes, 5
 * another record comes first. */
static void say_hello(struct play *p, unsigned bent)
{
    struct lane_record r;
    int fds[2] = {make_arena(ARENA_BYTES, true),
                  make_arena(bent & 8 ? ARENA_BYTES / 2 : ARENA_BYTES, !(bent & 1))};

    if (bent & 32) {
        lane_record_init(&r, LANE_PONG, NULL);
        fill_hello(&r.hello_reply);
        require(sock_send(p->daemon, &r, sizeof(r), NULL, 0) == 0);
    }
    lane_record_init(&r, LANE_HELLO_REPLY, NULL);
    fill_hello(&r.hello_reply);
    if (bent & 16) {
        change(&r, &p->in, take(&p->in) % 4);
    }
    p->e2c = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    require(p->e2c != MAP_FAILED);
    require(sock_send(p->daemon, &r, sizeof(r), fds, bent & 4 ? 0 : bent & 2 ? 1 : 2) == 0);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static void fill_body(struct play *p, struct lane_record *r)
{
    switch (r->h.type) {
    case LANE_HELLO_REPLY:
    case LANE_PONG:
        fill_hello(&r->hello_reply);
        break;
    case LANE_LEASE:
        r->lease = (struct lane_lease){.arena = LANE_ARENA_E2C,
                                       .buf = 2,
                                       .generation = ++p->generation,
                                       .offset = REQUEST_BYTES,
                                       .length = ARENA_BYTES - REQUEST_BYTES};
        break;
    case LANE_TOKEN:
    case LANE_TEXT:
        r->token.text_len = 3;
        memcpy(r->token.text, "abc", 3);
        r->token.token = r->h.type == LANE_TEXT ? -1 : 5;
        break;
    case LANE_ALT:
        r->alt.text_len = 2;
        break;
    case LANE_BULK:
        r->bulk = (struct lane_bulk_body){.kind = LANE_BULK_TEXT,
                                          .buf = 2,
                                          .generation = p->generation,
                                          .window = 4,
                                          .n_rows = 1,
                                          .n_cols = 64,
                                          .n_bytes = 64};
        break;
    case LANE_DONE:
        r->done.reason = LANE_REASON_STOP;
        break;
    case LANE_ERROR:
        r->error.code = LANE_ERR_INVALID;
        (void)strcpy(r->error.text, "no");
        break;
    default:
        break;
    }
}

static void say_record(struct play *p)
{
    uint8_t type = take(&p->in);
    uint8_t which = take(&p->in);
    uint8_t seq = take(&p->in);
    unsigned n_changes = take(&p->in) % 4;
    struct ask *a = which == 1 || which == 2 ? &p->asks[which - 1] : NULL;
    uint8_t other[16] = {9};
    struct lane_record r;

    lane_record_init(&r, LANE_HELLO_REPLY + type % 13, a ? a->id : which % 4 == 3 ? other : NULL);
    if (r.h.size == 0) {
        r.h.size = sizeof(r);
    }
    r.h.seq = seq;
    if (a && seq == 0 && r.h.type != LANE_PROGRESS) {
        r.h.seq = a->next_seq++;
    }
    fill_body(p, &r);
    change(&r, &p->in, n_changes);
    (void)!sock_send(p->daemon, &r, type & 128 ? sizeof(r) / 2 : sizeof(r), NULL, 0);
}

/* What the client has sent. */
static void listen_to_client(struct play *p)
{
    struct lane_record r;
    ssize_t n;

    while (p->daemon >= 0 && (n = recv(p->daemon, &r, sizeof(r), MSG_DONTWAIT)) > 0) {
        require(n == (ssize_t)sizeof(r));
        require(lane_record_check(&r, sizeof(r), LANE_PEER_CLIENT, NULL) == 0);
    }
}

/* ---- the client's side --------------------------------------------------------------------------
 */

static void check_error(const struct pipit_error *e)
{
    require(e->err < 0 && e->code != 0 && e->text[0] && memchr(e->text, 0, sizeof(e->text)));
    require(pipit_code_name(e->code)[0]);
}

static void check_event(struct ask *a, const struct pipit_event *ev)
{
    volatile uint8_t sum = 0;

    require(!a->ended);
    /* Rows that wrap in the window come as two events of one record. */
    require(ev->seq == 0 || ev->seq > a->seen_seq || ev->type == PIPIT_EVENT_RESUMED ||
            (ev->type == PIPIT_EVENT_BULK && ev->seq == a->seen_seq));
    a->seen_seq = ev->seq > a->seen_seq ? ev->seq : a->seen_seq;
    require(ev->text && ev->text[ev->text_len] == '\0');
    for (size_t i = 0; i < ev->n_alts; i++) {
        require(ev->alts[i].text && ev->alts[i].text[ev->alts[i].text_len] == '\0');
    }
    switch (ev->type) {
    case PIPIT_EVENT_BULK: {
        const struct pipit_bulk *b = ev->bulk;
        const uint8_t *from = b->data;
        const uint8_t *room = pipit_lease_read(a->out);

        require(room && from >= room && b->bytes <= pipit_lease_bytes(a->out));
        require(from + b->bytes <= room + pipit_lease_bytes(a->out));
        sum = b->bytes ? (uint8_t)(from[0] + from[b->bytes - 1]) : 0;
        (void)sum;
        break;
    }
    case PIPIT_EVENT_DONE:
        require(memchr(ev->done->session_cause, 0, sizeof(ev->done->session_cause)));
        require(pipit_reason_name(ev->done->reason)[0]);
        a->ended = true;
        break;
    case PIPIT_EVENT_ERROR:
        check_error(ev->error);
        a->ended = true;
        break;
    default:
        break;
    }
}

static void on_event(struct pipit_request *q, const struct pipit_event *ev, void *user)
{
    (void)q;
    check_event(user, ev);
}

/* One that makes a call of its own, which waits. */
static struct pipit_client *caller;

static void on_event_call(struct pipit_request *q, const struct pipit_event *ev, void *user)
{
    struct pipit_error e = {0};

    on_event(q, ev, user);
    require(pipit_client_ping(caller, &e) == -EDEADLK);
    check_error(&e);
}

static void make_request(struct play *p, struct ask *a)
{
    uint8_t kind = take(&p->in);
    uint8_t bits = take(&p->in);
    struct pipit_error e = {0};

    if (a->q || pipit_request_create(p->client, (enum pipit_kind)(1 + kind % 6), &a->q)) {
        return;
    }
    require(pipit_request_set_id(a->q, a->id) == 0);
    (void)!pipit_request_set_prompt(a->q, "prompt", 6);
    if (bits & 1 && p->leases[0]) {
        a->out = p->leases[0];
        (void)!pipit_request_set_output(a->q, a->out);
    }
    if (bits & 2) {
        caller = p->client;
        require(pipit_request_set_callback(a->q, bits & 16 ? on_event_call : on_event, a) == 0);
    }
    (void)!pipit_request_set_param(a->q, PIPIT_LOGPROBS, bits & 4 ? 20 : 0);
    (void)!pipit_request_set_param(a->q, PIPIT_PROGRESS, bits & 8 ? 1 : 0);
    if (pipit_request_send(a->q, &e)) {
        check_error(&e);
    }
}

static void drop_request(struct ask *a)
{
    pipit_request_destroy(a->q);
    a->q = NULL;
    a->out = NULL;
    a->ended = false;
    a->seen_seq = 0;
    a->next_seq = 1;
}

static void read_events(struct ask *a)
{
    const struct pipit_event *ev;
    int r = 1;

    while (a->q && r == 1) {
        r = pipit_request_next(a->q, 0, &ev);
        if (r == 1) {
            check_event(a, ev);
        }
    }
    require(!a->q || !a->ended || r <= 0);
}

static void check_report(const struct pipit_report *r)
{
    require(strlen(r->backend) + strlen(r->cause) < ARENA_BYTES);
    for (size_t i = 0; i < r->n_policies; i++) {
        require(strlen(r->policies[i]->policy) < ARENA_BYTES);
    }
    for (size_t i = 0; i < r->n_limits; i++) {
        require(strlen(r->limits[i].name) < ARENA_BYTES);
    }
    for (size_t i = 0; i < r->n_refused; i++) {
        require(strlen(r->refused[i].name) < ARENA_BYTES);
    }
}

/* A call waits for its answers, so a thread gives them: each question takes the next of up to
 * ANSWERS records, a request all of them. Leases are granted. When no record is left, it hangs up.
 */
struct answerer {
    pthread_t thread;
    atomic_bool stop;
    int daemon;
    int n;
    int next;
    struct lane_record records[ANSWERS];
};

static void answer_lease(struct answerer *a, const struct lane_record *asked)
{
    struct lane_record r;

    lane_record_init(&r, LANE_LEASE, NULL);
    r.lease = (struct lane_lease){.arena = asked->lease.arena,
                                  .buf = 5,
                                  .generation = 6,
                                  .offset = REQUEST_BYTES,
                                  .length = asked->lease.length};
    (void)!sock_send(a->daemon, &r, sizeof(r), NULL, 0);
}

static void answer_one(struct answerer *a, const struct lane_record *asked)
{
    int n = asked->h.type == LANE_REQUEST ? a->n - a->next : 1;

    if (asked->h.type == LANE_LEASE_GET) {
        answer_lease(a, asked);
        return;
    }
    if (asked->h.type == LANE_HELLO || asked->h.type == LANE_LEASE_PUT ||
        asked->h.type == LANE_CREDIT || asked->h.type == LANE_CANCEL) {
        return;
    }
    if (a->next == a->n) {
        (void)shutdown(a->daemon, SHUT_RDWR);
        return;
    }
    for (; n > 0; n--) {
        struct lane_record *r = &a->records[a->next++];

        memcpy(r->h.id, asked->h.id, sizeof(r->h.id));
        (void)!sock_send(a->daemon, r, sizeof(*r), NULL, 0);
    }
    if (asked->h.type == LANE_REQUEST) {
        (void)shutdown(a->daemon, SHUT_RDWR);
    }
}

static void *answer(void *arg)
{
    struct answerer *a = arg;
    struct pollfd fd = {.fd = a->daemon, .events = POLLIN};
    struct lane_record r;

    fail_spare();
    while (!atomic_load(&a->stop)) {
        int n = poll(&fd, 1, 1);

        if (n > 0 && recv(a->daemon, &r, sizeof(r), 0) != (ssize_t)sizeof(r)) {
            break;
        }
        if (n > 0) {
            require(lane_record_check(&r, sizeof(r), LANE_PEER_CLIENT, NULL) == 0);
            answer_one(a, &r);
        }
    }
    return NULL;
}

static void begin_answer(struct play *p, struct answerer *a)
{
    *a = (struct answerer){.daemon = p->daemon, .n = take(&p->in) % (ANSWERS + 1)};
    for (int i = 0; i < a->n; i++) {
        struct lane_record *r = &a->records[i];

        lane_record_init(r, LANE_ACCEPTED + take(&p->in) % 10, NULL);
        fill_body(p, r);
        if (r->h.type == LANE_BULK) {
            r->bulk.buf = 5;
            r->bulk.generation = 6;
        }
        r->h.seq = (uint64_t)i + 1;
        change(r, &p->in, take(&p->in) % 4);
    }
    require(pthread_create(&a->thread, NULL, answer, a) == 0);
}

static void end_answer(struct answerer *a)
{
    atomic_store(&a->stop, true);
    (void)pthread_join(a->thread, NULL);
}

static int tokenize(struct play *p, size_t len, struct pipit_error *e)
{
    static char text[1 << 13];
    volatile int32_t last;
    int32_t *tokens = NULL;
    size_t n = 0;
    int r;

    memset(text, 'x', sizeof(text));
    r = pipit_client_tokenize(p->client, text, len, 1, &tokens, &n, e);
    last = r == 0 && n ? tokens[n - 1] : 0;
    (void)last;
    free(tokens);
    return r;
}

static int detokenize(struct play *p, size_t n_ids, struct pipit_error *e)
{
    static int32_t ids[1 << 12];
    char *text = NULL;
    size_t len = 0;
    int r = pipit_client_detokenize(p->client, ids, n_ids, 1, &text, &len, e);

    require(r || text[len] == '\0');
    free(text);
    return r;
}

static int call_for_text(struct play *p, unsigned which, struct pipit_error *e)
{
    char *text = NULL;
    size_t len = 0;
    int r = which == 0   ? pipit_client_metrics(p->client, &text, &len, e)
            : which == 1 ? pipit_client_sessions(p->client, &text, &len, e)
                         : pipit_client_requests(p->client, &text, &len, e);

    require(r || text[len] == '\0');
    free(text);
    return r;
}

static void call(struct play *p, unsigned which)
{
    static const uint8_t id[16] = {3};
    struct pipit_error e = {0};
    const struct pipit_status *status;
    const struct pipit_report *report;
    struct answerer a;
    int r;

    if (p->daemon < 0) {
        return;
    }
    begin_answer(p, &a);
    switch (which) {
    case 4:
        r = pipit_client_status(p->client, &status, &e);
        require(r || strlen(status->model) + strlen(status->backend) < 256);
        break;
    case 5:
        r = pipit_client_report(p->client, &report, &e);
        if (r == 0) {
            check_report(report);
        }
        break;
    case 6:
        r = pipit_client_ping(p->client, &e);
        break;
    case 7:
        r = pipit_client_cancel(p->client, id, &e);
        break;
    case 8:
        r = pipit_client_session_remove(p->client, "a", &e);
        break;
    case 9:
        r = pipit_client_control(p->client, PIPIT_CONTROL_LOAD, 0, &e);
        break;
    case 10:
        r = tokenize(p, 4, &e);
        break;
    case 11:
        r = tokenize(p, 1 << 13, &e);
        break;
    case 12:
        r = detokenize(p, 3, &e);
        break;
    case 13:
        r = detokenize(p, 1 << 12, &e);
        break;
    default:
        r = call_for_text(p, which % 3, &e);
        break;
    }
    end_answer(&a);
    require(r <= 0);
    if (r) {
        check_error(&e);
    }
}

static void lease(struct play *p)
{
    struct pipit_lease **l = &p->leases[take(&p->in) % N_LEASES];
    struct pipit_error e = {0};
    volatile uint8_t sum;

    if (*l) {
        for (int i = 0; i < N_REQUESTS; i++) {
            if (p->asks[i].out == *l) {
                return; /* it must outlive the request */
            }
        }
        pipit_lease_put(*l);
        *l = NULL;
    } else if (pipit_lease_get(p->client, PIPIT_FROM_DAEMON, 4096, l, &e)) {
        check_error(&e);
    } else {
        const uint8_t *at = pipit_lease_read(*l);

        require(pipit_lease_bytes(*l) >= 4096 && at);
        sum = (uint8_t)(at[0] + at[pipit_lease_bytes(*l) - 1]);
        (void)sum;
    }
}

static void write_arena(struct play *p)
{
    size_t at = take(&p->in);
    const uint8_t *from;
    size_t n;

    at = (at | (size_t)take(&p->in) << 8) + REQUEST_BYTES;
    from = take_bytes(&p->in, &n);
    memcpy(p->e2c + at, from, n);
}

/* how: 0 nothing is there, 1 its path is too long, 2 nobody answers, 3 somebody hangs up. */
static void connect_by_path(unsigned how)
{
    char dir[200] = "/tmp/fuzz-client-XXXXXX";
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct pipit_client *c;
    struct pipit_error e = {0};
    int fd = -1;

    fail_end();
    require(mkdtemp(dir) != NULL);
    (void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/lane.sock", dir);
    if (how >= 2) {
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        require(fd >= 0 && bind(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
        require(listen(fd, 1) == 0);
    }
    if (how == 3) {
        (void)close(fd);
    }
    require(pipit_client_create(&c) == 0);
    require(pipit_client_set_timeout_ms(c, 5) == 0 && pipit_client_set_reconnect_ms(c, 0) == 0);
    if (how == 1) {
        size_t n = strlen(dir);

        memset(dir + n, '/', sizeof(dir) - 1 - n);
    }
    require(pipit_client_set_runtime_dir(c, dir) == 0);
    fail_begin(FAIL_ALL);
    require(pipit_client_connect(c, &e) < 0);
    fail_end();
    check_error(&e);
    pipit_client_destroy(c);
    if (how == 2) {
        (void)close(fd);
    }
    dir[sizeof("/tmp/fuzz-client-XXXXXX") - 1] = '\0';
    (void)unlink(addr.sun_path);
    require(rmdir(dir) == 0);
    fail_begin(FAIL_MEMORY);
}

/* It is ready at once. */
static void watch(struct play *p)
{
    if (p->watched >= 0) {
        require(pipit_client_watch(p->client, p->watched, 0) == 0);
        (void)close(p->watched);
        p->watched = -1;
        return;
    }
    p->watched = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
    require(p->watched >= 0 && pipit_client_watch(p->client, p->watched, POLLIN) == 0);
}

static void act(struct play *p)
{
    uint8_t what = take(&p->in) % 14;
    struct ask *a;

    if (what == 12) {
        connect_by_path(take(&p->in) % 4);
        return;
    }
    if (what == 13) {
        watch(p);
        return;
    }

    if (what == 0 && p->daemon >= 0) {
        say_record(p);
        return;
    }
    if (what == 3) {
        (void)!pipit_client_dispatch(p->client, 0);
        return;
    }
    if (what == 5 || what == 6 || what == 7 || what == 11 || what == 0) {
        if (what == 5) {
            call(p, take(&p->in) % CALLS);
        } else if (what == 6) {
            write_arena(p);
        } else if (what == 7) {
            lease(p);
        } else if (what == 11 && p->daemon >= 0) {
            (void)close(p->daemon);
            p->daemon = -1;
        }
        return;
    }
    a = &p->asks[take(&p->in) % N_REQUESTS];
    if (what == 1) {
        make_request(p, a);
    } else if (what == 2 && a->q) {
        (void)pipit_request_cancel(a->q);
    } else if (what == 4) {
        read_events(a);
    } else if (what == 8 && !a->q && pipit_request_create(p->client, PIPIT_GENERATE, &a->q) == 0) {
        require(pipit_request_set_id(a->q, a->id) == 0);
        (void)!pipit_request_resume(a->q, 1 + take(&p->in), NULL);
    } else if (what == 9 && a->q) {
        (void)pipit_request_credit(a->q, take(&p->in));
    } else if (what == 10) {
        drop_request(a);
    }
}

static int one(const uint8_t *data, size_t size)
{
    struct play p = {.in = {.p = data, .left = size}, .watched = -1};
    struct pipit_error e = {0};
    int pair[2];

    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    p.daemon = pair[0];
    require(pipit_client_create(&p.client) == 0);
    require(pipit_client_set_timeout_ms(p.client, 20) == 0);
    require(pipit_client_set_reconnect_ms(p.client, 0) == 0);
    for (int i = 0; i < N_REQUESTS; i++) {
        p.asks[i].id[0] = (uint8_t)(1 + i);
        p.asks[i].next_seq = 1;
    }
    say_hello(&p, take(&p.in));
    fail_begin(FAIL_ALL);
    if (pipit_client_connect_fd(p.client, pair[1], &e)) {
        check_error(&e);
    }
    fail_begin(FAIL_MEMORY);
    while (p.in.left > 0) {
        act(&p);
        listen_to_client(&p);
    }
    (void)!pipit_client_dispatch(p.client, 0);
    fail_end();
    if (p.watched >= 0) {
        watch(&p);
    }
    for (int i = 0; i < N_REQUESTS; i++) {
        read_events(&p.asks[i]);
        drop_request(&p.asks[i]);
    }
    for (int i = 0; i < N_LEASES; i++) {
        pipit_lease_put(p.leases[i]);
    }
    pipit_client_destroy(p.client);
    listen_to_client(&p);
    if (p.daemon >= 0) {
        (void)close(p.daemon);
    }
    (void)munmap(p.e2c, ARENA_BYTES);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fail_run(data, size, one);
}

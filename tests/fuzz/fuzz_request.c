/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what pipitd passes on to pipit-engine: the record of a request, and its items, which a
 * client wrote and nobody has read yet. The harness is the front: both threads of the engine's
 * process run, on a small model. Input:
 *
 *     byte 0     the kind of request
 *     byte 1     bit 0 a token lease, 1 an output lease, 2 a folder for sessions, 3 it is cancelled
 *                at once, 4 the same request a second time, 5 the lane is closed meanwhile, 6 it
 * goes on with a session that another request has begun, 7 as a replay of that one byte 2     bits
 * 0-3 how many ids were said before a crash, 4-5 the session's policy, 6 it is a chat, 7 its
 * context is nearly full byte 3     how many changes to the record follow: offset in its body,
 * length, bytes the rest   the items; in the token lease its bytes, as ids
 *
 * Promises: each record is one that an engine may send; each request ends exactly once, with
 * LANE_DONE or an error that has a text, after no more tokens than it may have; their texts are
 * whole characters; a closed lane falls quiet; and a plain request after it says what it said
 * before it. Memory can fail meanwhile (fail.h). */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sock.h"
#include "base/utf8.h"
#include "daemon/worker/io.h"
#include "daemon/worker/worker.h"
#include "proto/lane/tlv.h"
#include "tests/fuzz/fail.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    LEASE_IN = 1,
    LEASE_OUT = 2,
    FOLDER = 4,
    CANCEL = 8,
    TWICE = 16,
    CLOSE = 32,
    AFTER = 64,
    REPLAY = 128,
    N_FORCED = 15,
    BY_CHAT = 64,
    LONG = 128,
    CTX = 96,
    JOURNAL_BYTES = 1 << 17,
    ITEMS_AT = 4096,
    MOST_ITEMS = 1 << 15,
    FORCED_AT = 1 << 16,
    PLAIN_AT = 1 << 10,
    ARENA_BYTES = 1 << 17,
    LIMIT = 6, /* tokens of an answer */
    PATIENCE_MS = 60000
};

static struct worker worker;
static uint8_t *journal;
static uint8_t *c2e;
static int front = -1;
static int engine_end = -1;
static int arenas[2];
static int dir;
static char folder[] = "/tmp/fuzz-request-XXXXXX";

/* What has come of the two requests that may run. */
struct answer {
    uint8_t id[16];
    int32_t n_tokens;
    int32_t most;
    int32_t tokens[LIMIT];
    bool ended;
    bool failed;
};

/* ---- the engine's process -----------------------------------------------------------------------
 */

static void *run_io(void *arg)
{
    (void)io_run(arg, engine_end);
    return NULL;
}

static void empty_folder(void)
{
    DIR *d = fdopendir(dup(dir));

    require(d != NULL);
    rewinddir(d);
    for (struct dirent *f; (f = readdir(d));) {
        (void)unlinkat(dir, f->d_name, 0);
    }
    (void)closedir(d);
}

static void clean(void)
{
    empty_folder();
    (void)rmdir(folder);
}

static void send_record(const struct lane_record *r, const int *fds, int n_fds)
{
    require(sock_send(front, r, sizeof(*r), fds, n_fds) == 0);
}

static bool receive(struct lane_record *ret)
{
    struct pollfd p = {.fd = front, .events = POLLIN};
    struct error e = {0};
    int n;

    do { /* libFuzzer has an alarm */
        n = poll(&p, 1, PATIENCE_MS);
    } while (n < 0 && errno == EINTR);
    require(n == 1);
    require(recv(front, ret, sizeof(*ret), 0) == (ssize_t)sizeof(*ret));
    require(lane_record_check(ret, sizeof(*ret), LANE_PEER_ENGINE, &e) == 0);
    return true;
}

/* The model has no template of its own, and no tokens for a known one. */
static const char *write_template(void)
{
    static const char text[] =
        "{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% for m in messages %}{{ m.role + ': ' + m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name + (c.function.arguments | tojson) }}"
        "{% endfor %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}";
    static char path[64];
    int fd = memfd_create("template", MFD_CLOEXEC);

    require(fd >= 0 && write(fd, text, sizeof(text) - 1) == (ssize_t)sizeof(text) - 1);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return path;
}

static void start(void)
{
    struct lane_record r = {0};
    pthread_t threads[2];
    int pair[2];

    log_init("fuzz", LOG_LEVEL_ERR);
    require(mkdtemp(folder) != NULL);
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    require(dir >= 0 && atexit(clean) == 0);
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    front = pair[0];
    engine_end = pair[1];
    require(fcntl(engine_end, F_SETFL, O_NONBLOCK) == 0);
    journal = calloc(1, JOURNAL_BYTES);
    require(journal != NULL);
    for (int i = 0; i < 2; i++) {
        arenas[i] = memfd_create("arena", MFD_CLOEXEC);
        require(arenas[i] >= 0 && ftruncate(arenas[i], ARENA_BYTES) == 0);
    }
    c2e = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, arenas[0], 0);
    require(c2e != MAP_FAILED);
    require(worker_init(&worker, NULL) == 0);
    engine_config_default(&worker.config);
    worker.config.model_path = PIPIT_TEST_DATA "/stories260K.gguf";
    worker.config.backend = "ref";
    worker.config.n_threads = 1;
    worker.config.ctx = CTX;
    worker.config.n_seqs = 2;
    worker.config.kv = "full=50%;kv8+h2o:24,recent=50%=50%";
    worker.config.n_draft = 3;
    worker.config.keep_prefixes = true;
    worker.chat_template = write_template();
    worker.answer_limit = LIMIT;
    worker.tool_format = "hermes";
    worker.journal = journal;
    worker.journal_bytes = JOURNAL_BYTES;
    require(pthread_create(&threads[0], NULL, worker_main, &worker) == 0);
    require(pthread_create(&threads[1], NULL, run_io, &worker) == 0);
    while (r.h.type != LANE_ENGINE_STATE || r.e_state.state != LANE_READY) {
        require(receive(&r) && r.h.type != LANE_ERROR);
    }
}

/* ---- requests -----------------------------------------------------------------------------------
 */

static void note(struct answer *a, const struct lane_record *r)
{
    require(!a->ended);
    switch (r->h.type) {
    case LANE_TOKEN:
        require(utf8_valid((const char *)r->token.text, r->token.text_len));
        require(a->n_tokens < a->most);
        if (a->n_tokens < LIMIT) {
            a->tokens[a->n_tokens] = r->token.token;
        }
        a->n_tokens++;
        break;
    case LANE_TEXT:
        require(utf8_valid((const char *)r->token.text, r->token.text_len));
        break;
    case LANE_ERROR:
        require(r->error.text[0]);
        a->failed = a->ended = true;
        break;
    case LANE_DONE:
        a->ended = true;
        break;
    default:
        break;
    }
}

/* Reads until both have ended and, with `lane`, that one is quiet. */
static void wait_for(struct answer *a, struct answer *b, uint64_t lane)
{
    struct lane_record r;

    while (!a->ended || (b && !b->ended) || lane) {
        (void)receive(&r);
        if (r.h.type == LANE_ENGINE_LANE_QUIET) {
            require(r.e_lane.lane_id == lane);
            lane = 0;
        } else if (memcmp(r.h.id, a->id, sizeof(a->id)) == 0) {
            note(a, &r);
        } else if (b && memcmp(r.h.id, b->id, sizeof(b->id)) == 0) {
            note(b, &r);
        } else {
            require(r.h.type == LANE_ENGINE_STATE || r.h.type == LANE_ENGINE_REPORT);
        }
    }
}

static void say_lane(uint32_t type)
{
    struct lane_record r;

    lane_record_init(&r, type, NULL);
    r.e_lane.lane_id = 1;
    r.e_lane.c2e_bytes = ARENA_BYTES;
    r.e_lane.e2c_bytes = ARENA_BYTES;
    send_record(&r, arenas, type == LANE_ENGINE_LANE_OPEN ? 2 : 0);
}

static void say_credit(const uint8_t id[16])
{
    struct lane_record r;

    lane_record_init(&r, LANE_ENGINE_CREDIT, id);
    r.credit.n_rows = 1 << 20;
    send_record(&r, NULL, 0);
}

/* A plain request, after anything: it says what it said the first time. */
static void ask_plainly(void)
{
    static struct answer first;
    struct tlv_writer w = {.buf = journal + PLAIN_AT, .cap = ITEMS_AT - PLAIN_AT};
    struct tlv_sampling s = tlv_sampling_default();
    struct answer a = {.id = {7}, .most = LIMIT};
    struct lane_record r;

    s.flags = TLV_S_GREEDY | TLV_S_IGNORE_END;
    s.max_tokens = 2;
    tlv_put(&w, TLV_PROMPT, "Once", 4);
    tlv_put(&w, TLV_SAMPLING, &s, sizeof(s));
    lane_record_init(&r, LANE_ENGINE_REQUEST, a.id);
    r.e_request.kind = LANE_KIND_GENERATE;
    r.e_request.journal_offset = PLAIN_AT;
    r.e_request.tlv_bytes = (uint32_t)w.used;
    r.e_request.principal = 9;
    send_record(&r, NULL, 0);
    wait_for(&a, NULL, 0);
    require(!a.failed && a.n_tokens == 2);
    if (!first.ended) {
        first = a;
    }
    require(memcmp(first.tokens, a.tokens, sizeof(a.tokens)) == 0);
}

static void change(struct lane_record *r, struct input *in, unsigned n)
{
    while (n-- > 0 && in->left >= 2) {
        size_t at = in->p[0] % sizeof(r->e_request);
        size_t len = in->p[1];

        in->p += 2;
        in->left -= 2;
        len = len < in->left ? len : in->left;
        len = len < sizeof(r->e_request) - at ? len : sizeof(r->e_request) - at;
        memcpy((uint8_t *)&r->e_request + at, in->p, len);
        in->p += len;
        in->left -= len;
    }
}

/* A request that begins the session "one" and says three tokens; it ends before the input's begins.
 */
static void begin_session(const uint8_t *head, struct answer *ret)
{
    static const char *const policies[] = {NULL, "kv8+h2o:24,recent=50%", "full,chunk=64", "full"};
    static const char prompt[] = "Once upon a time there was a little girl who liked to play and "
                                 "to run and to sing and to laugh all day long, and to eat and";
    const char *policy = policies[head[2] >> 4 & 3];
    struct tlv_writer w = {.buf = journal + PLAIN_AT, .cap = ITEMS_AT - PLAIN_AT};
    struct tlv_sampling s = tlv_sampling_default();
    struct lane_record r;

    *ret = (struct answer){.id = {3}, .most = LIMIT};
    s.flags = TLV_S_GREEDY | TLV_S_IGNORE_END;
    s.max_tokens = 3;
    tlv_put(&w, TLV_SESSION, "one", 3);
    tlv_put(&w, TLV_PROMPT, prompt, head[2] & LONG ? sizeof(prompt) - 1 : 4);
    tlv_put(&w, TLV_SAMPLING, &s, sizeof(s));
    if (policy) {
        tlv_put(&w, TLV_POLICY, policy, strlen(policy));
    }
    lane_record_init(&r, LANE_ENGINE_REQUEST, ret->id);
    r.e_request.kind = head[2] & BY_CHAT ? LANE_KIND_CHAT : LANE_KIND_GENERATE;
    r.e_request.journal_offset = PLAIN_AT;
    r.e_request.tlv_bytes = (uint32_t)w.used;
    r.e_request.principal = 5;
    r.e_request.flags = LANE_F_SESSION;
    r.e_request.session_bytes = 1 << 24;
    memcpy(r.e_request.client_id, r.h.id, sizeof(r.h.id));
    send_record(&r, &dir, 1);
    wait_for(ret, NULL, 0);
}

/* `said`: of the request that is replayed, or NULL. */
static void fill_record(struct lane_record *r, const uint8_t *head, struct input *in,
                        const struct answer *said)
{
    unsigned bits = head[1];
    unsigned n_forced = head[2] & N_FORCED;

    r->e_request.kind = head[0];
    r->e_request.journal_offset = ITEMS_AT;
    r->e_request.forced_offset = FORCED_AT;
    r->e_request.n_forced = n_forced;
    r->e_request.lane_id = 1;
    r->e_request.principal = 5;
    r->e_request.seed = 11;
    r->e_request.out_bytes = bits & LEASE_OUT ? ARENA_BYTES : 0;
    r->e_request.flags = bits & FOLDER ? LANE_F_SESSION : 0;
    r->e_request.session_bytes = 1 << 24;
    memcpy(r->e_request.client_id, r->h.id, sizeof(r->h.id));
    for (unsigned i = 0; i < n_forced; i++) {
        int32_t id = said && i < LIMIT ? said->tokens[i] : (int32_t)(300 + i * 7);

        memcpy(journal + FORCED_AT + i * sizeof(id), &id, sizeof(id));
    }
    if (said) {
        r->e_request.flags |= LANE_F_REPLAYED;
        memcpy(r->e_request.client_id, said->id, sizeof(said->id));
    }
    r->e_request.tlv_bytes = 0;
    r->e_request.in_bytes = 0;
    change(r, in, head[3] % 8);
    in->left = in->left < MOST_ITEMS ? in->left : MOST_ITEMS;
    if (bits & LEASE_IN) {
        memcpy(c2e, in->p, in->left);
        r->e_request.in_bytes = r->e_request.in_bytes ? r->e_request.in_bytes : in->left & ~3ull;
        in->left = 0;
    }
    memcpy(journal + ITEMS_AT, in->p, in->left);
    r->e_request.tlv_bytes += (uint32_t)in->left;
}

static int one(const uint8_t *data, size_t size)
{
    struct input in = {.p = data, .left = size};
    struct answer a = {.id = {1}};
    struct answer b = {.id = {2}};
    struct answer said = {.ended = false};
    struct lane_record r;
    struct lane_record checked;
    bool twice;

    if (size < 4) {
        return 0;
    }
    in.p += 4;
    in.left -= 4;
    if (front < 0) {
        fail_spare();
        start();
        ask_plainly();
    }
    if (data[1] & AFTER) {
        begin_session(data, &said);
    }
    lane_record_init(&r, LANE_ENGINE_REQUEST, a.id);
    fill_record(&r, data, &in, data[1] & AFTER && data[1] & REPLAY ? &said : NULL);
    checked = r;
    if (lane_record_check(&checked, sizeof(checked), LANE_PEER_FRONT_TO_ENGINE, NULL)) {
        if (data[1] & AFTER) {
            empty_folder();
        }
        return 0; /* no front sends it, and the engine ends */
    }
    twice = data[1] & TWICE;
    a.most = b.most =
        data[0] == LANE_KIND_GENERATE || data[0] == LANE_KIND_CHAT ? LIMIT + 16 : INT32_MAX;
    fail_begin(FAIL_MEMORY);
    say_lane(LANE_ENGINE_LANE_OPEN);
    for (int i = 0; i < 1 + twice; i++) {
        memcpy(r.h.id, i ? b.id : a.id, sizeof(r.h.id));
        send_record(&r, &dir, data[1] & FOLDER ? 1 : 0);
        say_credit(r.h.id);
    }
    if (data[1] & CANCEL) {
        lane_record_init(&checked, LANE_ENGINE_CANCEL, a.id);
        checked.e_cancel.reason = LANE_REASON_CANCELLED;
        send_record(&checked, NULL, 0);
    }
    if (data[1] & CLOSE) {
        say_lane(LANE_ENGINE_LANE_CLOSE);
        wait_for(&a, twice ? &b : NULL, 1);
    } else {
        wait_for(&a, twice ? &b : NULL, 0);
        say_lane(LANE_ENGINE_LANE_CLOSE);
        wait_for(&a, NULL, 1);
    }
    fail_end();
    ask_plainly();
    if (data[1] & (FOLDER | AFTER)) {
        empty_folder();
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fail_run(data, size, one);
}

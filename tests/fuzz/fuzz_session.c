/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes saved sessions (daemon/worker/session.h). The input's first byte names an engine (its
 * policy), the second one says which sums are made right after the changes (bits 0 to 2: the
 * text's, the snapshot's, the header's), so that what lies behind them is reached, and how it is
 * used (below); then come changes to a good file, as in fuzz_snapshot: an offset (16 bits), a
 * length (8 bits) and so many bytes. A length of 0 cuts the file, or makes it longer, to `offset`
 * bytes.
 *
 * Promises: a session is refused with a code and a text that names it, and its file is as it was;
 * or its text is of the model's tokens, an engine goes on from it or says why not, and it is
 * written again and reads the same. Memory and files can fail (fail.h): what fails says so, and the
 * file is as it was, or the one that should be. */

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/budget.h"
#include "daemon/worker/session.h"
#include "engine/engine.h"
#include "tests/fuzz/fail.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_PROMPT = 12, N_SAID = 5, CTX = 32, MOST = 1 << 17 };

/* Of the second byte. NO_ROOM and NO_WRITES together: the budget is spent by the save before. */
enum { BAD_NAME = 8, LOCKED = 16, STOPPED = 32, NO_ROOM = 64, NO_WRITES = 128 };

struct world {
    const char *kv;
    struct engine *engine;
    uint8_t *file;
    size_t size;
};

static struct world worlds[] = {{.kv = "full"}, {.kv = "kv8+h2o:8"}, {.kv = "fp8+recency:8"}};

enum { N_WORLDS = sizeof(worlds) / sizeof(worlds[0]) };

static char folder[] = "/tmp/fuzz-session-XXXXXX";
static int dir = -1;
static const char file_name[] = "a.session";

static void clean(void)
{
    (void)unlinkat(dir, file_name, 0);
    (void)unlinkat(dir, ".a.session", 0);
    (void)unlinkat(dir, ".lock", 0);
    (void)unlinkat(dir, BUDGET_FILE, 0);
    (void)rmdir(folder);
}

/* ---- a good file --------------------------------------------------------------------------------
 */

struct said {
    int32_t n;
    int32_t tokens[N_SAID + 1];
    bool done;
};

static void on_event(void *arg, const struct engine_event *ev)
{
    struct said *s = ev->user;

    (void)arg;
    if (ev->type == ENGINE_EV_TOKEN) {
        require(s->n <= N_SAID);
        s->tokens[s->n++] = ev->token;
    }
    s->done = s->done || ev->type == ENGINE_EV_DONE;
}

static void open_session(struct session *s)
{
    session_init(s);
    s->quota = 1 << 30;
}

struct memory {
    const void *p;
    size_t n;
};

static int next_block(void *arg, const void **ret, size_t *ret_n, struct error *reterr)
{
    const struct memory *m = arg;

    (void)reterr;
    *ret = m->p;
    *ret_n = m->n;
    return 0;
}

static size_t read_file(uint8_t *to)
{
    int fd = openat(dir, file_name, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    require(fd >= 0);
    n = read(fd, to, MOST);
    require(n >= 0 && n < MOST);
    (void)close(fd);
    return (size_t)n;
}

static void read_back(struct world *w)
{
    w->size = read_file(w->file);
    require(w->size > SESSION_HEADER_BYTES);
}

/* False: a call failed, which it says. */
static bool write_session(const struct session *s, const struct session_text *text, void *block,
                          size_t n)
{
    struct memory m = {.p = block, .n = n};
    const struct session_block b = {.bytes = n, .next = next_block, .arg = &m};
    struct error e = {0};
    uint64_t bytes;
    int r;

    fail_begin(FAIL_ALL);
    r = session_write(s, text, &b, &bytes, &e);
    r = r ? r : session_commit(s, &e);
    fail_end();
    require(r == 0 || (fail_hit() && e.code == r && e.text[0]));
    return r == 0;
}

static void make_file(struct world *w)
{
    int32_t ids[N_PROMPT + N_SAID];
    struct said said = {0};
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = ids,
                               .n_prompt = N_PROMPT,
                               .max_tokens = N_SAID + 1,
                               .ignore_end = true,
                               .user = &said,
                               .sampler = sampler_params_default()};
    struct session s;
    uint64_t handle;
    void *block;
    size_t n;

    for (int32_t i = 0; i < N_PROMPT; i++) {
        ids[i] = 3 + i;
    }
    require(engine_submit(w->engine, &q, &handle, NULL) == 0);
    while (said.n < N_SAID) {
        require(engine_step(w->engine, on_event, NULL) > 0);
    }
    memcpy(ids + N_PROMPT, said.tokens, sizeof(ids) - N_PROMPT * sizeof(*ids));
    require(engine_save(w->engine, handle, &block, &n, NULL) == 0);
    require(engine_cancel(w->engine, handle, ENGINE_CANCELLED) == 0);
    while (engine_step(w->engine, on_event, NULL) > 0) {
    }
    const struct session_text text = {.identity = engine_info(w->engine)->identity,
                                      .policy = engine_info(w->engine)->kv,
                                      .ids = ids,
                                      .n = N_PROMPT + N_SAID,
                                      .n_prompt = N_PROMPT,
                                      .n_answer = N_SAID};

    open_session(&s);
    require(session_open(&s, w->engine, dup(dir), "a", 1, NULL) == 0 && !session_exists(&s));
    require(write_session(&s, &text, block, n));
    session_close(&s);
    free(block);
    read_back(w);
}

static void make_world(struct world *w)
{
    struct engine_config c;

    if (dir < 0) {
        require(mkdtemp(folder) != NULL);
        dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        require(dir >= 0 && atexit(clean) == 0);
    }
    (void)unlinkat(dir, file_name, 0);
    w->file = malloc(MOST);
    require(w->file != NULL);
    engine_config_default(&c);
    c.model_path = PIPIT_TEST_DATA "/cache_model.gguf";
    c.backend = "ref";
    c.n_threads = 1;
    c.ctx = CTX;
    c.n_seqs = 1;
    c.kv = w->kv;
    require(engine_create(&c, NULL, NULL, &w->engine, NULL) == 0);
    make_file(w);
}

/* ---- a changed one ------------------------------------------------------------------------------
 */

static void sum(const void *data, size_t n, uint8_t ret[32])
{
    require(EVP_Digest(data, n, ret, NULL, EVP_sha256(), NULL) == 1);
}

static void make_sums(uint8_t *file, size_t n, unsigned which)
{
    struct session_header h;

    if (n < sizeof(h)) {
        return;
    }
    memcpy(&h, file, sizeof(h));
    if (h.block_offset >= sizeof(h) && h.block_offset <= n) {
        if (which & 1) {
            sum(file + sizeof(h), (size_t)h.block_offset - sizeof(h), h.text_sha);
        }
        if (which & 2) {
            sum(file + h.block_offset, n - (size_t)h.block_offset, h.block_sha);
        }
    }
    if (which & 4) {
        sum(&h, offsetof(struct session_header, sha), h.sha);
    }
    memcpy(file, &h, sizeof(h));
}

static void check_refusal(const struct error *e, int r, const uint8_t *file, size_t n)
{
    static uint8_t now[MOST];
    int fd = openat(dir, file_name, O_RDONLY | O_CLOEXEC);

    require(r == -ECANCELED || (e->code == r && strstr(e->text, "session")));
    require(r == -EBADMSG || r == -ENOTSUP || r == -EINVAL || r == -EBUSY || r == -ECANCELED ||
            (fail_hit() && (r == -EIO || r == -ENOMEM)));
    require(fd >= 0 && read(fd, now, MOST) == (ssize_t)n && memcmp(now, file, n) == 0);
    (void)close(fd);
}

/* A request goes on from it. */
static void use(struct world *w, struct session *s)
{
    struct said said = {0};
    struct engine_request q = {.kind = ENGINE_GENERATE,
                               .prompt = s->text,
                               .n_prompt = (int32_t)s->head.n_prompt,
                               .forced = s->text + s->head.n_prompt,
                               .n_forced = (int32_t)(s->head.n_text - s->head.n_prompt),
                               .max_tokens = (int32_t)(s->head.n_text - s->head.n_prompt) + 2,
                               .ignore_end = true,
                               .user = &said,
                               .saved_read = session_read,
                               .saved_arg = s,
                               .saved_size = (size_t)s->head.block_bytes,
                               .kv = s->head.policy,
                               .sampler = sampler_params_default()};
    struct error e = {0};
    uint64_t handle;
    int n = 1;
    int r;

    fail_begin(FAIL_CALLS); /* of the file */
    r = engine_submit(w->engine, &q, &handle, &e);
    fail_end();
    if (r) {
        require(e.code < 0 && e.text[0]);
        return;
    }
    while (n > 0) {
        n = engine_step(w->engine, on_event, NULL);
        require(n >= 0);
    }
    require(said.done);
}

/* What cannot be written leaves the file as it was. */
static void write_in_vain(struct session *s, const struct session_text *text,
                          const struct session_block *block, const uint8_t *file, size_t n)
{
    static uint8_t now[MOST];
    struct error e = {0};
    uint64_t bytes;
    int fd;

    fail_begin(FAIL_ALL);
    int r = session_write(s, text, block, &bytes, &e);

    fail_end();
    require((r == -EDQUOT || (r < 0 && fail_hit())) && e.code == r && e.text[0]);
    fd = openat(dir, file_name, O_RDONLY | O_CLOEXEC);
    require(fd >= 0 && read(fd, now, MOST) == (ssize_t)n && memcmp(now, file, n) == 0);
    (void)close(fd);
}

static void write_again(struct world *w, struct session *s, unsigned bits, const uint8_t *file,
                        size_t n)
{
    static uint8_t again[MOST];
    uint8_t *block = malloc((size_t)s->head.block_bytes + 1);
    struct session t;
    atomic_bool stop = false;
    const struct session_text text = {.identity = s->head.identity,
                                      .policy = s->head.policy,
                                      .ids = s->text,
                                      .n = s->head.n_text,
                                      .n_prompt = s->head.n_prompt,
                                      .n_answer = s->head.n_answer};

    require(block && session_read(s, 0, block, (size_t)s->head.block_bytes) == 0);
    if ((bits & NO_ROOM) && (bits & NO_WRITES)) {
        struct memory m = {.p = block, .n = (size_t)s->head.block_bytes};
        const struct session_block b = {.bytes = m.n, .next = next_block, .arg = &m};

        (void)unlinkat(dir, BUDGET_FILE, 0);
        s->writes = 2 * n;
        if (m.n > 0 && write_session(s, &text, block, m.n)) {
            n = read_file(again);
            write_in_vain(s, &text, &b, again, n);
        }
        (void)unlinkat(dir, BUDGET_FILE, 0);
    } else if (bits & (NO_ROOM | NO_WRITES)) {
        struct memory m = {.p = block, .n = (size_t)s->head.block_bytes};
        const struct session_block b = {.bytes = m.n, .next = next_block, .arg = &m};

        s->quota = bits & NO_ROOM ? 1 : s->quota;
        s->writes = bits & NO_WRITES ? 1 : 0;
        write_in_vain(s, &text, &b, file, n);
    } else if (s->head.block_bytes > 0 &&
               write_session(s, &text, block, (size_t)s->head.block_bytes)) {
        session_unlock(s);
        open_session(&t);
        require(session_open(&t, w->engine, dup(dir), "a", 1, NULL) == 0);
        require(session_load(&t, engine_info(w->engine)->n_vocab, &stop, NULL) == 0);
        require(t.head.n_text == s->head.n_text && t.head.n_prompt == s->head.n_prompt &&
                t.head.n_answer == s->head.n_answer && strcmp(t.head.policy, s->head.policy) == 0);
        require(memcmp(t.text, s->text, t.head.n_text * sizeof(*t.text)) == 0);
        require(memcmp(t.head.block_sha, s->head.block_sha, sizeof(t.head.block_sha)) == 0);
        session_close(&t);
    }
    free(block);
}

static int one(const uint8_t *data, size_t size)
{
    static uint8_t file[MOST];
    atomic_bool stop = false;
    struct error e = {0};
    struct session other;
    struct session s;
    struct world *w;
    size_t n;
    int fd;
    int r;

    if (size < 2) {
        return 0;
    }
    w = &worlds[data[0] % N_WORLDS];
    memcpy(file, w->file, w->size);
    n = input_change(file, w->size, data + 2, size - 2);
    make_sums(file, n, data[1]);
    fd = openat(dir, file_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, file, n) == (ssize_t)n);
    (void)close(fd);
    open_session(&s);
    open_session(&other);
    if (data[1] & LOCKED) {
        (void)!session_open(&other, w->engine, dup(dir), "a", 1, NULL);
    }
    atomic_store(&stop, (data[1] & STOPPED) != 0);
    fail_begin(FAIL_ALL);
    r = session_open(&s, w->engine, dup(dir), data[1] & BAD_NAME ? "." : "a", 1, &e);
    r = r ? r : session_load(&s, engine_info(w->engine)->n_vocab, &stop, &e);
    fail_end();
    if (r) {
        check_refusal(&e, r, file, n);
    } else {
        require(s.head.n_prompt >= 1 && s.head.n_prompt < s.head.n_text);
        for (uint32_t i = 0; i < s.head.n_text; i++) {
            require(s.text[i] >= 0 && s.text[i] < engine_info(w->engine)->n_vocab);
        }
        use(w, &s);
        write_again(w, &s, data[1], file, n);
    }
    session_close(&s);
    session_close(&other);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && !worlds[data[0] % N_WORLDS].engine) {
        make_world(&worlds[data[0] % N_WORLDS]);
    }
    return fail_run(data, size, one);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences whose K and V lie on disk leave and come back: to the bit as if they had stayed, into a
 * file, beside a pool that spills, or into memory, and from there; at rest in slices beside others.
 * What fails of the file ends the save, or the one that came back, with the cause, and nobody else.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv/plan/plan.h"
#include "tests/turn.h"
#include "tests/unit/engine_run.h"

enum { N_PROMPT = 150, N_NEW = 60, CTX = 256 };

static enum { NO_FAULT, READ_EIO, DISK_FULL } fault;
static off_t fault_from;
static off_t fault_to = (off_t)1 << 60;

static ssize_t read_or_fail(void *arg, int fd, void *to, size_t n, off_t at)
{
    (void)arg;
    if (fault == READ_EIO && at >= fault_from && at < fault_to) {
        errno = EIO;
        return -1;
    }
    return pread(fd, to, n, at);
}

static ssize_t write_or_fail(void *arg, int fd, const void *from, size_t n, off_t at)
{
    (void)arg;
    if (fault == DISK_FULL && at >= fault_from) {
        errno = ENOSPC;
        return -1;
    }
    return pwrite(fd, from, n, at);
}

static const struct tier_calls calls = {read_or_fail, write_or_fail, NULL};

static const char *swift;
static const char *skew = "cache_skew.gguf";

static struct engine *open_engine(const char *backend, int32_t n_seqs, const char *kv)
{
    run_tier_calls = &calls;
    run_overlay_below = swift;
    return run_engine_overlay("cache_model.gguf", skew, backend, CTX, n_seqs, kv);
}

static struct engine_request request(struct engine *e, int i)
{
    static int32_t ids[3][N_PROMPT];

    run_tokens(60 + (uint64_t)i, engine_info(e)->n_vocab, ids[i], N_PROMPT);
    struct engine_request q = run_request(ids[i], N_PROMPT - 7 * i, N_NEW);

    q.sampler.temperature = 0.9f;
    q.sampler.seed = 5;
    return q;
}

struct block {
    void *p;
    size_t size;
};

/* Runs request 0 beside request 1 until `at` new tokens are there, and saves it. */
static struct block leave(struct engine *e, int32_t at)
{
    struct engine_request q[2] = {request(e, 0), request(e, 1)};
    struct block b = {0};
    struct run r[2];
    struct error err = {0};

    run_submit(e, &q[0], &r[0]);
    run_submit(e, &q[1], &r[1]);
    while (r[0].n_new < at) {
        (void)run_step(e);
    }
    cr_assert_eq(engine_save(e, r[0].handle, &b.p, &b.size, &err), 0, "%s", err.text);
    cr_assert_eq(engine_cancel(e, r[0].handle, ENGINE_CANCELLED), 0);
    run_all(e);
    cr_assert_eq(r[1].reason, ENGINE_LENGTH, "%s", r[1].error.text);
    run_clear(&r[0]);
    run_clear(&r[1]);
    return b;
}

static struct engine_request back(struct engine *e, const struct block *b, const struct run *whole,
                                  int32_t at)
{
    struct engine_request q = request(e, 0);

    q.saved = b->p;
    q.saved_size = b->size;
    q.forced = whole->tokens;
    q.n_forced = at;
    return q;
}

static void come_back(const char *backend, const char *from, const char *to)
{
    if (!takes_turn()) {
        return;
    }

    static const int32_t at[] = {1, 42, 43}; /* 42: 150 and 41 fed, a slot short of three pages */
    struct engine *e = open_engine(backend, 2, from);
    struct run whole;
    struct engine_request q = request(e, 0);

    run_submit(e, &q, &whole);
    run_all(e);
    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        struct block b = leave(e, at[i]);
        struct engine *other = open_engine(backend, 2, to);
        struct engine_request company = request(other, 2);
        struct run r;
        struct run beside;

        run_submit(other, &company, &beside);
        while (beside.n_new < 5) {
            (void)run_step(other);
        }
        q = back(other, &b, &whole, at[i]);
        run_submit(other, &q, &r);
        free(b.p);
        run_all(other);
        cr_assert_eq(r.reason, ENGINE_LENGTH, "%s, %s: %s", from, to, r.error.text);
        cr_assert_eq(r.usage.n_cached, N_PROMPT);
        cr_assert_eq(r.n_new, N_NEW - at[i]);
        cr_assert_eq(memcmp(r.tokens, whole.tokens + at[i], (size_t)r.n_new * sizeof(int32_t)), 0,
                     "%s, %s differs after %d", from, to, at[i]);
        cr_assert_eq(memcmp(r.logprobs, whole.logprobs + at[i], (size_t)r.n_new * sizeof(float)), 0,
                     "%s, %s differs after %d", from, to, at[i]);
        cr_assert_eq(beside.reason, ENGINE_LENGTH, "%s", beside.error.text);
        run_clear(&r);
        run_clear(&beside);
        engine_destroy(other);
    }
    run_clear(&whole);
    engine_destroy(e);
}

Test(tier_saved, as_if_it_had_never_left)
{
    static const char *const backends[] = {"ref", "cpu"};

    for (int b = 0; b < 2; b++) {
        come_back(backends[b], "infinigen:share=100%,pool=disk", "infinigen:share=100%,pool=disk");
        come_back(backends[b], "k16v8+infinigen:alpha=1,skew=off,pool=disk",
                  "k16v8+infinigen:alpha=1,skew=off,pool=disk");
        come_back(backends[b], "fp8+full,chunk=23+infinigen:count=9,partial8=on,pool=disk",
                  "fp8+full,chunk=23+infinigen:count=9,partial8=on");
        come_back(backends[b], "infinigen:count=9", "infinigen:count=9,pool=disk");
        come_back(backends[b], "infinigen:count=9,pool=disk",
                  "infinigen:count=9,pool=90,full=spill,victim=lru");
        come_back(backends[b], "infinigen:count=9,pool=90,full=spill,victim=counter",
                  "infinigen:count=9,pool=disk");
    }
}

Test(tier_saved, acrosskv)
{
    swift = "cache_swiftkv_2_3.gguf";
    skew = "cache_skew_2_3.gguf";
    come_back("cpu", "infinigen:count=9,pool=disk", "infinigen:count=9,pool=disk");
    come_back("ref", "infinigen:count=9", "infinigen:count=9,pool=disk");
}

/* It is not the same sequence where anything but K's and V's place differs. */
Test(tier_saved, another_choice_is_refused)
{
    static const char *const others[] = {"infinigen:count=10,pool=disk",
                                         "infinigen:count=9,pool=90",
                                         "infinigen:count=9,partial8=on,pool=disk"};
    struct engine *e = open_engine("cpu", 2, "infinigen:count=9,pool=disk");
    struct block b = leave(e, 3);

    engine_destroy(e);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct error err = {0};
        uint64_t h;

        e = open_engine("cpu", 2, others[i]);
        struct engine_request q = request(e, 0);

        q.saved = b.p;
        q.saved_size = b.size;
        cr_assert_eq(engine_submit(e, &q, &h, &err), -EINVAL, "%s", others[i]);
        cr_assert(strstr(err.text, "was saved under policy"), "%s", err.text);
        engine_destroy(e);
    }
    free(b.p);
}

struct at_rest {
    struct engine *e;
    uint64_t handle;
    struct block whole;
    uint64_t bytes;
    size_t least;
    int32_t n_beside; /* the other one's tokens */
    bool fails;
};

static void on_event(void *arg, const struct engine_event *ev)
{
    struct at_rest *x = arg;
    struct error err = {0};

    if (ev->user != x) {
        cr_assert(ev->type != ENGINE_EV_DONE || ev->reason == ENGINE_LENGTH);
        x->n_beside += ev->type == ENGINE_EV_TOKEN;
    } else if (ev->type == ENGINE_EV_DONE) {
        if (!x->fails) {
            cr_assert_eq(engine_save(x->e, x->handle, &x->whole.p, &x->whole.size, &err), 0, "%s",
                         err.text);
        }
        if (x->fails) {
            fault_to = (off_t)engine_plan_of(x->e)->file_bytes / 2; /* the first sequence's */
        }
        cr_assert_eq(engine_save_begin(x->e, x->handle, &x->bytes, &x->least, &err), 0, "%s",
                     err.text);
    }
}

/* One at rest in the first sequence, another that runs in the second. */
static void rest(struct at_rest *x, const char *kv)
{
    struct engine_request q;
    uint64_t other;
    struct error err = {0};

    x->e = open_engine("cpu", 2, kv);
    q = request(x->e, 0);
    q.user = x;
    cr_assert_eq(engine_submit(x->e, &q, &x->handle, &err), 0, "%s", err.text);
    q = request(x->e, 1);
    q.user = NULL;
    q.max_tokens = N_NEW + 20;
    cr_assert_eq(engine_submit(x->e, &q, &other, &err), 0, "%s", err.text);
    while (!x->bytes) {
        cr_assert_gt(engine_step(x->e, on_event, x), 0);
    }
}

static void in_slices(const char *kv, size_t more)
{
    struct at_rest x = {0};
    struct error err = {0};
    size_t done = 0;
    size_t n = 1;

    rest(&x, kv);
    uint8_t *got = malloc(x.bytes + x.least + more);

    while (n > 0) {
        (void)engine_step(x.e, on_event, &x);
        (void)engine_save_waits(x.e, x.handle, x.least + more);
        cr_assert_eq(engine_save_next(x.e, x.handle, got + done, x.least + more, &n, &err), 0, "%s",
                     err.text);
        done += n;
        cr_assert_leq(done, x.bytes);
    }
    cr_assert_eq(done, x.bytes);
    cr_assert_eq(memcmp(got, x.whole.p, done), 0, "%s, slices of %zu", kv, x.least + more);
    engine_save_end(x.e, x.handle);
    while (engine_step(x.e, on_event, &x) > 0) {
    }
    cr_assert_eq(x.n_beside, N_NEW + 20);
    free(got);
    free(x.whole.p);
    engine_destroy(x.e);
}

Test(tier_saved, slices)
{
    in_slices("infinigen:count=9,pool=disk", 0);
    in_slices("infinigen:count=9,pool=disk", 5000);
    in_slices("fp8+infinigen:count=9,pool=90,full=spill", 137);
}

/* What cannot be read does not become a block; who runs beside it does not notice. */
Test(tier_saved, a_read_that_fails_ends_the_save)
{
    struct at_rest x = {.fails = true};
    struct error err = {0};
    size_t n;
    int rc = 0;

    fault =
        READ_EIO; /* begins with the save, which is the first to read the first sequence's part */
    fault_to = 0;
    rest(&x, "infinigen:count=9,pool=disk");
    uint8_t *got = malloc(x.bytes);

    for (n = 1; n > 0 && !rc;) {
        (void)engine_step(x.e, on_event, &x);
        rc = engine_save_next(x.e, x.handle, got, x.least, &n, &err);
    }
    cr_assert_eq(rc, -EIO, "%d", rc);
    cr_assert(strstr(err.text, "the file of keys and values"), "%s", err.text);
    engine_save_end(x.e, x.handle);
    fault = NO_FAULT;
    while (engine_step(x.e, on_event, &x) > 0) {
    }
    cr_assert_eq(x.n_beside, N_NEW + 20);
    free(got);
    engine_destroy(x.e);
}

/* Nor of one that runs: it ends, since its bytes are lost. The sequence is good for the next one.
 */
Test(tier_saved, a_read_that_fails_while_it_runs)
{
    struct engine *e = open_engine("cpu", 2, "infinigen:count=9,pool=disk");
    struct engine_request q[2] = {request(e, 0), request(e, 1)};
    struct run want[2];
    struct run r[2];
    struct error err = {0};
    void *p = NULL;
    size_t size = 0;

    for (int i = 0; i < 2; i++) {
        run_submit(e, &q[i], &want[i]);
    }
    run_all(e);
    for (int i = 0; i < 2; i++) {
        run_submit(e, &q[i], &r[i]);
    }
    while (r[0].n_new < 10) {
        (void)run_step(e);
    }
    fault = READ_EIO;
    cr_assert_eq(engine_save(e, r[0].handle, &p, &size, &err), -EIO);
    fault = NO_FAULT;
    cr_assert(strstr(err.text, "the file of keys and values"), "%s", err.text);
    run_all(e);
    cr_assert_eq(r[0].reason, ENGINE_ERROR);
    cr_assert(run_same(&r[1], &want[1]), "%s", r[1].error.text);
    run_clear(&r[0]);
    run_submit(e, &q[0], &r[0]);
    run_all(e);
    cr_assert(run_same(&r[0], &want[0]));
    for (int i = 0; i < 2; i++) {
        run_clear(&r[i]);
        run_clear(&want[i]);
    }
    engine_destroy(e);
}

/* No room for what comes back: that one ends, and says why. */
Test(tier_saved, a_disk_that_is_full_ends_who_came_back)
{
    struct engine *e = open_engine("cpu", 2, "infinigen:count=9,pool=disk");
    struct engine_request q = request(e, 0);
    struct engine_request other = request(e, 2);
    struct run whole;
    struct run r;
    struct run beside;
    struct block b;

    run_submit(e, &q, &whole);
    run_all(e);
    b = leave(e, 20);
    run_submit(e, &other, &beside);
    while (beside.n_new < 5) {
        (void)run_step(e);
    }
    fault_from = (off_t)engine_plan_of(e)->file_bytes / 2; /* the second sequence's */
    fault = DISK_FULL;
    q = back(e, &b, &whole, 20);
    run_submit(e, &q, &r);
    run_all(e);
    fault = NO_FAULT;
    cr_assert_eq(r.reason, ENGINE_ERROR);
    cr_assert(strstr(r.error.text, "No space left"), "%s", r.error.text);
    cr_assert_eq(beside.reason, ENGINE_LENGTH, "%s", beside.error.text);
    run_clear(&r);
    q = back(e, &b, &whole, 20);
    run_submit(e, &q, &r);
    run_all(e);
    cr_assert_eq(r.n_new, N_NEW - 20, "%s", r.error.text);
    cr_assert_eq(memcmp(r.tokens, whole.tokens + 20, (size_t)r.n_new * sizeof(int32_t)), 0);
    free(b.p);
    run_clear(&r);
    run_clear(&beside);
    run_clear(&whole);
    engine_destroy(e);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* K and V on disk: with all of it read, a sequence says to the bit what it says in memory; with
 * some of it, what it says when the same is chosen in memory; alone, in company, on a sequence that
 * another had, and in steps that are given up. What fails of the file ends the sequence whose bytes
 * they were, with the cause, and nobody else. What is not built is refused. */

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/kv/plan/plan.h"
#include "tests/turn.h"
#include "tests/unit/engine_run.h"

enum { N_PROMPT = 150, N_NEW = 60, CTX = 256 };

/* Calls that fail on purpose: from offset `from` on. */
static struct faults {
    enum { NO_FAULT, SHORT_READ, READ_EIO, DISK_FULL } kind;
    off_t from;
    atomic_int n_failed;
    struct engine *interrupt; /* now and then, from these threads */
    atomic_int n_calls;
    atomic_int n_interrupts;
} faults;

static ssize_t read_or_fail(void *arg, int fd, void *to, size_t n, off_t at)
{
    struct faults *f = arg;

    if (f->interrupt && atomic_fetch_add(&f->n_calls, 1) % 3 == 0) {
        engine_interrupt(f->interrupt);
        atomic_fetch_add(&f->n_interrupts, 1);
    }
    if ((f->kind == SHORT_READ || f->kind == READ_EIO) && at >= f->from) {
        atomic_fetch_add(&f->n_failed, 1);
        errno = EIO;
        return f->kind == SHORT_READ ? 0 : -1;
    }
    return pread(fd, to, n > 4096 && at % 8192 == 0 ? 4096 : n, at); /* some come in pieces */
}

static ssize_t write_or_fail(void *arg, int fd, const void *from, size_t n, off_t at)
{
    struct faults *f = arg;

    if (f->kind == DISK_FULL && at >= f->from) {
        atomic_fetch_add(&f->n_failed, 1);
        errno = ENOSPC;
        return -1;
    }
    return pwrite(fd, from, n, at);
}

static const struct tier_calls faulty = {read_or_fail, write_or_fail, &faults};

/* Overlays: SwiftKV's, if any, and its rotations. */
static const char *swift;
static const char *skew = "cache_skew.gguf";

static struct engine *open_engine(const char *backend, int32_t n_seqs, const char *kv)
{
    run_tier_calls = &faulty;
    run_overlay_below = swift;
    return run_engine_overlay("cache_model.gguf", skew, backend, CTX, n_seqs, kv);
}

static void submit(struct engine *e, int i, struct run *r)
{
    int32_t ids[N_PROMPT];

    run_tokens(60 + (uint64_t)i, engine_info(e)->n_vocab, ids, N_PROMPT - 7 * i);
    struct engine_request q = run_request(ids, N_PROMPT - 7 * i, N_NEW);

    run_submit(e, &q, r);
}

/* Request 0 behind n - 1 others. */
static void answers(const char *backend, const char *kv, int n, struct run *r)
{
    struct engine *e = open_engine(backend, 3, kv);

    for (int i = n - 1; i >= 0; i--) {
        submit(e, i, &r[i]);
        (void)run_step(e);
    }
    run_all(e);
    engine_destroy(e);
}

static void same(const char *backend, const char *on_disk, const char *in_memory)
{
    if (!takes_turn()) {
        return;
    }

    struct run want;
    struct run alone;
    struct run many[3];

    answers(backend, in_memory, 1, &want);
    answers(backend, on_disk, 1, &alone);
    answers(backend, on_disk, 3, many);
    cr_assert_eq(alone.reason, ENGINE_LENGTH, "%s", alone.error.text);
    cr_assert(run_same(&alone, &want), "%s %s", backend, on_disk);
    cr_assert(run_same(&many[0], &want), "%s %s in company", backend, on_disk);
    run_clear(&want);
    run_clear(&alone);
    for (int i = 0; i < 3; i++) {
        run_clear(&many[i]);
    }
}

Test(tier, what_is_read_is_what_was_written)
{
    static const char *const backends[] = {"ref", "cpu"};

    for (int b = 0; b < 2; b++) {
        same(backends[b], "infinigen:share=100%,pool=disk", "full");
        same(backends[b], "fp8+full,chunk=23+infinigen:share=100%,pool=disk", "fp8+full,chunk=23");
        same(backends[b], "infinigen:count=9,pool=disk", "infinigen:count=9");
        same(backends[b], "infinigen:count=9,partial8=on,pool=disk",
             "infinigen:count=9,partial8=on");
        same(backends[b], "k16v8+full,chunk=100+infinigen:alpha=1,skew=off,pool=disk",
             "k16v8+full,chunk=100+infinigen:alpha=1,skew=off");
    }
}

/* Deep stores are written before they are read, one after the other through one staging store.
 * Chunks of 23 leave pages half full, those of 100 go over two, a last one of 22 ends within one.
 */
static void deep(const char *overlay, const char *rotations)
{
    static const char *const backends[] = {"ref", "cpu"};

    swift = overlay;
    skew = rotations;
    for (int b = 0; b < 2; b++) {
        same(backends[b], "infinigen:share=100%,pool=disk", "full");
        same(backends[b], "full,chunk=23+infinigen:count=9,pool=disk",
             "full,chunk=23+infinigen:count=9");
        same(backends[b], "fp8+full,chunk=64+infinigen:alpha=1,pool=disk",
             "fp8+full,chunk=64+infinigen:alpha=1");
        same(backends[b], "k16v8+full,chunk=100+infinigen:share=30%,skew=off,pool=disk",
             "k16v8+full,chunk=100+infinigen:share=30%,skew=off");
    }
}

Test(tier, swiftkv)
{
    deep("cache_swiftkv_2_1.gguf", "cache_skew_2_1.gguf");
}

Test(tier, acrosskv)
{
    deep("cache_swiftkv_2_3.gguf", "cache_skew_2_3.gguf");
}

/* A pool beside the file changes where slots come from, not which are chosen: so the bits are those
 * of a cache without a bound, though 90 of up to 209 slots stay, and 40 where lists take 63. */
Test(tier, a_pool_that_spills_loses_nothing)
{
    static const char *const victims[] = {"fifo", "lru", "counter"};
    char kv[128];

    for (int b = 0; b < 2; b++) {
        const char *backend = b ? "cpu" : "ref";

        for (int v = 0; v < 3; v++) {
            (void)snprintf(kv, sizeof(kv), "infinigen:count=9,pool=90,full=spill,victim=%s",
                           victims[v]);
            same(backend, kv, "infinigen:count=9");
        }
        same(backend, "fp8+full,chunk=23+infinigen:share=30%,pool=40,full=spill,victim=lru",
             "fp8+full,chunk=23+infinigen:share=30%");
        same(backend, "infinigen:share=100%,pool=40,full=spill", "full");
        swift = b ? "cache_swiftkv_2_1.gguf" : "cache_swiftkv_2_3.gguf";
        skew = b ? "cache_skew_2_1.gguf" : "cache_skew_2_3.gguf";
        for (int v = 0; v < 3; v++) {
            (void)snprintf(kv, sizeof(kv),
                           "full,chunk=50+infinigen:count=30,pool=%d,full=spill,victim=%s",
                           v == 2 ? 40 : 33, victims[v]);
            same(backend, kv, "full,chunk=50+infinigen:count=30");
        }
        swift = NULL;
        skew = "cache_skew.gguf";
    }
}

/* Blocks read for new tokens, and for the prompt before them. */
static uint64_t blocks(const char *kv, uint64_t *ret_prompt)
{
    struct engine *e = open_engine("cpu", 1, kv);
    struct tier_counts at_prompt;
    struct tier_counts at_end;
    struct run r;

    submit(e, 0, &r);
    while (r.n_new == 0) {
        (void)run_step(e);
    }
    engine_tier_counts(e, &at_prompt);
    run_all(e);
    engine_tier_counts(e, &at_end);
    cr_assert_eq(r.reason, ENGINE_LENGTH);
    run_clear(&r);
    engine_destroy(e);
    *ret_prompt = at_prompt.n_blocks;
    return at_end.n_blocks - at_prompt.n_blocks;
}

/* What is in the pool is not read: nothing where it holds all, less where it holds some. */
Test(tier, what_stays_is_not_read)
{
    static const char *const victims[] = {"fifo", "lru", "counter"};
    uint64_t prompt[3];
    uint64_t n[3];
    uint64_t fifo = 0;
    char kv[128];

    n[0] = blocks("full,chunk=50+infinigen:count=9,pool=disk", &prompt[0]);
    for (int v = 0; v < 3; v++) {
        for (int i = 1; i < 3; i++) {
            (void)snprintf(kv, sizeof(kv),
                           "full,chunk=50+infinigen:count=9,pool=%s,full=spill,victim=%s",
                           i == 1 ? "130" : "100%ctx", victims[v]);
            n[i] = blocks(kv, &prompt[i]);
        }
        cr_assert(0 < n[1] && n[1] < n[0], "%s: %zu of %zu", victims[v], (size_t)n[1],
                  (size_t)n[0]);
        fifo = v == 0 ? n[1] : fifo;
        cr_assert(v == 0 || n[1] < fifo, "%s: what was listed comes in again", victims[v]);
        cr_assert_eq(n[2], 0);
        cr_assert_lt(prompt[1], prompt[0]);
        cr_assert_eq(prompt[2], 0);
    }
}

/* Slots that lie across blocks, three groups of 64 dims, of which each fetches others: every one
 * that was asked for is there again, whatever was there in between. */
static void across_blocks(const struct tier_pool_rule *rule)
{
    enum { N = 200, GROUPS = 3, BYTES = 256, EACH = 20 };
    const struct backend_config config = {.n_threads = 1};
    struct tier_config c = {
        .n_stores = 2, .n_seqs = 1, .ctx = N, .max_chunk = N, .pool_slots = rule->n_slots};
    struct tier_counts before;
    struct tier_counts after;
    struct backend *be = NULL;
    struct tier *t = NULL;
    struct error err = {0};
    static uint8_t rows[2][GROUPS][N][BYTES];
    static uint8_t got[N][BYTES];
    int32_t n_chosen = 1;
    int32_t slots[GROUPS][EACH];
    const struct ops_chosen chosen = {
        .n = &n_chosen, .slots = slots[0], .max_groups = GROUPS, .ld = EACH};
    struct ops_kv kv = {.n_slots = N};

    cr_assert_eq(backend_find("cpu", &c.ops, &err), 0, "%s", err.text);
    cr_assert_eq(c.ops->create(&config, &be, &err), 0, "%s", err.text);
    c.layout = (struct ops_kv_layout){.n_groups = GROUPS,
                                      .k_heads = 1,
                                      .v_heads = 1,
                                      .k_dim = 64,
                                      .v_dim = 64,
                                      .k_type = OPS_KV_F16,
                                      .v_type = OPS_KV_F16};
    cr_assert_eq(c.ops->kv_layout(&c.layout, &err), 0);
    cr_assert_eq(ops_kv_slot_bytes(&c.layout), BYTES);
    cr_assert_eq(tier_create(&c, be, "/tmp", NULL, &t, &err), 0, "%s", err.text);
    tier_admit(t, 0, rule);
    tier_view(t, 0, &kv);
    for (int store = 0; store < 2; store++) {
        for (int32_t g = 0; g < GROUPS; g++) {
            for (int i = 0; i < N * BYTES; i++) {
                rows[store][g][i / BYTES][i % BYTES] =
                    (uint8_t)((store * 89 + g * 31 + i / BYTES * 7 + i % BYTES) % 60);
            }
            struct ops_kv_slots in = {
                .kv = &kv, .group = g, .n_slots = N, .host = rows[store][g][0]};

            cr_assert_eq(c.ops->kv_import(be, &in), 0);
        }
        cr_assert_eq(tier_open(t, 0, store, 0), 0);
        cr_assert_eq(tier_keep(t, 0, store, 0, N), 0);
    }
    for (int round = 0; round < 40; round++) {
        int store = round < 2 ? 0 : round % 2;

        n_chosen = round < 2 ? 1 : EACH;
        for (int32_t i = 0; i < GROUPS * EACH; i++) { /* ascending, one in ten */
            slots[i / EACH][i % EACH] = i % EACH * 10 + (round * 3 + i / EACH * 5) % 10;
        }
        for (int32_t g = 0; g < GROUPS && round < 2; g++) {
            slots[g][0] = 5; /* the first head ends a block, the others begin the next */
        }
        tier_counts(t, &before);
        tier_fetch(t, 0, store, 0, N, &chosen, 0);
        cr_assert_eq(tier_land(t, store), 0);
        tier_counts(t, &after);
        if (round < 2) { /* again: it has come into the pool, or has not */
            bool here = round == 1 && rule->n_slots > 0 && rule->victim == POLICY_LRU;

            cr_assert_eq(after.n_blocks - before.n_blocks, here ? 0 : 2);
        }
        for (int32_t g = 0; g < GROUPS; g++) {
            struct ops_kv_slots out = {.kv = &kv, .group = g, .n_slots = N, .host = got[0]};

            cr_assert_eq(c.ops->kv_export(be, &out), 0);
            for (int32_t i = 0; i < n_chosen; i++) {
                int32_t s = slots[g][i];

                cr_assert_eq(memcmp(got[s], rows[store][g][s], BYTES), 0,
                             "round %d, group %d, slot %d", round, g, s);
            }
        }
    }
    cr_assert_eq(tier_failed(t, 0, &err), 0);
    tier_destroy(t);
    c.ops->destroy(be);
}

Test(tier, slots_across_blocks)
{
    across_blocks(&(struct tier_pool_rule){POLICY_FIFO, 0, 1});
    across_blocks(&(struct tier_pool_rule){POLICY_FIFO, 150, 1});
    across_blocks(&(struct tier_pool_rule){POLICY_LRU, 150, 1});
}

/* What the plan says that a prompt as long as the context reads is what it reads. */
static void reads(int32_t ctx, const char *chunk)
{
    char kv[96];
    int32_t ids[512];
    struct run r;
    struct tier_counts counts;

    (void)snprintf(kv, sizeof(kv), "full,chunk=%s+infinigen:count=9,pool=disk", chunk);
    run_overlay_below = swift;
    struct engine *e = run_engine_overlay("cache_model.gguf", skew, "cpu", ctx, 1, kv);

    run_tokens(5, engine_info(e)->n_vocab, ids, ctx);
    struct engine_request q = run_request(ids, ctx - 1, 1);

    run_submit(e, &q, &r);
    run_all(e);
    engine_tier_counts(e, &counts);
    cr_assert_eq(r.reason, ENGINE_LENGTH);
    cr_assert_eq(counts.n_blocks * TIER_BLOCK, engine_plan_of(e)->prompt_read_bytes,
                 "%d tokens, %s, %s: %zu read, %zu planned", ctx, kv, swift ? swift : "-",
                 (size_t)counts.n_blocks * TIER_BLOCK,
                 (size_t)engine_plan_of(e)->prompt_read_bytes);
    cr_assert((counts.n_blocks > 0) == (ctx > atoi(chunk) || (swift && ctx > 64)));
    run_clear(&r);
    engine_destroy(e);
}

Test(tier, a_prompt_reads_what_the_plan_says)
{
    static const char *const overlays[3][2] = {
        {NULL, "cache_skew.gguf"},
        {"cache_swiftkv_2_1.gguf", "cache_skew_2_1.gguf"},
        {"cache_swiftkv_2_3.gguf", "cache_skew_2_3.gguf"},
    };

    for (int i = 0; i < 3; i++) {
        swift = overlays[i][0];
        skew = overlays[i][1];
        reads(500, "512");
        reads(500, "64");
        reads(500, "100");
        reads(90, "7");
    }
}

/* One after the other on one sequence, and steps that are interrupted, taken up or given up. */
static void given_up(const char *kv)
{
    struct run want;
    struct run other;
    struct run again;
    struct engine *e = open_engine("cpu", 1, kv);

    submit(e, 1, &other);
    run_all(e);
    submit(e, 0, &again);
    run_all(e);
    engine_destroy(e);
    answers("cpu", kv, 1, &want);
    cr_assert(run_same(&again, &want));
    run_clear(&again);
    run_clear(&other);
    e = open_engine("cpu", 2, kv);
    faults.interrupt = e;
    submit(e, 1, &other);
    submit(e, 0, &again);
    int n_without = 0; /* steps that brought nobody a token: given up, or of a prompt */

    for (int i = 0; !again.done; i++) {
        int32_t before = again.n_new + other.n_new;

        (void)run_step(e);
        n_without += again.n_new + other.n_new == before;
        if (i == 30) {
            cr_assert_not(other.done);
            cr_assert_eq(engine_cancel(e, other.handle, ENGINE_CANCELLED), 0);
        }
        cr_assert_lt(i, 100000);
    }
    faults.interrupt = NULL;
    cr_assert_gt(atomic_load(&faults.n_interrupts), 50);
    cr_assert_gt(n_without, 20, "%d", n_without); /* prompts of 150 by 40 are 4 each */
    run_all(e);
    engine_destroy(e);
    cr_assert(run_same(&again, &want));
    run_clear(&want);
    run_clear(&again);
    run_clear(&other);
}

Test(tier, places_and_steps_that_are_given_up)
{
    given_up("full,chunk=40+infinigen:count=20,pool=disk");
    given_up("full,chunk=40+infinigen:count=20,pool=80,full=spill,victim=lru");
    swift = "cache_swiftkv_2_3.gguf";
    skew = "cache_skew_2_3.gguf";
    given_up("full,chunk=40+infinigen:count=20,pool=disk");
    given_up("full,chunk=40+infinigen:count=20,pool=80,full=spill,victim=counter");
}

/* The file has one format: a request that names another is refused, not given the file's. */
Test(tier, a_request_of_another_format_is_refused)
{
    struct engine *e =
        open_engine("cpu", 12, "fp8+infinigen:count=20,pool=disk=50%;infinigen:count=20=50%");
    int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct engine_request q = run_request(ids, 8, 4);
    struct error err = {0};
    uint64_t h;

    q.kv = "infinigen:count=20,pool=disk";
    cr_assert_eq(engine_submit(e, &q, &h, &err), -ENOMEM);
    cr_assert(strstr(err.text, "planned for another precision"), "%s", err.text);
    engine_destroy(e);
}

static void fault_ends_its_own(const char *kv)
{
    static const struct {
        int kind;
        const char *says;
    } cases[] = {
        {SHORT_READ, "0 of "}, {READ_EIO, "Input/output error"}, {DISK_FULL, "No space left"}};
    struct run want[2];
    struct engine *e = open_engine("cpu", 2, kv);
    off_t half = (off_t)engine_plan_of(e)->file_bytes / 2; /* the second sequence's */

    for (int i = 0; i < 2; i++) {
        submit(e, i, &want[i]);
    }
    run_all(e);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct run r[2];
        struct run after;
        struct engine_counters counters;

        for (int i = 0; i < 2; i++) {
            submit(e, i, &r[i]);
        }
        while (r[1].n_new < 20) {
            (void)run_step(e);
        }
        atomic_store(&faults.n_failed, 0);
        faults.from = half;
        faults.kind = cases[c].kind;
        run_all(e);
        faults.kind = NO_FAULT;
        cr_assert_gt(atomic_load(&faults.n_failed), 0);
        cr_assert_eq(r[1].reason, ENGINE_ERROR, "%s", cases[c].says);
        cr_assert(strstr(r[1].error.text, cases[c].says), "%s", r[1].error.text);
        cr_assert(strstr(r[1].error.text, "the file of keys and values"), "%s", r[1].error.text);
        cr_assert(run_same(&r[0], &want[0]), "%s: the other is hurt", cases[c].says);
        engine_counters(e, &counters);
        cr_assert_eq(counters.kv_bytes_used, 0);
        submit(e, 1, &after); /* the sequence is as good as new */
        run_all(e);
        cr_assert(run_same(&after, &want[1]));
        run_clear(&after);
        run_clear(&r[0]);
        run_clear(&r[1]);
    }
    engine_destroy(e);
    run_clear(&want[0]);
    run_clear(&want[1]);
}

Test(tier, a_fault_ends_its_own_sequence)
{
    fault_ends_its_own("infinigen:share=100%,pool=disk");
    fault_ends_its_own("infinigen:count=30,pool=64,full=spill,victim=lru");
}

static void refused(const char *overlay, const char *dir, const char *kv, int code,
                    const char *says)
{
    struct engine_config c;
    const char *overlays[] = {run_data(overlay)};
    struct engine *e = NULL;
    struct error err = {0};

    engine_config_default(&c);
    c.model_path = run_data("cache_model.gguf");
    c.overlay_paths = overlays;
    c.n_overlays = 1;
    c.backend = "cpu";
    c.n_threads = 1;
    c.ctx = CTX;
    c.n_seqs = 2;
    c.kv = kv;
    c.tier_dir = dir;
    cr_assert_eq(engine_create(&c, NULL, NULL, &e, &err), code, "%s: %s", says, err.text);
    cr_assert(strstr(err.text, says), "%s: %s", says, err.text);
}

Test(tier, refuses_what_cannot_be)
{
    const char *kv = "infinigen:share=10%,pool=disk";
    const struct rlimit small = {65536, RLIM_INFINITY};

    refused("cache_skew.gguf", NULL, kv, -EINVAL, "--tier-dir");
    refused("cache_skew.gguf", "/nowhere", kv, -ENOENT, "/nowhere: no file for keys and values");
    (void)signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    refused("cache_skew.gguf", "/tmp", kv, -EFBIG, "/tmp: no room for 1 MiB of keys and values");
}

/* Messages name the option that put K and V into the file. */
Test(tier, names_the_option_in_force)
{
    const char *spill = "infinigen:share=10%,pool=60,full=spill";

    refused("cache_skew.gguf", NULL, spill, -EINVAL, "full=spill: no directory");
    refused("cache_skew.gguf", NULL, "infinigen:pool=disk", -EINVAL, "pool=disk: no directory");
    refused("cache_skew.gguf", "/tmp",
            "infinigen:pool=disk=50%;fp8+infinigen:share=10%,pool=60,full=spill=50%", -ENOTSUP,
            "pool=disk beside full=spill in one mix");
}

Test(tier, a_plan_without_a_file_has_none_to_give)
{
    struct error err = {0};
    int32_t ids[4] = {1, 2, 3, 4};
    uint64_t handle;
    struct engine *e = open_engine("cpu", 1, "infinigen:share=10%");
    struct engine_request q = run_request(ids, 4, 4);

    q.kv = "infinigen:share=10%,pool=disk";
    cr_assert_eq(engine_submit(e, &q, &handle, &err), -ENOMEM);
    cr_assert(strstr(err.text, "holds no file"), "%s", err.text);
    engine_destroy(e);
    err.code = 0;
    e = open_engine("cpu", 1, "infinigen:share=10%,pool=60,full=spill");
    q.kv = "infinigen:share=10%,pool=61,full=spill";
    cr_assert_eq(engine_submit(e, &q, &handle, &err), -ENOMEM);
    cr_assert(strstr(err.text, "a pool of 61 slots beside the file, the plan has 60"), "%s",
              err.text);
    q.kv = "infinigen:share=10%,pool=disk";
    cr_assert_eq(engine_submit(e, &q, &handle, &err), 0);
    engine_destroy(e);
}

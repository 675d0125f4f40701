/* SPDX-License-Identifier: Apache-2.0 */
/* What a step costs whose K and V lie on disk: time for each new token of a real text, how much of
 * it the engine stood waiting for reads (from timestamps around the waits), what was read. The
 * file's reads can be throttled to a bandwidth, four at a time, so that the answer does not depend
 * on the disk at hand. Beside it what the prompt read, and resident memory against the plan: growth
 * of RssAnon over the engine's life, at its largest (the plan's sum less its lanes), and of VmHWM
 * once it is loaded, which has what is mapped of files in it.
 *
 * usage: pipit-disk MODEL OVERLAY[,OVERLAY] TEXT DIR MB_PER_S CTX DEPTH TOKENS POLICY...
 *        MB_PER_S 0: as the disk does it */

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/kv/plan/plan.h"
#include "engine/text/tok.h"

static struct throttle {
    pthread_mutex_t lock;
    double bytes_per_ns;
    int64_t free_at;
} throttle = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ssize_t slow_read(void *arg, int fd, void *to, size_t n, off_t at)
{
    struct throttle *t = arg;

    if (t->bytes_per_ns > 0) {
        int64_t now = clock_ns();

        (void)pthread_mutex_lock(&t->lock);
        t->free_at = (t->free_at > now ? t->free_at : now) + (int64_t)((double)n / t->bytes_per_ns);
        int64_t left = t->free_at - now;

        (void)pthread_mutex_unlock(&t->lock);
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0,
                              &(struct timespec){left / 1000000000, left % 1000000000}, NULL);
    }
    return pread(fd, to, n, at);
}

static ssize_t plain_write(void *arg, int fd, const void *from, size_t n, off_t at)
{
    (void)arg;
    return pwrite(fd, from, n, at);
}

static const struct tier_calls calls = {slow_read, plain_write, &throttle};

/* A figure of this process's status, in bytes. */
static double status(const char *key)
{
    FILE *f = fopen("/proc/self/status", "re");
    size_t n = strlen(key);
    char line[128];
    double kb = 0;

    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, key, n) == 0 && line[n] == ':') {
            kb = strtod(line + n + 1, NULL);
        }
    }
    if (f) {
        (void)fclose(f);
    }
    return kb * 1024;
}

static void reset_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "we");

    if (f) {
        (void)fputs("5", f);
        (void)fclose(f);
    }
}

struct run {
    struct engine *engine;
    int32_t warm; /* tokens before the clock runs */
    int32_t n;
    int64_t from_ns;
    int64_t to_ns;
    int64_t first_ns; /* token */
    double anon;      /* RssAnon at its largest, outside of what is timed */
    struct tier_counts prompt;
    struct tier_counts from;
    struct tier_counts to;
    int failed;
};

static void emit(void *arg, const struct engine_event *ev)
{
    struct run *r = ev->user;

    (void)arg;
    if (ev->type == ENGINE_EV_TOKEN && ev->index == 0) {
        r->first_ns = clock_ns();
        engine_tier_counts(r->engine, &r->prompt);
    }
    if (ev->type != ENGINE_EV_TOKEN || ev->index <= r->warm) {
        double anon = status("RssAnon");

        r->anon = anon > r->anon ? anon : r->anon;
    }
    if (ev->type == ENGINE_EV_TOKEN && ev->index == r->warm) {
        r->from_ns = clock_ns();
        engine_tier_counts(r->engine, &r->from);
    }
    if (ev->type == ENGINE_EV_TOKEN) {
        r->n = ev->index - r->warm;
        r->to_ns = clock_ns();
        engine_tier_counts(r->engine, &r->to);
    }
    if (ev->type == ENGINE_EV_DONE && ev->reason == ENGINE_ERROR) {
        (void)fprintf(stderr, "%s\n", ev->error.text);
        r->failed = 1;
    }
}

static int read_text(struct engine *e, const char *path, int32_t n, int32_t **ret)
{
    size_t cap = (size_t)n * 8;
    char *text = malloc(cap);
    FILE *f = fopen(path, "rbe");
    size_t got = f && text ? fread(text, 1, cap, f) : 0;
    size_t n_ids = 0;
    int r = tok_encode_new(engine_tok(e), text ? text : "", got, 0, ret, &n_ids, NULL);

    if (f) {
        (void)fclose(f);
    }
    free(text);
    return r ? r : n_ids < (size_t)n ? -ENODATA : 0;
}

static int measure(struct engine_config *c, const char *path, int32_t depth, int32_t n_new)
{
    struct engine *e = NULL;
    struct error err = {0};
    int32_t *ids = NULL;
    uint64_t handle;

    double anon = status("RssAnon");
    double rss = status("VmRSS");
    int r = engine_create(c, NULL, NULL, &e, &err);

    reset_peak(); /* the weights' file was mapped while they were laid out */
    r = r ? r : read_text(e, path, depth + n_new + 4, &ids);
    if (!r) {
        struct run run = {.engine = e, .warm = 3};
        struct engine_request q = {.sampler = sampler_params_default(),
                                   .prompt = ids,
                                   .n_prompt = depth,
                                   .forced = ids + depth,
                                   .n_forced = n_new + 4,
                                   .report_forced = true,
                                   .max_tokens = n_new + 4,
                                   .ignore_end = true,
                                   .user = &run};

        int64_t t0 = clock_ns();

        q.sampler.temperature = 0;
        r = engine_submit(e, &q, &handle, &err);
        while (!r && engine_step(e, emit, NULL) > 0) {
        }
        const struct plan *p = engine_plan_of(e);
        double n = run.n > 0 ? run.n : 1;
        double step = (double)(run.to_ns - run.from_ns) / n / 1e6;
        double wait = (double)(run.to.wait_ns - run.from.wait_ns) / n / 1e6;

        (void)printf("\"%s\",%d,%.2f,%.2f,%.1f,%.2f,%.2f,%.3f,%.0f,%.0f,%.1f,%.1f,", c->kv, depth,
                     step, wait, 100 * wait / step,
                     (double)(run.to.land_ns - run.from.land_ns) / n / 1e6,
                     (double)(run.to.keep_ns - run.from.keep_ns) / n / 1e6,
                     (double)(run.to.n_blocks - run.from.n_blocks) * TIER_BLOCK / n / 1e6,
                     (double)(run.to.n_slots - run.from.n_slots) / n,
                     (double)(run.to.n_reads - run.from.n_reads) / n,
                     (double)(p->kv_bytes + p->policy_bytes + p->tier_bytes) / (1 << 20),
                     (double)p->file_bytes / (1 << 20));
        (void)printf(
            "%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f\n", (double)(run.first_ns - t0) / 1e9,
            (double)run.prompt.n_blocks * TIER_BLOCK / 1e6, (double)p->prompt_read_bytes / 1e6,
            (double)(p->total_bytes - p->lane_bytes) / (1 << 20), (run.anon - anon) / (1 << 20),
            (double)p->mapped_bytes / (1 << 20), (status("VmHWM") - rss) / (1 << 20));
        r = r ? r : run.failed ? -EIO : 0;
    }
    if (r) {
        (void)fprintf(stderr, "%s: %s\n", c->kv, err.code ? err.text : strerror(-r));
    }
    free(ids);
    engine_destroy(e);
    return r;
}

int main(int argc, char **argv)
{
    struct engine_config c;
    int r = 0;

    if (argc < 10) {
        (void)fprintf(
            stderr,
            "usage: %s MODEL OVERLAY[,OVERLAY] TEXT DIR MB_PER_S CTX DEPTH TOKENS POLICY...\n",
            argv[0]);
        return EXIT_FAILURE;
    }
    char *comma = strchr(argv[2], ',');
    const char *overlays[] = {argv[2], comma ? comma + 1 : NULL};

    if (comma) {
        *comma = '\0';
    }
    engine_config_default(&c);
    c.model_path = argv[1];
    c.overlay_paths = overlays;
    c.n_overlays = comma ? 2 : 1;
    c.backend = "cpu";
    c.n_threads = 1;
    c.n_seqs = 1;
    c.tier_dir = argv[4];
    c.tier_calls = &calls;
    throttle.bytes_per_ns = strtod(argv[5], NULL) / 1e3;
    c.ctx = (int32_t)strtol(argv[6], NULL, 10);
    (void)printf(
        "policy,depth,ms/token,ms waiting,%% waiting,ms landing,ms keeping,MB read/token,slots "
        "asked/token,reads/token,cache MiB,file MiB,s prompt,MB read by it,planned of a full one,"
        "MiB planned,RssAnon,MiB mapped,VmHWM\n");
    for (int i = 9; i < argc && !r; i++) {
        c.kv = argv[i];
        r = measure(&c, argv[3], (int32_t)strtol(argv[7], NULL, 10),
                    (int32_t)strtol(argv[8], NULL, 10));
        (void)fflush(stdout);
    }
    return r ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* pipit-engine: started by pipitd with one end of a socketpair and the journal; or, with --plan, by
 * `pipitd plan`, when it prints the memory plan and ends. Not for people: every setting comes from
 * pipitd's command line, nothing from files or the environment.
 *
 * SIGTERM and SIGINT are left to the front: a terminal or systemd sends them to every process, and
 * an engine that ended by itself would look like a crash. It dies with its front in any case. */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/options.h"
#include "daemon/worker/io.h"
#include "daemon/worker/worker.h"
#include "engine/kv/plan/plan.h"

enum { EXIT_USAGE = 2, EXIT_REFUSED = 4, EXIT_INTERNAL = 8 };

struct settings {
    char *model;
    struct option_list overlays;
    int64_t ctx;
    int64_t sequences;
    int64_t batch_tokens;
    char *kv;
    uint64_t memory;
    char *backend;
    int64_t threads;
    uint64_t extra_bytes;
    int prefix_cache;
    int64_t draft;
    int draw;
    int prefill;
    char *cache_dir;
    char *tier_dir;
    int64_t front_fd;
    int64_t journal_fd;
    bool plan;
    bool json;
    bool test_hooks;
};

static const char *const no_yes[] = {"no", "yes", NULL};
static const char *const draws[] = {"auto", "host", "device", NULL};
static const char *const prefills[] = {"auto", "own", "cublas", NULL};

_Static_assert(ENGINE_DRAW_AUTO == 0 && ENGINE_DRAW_HOST == 1 && ENGINE_DRAW_DEVICE == 2,
               "the words' order");
_Static_assert(ENGINE_PREFILL_AUTO == 0 && ENGINE_PREFILL_OWN == 1 && ENGINE_PREFILL_CUBLAS == 2,
               "the words' order");

#define AT(field) offsetof(struct settings, field)

/* clang-format off */
static const struct option_row rows[] = {
    {"model", 0, OPTION_STRING, AT(model), .help = "the model"},
    {"overlay", 0, OPTION_LIST, AT(overlays), .help = "adds tensors"},
    {"ctx", 0, OPTION_INT, AT(ctx), 0, 1 << 24, .help = "positions of a text"},
    {"sequences", 0, OPTION_INT, AT(sequences), 1, 1024, .fallback = "1", .help = "texts at once"},
    {"batch-tokens", 0, OPTION_INT, AT(batch_tokens), 0, 1 << 20, .help = "rows of a step"},
    {"kv", 0, OPTION_STRING, AT(kv), .help = "cache policy"},
    {"memory", 0, OPTION_BYTES, AT(memory), .help = "limit of the plan"},
    {"backend", 0, OPTION_STRING, AT(backend), .fallback = "auto", .help = "what runs the model"},
    {"threads", 0, OPTION_INT, AT(threads), 0, 1024, .help = "of the backend"},
    {"extra-bytes", 0, OPTION_BYTES, AT(extra_bytes), .help = "the front's part of the plan"},
    {"prefix-cache", 0, OPTION_ENUM, AT(prefix_cache), .words = no_yes, .fallback = "no",
     .help = "keep the pages of prompts"},
    {"draft", 0, OPTION_INT, AT(draft), 0, ENGINE_MAX_DRAFT, .fallback = "0", .help = "tokens drafted a step"},
    {"draw", 0, OPTION_ENUM, AT(draw), .words = draws, .fallback = "auto", .help = "who draws tokens"},
    {"prefill", 0, OPTION_ENUM, AT(prefill), .words = prefills, .fallback = "auto", .help = "what multiplies prompts"},
    {"cache-dir", 0, OPTION_STRING, AT(cache_dir), .help = "remembered hashes"},
    {"tier-dir", 0, OPTION_STRING, AT(tier_dir), .help = "the file of pool=disk"},
    {"front-fd", 0, OPTION_INT, AT(front_fd), -1, 1 << 20, .fallback = "-1", .help = "socket to pipitd"},
    {"journal-fd", 0, OPTION_INT, AT(journal_fd), -1, 1 << 20, .fallback = "-1", .help = "the journal"},
    {"plan", 0, OPTION_FLAG, AT(plan), .help = "print the memory plan and end"},
    {"json", 0, OPTION_FLAG, AT(json), .help = "... as JSON"},
    {"test-hooks", 0, OPTION_FLAG, AT(test_hooks), .flags = OPTION_HIDDEN, .help = "obey tests"},
};
/* clang-format on */

static const struct option_table table = {
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .usage = "pipit-engine (started by pipitd)",
};

static struct engine_config config_of(const struct settings *s)
{
    struct engine_config c;

    engine_config_default(&c);
    c.model_path = s->model;
    c.overlay_paths = (const char *const *)s->overlays.v;
    c.n_overlays = (int)s->overlays.n;
    c.backend = s->backend;
    c.n_threads = (int)s->threads;
    c.ctx = (int32_t)s->ctx;
    c.n_seqs = (int32_t)s->sequences;
    c.batch_tokens = (int32_t)s->batch_tokens;
    c.kv = s->kv;
    c.memory_bytes = s->memory;
    c.extra_bytes = s->extra_bytes;
    c.keep_prefixes = s->prefix_cache;
    c.n_draft = (int32_t)s->draft;
    c.draw = (enum engine_draw)s->draw;
    c.prefill = (enum engine_prefill)s->prefill;
    c.cache_dir = s->cache_dir;
    c.tier_dir = s->tier_dir;
    return c;
}

/* 0 it fits, 4 it does not (the plan is printed either way), else as when loading fails. */
static int print_plan(const struct settings *s)
{
    struct engine_config c = config_of(s);
    struct plan *plan = calloc(1, sizeof(*plan));
    struct error e = {0};
    int code = EXIT_INTERNAL;
    int rc;

    if (!plan) {
        log_error("no memory for the plan");
        return code;
    }
    rc = engine_plan(&c, plan, &e);
    if (rc == 0 || plan->total_bytes > 0) {
        (s->json ? plan_print_json : plan_print_table)(plan, stdout);
        code = fflush(stdout) ? EXIT_INTERNAL : rc == 0 ? EXIT_SUCCESS : EXIT_REFUSED;
    } else {
        code = worker_exit_code(rc, &e);
    }
    if (rc) {
        log_error("%s", e.text);
    }
    worker_warn_ctx(plan);
    free(plan);
    return code;
}

static int map_journal(struct worker *w, int fd)
{
    struct stat st;
    void *p;

    if (fstat(fd, &st)) {
        return -errno;
    }
    p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        return -errno;
    }
    w->journal = p;
    w->journal_bytes = (size_t)st.st_size;
    return 0;
}

static int serve(const struct settings *s)
{
    struct worker *w = calloc(1, sizeof(*w));
    struct error e = {0};
    pthread_t thread;
    int code;

    if (!w || map_journal(w, (int)s->journal_fd) || worker_init(w, &e)) {
        log_error("cannot begin: %s", e.code ? e.text : "no journal");
        free(w);
        return EXIT_INTERNAL;
    }
    w->config = config_of(s);
    w->test_hooks = s->test_hooks;
    if (fcntl((int)s->front_fd, F_SETFL, O_NONBLOCK) ||
        pthread_create(&thread, NULL, worker_main, w)) {
        log_error("cannot start the worker thread: %s", strerror(errno));
        return EXIT_INTERNAL;
    }
    code = io_run(w, (int)s->front_fd);
    /* The worker may be in the middle of a step: _exit() takes it along. */
    _exit(code);
}

int main(int argc, char **argv)
{
    struct settings s = {0};
    struct error e = {0};
    int rc;

    log_init("pipit-engine", LOG_LEVEL_INFO);
    /* The cuda backend wants all its code loaded at once (kernels/cuda/backend.cu) and would set
     * this in the worker thread, while another may read the environment. */
    if (setenv("CUDA_MODULE_LOADING", "EAGER", 0)) {
        log_error("no memory");
        return EXIT_INTERNAL;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on files is an error of the save, not our end */
    if (options_load(&table, &s, argc, argv, NULL, NULL, NULL, &e)) {
        log_error("%s", e.text);
        rc = EXIT_USAGE;
    } else if (!s.model || (!s.plan && (s.front_fd < 0 || s.journal_fd < 0))) {
        log_error("started by pipitd; for a memory plan: pipitd plan --model FILE");
        rc = EXIT_USAGE;
    } else if (s.plan) {
        rc = print_plan(&s);
    } else {
        (void)signal(SIGTERM, SIG_IGN);
        (void)signal(SIGINT, SIG_IGN);
        rc = serve(&s);
    }
    options_clear(&table, &s);
    return rc;
}

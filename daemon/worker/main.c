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
#include "base/secret.h"
#include "base/version.h"
#include "daemon/options/engine_options.h"
#include "daemon/worker/io.h"
#include "daemon/worker/session.h"
#include "daemon/worker/worker.h"
#include "engine/kv/plan/plan.h"
#include "engine/text/calls/calls.h"

enum { EXIT_USAGE = 2, EXIT_REFUSED = 4, EXIT_OTHER_VERSION = 7, EXIT_INTERNAL = 8 };

struct settings {
    struct engine_options engine;
    uint64_t extra_bytes;
    uint64_t text_bytes;
    uint64_t extra_seq_bytes;
    int64_t front_fd;
    char *front_version;
    int64_t journal_fd;
    bool hidden;
    bool plan;
    bool json;
    bool unit;
    bool advise;
};

_Static_assert(ENGINE_DRAW_AUTO == 0 && ENGINE_DRAW_HOST == 1 && ENGINE_DRAW_DEVICE == 2,
               "the words' order");
_Static_assert(ENGINE_WAIT_SPIN == 0 && ENGINE_WAIT_SLEEP == 1, "the words' order");
_Static_assert(ENGINE_PREFILL_AUTO == 0 && ENGINE_PREFILL_OWN == 1 && ENGINE_PREFILL_CUBLAS == 2,
               "the words' order");

#define AT(field) offsetof(struct settings, field)

/* clang-format off */
static const struct option_row rows[] = {
    ENGINE_OPTION_ROWS(struct settings, engine)
    {"extra-bytes", 0, OPTION_BYTES, AT(extra_bytes), .help = "the front's part of the plan"},
    {"front-version", 0, OPTION_STRING, AT(front_version), .help = "of pipitd, which starts this"},
    {"text-bytes", 0, OPTION_BYTES, AT(text_bytes), 1, ENGINE_TEXT_BYTES, .fallback = "4MiB",
     .help = "most of a text that is tokenized at once"},
    {"extra-seq-bytes", 0, OPTION_BYTES, AT(extra_seq_bytes), .fallback = "0",
     .help = "and for each sequence"},
    {"front-fd", 0, OPTION_INT, AT(front_fd), -1, 1 << 20, .fallback = "-1", .help = "socket to pipitd"},
    {"journal-fd", 0, OPTION_INT, AT(journal_fd), -1, 1 << 20, .fallback = "-1", .help = "the journal"},
    {"hidden", 0, OPTION_FLAG, AT(hidden), .help = "no debugger may attach"},
    {"plan", 0, OPTION_FLAG, AT(plan), .help = "print the memory plan and end"},
    {"json", 0, OPTION_FLAG, AT(json), .help = "... as JSON"},
    {"unit", 0, OPTION_FLAG, AT(unit), .help = "... as a drop-in of pipitd's unit"},
    {"advise", 0, OPTION_FLAG, AT(advise), .help = "... under the policy of least loss that fits"},
};
/* clang-format on */

static const struct option_table table = {
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .usage = "pipit-engine (started by pipitd)",
};

static struct engine_config config_of(const struct settings *s)
{
    const struct engine_options *o = &s->engine;
    struct engine_config c;

    engine_config_default(&c);
    c.model_path = o->model;
    c.overlay_paths = (const char *const *)o->overlays.v;
    c.n_overlays = (int)o->overlays.n;
    c.backend = engine_option_backends[o->backend];
    c.n_threads = (int)o->threads;
    c.ctx = (int32_t)o->ctx;
    c.n_seqs = (int32_t)o->sequences;
    c.batch_tokens = (int32_t)o->batch_tokens;
    c.kv = o->kv;
    c.memory_bytes = o->memory;
    c.extra_bytes = s->extra_bytes;
    c.extra_seq_bytes = s->extra_seq_bytes + CALLS_BYTES;
    c.keep_prefixes = o->prefix_cache;
    c.gap_target_ms = (int32_t)o->gap_target;
    c.n_draft = (int32_t)o->draft;
    c.draw = (enum engine_draw)o->draw;
    c.prefill = (enum engine_prefill)o->prefill;
    c.wait = (enum engine_wait)o->device_wait;
    c.experts = (enum engine_experts)o->experts;
    c.expert_bytes = o->expert_bytes;
    c.cache_dir = o->cache_dir;
    c.tier_dir = o->tier_dir;
    return c;
}

/* A control group is charged for more than the plan: page tables, stacks, what lies in sockets, the
 * programs' own pages. The model's map and other pages of files are given back before anything is
 * killed. */
static void print_unit(const struct plan *p, FILE *out)
{
    uint64_t bytes = p->host_bytes + p->mapped_bytes;
    uint64_t most = bytes + bytes / 16 + (64 << 20);

    (void)fprintf(
        out,
        "# Of `pipitd plan --unit`: %llu bytes on the host, a 16th of them and 64 MiB for\n"
        "# what the kernel holds. To be made anew when the model or its settings change.\n"
        "[Service]\nMemoryMax=%llu\n",
        (unsigned long long)bytes, (unsigned long long)most);
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
    c.kv = s->advise ? "auto" : c.kv;
    rc = engine_plan(&c, plan, &e);
    if (rc == 0 && s->unit) {
        print_unit(plan, stdout);
        code = fflush(stdout) ? EXIT_INTERNAL : EXIT_SUCCESS;
    } else if (s->unit && plan->total_bytes > 0) {
        code = EXIT_REFUSED;
    } else if (rc == 0 || plan->total_bytes > 0) {
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

    if (!w || session_start(&e) || map_journal(w, (int)s->journal_fd) || worker_init(w, &e)) {
        log_error("cannot begin: %s", e.code ? e.text : "no journal");
        free(w);
        return EXIT_INTERNAL;
    }
    w->config = config_of(s);
    w->chat_template = s->engine.chat_template;
    w->tool_format = engine_option_tool_formats[s->engine.tool_format];
    w->text_most = (size_t)s->text_bytes;
    w->answer_limit = (int32_t)s->engine.answer_limit;
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
    /* The cuda backend loads its own code itself (kernels/cuda/code.cu), other libraries' code as
     * it is used. It would set this in the worker thread, while another may read the environment.
     */
    if (setenv("CUDA_MODULE_LOADING", "LAZY", 0)) {
        log_error("no memory");
        return EXIT_INTERNAL;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on files is an error of the save, not our end */
    if (options_load(&table, &s, argc, argv, NULL, NULL, NULL, &e)) {
        log_error("%s", e.text);
        rc = EXIT_USAGE;
    } else if (!s.engine.model || (!s.plan && (s.front_fd < 0 || s.journal_fd < 0))) {
        log_error("started by pipitd; for a memory plan: pipitd plan --model FILE");
        rc = EXIT_USAGE;
    } else if (version_differs(s.front_version)) {
        log_warning("this is version %s, started by a pipitd of version %s", version_of_this(),
                    s.front_version);
        rc = EXIT_OTHER_VERSION;
    } else if (s.plan) {
        rc = print_plan(&s);
    } else {
        (void)signal(SIGTERM, SIG_IGN);
        (void)signal(SIGINT, SIG_IGN);
        if (s.hidden) {
            secret_hide();
        }
        rc = serve(&s);
    }
    options_clear(&table, &s);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The table of pipitd's options. Names are a contract: configuration files, PIPIT_*
 * variables and man page come from them. Options that only the engine understands are passed on
 * unread: its refusals name the position in a policy, the backends it has, the context that fits.
 */

#include "daemon/front/config.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/version.h"
#include "daemon/front/lease.h"

enum { SERVE = 1, PLAN = 2 };

/* Held by the processes whatever is asked: rings of records between front, I/O thread and worker
 * (2.4, 1.1 and 2 MiB), slices of a session that is being saved (1 MiB and their rings;
 * daemon/worker/saver.c), and the gateway with libzmq's buffers at rest. An answer that is asked
 * for in one piece is gathered there: 1 MiB of text, reasoning and calls, in steps of 64 KiB each,
 * and 256 KiB of ids and log-probabilities; what is no sequence shares 4 MiB
 * (daemon/gateway/requests.h). */
enum { RINGS_BYTES = 6728 << 10, GATEWAY_BYTES = 8 << 20, GATEWAY_SEQ_BYTES = 5 << 18 };

/* A flag of rows: a running daemon takes the setting over when it reads its configuration again.
 * No text and no list has it (config_copy_live()). Rows of the engine count when it also loads the
 * model again. The others size memory of the front's: they wait for a restart. */
enum { LIVE = 1 << 8 };

static const char *const log_which[] = {"no", "failed", "yes", NULL}; /* enum logline_which */

static const char *const load_when[] = {"start", "request", NULL}; /* enum config_load_when */

#define AT(field) offsetof(struct config, field)

/* clang-format off */
static const struct option_row rows[] = {
    ENGINE_OPTION_ROWS(struct config, engine)
    {"config", 0, OPTION_STRING, AT(file), .metavar = "FILE", .flags = OPTION_ARGV_ONLY,
     .help = "read settings from FILE: lines of `key = value`, keys are these names"},
    {"instance", 0, OPTION_STRING, AT(instance), .metavar = "NAME", .fallback = "default",
     .help = "name of this daemon's folder among the runtime directories"},
    {"runtime-dir", 0, OPTION_STRING, AT(runtime_dir), .metavar = "DIR",
     .help = "where the sockets lie, instead of a folder chosen by instance"},
    {"lanes", 0, OPTION_INT, AT(lanes), 1, 4096, .fallback = "32",
     .help = "clients connected at once"},
    {"lane-bytes", 0, OPTION_BYTES, AT(lane_bytes), 64 << 10, 0x1p31, .fallback = "1MiB",
     .help = "shared memory of one client, both directions together"},
    {"journal-bytes", 0, OPTION_BYTES, AT(journal_bytes), 1 << 20, 0x1p40, .fallback = "16MiB",
     .help = "memory for requests and for answers kept for RESUME"},
    {"max-queue", 0, OPTION_INT, AT(max_queue), 0, 4096, .fallback = "64",
     .help = "requests that may wait; the next one is told BUSY", .flags = LIVE},
    {"gateway", 0, OPTION_ENUM, AT(gateway), .words = engine_option_no_yes, .fallback = "yes",
     .help = "start pipit-gateway, the ZeroMQ door"},
    {"person-sequences", 0, OPTION_INT, AT(person_sequences), 0, 1024, .fallback = "0",
     .help = "texts of one user, under whatever ids, that are continued at once; 0: all but one while other users are "
             "connected or have asked in the last 30 seconds, else all", .flags = LIVE},
    {"stall-timeout", 0, OPTION_FLOAT, AT(stall_timeout), 0.1, 3600, .metavar = "SECONDS",
     .fallback = "10", .help = "a client that reads nothing for so long is cancelled", .flags = LIVE},
    {"pause-limit", 0, OPTION_FLOAT, AT(pause_limit), 0.1, 3600, .metavar = "SECONDS",
     .fallback = "3", .help = "a request that waits for its reader of logits for so long in all, while other users wait "
             "for a sequence, is cancelled", .flags = LIVE},
    {"request-timeout", 0, OPTION_FLOAT, AT(request_timeout), 0, 1e6, .metavar = "SECONDS",
     .fallback = "0", .help = "a request ends so long after it was accepted, if it asks for no earlier end; 0: when it is done", .flags = LIVE},
    {"engine-timeout", 0, OPTION_FLOAT, AT(engine_timeout), 1, 3600, .metavar = "SECONDS",
     .fallback = "10", .help = "an engine without progress for so long is started again", .flags = LIVE},
    {"load", 0, OPTION_ENUM, AT(load), .words = load_when, .fallback = "start",
     .help = "when the model is loaded first: as the daemon starts, or for the first request"},
    {"idle-unload", 0, OPTION_FLOAT, AT(idle_unload), 0, 1e7, .metavar = "SECONDS", .fallback = "0",
     .help = "without requests for so long the model's memory is given back, the next one loads it "
             "again; 0: never", .flags = LIVE},
    {"stop-timeout", 0, OPTION_FLOAT, AT(stop_timeout), 0, 3600, .metavar = "SECONDS",
     .fallback = "0", .help = "at SIGTERM requests may go on for so long; 0: they end at once", .flags = LIVE},
    {"state-dir", 0, OPTION_STRING, AT(state_dir), .metavar = "DIR",
     .help = "where saved conversations lie; by default the service's or the user's state directory"},
    {"session-bytes", 0, OPTION_BYTES, AT(session_bytes), 0, 0x1p50, .fallback = "1GiB",
     .help = "what one user's saved conversations may take on disk", .flags = LIVE},
    {"session-writes", 0, OPTION_BYTES, AT(session_writes), 0, 0x1p50, .fallback = "32GiB",
     .help = "what saving them may write in 24 hours that the machine runs, for each user, since flash wears; 0: any number", .flags = LIVE},
    {"subuid-file", 0, OPTION_STRING, AT(subuid_file), .fallback = "/etc/subuid",
     .flags = OPTION_HIDDEN | OPTION_ARGV_ONLY, .help = "whose subordinate user ids are whose, for tests"},
    {"log-requests", 0, OPTION_ENUM, AT(log_requests), .words = log_which, .fallback = "yes",
     .help = "which requests' ends are logged, a line each, without their texts, of each user 100 at once and one a "
             "second (60 MB a day) at most: all, those that failed, or none, where the log lies on flash that wears", .flags = LIVE},
    {"debugger", 0, OPTION_FLAG, AT(debugger),
     .help = "let debuggers of the same user attach to the daemon's processes, and core dumps be "
             "written; otherwise neither, because their memory holds prompts and answers"},
    {"verbose", 'v', OPTION_FLAG, AT(verbose), .help = "log more", .flags = LIVE},
    {"json", 0, OPTION_FLAG, AT(json), .flags = OPTION_ARGV_ONLY,
     .help = "the plan as one JSON object", .commands = PLAN},
    {"unit", 0, OPTION_FLAG, AT(unit), .flags = OPTION_ARGV_ONLY,
     .help = "the plan as a drop-in of the service's unit, which limits its memory",
     .commands = PLAN},
    {"advise", 0, OPTION_FLAG, AT(advise), .flags = OPTION_ARGV_ONLY,
     .help = "plan with the policy of least loss that fits into the memory, as --kv auto takes it, and tell its loss",
     .commands = PLAN},
    {"help", 'h', OPTION_FLAG, AT(help), .flags = OPTION_ARGV_ONLY, .help = "this text"},
    {"version", 'V', OPTION_FLAG, AT(version), .flags = OPTION_ARGV_ONLY,
     .help = "print the version", .commands = SERVE},
};
/* clang-format on */

static struct option_table table_of(bool plan)
{
    return (struct option_table){
        .rows = rows,
        .n_rows = sizeof(rows) / sizeof(rows[0]),
        .usage = plan ? "pipitd plan --model FILE [OPTION]..." : "pipitd --model FILE [OPTION]...",
        .intro = plan ? "Prints every byte the daemon would hold, and whether it fits (exit code 0 "
                        "or 4)."
                      : "Serves one language model to local programs. 'pipitd plan' with the same\n"
                        "options prints the memory that this takes, and starts nothing.\n"
                        "'pipit drain' or SIGTERM ends it: the first lets requests end.",
        .command = plan ? PLAN : SERVE,
    };
}

/* Half of a lane's bytes each way; the request buffer is half of c2e, and no larger than an eighth
 * of the journal, into which it is copied. */
static void derive(struct config *c)
{
    uint64_t half = c->lane_bytes / 2 / LEASE_ALIGN * LEASE_ALIGN;
    uint64_t request = half / 2 / LEASE_ALIGN * LEASE_ALIGN;

    c->journal_bytes = c->journal_bytes / LEASE_ALIGN * LEASE_ALIGN;
    if (request > c->journal_bytes / 8) {
        request = c->journal_bytes / 8 / LEASE_ALIGN * LEASE_ALIGN;
    }
    if (request > (uint64_t)1 << 30) {
        request = (uint64_t)1 << 30;
    }
    c->c2e_bytes = half;
    c->e2c_bytes = half;
    c->max_request_bytes = (uint32_t)request;
}

static bool name_is_plain(const char *s)
{
    return s[0] && s[0] != '.' &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
               strlen(s) &&
           strlen(s) <= 64;
}

static int check(struct config *c, struct error *reterr)
{
    uint64_t lanes;

    if (!c->engine.model || !c->engine.model[0]) {
        return error_set(reterr, -EINVAL, "--model FILE is needed");
    }
    if (!name_is_plain(c->instance ? c->instance : "default")) {
        return error_set(reterr, -EINVAL,
                         "--instance %.80s: allowed are 1..64 letters, digits, '.', '_' and '-', "
                         "the first no '.'",
                         c->instance);
    }
    derive(c);
    if (!checked_mul_u64((uint64_t)c->lanes, c->lane_bytes, &lanes) ||
        !checked_add_u64(lanes, c->journal_bytes, &c->extra_bytes)) {
        return error_set(reterr, -EINVAL, "--lanes times --lane-bytes is more than any memory");
    }
    uint64_t text =
        c->max_request_bytes < ENGINE_TEXT_BYTES ? c->max_request_bytes : ENGINE_TEXT_BYTES;

    /* No value of JSON is shorter than a byte. */
    uint64_t values = text < ENGINE_JSON_VALUES ? text : ENGINE_JSON_VALUES;

    c->text_bytes = text > ENGINE_TEXT_LEAST ? text : ENGINE_TEXT_LEAST;
    c->extra_bytes += RINGS_BYTES + c->text_bytes * ENGINE_TEXT_COST + values * ENGINE_JSON_COST +
                      (c->gateway ? GATEWAY_BYTES : 0);
    c->extra_seq_bytes = c->gateway ? GATEWAY_SEQ_BYTES : 0;
    return 0;
}

int config_load(struct config *c, int argc, char *const argv[], char *const environ[],
                struct error *reterr)
{
    bool plan = argc > 1 && strcmp(argv[1], "plan") == 0;
    struct option_table table = table_of(plan);
    int rc;

    memset(c, 0, sizeof(*c));
    c->plan = plan;
    c->argc = argc;
    c->argv = argv;
    c->env = environ;
    rc = options_load(&table, c, plan ? argc - 1 : argc, plan ? argv + 1 : argv, environ, "config",
                      NULL, reterr);
    if (rc || c->help || c->version) {
        return rc;
    }
    return check(c, reterr);
}

void config_clear(struct config *c)
{
    struct option_table table = table_of(false);

    options_clear(&table, c);
}

int config_reload(const struct config *c, struct config *ret, struct error *reterr)
{
    return config_load(ret, c->argc, c->argv, c->env, reterr);
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_list(const struct option_list *a, const struct option_list *b)
{
    bool same = a->n == b->n;

    for (size_t i = 0; same && i < a->n; i++) {
        same = strcmp(a->v[i], b->v[i]) == 0;
    }
    return same;
}

static size_t value_size(enum option_type type)
{
    static const size_t size[] = {
        [OPTION_FLAG] = sizeof(bool),
        [OPTION_INT] = sizeof(int64_t),
        [OPTION_FLOAT] = sizeof(double),
        [OPTION_BYTES] = sizeof(uint64_t),
        [OPTION_STRING] = sizeof(char *),
        [OPTION_ENUM] = sizeof(int),
        [OPTION_LIST] = sizeof(struct option_list),
    };

    return size[type];
}

static bool same_value(const struct option_row *row, const struct config *a, const struct config *b)
{
    const void *va = (const char *)a + row->offset;
    const void *vb = (const char *)b + row->offset;

    switch (row->type) {
    case OPTION_STRING:
        return same_text(*(char *const *)va, *(char *const *)vb);
    case OPTION_LIST:
        return same_list(va, vb);
    default:
        return memcmp(va, vb, value_size(row->type)) == 0;
    }
}

/* Each of the two still owns what it holds. */
static void swap_value(const struct option_row *row, struct config *a, struct config *b)
{
    char *va = (char *)a + row->offset;
    char *vb = (char *)b + row->offset;
    char t[sizeof(struct option_list)];
    size_t n = value_size(row->type);

    memcpy(t, va, n);
    memcpy(va, vb, n);
    memcpy(vb, t, n);
}

bool config_same_engine(const struct config *a, const struct config *b)
{
    bool same = true;

    for (size_t i = 0; same && i < sizeof(rows) / sizeof(rows[0]); i++) {
        same = !engine_option_is(&rows[i]) || same_value(&rows[i], a, b);
    }
    return same;
}

void config_apply(struct config *c, struct config *from, bool engine, char *ret_waiting,
                  size_t size)
{
    size_t n = 0;

    ret_waiting[0] = '\0';
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct option_row *row = &rows[i];

        if (same_value(row, c, from)) {
            continue;
        }
        if ((row->flags & LIVE) || (engine && engine_option_is(row))) {
            swap_value(row, c, from);
        } else if (n < size) {
            int len = snprintf(ret_waiting + n, size - n, "%s%s", n ? ", " : "", row->name);

            n += len > 0 ? (size_t)len : 0;
        }
    }
}

void config_copy_live(struct config *to, const struct config *from)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct option_row *row = &rows[i];

        if (row->flags & LIVE) {
            assert(row->type != OPTION_STRING && row->type != OPTION_LIST);
            memcpy((char *)to + row->offset, (const char *)from + row->offset,
                   value_size(row->type));
        }
    }
}

char *config_help(bool plan)
{
    struct option_table table = table_of(plan);

    return options_help(&table);
}

static int append_own(struct option_list *args, const struct config *c, int front_fd,
                      int journal_fd)
{
    int rc = options_arg(args, "--extra-bytes=%llu", (unsigned long long)c->extra_bytes);

    rc = rc ? rc
            : options_arg(args, "--extra-seq-bytes=%llu", (unsigned long long)c->extra_seq_bytes);

    rc = rc ? rc : options_arg(args, "--text-bytes=%llu", (unsigned long long)c->text_bytes);
    if (c->plan) {
        rc = rc ? rc : options_arg(args, "--plan");
        rc = rc || !c->advise ? rc : options_arg(args, "--advise");
        rc = rc || !c->unit ? rc : options_arg(args, "--unit");
        return rc || !c->json ? rc : options_arg(args, "--json");
    }
    rc = rc ? rc : options_arg(args, "--front-version=%s", version_of_this());
    if (rc == 0 && !c->debugger) {
        rc = options_arg(args, "--hidden");
    }
    rc = rc ? rc : options_arg(args, "--front-fd=%d", front_fd);
    return rc ? rc : options_arg(args, "--journal-fd=%d", journal_fd);
}

char **config_engine_argv(const struct config *c, const char *program, int front_fd, int journal_fd)
{
    struct option_list args = {0};
    char **v = NULL;

    if (options_arg(&args, "%s", program) || engine_options_args(&c->engine, &args) ||
        append_own(&args, c, front_fd, journal_fd) ||
        !(v = realloc(args.v, (args.n + 1) * sizeof(char *)))) {
        options_list_clear(&args);
        return NULL;
    }
    v[args.n] = NULL;
    return v;
}

void config_free_argv(char **argv)
{
    for (char **a = argv; a && *a; a++) {
        free(*a);
    }
    free(argv);
}

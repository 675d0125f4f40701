/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes pipitd's settings: the pieces between bytes 0xff are the configuration file, then words of
 * the command line, of which those that begin with PIPIT_ are the environment.
 *
 * Promises: a refusal is -EINVAL with a text; what is accepted reads the same a second time, is
 * within what the rows allow, and is what an engine reads from the command line that it is given;
 * after a reload nothing that may change while the daemon runs is left to change. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/front/config.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORDS = 24, CAP = 1 << 14 };

struct input {
    char text[CAP];
    char *argv[WORDS];
    char *env[WORDS];
    int argc;
    int n_env;
};

/* What pipit-engine has of its rows (daemon/worker/main.c). */
struct engine_side {
    struct engine_options engine;
    uint64_t extra_bytes;
    uint64_t extra_seq_bytes;
    uint64_t text_bytes;
    int64_t front_fd;
    char *front_version;
    bool hidden;
    bool unit;
    int64_t journal_fd;
    bool plan;
    bool json;
    bool advise;
};

#define AT(field) offsetof(struct engine_side, field)

/* clang-format off */
static const struct option_row engine_rows[] = {
    ENGINE_OPTION_ROWS(struct engine_side, engine)
    {"extra-bytes", 0, OPTION_BYTES, AT(extra_bytes)},
    {"text-bytes", 0, OPTION_BYTES, AT(text_bytes), 1, ENGINE_TEXT_BYTES, .fallback = "4MiB"},
    {"front-version", 0, OPTION_STRING, AT(front_version)},
    {"hidden", 0, OPTION_FLAG, AT(hidden)},
    {"unit", 0, OPTION_FLAG, AT(unit)},
    {"extra-seq-bytes", 0, OPTION_BYTES, AT(extra_seq_bytes)},
    {"front-fd", 0, OPTION_INT, AT(front_fd), -1, 1 << 20, .fallback = "-1"},
    {"journal-fd", 0, OPTION_INT, AT(journal_fd), -1, 1 << 20, .fallback = "-1"},
    {"plan", 0, OPTION_FLAG, AT(plan)},
    {"json", 0, OPTION_FLAG, AT(json)},
    {"advise", 0, OPTION_FLAG, AT(advise)},
};
/* clang-format on */

static const struct option_table engine_table = {
    .rows = engine_rows, .n_rows = sizeof(engine_rows) / sizeof(engine_rows[0]), .usage = ""};

/* Another file than ours may be anything: a terminal, a pipe. */
static bool names_a_file(const char *word)
{
    return strstr(word, "config") || strstr(word, "CONFIG");
}

static void read_input(struct input *in, const uint8_t *data, size_t size, int file,
                       char *config_word)
{
    size_t n = size < CAP - 1 ? size : CAP - 1;
    char *at = in->text;
    char *end;

    memcpy(in->text, data, n);
    in->text[n] = 0;
    end = memchr(in->text, 0xff, n);
    require(ftruncate(file, 0) == 0);
    require(pwrite(file, in->text, end ? (size_t)(end - in->text) : n, 0) >= 0);
    in->argv[in->argc++] = (char *)(uintptr_t) "pipitd";
    at = end ? end + 1 : in->text + n;
    if (strncmp(at, "plan\xff", 5) == 0) {
        in->argv[in->argc++] = (char *)(uintptr_t) "plan";
        at += 5;
    }
    in->argv[in->argc++] = config_word;
    while (at < in->text + n) {
        end = memchr(at, 0xff, (size_t)(in->text + n - at));
        end = end ? end : in->text + n;
        *end = 0;
        if (!names_a_file(at) && strncmp(at, "PIPIT_", 6) == 0 && in->n_env < WORDS - 1) {
            in->env[in->n_env++] = at;
        } else if (!names_a_file(at) && in->argc < WORDS - 1) {
            in->argv[in->argc++] = at;
        }
        at = end + 1;
    }
}

/* Written again, both are the same words. */
static void same_engine(const struct engine_options *a, const struct engine_options *b)
{
    struct option_list x = {0};
    struct option_list y = {0};

    require(engine_options_args(a, &x) == 0 && engine_options_args(b, &y) == 0 && x.n == y.n);
    for (size_t i = 0; i < x.n; i++) {
        require(strcmp(x.v[i], y.v[i]) == 0);
    }
    options_list_clear(&x);
    options_list_clear(&y);
}

static void check_engine(const struct config *c)
{
    char **argv = config_engine_argv(c, "pipit-engine", 3, 4);
    struct engine_side s = {0};
    struct error e = {0};
    int argc = 0;

    require(argv != NULL);
    while (argv[argc]) {
        argc++;
    }
    require(options_load(&engine_table, &s, argc, argv, NULL, NULL, NULL, &e) == 0);
    same_engine(&c->engine, &s.engine);
    require(s.extra_bytes == c->extra_bytes && s.extra_seq_bytes == c->extra_seq_bytes &&
            s.text_bytes == c->text_bytes && s.plan == c->plan);
    require(c->plan ? s.json == c->json && s.advise == c->advise
                    : s.front_fd == 3 && s.journal_fd == 4);
    options_clear(&engine_table, &s);
    config_free_argv(argv);
}

static void check(const struct config *c)
{
    require(c->engine.model && c->engine.model[0]);
    require(c->lanes >= 1 && c->lanes <= 4096 && c->max_queue >= 0 && c->max_queue <= 4096);
    require(c->stall_timeout >= 0.1 && c->stall_timeout <= 3600);
    require(c->c2e_bytes > 0 && c->c2e_bytes + c->e2c_bytes <= c->lane_bytes);
    require(c->max_request_bytes > 0 && c->max_request_bytes <= c->c2e_bytes &&
            c->max_request_bytes <= c->journal_bytes / 8);
    require(c->extra_bytes >= c->journal_bytes);
    check_engine(c);
}

/* A daemon with the defaults reads this configuration while it runs. */
static void check_apply(const struct config *given)
{
    static char *argv[] = {(char *)(uintptr_t) "pipitd", (char *)(uintptr_t) "--model=m", NULL};
    struct config running;
    struct config again;
    char waiting[2][1024];

    require(config_load(&running, 2, argv, NULL, NULL) == 0);
    require(config_reload(given, &again, NULL) == 0);
    same_engine(&given->engine, &again.engine);
    config_apply(&running, &again, true, waiting[0], sizeof(waiting[0]));
    config_clear(&again);
    require(config_reload(given, &again, NULL) == 0);
    config_apply(&running, &again, true, waiting[1], sizeof(waiting[1]));
    require(strcmp(waiting[0], waiting[1]) == 0);
    same_engine(&running.engine, &given->engine);
    require(running.max_queue == given->max_queue);
    config_clear(&again);
    config_clear(&running);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int file = -1;
    static char word[64];
    struct input *in = calloc(1, sizeof(*in));
    struct error e = {0};
    struct config c;
    int r;

    require(in != NULL);
    if (file < 0) {
        file = memfd_create("config", MFD_CLOEXEC);
        require(file >= 0);
        (void)snprintf(word, sizeof(word), "--config=/proc/self/fd/%d", file);
    }
    read_input(in, data, size, file, word);
    r = config_load(&c, in->argc, in->argv, in->env, &e);
    if (r) {
        require(r == -EINVAL && e.code == r && e.text[0]);
    } else if (!c.help && !c.version) {
        check(&c);
        check_apply(&c);
    } else {
        free(config_help(c.plan));
    }
    config_clear(&c);
    free(in);
    return 0;
}

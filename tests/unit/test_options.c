/* SPDX-License-Identifier: Apache-2.0 */
/* base/options.h: types and ranges, the three sources and who wins, what refusals say, --help. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/options.h"

struct config {
    int64_t threads;
    double temp;
    uint64_t memory;
    char *model;
    char *file;
    int backend;
    struct option_list overlays;
    bool verbose;
    bool color;
    int64_t asked;
};

enum { ASK = 1, CHAT = 2 };

static const char *const backends[] = {"auto", "ref", "cpu", NULL};

/* clang-format off */
static const struct option_row rows[] = {
    {"model", 'm', OPTION_STRING, offsetof(struct config, model), .metavar = "FILE", .help = "the model"},
    {"overlay", 0, OPTION_LIST, offsetof(struct config, overlays), .metavar = "FILE", .help = "adds tensors"},
    {"threads", 't', OPTION_INT, offsetof(struct config, threads), 0, 64, .fallback = "4", .help = "threads"},
    {"temp", 0, OPTION_FLOAT, offsetof(struct config, temp), 0, 2, .fallback = "0.8", .help = "temperature"},
    {"memory", 0, OPTION_BYTES, offsetof(struct config, memory), 0x1p20, INFINITY, .help = "limit"},
    {"backend", 'b', OPTION_ENUM, offsetof(struct config, backend), .words = backends, .fallback = "cpu", .help = "which"},
    {"verbose", 'v', OPTION_FLAG, offsetof(struct config, verbose), .help = "say more"},
    {"color", 'c', OPTION_FLAG, offsetof(struct config, color), .fallback = "true", .help = "colours"},
    {"config", 0, OPTION_STRING, offsetof(struct config, file), .flags = OPTION_ARGV_ONLY, .help = "settings file"},
    {"asked", 0, OPTION_INT, offsetof(struct config, asked), .commands = ASK, .help = "only of ask"},
};
/* clang-format on */

static const struct option_table table = {rows, sizeof(rows) / sizeof(rows[0]), "prog [OPTION]...",
                                          "Does things.", 0};

#define ARGV(...) ((char *[]){"prog", __VA_ARGS__})
#define PARSE(c, pos, e, ...)                                                                      \
    options_argv(&table, c, (int)(sizeof(ARGV(__VA_ARGS__)) / sizeof(char *)), ARGV(__VA_ARGS__),  \
                 pos, e)

static char *write_file(const char *text)
{
    static char path[] = "/tmp/test-options-XXXXXX";
    int fd = mkstemp(path);

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
    return path;
}

Test(options, every_form_of_the_command_line)
{
    struct config c = {0};
    struct option_list pos = {0};
    struct error e = {0};

    cr_assert_eq(options_defaults(&table, &c, &e), 0, "%s", e.text);
    cr_assert_eq(c.threads, 4);
    cr_assert_eq(c.backend, 2);
    cr_assert(c.color);
    cr_assert_eq(PARSE(&c, &pos, &e, "one", "--threads", "8", "--temp=1.5", "-m", "a.gguf",
                       "-vbref", "-", "--overlay", "x", "--memory=1.5MiB", "--overlay=y",
                       "--no-color", "--", "--threads"),
                 0, "%s", e.text);
    cr_assert_eq(c.threads, 8);
    cr_assert_float_eq(c.temp, 1.5, 0);
    cr_assert_str_eq(c.model, "a.gguf");
    cr_assert(c.verbose);
    cr_assert_not(c.color);
    cr_assert_eq(c.backend, 1);
    cr_assert_eq(c.memory, 3 << 19);
    cr_assert_eq(c.overlays.n, 2);
    cr_assert_str_eq(c.overlays.v[1], "y");
    cr_assert_eq(pos.n, 3);
    cr_assert_str_eq(pos.v[0], "one");
    cr_assert_str_eq(pos.v[1], "-");
    cr_assert_str_eq(pos.v[2], "--threads");
    options_list_clear(&pos);
    options_clear(&table, &c);
    cr_assert_null(c.model);
    cr_assert_eq(c.overlays.n, 0);
}

/* What one program writes, another with the same rows reads: every type, odd texts included. */
Test(options, a_written_command_line_reads_back)
{
    struct config c = {0};
    struct config back = {0};
    char *argv[16];
    struct option_list args = {0};
    struct error e = {0};

    cr_assert_eq(options_defaults(&table, &c, &e), 0, "%s", e.text);
    cr_assert_eq(PARSE(&c, NULL, &e, "--threads=7", "--temp=0.1", "--model=--odd =name", "-v",
                       "--no-color", "--memory=3MiB", "--backend=ref", "--overlay=x",
                       "--overlay=", "--asked=-9"),
                 0, "%s", e.text);
    cr_assert_eq(options_args(&table, &c, &args), 0);
    argv[0] = "prog";
    cr_assert_lt(args.n, sizeof(argv) / sizeof(argv[0]) - 1);
    for (size_t i = 0; i < args.n; i++) {
        argv[i + 1] = args.v[i];
    }
    cr_assert_eq(options_argv(&table, &back, (int)args.n + 1, argv, NULL, &e), 0, "%s", e.text);
    cr_assert_eq(back.threads, 7);
    cr_assert_eq(back.temp, c.temp);
    cr_assert_str_eq(back.model, "--odd =name");
    cr_assert(back.verbose);
    cr_assert_not(back.color);
    cr_assert_eq(back.memory, 3 << 20);
    cr_assert_eq(back.backend, 1);
    cr_assert_eq(back.overlays.n, 2);
    cr_assert_str_eq(back.overlays.v[0], "x");
    cr_assert_str_eq(back.overlays.v[1], "");
    cr_assert_eq(back.asked, -9);
    cr_assert_null(back.file);
    options_list_clear(&args);
    options_clear(&table, &c);
    options_clear(&table, &back);
}

static void check_refused(char *a, char *b, const char *text)
{
    struct config c = {0};
    struct error e = {0};
    char *argv[] = {"prog", a, b};

    cr_assert_eq(options_argv(&table, &c, b ? 3 : 2, argv, NULL, &e), -EINVAL, "%s", a);
    cr_assert(strstr(e.text, text), "'%s' does not say '%s'", e.text, text);
    options_clear(&table, &c);
}

Test(options, refusals_name_option_value_and_range)
{
    check_refused("--threads", "65", "--threads: '65' is not a whole number, 0..64");
    check_refused("--threads", "-1", "0..64");
    check_refused("--threads", "8x", "0..64");
    check_refused("--threads", "", "0..64");
    check_refused("--threads", "99999999999999999999", "0..64");
    check_refused("--threads", NULL, "--threads needs a value");
    check_refused("-t", NULL, "-t (--threads) needs a value");
    check_refused("--temp", "nan", "--temp: 'nan' is not a number, 0..2");
    check_refused("--temp=inf", NULL, "0..2");
    check_refused("--temp=2.01", NULL, "0..2");
    check_refused("--memory", "5", "at least 1MiB");
    check_refused("--memory", "5XB", "a size such as 64MiB");
    check_refused("--memory", "99999999999999TiB", "a size");
    check_refused("--backend", "gpu", "--backend: 'gpu' is not auto, ref or cpu");
    check_refused("--verbose=maybe", NULL, "true or false");
    check_refused("--thraeds", "1", "unknown option --thraeds; did you mean --threads?");
    check_refused("--mem", "1", "did you mean --memory?");
    check_refused("--qqqqqqq", NULL, "unknown option --qqqqqqq");
    check_refused("-vz", NULL, "unknown option -z in '-vz'");
    check_refused("word", NULL, "'word' is not an option");
    check_refused("--no-threads", NULL, "unknown option --no-threads");
}

Test(options, bytes)
{
    /* clang-format off */
    static const struct { const char *text; uint64_t want; } good[] = {
        {"0", 0}, {"4096", 4096}, {"18446744073709551615", UINT64_MAX}, {"64K", 65536}, {"64kib", 65536},
        {"1M", 1 << 20}, {"1GB", 1000000000}, {"2G", 2ull << 30}, {"2 GiB", 2ull << 30}, {"0.5KiB", 512}, {"3TiB", 3ull << 40},
    };
    /* clang-format on */
    static const char *const bad[] = {"",     "-1", "K", "1X", "1KiBx", "18446744073709551616",
                                      "1e30", "nan"};
    uint64_t v;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        cr_assert_eq(options_parse_bytes(good[i].text, &v), 0, "%s", good[i].text);
        cr_assert_eq(v, good[i].want, "%s", good[i].text);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_eq(options_parse_bytes(bad[i], &v), -EINVAL, "%s", bad[i]);
    }
}

Test(options, command_line_beats_environment_beats_file_beats_default)
{
    struct config c = {0};
    struct error e = {0};
    char *path =
        write_file("# comment\n\nthreads = 1\ntemp= 0.1\n  model = \" a b \"\nbackend=ref\n"
                   "overlay = f1\noverlay = f2\nverbose = yes\n");
    char *env[] = {"PATH=/bin",        "PIPIT_TEMP=0.2",   "PIPIT_MODEL=env",
                   "PIPIT_THREADSX=9", "PIPIT_OVERLAY=e1", NULL};
    char *argv[] = {"prog", "--model", "argv", "--config", path};

    cr_assert_eq(options_load(&table, &c, 5, argv, env, "config", NULL, &e), 0, "%s", e.text);
    cr_assert_eq(c.threads, 1);
    cr_assert_float_eq(c.temp, 0.2, 0);
    cr_assert_str_eq(c.model, "argv");
    cr_assert_eq(c.backend, 1);
    cr_assert(c.verbose);
    cr_assert(c.color);
    cr_assert_eq(c.overlays.n, 1, "a later source replaces the list");
    cr_assert_str_eq(c.overlays.v[0], "e1");
    options_clear(&table, &c);

    cr_assert_eq(options_file(&table, &c, path, &e), 0);
    cr_assert_eq(c.overlays.n, 2);
    cr_assert_str_eq(c.model, " a b ");
    options_clear(&table, &c);
    (void)unlink(path);
}

static void check_file_refused(const char *text, const char *said)
{
    struct config c = {0};
    struct error e = {0};
    char *path = write_file(text);

    cr_assert_eq(options_file(&table, &c, path, &e), -EINVAL, "%s", text);
    cr_assert(strstr(e.text, said), "'%s' does not say '%s'", e.text, said);
    options_clear(&table, &c);
    (void)unlink(path);
}

Test(options, file_refusals_name_file_and_line)
{
    check_file_refused("threads = 1\nthreads = 2\n", ":2: threads is given a second time");
}

Test(options, file_refuses_values)
{
    check_file_refused("\nthreads = 100\n", ":2: threads: '100' is not a whole number, 0..64");
}

Test(options, file_refuses_unknown_keys)
{
    check_file_refused("therads = 1\n", ":1: unknown option therads; did you mean threads?");
}

Test(options, file_refuses_other_lines)
{
    check_file_refused("threads 1\n", ":1: a line is 'key = value'");
}

Test(options, file_refuses_options_of_the_command_line)
{
    check_file_refused("config = x\n", "for the command line only");
}

Test(options, missing_file)
{
    struct config c = {0};
    struct error e = {0};

    cr_assert_eq(options_file(&table, &c, "/nonexistent/x.conf", &e), -ENOENT);
    cr_assert(strstr(e.text, "/nonexistent/x.conf"), "%s", e.text);
}

Test(options, environment_refusal_names_the_variable)
{
    struct config c = {0};
    struct error e = {0};
    char *env[] = {"PIPIT_THREADS=many", NULL};

    cr_assert_eq(options_environ(&table, &c, env, &e), -EINVAL);
    cr_assert(strstr(e.text, "PIPIT_THREADS: 'many'"), "%s", e.text);
}

Test(options, rows_of_another_command_are_unknown)
{
    struct config c = {0};
    struct error e = {0};
    struct option_table of_ask = table;
    struct option_table of_chat = table;
    char *argv[] = {"prog", "--asked", "3"};

    of_ask.command = ASK;
    of_chat.command = CHAT;
    cr_assert_eq(options_argv(&of_ask, &c, 3, argv, NULL, &e), 0);
    cr_assert_eq(c.asked, 3);
    cr_assert_eq(options_argv(&of_chat, &c, 3, argv, NULL, &e), -EINVAL);
}

Test(options, help_shows_every_row)
{
    char *text = options_help(&table);

    cr_assert(text);
    cr_assert(strstr(text, "usage: prog [OPTION]...\n\nDoes things.\n"));
    cr_assert(strstr(text, "  -t, --threads N             threads [0..64; default 4]\n"), "%s",
              text);
    cr_assert(strstr(text, "--memory BYTES"));
    cr_assert(strstr(text, "[at least 1MiB]"));
    cr_assert(strstr(text, "[auto, ref or cpu; default cpu]"));
    cr_assert(strstr(text, "--no-color"));
    for (char *p = text; (p = strchr(p, '\n')); p++) {
        cr_assert_leq(strcspn(p + 1, "\n"), 80);
    }
    free(text);
}

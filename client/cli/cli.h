/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_CLIENT_CLI_CLI_H
#define PIPIT_CLIENT_CLI_CLI_H

/* What the files of the pipit command share: exit codes, settings, the table of commands, and the
 * way errors are told. stdout carries answers only; everything here that speaks speaks on stderr.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/options.h"
#include "client/pipit.h"

enum exit_code {
    EXIT_OK = 0,
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3,
    EXIT_REFUSED = 4,
    EXIT_CONTEXT = 5,
    EXIT_MODEL = 6,
    EXIT_CANCELLED = 7, /* or timed out */
    EXIT_INTERNAL = 8,
    EXIT_INTERRUPTED = 130,
};

/* ---- settings.c ---- */

enum command_bit {
    CMD_ASK = 1 << 0,
    CMD_CHAT = 1 << 1,
    CMD_TOKENIZE = 1 << 2,
    CMD_DETOKENIZE = 1 << 3,
    CMD_STATUS = 1 << 4,
    CMD_CANCEL = 1 << 5,
    CMD_DOCTOR = 1 << 6,
    CMD_WAIT = 1 << 7,
    CMD_SCORE = 1 << 8,
    CMD_METRICS = 1 << 9,
    CMD_BATCH = 1 << 10,
    CMD_SESSION = 1 << 11,
    CMD_DRAIN = 1 << 12,
    CMD_UNLOAD = 1 << 13,
    CMD_EMBED = 1 << 14,
    CMD_REQUESTS = 1 << 15,
    CMD_FROM_FILE = 1 << 30, /* the sources that are no command line */
    CMD_FROM_ENVIRON = 1 << 29,
};

enum reasoning { REASONING_AUTO, REASONING_YES, REASONING_NO };

struct settings {
    char *config;
    char *runtime_dir;
    char *instance;
    char *system;
    char *kv;
    char *session;
    char *schema;
    char *tools;
    char *seed;
    struct option_list stop;
    int64_t max_tokens;
    int64_t top_k;
    int64_t logprobs;
    int64_t first;
    int64_t jobs;
    double temp;
    double top_p;
    double min_p;
    double repeat_penalty;
    double presence_penalty;
    double frequency_penalty;
    double timeout; /* seconds, 0: none */
    double retry; /* seconds that a busy daemon is asked again */
    double limit;   /* the same, of a drain */
    double patience; /* of wait, where no daemon is */
    bool own_limit; /* max_tokens is what we chose for a conversation */
    bool raw;
    bool run_tools;
    bool no_color; /* NO_COLOR is set */
    int reasoning; /* enum reasoning */
    bool no_draft;
    bool json;
    bool stats;
    bool count;
    bool total;
    bool not_unit;
    bool watch;
    int pooling; /* enum pipit_pooling */
    bool load;
    bool reload;
    bool help;
};

struct command {
    const char *name;
    uint32_t bit;
    const char *summary; /* one line for `pipit --help` */
    const char *usage;
    const char *intro;
    int (*run)(struct settings *s, const struct option_list *words);
};

/* The last has no name. */
extern const struct command commands[];

/* Defaults, --config FILE, PIPIT_*, command line. argv[0] is the command's name. */
int settings_load(const struct command *cmd, struct settings *s, int argc, char *const argv[],
                  char *const env[], struct option_list *ret_words, struct error *reterr)
    WARN_UNUSED;
void settings_clear(struct settings *s);
char *settings_help(const struct command *cmd);

/* Sampling, limits, stops, seed and policy of the settings into a request. */
int settings_apply(const struct settings *s, struct pipit_request *q, struct error *reterr)
    WARN_UNUSED;

/* ---- report.c ---- */

/* "pipit: text" on stderr. */
void say(const char *fmt, ...) PRINTF_LIKE(1, 2);
/* Says a usage error and where help is; EXIT_USAGE. */
int usage_error(const char *command, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Says what went wrong and what may help; the exit code. */
int report(const struct pipit_error *e);
/* The same of an answer, of which something may have come. */
int report_answer(const struct pipit_error *e, bool begun, const struct settings *s);
/* Why the daemon has no model, or not the one that was asked for: "" if it says nothing. Valid
 * until the client's next report. */
const char *model_cause(struct pipit_client *c);
/* Says that no model can be loaded, and why; EXIT_MODEL. */
int report_model(struct pipit_client *c);
int exit_of_code(uint32_t code);
int exit_of_reason(uint32_t reason);
/* A token's bytes in quotes, anything odd as \xNN. */
void quote_bytes(FILE *f, const char *text, size_t len);
/* Numbers for people: "1.5 MiB", into ret (at least 32 bytes). */
const char *bytes_text(uint64_t bytes, char ret[32]);
/* A backend's name without the list of kernels behind it. */
int backend_len(const char *backend);
void id_text(const uint8_t id[16], char ret[33]);

/* ---- connect.c ---- */

/* Created and set up, not connected. 0, or the exit code with the error told; *ret is to be
 * destroyed either way. */
int cli_client(const struct settings *s, struct pipit_client **ret);
/* Until when --retry asks again, from now on; 0: not at all. */
int64_t cli_retry_until(const struct settings *s);
/* Does this refusal name a time that comes before? */
bool cli_waits(const struct pipit_error *e, int64_t until_ns);
/* Refusals are waited out. json: an error is told as an answer's last line, too. */
int cli_connect(struct pipit_client *c, int64_t retry_until_ns, bool json);
/* Both. */
int cli_open(const struct settings *s, struct pipit_client **ret);

/* ---- input.c ---- */

struct text {
    char *data; /* NUL after it; owned */
    size_t len;
};

/* A prompt from words of the command line, stdin and files (pipit ask --help says how). 0, or an
 * exit code with the error told. */
int input_prompt(const struct command *cmd, const struct option_list *words, struct text *ret);
/* Offset of the first byte that is not UTF-8 or is NUL, or -1. */
ssize_t input_bad_byte(const char *data, size_t len);

/* ---- the commands ---- */

const struct command *command_find(const char *name);
int ask_run(struct settings *s, const struct option_list *words);
int chat_run(struct settings *s, const struct option_list *words);
int tokenize_run(struct settings *s, const struct option_list *words);
int detokenize_run(struct settings *s, const struct option_list *words);
int status_run(struct settings *s, const struct option_list *words);
int requests_run(struct settings *s, const struct option_list *words);
int cancel_run(struct settings *s, const struct option_list *words);
int doctor_run(struct settings *s, const struct option_list *words);
int wait_run(struct settings *s, const struct option_list *words);
int metrics_run(struct settings *s, const struct option_list *words);
int session_run(struct settings *s, const struct option_list *words);
int batch_run(struct settings *s, const struct option_list *words);
int drain_run(struct settings *s, const struct option_list *words);
int unload_run(struct settings *s, const struct option_list *words);
int embed_run(struct settings *s, const struct option_list *words);
int score_run(struct settings *s, const struct option_list *words);

#endif

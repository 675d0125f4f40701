/* SPDX-License-Identifier: Apache-2.0 */
/* Every option of every command, once. From these rows come the parser, --help, the keys of a
 * configuration file and the PIPIT_ variables.
 *
 * PIPIT_RUNTIME_DIR and PIPIT_INSTANCE are left to the library, which looks them up for every
 * program that uses it. A configuration file is read only when --config names it: PIPIT_CONFIG
 * belongs to the daemon. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/policy_words.h"
#include "client/cli/cli.h"

#define OFF(field) offsetof(struct settings, field)
#define BOTH (CMD_FROM_FILE | CMD_FROM_ENVIRON)
#define ANSWERS (CMD_ASK | CMD_CHAT | CMD_BATCH | BOTH)
#define ALL                                                                                        \
    (CMD_ASK | CMD_CHAT | CMD_TOKENIZE | CMD_DETOKENIZE | CMD_STATUS | CMD_CANCEL | CMD_REQUESTS | \
     CMD_DOCTOR | CMD_WAIT | CMD_SCORE | CMD_METRICS | CMD_BATCH | CMD_SESSION | CMD_DRAIN |       \
     CMD_UNLOAD | CMD_EMBED)

enum { NOT_SAID = -1, TALK_TOKENS = 1024 };

static const char *const reasonings[] = {"auto", "yes", "no", NULL};
static const char *const poolings[] = {"mean", "last", "none", NULL};

/* clang-format off */
static const struct option_row rows[] = {
    {"system", 0, OPTION_STRING, OFF(system), .metavar = "TEXT", .commands = ANSWERS,
     .help = "the system message, before the conversation"},
    {"max-tokens", 'n', OPTION_INT, OFF(max_tokens), 0, 1 << 24, .commands = ANSWERS,
     .help = "longest answer in tokens; 0: until the model ends it or the context is full; without this option 1024 in "
             "a chat or a session, else 0"},
    {"temp", 0, OPTION_FLOAT, OFF(temp), 0, 100, .fallback = "0.7", .commands = ANSWERS,
     .help = "temperature; 0 always takes the likeliest token"},
    {"top-k", 0, OPTION_INT, OFF(top_k), 0, 1000000, .fallback = "0", .commands = ANSWERS,
     .help = "choose among the K likeliest tokens; 0: all"},
    {"top-p", 0, OPTION_FLOAT, OFF(top_p), 0, 1, .fallback = "0.95", .commands = ANSWERS,
     .help = "choose among the likeliest tokens that make up this probability"},
    {"min-p", 0, OPTION_FLOAT, OFF(min_p), 0, 1, .fallback = "0.05", .commands = ANSWERS,
     .help = "leave out tokens less likely than this share of the likeliest"},
    {"seed", 0, OPTION_STRING, OFF(seed), .metavar = "N", .commands = ANSWERS,
     .help = "same seed, same answer; without it one is drawn (--json tells it)"},
    {"stop", 0, OPTION_LIST, OFF(stop), .metavar = "TEXT", .commands = ANSWERS,
     .help = "end before this text; may be repeated, at most 16 times"},
    {"repeat-penalty", 0, OPTION_FLOAT, OFF(repeat_penalty), 0.01, 100, .fallback = "1", .commands = ANSWERS,
     .help = "above 1: recent tokens become less likely"},
    {"presence-penalty", 0, OPTION_FLOAT, OFF(presence_penalty), -100, 100, .fallback = "0", .commands = ANSWERS,
     .help = "taken from the logit of tokens that were said"},
    {"frequency-penalty", 0, OPTION_FLOAT, OFF(frequency_penalty), -100, 100, .fallback = "0", .commands = ANSWERS,
     .help = "the same, times how often they were said"},
    {"logprobs", 0, OPTION_INT, OFF(logprobs), -1, 20, .fallback = "-1", .commands = CMD_ASK | BOTH,
     .help = "tell each token's log-probability and this many alternatives, in --json or on stderr; -1: do not"},
    {"raw", 0, OPTION_FLAG, OFF(raw), .commands = CMD_ASK | CMD_BATCH | BOTH,
     .help = "continue the prompt as it is, without the model's chat template"},
    {"no-draft", 0, OPTION_FLAG, OFF(no_draft), .commands = ANSWERS,
     .help = "no tokens are guessed from the text and checked together; the answer is the same"},
    {"kv", 0, OPTION_STRING, OFF(kv), .metavar = "POLICY", .commands = ANSWERS | CMD_SCORE | CMD_EMBED,
     .help = "cache policy of this request, such as fp8+h2o:50%, of the words " POLICY_WORDS "; the daemon's own by default"},
    {"session", 0, OPTION_STRING, OFF(session), .metavar = "NAME", .commands = CMD_ASK | CMD_CHAT | BOTH,
     .help = "continue the saved conversation NAME, or begin it; the daemon saves it after each answer"},
    {"schema", 0, OPTION_STRING, OFF(schema), .metavar = "FILE", .commands = CMD_ASK | BOTH,
     .help = "answer in JSON of this schema (not built yet)"},
    {"tools", 0, OPTION_STRING, OFF(tools), .metavar = "FILE", .commands = CMD_ASK | CMD_CHAT | BOTH,
     .help = "tools that the model may call: a JSON list of definitions as in OpenAI's API, each perhaps with a \"command\""},
    {"run-tools", 0, OPTION_FLAG, OFF(run_tools), .flags = OPTION_ARGV_ONLY, .commands = CMD_ASK | CMD_CHAT,
     .help = "run the commands of tools that the model calls, with the arguments on stdin, and give it what they print"},
    {"reasoning", 0, OPTION_ENUM, OFF(reasoning), .words = reasonings, .fallback = "auto", .commands = CMD_ASK | CMD_CHAT | BOTH,
     .help = "show what the model thinks before it answers; auto: in a terminal"},
    {"count", 0, OPTION_FLAG, OFF(count), .commands = CMD_TOKENIZE | BOTH,
     .help = "print only how many tokens there are"},
    {"first", 0, OPTION_INT, OFF(first), 0, 1 << 24, .fallback = "0", .commands = CMD_SCORE | BOTH,
     .help = "score only what follows the token of this index"},
    {"total", 0, OPTION_FLAG, OFF(total), .commands = CMD_SCORE | BOTH,
     .help = "print only the number of tokens, their log-probability in all, and the perplexity"},
    {"pooling", 0, OPTION_ENUM, OFF(pooling), .words = poolings, .fallback = "mean", .commands = CMD_EMBED | BOTH,
     .help = "which tokens: the mean of all, the last one's, or each one's (none)"},
    {"no-normalize", 0, OPTION_FLAG, OFF(not_unit), .commands = CMD_EMBED | BOTH,
     .help = "the numbers as the model has them, not of length 1"},
    {"jobs", 'j', OPTION_INT, OFF(jobs), 0, 64, .fallback = "0", .commands = CMD_BATCH | BOTH,
     .help = "requests under way at once; 0: twice as many as the daemon runs"},
    {"json", 0, OPTION_FLAG, OFF(json), .commands = CMD_ASK | CMD_TOKENIZE | CMD_STATUS | CMD_REQUESTS | CMD_DOCTOR | CMD_SCORE | CMD_SESSION | CMD_EMBED | BOTH,
     .help = "print JSON, one object a line"},
    {"stats", 0, OPTION_FLAG, OFF(stats), .commands = CMD_ASK | CMD_CHAT | BOTH,
     .help = "after the answer, a line of figures on stderr"},
    {"timeout", 0, OPTION_FLOAT, OFF(timeout), 0, 1e6, .fallback = "0", .metavar = "S",
     .commands = ANSWERS | CMD_TOKENIZE | CMD_DETOKENIZE | CMD_WAIT | CMD_SCORE | CMD_EMBED,
     .help = "give up after this many seconds (exit 7); 0: never"},
    {"retry", 0, OPTION_FLOAT, OFF(retry), 0, 1e6, .fallback = "0", .metavar = "S", .commands = CMD_ASK | CMD_BATCH | BOTH,
     .help = "while the daemon refuses and says when to come again, come again, for at most this many seconds"},
    {"patience", 0, OPTION_FLOAT, OFF(patience), 0, 1e6, .fallback = "10", .metavar = "S",
     .flags = OPTION_HIDDEN | OPTION_ARGV_ONLY, .commands = CMD_WAIT, .help = "how long no daemon may be there, for tests"},
    {"watch", 0, OPTION_FLAG, OFF(watch), .flags = OPTION_ARGV_ONLY, .commands = CMD_STATUS,
     .help = "again every second, with tokens a second, until interrupted"},
    {"load", 0, OPTION_FLAG, OFF(load), .flags = OPTION_ARGV_ONLY, .commands = CMD_WAIT,
     .help = "if the model is not in memory, load it, and wait for that, too"},
    {"reload", 0, OPTION_FLAG, OFF(reload), .flags = OPTION_ARGV_ONLY, .commands = CMD_DRAIN,
     .help = "do not end the daemon: let it read its configuration and load its model again"},
    {"limit", 0, OPTION_FLOAT, OFF(limit), 0, 4e6, .fallback = "30", .metavar = "S", .commands = CMD_DRAIN | BOTH,
     .help = "what still runs or waits after this many seconds ends with reason shutdown; 0: no limit"},
    {"runtime-dir", 0, OPTION_STRING, OFF(runtime_dir), .metavar = "DIR", .commands = ALL | CMD_FROM_FILE,
     .help = "folder of the daemon's sockets; without it $PIPIT_RUNTIME_DIR, or else /run/user/UID/pipit/INSTANCE, "
             "/run/pipit/INSTANCE, /tmp/pipit-UID/INSTANCE"},
    {"instance", 0, OPTION_STRING, OFF(instance), .metavar = "NAME", .commands = ALL | CMD_FROM_FILE,
     .help = "which daemon, where several run; without it $PIPIT_INSTANCE, or else default; $PIPIT_RUNTIME_DIR is then not looked at"},
    {"config", 0, OPTION_STRING, OFF(config), .metavar = "FILE", .flags = OPTION_ARGV_ONLY, .commands = ALL,
     .help = "read options from a file of lines 'option = value'"},
    {"help", 'h', OPTION_FLAG, OFF(help), .flags = OPTION_ARGV_ONLY, .commands = ALL,
     .help = "print this text"},
};
/* clang-format on */

static struct option_table table_of(const struct command *cmd, uint32_t bit)
{
    return (struct option_table){rows, sizeof(rows) / sizeof(rows[0]), cmd ? cmd->usage : NULL,
                                 cmd ? cmd->intro : NULL, bit};
}

void settings_clear(struct settings *s)
{
    struct option_table t = table_of(NULL, 0);

    options_clear(&t, s);
    memset(s, 0, sizeof(*s));
}

char *settings_help(const struct command *cmd)
{
    struct option_table t = table_of(cmd, cmd->bit);

    return options_help(&t);
}

/* An answer that the model does not end would fill the context, and after it no message of the
 * conversation fits. */
static void limit_answer(const struct command *cmd, struct settings *s)
{
    if (s->max_tokens == NOT_SAID) {
        s->own_limit = cmd->bit == CMD_CHAT || s->session;
        s->max_tokens = s->own_limit ? TALK_TOKENS : 0;
    }
}

int settings_load(const struct command *cmd, struct settings *s, int argc, char *const argv[],
                  char *const env[], struct option_list *ret_words, struct error *reterr)
{
    struct option_table all = table_of(NULL, 0);
    struct option_table of_file = table_of(NULL, CMD_FROM_FILE);
    struct option_table of_env = table_of(NULL, CMD_FROM_ENVIRON);
    struct option_table of_cmd = table_of(cmd, cmd->bit);
    struct option_list words = {0};
    struct settings first = {0};
    int r;

    /* The command line is read twice: the file it names comes before it in precedence. */
    r = options_argv(&of_cmd, &first, argc, argv, &words, reterr);
    options_list_clear(&words);
    if (r == 0) {
        r = options_defaults(&all, s, reterr);
        s->max_tokens = NOT_SAID;
    }
    if (r == 0 && first.config && !first.help) {
        r = options_file(&of_file, s, first.config, reterr);
    }
    if (r == 0) {
        r = options_environ(&of_env, s, env, reterr);
    }
    if (r == 0) {
        r = options_argv(&of_cmd, s, argc, argv, ret_words, reterr);
    }
    for (char *const *p = env; *p; p++) {
        s->no_color |= strncmp(*p, "NO_COLOR=", 9) == 0 && (*p)[9];
    }
    limit_answer(cmd, s);
    settings_clear(&first);
    return r;
}

static int apply_seed(const char *text, struct pipit_request *q, struct error *reterr)
{
    char *end;
    unsigned long long v;

    if (!text) {
        return 0;
    }
    errno = 0;
    v = strtoull(text, &end, 10);
    if (errno || *end || text[0] < '0' || text[0] > '9') {
        return error_set(reterr, -EINVAL,
                         "option --seed: '%.60s' is not a whole number, 0..18446744073709551615",
                         text);
    }
    return pipit_request_set_seed(q, v);
}

int settings_apply(const struct settings *s, struct pipit_request *q, struct error *reterr)
{
    /* clang-format off */
    const struct { enum pipit_param param; double value; const char *name; } t[] = {
        {PIPIT_TEMPERATURE, s->temp, "temp"},
        {PIPIT_TOP_P, s->top_p, "top-p"},
        {PIPIT_MIN_P, s->min_p, "min-p"},
        {PIPIT_TOP_K, (double)s->top_k, "top-k"},
        {PIPIT_REPEAT_PENALTY, s->repeat_penalty, "repeat-penalty"},
        {PIPIT_PRESENCE_PENALTY, s->presence_penalty, "presence-penalty"},
        {PIPIT_FREQUENCY_PENALTY, s->frequency_penalty, "frequency-penalty"},
        {PIPIT_MAX_TOKENS, (double)s->max_tokens, "max-tokens"},
        {PIPIT_LOGPROBS, (double)s->logprobs, "logprobs"},
        {PIPIT_DRAFT, s->no_draft ? 0 : 1, "no-draft"},
        {PIPIT_TIMEOUT_MS, ceil(s->timeout * 1000), "timeout"},
    };
    /* clang-format on */

    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        int r = pipit_request_set_param(q, t[i].param, t[i].value);

        if (r < 0) {
            return error_set(reterr, r, "option --%s: %g is out of range", t[i].name, t[i].value);
        }
    }
    for (size_t i = 0; i < s->stop.n; i++) {
        const char *text = s->stop.v[i];
        int r = input_bad_byte(text, strlen(text)) >= 0
                    ? -EILSEQ
                    : pipit_request_add_stop(q, text, strlen(text));

        if (r < 0) {
            return error_set(reterr, r, "option --stop: %s",
                             r == -E2BIG    ? "more than 16 texts"
                             : r == -EILSEQ ? "a text is not UTF-8"
                                            : "a text is empty");
        }
    }
    if (s->kv && pipit_request_set_policy(q, s->kv) < 0) {
        return error_set(reterr, -ENOMEM, "no memory for the request");
    }
    return apply_seed(s->seed, q, reterr);
}

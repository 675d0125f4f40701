/* SPDX-License-Identifier: Apache-2.0 */
/* pipit: the command line of pipitd. This file knows the commands and how to choose one; each
 * command is a file of its own, their options are rows in settings.c. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/streams.h"
#include "base/word.h"
#include "client/cli/cli.h"

extern char **environ;

#define CODES                                                                                      \
    "Exit codes: 0 ok, 2 usage, 3 daemon unreachable, 4 refused (busy, over a limit), 5 prompt\n"  \
    "longer than the context, 6 model or saved session bad, 7 cancelled or timed out,\n"           \
    "8 cut by the daemon's end or its fault, 130 interrupted."

/* clang-format off */
const struct command commands[] = {
    {"ask", CMD_ASK, "answer one prompt", "pipit ask [OPTION]... [PROMPT | - | @FILE]",
     "Asks the model and prints its answer while it comes. stdout carries the answer\n"
     "and one newline after it, nothing else.\n"
     "\n"
     "PROMPT is a text; @FILE reads a file (@@ for a text that begins with @), - or\n"
     "nothing reads stdin. When PROMPT or @FILE is given and stdin is a pipe or a\n"
     "file, what it holds is put behind, after a newline: an instruction, then the\n"
     "document. One newline at the end of stdin or of a file is dropped.\n"
     "\n"
     "The prompt goes through the model's chat template as the user's message; with\n"
     "--raw it is continued as it stands. Nothing is ever cut: a prompt longer than\n"
     "the context is refused with both numbers.\n"
     "\n"
     "Ctrl-C ends the answer and keeps what came. With --json each line is an\n"
     "object: accepted, progress, token, text, resumed, and last done or error, with\n"
     "finish_reason, usage, timings, kv and the whole text.\n"
     "\n"
     "  pipit ask 'Why is the sky blue?'\n"
     "  pipit ask 'Summarise in one sentence:' <report.txt\n"
     "  echo 'The capital of France is' | pipit ask --raw -n 8 --temp 0\n"
     "  pipit ask --json 'Hello' | jq -r 'select(.type == \"done\") | .usage'\n"
     "\n" CODES, ask_run},
    {"chat", CMD_CHAT, "talk with the model", "pipit chat [OPTION]...",
     "A conversation: a line is a message, the answer follows, everything said so far\n"
     "goes along with the next message. A line that ends in \\ goes on in the next.\n"
     "/clear forgets the conversation, /quit (or Ctrl-D) ends, /help lists these.\n"
     "Ctrl-C ends an answer, not the program; what came of it stays in the\n"
     "conversation (with --session the turn is not saved: it is as if not asked).\n"
     "\n"
     "Without a terminal on stdin each line is one message, and the program ends at\n"
     "the first error with its exit code.\n"
     "\n" CODES, chat_run},
    {"batch", CMD_BATCH, "answer many prompts, JSON lines in and out", "pipit batch [OPTION]... [FILE | -]",
     "Reads one JSON object a line and writes one a line, in the same order, while many\n"
     "are answered at once. Options hold for all lines; a line's own keys go before:\n"
     "\n"
     "  prompt, messages ([{\"role\": ..., \"content\": ...}]) or tokens: exactly one\n"
     "  custom_id (comes back), system, raw, max_tokens, temperature, top_k, top_p,\n"
     "  min_p, repeat_penalty, presence_penalty, frequency_penalty, seed, stop, kv,\n"
     "  timeout (seconds), urgency (-1 unless given; below 0 prompts are read in whole\n"
     "  chunks, so that all is done sooner and tokens come less evenly)\n"
     "\n"
     "Each answer is the last line of 'pipit ask --json' with the line's index and\n"
     "custom_id. A line that cannot be answered gives a line with an error, the others\n"
     "go on; the exit code is that of the first failure. Where the daemon is full, a\n"
     "line is asked again later. Ctrl-C ends what runs and writes what came.\n"
     "\n"
     "  jq -c '{prompt: .question}' faq.json | pipit batch --temp 0 | jq -r .text\n"
     "\n" CODES, batch_run},
    {"tokenize", CMD_TOKENIZE, "text to token ids", "pipit tokenize [OPTION]... [TEXT | - | @FILE]",
     "Prints the ids of the text's tokens, one a line, as the model of the running\n"
     "daemon counts them. TEXT, @FILE and stdin are read as by 'pipit ask'.\n"
     "\n"
     "  pipit tokenize --count @report.txt\n"
     "\n" CODES, tokenize_run},
    {"detokenize", CMD_DETOKENIZE, "token ids to text", "pipit detokenize [OPTION]... [ID]...",
     "Prints the text of token ids, given as arguments or on stdin, apart by white\n"
     "space or commas, and one newline.\n"
     "\n"
     "  pipit tokenize 'Hello' | pipit detokenize\n"
     "\n" CODES, detokenize_run},
    {"score", CMD_SCORE, "how likely the model finds a text", "pipit score [OPTION]... [TEXT | - | @FILE]",
     "Prints one line a token, from the second on: its log-probability given all before\n"
     "it, a tab, its text. TEXT, @FILE and stdin are read as by 'pipit ask'; no chat\n"
     "template is put round them.\n"
     "\n"
     "  pipit score --total @report.txt\n"
     "\n" CODES, score_run},
    {"embed", CMD_EMBED, "a text as a vector", "pipit embed [OPTION]... [TEXT | - | @FILE]",
     "Prints the text's embedding: the mean of its tokens' last hidden states, of length\n"
     "1, as numbers in one line; with --json an object. TEXT, @FILE and stdin are read as\n"
     "by 'pipit ask'; no chat template is put round them. --pooling none prints a line a\n"
     "token.\n"
     "\n"
     "  pipit embed --json 'Where is the harbour?' | jq .embedding\n"
     "\n" CODES, embed_run},
    {"status", CMD_STATUS, "what the daemon is doing", "pipit status [OPTION]...",
     "Prints the model, its state (and why it could not be loaded), requests, tokens,\n"
     "memory, health, and who holds the cache: for each policy that requests asked for\n"
     "the sequences that run, their slots (summed over layers and heads) and bytes, and\n"
     "what was evicted since the model was loaded.\n"
     "\n" CODES, status_run},
    {"metrics", CMD_METRICS, "figures for Prometheus", "pipit metrics [OPTION]...",
     "Prints the daemon's figures as Prometheus text, for a scraper or for the node\n"
     "exporter's textfile collector.\n"
     "\n" CODES, metrics_run},
    {"session", CMD_SESSION, "saved conversations", "pipit session [OPTION]... list | rm NAME...",
     "Lists this user's saved conversations, or removes some. They are begun and\n"
     "continued by --session NAME of 'pipit ask' and 'pipit chat', and lie in the\n"
     "daemon's state directory.\n"
     "\n"
     "  pipit ask --session trip 'Three days in Porto: what would you see?'\n"
     "  pipit ask --session trip 'And if it rains?'\n"
     "  pipit session rm trip\n"
     "\n" CODES, session_run},
    {"requests", CMD_REQUESTS, "requests that run or wait", "pipit requests [OPTION]...",
     "Prints a line for each of this user's requests that run or wait, in the order in\n"
     "which they came: id, user, kind, state, age, place in the queue, tokens said, bytes\n"
     "of the request and of its answer's text. Root and the user that the daemon runs as\n"
     "see everybody's. The place is by age; turns go round the users. Never a text.\n"
     "\n"
     "  pipit requests --json | jq -r 'select(.age_s > 60) | .id' | xargs -n 1 pipit cancel\n"
     "\n" CODES, requests_run},
    {"cancel", CMD_CANCEL, "end a request", "pipit cancel [OPTION]... ID",
     "Ends a request of the same user, or, for root and the user that the daemon runs\n"
     "as, anybody's. ID is what 'pipit requests' prints, and 'pipit ask --json' in its\n"
     "first line: 32 hexadecimal digits. Exit 4 when no such request runs.\n"
     "\n" CODES, cancel_run},
    {"wait", CMD_WAIT, "wait until the model is ready", "pipit wait [OPTION]...",
     "Returns when a daemon answers and its model can be used: 0 at once if it can\n"
     "already, 6 with the cause if the model cannot be loaded (also of a daemon that\n"
     "ended for it within the last ten seconds), 7 when --timeout is over. Without\n"
     "--timeout it ends with 3 when no daemon was there for ten seconds. A model that\n"
     "was unloaded counts as ready, since the next request loads it; with --load it is\n"
     "loaded now.\n"
     "\n" CODES, wait_run},
    {"drain", CMD_DRAIN, "let requests end, then the daemon", "pipit drain [OPTION]...",
     "The daemon takes no new requests (they are told to come back later), lets those\n"
     "that run or wait come to their end, and ends. Under systemd the next connection\n"
     "starts it again; 'systemctl stop' on its socket keeps it down.\n"
     "\n"
     "With --reload it stays and, once nothing runs, reads its configuration and loads\n"
     "its model again: that is how a model is changed without breaking an answer.\n"
     "Settings of the daemon's own memory (lanes, journal) still wait for a restart.\n"
     "\n"
     "Returns when that has happened: 0; 6 if the new model cannot be loaded. For root\n"
     "and for the user that the daemon runs as; others exit 4.\n"
     "\n"
     "  install -m 644 new.gguf /var/lib/pipit/model.new &&\n"
     "    mv /var/lib/pipit/model.new /var/lib/pipit/model.gguf && sudo pipit drain --reload\n"
     "\n" CODES, drain_run},
    {"unload", CMD_UNLOAD, "give the model's memory back", "pipit unload [OPTION]...",
     "Ends the process that holds the model. The daemon and its sockets stay; the next\n"
     "request loads the model again and waits for it. Saved sessions stay, the prefix\n"
     "cache is lost. Exit 4 while requests run or wait. For root and for the user that\n"
     "the daemon runs as. idle-unload in the daemon's configuration does this by itself.\n"
     "\n" CODES, unload_run},
    {"doctor", CMD_DOCTOR, "look for what is wrong", "pipit doctor [OPTION]...",
     "Looks at everything between here and an answer: the places where the daemon\n"
     "may be, socket and permissions, hello, model, memory, the CPU and this user's\n"
     "limits. Says what is wrong and what to do. The exit code is that of the worst\n"
     "finding.\n"
     "\n" CODES, doctor_run},
    {0},
};

/* Known, but of a later version. */
static const char *const later[] = {"load", NULL};
/* clang-format on */

const struct command *command_find(const char *name)
{
    for (const struct command *c = commands; c->name; c++) {
        if (strcmp(c->name, name) == 0) {
            return c;
        }
    }
    return NULL;
}

static void print_overview(FILE *f)
{
    (void)fprintf(f, "usage: pipit COMMAND [OPTION]... [ARGUMENT]...\n\n"
                     "Talks to pipitd, the local language-model daemon.\n\n");
    for (const struct command *c = commands; c->name; c++) {
        (void)fprintf(f, "  %-12s%s\n", c->name, c->summary);
    }
    (void)fprintf(f, "\n'pipit COMMAND --help' tells the options of a command and has examples.\n"
                     "All commands take --runtime-dir DIR and --instance NAME.\n\n" CODES "\n");
}

static int print_help(const struct command *cmd)
{
    char *text = settings_help(cmd);

    if (!text) {
        say("no memory for the help");
        return EXIT_INTERNAL;
    }
    (void)fputs(text, stdout);
    free(text);
    return fflush(stdout) ? EXIT_INTERNAL : EXIT_OK;
}

static int unknown_command(const char *name)
{
    const char *near = NULL;
    size_t best = 3;

    for (const char *const *l = later; *l; l++) {
        if (strcmp(*l, name) == 0) {
            say("'%s' is not built yet", name);
            return EXIT_USAGE;
        }
    }
    if (name[0] == '-') {
        return usage_error(NULL, "'%.60s' comes before a command: options follow the command",
                           name);
    }
    for (const struct command *c = commands; c->name; c++) {
        size_t d = word_distance(name, strlen(name), c->name, strlen(c->name));

        if (d < best) {
            best = d;
            near = c->name;
        }
    }
    if (near) {
        return usage_error(NULL, "unknown command '%.60s'; did you mean '%s'?", name, near);
    }
    return usage_error(NULL, "unknown command '%.60s'", name);
}

static int run(const struct command *cmd, int argc, char *argv[])
{
    struct settings s = {0};
    struct option_list words = {0};
    struct error e = {0};
    int code;

    if (settings_load(cmd, &s, argc, argv, environ, &words, &e) < 0) {
        code = usage_error(cmd->name, "%s", e.text);
    } else if (s.help) {
        code = print_help(cmd);
    } else {
        code = cmd->run(&s, &words);
    }
    options_list_clear(&words);
    settings_clear(&s);
    return code;
}

int main(int argc, char *argv[])
{
    const char *name = argc > 1 ? argv[1] : "";
    const struct command *cmd = command_find(name);

    if (streams_hold()) {
        return EXIT_INTERNAL;
    }
    if (cmd) {
        return run(cmd, argc - 1, argv + 1);
    }
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        (void)printf("pipit %s\n", pipit_version());
        return fflush(stdout) ? EXIT_INTERNAL : EXIT_OK;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        cmd = argc > 2 ? command_find(argv[2]) : NULL;
        if (cmd) {
            return print_help(cmd);
        }
        if (argc > 2) {
            return unknown_command(argv[2]);
        }
        print_overview(stdout);
        return fflush(stdout) ? EXIT_INTERNAL : EXIT_OK;
    }
    return unknown_command(name);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_CLIENT_CLI_TALK_H
#define PIPIT_CLIENT_CLI_TALK_H

/* What was said so far, and the tools that may be called: what ask and chat share. talk.c keeps the
 * turns and puts them into requests; tools.c reads definitions and runs commands. */

#include "client/cli/answer.h"

struct json_t;

/* ---- talk.c ---- */

struct turn {
    const char *role;
    struct text text;
    struct text reasoning; /* of an answer */
    struct call *calls;    /* (n_calls) */
    size_t n_calls;
    char id[CALL_ID]; /* of a tool's result: which call */
    struct text name;
};

struct talk {
    struct turn *turns;
    size_t n;
    unsigned n_calls; /* ever, for their ids */
};

/* -ENOMEM, told. */
int talk_say(struct talk *t, const char *role, const char *data, size_t len) WARN_UNUSED;
/* The answer with its reasoning, and with its calls where `calls`; takes them from it. */
int talk_answer(struct talk *t, struct answer *a, bool calls) WARN_UNUSED;
int talk_result(struct talk *t, const struct call *call, const char *data, size_t len) WARN_UNUSED;
void talk_forget(struct talk *t, size_t n_left);
void talk_clear(struct talk *t);
/* The turns from `from` on. Negative errno. */
int talk_put(const struct talk *t, size_t from, struct pipit_request *q) WARN_UNUSED;

/* ---- tools.c ---- */

enum { TOOLS_ROUNDS = 16 /* answers to results before a person is asked */ };

struct tools {
    struct json_t *list;     /* without commands; NULL: none */
    struct json_t *commands; /* by name */
    char *text;              /* of the list */
    int run_seconds;         /* of a command, at most */
};

/* The file's JSON list of definitions; NULL: none. 0, or the exit code with the error told. */
int tools_open(const char *path, struct tools *ret);
void tools_close(struct tools *t);
int tools_put(const struct tools *t, struct pipit_request *q) WARN_UNUSED; /* negative errno */
bool tools_have_command(const struct tools *t, const struct call *call);
/* Runs the call's command with the arguments on its stdin. What it prints is the result, and so is
 * how it failed. 0, or an exit code: no memory, or a signal came. */
int tools_run(const struct tools *t, const struct call *call, struct text *ret);
/* All of the last turn's calls, whose results become turns. -1: one has no command. */
int tools_run_all(const struct tools *t, struct talk *talk);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_CONFIG_H
#define PIPIT_DAEMON_FRONT_CONFIG_H

/* pipitd's settings, from one table (base/options.h), and what follows from them: sizes of arenas
 * and journal, and the engine's command line. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/options.h"
#include "daemon/options/engine_options.h"

enum config_load_when { CONFIG_LOAD_START, CONFIG_LOAD_REQUEST };

struct config {
    struct engine_options engine;
    char *file;
    char *instance;
    char *runtime_dir;
    int64_t lanes;
    uint64_t lane_bytes;
    uint64_t journal_bytes;
    int64_t max_queue;
    int gateway; /* 0 no, 1 yes */
    int64_t person_sequences; /* 0: all but one while others are about */
    double stall_timeout;
    double pause_limit;
    double request_timeout; /* 0: none */
    double engine_timeout;
    int load;           /* enum config_load_when */
    double idle_unload; /* s; 0: never */
    double stop_timeout;
    char *state_dir;
    uint64_t session_bytes;
    uint64_t session_writes; /* a day; 0: any number */
    char *subuid_file;
    int log_requests; /* enum logline_which */
    bool verbose;
    bool debugger;
    bool json;
    bool unit;
    bool advise;
    bool help;
    bool version;

    /* Where it came from, for config_reload(); not owned. */
    int argc;
    char *const *argv;
    char *const *env;

    /* Derived by config_load(). */
    bool plan;          /* `pipitd plan` */
    uint64_t c2e_bytes; /* of a lane whose hello asks for nothing */
    uint64_t e2c_bytes;
    uint32_t max_request_bytes;
    uint64_t text_bytes;      /* most of a text that is tokenized at once */
    uint64_t extra_bytes;     /* the front's part of the plan */
    uint64_t extra_seq_bytes; /* and for each sequence */
};

/* From argv, the environment and --config. 0, or -EINVAL (exit code 2) with what to say. */
int config_load(struct config *c, int argc, char *const argv[], char *const environ[],
                struct error *reterr) WARN_UNUSED;
void config_clear(struct config *c);

/* The same sources once more: the file may say something else now. */
int config_reload(const struct config *c, struct config *ret, struct error *reterr) WARN_UNUSED;

/* Would an engine process be told the same under both? */
bool config_same_engine(const struct config *a, const struct config *b);

/* Swaps with `from` what may change while it runs (the list `live` in config.c), and, with
 * `engine`, what another engine process would be told. What differs besides and waits for a restart
 * is named in ret_waiting, "lanes, gateway", or "". */
void config_apply(struct config *c, struct config *from, bool engine, char *ret_waiting,
                  size_t size);
/* Gives `to` what may change while it runs, as `from` has it: numbers, no memory of either's. */
void config_copy_live(struct config *to, const struct config *from);

/* --help of `pipitd` or `pipitd plan`; to be freed. */
char *config_help(bool plan);

/* The engine's arguments after its program name, NULL-terminated, to be freed with
 * config_free_argv(). Descriptors below 0 are left out. NULL without memory. */
char **config_engine_argv(const struct config *c, const char *program, int front_fd,
                          int journal_fd);
void config_free_argv(char **argv);

#endif

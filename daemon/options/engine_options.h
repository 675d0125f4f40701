/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_OPTIONS_ENGINE_OPTIONS_H
#define PIPIT_DAEMON_OPTIONS_ENGINE_OPTIONS_H

/* The settings of pipit-engine that pipitd has, too: pipitd reads them from file, environment and
 * command line and passes them on, unread, as the engine's command line. A further one is a field
 * and a row here, and its use in daemon/worker/main.c. */

#include <stddef.h>
#include <stdint.h>

#include "base/options.h"
#include "base/policy_words.h"

/* The longest text that is tokenized at once is that of the longest request, within these bounds:
 * what a chat template makes of a conversation is such a text, however short the conversation. And
 * what reading it takes at most for each of its bytes: the plan holds as much for the thread that
 * reads texts (daemon/worker/texts.h). */
enum { ENGINE_TEXT_LEAST = 96 << 10, ENGINE_TEXT_BYTES = 4 << 20, ENGINE_TEXT_COST = 90 };
/* Of these bytes those of tools and of calls' arguments may hold so many JSON values, counted by
 * brackets that open, colons and commas. As trees each takes this much beside the text's cost. */
enum { ENGINE_JSON_VALUES = 16 << 10, ENGINE_JSON_COST = 200 };

struct engine_options {
    char *model;
    struct option_list overlays;
    int64_t ctx;
    int64_t sequences;
    int64_t batch_tokens;
    char *kv;
    char *chat_template;  /* of the file, where NULL or empty */
    int tool_format;      /* index of engine_option_tool_formats */
    int64_t gap_target;   /* ms */
    int64_t answer_limit; /* tokens; 0: none */
    int64_t draft;
    int draw;        /* enum engine_draw */
    int prefill;     /* enum engine_prefill */
    int device_wait; /* enum engine_wait */
    int experts;     /* enum engine_experts */
    uint64_t expert_bytes;
    uint64_t memory;
    int backend; /* of engine_option_backends */
    int64_t threads;
    int prefix_cache; /* 0 no, 1 yes */
    char *cache_dir;
    char *tier_dir;
};

extern const char *const engine_option_tool_formats[];
extern const char *const engine_option_backends[];
extern const char *const engine_option_draws[];
extern const char *const engine_option_prefills[];
extern const char *const engine_option_waits[];
extern const char *const engine_option_experts[];
extern const char *const engine_option_no_yes[];

#define ENGINE_AT(S, M, field) offsetof(S, M) + offsetof(struct engine_options, field)

/* clang-format off */
/* The rows of a table whose struct S holds a struct engine_options as its member M. */
#define ENGINE_OPTION_ROWS(S, M) \
    {"model", 'm', OPTION_STRING, ENGINE_AT(S, M, model), \
     .metavar = "FILE", \
     .help = "the model, a GGUF file"}, \
    {"overlay", 0, OPTION_LIST, ENGINE_AT(S, M, overlays), \
     .metavar = "FILE", \
     .help = "a GGUF that adds tensors to the model; repeats"}, \
    {"ctx", 'c', OPTION_INT, ENGINE_AT(S, M, ctx), \
     0, 1 << 24, .fallback = "0", \
     .help = "positions a text may have; 0: the model's own, cut to what fits"}, \
    {"sequences", 0, OPTION_INT, ENGINE_AT(S, M, sequences), \
     0, 1024, .fallback = "0", \
     .help = "texts that are continued at once; 0: two for each thread, at most 8, where " \
             "half of the free memory or all of `memory` holds them; with pool=disk 1"}, \
    {"batch-tokens", 0, OPTION_INT, ENGINE_AT(S, M, batch_tokens), \
     0, 1 << 20, .fallback = "0", \
     .help = "tokens of one step of the scheduler; 0: 512 and one a sequence; on a GPU with " \
             "memory of its own up to 2048 while nobody waits for a next token"}, \
    {"kv", 0, OPTION_STRING, ENGINE_AT(S, M, kv), \
     .metavar = "POLICY", \
     .help = "default cache policy, such as kv8+recency:50%ctx, of the words " POLICY_WORDS \
             "; auto: the one of least loss that fits into the memory (pipitd plan --advise)"}, \
    {"template", 0, OPTION_STRING, ENGINE_AT(S, M, chat_template), \
     .metavar = "FILE|NAME", \
     .help = "chat template instead of the model's own: a file with Jinja, or one of " \
             "chatml, llama3, gemma, mistral, phi3"}, \
    {"tool-format", 0, OPTION_ENUM, ENGINE_AT(S, M, tool_format), \
     .words = engine_option_tool_formats, .fallback = "auto", \
     .help = "how the model writes calls of tools and reasoning; auto: as its chat template " \
             "shows"}, \
    {"gap-target", 0, OPTION_INT, ENGINE_AT(S, M, gap_target), \
     0, 100000, .fallback = "60", .metavar = "MS", \
     .help = "what a step may take that reads prompts while answers are written, or " \
             "twice a step without prompts where that is longer. More: prompts are " \
             "read sooner. Less: answers flow more evenly"}, \
    {"answer-limit", 0, OPTION_INT, ENGINE_AT(S, M, answer_limit), \
     0, INT32_MAX, .fallback = "0", \
     .help = "tokens of an answer at most, whatever its request asks for; 0: as many " \
             "as the context has room for"}, \
    {"draft", 0, OPTION_INT, ENGINE_AT(S, M, draft), \
     0, 63, .fallback = "15", \
     .help = "tokens of an answer that may be guessed from its own text and checked " \
             "together, at most, where that pays; the answer is the same; 0: none"}, \
    {"draw", 0, OPTION_ENUM, ENGINE_AT(S, M, draw), \
     .words = engine_option_draws, .fallback = "auto", \
     .help = "who draws tokens from what the model says, where both can; the tokens " \
             "are the same. auto: a device that computes beside the host, which then " \
             "begins the next step before the token is known"}, \
    {"prefill", 0, OPTION_ENUM, ENGINE_AT(S, M, prefill), \
     .words = engine_option_prefills, .fallback = "auto", \
     .help = "what multiplies prompts by weights on a GPU: own kernels, or cublasLt, without " \
             "which the daemon then loads no model. auto: cublasLt where it is installed, on " \
             "cards; by quantised weights where the card is fast with 16 bits"}, \
    {"device-wait", 0, OPTION_ENUM, ENGINE_AT(S, M, device_wait), \
     .words = engine_option_waits, .fallback = "spin", \
     .help = "how the engine waits for a GPU: spin keeps one CPU busy and is quicker; " \
             "sleep leaves it to others, for hosts of few CPUs"}, \
    {"experts", 0, OPTION_ENUM, ENGINE_AT(S, M, experts), \
     .words = engine_option_experts, .fallback = "held", \
     .help = "where a mixture's experts are. mapped: in the model's file, of which those used " \
             "latest are kept ready: slower, for models larger than the memory (backend cpu)"}, \
    {"expert-bytes", 0, OPTION_BYTES, ENGINE_AT(S, M, expert_bytes), \
     0, 0, .fallback = "0", \
     .help = "with experts = mapped: bytes of experts that are kept ready; 0: twice what one token " \
             "reads"}, \
    {"memory", 0, OPTION_BYTES, ENGINE_AT(S, M, memory), \
     0, 0, .fallback = "0", \
     .help = "bytes the plan may use in all; 0: what is free"}, \
    {"backend", 0, OPTION_ENUM, ENGINE_AT(S, M, backend), \
     .words = engine_option_backends, .fallback = "auto", \
     .help = "what runs the model"}, \
    {"threads", 't', OPTION_INT, ENGINE_AT(S, M, threads), \
     0, 1024, .fallback = "0", \
     .help = "threads of the cpu and ref backends; 0: all this process may use"}, \
    {"prefix-cache", 0, OPTION_ENUM, ENGINE_AT(S, M, prefix_cache), \
     .words = engine_option_no_yes, .fallback = "yes", \
     .help = "keep the cache pages of prompts while nobody needs them, for texts of " \
             "the same user that begin alike"}, \
    {"cache-dir", 0, OPTION_STRING, ENGINE_AT(S, M, cache_dir), \
     .metavar = "DIR", \
     .help = "where hashes of model files are remembered"}, \
    {"tier-dir", 0, OPTION_STRING, ENGINE_AT(S, M, tier_dir), \
     .metavar = "DIR", \
     .help = "where the policy infinigen:pool=disk has its file of keys and values, " \
             "made at start and seen by nobody"},
/* clang-format on */

/* Is this row of a table one of them? */
bool engine_option_is(const struct option_row *row);

/* What an engine is told of them, `--name=value` for each: appended to *args, whose strings are
 * then the caller's. -ENOMEM. */
int engine_options_args(const struct engine_options *o, struct option_list *args) WARN_UNUSED;

#endif

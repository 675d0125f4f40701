/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_CLIENT_PIPIT_H
#define PIPIT_CLIENT_PIPIT_H

/* libpipit: talking to pipitd, the local language-model daemon.
 *
 *     struct pipit_client *client;
 *     struct pipit_request *request;
 *     const struct pipit_event *event;
 *     struct pipit_error error;
 *
 *     pipit_client_create(&client);
 *     pipit_client_connect(client, &error);
 *     pipit_request_create(client, PIPIT_CHAT, &request);
 *     pipit_request_add_message(request, "user", "Why is the sky blue?", 20);
 *     pipit_request_send(request, &error);
 *     while (pipit_request_next(request, -1, &event) == 1) {
 *         if (event->type == PIPIT_EVENT_TOKEN) fwrite(event->text, 1, event->text_len, stdout);
 *     }
 *     pipit_request_destroy(request);
 *     pipit_client_destroy(client);
 *
 * Returns: 0 or a count, or a negative errno; `reterr` (may be NULL) is written only on failure.
 * Handles are opaque. Structs that the library hands out by pointer may grow at their end in a
 * later version; structs that a caller allocates keep their size.
 *
 * Threads: no thread, no signal handler, no global state. A client and everything made from it is
 * used by one thread at a time; different clients are independent. SIGPIPE is never raised.
 * Fork: after fork() the child may only call pipit_client_destroy() (which then frees memory and
 * closes descriptors, and tells the daemon nothing); every other call gives -EPERM. Descriptors
 * are close-on-exec.
 *
 * Event loops: poll pipit_client_fd() for reading, then call pipit_client_dispatch(client, 0).
 * Programs without a loop call pipit_request_next(), which dispatches by itself, or let dispatch
 * wait for descriptors of theirs, too: pipit_client_watch().
 *
 * When the connection is lost while a request runs, the library connects again (for at most the
 * time set by pipit_client_set_reconnect_ms()) and resumes the request where it stood: the text
 * goes on without a gap or a repetition, and a PIPIT_EVENT_RESUMED says that it happened. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PIPIT_VERSION_MAJOR 0
#define PIPIT_VERSION_MINOR 1
#define PIPIT_VERSION_PATCH 0

#define PIPIT_API __attribute__((visibility("default")))
#define PIPIT_CHECKED __attribute__((visibility("default"), warn_unused_result))

struct pipit_client;  /* a connection and all that belongs to it; create, destroy */
struct pipit_request; /* one request and its events; must be destroyed before its client */
struct pipit_lease;   /* a range of the shared memory; must be put before its client is destroyed */

enum pipit_code {
    /* said by the daemon */
    PIPIT_E_INVALID = 1,      /* a value out of range or malformed; the text says which */
    PIPIT_E_PROTOCOL,         /* a record that does not belong there */
    PIPIT_E_ABI,              /* daemon and library speak different versions */
    PIPIT_E_DENIED,           /* not your request, lease or door */
    PIPIT_E_BUSY,             /* full; try again after retry_after_ms */
    PIPIT_E_CONTEXT_OVERFLOW, /* count_a tokens asked, count_b fit */
    PIPIT_E_NO_MEMORY,
    PIPIT_E_UNSUPPORTED,      /* this build or model lacks it */
    PIPIT_E_NOT_FOUND,
    PIPIT_E_MODEL,            /* the model cannot be loaded */
    PIPIT_E_ENGINE_CRASHED,
    PIPIT_E_SHUTDOWN,
    PIPIT_E_TOO_LARGE,        /* count_a asked, count_b allowed */
    PIPIT_E_INTERNAL,
    /* said by the library */
    PIPIT_E_UNREACHABLE = 100, /* no daemon answers; the text says which places were tried */
    PIPIT_E_LOST,              /* the daemon went away and did not come back in time */
    PIPIT_E_TIMED_OUT,         /* it is there but does not answer */
    PIPIT_E_LOCAL,             /* wrong use of the library, or this process is out of something */
};

struct pipit_error {
    int err;       /* negative errno */
    uint32_t code; /* enum pipit_code */
    uint32_t retry_after_ms;
    uint32_t reserved0;
    uint64_t count_a;
    uint64_t count_b;
    uint64_t reserved[4];
    char text[512]; /* one sentence or, for UNREACHABLE, some lines; never prompt text */
};

enum pipit_state {
    PIPIT_STATE_UNLOADED,
    PIPIT_STATE_LOADING,
    PIPIT_STATE_READY,
    PIPIT_STATE_FAILED,
    PIPIT_STATE_STOPPING, /* no new requests: it drains or stops */
};

enum pipit_reason {
    PIPIT_REASON_STOP = 1, /* the model ended its answer, or a stop string came */
    PIPIT_REASON_LENGTH,   /* max_tokens */
    PIPIT_REASON_CONTEXT,  /* the context is full */
    PIPIT_REASON_CANCELLED,
    PIPIT_REASON_TIMEOUT,
    PIPIT_REASON_SLOW_CONSUMER,
    PIPIT_REASON_SHUTDOWN,
    PIPIT_REASON_ERROR,
    PIPIT_REASON_TOOL_CALLS, /* as STOP; the answer has calls of tools, whose results are awaited */
};

/* Names as they appear in JSON and logs ("stop", "BUSY", "ready"); never NULL. */
PIPIT_API const char *pipit_reason_name(uint32_t reason);
PIPIT_API const char *pipit_code_name(uint32_t code);
PIPIT_API const char *pipit_state_name(uint32_t state);
PIPIT_API const char *pipit_version(void);

/* ---- client ----------------------------------------------------------------------------- */

PIPIT_CHECKED int pipit_client_create(struct pipit_client **ret);
PIPIT_API void pipit_client_destroy(struct pipit_client *client); /* NULL is fine */

/* Before connecting. Strings are copied.
 *   runtime_dir   the folder that holds lane.sock; without it, and unless an instance is named,
 *                 $PIPIT_RUNTIME_DIR, and without that
 *                 /run/user/UID/pipit/INSTANCE, /run/pipit/INSTANCE, /tmp/pipit-UID/INSTANCE
 *   instance      letters, digits, '.', '_', '-', at most 64; without it $PIPIT_INSTANCE, or else
 *                 "default"
 *   program       for the daemon's log and status, at most 31 bytes
 *   timeout_ms    for the hello and for each answer about the lane (status, lease): 5000
 *   reconnect_ms  how long to try again once the connection is lost: 15000; 0: not at all, calls
 *                 then fail with PIPIT_E_LOST until pipit_client_connect()
 *   arena bytes   of the shared memory each way; 0: what the daemon gives */
PIPIT_CHECKED int pipit_client_set_runtime_dir(struct pipit_client *client, const char *dir);
PIPIT_CHECKED int pipit_client_set_instance(struct pipit_client *client, const char *name);
PIPIT_CHECKED int pipit_client_set_program(struct pipit_client *client, const char *name);
PIPIT_CHECKED int pipit_client_set_timeout_ms(struct pipit_client *client, uint32_t ms);
PIPIT_CHECKED int pipit_client_set_reconnect_ms(struct pipit_client *client, uint32_t ms);
PIPIT_CHECKED int pipit_client_set_arena_bytes(struct pipit_client *client, uint64_t to_daemon,
                                               uint64_t from_daemon);

/* Finds the daemon, says hello, maps the shared memory. */
PIPIT_CHECKED int pipit_client_connect(struct pipit_client *client, struct pipit_error *reterr);

/* The same over a connected SOCK_SEQPACKET socket, which the client owns from now on (also after a
 * failure). Such a client cannot connect again by itself. */
PIPIT_CHECKED int pipit_client_connect_fd(struct pipit_client *client, int fd,
                                          struct pipit_error *reterr);

/* The places that the last pipit_client_connect() looked at, in order. -ENOENT beyond the last. */
struct pipit_place {
    const char *origin; /* "given", "$PIPIT_RUNTIME_DIR", "user", "system", "tmp" */
    const char *path;   /* of the socket */
    int err;            /* 0: the daemon answered here; else why not */
};
PIPIT_CHECKED int pipit_client_place(const struct pipit_client *client, size_t i,
                                     struct pipit_place *ret);

struct pipit_info { /* what the daemon said in its hello */
    const char *path; /* of the socket; "" after connect_fd */
    uint16_t abi_major;
    uint16_t abi_minor;
    uint32_t features;
    uint64_t front_epoch; /* number of the daemon's start */
    uint64_t model_epoch;
    uint64_t lane_id;
    uint64_t to_daemon_bytes; /* shared memory */
    uint64_t from_daemon_bytes;
    uint32_t state;    /* enum pipit_state */
    uint32_t progress; /* of loading, 0..1000 */
    uint32_t max_request_bytes;
    uint32_t max_lease_bytes;
    int32_t ctx; /* 0 until the model is loaded */
    int32_t n_vocab;
    const char *model;
    int64_t hello_ns; /* from connect to the reply */
};
/* NULL before the first connect; the pointer stays valid, its values change with a new hello. */
PIPIT_API const struct pipit_info *pipit_client_info(const struct pipit_client *client);

/* One descriptor for the client's whole life (across reconnects); readable when dispatch has
 * work. */
PIPIT_API int pipit_client_fd(const struct pipit_client *client);

/* Does what there is to do, waiting for it at most timeout_ms (0: not at all, -1: for ever).
 * Callbacks run inside. Returns the number of records handled, or -ENOTCONN once the connection is
 * lost for good (every running request has then had its PIPIT_EVENT_ERROR). */
PIPIT_CHECKED int pipit_client_dispatch(struct pipit_client *client, int timeout_ms);

/* A dispatch that waits also ends when one of `events` (POLLIN, POLLOUT as for poll(2), or 0) holds
 * for this descriptor of the caller's, and on its hang-up or error: so that a program without an
 * event loop can wait for signals or its output too. Calls that wait for the daemon by themselves
 * (pipit_request_next(), questions) wait on. Called again it changes the events; negative ones take
 * the descriptor out: do so before closing it. 0, or -EPERM for a file that is always ready. */
PIPIT_CHECKED int pipit_client_watch(struct pipit_client *client, int fd, int events);

/* The calls below send a question and dispatch until its answer is there or timeout_ms is over.
 * They may not be used inside a callback (-EDEADLK). */

struct pipit_status {
    uint64_t front_epoch;
    uint64_t model_epoch;
    uint32_t state; /* enum pipit_state */
    uint32_t progress;
    uint32_t n_running;
    uint32_t n_queued;
    uint32_t n_lanes;
    uint32_t n_restarts; /* of the engine */
    uint64_t n_requests; /* since the daemon started */
    uint64_t n_prompt_tokens;
    uint64_t n_new_tokens;
    uint64_t kv_bytes_used;
    uint64_t kv_bytes_total;
    uint64_t plan_bytes;
    int64_t step_age_ns; /* since the engine's last finished operation: its health */
    int64_t uptime_ns;
    int32_t ctx;
    int32_t n_seqs;
    const char *model;
    const char *backend;
};
/* *ret is valid until the next status call. */
PIPIT_CHECKED int pipit_client_status(struct pipit_client *client, const struct pipit_status **ret,
                                      struct pipit_error *reterr);

/* What the status has no room for. */
struct pipit_policy_use {
    const char *policy;  /* canonical; "others": all that there was no room to list */
    uint32_t n_seqs;     /* running */
    uint32_t reserved0;
    uint64_t n_requests; /* that asked for it since the model was loaded */
    uint64_t n_slots;    /* live, summed over the model's stores and head groups */
    uint64_t kv_bytes;   /* of the pages that they hold; a page that two share counts for both */
    uint64_t n_evicted;  /* since the model was loaded */
};
/* A figure by its name: an option's, or a cause's. */
struct pipit_figure {
    const char *name;
    double value;
};
struct pipit_report {
    const char *backend; /* its whole name; "" */
    /* why the model could not be loaded, or died, last; "" once it is ready, but where the last
     * reload was taken back: then why */
    const char *cause;
    const struct pipit_policy_use *const *policies; /* (n_policies), the daemon's own first */
    size_t n_policies;
    /* What saving this user's sessions may write in 24 hours, what is left of it now, and what was
     * written in all; 0, 0, 0: there is no limit, or the daemon is older. */
    uint64_t writes_limit;
    uint64_t writes_left;
    uint64_t written;
    const struct pipit_figure *limits; /* (n_limits) by option; 0: none */
    size_t n_limits;
    const struct pipit_figure *refused; /* (n_refused) requests and clients, by cause */
    size_t n_refused;
};
/* *ret is valid until the next report call. A daemon that is older gives an empty one. */
PIPIT_CHECKED int pipit_client_report(struct pipit_client *client, const struct pipit_report **ret,
                                      struct pipit_error *reterr);

/* Renews pipit_client_info(). */
PIPIT_CHECKED int pipit_client_ping(struct pipit_client *client, struct pipit_error *reterr);

/* Requests that run or wait: everybody's for root and the daemon's own user, else this user's. A
 * line each, its fields apart by tabs: number, id (32 hexadecimal digits), user id, kind, waiting,
 * running or ending, ms since it was accepted, place in the queue (0: none), tokens said, bytes of
 * its items, bytes of its answer's text. As pipit_client_metrics(); -ENOTSUP: the daemon is old. */
PIPIT_CHECKED int pipit_client_requests(struct pipit_client *client, char **ret, size_t *ret_len,
                                        struct pipit_error *reterr);

/* Cancels any request of the same user by its id; root and the daemon's own user anybody's. */
PIPIT_CHECKED int pipit_client_cancel(struct pipit_client *client, const uint8_t id[16],
                                      struct pipit_error *reterr);

/* Figures of the daemon as Prometheus text; the caller frees *ret with free(). */
PIPIT_CHECKED int pipit_client_metrics(struct pipit_client *client, char **ret, size_t *ret_len,
                                       struct pipit_error *reterr);

/* The user's saved conversations, a line each: name, tab, bytes, tab, seconds since 1970. As
 * pipit_client_metrics(). */
PIPIT_CHECKED int pipit_client_sessions(struct pipit_client *client, char **ret, size_t *ret_len,
                                        struct pipit_error *reterr);
PIPIT_CHECKED int pipit_client_session_remove(struct pipit_client *client, const char *name,
                                              struct pipit_error *reterr);

/* The model and the daemon as a whole. Returns when the daemon has begun; pipit_client_ping() tells
 * how it goes. All but PIPIT_CONTROL_LOAD are for root and the daemon's own user (PIPIT_E_DENIED).
 *   LOAD     the model is loaded, as for a request
 *   UNLOAD   its memory is given back; the next request loads it again; PIPIT_E_BUSY while in use
 *   DRAIN    no new requests; when the others have ended, or after limit_ms (0: no limit), it ends
 *   RELOAD   the same, but then configuration and model are read again: a new model_epoch */
enum pipit_control {
    PIPIT_CONTROL_LOAD = 1,
    PIPIT_CONTROL_UNLOAD,
    PIPIT_CONTROL_DRAIN,
    PIPIT_CONTROL_RELOAD,
};
PIPIT_CHECKED int pipit_client_control(struct pipit_client *client, enum pipit_control what,
                                       uint32_t limit_ms, struct pipit_error *reterr);

/* The caller frees *ret with free(). These two wait for the model, so without a limit unless
 * timeout_ms is given (0: none). */
PIPIT_CHECKED int pipit_client_tokenize(struct pipit_client *client, const char *text, size_t len,
                                        uint32_t timeout_ms, int32_t **ret, size_t *ret_n,
                                        struct pipit_error *reterr);
PIPIT_CHECKED int pipit_client_detokenize(struct pipit_client *client, const int32_t *tokens,
                                          size_t n, uint32_t timeout_ms, char **ret,
                                          size_t *ret_len, struct pipit_error *reterr);

/* ---- leases: shared memory without copies ------------------------------------------------ */

enum pipit_arena { PIPIT_TO_DAEMON, PIPIT_FROM_DAEMON };

/* A range of an arena. What is put into a TO_DAEMON lease is read by the daemon when a request
 * names it; a FROM_DAEMON lease is written by the daemon only and mapped read-only here. A lease
 * made before a reconnect stays mapped (empty, perhaps) but names nothing: pipit_lease_alive() is
 * 0. */
PIPIT_CHECKED int pipit_lease_get(struct pipit_client *client, enum pipit_arena arena, size_t bytes,
                                  struct pipit_lease **ret, struct pipit_error *reterr);
PIPIT_API void pipit_lease_put(struct pipit_lease *lease); /* NULL is fine */
PIPIT_API void *pipit_lease_write(struct pipit_lease *lease); /* NULL for FROM_DAEMON */
PIPIT_API const void *pipit_lease_read(const struct pipit_lease *lease);
PIPIT_API size_t pipit_lease_bytes(const struct pipit_lease *lease);
PIPIT_API int pipit_lease_alive(const struct pipit_lease *lease);
/* What another door of the daemon calls it: a ZeroMQ request may name the leases of a lane of the
 * same user. It must not be put, or used by a request here, until that request has ended. */
struct pipit_lease_name {
    uint64_t lane; /* pipit_info.lane_id */
    uint32_t buf;
    uint32_t generation;
};
PIPIT_API struct pipit_lease_name pipit_lease_name(const struct pipit_lease *lease);

/* ---- requests ---------------------------------------------------------------------------- */

enum pipit_kind {
    PIPIT_GENERATE = 1, /* a prompt (or token ids), continued as it is */
    PIPIT_CHAT,         /* messages, through the model's template */
    PIPIT_TOKENIZE,
    PIPIT_DETOKENIZE,
    PIPIT_SCORE,
    PIPIT_EMBED,
};

enum pipit_param {
    PIPIT_TEMPERATURE = 1, /* 0..100; 0: the likeliest token; 0.7 unless set */
    PIPIT_TOP_P,           /* 0..1; 0.95 unless set */
    PIPIT_MIN_P,           /* 0..1; 0.05 unless set */
    PIPIT_TOP_K,           /* 0: all, unless set */
    PIPIT_REPEAT_PENALTY,  /* above 0; 1: none */
    PIPIT_PRESENCE_PENALTY,
    PIPIT_FREQUENCY_PENALTY,
    PIPIT_PENALTY_LAST_N,
    PIPIT_MAX_TOKENS,  /* 0: to the end of the context */
    PIPIT_LOGPROBS,    /* alternatives told with each token, 0..20; -1: no log-probabilities */
    PIPIT_IGNORE_END,  /* 1: go on after the model's end token */
    PIPIT_SCORE_FIRST, /* PIPIT_SCORE: the first position that is scored */
    PIPIT_TIMEOUT_MS,  /* 0: none; the answer then ends with PIPIT_REASON_TIMEOUT */
    PIPIT_URGENCY,     /* -100..100, higher sooner among the user's own requests; below 0: gaps
                          between its tokens may be long */
    PIPIT_DETACH,      /* 1: outlives a lost connection by 10 s */
    PIPIT_PROGRESS,    /* 1: PIPIT_EVENT_PROGRESS is wanted */
    /* PIPIT_SCORE: 1: full logits too, behind the log-probabilities in the output */
    PIPIT_LOGITS,
    PIPIT_POOLING,     /* PIPIT_EMBED: enum pipit_pooling */
    PIPIT_UNIT,        /* PIPIT_EMBED: 1 (default): of length 1; 0: as it is */
    /* 1 (default): tokens may be guessed and checked together; the answer is the same */
    PIPIT_DRAFT,
    /* PIPIT_CHAT: 1: the answer's reasoning is told apart from its text (enum pipit_part) */
    PIPIT_PARTS,
};

/* PIPIT_EMBED: the prompt's hidden states behind the model's last norm, f32 (1, n_embd), or
 * (n_prompt, n_embd) with PIPIT_POOL_NONE, in the output lease, which it needs (TOO_LARGE says in
 * count_a how large); told by a PIPIT_EVENT_BULK of kind PIPIT_BULK_HIDDEN. UNSUPPORTED where the
 * cache policy reads the prompt layer by layer (prefill=layered, longer than its budget): it drops
 * rows. */
enum pipit_pooling { PIPIT_POOL_MEAN, PIPIT_POOL_LAST, PIPIT_POOL_NONE };

PIPIT_CHECKED int pipit_request_create(struct pipit_client *client, enum pipit_kind kind,
                                       struct pipit_request **ret);
/* Cancels the request if it runs. */
PIPIT_API void pipit_request_destroy(struct pipit_request *request);

/* Before sending; text and ids are copied. -EINVAL: out of range; -EBUSY: already sent. */
PIPIT_CHECKED int pipit_request_set_id(struct pipit_request *request, const uint8_t id[16]);
PIPIT_CHECKED int pipit_request_set_prompt(struct pipit_request *request, const char *text,
                                           size_t len);
PIPIT_CHECKED int pipit_request_set_system(struct pipit_request *request, const char *text,
                                           size_t len);
/* role: "system", "user", "assistant" or "tool" (better: pipit_request_add_result) */
PIPIT_CHECKED int pipit_request_add_message(struct pipit_request *request, const char *role,
                                            const char *text, size_t len);

/* Tools: a JSON list of definitions as OpenAI's, [{"type": "function", "function": {"name": ...,
 * "description": ..., "parameters": JSON Schema}}]. The answer is then told in parts: text,
 * reasoning, and calls, each of which is told when it is whole (enum pipit_part). If there are any
 * it ends with PIPIT_REASON_TOOL_CALLS. To go on, repeat the conversation with the assistant's
 * message (add_message, then add_reasoning and add_call for that message), and a result for each
 * call. Ids are the caller's own; some templates want nine letters and digits. NULL: none. */
PIPIT_CHECKED int pipit_request_set_tools(struct pipit_request *request, const char *json,
                                          size_t len);
PIPIT_CHECKED int pipit_request_add_reasoning(struct pipit_request *request, const char *text,
                                              size_t len);
PIPIT_CHECKED int pipit_request_add_call(struct pipit_request *request, const char *id,
                                         const char *name, const char *arguments, size_t len);
PIPIT_CHECKED int pipit_request_add_result(struct pipit_request *request, const char *id,
                                           const char *name, const char *text, size_t len);
PIPIT_CHECKED int pipit_request_set_tokens(struct pipit_request *request, const int32_t *tokens,
                                           size_t n);
PIPIT_CHECKED int pipit_request_add_stop(struct pipit_request *request, const char *text,
                                         size_t len);
PIPIT_CHECKED int pipit_request_set_policy(struct pipit_request *request, const char *policy);
PIPIT_CHECKED int pipit_request_set_session(struct pipit_request *request, const char *name);
PIPIT_CHECKED int pipit_request_set_schema(struct pipit_request *request, const char *json,
                                           size_t len);
PIPIT_CHECKED int pipit_request_set_param(struct pipit_request *request, enum pipit_param param,
                                          double value);
PIPIT_CHECKED int pipit_request_set_seed(struct pipit_request *request, uint64_t seed);
/* Leases stay the caller's and must live until the request ends. */
PIPIT_CHECKED int pipit_request_set_input(struct pipit_request *request,
                                          const struct pipit_lease *ids, size_t n_tokens);
PIPIT_CHECKED int pipit_request_set_output(struct pipit_request *request,
                                           const struct pipit_lease *lease);

/* 16 random bytes unless set. */
PIPIT_API const uint8_t *pipit_request_id(const struct pipit_request *request);

enum pipit_event_type {
    PIPIT_EVENT_ACCEPTED = 1, /* n_ahead */
    PIPIT_EVENT_PROGRESS,     /* n_done, n_total prompt tokens read; or loading */
    PIPIT_EVENT_TOKEN,        /* index, token, logprob, text, alts */
    PIPIT_EVENT_TEXT,         /* more text of the token before */
    PIPIT_EVENT_BULK,         /* bulk */
    PIPIT_EVENT_RESUMED,      /* the connection was lost and is there again; nothing is missing */
    PIPIT_EVENT_DONE,         /* done; the last event */
    PIPIT_EVENT_ERROR,        /* error; the last event */
};

/* Which part of an answer a TOKEN's or TEXT's text is: all is text unless the request asked for
 * more (pipit_request_set_tools(), PIPIT_PARTS). */
enum pipit_part {
    PIPIT_PART_TEXT,
    PIPIT_PART_REASONING,
    PIPIT_PART_NAME,      /* a call begins: the tool's whole name */
    PIPIT_PART_ARGUMENTS, /* of that call, a JSON object, in one event or several */
};

struct pipit_alt {
    int32_t token;
    float logprob; /* NaN: not known (a saved turn, said again) */
    const char *text; /* the token's bytes, perhaps no whole character */
    size_t text_len;
};

enum pipit_bulk_kind {
    PIPIT_BULK_TOKENS = 1, /* int32_t (n_rows) */
    PIPIT_BULK_LOGPROBS,   /* float (n_rows) */
    PIPIT_BULK_LOGITS,     /* float (n_rows, n_cols) */
    PIPIT_BULK_HIDDEN,     /* float (n_rows, n_cols) */
    PIPIT_BULK_TEXT,       /* bytes */
};

struct pipit_bulk {
    uint32_t kind;    /* enum pipit_bulk_kind */
    const void *data; /* in the output lease, written by the daemon; valid until credit is given */
    uint64_t bytes;
    uint64_t row0;
    uint32_t n_rows; /* one behind the other: what wraps in the window comes as two events */
    uint32_t n_cols;
    uint32_t window; /* rows that the lease holds; row r lies at r % window */
};

struct pipit_done {
    uint32_t reason;     /* enum pipit_reason */
    uint32_t stop_index; /* which stop string, from 1; 0: another cause */
    uint32_t replay;     /* after a crash of the engine: 1 exact, 2 approximate */
    int32_t n_prompt;
    int32_t n_cached;
    int32_t n_new;
    int64_t queue_ns;
    int64_t prefill_ns;
    int64_t decode_ns;
    int64_t load_ns; /* waited for the model */
    uint64_t kv_bytes;
    uint64_t kv_bytes_full; /* that the full cache would have taken */
    int64_t n_slots;
    int64_t n_evicted;
    uint64_t seed; /* that the sampler used */
    /* 1 saved, 2 not: then session_cause says why; 0: the request had none */
    uint32_t session;
    int32_t session_err;    /* negative errno of what was not saved */
    uint64_t session_bytes; /* of the saved file */
    char session_cause[96];
    /* draft tokens that were verified in the same step as the token before them */
    int32_t n_drafted;
    int32_t n_accepted; /* accepted draft tokens */
    uint32_t n_calls;   /* of tools */
    uint32_t broken;    /* 1: something began as a call, did not parse, and was told as text */
};

struct pipit_event {
    enum pipit_event_type type;
    uint64_t seq;
    uint32_t n_ahead;
    uint32_t n_done;
    uint32_t n_total;
    int32_t index;
    int32_t token;
    float logprob;
    const char *text; /* whole UTF-8 characters, NUL after them; "" when there is none */
    size_t text_len;
    const struct pipit_alt *alts;
    size_t n_alts;
    const struct pipit_bulk *bulk;
    const struct pipit_done *done;
    const struct pipit_error *error;
    uint32_t loading; /* PROGRESS: 1: n_done of n_total are parts of the model, being loaded */
    uint32_t part;    /* TOKEN, TEXT: enum pipit_part */
    uint32_t call;    /* of a call's parts: which call, from 0 */
};

/* Events go to the callback if there is one (inside pipit_client_dispatch(); it may cancel or
 * destroy its own request and send others), else they wait for pipit_request_next(). */
typedef void (*pipit_event_fn)(struct pipit_request *request, const struct pipit_event *event,
                               void *user);
PIPIT_CHECKED int pipit_request_set_callback(struct pipit_request *request, pipit_event_fn fn,
                                             void *user);

/* Once for a request. */
PIPIT_CHECKED int pipit_request_send(struct pipit_request *request, struct pipit_error *reterr);

/* Instead of send: joins a request that is running or ended less than 30 s ago, by its id (set_id),
 * from the event next_seq (at least 1) on. */
PIPIT_CHECKED int pipit_request_resume(struct pipit_request *request, uint64_t next_seq,
                                       struct pipit_error *reterr);

/* 1: *ret is the next event, valid until the next call for this request; 0: there are no more;
 * -EAGAIN: none within timeout_ms (-1: for ever). */
PIPIT_CHECKED int pipit_request_next(struct pipit_request *request, int timeout_ms,
                                     const struct pipit_event **ret);

/* Asks for the end; PIPIT_EVENT_DONE with PIPIT_REASON_CANCELLED follows. */
PIPIT_API int pipit_request_cancel(struct pipit_request *request);

/* Windowed output: rows read so far, in all. */
PIPIT_API int pipit_request_credit(struct pipit_request *request, uint64_t n_rows);

#ifdef __cplusplus
}
#endif

#endif

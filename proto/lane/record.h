/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_PROTO_LANE_RECORD_H
#define PIPIT_PROTO_LANE_RECORD_H

/* The lane protocol: the one table of record types and offsets.
 *
 * A lane is a SOCK_SEQPACKET Unix connection; every message is one 256-byte record: a 32-byte
 * header and a body by type. All numbers are little-endian and fixed-size, no pointers. A reader
 * ignores what it does not know at the tail (`size` larger than its own struct) and zero-fills what
 * an older peer did not send. Offsets are pinned by static asserts and tests/data/lane_golden.hex.
 *
 * The same records travel between the front and its engine over their socketpair (types from
 * 0x100), where `id` is the front's own number of the request, so that clients' ids never meet.
 *
 * Bulk data lies in two arenas that the front makes for each lane and sends with the hello reply:
 * c2e (client writes, engine reads; read-write for both) and e2c (engine writes, client maps
 * read-only). A lease names a range of an arena as {buf, generation}; the front alone knows which
 * offsets that is and tells the client in LANE_LEASE. No offset ever crosses towards the daemon. */

#include <stdint.h>

enum { LANE_RECORD_BYTES = 256, LANE_BODY_BYTES = 224, LANE_ABI_MAJOR = 1, LANE_ABI_MINOR = 0 };
#define LANE_MAGIC 0x54504950u /* "PIPT" */

enum lane_type {
    /* client to front */
    LANE_HELLO = 1,      /* body hello; the first record */
    LANE_LEASE_GET = 2,  /* body lease (arena, length) -> LANE_LEASE or LANE_ERROR */
    LANE_LEASE_PUT = 3,  /* body lease (arena, buf, generation); no answer */
    LANE_REQUEST = 4,    /* body request; a known id attaches to that request instead */
    LANE_CANCEL = 5,     /* body cancel; ends with LANE_DONE cancelled, or LANE_ERROR not found. A lane that
                            does not read that request's events gets a LANE_DONE with seq 0 as receipt */
    LANE_RESUME = 6,     /* body resume; events from next_seq on come to this lane from now on */
    LANE_PING = 7,       /* -> LANE_PONG (body hello_reply) */
    LANE_STATUS_GET = 8, /* -> LANE_STATUS */
    LANE_METRICS_GET = 9, /* body lease (e2c): Prometheus text is written there -> LANE_BULK, LANE_DONE */
    LANE_CREDIT = 10,    /* body credit: rows of a windowed output that the client has read */
    LANE_SESSION = 11,   /* body session: about the user's saved conversations -> LANE_BULK, LANE_DONE. An
                             id that is not zero comes back in the answer, as with the two others of a lease */
    LANE_CONTROL = 12,   /* body control: about the model and the daemon -> LANE_PONG or LANE_ERROR */
    LANE_REPORT_GET = 13, /* body lease (e2c): what does not go into LANE_STATUS, as text -> LANE_BULK, LANE_DONE.
                             Only where the hello has LANE_FEATURE_REPORT */
    LANE_REQUESTS_GET = 14, /* body lease (e2c; offset: the last line's number, or 0): requests
                               that run or wait, a line each -> LANE_BULK, LANE_DONE. Only with
                               LANE_FEATURE_REQUESTS */

    /* front to client */
    LANE_HELLO_REPLY = 0x40, /* body hello_reply; two descriptors: c2e, e2c */
    LANE_LEASE = 0x41,       /* body lease, offset filled */
    LANE_ACCEPTED = 0x42,    /* body accepted; seq 1 of a request */
    LANE_PROGRESS = 0x43,    /* body progress: what goes before the first token (not counted in seq: seq 0) */
    LANE_TOKEN = 0x44,       /* body token: one token and the text it completed */
    LANE_TEXT = 0x45,        /* body token with token -1: more text of the token before */
    LANE_ALT = 0x46,         /* body alt: one alternative of the token that follows */
    LANE_BULK = 0x47,        /* body bulk: data lies in the output lease */
    LANE_DONE = 0x48,        /* body done; last */
    LANE_ERROR = 0x49,       /* body error; last, when it carries a request's id */
    LANE_PONG = 0x4a,
    LANE_STATUS = 0x4b,      /* body status */

    /* front to engine */
    LANE_ENGINE_LANE_OPEN = 0x100,  /* body e_lane; two descriptors: c2e, e2c, both read-write */
    LANE_ENGINE_LANE_CLOSE = 0x101, /* body e_lane -> LANE_ENGINE_LANE_QUIET */
    LANE_ENGINE_REQUEST = 0x102,    /* body e_request */
    LANE_ENGINE_CANCEL = 0x103,     /* body e_cancel */
    LANE_ENGINE_DRAIN = 0x104,      /* end running answers with reason shutdown, then exit */
    LANE_ENGINE_CREDIT = 0x105,     /* body credit */

    /* engine to front; LANE_PROGRESS, _TOKEN, _TEXT, _ALT, _BULK, _DONE, _ERROR as above, seq unset */
    LANE_ENGINE_STATE = 0x140,      /* body e_state: while loading, at ready, then every second when busy */
    LANE_ENGINE_LANE_QUIET = 0x141, /* body e_lane: the engine no longer touches that lane's arenas */
    LANE_ENGINE_REPORT = 0x142,     /* body e_report: a line of figures and a piece of its text */
    LANE_ENGINE_THREADS = 0x143,    /* no body; descriptors: its threads (base/cputime.h) */
};

/* Of a hello's reply: what this front knows beyond its minor version. */
enum lane_feature {
    LANE_FEATURE_REPORT = 1 << 0,
    LANE_FEATURE_REQUESTS = 1 << 1,
    LANE_FEATURE_PARTS = 1 << 2, /* TLV_TOOLS and TLV_S_PARTS */
};

/* A line of the list of requests, in the order in which they came, as many as fit, none at the end:
 *     NUMBER ID UID KIND STATE AGE_MS PLACE N_NEW BYTES_IN BYTES_OUT
 * NUMBER is the daemon's, ID 32 hexadecimal digits, STATE waiting, running or ending, PLACE that in
 * the queue by age, 0 for one that does not wait, N_NEW the tokens said so far, BYTES_IN of its
 * items, BYTES_OUT of its answer's text. Root and the daemon's own user see all and may cancel any
 * by its id; others see and cancel their own. */

/* The text of a report, a line each, its fields apart by tabs; a reader ignores lines that it does
 * not know and fields behind those that it does:
 *     backend  TEXT                                             of any length, unlike LANE_STATUS's
 *     cause    TEXT                                             why the model could not be loaded last
 *     kv       N_SEQS N_REQUESTS N_SLOTS BYTES N_EVICTED POLICY who holds the cache
 *     limit    OPTION VALUE                                     0: none
 *     refused  CAUSE N                                          requests and clients that were turned away
 *     writes   LIMIT LEFT WRITTEN                               bytes of the asking user's saves: in 24 h, of them
 *                                                               now, ever; only where there is a limit
 */

enum lane_flag {
    LANE_F_DETACH = 1 << 0,    /* REQUEST: outlives its lane by 10 s */
    LANE_F_PRINCIPAL = 1 << 1, /* REQUEST, RESUME, CANCEL, SESSION on a privileged door: uid and tenant are another's */
    LANE_F_PROGRESS = 1 << 2,  /* REQUEST: LANE_PROGRESS is wanted */
    LANE_F_REPLAYED = 1 << 3,  /* DONE: the request ran through an engine restart */
    LANE_F_SESSION = 1 << 4,   /* REQUEST: its items name a saved conversation (TLV_SESSION), which it goes on
                                  with, or begins, and which is saved at its end */
};

/* STOPPING: no new requests are taken; those that were may go on (a drain). */
enum lane_state { LANE_UNLOADED, LANE_LOADING, LANE_READY, LANE_FAILED, LANE_STOPPING };

enum lane_kind {
    LANE_KIND_GENERATE = 1, /* TLV prompt text or tokens, no template. With an output lease: each new token's
                               logits go to row (index % window) of it, LANE_BULK before its LANE_TOKEN */
    LANE_KIND_CHAT = 2,     /* TLV system, messages, last message as prompt, through the model's template */
    LANE_KIND_TOKENIZE = 3, /* TLV prompt, as GENERATE would read it (BOS included) -> LANE_BULK tokens in the
                               output lease, or without one LANE_TOKENs whose text is the token's bytes */
    LANE_KIND_DETOKENIZE = 4, /* TLV tokens or token lease -> LANE_TEXT */
    LANE_KIND_SCORE = 5,    /* TLV prompt or tokens, positions from score_first on: row i is how probable the
                               token at score_first + i + 1 was. Without an output lease LANE_TOKENs; with one
                               LANE_BULK logprobs, f32 (n_prompt - 1 - score_first) from its start; with
                               TLV_S_LOGITS behind them, from the next multiple of 64 bytes on, a window of
                               rows of logits: LANE_CREDIT says how many rows in all may be written so far
                               (at first the window) */
    LANE_KIND_EMBED = 6,    /* TLV prompt or tokens, no template -> LANE_BULK hidden in the output lease, which is
                               needed: f32 (1, n_cols), the mean of all tokens' hidden states behind the last
                               norm, of length 1; TLV_S_POOL_*, TLV_S_NOT_UNIT say otherwise */
};

enum lane_reason {
    LANE_REASON_STOP = 1, LANE_REASON_LENGTH, LANE_REASON_CONTEXT, LANE_REASON_CANCELLED, LANE_REASON_TIMEOUT,
    LANE_REASON_SLOW_CONSUMER, LANE_REASON_SHUTDOWN, LANE_REASON_ERROR,
    LANE_REASON_TOOL_CALLS, /* as STOP; the answer has calls of tools, whose results are awaited */
    LANE_REASONS            /* one more than the last */
};

/* Which part of the answer a LANE_TOKEN's or LANE_TEXT's text is, in the header's flags from bit
 * LANE_PART_SHIFT on. All is text unless the request has TLV_TOOLS or TLV_S_PARTS. A call is told
 * when it is whole: LANE_TEXT with its name, then LANE_TEXTs with its arguments, a JSON object. */
enum lane_part { LANE_PART_TEXT, LANE_PART_REASONING, LANE_PART_NAME, LANE_PART_ARGUMENTS };
enum { LANE_PART_SHIFT = 8, LANE_PART_MASK = 3 };

enum lane_error_code {
    LANE_ERR_INVALID = 1,       /* a value out of range, malformed text or TLV; the text says which */
    LANE_ERR_PROTOCOL,          /* not a record we know, wrong size or order; the lane is closed */
    LANE_ERR_ABI,               /* hello with another major version */
    LANE_ERR_DENIED,            /* not your request, lease or door */
    LANE_ERR_BUSY,              /* queue, lanes or limits full: retry_after_ms */
    LANE_ERR_CONTEXT_OVERFLOW,  /* count_a tokens asked, count_b fit */
    LANE_ERR_NO_MEMORY,         /* the plan does not hold it */
    LANE_ERR_UNSUPPORTED,       /* this build or model lacks it */
    LANE_ERR_NOT_FOUND,
    LANE_ERR_MODEL,             /* the model cannot be loaded */
    LANE_ERR_ENGINE_CRASHED,    /* twice in a batch that died */
    LANE_ERR_SHUTDOWN,
    LANE_ERR_TOO_LARGE,         /* over a limit on bytes or counts: count_a asked, count_b allowed */
    LANE_ERR_INTERNAL,
};

enum lane_arena { LANE_ARENA_C2E = 0, LANE_ARENA_E2C = 1 };

enum lane_bulk {
    LANE_BULK_TOKENS = 1,   /* i32 (n_rows) */
    LANE_BULK_LOGPROBS = 2, /* f32 (n_rows) */
    LANE_BULK_LOGITS = 3,   /* f32 (n_rows, n_cols); row r lies n_bytes / n_rows * (r % window) behind the
                               window's start, so rows of one record may wrap: offset is row0's */
    LANE_BULK_HIDDEN = 4,   /* f32 (n_rows, n_cols) */
    LANE_BULK_TEXT = 5,     /* bytes */
};

struct lane_header {
    uint16_t type;
    uint16_t flags;
    uint32_t size; /* of header and body used; at most 256 */
    uint8_t id[16]; /* the request's; zero for records about the lane */
    uint64_t seq;  /* events of a request: 1, 2, 3 ...; else 0 */
};

struct lane_hello {
    uint32_t magic;
    uint16_t abi_major;
    uint16_t abi_minor;
    uint32_t record_bytes;
    uint32_t features;
    uint64_t c2e_bytes; /* wanted; 0: the daemon's default; the reply says what was given */
    uint64_t e2c_bytes;
    char program[32];   /* NUL-padded, for the daemon's log and status */
};

struct lane_hello_reply {
    uint32_t magic;
    uint16_t abi_major;
    uint16_t abi_minor;
    uint32_t record_bytes;
    uint32_t features;
    uint64_t front_epoch;
    uint64_t model_epoch;
    uint64_t lane_id;
    uint64_t c2e_bytes;
    uint64_t e2c_bytes;
    uint32_t state;        /* enum lane_state */
    uint32_t progress;     /* of loading, 0..1000 */
    uint32_t max_request_bytes; /* of a request's TLVs */
    uint32_t max_lease_bytes;
    int32_t ctx;           /* 0 until the model is loaded */
    int32_t n_vocab;
    uint32_t request_buf;  /* a c2e lease of max_request_bytes at offset 0 that every lane has */
    uint32_t request_generation;
    char model[64];        /* general.name, cut at a character */
};

struct lane_lease {
    uint32_t arena;      /* enum lane_arena */
    uint32_t buf;
    uint32_t generation; /* changes with every grant of a buf */
    uint32_t pad;
    uint64_t offset;     /* front to client only */
    uint64_t length;
};

struct lane_request {
    uint32_t kind;        /* enum lane_kind */
    int32_t urgency;      /* -100..100 */
    uint32_t buf;         /* c2e lease that holds the TLVs; the client's again after LANE_ACCEPTED */
    uint32_t generation;
    uint32_t tlv_bytes;
    uint32_t timeout_ms;  /* 0: none; the answer then ends with reason timeout */
    uint32_t out_buf;     /* e2c lease for bulk output, or 0: none (buf ids start at 1) */
    uint32_t out_generation;
    uint32_t in_buf;      /* c2e lease of token ids (i32), or 0; its length in in_bytes */
    uint32_t in_generation;
    uint64_t in_bytes;
    uint32_t uid;         /* with LANE_F_PRINCIPAL */
    uint32_t tenant_len;  /* at most 64 */
    uint8_t tenant[64];   /* opaque; part of the principal */
    uint64_t lease_lane;  /* with LANE_F_PRINCIPAL: the lane of that uid whose leases in_buf and out_buf are;
                             0: this lane */
};

struct lane_resume {
    uint64_t next_seq; /* at least 1 */
    uint32_t uid;      /* with LANE_F_PRINCIPAL, as in lane_request */
    uint32_t tenant_len;
    uint8_t tenant[64];
};

struct lane_cancel { /* from any lane of the same principal */
    uint32_t uid; /* with LANE_F_PRINCIPAL, as in lane_request */
    uint32_t tenant_len;
    uint8_t tenant[64];
};

struct lane_credit {
    uint64_t n_rows; /* rows free to be written in all, from the start of the output */
};

struct lane_accepted {
    uint64_t front_epoch;
    uint64_t model_epoch;
    uint32_t n_ahead; /* requests before this one in the queue */
};

enum lane_phase { LANE_PHASE_PROMPT, LANE_PHASE_LOADING };

struct lane_progress {
    uint32_t n_done;  /* tokens of the prompt, or thousandths of the model */
    uint32_t n_total;
    uint32_t phase;   /* enum lane_phase */
};

struct lane_token {
    int32_t index;   /* of the new token, from 0 */
    int32_t token;   /* -1 in LANE_TEXT */
    float logprob; /* NaN: not known (a saved turn, said again) */
    uint16_t text_len; /* 0 while text is held back (half a character, half a stop string) */
    uint16_t n_alts;   /* LANE_ALT records just before; of a call's parts: which one */
    uint8_t text[200]; /* whole UTF-8 characters */
};

struct lane_alt {
    int32_t index;
    int32_t token;
    float logprob;
    uint16_t rank;
    uint16_t text_len;
    uint8_t text[128]; /* the token's bytes, perhaps no whole character; cut at 128 */
};

struct lane_bulk_body {
    uint32_t kind;       /* enum lane_bulk */
    uint32_t buf;
    uint32_t generation;
    uint32_t window;     /* rows the lease holds */
    uint64_t row0;
    uint32_t n_rows;
    uint32_t n_cols;
    uint64_t n_bytes;    /* of these rows */
    uint64_t offset;     /* of row0 in the lease */
};

struct lane_done {
    uint32_t reason;     /* enum lane_reason */
    int32_t n_prompt;
    int32_t n_cached;    /* of n_prompt: not read again, since their keys and values were kept */
    int32_t n_new;
    int64_t queue_ns;
    int64_t prefill_ns;
    int64_t decode_ns;
    int64_t load_ns;     /* waited for the model */
    uint64_t kv_bytes;
    uint64_t kv_bytes_full;
    int64_t n_slots;
    int64_t n_evicted;
    uint32_t replay;     /* 0 none, 1 exact, 2 approximate */
    uint32_t stop_index; /* which stop string, from 1; 0: another cause */
    uint64_t seed;       /* that the sampler used, given or drawn */
    uint32_t session;    /* enum lane_session_state */
    int32_t session_err; /* negative errno of what was not saved */
    uint64_t session_bytes; /* of the file */
    char session_cause[96]; /* NUL-terminated; why it was not saved */
    int32_t n_drafted;   /* tokens that were guessed from the text and computed beside the one before, */
    int32_t n_accepted;  /* and those of them that were said */
    uint32_t n_calls;    /* of tools */
    uint32_t broken;     /* 1: something began as a call, did not parse, and was told as text */
};

enum lane_session_state { LANE_SESSION_NONE, LANE_SESSION_SAVED, LANE_SESSION_NOT_SAVED };

enum lane_session_op {
    LANE_SESSION_LIST = 1, /* a line each into the e2c lease: name, tab, bytes, tab, seconds since 1970;
                              in order of names those behind `name`, as many as fit, none at the end */
    LANE_SESSION_REMOVE,   /* an empty LANE_BULK */
};
enum { LANE_SESSION_NAME = 64 };

struct lane_session {
    uint32_t op;         /* enum lane_session_op */
    uint32_t buf;        /* e2c lease */
    uint32_t generation;
    uint32_t uid;        /* with LANE_F_PRINCIPAL: whose */
    char name[LANE_SESSION_NAME + 8]; /* NUL-padded; as lane_session_name_ok() */
};

enum lane_control_op {
    LANE_CONTROL_LOAD = 1, /* begins to load the model; anybody's wish, as a request is */
    LANE_CONTROL_UNLOAD,   /* gives the model's memory back; BUSY while there are requests. This one and
                              those below are for root and the daemon's own user, else DENIED */
    LANE_CONTROL_DRAIN,    /* no new requests; when the others have ended, or at the limit, the daemon ends */
    LANE_CONTROL_RELOAD,   /* the same, but then the configuration is read and the model loaded again: a new
                              model epoch. INVALID when the configuration cannot be used */
};

struct lane_control {
    uint32_t op;       /* enum lane_control_op */
    uint32_t limit_ms; /* of a drain: what then still runs ends with reason shutdown; 0: none */
};

struct lane_error {
    uint32_t code;       /* enum lane_error_code */
    int32_t err;         /* negative errno where one fits */
    uint32_t retry_after_ms;
    uint32_t pad;
    uint64_t count_a;
    uint64_t count_b;
    char text[184];      /* NUL-terminated UTF-8, never prompt text */
};

struct lane_status {
    uint64_t front_epoch;
    uint64_t model_epoch;
    uint32_t state;
    uint32_t progress;
    uint32_t n_running;
    uint32_t n_queued;
    uint32_t n_lanes;
    uint32_t n_restarts;     /* of the engine since the front started */
    uint64_t n_requests;     /* since the front started */
    uint64_t n_prompt_tokens;
    uint64_t n_new_tokens;
    uint64_t kv_bytes_used;
    uint64_t kv_bytes_total;
    uint64_t plan_bytes;
    int64_t step_age_ns;     /* since the worker's last finished operation; health */
    int64_t uptime_ns;
    int32_t ctx;
    int32_t n_seqs;
    char model[64];
    char backend[32];
};

/* ---- front and engine ------------------------------------------------------------------- */

struct lane_engine_lane {
    uint64_t lane_id;
    uint64_t c2e_bytes;
    uint64_t e2c_bytes;
};

#define LANE_ANY_WRITES UINT64_MAX
#define LANE_SESSION_WRITES (32ull << 30)

struct lane_engine_request {
    uint32_t kind;
    int32_t urgency;
    uint64_t lane_id;
    uint64_t journal_offset; /* of the copied TLVs in the journal, which the engine maps read-only */
    uint32_t tlv_bytes;
    uint32_t n_forced;       /* replay: token ids already said ... */
    uint64_t forced_offset;  /* ... in the journal, i32 */
    uint64_t text_sent;      /* bytes of text already sent: not emitted again */
    uint64_t out_offset;     /* output lease as a range of e2c; length 0: none */
    uint64_t out_bytes;
    uint64_t in_offset;      /* token lease as a range of c2e */
    uint64_t in_bytes;
    uint64_t principal;      /* hash of (uid, tenant) for fairness; never 0 */
    uint32_t out_buf;        /* echoed in LANE_BULK */
    uint32_t out_generation;
    uint32_t flags;
    uint32_t person;         /* on whose account it is: who reads texts does so in turns by it */
    uint64_t seed;           /* for a request that names none; drawn once by the front, so that a replay
                                draws the same numbers */
    uint64_t session_bytes;  /* with LANE_F_SESSION, and a descriptor of the user's folder: what all files
                                in it may take */
    uint8_t client_id[16];   /* the client's id of the request: a session remembers its last one */
    uint64_t session_writes; /* bytes that this user's saves may write a day; LANE_ANY_WRITES: any
                                number; 0, of a front that does not know: LANE_SESSION_WRITES */
};

struct lane_engine_cancel {
    uint32_t reason; /* enum lane_reason that LANE_DONE shall have */
};

struct lane_engine_state {
    uint32_t state;     /* LANE_LOADING, LANE_READY, LANE_FAILED */
    uint32_t progress;  /* of 1000; 0 in LANE_LOADING: file and plan are not checked yet */
    int32_t ctx;
    int32_t n_vocab;
    int32_t n_seqs;
    uint32_t n_running;
    uint32_t n_queued;
    uint32_t text_ms;   /* so long the thread that reads texts gave no sign of life (twice its CPU
                           time, if less and it wants more); 0: or no more than its length needs */
    uint64_t n_prompt_tokens;
    uint64_t n_new_tokens;
    uint64_t n_evicted;
    uint64_t kv_bytes_used;
    uint64_t kv_bytes_total;
    uint64_t plan_bytes;
    int64_t last_step_ns;    /* CLOCK_MONOTONIC of the worker's last finished operation */
    int64_t longest_step_ns;
    char model[64];
    char backend[32];
    uint64_t n_prefix_hits;   /* requests that found the beginning of their prompt kept, */
    uint64_t n_prefix_tokens; /* and so many tokens */
    uint64_t n_drafted;       /* tokens, */
    uint64_t n_accepted;      /* and those of them that were said */
};

enum lane_engine_report_kind { LANE_ENGINE_REPORT_BACKEND = 1, LANE_ENGINE_REPORT_KV, LANE_ENGINE_REPORT_MODEL };
enum { LANE_ENGINE_REPORT_TEXT = 160, LANE_ENGINE_REPORT_ROWS = 16 };

/* A text longer than a record comes in pieces, its first at 0; figures are those of the last piece.
 * BACKEND and MODEL come before LANE_READY; MODEL's text is the 64 digits that name the model file's bytes
 * and its overlays'. */
struct lane_engine_report {
    uint32_t kind;     /* enum lane_engine_report_kind */
    uint32_t row;      /* KV: of n_rows */
    uint32_t n_rows;
    uint32_t n_seqs;   /* KV: running under this policy */
    uint64_t n_requests;
    uint64_t n_slots;
    uint64_t kv_bytes;
    uint64_t n_evicted;
    uint32_t text_at;
    uint32_t text_len; /* of this piece */
    char text[LANE_ENGINE_REPORT_TEXT];
};

struct lane_record {
    struct lane_header h;
    union {
        uint8_t bytes[LANE_BODY_BYTES];
        struct lane_hello hello;
        struct lane_hello_reply hello_reply;
        struct lane_lease lease;
        struct lane_request request;
        struct lane_resume resume;
        struct lane_cancel cancel;
        struct lane_credit credit;
        struct lane_session session;
        struct lane_control control;
        struct lane_accepted accepted;
        struct lane_progress progress;
        struct lane_token token;
        struct lane_alt alt;
        struct lane_bulk_body bulk;
        struct lane_done done;
        struct lane_error error;
        struct lane_status status;
        struct lane_engine_lane e_lane;
        struct lane_engine_request e_request;
        struct lane_engine_cancel e_cancel;
        struct lane_engine_state e_state;
        struct lane_engine_report e_report;
    };
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are read in place");
_Static_assert(sizeof(struct lane_header) == 32, "wire");
_Static_assert(sizeof(struct lane_record) == LANE_RECORD_BYTES, "wire");
_Static_assert(sizeof(struct lane_token) <= LANE_BODY_BYTES, "wire");
_Static_assert(sizeof(struct lane_error) <= LANE_BODY_BYTES, "wire");

/* Bytes of header and body that a record of this type uses, 0 for an unknown type. */
uint32_t lane_record_size(uint32_t type);

/* A zeroed record of a type with its size set. id may be NULL. */
void lane_record_init(struct lane_record *r, uint32_t type, const uint8_t id[16]);

/* Checks what came from a peer as `n` bytes: exactly 256, size in [32, 256], a type that `from` may
 * send, string fields terminated or bounded (text_len, tenant_len), enums in range; zeroes what lies
 * beyond `size`, and puts '?' for control characters in names and causes. 0, or -EBADMSG with the cause. Pure; the harness fuzzes it. */
enum lane_peer { LANE_PEER_CLIENT, LANE_PEER_FRONT, LANE_PEER_FRONT_TO_ENGINE, LANE_PEER_ENGINE };
struct error;
int lane_record_check(struct lane_record *r, uint64_t n, enum lane_peer from, struct error *reterr)
    __attribute__((warn_unused_result));

/* 1..64 letters, digits, '.', '_' and '-', the first no '.'. */
int lane_session_name_ok(const char *name, uint64_t len);

/* "stop", "length", ... and "CONTEXT_OVERFLOW", ...; never NULL. */
const char *lane_reason_name(uint32_t reason);
const char *lane_error_name(uint32_t code);
const char *lane_state_name(uint32_t state);
const char *lane_kind_name(uint32_t kind);
/* Exit code of the command line for a reason or an error code. */
int lane_reason_exit(uint32_t reason);
int lane_error_exit(uint32_t code);

static inline uint32_t lane_part(const struct lane_header *h)
{
    return (uint32_t)h->flags >> LANE_PART_SHIFT & LANE_PART_MASK;
}

/* lane_engine_request.session_writes and what it says, in bytes a day, 0 for any number: records of a
 * peer that is older are filled with zeros, and those must not mean that there is no limit. */
static inline uint64_t lane_session_writes_field(uint64_t limit)
{
    return limit ? limit : LANE_ANY_WRITES;
}

static inline uint64_t lane_session_writes(uint64_t field)
{
    return field == LANE_ANY_WRITES ? 0 : field ? field : LANE_SESSION_WRITES;
}

#endif

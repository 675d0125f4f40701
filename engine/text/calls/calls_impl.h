/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_CALLS_CALLS_IMPL_H
#define PIPIT_ENGINE_TEXT_CALLS_CALLS_IMPL_H

/* What the files of calls/ share. calls.c is the stream: it finds markers and gathers what lies
 * between them. A format is a row of data, and a function that reads one whole gathered call. */

#include "engine/text/calls/calls.h"

enum { CALLS_MARKERS = 8, CALLS_HELD = 2048, CALLS_HINTS = 3, CALLS_DEPTH = 64 };

enum calls_mark {
    MARK_THINK = 1,
    MARK_THINK_END,
    MARK_CALL,     /* where a call begins, or several */
    MARK_CALL_IN,  /* the same, and its spelling is part of the call */
    MARK_CALL_END,
    MARK_DROP,     /* of no meaning */
    MARK_LABEL,    /* of no meaning, where reasoning begins */
    /* harmony's */
    MARK_START,
    MARK_CHANNEL,
    MARK_CONSTRAIN,
    MARK_MESSAGE,
    MARK_END,
};

struct calls_marker {
    const char *spelling;
    enum calls_mark what;
};

enum calls_state {
    IN_TEXT,
    IN_REASONING,
    IN_CALL,
    IN_HEADER, /* of a message with channels */
};

struct calls_format {
    const char *name;
    const char *hints[CALLS_HINTS]; /* a template that holds all of them is of this format */
    struct calls_marker markers[CALLS_MARKERS];
    bool open_end; /* a call may end with the answer, or where the next one begins */
    bool bare;     /* an answer that is one JSON object is a call */
    /* Reads what lies between the markers, and writes calls with the functions below. False: it is
     * none, or not whole. */
    bool (*read)(struct calls *c, const char *text, size_t len);
};

struct calls {
    const struct calls_format *format;
    calls_emit *emit;
    void *arg;
    bool has_tools;
    size_t n_tools; /* bytes */
    enum calls_state state;
    bool is_token[CALLS_MARKERS]; /* a marker only as a token */
    bool skip_space;              /* white space is dropped until something else comes */
    bool label;                   /* reasoning begins here */
    bool begun;                   /* something that is not white space was text */
    bool bare;                    /* the call has no marker */
    bool sure;                    /* and has begun with a key of one */
    bool broken;
    bool whole; /* the model has ended its answer */
    uint32_t n_calls;
    size_t n_held;
    size_t n_seg;
    size_t body; /* where in seg the call begins, behind its marker */
    size_t n_out;
    bool failed; /* `out` is full, or a name is bad */
    uint32_t n_written;
    size_t call_at; /* of the call that is being written in `out` */
    char held[CALLS_HELD];
    char seg[CALLS_MAX_BYTES]; /* the call as it is written, marker first */
    char out[CALLS_MAX_OUT];
    char tools[CALLS_MAX_TOOLS]; /* calls_tools.c */
};

/* ---- calls.c: for harmony ------------------------------------------------------------------- */

void calls_tell(struct calls *c, enum calls_part part, const char *text, size_t len);
/* The gathered bytes: ends them as calls, as text, or as a mark, and goes on in `next`. */
void calls_end_call(struct calls *c, enum calls_state next);
void calls_end_as_text(struct calls *c, enum calls_state next);
void calls_end_as_mark(struct calls *c, enum calls_state next);
/* False: it is full, and was told as text. */
bool calls_gather(struct calls *c, const char *text, size_t len);

/* ---- calls_write.c: calls that were read, told when all of them are well --------------------- */

void calls_write_name(struct calls *c, const char *name, size_t len);
void calls_write(struct calls *c, const char *text, size_t len);
void calls_write_word(struct calls *c, const char *word);
/* As a JSON string: bytes as they are, quoted. */
void calls_write_string(struct calls *c, const char *text, size_t len);
void calls_write_end(struct calls *c); /* of one call's arguments */
void calls_tell_written(struct calls *c);

/* ---- calls_tools.c: what the definitions say, without them ------------------------------------ */

bool calls_tools_take(struct calls *c, const struct json_t *list); /* false: no room */
/* The tool of this name, NULL without one; and the type of one of its parameters. */
const char *calls_tool(const struct calls *c, const char *name, size_t len);
enum calls_type { TYPE_ANY, TYPE_STRING, TYPE_OTHER };
enum calls_type calls_type_of(const char *tool, const char *key, size_t len); /* takes NULL */

/* ---- calls_json.c ---------------------------------------------------------------------------- */

const char *calls_skip_space(const char *p, const char *end);
/* Behind the value that begins at p; NULL: it is none, or not whole. */
const char *calls_json_value(const char *p, const char *end, int depth);
const char *calls_json_number(const char *p, const char *end);
bool calls_json_is_object(const char *p, const char *end); /* and nothing else but space */
/* Objects {"name": ..., "arguments": {...}}, one behind another or in a list, to the end. `known`:
 * of the given tools alone. */
bool calls_json_calls(struct calls *c, const char *p, const char *end, bool known);

/* ---- calls_python.c -------------------------------------------------------------------------- */

/* f(a=1, b="x"), behind which the next one may come; NULL: it is none. */
const char *calls_python_call(struct calls *c, const char *p, const char *end, bool dot_call);

/* ---- the formats ------------------------------------------------------------------------------ */

bool hermes_read(struct calls *c, const char *text, size_t len);
bool llama3_read(struct calls *c, const char *text, size_t len);
/* Is it still the beginning of a bare call? `sure`: whatever follows does not change that. */
bool llama3_may_be(const char *text, size_t len, bool *sure);
bool mistral_read(struct calls *c, const char *text, size_t len);
bool gemma4_read(struct calls *c, const char *text, size_t len);
bool lfm2_read(struct calls *c, const char *text, size_t len);
bool granite_read(struct calls *c, const char *text, size_t len);
bool harmony_read(struct calls *c, const char *text, size_t len);
void harmony_begin(struct calls *c, const char *prompt_end, size_t len);
bool harmony_may_be(const struct calls *c); /* is it still the beginning of a header? */
void harmony_mark(struct calls *c, const struct calls_marker *m);

#endif

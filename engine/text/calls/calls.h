/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_CALLS_CALLS_H
#define PIPIT_ENGINE_TEXT_CALLS_CALLS_H

/* The parts of an answer: text, reasoning, calls of tools. A model writes calls and reasoning in a
 * format of its family; what comes out here is the same for all. It works on a stream, token by
 * token, beside the detokenizer, since there alone a marker is known as a token of the model.
 *
 * Text and reasoning are told as they come. A call is told when it is whole: its name, then its
 * arguments, a JSON object. So what was told as a call is never taken back. What does not parse is
 * told as the text that it is, and calls_broken() says so. Nothing is lost: CALLS_TEXT,
 * CALLS_REASONING and CALLS_MARK together are the answer, byte for byte.
 *
 * Memory is taken at creation alone, and bounded. docs/design/calls.md has the whole picture. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct json_t;
struct tok;

enum {
    CALLS_MAX_BYTES = 128 << 10, /* of one call as the model writes it; a longer one is text */
    CALLS_MAX_OUT = 256 << 10,   /* of the calls of one marker, as JSON */
    CALLS_MAX_CALLS = 64,        /* in an answer; more are text */
    CALLS_MAX_NAME = 128,
    CALLS_MAX_TOOLS = 32 << 10, /* the names of all tools and of their arguments */
    CALLS_BYTES = 420 << 10,    /* that calls_create() takes, in whole pages */
};

enum calls_part {
    CALLS_TEXT,
    CALLS_REASONING,
    CALLS_NAME,      /* a call begins; in one piece */
    CALLS_ARGUMENTS, /* of the call begun last; in one piece */
    CALLS_MARK,      /* markers, white space round them, and calls as they were written */
};

/* `text` is valid until it returns; `len` is not 0. Whole UTF-8 characters, where the pushed pieces
 * are. */
typedef void calls_emit(void *arg, enum calls_part part, const char *text, size_t len);

/* What a piece of the answer is: bytes of ordinary tokens, the spelling of a token that the
 * vocabulary adds (user-defined), or of a control token, which is no text. */
enum calls_piece { CALLS_PLAIN, CALLS_ADDED, CALLS_CONTROL };

/* Creator: calls_create; freed by calls_destroy. One thread at a time. */
struct calls;

struct calls_format;

/* The format of a model by its chat template, or by a name out of CALLS_FORMATS. Never NULL; "none"
 * where the template shows none that is known: then there are no calls. -EINVAL: no such name. */
#define CALLS_FORMATS \
    "hermes, qwen-xml, llama3, mistral, harmony, gemma4, lfm2, granite, none, auto"
int calls_choose(const char *name, const char *template_text, size_t len,
                 const struct calls_format **ret, struct error *reterr) WARN_UNUSED;
const char *calls_format_name(const struct calls_format *f);

/* `tools`: the list of definitions, of which names and types are kept; NULL: no calls are looked
 * for. `tok` says which markers are tokens, and those are markers in no other spelling; NULL: none
 * is. -E2BIG: over CALLS_MAX_TOOLS. */
int calls_create(const struct calls_format *f, const struct tok *tok, struct json_t *tools,
                 calls_emit *emit, void *arg, struct calls **ret, struct error *reterr) WARN_UNUSED;
void calls_destroy(struct calls *c); /* takes NULL */

/* Before the first piece: the end of the prompt, special tokens spelt; a few dozen bytes suffice. A
 * template may have begun the reasoning, or the header of a message. */
void calls_begin(struct calls *c, const char *prompt_end, size_t len);
void calls_push(struct calls *c, enum calls_piece piece, const char *text, size_t len);
/* `whole`: the model ended its answer, nothing cut it. */
void calls_finish(struct calls *c, bool whole);

uint32_t calls_count(const struct calls *c);
/* Did something begin as a call, or in the form of one, and was told as text? */
bool calls_broken(const struct calls *c);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_JINJA_JINJA_H
#define PIPIT_ENGINE_TEXT_JINJA_JINJA_H

/* Chat templates: Jinja as Hugging Face's transformers run it (an immutable sandbox, trim_blocks,
 * lstrip_blocks, loop controls, generation blocks, its tojson, raise_exception, strftime_now).
 * A template comes from a stranger's file. Steps, output, memory and depth are limited, and it sees
 * nothing but the variables it is given.
 *
 * Every byte of every string carries a mark: it came from the template (or from a value the caller
 * trusts) or from somebody who talks. All operations keep the marks, so the output says for each of
 * its bytes whose it is. docs/design/templates.md has the whole picture. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct json_t;

enum { JINJA_MAX_SOURCE = 1 << 20 /* bytes of a template */ };

/* A compiled template. Creator: jinja_compile; freed by jinja_destroy; read-only and thread-safe in
 * between. It copies the source. */
struct jinja;
/* One rendering; handed to jinja_bind, gone when jinja_render returns. Not thread-safe. */
struct jinja_run;

/* A value of the language, as the caller builds it. Belongs to its run; copy freely. */
struct jinja_value {
    uint8_t kind;
    bool user; /* a number's mark; strings have theirs by byte */
    uint8_t sub;
    union {
        bool b;
        int64_t i;
        double f;
        void *p;
    } u;
};

struct jinja_limits {
    uint64_t steps;      /* nodes evaluated and bytes / 16 handled */
    size_t output_bytes;
    size_t memory_bytes;
};

/* Bytes [the end of the one before, + len) of the text; neighbours differ in `trusted`. */
struct jinja_span {
    size_t len;
    bool trusted;
};

/* Memory is one block, freed by jinja_output_finish. `text` ends with a NUL that is not counted. */
struct jinja_output {
    char *text;
    size_t len;
    struct jinja_span *spans; /* (n_spans) */
    size_t n_spans;
};

/* -EBADMSG with line and cause: the syntax, an unknown filter, test or statement. -E2BIG: a source
 * over JINJA_MAX_SOURCE or nested too deeply. -ENOMEM. */
int jinja_compile(const char *source, size_t len, struct jinja **ret,
                  struct error *reterr) WARN_UNUSED;
void jinja_destroy(struct jinja *t); /* takes NULL */
/* Does the template mention a variable (or attribute) of this name? */
bool jinja_mentions(const struct jinja *t, const char *name);

/* Limits that fit a conversation of so many bytes. */
struct jinja_limits jinja_limits_for(size_t input_bytes);

/* Sets the variables of a run, with the functions below. It may be left in the middle when memory
 * ends: it must hold nothing that needs freeing. */
typedef void jinja_bind(void *arg, struct jinja_run *r);

/* `now`: seconds since 1970 for strftime_now. -EINVAL with line and cause: the template refused the
 * conversation (raise_exception) or failed on it; -E2BIG: over a limit; -ENOMEM. Texts never hold
 * bytes that are not trusted. */
int jinja_render(const struct jinja *t, const struct jinja_limits *limits, int64_t now,
                 jinja_bind *bind, void *arg, struct jinja_output *ret,
                 struct error *reterr) WARN_UNUSED;
void jinja_output_finish(struct jinja_output *out);

/* ---- for jinja_bind -------------------------------------------------------------------------- */

void jinja_set(struct jinja_run *r, const char *name, struct jinja_value v);
struct jinja_value jinja_none(void);
struct jinja_value jinja_bool(bool b);
/* Copies the bytes, which need not be UTF-8. */
struct jinja_value jinja_string(struct jinja_run *r, const char *s, size_t len, bool trusted);
struct jinja_value jinja_list(struct jinja_run *r);
void jinja_list_add(struct jinja_run *r, struct jinja_value list, struct jinja_value v);
struct jinja_value jinja_dict(struct jinja_run *r);
void jinja_dict_set(struct jinja_run *r, struct jinja_value dict, const char *key,
                    struct jinja_value v); /* the key is trusted */
/* A copy of the whole tree; keys carry the mark too. */
struct jinja_value jinja_json(struct jinja_run *r, const struct json_t *json, bool trusted);

#endif

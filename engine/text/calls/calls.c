/* SPDX-License-Identifier: Apache-2.0 */
/* The stream. Ordinary bytes pass through `held`, where the beginning of a marker waits that is no
 * token of the vocabulary (and, in reasoning, white space that may turn out to stand before its
 * end). A call's bytes are gathered in `seg` with its marker, until its end shows whether it
 * parses. If not, they are told as text. All of it is a struct of fixed size: nothing is allocated
 * while an answer runs. */

#include "engine/text/calls/calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/calls/calls_impl.h"
#include "engine/text/tok.h"

int calls_create(const struct calls_format *f, const struct tok *tok, struct json_t *tools,
                 calls_emit *emit, void *arg, struct calls **ret, struct error *reterr)
{
    _Static_assert((sizeof(struct calls) + 4096) / 4096 * 4096 == CALLS_BYTES,
                   "what the plan counts");
    /* Not calloc: pages that no call needs are never touched. */
    struct calls *c = malloc(sizeof(*c));

    if (!c) {
        return error_set(reterr, -ENOMEM, "no memory to read the answer's calls");
    }
    memset(c, 0, offsetof(struct calls, held));
    c->format = f;
    c->emit = emit;
    c->arg = arg;
    c->has_tools = tools != NULL;
    if (tools && !calls_tools_take(c, tools)) {
        free(c);
        return error_set(reterr, -E2BIG,
                         "the names of the tools and of their arguments take more than %d bytes",
                         (int)CALLS_MAX_TOOLS);
    }
    for (int i = 0; i < CALLS_MARKERS && f->markers[i].spelling; i++) {
        c->is_token[i] = tok && tok_find_added(tok, f->markers[i].spelling) >= 0;
    }
    *ret = c;
    return 0;
}

void calls_destroy(struct calls *c)
{
    free(c);
}

uint32_t calls_count(const struct calls *c)
{
    return c->n_calls;
}

bool calls_broken(const struct calls *c)
{
    return c->broken;
}

void calls_tell(struct calls *c, enum calls_part part, const char *text, size_t len)
{
    if (len) {
        c->emit(c->arg, part, text, len);
    }
}

/* ---- text and reasoning ---------------------------------------------------------------------- */

static bool is_space(char b)
{
    return b == ' ' || b == '\n' || b == '\t' || b == '\r';
}

static bool is_inside(char b) /* of a character of several bytes */
{
    return ((unsigned char)b & 0xc0) == 0x80;
}

/* Of the character that begins here, as far as it is there. ASCII is alone, also before bytes that
 * are no UTF-8: it may end a marker. */
static size_t character(const char *text, size_t len)
{
    size_t n = 1;

    while ((unsigned char)text[0] >= 0xc0 && n < len && n < 4 && is_inside(text[n])) {
        n++;
    }
    return n;
}

static void tell_text(struct calls *c, const char *text, size_t len)
{
    size_t n = 0;

    if (c->skip_space) {
        while (n < len && is_space(text[n])) {
            n++;
        }
        calls_tell(c, CALLS_MARK, text, n);
        c->skip_space = n == len;
    }
    for (size_t i = n; i < len && !c->begun; i++) {
        c->begun = c->state == IN_TEXT && !is_space(text[i]);
    }
    calls_tell(c, c->state == IN_REASONING ? CALLS_REASONING : CALLS_TEXT, text + n, len - n);
}

/* ---- what is gathered ------------------------------------------------------------------------ */

static void start(struct calls *c, enum calls_state state)
{
    c->state = state;
    c->n_seg = c->body = 0;
    c->bare = c->sure = false;
}

void calls_end_as_text(struct calls *c, enum calls_state next)
{
    calls_tell(c, CALLS_TEXT, c->seg, c->n_seg);
    c->begun |= c->n_seg > 0;
    c->skip_space &= c->n_seg == 0;
    start(c, next);
}

void calls_end_as_mark(struct calls *c, enum calls_state next)
{
    calls_tell(c, CALLS_MARK, c->seg, c->n_seg);
    start(c, next);
}

/* Reads the gathered bytes but for the last `mark`, which are the end's marker. */
static void settle(struct calls *c, size_t mark, enum calls_state next)
{
    c->n_out = 0;
    c->n_written = 0;
    c->failed = false;
    if (!c->format->read(c, c->seg + c->body, c->n_seg - mark - c->body) || c->failed ||
        c->n_written == 0) {
        c->broken = true;
        calls_end_as_text(c, next);
        return;
    }
    calls_tell_written(c);
    calls_end_as_mark(c, next);
    c->skip_space = true;
}

void calls_end_call(struct calls *c, enum calls_state next)
{
    settle(c, 0, next);
}

bool calls_gather(struct calls *c, const char *text, size_t len)
{
    if (len <= sizeof(c->seg) - c->n_seg) {
        memcpy(c->seg + c->n_seg, text, len);
        c->n_seg += len;
        return true;
    }
    c->broken = true;
    calls_end_as_text(c, IN_TEXT);
    tell_text(c, text, len);
    return false;
}

static void open_call(struct calls *c, const struct calls_marker *m, bool bare)
{
    start(c, IN_CALL);
    c->bare = bare;
    if (m) {
        (void)calls_gather(c, m->spelling, strlen(m->spelling));
        c->body = m->what == MARK_CALL_IN ? 0 : c->n_seg;
    }
}

/* ---- markers --------------------------------------------------------------------------------- */

/* Does it mean something here? */
static bool is_active(const struct calls *c, int i, bool as_token)
{
    enum calls_mark what = c->format->markers[i].what;

    switch (c->state) {
    case IN_TEXT:
        if (what == MARK_CALL || what == MARK_CALL_IN) {
            return c->has_tools;
        }
        return what == MARK_THINK ? as_token || !c->begun
                                  : what != MARK_CALL_END && what != MARK_LABEL;
    case IN_REASONING:
        return what == MARK_THINK_END || (what == MARK_LABEL && c->label) || what >= MARK_START;
    case IN_CALL:
        return what == MARK_CALL_END || (what == MARK_CALL && c->format->open_end) ||
               what >= MARK_START;
    default:
        return what >= MARK_START;
    }
}

/* In IN_TEXT and IN_REASONING what came before it was told. */
static void on_marker(struct calls *c, const struct calls_marker *m)
{
    size_t len = strlen(m->spelling);

    if (m->what >= MARK_START) {
        harmony_mark(c, m);
        return;
    }
    if (c->state == IN_CALL && m->what == MARK_CALL) {
        settle(c, 0, IN_TEXT);
    } else if (c->state == IN_CALL) {
        if (calls_gather(c, m->spelling, len)) {
            settle(c, len, IN_TEXT);
        }
        return;
    }
    if (m->what == MARK_CALL || m->what == MARK_CALL_IN) {
        open_call(c, m, false);
        return;
    }
    calls_tell(c, CALLS_MARK, m->spelling, len);
    if (m->what == MARK_THINK || m->what == MARK_THINK_END) {
        c->state = m->what == MARK_THINK ? IN_REASONING : IN_TEXT;
        c->label = m->what == MARK_THINK;
        c->skip_space = true;
    }
}

static bool is_blank(const char *text, size_t n)
{
    while (n && is_space(text[n - 1])) {
        n--;
    }
    return n == 0;
}

/* A spelt marker that ends at text[n]; the longest. Spelt reasoning begins an answer, or is talked
 * about. */
static const struct calls_marker *ends_here(const struct calls *c, const char *text, size_t n)
{
    const struct calls_marker *found = NULL;
    size_t longest = 0;

    for (int i = 0; i < CALLS_MARKERS && c->format->markers[i].spelling; i++) {
        const struct calls_marker *m = &c->format->markers[i];
        size_t len = strlen(m->spelling);

        if (!c->is_token[i] && len <= n && len > longest && (m->what != MARK_LABEL || len == n) &&
            !memcmp(text + n - len, m->spelling, len) && is_active(c, i, false) &&
            (m->what != MARK_THINK || is_blank(text, n - len))) {
            found = m;
            longest = len;
        }
    }
    return found;
}

/* How much of the end of what is held may be the beginning of a marker. */
static size_t marker_begun(const struct calls *c)
{
    size_t most = 0;

    for (int i = 0; i < CALLS_MARKERS && c->format->markers[i].spelling; i++) {
        const char *spelling = c->format->markers[i].spelling;
        size_t n = strlen(spelling) - 1;

        if (c->is_token[i] || !is_active(c, i, false)) {
            continue;
        }
        n = n < c->n_held ? n : c->n_held;
        if (c->format->markers[i].what == MARK_LABEL && n < c->n_held) {
            continue; /* at the beginning alone */
        }
        while (n > most && memcmp(c->held + c->n_held - n, spelling, n) != 0) {
            n--;
        }
        if (n > most &&
            (c->format->markers[i].what != MARK_THINK || is_blank(c->held, c->n_held - n))) {
            most = n;
        }
    }
    return most;
}

/* Tells what is held but for its last `keep` bytes. */
static void release(struct calls *c, size_t keep)
{
    size_t n = c->n_held - keep;

    tell_text(c, c->held, n);
    memmove(c->held, c->held + n, keep);
    c->n_held = keep;
    c->label = c->label && c->skip_space; /* only white space so far */
}

/* White space before the end of the reasoning is no part of it. */
static void release_before_mark(struct calls *c, const struct calls_marker *m)
{
    size_t n = c->n_held;

    while (c->state == IN_REASONING && m->what == MARK_THINK_END && n > 0 &&
           is_space(c->held[n - 1])) {
        n--;
    }
    release(c, c->n_held - n);
    calls_tell(c, CALLS_MARK, c->held, c->n_held);
    c->n_held = 0;
}

static size_t to_keep(const struct calls *c)
{
    size_t keep = marker_begun(c);
    bool trims = c->state == IN_REASONING && c->format->markers[0].what < MARK_START;

    if (c->format->bare && c->state == IN_TEXT && !c->begun && c->n_held < CALLS_HELD / 2) {
        return is_blank(c->held, c->n_held) ? c->n_held : keep; /* before a bare call? */
    }
    while (trims && keep < c->n_held && keep < CALLS_HELD / 2 &&
           is_space(c->held[c->n_held - keep - 1])) {
        keep++;
    }
    return keep;
}

/* Does the brace at the end of what is held open one? */
static bool opens_bare(const struct calls *c)
{
    return c->format->bare && c->has_tools && c->state == IN_TEXT && !c->begun && c->n_calls == 0 &&
           is_blank(c->held, c->n_held - 1);
}

/* Takes bytes of ordinary text until the state changes; how many. Room is made between characters:
 * what is told has no halves of them. */
static size_t take_text(struct calls *c, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        const struct calls_marker *m;

        if (c->n_held == sizeof(c->held) ||
            (c->n_held > sizeof(c->held) - 4 && !is_inside(text[i]))) {
            release(c, to_keep(c));
        }
        c->held[c->n_held++] = text[i];
        m = ends_here(c, c->held, c->n_held);
        if (m) {
            c->n_held -= strlen(m->spelling);
            release_before_mark(c, m);
            on_marker(c, m);
            return i + 1;
        }
        if (text[i] == '{' && opens_bare(c)) {
            size_t n = c->n_held;

            open_call(c, NULL, true);
            c->n_held = 0;
            (void)calls_gather(c, c->held, n);
            return i + 1;
        }
    }
    release(c, to_keep(c));
    return len;
}

/* The same for a call's bytes, by characters: any of them may show that it is none. */
static size_t take_call(struct calls *c, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        const struct calls_marker *m;
        size_t n = character(text + i, len - i);

        i += n;
        if (!calls_gather(c, text + i - n, n)) {
            return i;
        }
        if ((c->bare && !c->sure && !llama3_may_be(c->seg, c->n_seg, &c->sure)) ||
            (c->state == IN_HEADER && !harmony_may_be(c))) {
            calls_end_as_text(c, IN_TEXT);
            return i;
        }
        m = ends_here(c, c->seg + c->body, c->n_seg - c->body);
        if (m) {
            c->n_seg -= strlen(m->spelling);
            on_marker(c, m);
            return i;
        }
    }
    return len;
}

static void push_plain(struct calls *c, const char *text, size_t len)
{
    while (len) {
        size_t n = c->state == IN_CALL || c->state == IN_HEADER ? take_call(c, text, len)
                                                                : take_text(c, text, len);

        text += n;
        len -= n;
    }
}

void calls_push(struct calls *c, enum calls_piece piece, const char *text, size_t len)
{
    for (int i = 0; piece != CALLS_PLAIN && i < CALLS_MARKERS; i++) {
        const struct calls_marker *m = &c->format->markers[i];

        if (!m->spelling || strlen(m->spelling) != len || memcmp(m->spelling, text, len) != 0) {
            continue;
        }
        if (is_active(c, i, true)) {
            if (c->state == IN_TEXT || c->state == IN_REASONING) {
                release_before_mark(c, m);
            }
            on_marker(c, m);
            return;
        }
    }
    if (piece == CALLS_PLAIN) {
        push_plain(c, text, len);
    } else if (c->state == IN_CALL || c->state == IN_HEADER) {
        (void)calls_gather(c, text, len);
    } else if (piece == CALLS_ADDED) {
        release(c, 0);
        tell_text(c, text, len);
    } else {
        release(c, 0);
        calls_tell(c, CALLS_MARK, text, len);
    }
}

void calls_begin(struct calls *c, const char *prompt_end, size_t len)
{
    if (c->format->markers[0].what >= MARK_START) {
        harmony_begin(c, prompt_end, len);
        return;
    }
    while (len && is_space(prompt_end[len - 1])) {
        len--;
    }
    for (int i = 0; i < CALLS_MARKERS && c->format->markers[i].spelling; i++) {
        const struct calls_marker *m = &c->format->markers[i];
        size_t n = strlen(m->spelling);

        if (m->what == MARK_THINK && n <= len && !memcmp(prompt_end + len - n, m->spelling, n)) {
            c->state = IN_REASONING;
            c->skip_space = true;
        }
    }
}

void calls_finish(struct calls *c, bool whole)
{
    c->whole = whole;
    if (c->state == IN_HEADER) {
        c->broken |= c->n_seg > 0;
        calls_end_as_text(c, IN_TEXT);
    } else if (c->state == IN_CALL && (c->format->open_end || c->bare)) {
        calls_end_call(c, IN_TEXT);
    } else if (c->state == IN_CALL) {
        c->broken = true;
        calls_end_as_text(c, IN_TEXT);
    } else {
        release(c, 0);
    }
}

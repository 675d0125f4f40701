/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations to token ids. Text between two markers is collected and tokenized in one go, since
 * a role's name, the line break and the message may share tokens; a marker closes what was
 * collected and goes in as an id. Nothing here passes TOK_PARSE_SPECIAL. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/text/chat.h"
#include "engine/text/tok.h"

#define LLAMA3_DATES "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

/* The prompt so far: ids, and plain text that is not tokenized yet. The first failure stays. */
struct prompt {
    const struct tok *tok;
    int32_t *ids;
    size_t n_ids;
    size_t cap_ids;
    char *text;
    size_t n_text;
    size_t cap_text;
    int failed;
    struct error *reterr;
};

static void fail(struct prompt *p)
{
    p->failed = error_set(p->reterr, -ENOMEM, "no memory for the prompt");
}

/* Room for n more elements in *mem; false on failure. */
static bool reserve(struct prompt *p, void **mem, size_t *cap, size_t have, size_t n, size_t size)
{
    size_t want = have + n;
    void *larger;

    if (p->failed || want <= *cap) {
        return !p->failed;
    }
    want += want / 2;
    larger = reallocarray(*mem, want, size);
    if (!larger) {
        fail(p);
        return false;
    }
    *mem = larger;
    *cap = want;
    return true;
}

static void put_text(struct prompt *p, const char *text, size_t len)
{
    void *mem = p->text;
    bool ok = reserve(p, &mem, &p->cap_text, p->n_text, len, 1);

    p->text = mem;
    if (ok && len > 0) {
        memcpy(p->text + p->n_text, text, len);
        p->n_text += len;
    }
}

static void put(struct prompt *p, const char *text)
{
    put_text(p, text, strlen(text));
}

static void put_ids(struct prompt *p, const int32_t *ids, size_t n)
{
    void *mem = p->ids;
    bool ok = reserve(p, &mem, &p->cap_ids, p->n_ids, n, sizeof(*ids));

    p->ids = mem;
    if (ok && n > 0) {
        memcpy(p->ids + p->n_ids, ids, n * sizeof(*ids));
        p->n_ids += n;
    }
}

static void tokenize(struct prompt *p)
{
    AUTO_FREE int32_t *ids = NULL;
    size_t n;

    if (p->failed || p->n_text == 0) {
        return;
    }
    p->failed = tok_encode_new(p->tok, p->text, p->n_text, 0, &ids, &n, p->reterr);
    p->n_text = 0;
    if (!p->failed) {
        put_ids(p, ids, n);
    }
}

static void put_marker(struct prompt *p, int32_t id)
{
    tokenize(p);
    put_ids(p, &id, 1);
}

/* ---- white space as Python's str.strip() has it ---------------------------------------------- */

/* Bytes of the white space character at the start of s, 0 for none. */
static size_t space_at(const char *s, size_t len)
{
    static const char *const wide[] = {"\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80",
                                       "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf",
                                       "\xe2\x81\x9f", "\xe3\x80\x80"};

    if (len == 0) {
        return 0;
    }
    if (*s == ' ' || (*s >= '\t' && *s <= '\r') || (*s >= 0x1c && *s <= 0x1f)) {
        return 1;
    }
    for (size_t i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
        size_t n = strlen(wide[i]);

        if (len >= n && !memcmp(s, wide[i], n)) {
            return n;
        }
    }
    /* U+2000 to U+200A */
    return len >= 3 && !memcmp(s, "\xe2\x80", 2) && (uint8_t)s[2] >= 0x80 && (uint8_t)s[2] <= 0x8a
               ? 3
               : 0;
}

static void trim(const char **text, size_t *len)
{
    size_t n;

    while ((n = space_at(*text, *len)) > 0) {
        *text += n;
        *len -= n;
    }
    for (bool again = true; again;) {
        again = false;
        for (size_t k = 1; k <= 3 && k <= *len && !again; k++) {
            again = space_at(*text + *len - k, k) == k;
            *len -= again ? k : 0;
        }
    }
}

static void put_message(const struct chat *c, struct prompt *p, const char *text, size_t len)
{
    if (c->trim) {
        trim(&text, &len);
    }
    put_text(p, text, len);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static const char *role_name(const struct chat *c, enum chat_role role)
{
    static const char *const names[] = {"system", "user", "assistant"};

    return c->style == CHAT_GEMMA && role == CHAT_ASSISTANT ? "model" : names[role];
}

/* Everything before a turn's text. */
static void open_turn(const struct chat *c, struct prompt *p, enum chat_role role)
{
    switch (c->style) {
    case CHAT_CHATML:
    case CHAT_GEMMA:
        put_marker(p, c->start);
        put(p, role_name(c, role));
        put(p, "\n");
        return;
    case CHAT_LLAMA3:
        put_marker(p, c->start);
        put(p, role_name(c, role));
        put_marker(p, c->mid);
        put(p, "\n\n");
        return;
    case CHAT_ZEPHYR:
        if (c->role[role] >= 0) {
            put_marker(p, c->role[role]);
        } else {
            put(p, "<|");
            put(p, role_name(c, role));
            put(p, "|>");
        }
        put(p, "\n");
        return;
    }
}

static void close_turn(const struct chat *c, struct prompt *p)
{
    put_marker(p, c->end);
    if (c->style != CHAT_LLAMA3) {
        put(p, "\n");
    }
}

static int check(const struct chat *c, const struct chat_message *m, size_t n, struct error *reterr)
{
    size_t first = n > 0 && m[0].role == CHAT_SYSTEM ? 1 : 0;

    if (n == 0) {
        return error_set(reterr, -EINVAL, "a conversation needs at least one message");
    }
    if (n > CHAT_MAX_MESSAGES) {
        return error_set(reterr, -E2BIG, "%zu messages (at most %d)", n, CHAT_MAX_MESSAGES);
    }
    if (c->style != CHAT_GEMMA) {
        return 0;
    }
    if (n == first) {
        return error_set(reterr, -EINVAL,
                         "this model takes a system message only before a user's message");
    }
    for (size_t i = first; i < n; i++) {
        if (m[i].role != ((i - first) % 2 == 0 ? CHAT_USER : CHAT_ASSISTANT)) {
            return error_set(
                reterr, -EINVAL,
                "message %zu: with this model, user and assistant must take turns, the user "
                "first",
                i + 1);
        }
    }
    return 0;
}

/* The system turn, where it is not simply the first message; returns how many messages it used up.
 */
static size_t render_system(const struct chat *c, struct prompt *p, const struct chat_message *m)
{
    bool given = m[0].role == CHAT_SYSTEM;

    if (c->style == CHAT_GEMMA && given) {
        open_turn(c, p, CHAT_USER);
        put_text(p, m[0].text, m[0].len);
        put(p, "\n\n");
        put_message(c, p, m[1].text, m[1].len);
        close_turn(c, p);
        return 2;
    }
    if (c->dated) {
        open_turn(c, p, CHAT_SYSTEM);
        put(p, LLAMA3_DATES);
        if (given) {
            put_message(c, p, m[0].text, m[0].len);
        }
        close_turn(c, p);
        return given ? 1 : 0;
    }
    if (!given && c->n_system > 0) {
        open_turn(c, p, CHAT_SYSTEM);
        put_text(p, c->system, c->n_system);
        close_turn(c, p);
    }
    return 0;
}

int chat_render(const struct chat *c, const struct tok *t, const struct chat_message *messages,
                size_t n, bool add_generation_prompt, int32_t **ret_ids, size_t *ret_n,
                struct error *reterr)
{
    struct prompt p = {.tok = t, .reterr = reterr};
    int r = check(c, messages, n, reterr);

    if (r < 0) {
        return r;
    }
    if (c->bos) {
        put_marker(&p, tok_bos(t));
    }
    for (size_t i = render_system(c, &p, messages); i < n; i++) {
        open_turn(c, &p, messages[i].role);
        put_message(c, &p, messages[i].text, messages[i].len);
        close_turn(c, &p);
    }
    if (add_generation_prompt) {
        open_turn(c, &p, CHAT_ASSISTANT);
    }
    tokenize(&p);
    free(p.text);
    if (p.failed) {
        free(p.ids);
        return p.failed;
    }
    *ret_ids = p.ids;
    *ret_n = p.n_ids;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises chat templates. A template is a program in Jinja; running one means an interpreter for
 * text that came with a download, and rendering to text loses the difference between a marker and a
 * user who spells it. Nearly all models use one of four families, told apart by their markers; what
 * differs inside a family (a default system text, trimming, BOS) stands in the template as a
 * literal or a filter and is read from there. What is not recognised is refused, with the marker
 * that gave it away. */

#include "engine/text/chat.h"

#include <errno.h>
#include <string.h>

#include "engine/text/tok.h"
#include "gguf/gguf.h"

#define KNOWN "known: chatml, llama3, gemma, zephyr"
#define WAY_OUT "--raw sends the prompt without a template"

struct text {
    const char *ptr;
    size_t len;
};

static bool has(struct text t, const char *what)
{
    return memmem(t.ptr, t.len, what, strlen(what)) != NULL;
}

const char *chat_style_name(enum chat_style style)
{
    static const char *const names[] = {"chatml", "llama3", "gemma", "zephyr"};

    return names[style];
}

int chat_role_parse(const char *text, size_t len, enum chat_role *ret, struct error *reterr)
{
    static const char *const names[] = {"system", "user", "assistant"};

    for (int i = 0; i < 3; i++) {
        if (strlen(names[i]) == len && !memcmp(names[i], text, len)) {
            *ret = (enum chat_role)i;
            return 0;
        }
    }
    return error_set(reterr, -EINVAL, "a message's role is none of system, user, assistant");
}

/* The first thing in the template that looks like a marker, for the refusal. */
static struct text first_marker(struct text t)
{
    static const char *const opening[] = {"<|", "[INST]", "<start_of_", "### ", "<\xef\xbd\x9c"};

    for (size_t i = 0; i < sizeof(opening) / sizeof(opening[0]); i++) {
        const char *p = memmem(t.ptr, t.len, opening[i], strlen(opening[i]));

        if (p) {
            size_t left = t.len - (size_t)(p - t.ptr);
            size_t n = strlen(opening[i]);

            while (n < left && n < 40 && p[n] > ' ' && p[n] != '\'' && p[n - 1] != '>' &&
                   p[n - 1] != ']') {
                n++;
            }
            return (struct text){p, n};
        }
    }
    return (struct text){"no marker", 9};
}

static int find_style(struct text t, enum chat_style *ret)
{
    if (has(t, "<|start_header_id|>") && has(t, "<|end_header_id|>") && has(t, "<|eot_id|>")) {
        *ret = CHAT_LLAMA3;
    } else if (has(t, "<start_of_turn>") && has(t, "<end_of_turn>")) {
        *ret = CHAT_GEMMA;
    } else if (has(t, "<|im_start|>") && has(t, "<|im_end|>") && !has(t, "<|im_sep|>")) {
        *ret = CHAT_CHATML;
    } else if (has(t, "<|user|>") && has(t, "<|assistant|>") && !has(t, "<|end|>") &&
               (has(t, "eos_token") || has(t, "</s>") || has(t, "<|endoftext|>"))) {
        *ret = CHAT_ZEPHYR;
    } else {
        return -ENOTSUP;
    }
    return 0;
}

static int find_marker(const struct tok *t, const char *text, int32_t *ret, struct error *reterr)
{
    *ret = tok_find_special(t, text);
    return *ret >= 0
               ? 0
               : error_set(
                     reterr, -ENOTSUP,
                     "the chat template uses %s, which is no token of the vocabulary; " WAY_OUT,
                     text);
}

static int find_markers(const struct tok *t, struct chat *c, struct error *reterr)
{
    static const char *const roles[] = {"<|system|>", "<|user|>", "<|assistant|>"};
    int r = 0;

    switch (c->style) {
    case CHAT_CHATML:
        r = find_marker(t, "<|im_start|>", &c->start, reterr);
        return r < 0 ? r : find_marker(t, "<|im_end|>", &c->end, reterr);
    case CHAT_LLAMA3:
        r = find_marker(t, "<|start_header_id|>", &c->start, reterr);
        r = r < 0 ? r : find_marker(t, "<|end_header_id|>", &c->mid, reterr);
        return r < 0 ? r : find_marker(t, "<|eot_id|>", &c->end, reterr);
    case CHAT_GEMMA:
        r = find_marker(t, "<start_of_turn>", &c->start, reterr);
        return r < 0 ? r : find_marker(t, "<end_of_turn>", &c->end, reterr);
    case CHAT_ZEPHYR:
        for (int i = 0; i < 3; i++) {
            c->role[i] = tok_find_special(t, roles[i]);
        }
        c->end = tok_eos(t);
        return c->end >= 0
                   ? 0
                   : error_set(reterr, -ENOTSUP,
                               "the chat template ends turns with EOS, which the vocabulary "
                               "lacks; " WAY_OUT);
    }
    return -ENOTSUP;
}

/* Is a message's text trimmed: `content` with at most "'] " after it, then the filter `trim`? */
static bool trims(struct text t)
{
    const char *end = t.ptr + t.len;
    const char *p = t.ptr;

    while ((p = memmem(p, (size_t)(end - p), "content", 7))) {
        p += 7;
        const char *q = p;

        while (q < end && strchr("'\"] |", *q) && *q) {
            q++;
        }
        if (end - q >= 4 && !memcmp(q, "trim", 4) && memchr(p, '|', (size_t)(q - p))) {
            return true;
        }
    }
    return false;
}

/* ---- the default system text --------------------------------------------------------------- */

/* Copies the literal's text; false when it is none: it ends (quote) or computes (braces) in
 * between. */
static bool unescape(struct text body, char quote, char *out, size_t *ret_n)
{
    size_t n = 0;

    for (size_t i = 0; i < body.len; i++) {
        char c = body.ptr[i];
        char next = i + 1 < body.len ? body.ptr[i + 1] : '\0';

        if ((quote && c == quote) || (c == '{' && (next == '{' || next == '%'))) {
            return false;
        }
        if (quote && c == '\\' && next) {
            c = next == 'n' ? '\n' : next == 't' ? '\t' : next == 'r' ? '\r' : next;
            i++;
        }
        out[n++] = c;
    }
    *ret_n = n;
    return true;
}

/* ChatML templates spell it out as "<|im_start|>system\nTEXT<|im_end|>" in one string. */
static void find_system(struct text t, struct chat *c)
{
    static const char opening[] = "<|im_start|>system";
    const char *end = t.ptr + t.len;
    const char *p = t.ptr;

    while (c->n_system == 0 && (p = memmem(p, (size_t)(end - p), opening, sizeof(opening) - 1))) {
        char quote = p > t.ptr && (p[-1] == '\'' || p[-1] == '"') ? p[-1] : '\0';
        const char *close;
        size_t n;

        p += sizeof(opening) - 1;
        if (end - p >= 2 && quote && p[0] == '\\' && p[1] == 'n') {
            p += 2;
        } else if (end - p >= 1 && *p == '\n') {
            p += 1;
        } else {
            continue;
        }
        close = memmem(p, (size_t)(end - p), "<|im_end|>", 10);
        if (!close) {
            break;
        }
        if (close - p > CHAT_MAX_SYSTEM) {
            continue; /* a program, not a literal, or longer than any model's */
        }
        if (unescape((struct text){p, (size_t)(close - p)}, quote, c->system, &n)) {
            c->n_system = (uint16_t)n;
        }
    }
}

int chat_detect(const struct tok *t, const char *text, size_t len, struct chat *ret,
                struct error *reterr)
{
    struct text all = {text, len};
    struct chat c = {.start = -1, .mid = -1, .end = -1, .role = {-1, -1, -1}};
    int r;

    if (find_style(all, &c.style) < 0) {
        struct text marker = first_marker(all);

        return error_set(reterr, -ENOTSUP,
                         "the model's chat template is of no known family: it uses %.*s (" KNOWN
                         "); " WAY_OUT,
                         (int)marker.len, marker.ptr);
    }
    r = find_markers(t, &c, reterr);
    if (r < 0) {
        return r;
    }
    c.trim = trims(all);
    c.bos = tok_bos(t) >= 0 && (tok_adds_bos(t) || has(all, "bos_token") ||
                                has(all, "<|begin_of_text|>") || has(all, "<bos>"));
    c.dated = c.style == CHAT_LLAMA3 && has(all, "Cutting Knowledge Date: December 2023") &&
              has(all, "26 Jul 2024");
    if (c.style == CHAT_CHATML) {
        find_system(all, &c);
    }
    *ret = c;
    return 0;
}

int chat_open(const struct tok *t, const struct gguf *g, struct chat *ret, struct error *reterr)
{
    struct gguf_str text;
    int r = gguf_get_str(g, "tokenizer.chat_template", &text, reterr);

    if (r == -ENOENT) {
        return error_set(reterr, -ENOTSUP, "the model has no chat template; " WAY_OUT);
    }
    return r < 0 ? r : chat_detect(t, text.ptr, text.len, ret, reterr);
}

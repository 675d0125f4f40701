/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss: an answer is messages,
 *
 *     <|start|>assistant to=functions.NAME<|channel|>commentary
 * <|constrain|>json<|message|>{...}<|call|>
 *
 * of which the prompt has begun the first. The header's channel says what the body is: analysis is
 * reasoning, everything else text, and a recipient (in the role's or the channel's part) makes it a
 * call. A header is a mark. "assistant" as a recipient is nobody. */

#include <string.h>

#include "engine/text/calls/calls_impl.h"

enum { MAX_HEADER = 512 };

static const char *recipient(const char *p, const char *end, size_t *ret_len)
{
    static const char to[] = " to=";
    static const char functions[] = "functions.";
    static const char nobody[] = "assistant";
    const char *from;

    p = memmem(p, (size_t)(end - p), to, sizeof(to) - 1);
    if (!p) {
        return NULL;
    }
    from = p += sizeof(to) - 1;
    while (p < end && *p != ' ' && *p != '<') {
        p++;
    }
    *ret_len = (size_t)(p - from);
    if (*ret_len == sizeof(nobody) - 1 && !memcmp(from, nobody, *ret_len)) {
        return NULL;
    }
    if (*ret_len > sizeof(functions) - 1 && !memcmp(from, functions, sizeof(functions) - 1)) {
        from += sizeof(functions) - 1;
        *ret_len -= sizeof(functions) - 1;
    }
    return from;
}

static bool has_channel(const struct calls *c, const char *name)
{
    static const char channel[] = "<|channel|>";
    size_t n = strlen(name);
    const char *p = NULL;

    for (const char *at = c->seg;
         (at = memmem(at, (size_t)(c->seg + c->n_seg - at), channel, sizeof(channel) - 1));) {
        p = at += sizeof(channel) - 1; /* the last one counts */
    }
    return p && (size_t)(c->seg + c->n_seg - p) >= n && !memcmp(p, name, n);
}

void harmony_begin(struct calls *c, const char *prompt_end, size_t len)
{
    static const char start[] = "<|start|>assistant";

    if (len >= sizeof(start) - 1 &&
        !memcmp(prompt_end + len - (sizeof(start) - 1), start, sizeof(start) - 1)) {
        c->state = IN_HEADER;
    }
}

/* An answer that has no header is text. */
bool harmony_may_be(const struct calls *c)
{
    static const char to[] = " to=";
    size_t n = c->n_seg < sizeof(to) - 1 ? c->n_seg : sizeof(to) - 1;

    return c->n_seg <= MAX_HEADER && (c->seg[0] == '<' || !memcmp(c->seg, to, n));
}

/* The header is whole: its body begins. */
static void begin_message(struct calls *c, const struct calls_marker *m)
{
    size_t len;
    bool analysis = has_channel(c, "analysis");

    if (!calls_gather(c, m->spelling, strlen(m->spelling))) {
        return;
    }
    if (c->has_tools && recipient(c->seg, c->seg + c->n_seg, &len)) {
        c->state = IN_CALL;
        c->body = c->n_seg;
    } else {
        calls_end_as_mark(c, analysis ? IN_REASONING : IN_TEXT);
    }
}

void harmony_mark(struct calls *c, const struct calls_marker *m)
{
    size_t len = strlen(m->spelling);

    if (c->state == IN_HEADER) {
        if (m->what == MARK_MESSAGE) {
            begin_message(c, m);
        } else if (calls_gather(c, m->spelling, len) && c->n_seg > MAX_HEADER) {
            c->broken = true;
            calls_end_as_text(c, IN_TEXT);
        }
        return;
    }
    if (c->state == IN_CALL) {
        calls_end_call(c, IN_TEXT);
        c->skip_space = false;
    }
    if (m->what == MARK_START || m->what == MARK_CHANNEL || m->what == MARK_CONSTRAIN) {
        c->state = IN_HEADER;
        (void)calls_gather(c, m->spelling, len);
    } else {
        calls_tell(c, CALLS_MARK, m->spelling, len);
        c->state = m->what == MARK_END ? IN_TEXT : c->state;
    }
}

bool harmony_read(struct calls *c, const char *text, size_t len)
{
    size_t name_len = 0;
    const char *name = recipient(c->seg, c->seg + c->body, &name_len);
    const char *p = calls_skip_space(text, text + len);

    if (!name || !calls_json_is_object(p, text + len)) {
        return false;
    }
    calls_write_name(c, name, name_len);
    calls_write(c, p, (size_t)(calls_json_value(p, text + len, CALLS_DEPTH) - p));
    calls_write_end(c);
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on their way out: names and arguments as JSON, gathered until all that stand behind one
 * marker are read, so that none is told of a text that breaks later. In `out` a call is its two
 * lengths, its name, its arguments. */

#include <stdio.h>
#include <string.h>

#include "engine/text/calls/calls_impl.h"

struct written {
    uint32_t name;
    uint32_t arguments;
};

static bool is_name_byte(char b)
{
    return (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || b == '_' ||
           b == '-' || b == '.' || b == ':' || b == '/';
}

void calls_write(struct calls *c, const char *text, size_t len)
{
    if (c->failed || len > sizeof(c->out) - c->n_out) {
        c->failed = true;
        return;
    }
    memcpy(c->out + c->n_out, text, len);
    c->n_out += len;
}

void calls_write_word(struct calls *c, const char *word)
{
    calls_write(c, word, strlen(word));
}

void calls_write_name(struct calls *c, const char *name, size_t len)
{
    struct written w = {.name = (uint32_t)len};

    if (len == 0 || len > CALLS_MAX_NAME || c->n_calls + c->n_written >= CALLS_MAX_CALLS) {
        c->failed = true;
        return;
    }
    for (size_t i = 0; i < len; i++) {
        if (!is_name_byte(name[i])) {
            c->failed = true;
            return;
        }
    }
    c->call_at = c->n_out;
    calls_write(c, (const char *)&w, sizeof(w));
    calls_write(c, name, len);
}

void calls_write_end(struct calls *c)
{
    struct written w;

    if (c->failed) {
        return;
    }
    memcpy(&w, c->out + c->call_at, sizeof(w));
    w.arguments = (uint32_t)(c->n_out - c->call_at - sizeof(w) - w.name);
    memcpy(c->out + c->call_at, &w, sizeof(w));
    c->n_written++;
}

void calls_tell_written(struct calls *c)
{
    const char *p = c->out;

    for (uint32_t i = 0; i < c->n_written; i++) {
        struct written w;

        memcpy(&w, p, sizeof(w));
        p += sizeof(w);
        calls_tell(c, CALLS_NAME, p, w.name);
        calls_tell(c, CALLS_ARGUMENTS, p + w.name, w.arguments);
        p += w.name + w.arguments;
    }
    c->n_calls += c->n_written;
}

void calls_write_string(struct calls *c, const char *text, size_t len)
{
    size_t from = 0;

    calls_write(c, "\"", 1);
    for (size_t i = 0; i < len; i++) {
        unsigned char b = (unsigned char)text[i];
        char escape[8];

        if (b >= 0x20 && b != '"' && b != '\\') {
            continue;
        }
        calls_write(c, text + from, i - from);
        from = i + 1;
        if (b == '"' || b == '\\') {
            (void)snprintf(escape, sizeof(escape), "\\%c", b);
        } else if (b == '\n' || b == '\t' || b == '\r') {
            (void)snprintf(escape, sizeof(escape), "\\%c", b == '\n' ? 'n' : b == '\t' ? 't' : 'r');
        } else {
            (void)snprintf(escape, sizeof(escape), "\\u%04x", b);
        }
        calls_write_word(c, escape);
    }
    calls_write(c, text + from, len - from);
    calls_write(c, "\"", 1);
}

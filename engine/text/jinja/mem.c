/* SPDX-License-Identifier: Apache-2.0 */
/* The arena and the way out. Chunks double up to a megabyte, so a short conversation costs one
 * malloc; their sum is held against the limit before each. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/jinja/value.h"

enum { ALIGN = 16, FIRST_CHUNK = 1 << 14, LARGEST_CHUNK = 1 << 20 };

struct jchunk {
    struct jchunk *next;
    size_t used;
    size_t size;
    _Alignas(ALIGN) char data[];
};

static struct jchunk *chunk_add(struct jbase *b, size_t n)
{
    size_t size = b->chunks ? 2 * b->chunks->size : FIRST_CHUNK;
    struct jchunk *c;

    size = size > LARGEST_CHUNK ? LARGEST_CHUNK : size;
    size = size < n ? n : size;
    if (size > b->limit - b->held && n <= b->limit - b->held) {
        size = b->limit - b->held;
    }
    if (size > b->limit - b->held) {
        jfail(b, -E2BIG, "it needs more than %zu bytes of memory", b->limit);
    }
    c = malloc(sizeof(*c) + size);
    if (!c) {
        jfail(b, -ENOMEM, "no memory");
    }
    *c = (struct jchunk){.next = b->chunks, .size = size};
    b->chunks = c;
    b->held += size;
    return c;
}

void *jalloc(struct jbase *b, size_t n)
{
    struct jchunk *c = b->chunks;
    void *p;

    if (n > b->limit) {
        jfail(b, -E2BIG, "it needs more than %zu bytes of memory", b->limit);
    }
    n = (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (!c || n > c->size - c->used) {
        c = chunk_add(b, n);
    }
    p = c->data + c->used;
    c->used += n;
    return memset(p, 0, n);
}

void *jalloc_array(struct jbase *b, size_t n, size_t size)
{
    if (size && n > SIZE_MAX / 2 / size) {
        jfail(b, -E2BIG, "it needs more than %zu bytes of memory", b->limit);
    }
    return jalloc(b, n * size);
}

void *jgrow(struct jbase *b, void *p, size_t old, size_t n)
{
    struct jchunk *c = b->chunks;
    size_t had = (old + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    size_t want = n < b->limit ? (n + ALIGN - 1) & ~(size_t)(ALIGN - 1) : SIZE_MAX;
    void *q;

    if (p && c && (char *)p + had == c->data + c->used && want > had &&
        want - had <= c->size - c->used) {
        memset(c->data + c->used, 0, want - had);
        c->used += want - had;
        return p;
    }
    q = jalloc(b, n);
    if (old) {
        memcpy(q, p, old);
    }
    return q;
}

void jmem_finish(struct jbase *b)
{
    while (b->chunks) {
        struct jchunk *c = b->chunks;

        b->chunks = c->next;
        free(c);
    }
}

void jfail(struct jbase *b, int code, const char *fmt, ...)
{
    char text[sizeof(((struct error *)0)->text)];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    b->code = error_set(b->reterr, code, "chat template, line %u: %s", b->line, text);
    longjmp(b->out, 1);
}

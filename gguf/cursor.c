/* SPDX-License-Identifier: Apache-2.0 */
/* Taking bytes from a file that is not trusted: nothing passes the end, and everything that can be
 * wrong ends in cursor_bad(), which says where it happened. */

#include "gguf/cursor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/utf8.h"

int cursor_bad(struct cursor *c, const char *fmt, ...)
{
    char text[160];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return error_set(c->err, -EBADMSG, "%s: %s", c->where, text);
}

int cursor_no_memory(struct cursor *c, const char *what)
{
    return error_set(c->err, -ENOMEM, "%s: no memory for %s", c->where, what);
}

struct gguf_shown gguf_show(struct gguf_str s)
{
    struct gguf_shown r;
    size_t n = s.len < 63 ? s.len : 63;

    for (size_t i = 0; i < n; i++) {
        r.text[i] = (char)(s.ptr[i] >= 32 && s.ptr[i] < 127 ? s.ptr[i] : '?');
    }
    memcpy(r.text + n, s.len > n ? "..." : "", s.len > n ? 4 : 1);
    return r;
}

void cursor_at(struct cursor *c, const char *kind, struct gguf_str name)
{
    (void)snprintf(c->where, sizeof(c->where), "%s '%s'", kind, gguf_show(name).text);
}

int cursor_take(struct cursor *c, uint64_t n, const char *what, const uint8_t **ret)
{
    if (!checked_range(c->pos, n, c->g->size)) {
        return cursor_bad(c, "the file ends inside %s (%" PRIu64 " bytes wanted, %" PRIu64 " left)",
                          what, n, c->g->size - c->pos);
    }
    *ret = c->g->data + c->pos;
    c->pos += n;
    return 0;
}

int cursor_take_u32(struct cursor *c, const char *what, uint32_t *ret)
{
    const uint8_t *p = NULL;
    int r = cursor_take(c, sizeof(*ret), what, &p);

    *ret = 0;
    if (r == 0) {
        memcpy(ret, p, sizeof(*ret));
    }
    return r;
}

int cursor_take_u64(struct cursor *c, const char *what, uint64_t *ret)
{
    const uint8_t *p = NULL;
    int r = cursor_take(c, sizeof(*ret), what, &p);

    *ret = 0;
    if (r == 0) {
        memcpy(ret, p, sizeof(*ret));
    }
    return r;
}

int cursor_take_name(struct cursor *c, uint64_t max, struct gguf_str *ret)
{
    const uint8_t *p = NULL;
    uint64_t len;
    int r = cursor_take_u64(c, "the length of a name", &len);

    if (r < 0) {
        return r;
    }
    if (len == 0 || len > max) {
        return cursor_bad(c, "its name has %" PRIu64 " bytes, not 1..%" PRIu64, len, max);
    }
    r = cursor_take(c, len, "a name", &p);
    if (r < 0) {
        return r;
    }
    *ret = (struct gguf_str){(const char *)p, (size_t)len};
    return utf8_valid(ret->ptr, ret->len) ? 0 : cursor_bad(c, "its name is not valid UTF-8");
}

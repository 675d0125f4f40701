/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gateway/trim.h"

#include <malloc.h>

#include "base/hot.h"

static const int64_t ns_a_ms = 1000000;

HOT void trim_wish(struct trim *t, int64_t now_ns)
{
    if (t->next_ns == 0) {
        t->next_ns = now_ns + TRIM_AFTER_MS * ns_a_ms;
    }
}

HOT void trim_due(struct trim *t, int64_t now_ns)
{
    if (t->next_ns != 0 && now_ns >= t->next_ns) {
        t->next_ns = 0;
        (void)malloc_trim(0); /* all arenas, and whole pages amid others */
    }
}

HOT long trim_timeout_ms(const struct trim *t, int64_t now_ns)
{
    int64_t left = t->next_ns - now_ns;

    return t->next_ns == 0 ? -1 : left <= 0 ? 0 : (long)((left + ns_a_ms - 1) / ns_a_ms);
}

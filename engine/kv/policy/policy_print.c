/* SPDX-License-Identifier: Apache-2.0 */
/* Policies as text. Printing walks the words that the parser walks: whatever can be said is
 * printed, so a changed default never changes the meaning of a saved text. */

#include "engine/kv/policy/policy.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/kv/policy/word.h"

struct printer {
    char *buf;
    size_t size;
    size_t used;
};

static void put(struct printer *o, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void put(struct printer *o, const char *fmt, ...)
{
    va_list ap;

    if (o->used + 1 >= o->size) {
        return;
    }
    va_start(ap, fmt);
    int n = vsnprintf(o->buf + o->used, o->size - o->used, fmt, ap);
    va_end(ap);
    o->used += n > 0 ? (size_t)n : 0;
}

/* The fewest digits that parse to the same number. */
static void put_float(struct printer *o, float f)
{
    char text[32];

    for (int digits = 1; digits <= 9; digits++) {
        double back;

        (void)snprintf(text, sizeof(text), "%.*g", digits, (double)f);
        const char *end = policy_read_float(text, &back);

        if (end && !*end && (float)back == f) {
            break;
        }
    }
    put(o, "%s", text);
}

static void put_budget(struct printer *o, const struct policy *p)
{
    put(o, "%d%s", p->budget,
        p->budget_kind == POLICY_SLOTS     ? ""
        : p->budget_kind == POLICY_PERCENT ? "%"
                                           : "%ctx");
}

static void put_value(struct printer *o, const struct word_option *row, const struct policy *p)
{
    const uint8_t *field = (const uint8_t *)p + row->offset;
    int32_t i;
    float f;

    memcpy(&i, field, sizeof(i));
    memcpy(&f, field, sizeof(f));
    switch (row->type) {
    case WORD_INT:
        put(o, "%d", i);
        break;
    case WORD_PERCENT:
        put(o, "%d%%", i);
        break;
    case WORD_FLOAT:
        put_float(o, f);
        break;
    case WORD_TAU:
        put_float(o, p->tau0);
        put(o, "..");
        put_float(o, p->tau1);
        break;
    case WORD_CHANCE:
        if (p->exit_draft) {
            put(o, "draft");
        } else {
            put_float(o, p->exit);
        }
        break;
    case WORD_BUDGET:
        put_budget(o, p);
        break;
    case WORD_POOL:
        if (i == POLICY_POOL_SLOTS) {
            put_budget(o, p);
            break;
        }
        /* fallthrough */
    case WORD_VALUE:
        for (const struct word_value *v = row->values; v->name; v++) {
            if (v->value == i) {
                put(o, "%s", v->name);
            }
        }
        break;
    }
}

static bool is_default(const struct word_option *row, const struct policy *p)
{
    return memcmp((const uint8_t *)p + row->offset, (const uint8_t *)&policy_defaults + row->offset,
                  sizeof(int32_t)) == 0;
}

static void put_word(struct printer *o, const struct policy_word *w, const struct policy *p)
{
    const char *before = w->colon ? ":" : ",";

    put(o, "%s%s", o->used ? "+" : "", w->name);
    if (w->amount) {
        put(o, ":");
        put_value(o, w->amount, p);
    }
    for (int i = 0; w->options && w->options[i]; i++) {
        if (w->options[i]->quiet && is_default(w->options[i], p)) {
            continue;
        }
        put(o, "%s%s=", before, w->options[i]->name);
        put_value(o, w->options[i], p);
        before = ",";
    }
}

void policy_print(const struct policy *p, char *buf, size_t size)
{
    struct printer o = {.buf = buf, .size = size};

    if (size) {
        buf[0] = 0;
    }
    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        const struct policy_word *w = policy_word_of(p, (enum word_axis)axis);

        if (w) {
            put_word(&o, w, p);
        }
    }
}

/* As if K and V of all slots lay on the device. */
static void print_at_home(const struct policy *p, char *buf, size_t size)
{
    struct policy home = *p;

    if (policy_predicts(p) && (p->pool != POLICY_POOL_SLOTS || policy_spills(p))) {
        home.pool = policy_defaults.pool;
        home.full = policy_defaults.full;
        home.victim = policy_defaults.victim;
        home.exempt = policy_defaults.exempt;
    }
    policy_print(&home, buf, size);
}

bool policy_same_saved(const struct policy *p, const char *text)
{
    char a[KV_TEXT_MAX];
    char b[KV_TEXT_MAX];
    struct policy saved;

    if (policy_parse_saved(text, &saved, NULL)) {
        return false;
    }
    print_at_home(p, a, sizeof(a));
    print_at_home(&saved, b, sizeof(b));
    return strcmp(a, b) == 0;
}

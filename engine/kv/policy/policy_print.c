/* SPDX-License-Identifier: Apache-2.0 */
/* Policies as text. Printing walks the tables that the parser walks: whatever can be said is
 * printed, so a changed default never changes the meaning of a saved text. */

#include "engine/kv/policy/policy.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/kv/policy/policy_words.h"

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

static void put_option(struct printer *o, const struct policy_option *row, const char *before,
                       const struct policy *p)
{
    const uint8_t *field = (const uint8_t *)p + row->offset;
    int32_t i;
    float f;

    memcpy(&i, field, sizeof(i));
    memcpy(&f, field, sizeof(f));
    put(o, "%s%s=", before, row->name);
    switch (row->type) {
    case FIELD_INT:
        put(o, "%d", i);
        break;
    case FIELD_PERCENT:
        put(o, "%d%%", i);
        break;
    case FIELD_FLOAT:
        put_float(o, f);
        break;
    case FIELD_TAU:
        put_float(o, p->tau0);
        put(o, "..");
        put_float(o, p->tau1);
        break;
    case FIELD_POOL:
        if (i == POLICY_POOL_SLOTS) {
            put_budget(o, p);
            break;
        }
        /* fallthrough */
    case FIELD_VALUE:
        for (const struct policy_value *v = row->values; v->name; v++) {
            if (v->value == i) {
                put(o, "%s", v->name);
            }
        }
        break;
    }
}

/* The options of one word, `first` before the first of them. */
static void put_options(struct printer *o, int bit, const char *first, const struct policy *p)
{
    for (int i = 0; i < policy_n_options; i++) {
        if (policy_options[i].words & bit) {
            put_option(o, &policy_options[i], first, p);
            first = ",";
        }
    }
}

void policy_print(const struct policy *p, char *buf, size_t size)
{
    struct printer o = {.buf = buf, .size = size};
    int32_t place = p->place >= POLICY_FIFO ? POLICY_FULL : (int32_t)p->place; /* a pool's rule */

    if (size) {
        buf[0] = 0;
    }
    for (int i = 0; i < policy_n_words; i++) {
        if (policy_words[i].axis == AXIS_PRECISION && policy_words[i].k == p->k_type &&
            policy_words[i].v == p->v_type) {
            put(&o, "%s", policy_words[i].name);
        }
    }
    if (p->place != POLICY_FULL) {
        put(&o, "+sinks:%d", p->sinks);
    }
    for (int i = 0; i < policy_n_words; i++) {
        if (policy_words[i].axis != AXIS_PLACE || policy_words[i].place != place) {
            continue;
        }
        put(&o, "+%s", policy_words[i].name);
        if (policy_words[i].amount) {
            put(&o, ":");
            put_budget(&o, p);
        }
    }
    put_options(&o, POLICY_BIT(place), ",", p);
    if (p->select == POLICY_SPARQ) {
        put(&o, "+sparq");
        put_options(&o, POLICY_SELECT_BIT(POLICY_SPARQ), ":", p);
    } else if (p->select == POLICY_TOPV) {
        put(&o, "+topv:%d", p->top_k);
        put_options(&o, POLICY_SELECT_BIT(POLICY_TOPV), ",", p);
    } else if (p->select == POLICY_INFINIGEN) {
        put(&o, "+infinigen");
        put_options(&o, POLICY_SELECT_BIT(POLICY_INFINIGEN), ":", p);
    }
    if (p->exit > 0) {
        put(&o, "+exit:");
        put_float(&o, p->exit);
    } else if (p->exit_draft) {
        put(&o, "+exit:draft");
    }
}

/* As if K and V of all slots lay on the device. */
static void print_at_home(const struct policy *p, char *buf, size_t size)
{
    struct policy home = *p;

    if (p->select == POLICY_INFINIGEN && (p->pool != POLICY_POOL_SLOTS || policy_spills(p))) {
        home.pool = policy_defaults.pool;
        home.full = policy_defaults.full;
        home.victim = policy_defaults.victim;
        home.exempt = policy_defaults.exempt;
    }
    policy_print(&home, buf, size);
}

bool policy_same_saved(const struct policy *p, const char *text)
{
    char a[POLICY_TEXT_MAX];
    char b[POLICY_TEXT_MAX];
    struct policy saved;

    if (policy_parse(text, &saved, NULL)) {
        return false;
    }
    print_at_home(p, a, sizeof(a));
    print_at_home(&saved, b, sizeof(b));
    return strcmp(a, b) == 0;
}

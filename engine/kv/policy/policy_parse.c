/* SPDX-License-Identifier: Apache-2.0 */
/* The parser of policy texts.
 *
 * It walks the text once, by the words of registry.c, and remembers where it is, so that every
 * refusal says at which character, what was found and what may stand there. */

#include "engine/kv/policy/policy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/word.h"
#include "engine/kv/policy/word.h"

struct parser {
    const char *text;
    const char *at;
    const struct policy_word *said[AXIS_COUNT]; /* the words of a policy, */
    const char *said_at[AXIS_COUNT];            /* and where they stand */
    struct error *reterr;
};

static int fault(const struct parser *p, const char *what)
{
    return error_set(p->reterr, -EINVAL, "policy, character %d: %s", (int)(p->at - p->text) + 1,
                     what);
}

static bool accept(struct parser *p, char c)
{
    if (*p->at != c) {
        return false;
    }
    p->at++;
    return true;
}

static size_t name_len(const char *s)
{
    return strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_-");
}

static bool name_is(const char *s, size_t len, const char *name)
{
    return strlen(name) == len && memcmp(s, name, len) == 0;
}

static int fault_range(const struct parser *p, const char *name, double min, double max)
{
    char what[96];

    (void)snprintf(what, sizeof(what), "%s takes a number from %.9g to %.9g", name, min, max);
    return fault(p, what);
}

static int parse_int(struct parser *p, const char *name, double min, double max, int32_t *ret)
{
    size_t n = strspn(p->at, "0123456789");
    double v = 0;

    for (size_t i = 0; i < n && i < 16; i++) {
        v = v * 10 + (p->at[i] - '0');
    }
    if (n == 0 || n > 12 || v < min || v > max) {
        return fault_range(p, name, min, max);
    }
    p->at += n;
    *ret = (int32_t)v;
    return 0;
}

const char *policy_read_float(const char *s, double *ret)
{
    double v = 0;
    double scale = 1;
    int digits = 0;

    for (; *s >= '0' && *s <= '9' && digits < 12; s++, digits++) {
        v = v * 10 + (*s - '0');
    }
    if (*s == '.' && s[1] >= '0' && s[1] <= '9') { /* not the ".." of a range */
        for (s++; *s >= '0' && *s <= '9' && digits < 12; s++, digits++) {
            scale /= 10;
            v += (*s - '0') * scale;
        }
    }
    *ret = v;
    return digits ? s : NULL;
}

static int parse_float(struct parser *p, const char *name, double min, double max, float *ret)
{
    double v;
    const char *end = policy_read_float(p->at, &v);

    if (!end || v < min || v > max) {
        return fault_range(p, name, min, max);
    }
    p->at = end;
    *ret = (float)v;
    return 0;
}

/* A probability, or "draft". */
static int parse_chance(struct parser *p, const struct word_option *o, struct policy *pol)
{
    if (name_len(p->at) == 5 && strncmp(p->at, "draft", 5) == 0) {
        p->at += 5;
        pol->exit_draft = true;
        return 0;
    }
    struct error numbers_alone = {0};
    struct parser number = *p;

    number.reterr = &numbers_alone;
    if (parse_float(&number, o->name, o->min, o->max, &pol->exit)) {
        char what[96];

        (void)snprintf(what, sizeof(what), "%s takes a number from %.9g to %.9g, or \"draft\"",
                       o->name, o->min, o->max);
        return fault(p, what);
    }
    p->at = number.at;
    return 0;
}

static int parse_value(struct parser *p, const struct word_option *o, int32_t *ret)
{
    size_t len = name_len(p->at);
    char what[160];
    size_t used;

    for (const struct word_value *v = o->values; v->name; v++) {
        if (name_is(p->at, len, v->name)) {
            p->at += len;
            *ret = v->value;
            return 0;
        }
    }
    used = (size_t)snprintf(what, sizeof(what), "%s is one of", o->name);
    for (const struct word_value *v = o->values; v->name && used < sizeof(what); v++) {
        used += (size_t)snprintf(what + used, sizeof(what) - used, " %s", v->name);
    }
    return fault(p, what);
}

static int parse_budget(struct parser *p, struct policy *pol)
{
    bool percent = p->at[strspn(p->at, "0123456789")] == '%';
    int r = parse_int(p, percent ? "a budget in percent" : "a budget", 2, percent ? 100 : 1 << 24,
                      &pol->budget);

    if (r) {
        return r;
    }
    pol->budget_kind = POLICY_SLOTS;
    if (accept(p, '%')) {
        pol->budget_kind = POLICY_PERCENT;
        if (strncmp(p->at, "ctx", 3) == 0) {
            p->at += 3;
            pol->budget_kind = POLICY_PERCENT_CTX;
        }
    }
    return 0;
}

/* Where all slots lie, or how many there are. */
static int parse_pool(struct parser *p, const struct word_option *o, struct policy *pol)
{
    if (*p->at >= '0' && *p->at <= '9') {
        pol->pool = POLICY_POOL_SLOTS;
        return parse_budget(p, pol);
    }
    return parse_value(p, o, &pol->pool);
}

static int parse_option(struct parser *p, const struct word_option *o, struct policy *pol)
{
    uint8_t *field = (uint8_t *)pol + o->offset;
    int32_t i = 0;
    float f = 0;
    int r;

    switch (o->type) {
    case WORD_INT:
    case WORD_PERCENT:
        r = parse_int(p, o->name, o->min, o->max, &i);
        if (!r && o->type == WORD_PERCENT && !accept(p, '%')) {
            r = fault(p, "'%' must follow");
        }
        memcpy(field, &i, sizeof(i));
        return r;
    case WORD_VALUE:
        r = parse_value(p, o, &i);
        memcpy(field, &i, sizeof(i));
        return r;
    case WORD_FLOAT:
        r = parse_float(p, o->name, o->min, o->max, &f);
        memcpy(field, &f, sizeof(f));
        return r;
    case WORD_BUDGET:
        return parse_budget(p, pol);
    case WORD_POOL:
        return parse_pool(p, o, pol);
    case WORD_CHANCE:
        return parse_chance(p, o, pol);
    case WORD_TAU:
        break;
    }
    r = parse_float(p, o->name, o->min, o->max, &pol->tau0);
    pol->tau1 = pol->tau0;
    if (!r && strncmp(p->at, "..", 2) == 0) {
        p->at += 2;
        r = parse_float(p, o->name, o->min, o->max, &pol->tau1);
    }
    return r;
}

static const char *nearest_word(const char *s, size_t len)
{
    const char *nearest = NULL;
    size_t best = word_far(len);

    for (int i = 0; i < policy_n_words(); i++) {
        const char *name = policy_word_at(i)->name;
        size_t d = word_distance(s, len, name, strlen(name));

        if (d < best) {
            best = d;
            nearest = name;
        }
    }
    return len > 1 ? nearest : NULL;
}

static const char *nearest_option(const struct policy_word *w, const char *s, size_t len)
{
    const char *nearest = NULL;
    size_t best = word_far(len);

    for (int i = 0; w->options && w->options[i]; i++) {
        size_t d = word_distance(s, len, w->options[i]->name, strlen(w->options[i]->name));

        if (d < best) {
            best = d;
            nearest = w->options[i]->name;
        }
    }
    return len > 1 ? nearest : NULL;
}

static const struct word_option *find_option(const struct policy_word *w, const char *s, size_t len)
{
    for (int i = 0; w->options && w->options[i]; i++) {
        if (name_is(s, len, w->options[i]->name)) {
            return w->options[i];
        }
    }
    return NULL;
}

/* A word that stands where an option or its value should. */
static int fault_word(const struct parser *p, const struct policy_word *w,
                      const struct word_option *o)
{
    size_t len = name_len(p->at);
    char what[160];

    (void)snprintf(what, sizeof(what),
                   "'%.*s' is a word of its own, so '+' must stand before it%s%s%s", (int)len,
                   p->at, o ? "; the option of " : "", o ? w->name : "",
                   o ? " has '=' and a value" : "");
    return fault(p, what);
}

/* An option that the word does not have. */
static int unknown_option(const struct parser *p, const struct policy_word *w)
{
    const char *near = nearest_option(w, p->at, name_len(p->at));
    char what[200];
    size_t used = (size_t)snprintf(what, sizeof(what), "%s%s%s%s takes the options",
                                   near ? "did you mean '" : "", near ? near : "",
                                   near ? "'? " : "", w->name);

    for (int i = 0; w->options && w->options[i] && used < sizeof(what); i++) {
        used += (size_t)snprintf(what + used, sizeof(what) - used, " %s", w->options[i]->name);
    }
    if (!w->options) {
        (void)snprintf(what, sizeof(what), "%s takes no options", w->name);
    }
    return fault(p, what);
}

/* `more`: the first option's comma has been read. */
static int parse_options(struct parser *p, const struct policy_word *w, bool more,
                         struct policy *pol)
{
    for (; more || accept(p, ','); more = false) {
        size_t len = name_len(p->at);
        const struct word_option *o = find_option(w, p->at, len);

        if (policy_word_find(p->at, len) && p->at[len] != '=') {
            return fault_word(p, w, o);
        }
        if (!o) {
            return unknown_option(p, w);
        }
        p->at += len;
        if (!accept(p, '=')) {
            return fault(p, "'=' and a value must follow");
        }
        int r = parse_option(p, o, pol);

        if (r) {
            return r;
        }
    }
    return 0;
}

static int unknown_word(const struct parser *p)
{
    size_t len = name_len(p->at);
    const char *near = nearest_word(p->at, len);
    char what[160] = "the words are:"; /* with all words whole in a client's message */
    size_t used = strlen(what);

    if (near) {
        (void)snprintf(what, sizeof(what), "unknown word '%.*s'; did you mean '%s'?",
                       len < 40 ? (int)len : 40, p->at, near);
        return fault(p, what);
    }

    for (int i = 0; i < policy_n_words() && used < sizeof(what); i++) {
        used += (size_t)snprintf(what + used, sizeof(what) - used, " %s", policy_word_at(i)->name);
    }
    return fault(p, what);
}

static const char *const second[AXIS_COUNT] = {
    [AXIS_PRECISION] = "a second word of precision",
    [AXIS_SINKS] = "a second \"sinks\"",
    [AXIS_PLACE] = "a second word for which tokens stay",
    [AXIS_SELECT] = "a second word for which tokens are read",
    [AXIS_EXIT] = "a second \"exit\"",
};

static int parse_amount(struct parser *p, const struct policy_word *w, struct policy *pol)
{
    char what[96];

    if (accept(p, ':')) {
        return parse_option(p, w->amount, pol);
    }
    (void)snprintf(what, sizeof(what), "':' and %s", w->amount_says);
    return fault(p, what);
}

static int parse_word(struct parser *p, struct policy *pol)
{
    size_t len = name_len(p->at);
    const struct policy_word *w = policy_word_find(p->at, len);

    if (!w) {
        return unknown_word(p);
    }
    if (p->said[w->axis]) {
        return fault(p, second[w->axis]);
    }
    p->said[w->axis] = w;
    p->said_at[w->axis] = p->at;
    p->at += len;
    if (w->axis == AXIS_PRECISION) {
        pol->k_type = w->k;
        pol->v_type = w->v;
    }
    pol->place = w->place ? w->place : pol->place;
    pol->select = w->select ? w->select : pol->select;

    int r = w->amount ? parse_amount(p, w, pol) : 0;
    bool more = !r && w->colon && accept(p, ':');

    return r ? r : parse_options(p, w, more, pol);
}

static int parse_policy(struct parser *p, struct policy *ret)
{
    struct policy pol = policy_defaults;
    enum word_axis at = AXIS_COUNT;
    char what[200];
    int r;

    memset(p->said, 0, sizeof(p->said));
    do {
        r = parse_word(p, &pol);
    } while (!r && accept(p, '+'));
    if (r) {
        return r;
    }
    if (policy_check_rules(&pol, p->said, &at, what, sizeof(what))) {
        bool read = at == AXIS_SELECT || at == AXIS_EXIT; /* else a sum of words, said at the end */

        p->at = read ? p->said_at[at] : p->at;
        return fault(p, what);
    }
    policy_settle(&pol);
    *ret = pol;
    return 0;
}

int policy_parse(const char *text, struct policy *ret, struct error *reterr)
{
    struct parser p = {.text = text ? text : "", .reterr = reterr};
    struct policy pol = policy_defaults;

    p.at = p.text;
    policy_settle(&pol);
    int r = *p.text ? parse_policy(&p, &pol) : 0;

    if (!r && *p.at) {
        r = fault(&p, "'+', ',' or the end must stand here");
    }
    if (!r) {
        *ret = pol;
    }
    return r;
}

int policy_parse_saved(const char *text, struct policy *ret, struct error *reterr)
{
    struct policy pol;
    int r = policy_parse(text, &pol, reterr);

    if (r) {
        return r;
    }
    if (text && !strstr(text, ",center=")) {
        pol.center = POLICY_CENTER_OFF;
    }
    if (text && !strstr(text, ",rot=")) {
        pol.rot = POLICY_ROT_OFF;
    }
    *ret = pol;
    return 0;
}

int policy_parse_mix(const char *text, struct policy_mix *ret, struct error *reterr)
{
    struct parser p = {.text = text && *text ? text : "full", .reterr = reterr};
    struct policy_mix mix = {0};
    int32_t sum = 0;
    int r;

    p.at = p.text;
    do {
        if (mix.n == KV_MAX_MIX) {
            return fault(&p, "at most 4 policies share a cache");
        }
        r = parse_policy(&p, &mix.part[mix.n].policy);
        mix.part[mix.n].share = 100;
        if (!r && accept(&p, '=')) {
            r = parse_int(&p, "a share", 1, 100, &mix.part[mix.n].share);
            if (!r && !accept(&p, '%')) {
                r = fault(&p, "'%' must follow");
            }
        }
        if (r) {
            return r;
        }
        sum += mix.part[mix.n++].share;
    } while (accept(&p, ';'));
    if (*p.at) {
        return fault(&p, "'+', ',', '=', ';' or the end must stand here");
    }
    if (sum != 100) {
        return fault(&p, "the shares of all policies must sum to 100%");
    }
    *ret = mix;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The parser of policy texts.
 *
 * It walks the text once, by the tables of policy_words.c, and remembers where it is, so that every
 * refusal says at which character, what was found and what may stand there. */

#include "engine/kv/policy/policy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/word.h"
#include "engine/kv/policy/policy_words.h"

struct parser {
    const char *text;
    const char *at;
    const char *select; /* where the word of selection stands, or NULL */
    const char *exit;   /* and that of early exit */
    struct error *reterr;
};

/* The bit by which options know a word. */
static int word_bit(const struct policy_word *w)
{
    return w->axis == AXIS_PLACE    ? POLICY_BIT(w->place)
           : w->axis == AXIS_SELECT ? POLICY_SELECT_BIT(w->place)
                                    : 0;
}

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
static int parse_exit(struct parser *p, struct policy *pol)
{
    if (name_len(p->at) == 5 && strncmp(p->at, "draft", 5) == 0) {
        p->at += 5;
        pol->exit_draft = true;
        return 0;
    }
    struct error numbers_alone = {0};
    struct parser number = *p;

    number.reterr = &numbers_alone;
    if (parse_float(&number, "exit", 0.01, 1, &pol->exit)) {
        return fault(p, "exit takes a number from 0.01 to 1, or \"draft\"");
    }
    p->at = number.at;
    return 0;
}

static int parse_value(struct parser *p, const struct policy_option *o, int32_t *ret)
{
    size_t len = name_len(p->at);
    char what[160];
    size_t used;

    for (const struct policy_value *v = o->values; v->name; v++) {
        if (name_is(p->at, len, v->name)) {
            p->at += len;
            *ret = v->value;
            return 0;
        }
    }
    used = (size_t)snprintf(what, sizeof(what), "%s is one of", o->name);
    for (const struct policy_value *v = o->values; v->name && used < sizeof(what); v++) {
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
static int parse_pool(struct parser *p, const struct policy_option *o, struct policy *pol)
{
    if (*p->at >= '0' && *p->at <= '9') {
        pol->pool = POLICY_POOL_SLOTS;
        return parse_budget(p, pol);
    }
    return parse_value(p, o, &pol->pool);
}

static int parse_option(struct parser *p, const struct policy_option *o, struct policy *pol)
{
    uint8_t *field = (uint8_t *)pol + o->offset;
    int32_t i = 0;
    float f = 0;
    int r;

    switch (o->type) {
    case FIELD_INT:
    case FIELD_PERCENT:
        r = parse_int(p, o->name, o->min, o->max, &i);
        if (!r && o->type == FIELD_PERCENT && !accept(p, '%')) {
            r = fault(p, "'%' must follow");
        }
        memcpy(field, &i, sizeof(i));
        return r;
    case FIELD_VALUE:
        r = parse_value(p, o, &i);
        memcpy(field, &i, sizeof(i));
        return r;
    case FIELD_FLOAT:
        r = parse_float(p, o->name, o->min, o->max, &f);
        memcpy(field, &f, sizeof(f));
        return r;
    case FIELD_POOL:
        return parse_pool(p, o, pol);
    case FIELD_TAU:
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

    for (int i = 0; i < policy_n_words; i++) {
        size_t d = word_distance(s, len, policy_words[i].name, strlen(policy_words[i].name));

        if (d < best) {
            best = d;
            nearest = policy_words[i].name;
        }
    }
    return len > 1 ? nearest : NULL;
}

static const char *nearest_option(const struct policy_word *w, const char *s, size_t len)
{
    const char *nearest = NULL;
    size_t best = word_far(len);

    for (int i = 0; i < policy_n_options; i++) {
        size_t d = word_distance(s, len, policy_options[i].name, strlen(policy_options[i].name));

        if ((policy_options[i].words & word_bit(w)) && d < best) {
            best = d;
            nearest = policy_options[i].name;
        }
    }
    return len > 1 ? nearest : NULL;
}

static const struct policy_word *find_word(const char *s, size_t len)
{
    for (int i = 0; i < policy_n_words; i++) {
        if (name_is(s, len, policy_words[i].name)) {
            return &policy_words[i];
        }
    }
    return NULL;
}

/* A word that stands where an option or its value should. */
static int fault_word(const struct parser *p, const struct policy_word *w,
                      const struct policy_option *o)
{
    size_t len = name_len(p->at);
    char what[160];

    (void)snprintf(what, sizeof(what),
                   "'%.*s' is a word of its own, so '+' must stand before it%s%s%s", (int)len,
                   p->at, o ? "; the option of " : "", o ? w->name : "",
                   o ? " has '=' and a value" : "");
    return fault(p, what);
}

/* `more`: the first option's comma has been read. */
static int parse_options(struct parser *p, const struct policy_word *w, bool more,
                         struct policy *pol)
{
    for (; more || accept(p, ','); more = false) {
        size_t len = name_len(p->at);
        const struct policy_option *o = NULL;
        char what[200];
        size_t used;

        for (int i = 0; i < policy_n_options; i++) {
            if (name_is(p->at, len, policy_options[i].name) &&
                (policy_options[i].words & word_bit(w))) {
                o = &policy_options[i];
            }
        }
        if (find_word(p->at, len) && p->at[len] != '=') {
            return fault_word(p, w, o);
        }
        if (!o) {
            const char *near = nearest_option(w, p->at, len);

            used = (size_t)snprintf(what, sizeof(what), "%s%s%s%s takes the options",
                                    near ? "did you mean '" : "", near ? near : "",
                                    near ? "'? " : "", w->name);
            for (int i = 0; i < policy_n_options && used < sizeof(what); i++) {
                if (policy_options[i].words & word_bit(w)) {
                    used += (size_t)snprintf(what + used, sizeof(what) - used, " %s",
                                             policy_options[i].name);
                }
            }
            if (word_bit(w) == 0) {
                (void)snprintf(what, sizeof(what), "%s takes no options", w->name);
            }
            return fault(p, what);
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
    char what[200] = "a policy word must stand here, one of";
    size_t used = strlen(what);

    if (near) {
        (void)snprintf(what, sizeof(what), "unknown word '%.*s'; did you mean '%s'?",
                       len < 40 ? (int)len : 40, p->at, near);
        return fault(p, what);
    }

    for (int i = 0; i < policy_n_words && used < sizeof(what); i++) {
        used += (size_t)snprintf(what + used, sizeof(what) - used, " %s", policy_words[i].name);
    }
    return fault(p, what);
}

static int parse_word(struct parser *p, struct policy *pol, bool seen[AXIS_COUNT])
{
    size_t len = name_len(p->at);
    const struct policy_word *w = find_word(p->at, len);
    bool more = false;
    int r = 0;

    if (!w) {
        return unknown_word(p);
    }
    if (seen[w->axis]) {
        return fault(p, w->axis == AXIS_PRECISION ? "a second word of precision"
                        : w->axis == AXIS_PLACE   ? "a second word for which tokens stay"
                        : w->axis == AXIS_SELECT  ? "a second word for which tokens are read"
                        : w->axis == AXIS_EXIT    ? "a second \"exit\""
                                                  : "a second \"sinks\"");
    }
    seen[w->axis] = true;
    p->select = w->axis == AXIS_SELECT ? p->at : p->select;
    p->exit = w->axis == AXIS_EXIT ? p->at : p->exit;
    p->at += len;
    if (w->amount && !accept(p, ':')) {
        return fault(p, w->axis == AXIS_PLACE  ? "':' and a budget must follow (512, 50% or 50%ctx)"
                        : w->axis == AXIS_EXIT ? "':' and a probability must follow (0.95)"
                                               : "':' and a number of slots must follow");
    }
    switch (w->axis) {
    case AXIS_PRECISION:
        pol->k_type = w->k;
        pol->v_type = w->v;
        break;
    case AXIS_PLACE:
        pol->place = (enum policy_place)w->place;
        r = w->amount ? parse_budget(p, pol) : 0;
        break;
    case AXIS_SINKS:
        r = parse_int(p, "sinks", 0, 4096, &pol->sinks);
        break;
    case AXIS_SELECT:
        pol->select = w->place;
        r = w->amount ? parse_int(p, w->name, 1, 1 << 24, &pol->top_k) : 0;
        more = !w->amount && accept(p, ':');
        break;
    case AXIS_EXIT:
        r = parse_exit(p, pol);
        break;
    case AXIS_COUNT:
        break;
    }
    return r ? r : parse_options(p, w, more, pol);
}

/* A query must be able to read its latest tokens, at the positions they have. */
static int check_select(struct parser *p, const struct policy *pol)
{
    char what[128];

    if (pol->select == POLICY_SPARQ && pol->local > pol->top_k) {
        (void)snprintf(what, sizeof(what), "the latest %d slots are more than k=%d", pol->local,
                       pol->top_k);
        p->at = p->select;
        return fault(p, what);
    }
    if (pol->select == POLICY_INFINIGEN && pol->count > 0 && pol->share > 0) {
        p->at = p->select;
        return fault(p, "count and share both say how many slots are read");
    }
    if (pol->select != POLICY_READ_ALL &&
        (ops_kv_block_dims(pol->k_type) > 1 || ops_kv_block_dims(pol->v_type) > 1)) {
        p->at = p->select;
        return fault(p, "q8_0 and q4_0 share a scale among 32 dims: no dim or slot is read alone");
    }
    if (pol->select != POLICY_READ_ALL && pol->pos_new) {
        p->at = p->select;
        return fault(p, "pos=new rotates every key as it is read, so none can be left out");
    }
    return 0;
}

/* What skips layers cannot stand beside what follows every token through all of them. */
static int check_exit(struct parser *p, const struct policy *pol)
{
    if (pol->exit_draft && (pol->select != POLICY_READ_ALL || pol->place != POLICY_FULL)) {
        p->at = p->exit;
        return fault(
            p, "exit:draft takes back the rows that were guessed wrong: beside full alone, not "
               "beside words that drop tokens, score them or choose which are read");
    }
    if (pol->exit > 0 &&
        (pol->select != POLICY_READ_ALL || (POLICY_BIT(pol->place) & POLICY_SCORING))) {
        p->at = p->exit;
        return fault(p, "exit skips layers for some tokens: not beside h2o, keyformer or recency, "
                        "which score every token's attention, nor beside sparq, topv or infinigen");
    }
    return 0;
}

/* What a budget of slots leaves must be at least one slot that may be overwritten. */
static int check(const struct parser *p, const struct policy *pol, bool sinks)
{
    if (pol->place == POLICY_FULL && sinks) {
        return fault(p, "\"sinks\" needs a word beside it that drops tokens, such as window:1020");
    }
    if (pol->place == POLICY_FULL && !policy_spills(pol)) {
        return 0;
    }
    int32_t least = pol->budget_kind != POLICY_SLOTS ? pol->min
                    : policy_spills(pol)             ? pol->budget
                                                     : policy_budget(pol, 0, INT32_MAX);
    int32_t recent =
        pol->place == POLICY_COUNTER || (policy_spills(pol) && pol->victim == POLICY_COUNTER)
            ? pol->exempt
        : pol->place == POLICY_WINDOW || pol->place >= POLICY_FIFO
            ? 1
            : (int32_t)((int64_t)least * pol->recent / 100);

    if (pol->mode == POLICY_AS_SHIPPED && pol->prefill == POLICY_BOUNDED) {
        return fault(p, "mode=as-shipped chooses once, from the whole prompt: not prefill=bounded");
    }
    if (pol->scope == POLICY_SHARED && pol->prefill == POLICY_BOUNDED) {
        return fault(p, "score=shared needs prefill=dense");
    }
    if (pol->sinks + recent > least) {
        char what[128];

        (void)snprintf(what, sizeof(what),
                       "%d sinks and %d recent slots leave nothing of a budget of %d", pol->sinks,
                       recent, least);
        return fault(p, what);
    }
    return 0;
}

/* Defaults that hang on other values. */
static void settle(struct policy *pol)
{
    if (pol->noise < 0) {
        pol->noise = pol->mode == POLICY_AS_SHIPPED ? POLICY_FRESH : POLICY_ONCE;
    }
    if (pol->scope == POLICY_SHARED) {
        pol->prefill = POLICY_DENSE; /* a layer alone does not have all layers' scores */
    }
    if (pol->local < 0) {
        pol->local = pol->top_k / 4;
    }
    if (pol->observe < 0) { /* at decay 0.99 the 256th query before the last still counts 8 % */
        pol->observe = pol->place == POLICY_RECENCY ? 256 : 64;
    }
}

/* A pool of so many slots is a rule for which tokens stay. */
static int place_pool(struct parser *p, struct policy *pol)
{
    if (pol->select != POLICY_INFINIGEN) {
        return 0;
    }
    if (pol->place != POLICY_FULL) {
        p->at = p->select;
        return fault(p, "infinigen's pool decides which tokens stay: no other word for that");
    }
    if (pol->full == POLICY_SPILL && pol->pool != POLICY_POOL_SLOTS) {
        p->at = p->select;
        return fault(p, "full=spill needs a pool of so many slots, such as pool=60%ctx");
    }
    if (pol->pool == POLICY_POOL_SLOTS && pol->full == POLICY_DROP) {
        pol->place = (enum policy_place)pol->victim;
    }
    return 0;
}

static int parse_policy(struct parser *p, struct policy *ret)
{
    struct policy pol = policy_defaults;
    bool seen[AXIS_COUNT] = {false};
    int r;

    do {
        r = parse_word(p, &pol, seen);
    } while (!r && accept(p, '+'));
    r = r ? r : place_pool(p, &pol);
    if (!r) {
        r = check(p, &pol, seen[AXIS_SINKS]);
    }
    r = r ? r : check_select(p, &pol);
    r = r ? r : check_exit(p, &pol);
    if (!r) {
        settle(&pol);
        *ret = pol;
    }
    return r;
}

int policy_parse(const char *text, struct policy *ret, struct error *reterr)
{
    struct parser p = {.text = text ? text : "", .reterr = reterr};
    struct policy pol = policy_defaults;

    p.at = p.text;
    settle(&pol);
    int r = *p.text ? parse_policy(&p, &pol) : 0;

    if (!r && *p.at) {
        r = fault(&p, "'+', ',' or the end must stand here");
    }
    if (!r) {
        *ret = pol;
    }
    return r;
}

int policy_parse_mix(const char *text, struct policy_mix *ret, struct error *reterr)
{
    struct parser p = {.text = text && *text ? text : "full", .reterr = reterr};
    struct policy_mix mix = {0};
    int32_t sum = 0;
    int r;

    p.at = p.text;
    do {
        if (mix.n == POLICY_MAX_MIX) {
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

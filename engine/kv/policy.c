/* SPDX-License-Identifier: Apache-2.0 */
/* The parser of policy texts, and its inverse.
 *
 * Three tables hold the language: words (by axis, with defaults), options (which words take them,
 * range, field) and the names of enumerated values, each with a flag for what is not built yet.
 * The parser walks the text once and remembers where it is, so that every refusal says at which
 * character, what was found and what may stand there. Printing walks the same tables: whatever can
 * be said is printed, so a changed default never changes the meaning of a saved text. */

#include "engine/kv/policy.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/word.h"

enum axis { AXIS_PRECISION, AXIS_PLACE, AXIS_SINKS, AXIS_SELECT, AXIS_EXIT, AXIS_COUNT };

struct word_row {
    const char *name;
    enum axis axis;
    int32_t place;         /* AXIS_PLACE; AXIS_SELECT: enum policy_select */
    enum ops_kv_type k, v; /* AXIS_PRECISION */
    const char *amount;    /* NULL: takes none; else what it is, for messages */
};

#define BIT(place) (1 << (place))
#define EVICTING (BIT(POLICY_WINDOW) | SCORING)
#define SCORING (BIT(POLICY_H2O) | BIT(POLICY_KEYFORMER) | BIT(POLICY_RECENCY))
#define ANY_PLACE (BIT(POLICY_FULL) | EVICTING)
#define SELECT_BIT(select) (1 << (8 + (select)))

/* clang-format off */
static const struct word_row words[] = {
    {"f32", AXIS_PRECISION, 0, OPS_KV_F32, OPS_KV_F32, NULL},
    {"f16", AXIS_PRECISION, 0, OPS_KV_F16, OPS_KV_F16, NULL},
    {"bf16", AXIS_PRECISION, 0, OPS_KV_BF16, OPS_KV_BF16, NULL},
    {"fp8", AXIS_PRECISION, 0, OPS_KV_FP8, OPS_KV_FP8, NULL},
    {"kv8", AXIS_PRECISION, 0, OPS_KV_I8, OPS_KV_FP8, NULL},
    {"k16v8", AXIS_PRECISION, 0, OPS_KV_F16, OPS_KV_FP8, NULL},
    {"q8_0", AXIS_PRECISION, 0, OPS_KV_Q8_0, OPS_KV_Q8_0, NULL},
    {"q4_0", AXIS_PRECISION, 0, OPS_KV_Q4_0, OPS_KV_Q4_0, NULL},
    {"full", AXIS_PLACE, POLICY_FULL, 0, 0, NULL},
    {"window", AXIS_PLACE, POLICY_WINDOW, 0, 0, "budget"},
    {"h2o", AXIS_PLACE, POLICY_H2O, 0, 0, "budget"},
    {"keyformer", AXIS_PLACE, POLICY_KEYFORMER, 0, 0, "budget"},
    {"recency", AXIS_PLACE, POLICY_RECENCY, 0, 0, "budget"},
    {"sinks", AXIS_SINKS, 0, 0, 0, "slots"},
    {"sparq", AXIS_SELECT, POLICY_SPARQ, 0, 0, NULL},
    {"topv", AXIS_SELECT, POLICY_TOPV, 0, 0, "count"},
    {"infinigen", AXIS_SELECT, POLICY_INFINIGEN, 0, 0, NULL},
    {"exit", AXIS_EXIT, 0, 0, 0, "probability, or \"draft\""},
};

struct value_row {
    const char *name;
    int32_t value;
    bool later; /* known, not built yet */
};

static const struct value_row modes[] = {
    {"paper", POLICY_PAPER, false}, {"as-shipped", POLICY_AS_SHIPPED, false}, {NULL, 0, false}};
static const struct value_row noises[] = {
    {"once", POLICY_ONCE, false}, {"fresh", POLICY_FRESH, false}, {"gauss", POLICY_GAUSS, false},
    {"const", POLICY_CONST, false}, {"none", POLICY_NO_NOISE, false}, {NULL, 0, false}};
static const struct value_row scopes[] = {
    {"head", POLICY_PER_HEAD, false}, {"layer", POLICY_PER_LAYER, false},
    {"shared", POLICY_SHARED, false}, {NULL, 0, false}};
static const struct value_row positions[] = {{"org", 0, false}, {"new", 1, false}, {NULL, 0, false}};
static const struct value_row prefills[] = {
    {"dense", POLICY_DENSE, false}, {"layered", POLICY_LAYERED, false},
    {"bounded", POLICY_BOUNDED, false}, {NULL, 0, false}};
static const struct value_row means[] = {
    {"auto", POLICY_MEAN_AUTO, false}, {"on", POLICY_MEAN_ON, false},
    {"off", POLICY_MEAN_OFF, false}, {NULL, 0, false}};
static const struct value_row ranks[] = {
    {"once", OPS_RANK_ONCE, false}, {"2k", OPS_RANK_2K, false}, {"rank8", OPS_RANK_8, false},
    {NULL, 0, false}};
static const struct value_row switches[] = {{"off", 0, false}, {"on", 1, false}, {NULL, 0, false}};

static const struct value_row pools[] = {
    {"device", POLICY_POOL_DEVICE, false}, {"host", POLICY_POOL_HOST, false},
    {"disk", POLICY_POOL_DISK, false}, {NULL, 0, false}};
static const struct value_row victims[] = {
    {"fifo", POLICY_FIFO, false}, {"lru", POLICY_LRU, false},
    {"counter", POLICY_COUNTER, false}, {NULL, 0, false}};

static const struct value_row fulls[] = {
    {"drop", POLICY_DROP, false}, {"spill", POLICY_SPILL, false}, {NULL, 0, false}};

enum field_type { FIELD_INT, FIELD_PERCENT, FIELD_FLOAT, FIELD_TAU, FIELD_VALUE, FIELD_POOL };

struct option_row {
    const char *name;
    int words; /* BIT()s and SELECT_BIT()s of the words that take it */
    enum field_type type;
    size_t offset;
    double min, max;
    const struct value_row *values;
};

#define FIELD(f) offsetof(struct policy, f)
static const struct option_row options[] = {
    {"recent", SCORING, FIELD_PERCENT, FIELD(recent), 0, 100, NULL},
    {"tau", BIT(POLICY_KEYFORMER), FIELD_TAU, FIELD(tau0), 0.01, 100, NULL},
    {"mode", BIT(POLICY_KEYFORMER), FIELD_VALUE, FIELD(mode), 0, 0, modes},
    {"noise", BIT(POLICY_KEYFORMER), FIELD_VALUE, FIELD(noise), 0, 0, noises},
    {"damp", BIT(POLICY_H2O) | BIT(POLICY_KEYFORMER), FIELD_FLOAT, FIELD(damp), 0.01, 1, NULL},
    {"decay", BIT(POLICY_RECENCY), FIELD_FLOAT, FIELD(decay), 0.01, 1, NULL},
    {"score", SCORING, FIELD_VALUE, FIELD(scope), 0, 0, scopes},
    {"pos", EVICTING, FIELD_VALUE, FIELD(pos_new), 0, 0, positions},
    {"prefill", EVICTING, FIELD_VALUE, FIELD(prefill), 0, 0, prefills},
    {"observe", SCORING, FIELD_INT, FIELD(observe), 1, 4096, NULL},
    {"min", EVICTING, FIELD_INT, FIELD(min), 2, 1 << 24, NULL},
    {"seed", BIT(POLICY_KEYFORMER), FIELD_INT, FIELD(seed), 0, INT32_MAX, NULL},
    {"chunk", ANY_PLACE, FIELD_INT, FIELD(chunk), 1, 65536, NULL},
    {"r", SELECT_BIT(POLICY_SPARQ), FIELD_INT, FIELD(r), 1, 1024, NULL},
    {"k", SELECT_BIT(POLICY_SPARQ), FIELD_INT, FIELD(top_k), 1, 1 << 24, NULL},
    {"local", SELECT_BIT(POLICY_SPARQ), FIELD_INT, FIELD(local), 0, 1 << 24, NULL},
    {"mode", SELECT_BIT(POLICY_SPARQ), FIELD_VALUE, FIELD(select_mode), 0, 0, modes},
    {"mean", SELECT_BIT(POLICY_SPARQ), FIELD_VALUE, FIELD(mean), 0, 0, means},
    {"layout", SELECT_BIT(POLICY_SPARQ), FIELD_VALUE, FIELD(rank), 0, 0, ranks},
    {"renorm", SELECT_BIT(POLICY_TOPV), FIELD_VALUE, FIELD(renorm), 0, 0, switches},
    {"alpha", SELECT_BIT(POLICY_INFINIGEN), FIELD_FLOAT, FIELD(alpha), 0, 1000, NULL},
    {"cap", SELECT_BIT(POLICY_INFINIGEN), FIELD_PERCENT, FIELD(cap), 1, 100, NULL},
    {"count", SELECT_BIT(POLICY_INFINIGEN), FIELD_INT, FIELD(count), 0, 1 << 24, NULL},
    {"share", SELECT_BIT(POLICY_INFINIGEN), FIELD_PERCENT, FIELD(share), 0, 100, NULL},
    {"partial", SELECT_BIT(POLICY_INFINIGEN), FIELD_FLOAT, FIELD(partial), 0.01, 1, NULL},
    {"partial8", SELECT_BIT(POLICY_INFINIGEN), FIELD_VALUE, FIELD(partial8), 0, 0, switches},
    {"skew", SELECT_BIT(POLICY_INFINIGEN), FIELD_VALUE, FIELD(skew), 0, 0, switches},
    {"pool", SELECT_BIT(POLICY_INFINIGEN), FIELD_POOL, FIELD(pool), 0, 0, pools},
    {"victim", SELECT_BIT(POLICY_INFINIGEN), FIELD_VALUE, FIELD(victim), 0, 0, victims},
    {"exempt", SELECT_BIT(POLICY_INFINIGEN), FIELD_INT, FIELD(exempt), 1, 4096, NULL},
    {"full", SELECT_BIT(POLICY_INFINIGEN), FIELD_VALUE, FIELD(full), 0, 0, fulls},
};

static const struct policy defaults = {
    .k_type = OPS_KV_F16, .v_type = OPS_KV_F16, .place = POLICY_FULL,
    .min = 128, .recent = 30, .mode = POLICY_PAPER, .noise = -1,
    .scope = POLICY_PER_HEAD, .prefill = POLICY_LAYERED, .observe = -1,
    .chunk = POLICY_DEFAULT_CHUNK, .tau0 = 1.0f, .tau1 = 2.0f, .damp = 1.0f, .decay = 0.99f,
    .select = POLICY_READ_ALL, .r = 32, .top_k = 128, .local = -1, .renorm = 1,
    .alpha = 4.0f, .cap = 20, .partial = 0.3f, .skew = 1,
    .victim = POLICY_COUNTER, .exempt = 32,
};
/* clang-format on */

enum {
    N_WORDS = sizeof(words) / sizeof(words[0]),
    N_OPTIONS = sizeof(options) / sizeof(options[0])
};

struct parser {
    const char *text;
    const char *at;
    const char *select; /* where the word of selection stands, or NULL */
    const char *exit;   /* and that of early exit */
    struct error *reterr;
};

/* The bit by which options know a word. */
static int word_bit(const struct word_row *w)
{
    return w->axis == AXIS_PLACE    ? BIT(w->place)
           : w->axis == AXIS_SELECT ? SELECT_BIT(w->place)
                                    : 0;
}

static int fault(const struct parser *p, const char *what)
{
    return error_set(p->reterr, -EINVAL, "policy, character %d: %s", (int)(p->at - p->text) + 1,
                     what);
}

static int later(const struct parser *p, const char *name)
{
    return error_set(p->reterr, -ENOTSUP, "policy, character %d: %s is not built yet",
                     (int)(p->at - p->text) + 1, name);
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

/* Digits and one point: no signs, exponents, hex or locale. */
static int parse_float(struct parser *p, const char *name, double min, double max, float *ret)
{
    double v = 0;
    double scale = 1;
    const char *s = p->at;
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
    if (digits == 0 || v < min || v > max) {
        return fault_range(p, name, min, max);
    }
    p->at = s;
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

static int parse_value(struct parser *p, const struct option_row *o, int32_t *ret)
{
    size_t len = name_len(p->at);
    char what[160];
    size_t used;

    for (const struct value_row *v = o->values; v->name; v++) {
        if (name_is(p->at, len, v->name)) {
            if (v->later) {
                (void)snprintf(what, sizeof(what), "%s=%s", o->name, v->name);
                return later(p, what);
            }
            p->at += len;
            *ret = v->value;
            return 0;
        }
    }
    used = (size_t)snprintf(what, sizeof(what), "%s is one of", o->name);
    for (const struct value_row *v = o->values; v->name && used < sizeof(what); v++) {
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
static int parse_pool(struct parser *p, const struct option_row *o, struct policy *pol)
{
    if (*p->at >= '0' && *p->at <= '9') {
        pol->pool = POLICY_POOL_SLOTS;
        return parse_budget(p, pol);
    }
    return parse_value(p, o, &pol->pool);
}

static int parse_option(struct parser *p, const struct option_row *o, struct policy *pol)
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

    for (int i = 0; i < N_WORDS; i++) {
        size_t d = word_distance(s, len, words[i].name, strlen(words[i].name));

        if (d < best) {
            best = d;
            nearest = words[i].name;
        }
    }
    return len > 1 ? nearest : NULL;
}

static const char *nearest_option(const struct word_row *w, const char *s, size_t len)
{
    const char *nearest = NULL;
    size_t best = word_far(len);

    for (int i = 0; i < N_OPTIONS; i++) {
        size_t d = word_distance(s, len, options[i].name, strlen(options[i].name));

        if ((options[i].words & word_bit(w)) && d < best) {
            best = d;
            nearest = options[i].name;
        }
    }
    return len > 1 ? nearest : NULL;
}

static const struct word_row *find_word(const char *s, size_t len)
{
    for (int i = 0; i < N_WORDS; i++) {
        if (name_is(s, len, words[i].name)) {
            return &words[i];
        }
    }
    return NULL;
}

/* A word that stands where an option or its value should. */
static int fault_word(const struct parser *p, const struct word_row *w, const struct option_row *o)
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
static int parse_options(struct parser *p, const struct word_row *w, bool more, struct policy *pol)
{
    for (; more || accept(p, ','); more = false) {
        size_t len = name_len(p->at);
        const struct option_row *o = NULL;
        char what[200];
        size_t used;

        for (int i = 0; i < N_OPTIONS; i++) {
            if (name_is(p->at, len, options[i].name) && (options[i].words & word_bit(w))) {
                o = &options[i];
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
            for (int i = 0; i < N_OPTIONS && used < sizeof(what); i++) {
                if (options[i].words & word_bit(w)) {
                    used +=
                        (size_t)snprintf(what + used, sizeof(what) - used, " %s", options[i].name);
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

    for (int i = 0; i < N_WORDS && used < sizeof(what); i++) {
        used += (size_t)snprintf(what + used, sizeof(what) - used, " %s", words[i].name);
    }
    return fault(p, what);
}

static int parse_word(struct parser *p, struct policy *pol, bool seen[AXIS_COUNT])
{
    size_t len = name_len(p->at);
    const struct word_row *w = find_word(p->at, len);
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
    if (pol->exit > 0 && (pol->select != POLICY_READ_ALL || (BIT(pol->place) & SCORING))) {
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
    struct policy pol = defaults;
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
    struct policy pol = defaults;

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

/* ---- printing ----------------------------------------------------------------------------- */

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
        struct parser p = {.text = text, .at = text};
        float back = 0;

        (void)snprintf(text, sizeof(text), "%.*g", digits, (double)f);
        if (parse_float(&p, "", 0, 1e9, &back) == 0 && !*p.at && back == f) {
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

static void put_option(struct printer *o, const struct option_row *row, const char *before,
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
        for (const struct value_row *v = row->values; v->name; v++) {
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
    for (int i = 0; i < N_OPTIONS; i++) {
        if (options[i].words & bit) {
            put_option(o, &options[i], first, p);
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
    for (int i = 0; i < N_WORDS; i++) {
        if (words[i].axis == AXIS_PRECISION && words[i].k == p->k_type && words[i].v == p->v_type) {
            put(&o, "%s", words[i].name);
        }
    }
    if (p->place != POLICY_FULL) {
        put(&o, "+sinks:%d", p->sinks);
    }
    for (int i = 0; i < N_WORDS; i++) {
        if (words[i].axis != AXIS_PLACE || words[i].place != place) {
            continue;
        }
        put(&o, "+%s", words[i].name);
        if (words[i].amount) {
            put(&o, ":");
            put_budget(&o, p);
        }
    }
    put_options(&o, BIT(place), ",", p);
    if (p->select == POLICY_SPARQ) {
        put(&o, "+sparq");
        put_options(&o, SELECT_BIT(POLICY_SPARQ), ":", p);
    } else if (p->select == POLICY_TOPV) {
        put(&o, "+topv:%d", p->top_k);
        put_options(&o, SELECT_BIT(POLICY_TOPV), ",", p);
    } else if (p->select == POLICY_INFINIGEN) {
        put(&o, "+infinigen");
        put_options(&o, SELECT_BIT(POLICY_INFINIGEN), ":", p);
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
        home.pool = defaults.pool;
        home.full = defaults.full;
        home.victim = defaults.victim;
        home.exempt = defaults.exempt;
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

bool policy_spills(const struct policy *p)
{
    return p->select == POLICY_INFINIGEN && p->pool == POLICY_POOL_SLOTS && p->full == POLICY_SPILL;
}

bool policy_on_disk(const struct policy *p)
{
    return p->select == POLICY_INFINIGEN && (p->pool == POLICY_POOL_DISK || policy_spills(p));
}

const char *policy_disk_option(const struct policy *p)
{
    return policy_spills(p) ? "full=spill" : "pool=disk";
}

static int32_t slots_of(const struct policy *p, int32_t n_tokens, int32_t ctx)
{
    int64_t of = p->budget_kind == POLICY_PERCENT_CTX ? ctx : n_tokens;
    int64_t slots = p->budget;

    if (p->budget_kind == POLICY_SLOTS) {
        slots += p->place == POLICY_WINDOW ? p->sinks : 0;
    } else {
        slots = of * p->budget / 100;
        slots = slots < p->min ? p->min : slots;
    }
    return slots > ctx ? ctx : (int32_t)slots;
}

int32_t policy_budget(const struct policy *p, int32_t n_tokens, int32_t ctx)
{
    return p->place == POLICY_FULL ? 0 : slots_of(p, n_tokens, ctx);
}

int32_t policy_pool_slots(const struct policy *p, int32_t n_tokens, int32_t ctx)
{
    return policy_spills(p) ? slots_of(p, n_tokens, ctx) : 0;
}

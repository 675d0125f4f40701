/* SPDX-License-Identifier: Apache-2.0 */
/* The words of the policy language, their options and what stands where nothing is said. */

#include "engine/kv/policy/policy_words.h"

/* clang-format off */
const struct policy_word policy_words[] = {
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
static const struct policy_value modes[] = {
    {"paper", POLICY_PAPER}, {"as-shipped", POLICY_AS_SHIPPED}, {NULL, 0}};
static const struct policy_value noises[] = {
    {"once", POLICY_ONCE}, {"fresh", POLICY_FRESH}, {"gauss", POLICY_GAUSS},
    {"const", POLICY_CONST}, {"none", POLICY_NO_NOISE}, {NULL, 0}};
static const struct policy_value scopes[] = {
    {"head", POLICY_PER_HEAD}, {"layer", POLICY_PER_LAYER},
    {"shared", POLICY_SHARED}, {NULL, 0}};
static const struct policy_value positions[] = {{"org", 0}, {"new", 1}, {NULL, 0}};
static const struct policy_value prefills[] = {
    {"dense", POLICY_DENSE}, {"layered", POLICY_LAYERED},
    {"bounded", POLICY_BOUNDED}, {NULL, 0}};
static const struct policy_value means[] = {
    {"auto", POLICY_MEAN_AUTO}, {"on", POLICY_MEAN_ON},
    {"off", POLICY_MEAN_OFF}, {NULL, 0}};
static const struct policy_value ranks[] = {
    {"once", OPS_RANK_ONCE}, {"2k", OPS_RANK_2K}, {"rank8", OPS_RANK_8},
    {NULL, 0}};
static const struct policy_value switches[] = {{"off", 0}, {"on", 1}, {NULL, 0}};

static const struct policy_value pools[] = {
    {"device", POLICY_POOL_DEVICE}, {"host", POLICY_POOL_HOST},
    {"disk", POLICY_POOL_DISK}, {NULL, 0}};
static const struct policy_value victims[] = {
    {"fifo", POLICY_FIFO}, {"lru", POLICY_LRU},
    {"counter", POLICY_COUNTER}, {NULL, 0}};

static const struct policy_value fulls[] = {
    {"drop", POLICY_DROP}, {"spill", POLICY_SPILL}, {NULL, 0}};
#define FIELD(f) offsetof(struct policy, f)
const struct policy_option policy_options[] = {
    {"recent", POLICY_SCORING, FIELD_PERCENT, FIELD(recent), 0, 100, NULL},
    {"tau", POLICY_BIT(POLICY_KEYFORMER), FIELD_TAU, FIELD(tau0), 0.01, 100, NULL},
    {"mode", POLICY_BIT(POLICY_KEYFORMER), FIELD_VALUE, FIELD(mode), 0, 0, modes},
    {"noise", POLICY_BIT(POLICY_KEYFORMER), FIELD_VALUE, FIELD(noise), 0, 0, noises},
    {"damp", POLICY_BIT(POLICY_H2O) | POLICY_BIT(POLICY_KEYFORMER), FIELD_FLOAT, FIELD(damp), 0.01, 1, NULL},
    {"decay", POLICY_BIT(POLICY_RECENCY), FIELD_FLOAT, FIELD(decay), 0.01, 1, NULL},
    {"score", POLICY_SCORING, FIELD_VALUE, FIELD(scope), 0, 0, scopes},
    {"pos", POLICY_EVICTING, FIELD_VALUE, FIELD(pos_new), 0, 0, positions},
    {"prefill", POLICY_EVICTING, FIELD_VALUE, FIELD(prefill), 0, 0, prefills},
    {"observe", POLICY_SCORING, FIELD_INT, FIELD(observe), 1, 4096, NULL},
    {"min", POLICY_EVICTING, FIELD_INT, FIELD(min), 2, 1 << 24, NULL},
    {"seed", POLICY_BIT(POLICY_KEYFORMER), FIELD_INT, FIELD(seed), 0, INT32_MAX, NULL},
    {"chunk", POLICY_ANY_PLACE, FIELD_INT, FIELD(chunk), 1, 65536, NULL},
    {"r", POLICY_SELECT_BIT(POLICY_SPARQ), FIELD_INT, FIELD(r), 1, 1024, NULL},
    {"k", POLICY_SELECT_BIT(POLICY_SPARQ), FIELD_INT, FIELD(top_k), 1, 1 << 24, NULL},
    {"local", POLICY_SELECT_BIT(POLICY_SPARQ), FIELD_INT, FIELD(local), 0, 1 << 24, NULL},
    {"mode", POLICY_SELECT_BIT(POLICY_SPARQ), FIELD_VALUE, FIELD(select_mode), 0, 0, modes},
    {"mean", POLICY_SELECT_BIT(POLICY_SPARQ), FIELD_VALUE, FIELD(mean), 0, 0, means},
    {"layout", POLICY_SELECT_BIT(POLICY_SPARQ), FIELD_VALUE, FIELD(rank), 0, 0, ranks},
    {"renorm", POLICY_SELECT_BIT(POLICY_TOPV), FIELD_VALUE, FIELD(renorm), 0, 0, switches},
    {"alpha", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_FLOAT, FIELD(alpha), 0, 1000, NULL},
    {"cap", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_PERCENT, FIELD(cap), 1, 100, NULL},
    {"count", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_INT, FIELD(count), 0, 1 << 24, NULL},
    {"share", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_PERCENT, FIELD(share), 0, 100, NULL},
    {"partial", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_FLOAT, FIELD(partial), 0.01, 1, NULL},
    {"partial8", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_VALUE, FIELD(partial8), 0, 0, switches},
    {"skew", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_VALUE, FIELD(skew), 0, 0, switches},
    {"pool", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_POOL, FIELD(pool), 0, 0, pools},
    {"victim", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_VALUE, FIELD(victim), 0, 0, victims},
    {"exempt", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_INT, FIELD(exempt), 1, 4096, NULL},
    {"full", POLICY_SELECT_BIT(POLICY_INFINIGEN), FIELD_VALUE, FIELD(full), 0, 0, fulls},
};
const struct policy policy_defaults = {
    .k_type = OPS_KV_F16, .v_type = OPS_KV_F16, .place = POLICY_FULL,
    .min = 128, .recent = 30, .mode = POLICY_PAPER, .noise = -1,
    .scope = POLICY_PER_HEAD, .prefill = POLICY_LAYERED, .observe = -1,
    .chunk = POLICY_DEFAULT_CHUNK, .tau0 = 1.0f, .tau1 = 2.0f, .damp = 1.0f, .decay = 0.99f,
    .select = POLICY_READ_ALL, .r = 32, .top_k = 128, .local = -1, .renorm = 1,
    .alpha = 4.0f, .cap = 20, .partial = 0.3f, .skew = 1,
    .victim = POLICY_COUNTER, .exempt = 32,
};
/* clang-format on */

const int policy_n_words = sizeof(policy_words) / sizeof(policy_words[0]);
const int policy_n_options = sizeof(policy_options) / sizeof(policy_options[0]);

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

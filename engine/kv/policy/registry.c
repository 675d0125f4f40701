/* SPDX-License-Identifier: Apache-2.0 */
/* The list of policy words, and what stands where nothing is said. A new word is a file of this
 * folder, two lines here, one in meson.build and one in base/policy_words.h. */

#include <assert.h>
#include <string.h>

#include "engine/kv/policy/precision.h"
#include "engine/kv/policy/word.h"

extern const struct policy_word policy_word_full;
extern const struct policy_word policy_word_window;
extern const struct policy_word policy_word_h2o;
extern const struct policy_word policy_word_keyformer;
extern const struct policy_word policy_word_recency;
extern const struct policy_word policy_word_snapkv;
extern const struct policy_word policy_word_expected;
extern const struct policy_word policy_word_kvzap;
extern const struct policy_word policy_word_streaming;
extern const struct policy_word policy_word_sinks;
extern const struct policy_word policy_word_sparq;
extern const struct policy_word policy_word_topv;
extern const struct policy_word policy_word_infinigen;
extern const struct policy_word policy_word_exit;

/* After those of precision. */
static const struct policy_word *const words[] = {
    &policy_word_full,      &policy_word_window,  &policy_word_streaming, &policy_word_h2o,
    &policy_word_keyformer, &policy_word_recency, &policy_word_snapkv,    &policy_word_expected,
    &policy_word_kvzap,     &policy_word_sinks,   &policy_word_sparq,     &policy_word_topv,
    &policy_word_infinigen, &policy_word_exit,
};

enum { N_WORDS = sizeof(words) / sizeof(words[0]) };

const struct policy policy_defaults = {
    .k_type = OPS_KV_F16,
    .v_type = OPS_KV_F16,
    .place = &place_full,
    .sinks = -1,
    .min = 128,
    .safeguard = 20,
    .recent = 30,
    .mode = POLICY_PAPER,
    .noise = -1,
    .scope = POLICY_PER_HEAD,
    .prefill = POLICY_LAYERED,
    .observe = -1,
    .chunk = KV_DEFAULT_CHUNK,
    .tau0 = 1.0f,
    .tau1 = 2.0f,
    .damp = 1.0f,
    .decay = 0.99f,
    .ahead = 64,
    .every = 64,
    .cov = 1,
    .r = 32,
    .top_k = 128,
    .local = -1,
    .renorm = 1,
    .alpha = 4.0f,
    .cap = 20,
    .partial = 0.3f,
    .skew = 1,
    .victim = POLICY_COUNTER,
    .exempt = 32,
};

int policy_n_words(void)
{
    return POLICY_N_PRECISIONS + N_WORDS;
}

const struct policy_word *policy_word_at(int i)
{
    assert(i >= 0 && i < policy_n_words());
    return i < POLICY_N_PRECISIONS ? &policy_precisions[i] : words[i - POLICY_N_PRECISIONS];
}

const struct policy_word *policy_word_find(const char *name, size_t len)
{
    for (int i = 0; i < policy_n_words(); i++) {
        const struct policy_word *w = policy_word_at(i);

        if (strlen(w->name) == len && memcmp(name, w->name, len) == 0) {
            return w;
        }
    }
    return NULL;
}

static bool has(const struct policy *p, const struct policy_word *w)
{
    switch (w->axis) {
    case AXIS_PRECISION:
        return w->k == p->k_type && w->v == p->v_type;
    case AXIS_SINKS:
        return policy_evicts(p);
    case AXIS_PLACE:
        return w->place == p->place;
    case AXIS_SELECT:
        return w->select == p->select;
    case AXIS_EXIT:
        return p->exit > 0 || p->exit_draft;
    case AXIS_COUNT:
        break;
    }
    return false;
}

const struct policy_word *policy_word_of(const struct policy *p, enum word_axis axis)
{
    for (int i = 0; i < policy_n_words(); i++) {
        const struct policy_word *w = policy_word_at(i);

        if (w->axis == axis && has(p, w)) {
            return w;
        }
    }
    return axis == AXIS_PLACE ? &policy_word_full : NULL; /* the rule of a pool is no word */
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Keyformer (Adnan et al., 2024), Algorithm 1: the score of a key sums softmax((x + noise) / tau)
 * over queries, beside and apart from the true softmax; tau grows from tau0 in the prompt to tau1
 * at the last new token, which flattens the scores as tokens are lost. The key set is chosen anew
 * at every step (mode=paper).
 *
 * Noise: `once`, Gumbel drawn once a key (the paper's pseudo-code); `fresh`, once a query and key
 * (the authors' code); `gauss`, of Gumbel's mean and deviation; `const`, Gumbel's mean, which
 * cancels in the softmax and so must choose as `none` does. All are counter-based. mode=paper
 * draws none by default, because no kind was better (docs/results/quality.md). */

#include "engine/kv/policy/word.h"

static const enum ops_noise noise_of[] = {
    [POLICY_ONCE] = OPS_NOISE_GUMBEL,   [POLICY_FRESH] = OPS_NOISE_GUMBEL,
    [POLICY_GAUSS] = OPS_NOISE_GAUSS,   [POLICY_CONST] = OPS_NOISE_CONST,
    [POLICY_NO_NOISE] = OPS_NOISE_NONE,
};

/* Of w recent slots one is the coming token's; at least that one is there. */
static void guard_as_shipped(const struct policy *p, const struct place_when *when,
                             struct place_guard *ret)
{
    int32_t recent = (int32_t)((int64_t)when->budget * p->recent / 100);

    recent = recent < 1 ? 1 : recent;
    *ret = (struct place_guard){
        .budget = when->budget - 1,
        .sinks = p->sinks,
        .pos_protect = when->n_prompt - recent + 1,
        .drop = when->n_prompt - recent,
    };
    if (!when->cut) { /* keys lie before the prompt's window, and stay */
        ret->sinks = when->n_prompt - recent;
        ret->pos_protect = INT32_MAX;
        ret->by_position = true;
    }
}

static void guard(const struct policy *p, const struct place_when *when, struct place_guard *ret)
{
    if (p->mode == POLICY_AS_SHIPPED) {
        guard_as_shipped(p, when, ret);
    } else {
        place_guard_recent(p, when, ret);
    }
}

static void observe(const struct policy *p, const struct place_rows *rows, struct ops_observe *ret)
{
    float per_step = (p->tau1 - p->tau0) / (float)rows->n_steps;
    int32_t step = rows->prefill ? 0 : rows->step;
    bool over = step >= rows->n_steps; /* tau stays at its end */

    *ret = (struct ops_observe){
        .noise = noise_of[p->noise],
        .noise_once = p->noise != POLICY_FRESH,
        .seed = (uint64_t)p->seed,
        .row_weight0 = 1.0f,
        .row_growth = 1.0f,
        .damp = rows->prefill ? 1.0f : p->damp,
        .tau0 = over ? p->tau1 : p->tau0 + (float)step * per_step,
        .tau_step = rows->prefill || over ? 0.0f : per_step,
    };
    if (p->mode == POLICY_AS_SHIPPED && !rows->prefill) {
        ret->row_first = INT32_MAX; /* the key set is frozen */
    }
}

static void settle(struct policy *p)
{
    if (p->noise < 0) {
        p->noise = p->mode == POLICY_AS_SHIPPED ? POLICY_FRESH : POLICY_NO_NOISE;
    }
}

static const struct place_ops place_keyformer = {.evicts = true,
                                                 .scores = true,
                                                 .spared = place_spared_recent,
                                                 .guard = guard,
                                                 .observe = observe};

static const struct word_value noises[] = {{"once", POLICY_ONCE},     {"fresh", POLICY_FRESH},
                                           {"gauss", POLICY_GAUSS},   {"const", POLICY_CONST},
                                           {"none", POLICY_NO_NOISE}, {NULL, 0}};

static const struct word_option tau = {.name = "tau",
                                       .type = WORD_TAU,
                                       .offset = WORD_FIELD(tau0),
                                       .min = 0.01,
                                       .max = 100,
                                       .help =
                                           "temperature in the prompt, and at the last new token"};
static const struct word_option mode = {
    .name = "mode",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(mode),
    .values = policy_modes,
    .help = "the key set is chosen anew at each step, or frozen at the prompt with the window "
            "geometry of the authors' code"};
static const struct word_option noise = {
    .name = "noise",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(noise),
    .values = noises,
    .normal = "by mode: `none`, `fresh`",
    .help = "Gumbel noise drawn once a key (the paper's pseudo-code) or once a query and key (the "
            "authors' code); Gaussian of Gumbel's mean and deviation; Gumbel's mean; none"};
static const struct word_option seed = {.name = "seed",
                                        .type = WORD_INT,
                                        .offset = WORD_FIELD(seed),
                                        .max = INT32_MAX,
                                        .help = "of the noise"};

static const struct word_option *const options[] = {
    &option_recent,  &tau,          &mode,       &noise,
    &option_damp,    &option_scope, &option_pos, &option_prefill,
    &option_observe, &option_min,   &seed,       &option_chunk,
    &option_layers,  NULL};

const struct policy_word policy_word_keyformer = {
    .name = "keyformer",
    .axis = AXIS_PLACE,
    .help = "the same with a temperature (Adnan et al. 2024); noise only by `noise=` or "
            "`mode=as-shipped`",
    .amount = &option_budget,
    .amount_says = WORD_BUDGET_SAYS,
    .options = options,
    .place = &place_keyformer,
    .settle = settle,
};

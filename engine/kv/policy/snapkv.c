/* SPDX-License-Identifier: Apache-2.0 */
/* snapkv:N (Li et al., 2024): the last `observe` queries of the prompt vote. A key's score is the
 * sum of the attention that it receives from them, replaced at the cut by the largest or the mean
 * of its `kernel` neighbours' (of the keys before the window; beyond the ends stand zeros), so that
 * clusters survive whole. Of each head group the N - observe best and the window itself stay.
 *
 * No query after the prompt scores. The published code appends new tokens without bound and loses
 * nothing more. Here N slots stay N: new tokens take the slots of the lowest scores, until they
 * have half of what was chosen, and each further one that of the oldest new one. So the prompt's
 * window stays, which the question often ends, and with it the better half of the choice. With one
 * query head a K head the cut is the published one; with shared K heads the group's query heads
 * vote together. */

#include <errno.h>
#include <stdio.h>

#include "engine/kv/policy/word.h"

enum { KERNEL, POOL };

enum { POOL_MAX, POOL_AVG };

static int32_t spared(const struct policy *p, int32_t budget)
{
    (void)budget;
    return p->observe < 0 ? 32 : p->observe;
}

/* New tokens that are held at once, in place of as many that the cut chose. */
static int32_t room(const struct policy *p, int32_t budget)
{
    const int32_t window = spared(p, budget);
    const int32_t half = (budget - window - (p->sinks > 0 ? p->sinks : 0)) / 2;

    return half > 0 ? half : 0;
}

static void guard(const struct policy *p, const struct place_when *when, struct place_guard *ret)
{
    *ret = (struct place_guard){
        .budget = when->budget,
        .sinks = p->sinks,
        .pos_protect = when->last - p->observe + 1,
        .drop = -1,
    };
    if (when->cut) {
        return;
    }
    const int32_t window = when->n_prompt - p->observe;
    const int32_t most = room(p, when->budget);

    if (when->last - when->n_prompt < most) {
        ret->pos_protect = window;
        return;
    }
    const int32_t first = most > 0 ? when->n_prompt : window; /* that rolls */

    ret->sinks = first > p->sinks ? first : p->sinks;
    ret->pos_protect = INT32_MAX;
    ret->by_position = true;
}

static void observe(const struct policy *p, const struct place_rows *rows, struct ops_observe *ret)
{
    int32_t first = rows->n_prompt - p->observe - rows->pos0;

    *ret = (struct ops_observe){
        .noise = OPS_NOISE_NONE,
        .row_first = !rows->prefill ? INT32_MAX
                     : first < 0    ? 0
                                    : first,
        .row_weight0 = 1.0f,
        .row_growth = 1.0f,
        .damp = 1.0f,
        .tau0 = 1.0f,
    };
}

static void rescore(const struct policy *p, const float *score, int32_t n, float *ret)
{
    int32_t reach = p->own[KERNEL] / 2;

    for (int32_t i = 0; i < n; i++) {
        float sum = 0;
        float most = 0;

        for (int32_t j = i - reach; j <= i + reach; j++) {
            sum += score[j];
            most = score[j] > most ? score[j] : most;
        }
        ret[i] = p->own[POOL] == POOL_MAX ? most : sum / (float)p->own[KERNEL];
    }
}

static int join(struct policy *p, char *what, size_t size)
{
    if (p->own[KERNEL] % 2 == 0 && p->own[KERNEL] > 0) {
        (void)snprintf(what, size, "snapkv pools an odd number of neighbours, not kernel=%d",
                       p->own[KERNEL]);
        return -EINVAL;
    }
    if (p->prefill == POLICY_BOUNDED) {
        (void)snprintf(what, size,
                       "snapkv chooses once, from the whole prompt: not "
                       "prefill=bounded");
        return -EINVAL;
    }
    return 0;
}

static void settle(struct policy *p)
{
    p->observe = p->observe < 0 ? 32 : p->observe;
    p->own[KERNEL] = p->own[KERNEL] ? p->own[KERNEL] : 7;
}

static const struct place_ops place_snapkv = {.evicts = true,
                                              .scores = true,
                                              .spared = spared,
                                              .taken = room,
                                              .guard = guard,
                                              .observe = observe,
                                              .rescore = rescore};

static const struct word_value pools[] = {{"max", POOL_MAX}, {"avg", POOL_AVG}, {NULL, 0}};

static const struct word_option kernel = {
    .name = "kernel",
    .type = WORD_INT,
    .offset = WORD_FIELD(own[KERNEL]),
    .min = 1,
    .max = 2 * PLACE_HALO + 1,
    .normal = "7",
    .help = "neighbours whose scores are pooled, an odd number; 1: none"};
static const struct word_option pool = {
    .name = "pool",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(own[POOL]),
    .values = pools,
    .help = "a score becomes the largest or the mean of its neighbours'"};

static const struct word_option *const options[] = {
    &option_observe, &kernel,           &pool,         &option_pos,
    &option_prefill, &option_min,       &option_chunk, &option_layers,
    &option_heads,   &option_safeguard, NULL};

const struct policy_word policy_word_snapkv = {
    .name = "snapkv",
    .axis = AXIS_PLACE,
    .help = "those that the prompt's last queries attend to, with their neighbours; chosen once, "
            "and new tokens take the place of up to half of them (Li et al. 2024)",
    .amount = &option_budget,
    .amount_says = WORD_BUDGET_SAYS,
    .options = options,
    .place = &place_snapkv,
    .join = join,
    .settle = settle,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* expected:N (Devoto et al., 2025): keys are worth what queries to come are expected to give them,
 * by the statistics of the prompt's own queries (kernels/ops_expect.h). Attention's weights are not
 * needed, so attention observes nothing.
 *
 * The paper scores once, at the end of a prompt, and appends new tokens without bound. Here N slots
 * stay N: the victim is the lowest score outside the recent share, and a layer's keys, new ones
 * among them, are scored again every so many new tokens, for the positions that are then to come;
 * layers at different tokens.
 *
 * The first tokens stay (sinks:4 where nothing else is said), as published: their V are short, so
 * that with a floor they would be the first to go. */

#include <errno.h>

#include "engine/kv/policy/word.h"

static int join(struct policy *p, char *what, size_t size)
{
    (void)what;
    (void)size;
    p->sinks = p->sinks < 0 ? 4 : p->sinks;
    return 0;
}

static int needs(const struct policy *p, const struct policy_host *h, struct error *reterr)
{
    (void)p;
    if (h->alibi || h->softcap) { /* expected weights are exponents of q.k alone */
        return error_set(reterr, -ENOTSUP,
                         "expected: the model's attention %s, which expected weights leave out",
                         h->alibi ? "has ALiBi" : "caps its logits");
    }
    return h->split ? error_set(reterr, -ENOTSUP,
                                "expected: layers beyond SwiftKV's split see few of a prompt's "
                                "queries, so there are no statistics of them")
                    : 0;
}

static const struct place_ops place_expected = {.evicts = true,
                                                .scores = true,
                                                .expects = true,
                                                .spared = place_spared_recent,
                                                .guard = place_guard_recent};

static const struct word_value switches[] = {{"off", 0}, {"on", 1}, {NULL, 0}};

static const struct word_option ahead = {
    .name = "ahead",
    .type = WORD_INT,
    .offset = WORD_FIELD(ahead),
    .min = 1,
    .max = 65536,
    .help = "positions to come over which the expected queries are averaged"};
static const struct word_option every = {.name = "every",
                                         .type = WORD_INT,
                                         .offset = WORD_FIELD(every),
                                         .min = 1,
                                         .max = 1 << 24,
                                         .help =
                                             "new tokens after which all keys are scored again"};
static const struct word_option cov = {
    .name = "cov",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(cov),
    .values = switches,
    .help = "queries are expected to vary as the prompt's do, or to be their mean"};
static const struct word_option least = {
    .name = "floor",
    .type = WORD_FLOAT,
    .offset = WORD_FIELD(floor),
    .max = 1,
    .help = "added to a key's expected weight before the length of its V multiplies it"};

static const struct word_option *const options[] = {
    &option_recent,  &ahead,      &every,        &cov,           &least,
    &option_prefill, &option_min, &option_chunk, &option_layers, NULL};

const struct policy_word policy_word_expected = {
    .name = "expected",
    .axis = AXIS_PLACE,
    .help =
        "the first 4 (or `sinks:M`) and those that queries to come are expected to attend to, by "
        "the mean and covariance of the prompt's queries (Devoto et al. 2025)",
    .amount = &option_budget,
    .amount_says = WORD_BUDGET_SAYS,
    .options = options,
    .place = &place_expected,
    .join = join,
    .needs = needs,
};

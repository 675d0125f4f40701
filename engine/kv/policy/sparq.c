/* SPDX-License-Identifier: Apache-2.0 */
/* sparq (Ribar et al., 2023): r dims of every key rank the slots; K and V of the best k are read.
 *
 * mode=paper counts the current token and the local window inside k. mode=as-shipped is the
 * authors' evaluation code: k and the window are beside the current token, which is free, so both
 * are one more (the current token is then the latest of the window). */

#include <errno.h>
#include <stdio.h>

#include "engine/kv/policy/word.h"

static const struct word_value means[] = {
    {"auto", POLICY_MEAN_AUTO}, {"on", POLICY_MEAN_ON}, {"off", POLICY_MEAN_OFF}, {NULL, 0}};
static const struct word_value ranks[] = {
    {"once", OPS_RANK_ONCE}, {"2k", OPS_RANK_2K}, {"rank8", OPS_RANK_8}, {NULL, 0}};

static const struct word_option r = {.name = "r",
                                     .type = WORD_INT,
                                     .offset = WORD_FIELD(r),
                                     .min = 1,
                                     .max = 1024,
                                     .help =
                                         "dims of every key that rank, at most the dims of a key"};
static const struct word_option k = {
    .name = "k",
    .type = WORD_INT,
    .offset = WORD_FIELD(top_k),
    .min = 1,
    .max = 1 << 24,
    .help = "slots that are read in full; all of them where there are fewer"};
static const struct word_option local = {
    .name = "local",
    .type = WORD_INT,
    .offset = WORD_FIELD(local),
    .max = 1 << 24,
    .normal = "a quarter of `k`",
    .help = "so many of the latest slots are among them whatever their rank"};
static const struct word_option mode = {
    .name = "mode",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(select_mode),
    .values = policy_modes,
    .help = "`k` and `local` hold the current token, or it comes on top of both (the authors' "
            "code)"};
static const struct word_option mean = {.name = "mean",
                                        .type = WORD_VALUE,
                                        .offset = WORD_FIELD(mean),
                                        .values = means,
                                        .help = "the mean of V replaces what was not read; `auto`: "
                                                "where no two queries share a K or V head"};
static const struct word_option layout = {
    .name = "layout",
    .type = WORD_VALUE,
    .offset = WORD_FIELD(rank),
    .values = ranks,
    .help =
        "K once; twice, for reading it by dim and by slot (half more memory); or twice and once "
        "more in FP8, which ranks (three quarters more)"};

static const struct word_option *const options[] = {&r, &k, &local, &mode, &mean, &layout, NULL};

static int join(struct policy *p, char *what, size_t size)
{
    if (p->local > p->top_k) {
        (void)snprintf(what, size, "the latest %d slots are more than k=%d", p->local, p->top_k);
        return -EINVAL;
    }
    return 0;
}

static void settle(struct policy *p)
{
    if (p->local < 0) {
        p->local = p->top_k / 4;
    }
}

static int needs(const struct policy *p, const struct policy_host *h, struct error *reterr)
{
    if (p->r > h->least_k_dim) {
        return error_set(reterr, -EINVAL, "sparq: r=%d, but keys have %d dims", p->r,
                         h->least_k_dim);
    }
    return 0;
}

static void make(const struct policy *p, struct ops_select *ret)
{
    int32_t free_token = p->select_mode == POLICY_AS_SHIPPED;

    ret->kind = OPS_SELECT_SPARQ;
    ret->r = p->r;
    ret->k = p->top_k + free_token;
    ret->local = p->local + free_token;
    ret->mean = p->mean != POLICY_MEAN_OFF;
}

static bool keeps_mean(const struct policy *p, int32_t n_q, int32_t n_k, int32_t n_v)
{
    return p->mean == POLICY_MEAN_ON || (p->mean != POLICY_MEAN_OFF && n_q == n_k && n_q == n_v);
}

static const struct select_ops select_sparq = {.make = make, .means = keeps_mean};

const struct policy_word policy_word_sparq = {
    .name = "sparq",
    .axis = AXIS_SELECT,
    .help = "some dims of every key, then K and V of the k slots with the largest approximate "
            "weights (Ribar et al. 2023)",
    .options = options,
    .colon = true,
    .select = &select_sparq,
    .join = join,
    .settle = settle,
    .needs = needs,
};

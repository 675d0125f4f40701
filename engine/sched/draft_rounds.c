/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of proposals: counts, and how many are worth it. */

#include "engine/sched/draft_rounds.h"

/* A gain below this is noise. */
static const double least_gain = 1.02;
/* Weight of what is counted already when a thing is counted: some 50 of them matter. */
static const float fade = 0.98f;
/* Events that what is known of others counts for in a new text. */
static const float begins_as = 4;

void draft_sure_init(struct draft_sure *c)
{
    *c = (struct draft_sure){.asked = 4, .sure = 3, .tried = 4, .right = 3};
}

void draft_sure_begin(struct draft_sure *c, const struct draft_sure *all)
{
    *c = (struct draft_sure){
        .asked = begins_as,
        .sure = begins_as * all->sure / all->asked,
        .tried = begins_as,
        .right = begins_as * all->right / all->tried,
    };
}

static void count(float *n, float *hits, bool hit)
{
    *n = *n * fade + 1;
    *hits = *hits * fade + (hit ? 1 : 0);
}

void draft_sure_asked(struct draft_sure *c, int32_t n, bool ended)
{
    for (int32_t i = 0; i < n; i++) {
        count(&c->asked, &c->sure, true);
    }
    if (ended) {
        count(&c->asked, &c->sure, false);
    }
}

void draft_sure_tried(struct draft_sure *c, bool right)
{
    count(&c->tried, &c->right, right);
}

static double power(double x, int32_t n)
{
    double p = 1;

    for (int32_t i = 0; i < n; i++) {
        p *= x;
    }
    return p;
}

int32_t draft_rounds_choose(struct draft_rounds *d, const struct draft_sure *const *of,
                            const int32_t *room, int32_t n, int32_t n_seqs, int32_t most)
{
    double tokens = n_seqs;
    double takes = 1;
    double best = n_seqs * least_gain;
    int32_t rounds = 0;

    for (int32_t k = 1; k <= most; k++) {
        double nobody = 1;
        bool any = false;

        for (int32_t i = 0; i < n; i++) {
            double sure = (double)(of[i]->sure / of[i]->asked);
            double right = (double)(of[i]->right / of[i]->tried);

            if (room[i] >= k) {
                any = true;
                tokens += power(sure * right, k);
                nobody *= 1 - power(sure, k);
            }
        }
        if (!any) {
            break;
        }
        takes += (1 - nobody) * (draft_cost_of(&d->cost, k) - draft_cost_of(&d->cost, k - 1));
        if (tokens / takes > best) {
            best = tokens / takes;
            rounds = k;
        }
    }
    d->n_idle = rounds > 0 ? 0 : d->n_idle + 1;
    if (rounds == 0 && most > 0 && d->n_idle >= DRAFT_ROUNDS_AGAIN) {
        d->n_idle = 0;
        rounds = 1;
    }
    return rounds;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Slots, pages and bytes: what a store holds of a text, what a sequence needs, what the plan gives.
 *
 * With a mix of policies the bytes that the default would need for n_seqs sequences are shared out
 * by percent, each part in the proportion of its own classes.
 *
 * All sizes are products of at most four numbers checked to lie below 2^24, 2^20, 2^11 and 2^10
 * where they were read, so 64 bits hold them; the sums are compared with memory by plan.c. */

#include "engine/kv/plan/geometry_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

bool geometry_evicts(const struct geometry *s, const struct policy *p, int32_t store)
{
    return s->arrays[store].kind->evicts && policy_evicts(p) &&
           (!policy_predicts(p) || s->config.stores[store].skew);
}

int32_t geometry_store_budget(const struct geometry *s, const struct policy *p, int32_t budget,
                              int32_t store)
{
    struct policy_share share = {.weight = s->config.stores[store].weight};

    if (budget == 0 || !geometry_evicts(s, p, store)) {
        return 0;
    }
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        if (geometry_evicts(s, p, i)) {
            share.rank += i < store;
            share.n++;
            share.sum += s->config.stores[i].weight;
        }
    }
    return policy_store_budget(p, budget, &share, s->config.ctx);
}

int32_t geometry_most_slots(const struct geometry *s, const struct policy *p, int32_t budget,
                            int32_t store)
{
    return policy_most_slots(p, budget, s->arrays[store].n_groups, s->config.ctx);
}

int32_t geometry_slots(const struct geometry *s, int32_t store, int32_t budget, int32_t n_tokens)
{
    int32_t n = s->arrays[store].kind->slots(&s->arrays[store], n_tokens);

    return budget && n > budget ? budget : n;
}

int32_t geometry_budget(const struct geometry *s, const struct policy *p,
                        const struct geometry_text *text)
{
    int32_t b = policy_budget(p, text->n_prompt, s->config.ctx);

    return b && b < text->budget ? text->budget : b;
}

/* Dense and layered give the same bits, so what the plan holds decides where it holds but one. */
static bool reads_layered(const struct geometry *s, const struct policy *p,
                          const struct geometry_text *text)
{
    bool dense = s->whole_peak || text->n_prompt <= s->least_cap;

    return !policy_cuts_chunks(p) && p->scope != POLICY_SHARED && s->layered && text->held == 0 &&
           (p->prefill == POLICY_LAYERED || !dense);
}

/* Slots of a store with a budget, at most, while the prompt is read; `most` of what is held. */
static int32_t slots_at_peak(const struct policy *p, const struct geometry_text *text,
                             int32_t budget, int32_t most)
{
    int32_t n = text->n_prompt > text->held ? text->n_prompt - text->held : 0;
    int64_t all = (int64_t)(text->held_slots < most ? text->held_slots : most) + n;
    int64_t bounded = (int64_t)budget + p->chunk;

    return (int32_t)(policy_cuts_chunks(p) && bounded < all ? bounded : all);
}

/* Pages of one store: at the end of the text, of the prompt, and, at most, on the way there. */
struct store_need {
    int32_t class;
    uint32_t end;
    uint32_t cut;
    uint32_t peak;
};

static struct store_need need_of(const struct geometry *s, const struct policy *p, int32_t variant,
                                 const struct geometry_text *text, int32_t store, int32_t budget)
{
    uint32_t n = geometry_on_disk(s, p, store) >= 0 ? 0 : (uint32_t)s->arrays[store].n_groups;
    int32_t cut = geometry_slots(s, store, budget, text->n_prompt);
    /* Divided heads hold whole pages, and no more of them together than equal ones. */
    int32_t held = policy_divides_heads(p) ? geometry_pages_of(budget) * OPS_PAGE_SLOTS : budget;
    int32_t most = budget ? slots_at_peak(p, text, budget, held) : 0;

    return (struct store_need){
        .class = geometry_class_of(s, variant, store),
        .end = n * (uint32_t)geometry_pages_of(geometry_slots(s, store, budget, text->n_tokens)),
        .cut = n * (uint32_t)geometry_pages_of(cut),
        .peak = n * (uint32_t)geometry_pages_of(most > cut ? most : cut),
    };
}

void geometry_need(const struct geometry *s, const struct policy *p, int32_t variant,
                   const struct geometry_text *text, struct geometry_need *ret)
{
    int32_t mean = geometry_budget(s, p, text);
    bool layered = mean > 0 && reads_layered(s, p, text);
    uint32_t before[GEOMETRY_MAX_CLASSES] = {0}; /* of the prompt, in stores that are read */

    memset(ret, 0, sizeof(*ret));
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        int32_t b = geometry_store_budget(s, p, mean, i);

        ret->layered = ret->layered || (layered && b > 0 && text->n_prompt > b);
    }
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        int32_t b = geometry_store_budget(s, p, mean, i);
        struct store_need n = need_of(s, p, variant, text, i, b);
        int32_t at_peak = b ? slots_at_peak(p, text, b, geometry_most_slots(s, p, b, i)) : 0;
        uint32_t held = before[n.class] + n.peak;

        ret->pages[n.class] += n.end;
        ret->peak[n.class] = held > ret->peak[n.class] ? held : ret->peak[n.class];
        before[n.class] += ret->layered ? n.cut : n.peak; /* layer by layer, those are cut */
        ret->peak_state = ret->peak_state || ret->layered || at_peak > s->arrays[i].cap;
        ret->beyond_peak = ret->beyond_peak || !s->peak || at_peak > s->arrays[i].peak_cap;
    }
    for (int32_t c = 0; c < s->n_classes; c++) { /* beside those that stay */
        ret->peak[c] -= ret->pages[c] < ret->peak[c] ? ret->pages[c] : ret->peak[c];
    }
}

/* Pages for copies of states at the ends of blocks. */
static void lay_checkpoints(struct geometry *s)
{
    int32_t n = GEOMETRY_CHECKPOINTS * s->config.n_seqs;

    n = n > GEOMETRY_LEAST_CHECKPOINTS ? n : GEOMETRY_LEAST_CHECKPOINTS;
    s->n_checkpoints = s->n_states && geometry_keeps_prefixes(s) ? n : 0;
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        if (s->arrays[i].kind->state) {
            s->classes[geometry_class_of(s, 0, i)].n_pages += (uint32_t)s->n_checkpoints;
        }
    }
}

static uint64_t need_bytes(const struct geometry *s, const uint32_t *pages)
{
    uint64_t sum = 0;

    for (int32_t c = 0; c < s->n_classes; c++) {
        sum += pages[c] * (s->classes[c].page_bytes + s->classes[c].part_bytes);
    }
    return sum;
}

/* Part `v` of a mix does not hold one sequence, of which it has place for `sets` < 1: what is
 * possible of a larger share (the other parts keep some) and of more sequences. */
static int refuse_part(const struct geometry *s, int32_t v, double sets, struct error *reterr)
{
    int32_t share = s->config.mix.part[v].share;
    double percent = ceil(share / sets);
    double n_seqs = ceil(s->config.n_seqs / sets);
    bool by_share = percent <= 100 - (s->config.mix.n - 1);
    bool by_seqs = n_seqs <= GEOMETRY_MOST_SEQS;
    char larger[32] = "";
    char more[64] = "";

    if (by_share) {
        (void)snprintf(larger, sizeof(larger), ": it would with %.0f%%", percent);
    }
    if (by_seqs) {
        (void)snprintf(more, sizeof(more), "%s %.0f sequences instead of %d",
                       by_share ? ", or with" : ": it would with", n_seqs, s->config.n_seqs);
    }
    return error_set(reterr, -ENOMEM,
                     "%d%% of the cache does not hold one sequence of %d positions under policy "
                     "%d%s%s",
                     share, s->config.ctx, v + 1, larger, more);
}

int geometry_lay_pages(struct geometry *s, struct error *reterr)
{
    const struct geometry_text whole = {.n_prompt = s->config.ctx, .n_tokens = s->config.ctx};
    struct geometry_need need;
    uint32_t peak[GEOMETRY_MAX_CLASSES] = {0};
    uint64_t total;

    geometry_need(s, &s->config.mix.part[0].policy, s->variant[0], &whole, &need);
    s->seq_bytes = need_bytes(s, need.pages);
    total = s->seq_bytes * (uint64_t)s->config.n_seqs;
    for (int32_t v = 0; v < s->config.mix.n; v++) {
        geometry_need(s, &s->config.mix.part[v].policy, s->variant[v], &whole, &need);
        double sets =
            (double)total * s->config.mix.part[v].share / 100.0 / (double)need_bytes(s, need.pages);

        if (s->config.mix.n == 1) {
            sets = s->config.n_seqs; /* exact */
        } else if (sets < 1.0) {
            return refuse_part(s, v, sets, reterr);
        }
        for (int32_t c = 0; c < s->n_classes; c++) {
            s->classes[c].n_pages += (uint32_t)(sets * need.pages[c]);
            peak[c] = need.peak[c] > peak[c] ? need.peak[c] : peak[c];
        }
    }
    lay_checkpoints(s);
    for (int32_t c = 0; c < s->n_classes; c++) {
        s->kv_bytes +=
            s->classes[c].n_pages * (s->classes[c].page_bytes + s->classes[c].part_bytes);
        s->peak_bytes += peak[c] * (s->classes[c].page_bytes + s->classes[c].part_bytes);
        s->classes[c].n_pages += peak[c];
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Prediction without a second model: several tokens of a sequence in one step.
 *
 * A decode step reads every weight for one row; a few rows more cost little. So behind the row of a
 * sequence's newest token may go rows of tokens that are only guessed: forced ones, which are
 * known, or what the sequence's own text predicts (lookup.h). All are computed in one pass, as
 * rows of class decode. The sampler then draws from the first row as ever; if the token is the one
 * that was drafted for it, the next row is what the next step would have computed, to the bit,
 * and the sampler draws from that, with the next number of the request's stream;
 * and so on until a draft is wrong, or the request ends. What it says is therefore what it would
 * have said. Rows beyond are taken back (kv_step_undo): from one call of the user to the next a
 * sequence is in a state that it would have been in without.
 *
 * How many. A step that yields E tokens and takes T is worth E / T. Each drafted row adds to E the
 * chance that it is reached and right, which the lookup counts, and to T what such rows have cost
 * on this machine, with this model: steps of decode rows alone are timed, as multiples of a step of
 * the same sequences without drafts (draft_cost.h). Rows are given out one by one to the sequence
 * whose next draft is likeliest, and as many of them are taken as make E / T largest. What a number
 * of rows costs that was never tried is interpolated. Steps without drafts are run now and then to
 * compare with. Beside rows of a prompt nothing is timed; a drafted row costs computing there too,
 * but of a longer step, so what it costs of a step of decode rows is more than its share. The
 * chances are counted without drafting too, so a text that does not repeat itself costs a lookup a
 * token.
 *
 * A sequence that may exit early drafts nothing: its rows would go through the deep layers
 * together, where alone some of them would not, and say what it would not have said.
 *
 * One whose policy is exit:draft looks nothing up: the early-exit head proposes its tokens, within
 * the run that verifies them (forward_rounds.c). Its rows are there when the batch is built, and
 * their tokens when it has been run; all else is as above. How many rounds that takes is chosen
 * from times of their own (draft_rounds.h). There are none while a prompt is read: a round is a
 * pass of its own, and the prompt's rows would wait for it. */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/sched/state.h"

/* A gain below this is noise. */
static const double least_gain = 1.02;

/* ---- memory --------------------------------------------------------------------------------- */

static size_t lay_out(const struct sched_config *c, struct memory_arena *a, struct drafts *d)
{
    size_t n_seqs = (size_t)c->n_seqs;
    size_t n_rows = (size_t)c->draft_rows;
    size_t text = (lookup_bytes(c->ctx) + 63) & ~(size_t)63;
    uint8_t *texts;

    if (n_rows == 0) {
        return 0;
    }
    d->of = memory_arena_take(a, n_seqs * sizeof(*d->of));
    d->handle = memory_arena_take(a, n_seqs * sizeof(*d->handle));
    d->chance = memory_arena_take(a, n_seqs * sizeof(*d->chance));
    d->room = memory_arena_take(a, n_seqs * sizeof(*d->room));
    d->rounds.of = memory_arena_take(a, n_seqs * sizeof(*d->rounds.of));
    d->rounds.cost.of = memory_arena_take(a, (n_rows + 1) * sizeof(*d->rounds.cost.of));
    d->rounds.cost.at = memory_arena_take(a, (n_rows + 1) * sizeof(*d->rounds.cost.at));
    d->sure = memory_arena_take(a, n_seqs * sizeof(struct draft_sure *));
    d->asks = memory_arena_take(a, n_seqs * sizeof(*d->asks));
    d->order = memory_arena_take(a, n_rows * sizeof(*d->order));
    d->cost.of = memory_arena_take(a, (n_rows + 1) * sizeof(*d->cost.of));
    d->cost.at = memory_arena_take(a, (n_rows + 1) * sizeof(*d->cost.at));
    texts = memory_arena_take(a, n_seqs * text);
    for (size_t i = 0; texts && i < n_seqs; i++) {
        lookup_init(&d->of[i], texts + i * text, c->ctx);
    }
    return a->used;
}

uint64_t draft_bytes(const struct sched_config *c)
{
    struct drafts d;

    return lay_out(c, &(struct memory_arena){0}, &d);
}

int draft_create(struct sched *s, struct error *reterr)
{
    struct drafts *d = &s->drafts;
    struct memory_arena a = {.size = (size_t)draft_bytes(&s->config)};
    int r = memory_map(a.size, "drafts", &d->memory, reterr);

    if (!r && a.size > 0) {
        a.base = d->memory;
        (void)lay_out(&s->config, &a, d);
        lookup_counts_init(&d->counts);
        d->cost.n_rows = s->config.draft_rows;
        d->rounds.cost.n_rows = s->config.draft_rows;
        draft_sure_init(&d->rounds.all);
    }
    return r;
}

void draft_destroy(struct sched *s)
{
    memory_unmap(s->drafts.memory, (size_t)draft_bytes(&s->config));
}

/* ---- what rows cost ------------------------------------------------------------------------- */

void draft_built(struct sched *s, bool decode_only)
{
    if (!decode_only) {
        s->drafts.begun_ns = 0;
    }
}

void draft_measure(struct sched *s, int r)
{
    struct drafts *d = &s->drafts;

    if (d->begun_ns != 0 && r == 0) { /* what was cut short is not a step's time */
        double ns = (double)(clock_ns() - d->begun_ns);

        if (d->n_rounds == 0) {
            draft_cost_add(&d->cost, d->n_rows, ns);
        }
        if (d->n_rows == 0 && (d->n_done > 0 || d->n_rounds == 0)) {
            draft_cost_add(&d->rounds.cost, d->n_done, ns);
        }
    }
    d->begun_ns = 0;
}

/* ---- how many ------------------------------------------------------------------------------- */

/* Tokens that may be drafted for r, at most. The last new token is not fed. */
static int32_t room_of(const struct sched *s, const struct request *r)
{
    int32_t room = r->max_new - r->n_new - 1;
    int32_t spare = r->policy.exit > 0 ? 0 : kv_spare_rows(s->config.cache, r->seq);

    room = room < r->most_drafted ? room : r->most_drafted;
    room = room < spare ? room : spare;
    return room < s->config.draft_rows ? room : s->config.draft_rows;
}

static int32_t n_known(const struct request *r)
{
    int32_t n = r->n_forced - r->n_new;

    return n > 0 ? n : 0;
}

static struct lookup *lookup_of(struct sched *s, const struct request *r)
{
    struct drafts *d = &s->drafts;
    struct lookup *l = &d->of[r->seq];

    if (d->handle[r->seq] != r->handle) {
        d->handle[r->seq] = r->handle;
        lookup_begin(l);
        draft_sure_begin(&d->rounds.of[r->seq], &d->rounds.all);
    }
    return l;
}

/* The chance that draft i of r comes true, if those before it have. */
static double chance_of(struct sched *s, const struct request *r, int32_t i)
{
    const struct lookup *l = lookup_of(s, r);
    int32_t known = n_known(r);

    if (i < known) {
        return 1;
    }
    /* A text of which more is known than is in it predicts nothing yet. */
    return known == 0 && l->at > 0 && !r->policy.exit_draft
               ? (double)lookup_chance(l, i, &s->drafts.counts)
               : 0;
}

/* The sequence whose next draft is likeliest; NULL: nobody has any. */
static struct request *likeliest(struct sched *s, double *ret)
{
    struct request *best = NULL;

    *ret = 0;
    for (struct request *r = s->running.first; r; r = r->next) {
        if (!batch_decodes(r) || r->n_drafting >= s->drafts.room[r->seq]) {
            continue;
        }
        double chance = s->drafts.chance[r->seq] * chance_of(s, r, r->n_drafting);

        if (chance > *ret) {
            *ret = chance;
            best = r;
        }
    }
    return best;
}

/* Gives rows out in order of chance, and takes those back that are not worth it; how many are left.
 */
static int32_t give_out(struct sched *s, int32_t n_seqs)
{
    struct drafts *d = &s->drafts;
    double tokens = n_seqs;
    double best = n_seqs * least_gain;
    int32_t worth = 0;
    int32_t n = 0;

    while (n < s->config.draft_rows) {
        double chance;
        struct request *r = likeliest(s, &chance);

        if (!r) {
            break;
        }
        d->chance[r->seq] = chance;
        r->n_drafting++;
        d->order[n++] = r;
        tokens += chance;
        double gain = tokens / draft_cost_of(&d->cost, n);

        if (gain > best || s->config.draft_always) {
            best = gain;
            worth = n;
        }
    }
    while (n > worth) {
        d->order[--n]->n_drafting--;
    }
    return worth;
}

static bool any_drafts(const struct sched *s)
{
    bool any = false;

    for (const struct request *r = s->running.first; r; r = r->next) {
        if (batch_decodes(r) && policy_selects(&r->policy)) {
            return false; /* such rows are one a sequence */
        }
        any = any || (batch_decodes(r) && r->most_drafted > 0);
    }
    return any;
}

/* Returns how many sequences decode. */
static int32_t begin_step(struct sched *s)
{
    struct drafts *d = &s->drafts;
    uint64_t crowd = 0;
    int32_t n = 0;

    for (struct request *r = s->running.first; r; r = r->next) {
        if (!batch_decodes(r)) {
            continue;
        }
        d->chance[r->seq] = 1;
        d->room[r->seq] = room_of(s, r);
        crowd = (crowd ^ r->handle) * UINT64_C(0x100000001b3);
        n++;
        if (r->most_drafted > 0 && n_known(r) == 0 && !r->policy.exit_draft) {
            lookup_follow(lookup_of(s, r), r->tokens, r->n_prompt + r->n_new,
                          r->n_prompt + r->n_forced, &d->counts);
        }
    }
    if (crowd != d->crowd) {
        d->crowd = crowd;
        draft_cost_anew(&d->cost);
        draft_cost_anew(&d->rounds.cost);
    }
    return n;
}

/* Does the head propose for r in this step? */
static bool proposes(const struct sched *s, const struct request *r)
{
    return batch_decodes(r) && r->policy.exit_draft && n_known(r) == 0 &&
           s->drafts.room[r->seq] > 0;
}

static bool reads_prompts(const struct sched *s)
{
    const struct request *r = s->running.first;

    while (r && r->n_fed >= r->n_prompt) {
        r = r->next;
    }
    return r != NULL;
}

/* Gives rows to those for whom the head proposes, as many rounds as are worth it. */
static void plan_rounds(struct sched *s, int32_t n_seqs)
{
    struct drafts *d = &s->drafts;
    int32_t longest = 0;
    int32_t n = 0;

    for (const struct request *r = s->running.first; r; r = r->next) {
        if (proposes(s, r)) {
            (void)lookup_of(s, r); /* a new text's counts begin */
            d->sure[n] = &d->rounds.of[r->seq];
            d->asks[n++] = d->room[r->seq];
            longest = longest > d->room[r->seq] ? longest : d->room[r->seq];
        }
    }
    if (n == 0 || reads_prompts(s)) {
        return;
    }
    int32_t most = (s->config.draft_rows - d->n_rows) / n;

    most = most < longest ? most : longest;
    d->n_rounds = s->config.draft_always
                      ? most
                      : draft_rounds_choose(&d->rounds, d->sure, d->asks, n, n_seqs, most);
    s->batch.least = s->config.draft_always ? 0 : (float)(draft_cost_of(&d->rounds.cost, 1) - 1.0);
    for (struct request *r = s->running.first; r; r = r->next) {
        if (proposes(s, r)) {
            r->n_proposing = d->n_rounds < d->room[r->seq] ? d->n_rounds : d->room[r->seq];
        }
    }
}

void draft_choose(struct sched *s)
{
    struct drafts *d = &s->drafts;

    d->n_rows = 0;
    d->n_rounds = 0;
    d->n_done = 0;
    d->begun_ns = 0;
    for (struct request *r = s->running.first; r; r = r->next) {
        r->n_drafting = 0;
        r->n_proposing = 0;
    }
    if (s->config.draft_rows == 0 || s->running.n > s->config.draft_rows || !any_drafts(s)) {
        return;
    }
    int64_t now = clock_ns();
    int32_t n_seqs = begin_step(s);

    if (n_seqs == 0) {
        return;
    }
    if (s->config.draft_always ||
        !(draft_cost_wants_plain(&d->cost) || draft_cost_wants_plain(&d->rounds.cost))) {
        d->n_rows = give_out(s, n_seqs);
        plan_rounds(s, n_seqs);
    }
    d->begun_ns = now;
}

/* ---- the rows ------------------------------------------------------------------------------- */

void draft_write(struct sched *s, const struct request *r, int32_t *ret)
{
    int32_t n = r->n_drafting;

    if (n == 0) {
        return;
    }
    if (n_known(r) > 0) {
        memcpy(ret, r->tokens + r->n_fed + 1, (size_t)n * sizeof(*ret));
        return;
    }
    n = lookup_foretell(lookup_of(s, r), r->tokens, n, ret);
    assert(n == r->n_drafting);
}

void draft_count(struct sched *s, struct request *r, int32_t seq)
{
    struct drafts *d = &s->drafts;
    int32_t n = n_known(r) > 0 ? 0 : r->n_drafting;

    if (r->n_proposing > 0) {
        n = forward_ran(s->forward, seq) - 1;
        draft_sure_asked(&d->rounds.of[r->seq], n, n < r->n_proposing);
        draft_sure_asked(&d->rounds.all, n, n < r->n_proposing);
        d->n_done = d->n_done > n ? d->n_done : n;
    }
    r->n_drafted += n;
    s->counters.n_drafted += (uint64_t)n;
}

bool draft_holds(struct sched *s, struct request *r, const struct wanted *w)
{
    if (w->pos == r->n_fed - 1) {
        return true;
    }
    if (w->pos != r->n_fed) {
        return false;
    }
    bool right = s->batch.ids[w->row] == r->tokens[r->n_fed];

    if (r->n_proposing > 0) {
        draft_sure_tried(&s->drafts.rounds.of[r->seq], right);
        draft_sure_tried(&s->drafts.rounds.all, right);
    }
    if (!right) {
        return false;
    }
    kv_step_commit(s->config.cache, r->seq, 1);
    r->n_fed++;
    if (r->n_new > r->n_forced) { /* the newest token was drawn */
        r->n_accepted++;
        s->counters.n_accepted++;
    }
    return true;
}

void draft_take_back(struct sched *s, struct request *r)
{
    if (r->seq < 0 || (r->n_drafting + r->n_proposing == 0 && !s->batch.surplus) || !r->in_batch ||
        s->batch.pending) {
        return;
    }
    r->n_drafting = 0;
    r->n_proposing = 0;
    if (s->batch.surplus && r->unsaved) {
        kv_step_drop(s->config.cache, r->seq);
    } else {
        kv_step_undo(s->config.cache, r->seq);
    }
}

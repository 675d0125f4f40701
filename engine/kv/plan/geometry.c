/* SPDX-License-Identifier: Apache-2.0 */
/* Pages and bytes of the cache.
 *
 * Stores whose head groups have the same heads, dims and types share a page class whatever their
 * layer. A sequence under an evicting policy has `steady_cap` slots for positions and scores a
 * group; a prompt longer than that needs more while it is read, which one sequence at a time gets
 * from a region of its own (dense: the whole context for every store; bounded: budget + chunk;
 * layered: the whole context for one store, and the hidden states of the prompt).
 *
 * With a mix of policies the bytes that the default would need for n_seqs sequences are shared out
 * by percent, each part in the proportion of its own classes.
 *
 * All sizes are products of at most four numbers checked to lie below 2^24, 2^20, 2^11 and 2^10
 * where they were read, so 64 bits hold them; the sums are compared with memory by plan.c. */

#include "engine/kv/plan/geometry.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/policy/select.h"

static int32_t gcd(int32_t a, int32_t b)
{
    while (b) {
        int32_t t = a % b;

        a = b;
        b = t;
    }
    return a;
}

static int32_t pages_of(int32_t slots)
{
    return (int32_t)(((int64_t)slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS);
}

static uint64_t align64(uint64_t v)
{
    return (v + 63) & ~UINT64_C(63);
}

/* ---- classes ------------------------------------------------------------------------------ */

static bool same_class(const struct ops_kv_layout *a, const struct ops_kv_layout *b)
{
    return a->k_heads == b->k_heads && a->v_heads == b->v_heads && a->k_dim == b->k_dim &&
           a->v_dim == b->v_dim && a->k_type == b->k_type && a->v_type == b->v_type &&
           a->k_unrotated == b->k_unrotated && a->rank == b->rank && a->part_dims == b->part_dims &&
           a->part_type == b->part_type && a->part_apart == b->part_apart;
}

static int find_class(struct geometry *s, const struct ops_kv_layout *l, int32_t n_before,
                      struct error *reterr)
{
    for (int32_t i = 0; i < n_before; i++) {
        if (same_class(&s->layouts[i], l)) {
            return s->class_of[i];
        }
    }
    if (s->n_classes == GEOMETRY_MAX_CLASSES) {
        return error_set(reterr, -ENOTSUP, "the cache would need more than %d page classes",
                         GEOMETRY_MAX_CLASSES);
    }
    struct geometry_class *c = &s->classes[s->n_classes];
    char part[32] = "";

    c->page_bytes = l->page_bytes;
    c->part_bytes = l->part_apart ? l->part_bytes : 0;
    if (l->part_dims > 0) {
        (void)snprintf(part, sizeof(part), "%s + %s %dx%d", l->part_apart ? " (host)" : "",
                       ops_kv_type_name(l->part_type), l->k_heads, l->part_dims);
    }
    (void)snprintf(c->name, sizeof(c->name), "%s %dx%d + %s %dx%d%s%s", ops_kv_type_name(l->k_type),
                   l->k_heads, l->k_dim, ops_kv_type_name(l->v_type), l->v_heads, l->v_dim,
                   l->rank == OPS_RANK_2K  ? " + K twice"
                   : l->rank == OPS_RANK_8 ? " + K twice, fp8"
                                           : "",
                   part);
    return s->n_classes++;
}

/* Do two policies want the same pages? */
static bool same_pages(const struct policy *a, const struct policy *b)
{
    return a->k_type == b->k_type && a->v_type == b->v_type && a->pos_new == b->pos_new &&
           a->rank == b->rank && select_part_dims(a, 1 << 20) == select_part_dims(b, 1 << 20) &&
           select_part_type(a) == select_part_type(b) && policy_on_host(a) == policy_on_host(b);
}

static int lay_classes(struct geometry *s, struct error *reterr)
{
    for (int32_t v = 0; v < s->config.mix.n; v++) {
        const struct policy *p = &s->config.mix.part[v].policy;

        s->variant[v] = v;
        for (int32_t e = 0; e < v; e++) {
            if (same_pages(&s->config.mix.part[e].policy, p)) {
                s->variant[v] = s->variant[e];
                break;
            }
        }
        for (int32_t i = 0; i < s->config.n_stores; i++) {
            const struct geometry_store *st = &s->config.stores[i];
            int32_t n_groups = gcd(st->n_k, st->n_v);
            int32_t at = v * s->config.n_stores + i;
            struct ops_kv_layout *l = &s->layouts[at];

            *l = (struct ops_kv_layout){
                .n_groups = n_groups,
                .k_heads = st->n_k / n_groups,
                .v_heads = st->n_v / n_groups,
                .k_dim = st->k_dim,
                .v_dim = st->v_dim,
                .k_type = p->k_type,
                .v_type = p->v_type,
                .k_unrotated = p->pos_new != 0,
                .rank = (enum ops_rank)p->rank,
                .part_dims = st->skew ? select_part_dims(p, st->k_dim) : 0,
            };
            l->part_type = l->part_dims == 0 ? OPS_KV_F32 : select_part_type(p);
            l->part_apart = l->part_dims > 0 && policy_on_host(p);
            int r = s->config.ops->kv_layout(l, reterr);

            if (r) {
                return r;
            }
            r = find_class(s, l, at, reterr);
            if (r < 0) {
                return r;
            }
            s->class_of[at] = (uint8_t)r;
        }
    }
    return 0;
}

/* ---- a seat ------------------------------------------------------------------------------- */

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    uint64_t off = *at;

    *at = align64(off + bytes);
    return off;
}

/* Slots that need a position: what policies keep at most, and while a prompt is read. */
static void lay_caps(struct geometry *s)
{
    for (int32_t v = 0; v < s->config.mix.n; v++) {
        const struct policy *p = &s->config.mix.part[v].policy;
        int32_t b = policy_budget(p, s->config.ctx, s->config.ctx);
        int64_t bounded = (int64_t)b + p->chunk;
        int32_t peak =
            policy_cuts_chunks(p) && bounded < s->config.ctx ? (int32_t)bounded : s->config.ctx;

        if (!policy_evicts(p)) {
            continue;
        }
        s->steady_cap = b > s->steady_cap ? b : s->steady_cap;
        s->peak_cap = peak > s->peak_cap ? peak : s->peak_cap;
        s->scores = s->scores || policy_scores(p);
        s->whole_peak = s->whole_peak || p->prefill != POLICY_LAYERED;
        if (p->prefill == POLICY_LAYERED) {
            s->layered = true;
            s->max_survivors = p->observe > s->max_survivors ? p->observe : s->max_survivors;
        }
    }
    if (s->peak_cap <= s->steady_cap) {
        s->peak_cap = 0;
        s->layered = false;
    }
    s->max_survivors = s->max_survivors < s->config.ctx ? s->max_survivors : s->config.ctx;
}

/* Region for the prompt that is being read: positions and scores of every store (dense, bounded)
 * or of one at a time (layered), then hidden states. */
static void lay_peak(struct geometry *s)
{
    uint64_t whole = 0;
    uint64_t one = 0;
    bool deep = false;

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        const struct geometry_store *st = &s->config.stores[i];
        struct geometry_seat *q = &s->seats[i];
        uint64_t bytes = (uint64_t)q->n_groups * (uint64_t)s->peak_cap * sizeof(int32_t);
        uint64_t at = 0;

        deep = deep || st->deep;
        if (st->window) {
            continue;
        }
        q->peak_pos_off = take(&whole, bytes);
        q->peak_score_off = take(&whole, s->scores ? bytes : 0);
        (void)take(&at, bytes);
        q->layer_score_off = take(&at, s->scores ? bytes : 0);
        one = at > one ? at : one;
    }
    s->peak_state_bytes = s->whole_peak ? whole : s->layered ? one : 0;
    if (s->layered) {
        s->peak_state_bytes = one > s->peak_state_bytes ? one : s->peak_state_bytes;
        s->hidden_off =
            take(&s->peak_state_bytes, (uint64_t)s->config.ctx * s->config.hidden_bytes);
        s->max_survivors = deep ? s->max_survivors : 0;
        s->survivors_off =
            take(&s->peak_state_bytes, (uint64_t)s->max_survivors * s->config.hidden_bytes);
    }
}

static void lay_seat(struct geometry *s)
{
    uint64_t table = 0;
    uint64_t state = 0;

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        const struct geometry_store *st = &s->config.stores[i];
        struct geometry_seat *q = &s->seats[i];
        uint64_t n = (uint64_t)gcd(st->n_k, st->n_v);
        int64_t ring = st->window
                           ? ((int64_t)st->window + s->config.max_chunk + OPS_PAGE_SLOTS - 2) /
                                 OPS_PAGE_SLOTS * OPS_PAGE_SLOTS
                           : 0;

        q->n_groups = (int32_t)n;
        q->ring = ring < s->config.ctx ? (int32_t)ring : 0;
        q->max_pages = pages_of(q->ring ? q->ring : s->config.ctx);
        q->pages_off = take(&table, n * (uint64_t)q->max_pages * sizeof(uint32_t));
        q->ring_off = take(&table, n * (uint64_t)q->ring * sizeof(int32_t));
        if (!st->window && s->sums) {
            q->sum_off = take(&state, (uint64_t)st->n_v * (uint64_t)st->v_dim * sizeof(float));
        }
        if (st->window || s->steady_cap == 0) {
            continue;
        }
        q->pos_off = take(&state, n * (uint64_t)s->steady_cap * sizeof(int32_t));
        if (s->scores) {
            q->score_off = take(&state, n * (uint64_t)s->steady_cap * sizeof(float));
        }
        q->victim_off = take(&state, n * sizeof(int32_t));
    }
    s->table_bytes = table;
    s->state_bytes = state;
    if (s->peak_cap > 0) {
        lay_peak(s);
    }
}

/* ---- what policies need ---------------------------------------------------------------------- */

/* What model and backend are, as policies ask it. Partial keys are of stores that are read from the
 * third layer on. */
static struct policy_host host_of(const struct geometry *s)
{
    const struct geometry_store *first = NULL;
    struct policy_host h = {.ops = s->config.ops,
                            .one_memory = s->config.one_memory,
                            .exit_head = s->config.exit_head,
                            .split = s->config.split,
                            .least_k_dim = INT32_MAX,
                            .no_part_keys = -1,
                            .uneven = {-1, -1}};

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        const struct geometry_store *st = &s->config.stores[i];

        h.least_k_dim = st->k_dim < h.least_k_dim ? st->k_dim : h.least_k_dim;
        if (st->layer >= 2 && st->window == 0 && !st->skew && h.no_part_keys < 0) {
            h.no_part_keys = st->layer;
        }
        if (!st->skew) {
            continue;
        }
        h.part_keys = true;
        if (first && h.uneven[0] < 0 &&
            (st->n_k != first->n_k || st->n_v != first->n_v || st->k_dim != first->k_dim ||
             st->v_dim != first->v_dim)) {
            h.uneven[0] = first->layer;
            h.uneven[1] = st->layer;
        }
        first = st;
    }
    return h;
}

int geometry_check_host(const struct geometry *s, const struct policy *p, struct error *reterr)
{
    struct policy_host h = host_of(s);

    return policy_check_host(p, &h, reterr);
}

bool geometry_keeps_sum(const struct geometry *s, const struct policy *p, int32_t store)
{
    const struct geometry_store *st = &s->config.stores[store];

    return st->window == 0 && select_means(p, s->config.n_q, st->n_k, st->n_v);
}

static int lay_select(struct geometry *s, struct error *reterr)
{
    for (int32_t v = 0; v < s->config.mix.n; v++) {
        const struct policy *p = &s->config.mix.part[v].policy;
        int r = geometry_check_host(s, p, reterr);

        if (r) {
            return r;
        }
        s->selects = s->selects || policy_selects(p);
        s->speculates = s->speculates || policy_predicts(p);
        for (int32_t i = 0; i < s->config.n_stores; i++) {
            s->sums = s->sums || geometry_keeps_sum(s, p, i);
        }
    }
    return 0;
}

/* ---- pages -------------------------------------------------------------------------------- */

int32_t geometry_on_disk(const struct geometry *s, const struct policy *p, int32_t store)
{
    int32_t n = 0;

    if (!policy_on_disk(p) || !s->config.stores[store].skew) {
        return -1;
    }
    for (int32_t i = 0; i < store; i++) {
        n += s->config.stores[i].skew != NULL;
    }
    return n;
}

bool geometry_evicts(const struct geometry *s, const struct policy *p, int32_t store)
{
    const struct geometry_store *st = &s->config.stores[store];

    return st->window == 0 && policy_evicts(p) && (!policy_predicts(p) || st->skew);
}

int32_t geometry_slots(const struct geometry *s, const struct policy *p, int32_t store,
                       int32_t budget, int32_t n_tokens)
{
    int32_t ring = s->seats[store].ring;
    int32_t most = ring ? ring : geometry_evicts(s, p, store) ? budget : 0;

    return most && n_tokens > most ? most : n_tokens;
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
    bool dense = s->whole_peak || text->n_prompt <= s->steady_cap;

    return !policy_cuts_chunks(p) && p->scope != POLICY_SHARED && s->layered && text->held == 0 &&
           (p->prefill == POLICY_LAYERED || !dense);
}

/* Slots of a global store, at most, while the prompt is read. */
static int32_t slots_at_peak(const struct policy *p, const struct geometry_text *text,
                             int32_t budget)
{
    int32_t n = text->n_prompt > text->held ? text->n_prompt - text->held : 0;
    int64_t all = (int64_t)(budget ? text->held_slots : text->held) + n;
    int64_t bounded = (int64_t)budget + p->chunk;

    return (int32_t)(budget && policy_cuts_chunks(p) && bounded < all ? bounded : all);
}

/* Pages by class that are held at once while the prompt is read, at most: of all stores, or, layer
 * by layer, of one store with the whole prompt and those before it, which are cut. */
static void prompt_pages(const struct geometry *s, const struct policy *p, int32_t variant,
                         const struct geometry_text *text, int32_t budget, bool layered,
                         int32_t at_peak, uint32_t ret[GEOMETRY_MAX_CLASSES])
{
    uint32_t before[GEOMETRY_MAX_CLASSES] = {0};

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        int32_t c = geometry_class_of(s, variant, i);
        int32_t n = geometry_on_disk(s, p, i) >= 0 ? 0 : s->seats[i].n_groups;
        int32_t cut = pages_of(geometry_slots(s, p, i, budget, text->n_prompt));
        int32_t whole = budget && geometry_evicts(s, p, i) ? pages_of(at_peak) : cut;
        uint32_t held = before[c] + (uint32_t)(n * (whole > cut ? whole : cut));

        ret[c] = held > ret[c] ? held : ret[c];
        before[c] = layered ? before[c] + (uint32_t)(n * cut) : held;
    }
}

void geometry_need(const struct geometry *s, const struct policy *p, int32_t variant,
                   const struct geometry_text *text, struct geometry_need *ret)
{
    int32_t budget = geometry_budget(s, p, text);
    int32_t at_peak = slots_at_peak(p, text, budget);
    bool layered = budget && text->n_prompt > budget && reads_layered(s, p, text);

    memset(ret, 0, sizeof(*ret));
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        int32_t n = geometry_on_disk(s, p, i) >= 0 ? 0 : s->seats[i].n_groups;

        ret->pages[geometry_class_of(s, variant, i)] +=
            (uint32_t)(n * pages_of(geometry_slots(s, p, i, budget, text->n_tokens)));
    }
    prompt_pages(s, p, variant, text, budget, layered, at_peak, ret->peak);
    for (int32_t c = 0; c < s->n_classes; c++) { /* beside those that stay */
        ret->peak[c] -= ret->pages[c] < ret->peak[c] ? ret->pages[c] : ret->peak[c];
    }
    ret->peak_slots = at_peak;
    ret->layered = layered;
    ret->peak_state = budget && (layered || at_peak > s->steady_cap);
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

/* One format for every policy on disk; what their pages hold may differ in the first layers' only.
 */
static int lay_tier(struct geometry *s, struct error *reterr)
{
    const struct policy *first = NULL;

    for (int32_t v = 0; v < s->config.mix.n; v++) {
        const struct policy *p = &s->config.mix.part[v].policy;
        int32_t last = -1;

        for (int32_t i = 0; i < s->config.n_stores; i++) {
            if (geometry_on_disk(s, p, i) < 0) {
                continue;
            }
            last = i;
            s->tier.n_stores = geometry_on_disk(s, p, i) + 1;
        }
        int32_t pool = policy_pool_slots(p, s->config.ctx, s->config.ctx);

        s->tier.pool_slots = pool > s->tier.pool_slots ? pool : s->tier.pool_slots;
        if (last < 0) {
            continue;
        }
        if (first && !same_pages(first, p)) {
            return error_set(reterr, -ENOTSUP,
                             "%s beside %s in one mix: the file has keys and values of one format",
                             policy_disk_option(first), policy_disk_option(p));
        }
        first = first ? first : p;
        s->tier.layout = *geometry_layout(s, s->variant[v], last);
        s->tier_variant = s->variant[v];
        s->tier_option = policy_disk_option(first);
    }
    s->tier.ops = s->config.ops;
    s->tier.n_seats = s->config.n_seqs;
    s->tier.ctx = s->config.ctx;
    s->tier.max_chunk = s->config.max_chunk;
    for (int32_t i = 0; first && i < s->config.n_stores; i++) {
        s->prompt_read_bytes += geometry_on_disk(s, first, i) < 0
                                    ? 0
                                    : tier_prompt_bytes(&s->tier, s->config.ctx, first->chunk,
                                                        s->config.stores[i].deep);
    }
    return 0;
}

/* The largest store of those whose pages lie on the host, and the widest. */
static void lay_staging(struct geometry *s)
{
    s->staging = (struct staging_config){
        .ops = s->config.ops, .n_seqs = s->config.n_seqs, .max_pages = pages_of(s->config.ctx)};
    for (int32_t i = 0; i < s->config.mix.n * s->config.n_stores; i++) {
        const struct ops_kv_layout *l = &s->layouts[i];
        uint64_t bytes = (uint64_t)l->n_groups * (uint64_t)s->staging.max_pages * l->page_bytes;

        if (l->part_apart) {
            s->staging.seq_bytes = bytes > s->staging.seq_bytes ? bytes : s->staging.seq_bytes;
            s->staging.max_groups =
                l->n_groups > s->staging.max_groups ? l->n_groups : s->staging.max_groups;
        }
    }
}

static int lay_pages(struct geometry *s, struct error *reterr)
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
    for (int32_t c = 0; c < s->n_classes; c++) {
        s->kv_bytes +=
            s->classes[c].n_pages * (s->classes[c].page_bytes + s->classes[c].part_bytes);
        s->peak_bytes += peak[c] * (s->classes[c].page_bytes + s->classes[c].part_bytes);
        s->classes[c].n_pages += peak[c];
    }
    return 0;
}

int geometry_make(const struct geometry_config *config, struct geometry *ret, struct error *reterr)
{
    struct geometry s = {.config = *config};
    size_t n = (size_t)config->mix.n * (size_t)config->n_stores;
    int r;

    s.layouts = calloc(n, sizeof(*s.layouts));
    s.class_of = calloc(n, sizeof(*s.class_of));
    s.seats = calloc((size_t)config->n_stores, sizeof(*s.seats));
    if (!s.layouts || !s.class_of || !s.seats) {
        r = error_set(reterr, -ENOMEM, "cache: no memory for its geometry");
        goto fail;
    }
    for (int32_t i = 0; i < config->n_stores; i++) {
        const struct geometry_store *st = &config->stores[i];

        s.full_token_bytes +=
            2 * ((uint64_t)st->n_k * (uint64_t)st->k_dim + (uint64_t)st->n_v * (uint64_t)st->v_dim);
    }
    r = lay_select(&s, reterr);
    if (!r) {
        r = lay_classes(&s, reterr);
    }
    if (!r) {
        lay_caps(&s);
        lay_seat(&s);
        lay_staging(&s);
        r = lay_tier(&s, reterr);
    }
    if (!r) {
        r = lay_pages(&s, reterr);
    }
    if (r) {
        goto fail;
    }
    *ret = s;
    return 0;
fail:
    geometry_finish(&s);
    return r;
}

void geometry_finish(struct geometry *s)
{
    free(s->seats);
    free(s->class_of);
    free(s->layouts);
    *s = (struct geometry){0};
}

int geometry_variant(const struct geometry *s, const struct policy *p)
{
    for (int32_t v = 0; v < s->config.mix.n; v++) {
        if (same_pages(&s->config.mix.part[v].policy, p)) {
            return s->variant[v];
        }
    }
    return -ENOENT;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Stores whose K and V lie in a file (tier.h), in a step.
 *
 * Layer i - 1 asks for layer i's store, then lands its own: so reading overlaps with everything
 * from layer i - 1's landing to layer i's projections, and the disk need not rest in between.
 * Decode rows read what was predicted; rows of a prompt, and of a policy that reads all, everything
 * before them.
 *
 * Deep stores are written at SwiftKV's split, all in a row, through the same staging store; so when
 * a deep layer's turn comes its new rows are not there any more, and land with the others. Of a
 * prompt only sequences of which rows go on read deep stores at all. Layers of an AcrossKV group
 * read what its first one landed: nothing else lands until the group is through. */

#include "engine/kv/home/home.h"

#include <errno.h>

#include "engine/kv/home/tier.h"
#include "engine/kv/seq/cache_impl.h"

static int32_t number_of(const struct cache *c, int32_t i, int32_t store)
{
    return c->tier ? cache_on_disk(c, c->step->rows[i].seq, store) : -1;
}

/* Does any row of it read the store? */
static bool reads(const struct cache *c, int32_t i, int32_t store)
{
    return !c->geometry.config.stores[store].deep || c->step->rows[i].n_beyond > 0;
}

static void begin(struct cache *c)
{
    if (c->tier) { /* what a step that was given up had asked for */
        tier_drop(c->tier);
    }
}

static int show_parts(struct cache *c, const struct kv_args *args)
{
    struct kv_step *s = c->step;

    for (int32_t i = 0; c->tier && i < s->n; i++) {
        if (number_of(c, i, args->store) >= 0) {
            tier_part_view(c->tier, s->rows[i].seq, number_of(c, i, args->store), &s->seqs[i].kv);
        }
    }
    return 0;
}

static int fetch(struct cache *c, const struct kv_args *args)
{
    const struct kv_step *s = c->step;

    for (int32_t i = 0; c->tier && i < s->n; i++) {
        const struct kv_rows *rows = &s->rows[i];
        int32_t number = number_of(c, i, args->store);
        bool some = rows->pos0 >= c->seqs[rows->seq].n_prompt && s->selects &&
                    s->select[i].kind == OPS_SELECT_GIVEN;

        if (number >= 0 && rows->pos0 > 0 && reads(c, i, args->store)) {
            tier_fetch(c->tier, rows->seq, number, 0, rows->pos0,
                       some ? step_list(c, args->store) : NULL, i);
        }
    }
    return 0;
}

static int land(struct cache *c, const struct kv_args *args)
{
    const struct kv_step *s = c->step;
    bool deep = c->geometry.config.stores[args->store].deep;
    int32_t last = -1;

    for (int32_t i = 0; c->tier && i < s->n; i++) {
        int32_t number = number_of(c, i, args->store);

        if (deep && number >= 0 && reads(c, i, args->store)) {
            struct ops_seq seq = step_seq(c, i, args->store);

            tier_fetch(c->tier, s->rows[i].seq, number, seq.slot0, seq.slot0 + seq.n_rows, NULL, 0);
        }
        last = number >= 0 ? number : last;
    }
    return last < 0 ? 0 : tier_land(c->tier, last); /* of all of them */
}

static int open_rows(struct cache *c, const struct kv_args *args)
{
    int r = 0;

    for (int32_t i = 0; !r && c->tier && i < c->step->n; i++) {
        int32_t number = number_of(c, i, args->store);

        if (number >= 0) {
            r = tier_open(c->tier, c->step->rows[i].seq, number, step_seq(c, i, args->store).slot0);
        }
    }
    return r;
}

static int keep_rows(struct cache *c, const struct kv_args *args)
{
    int r = 0;

    for (int32_t i = 0; !r && c->tier && i < c->step->n; i++) {
        int32_t number = number_of(c, i, args->store);

        if (number >= 0) {
            r = tier_keep(c->tier, c->step->rows[i].seq, number, step_seq(c, i, args->store).slot0,
                          c->step->rows[i].n_rows);
        }
    }
    return r;
}

/* ---- the file's life, and sequences in it ---- */

static uint64_t bytes(const struct geometry *s)
{
    return s->tier.n_stores ? tier_bytes(&s->tier) : 0;
}

static int create(struct cache *c, struct error *reterr)
{
    const struct geometry_config *g = &c->geometry.config;

    if (!c->geometry.tier.n_stores) {
        return 0;
    }
    return g->tier_dir
               ? tier_create(&c->geometry.tier, c->be, g->tier_dir, g->tier_calls, &c->tier, reterr)
               : error_set(reterr, -EINVAL, "%s: no directory is given for its file (--tier-dir)",
                           c->geometry.tier_option);
}

static void destroy(struct cache *c)
{
    tier_destroy(c->tier);
}

static bool has(const struct cache *c, int32_t seq)
{
    return policy_on_disk(&c->seqs[seq].policy);
}

static void admit(struct cache *c, int32_t seq, const struct geometry_text *text)
{
    const struct policy *p = &c->seqs[seq].policy;

    if (has(c, seq)) {
        tier_admit(c->tier, seq,
                   &(struct tier_pool_rule){
                       .victim = (enum policy_victim)p->victim,
                       .n_slots = policy_pool_slots(p, text->n_prompt, c->geometry.config.ctx),
                       .exempt = p->exempt,
                   });
    }
}

static void release(struct cache *c, int32_t seq)
{
    if (has(c, seq)) {
        tier_release(c->tier, seq);
    }
}

static int failed(const struct cache *c, int32_t seq, struct error *ret)
{
    return has(c, seq) ? tier_failed(c->tier, seq, ret) : 0;
}

static void attach(const struct cache *c, int32_t seq, int32_t store, struct ops_kv *kv)
{
    (void)store;
    tier_view(c->tier, seq, kv);
}

/* ---- snapshots ---- */

static void save_begin(struct cache *c, int32_t seq)
{
    if (has(c, seq)) {
        tier_save_begin(c->tier, seq, c->seqs[seq].n_tokens);
    }
}

static void save_end(struct cache *c, int32_t seq)
{
    if (has(c, seq)) {
        tier_save_end(c->tier, seq);
    }
}

static bool save_waits(struct cache *c, int32_t seq, int32_t store, int32_t slot)
{
    return tier_save_waits(c->tier, seq, cache_on_disk(c, seq, store), slot);
}

static int export(struct cache *c, int32_t seq, int32_t store, int32_t group, int32_t slot0,
                  int32_t n, void *to)
{
    return tier_save_slots(c->tier, seq, cache_on_disk(c, seq, store), group, slot0, n, to);
}

static int keep(struct cache *c, int32_t seq, int32_t store, int32_t slot0, int32_t n)
{
    return tier_keep(c->tier, seq, cache_on_disk(c, seq, store), slot0, n);
}

const struct home_ops home_disk = {.bytes = bytes,
                                   .create = create,
                                   .destroy = destroy,
                                   .admit = admit,
                                   .release = release,
                                   .failed = failed,
                                   .attach = attach,
                                   .save_begin = save_begin,
                                   .save_waits = save_waits,
                                   .export = export,
                                   .save_end = save_end,
                                   .keep = keep,
                                   .begin = begin,
                                   .at = {
                                       [HOME_BEFORE_RANK] = show_parts,
                                       [HOME_PREDICTED] = fetch,
                                       [HOME_LAND] = land,
                                       [HOME_BEFORE_STORE] = open_rows,
                                       [HOME_AFTER_STORE] = keep_rows,
                                   }};

/* SPDX-License-Identifier: Apache-2.0 */
/* Stores whose pages lie in the host's memory (pool=host), in a step.
 *
 * Behind layer i - 1's attention layer i's K and V begin to come to the device (staging.h), beside
 * the products up to layer i's attention, which waits for them and for nothing brought later: of
 * decode rows that choose, what was predicted, in the order of the list; of all others the whole
 * store. New rows are stored at home and once more in staging: behind the list, or at their own
 * slot. Deep stores (SwiftKV) have their new rows at home before anything is brought, and get them
 * brought with the rest; the first of them is brought behind the split.
 *
 * Consecutive stores take turns by parity. Staging of turn t is free when layer i's is brought:
 * attention of the store before last, which read it, came before layer i's choice. All layers of an
 * AcrossKV group find what their first one brought. */

#include "engine/kv/home/home.h"
#include "engine/kv/home/staging.h"
#include "engine/kv/seq/cache.h"

static bool on_host(const struct ops_seq *seq)
{
    return seq->n_rows > 0 && seq->kv.layout->part_apart;
}

static int fetch(struct cache *c, const struct kv_args *args)
{
    struct kv_step *s = c->step;
    int32_t turn = args->store & 1;
    bool deep = c->geometry.config.stores[args->store].deep;
    struct ops_bring p = {.seqs = s->brings, .chosen = step_list(c, args->store)};

    if (!c->staging) {
        return 0;
    }
    step_take(c, args->store, args->part);
    for (int32_t i = 0; i < s->n; i++) {
        const struct ops_seq *seq = &s->seqs[i];
        bool some = step_is_listed(c, i, &args->rows);
        struct ops_bring_seq b = {
            .from = seq->kv,
            .to = staging_view(c->staging, turn, i, &seq->kv),
            .listed = some,
            .entry = i,
            .own = some && deep ? seq->slot0 : -1,
            .n = some || deep ? seq->kv.n_slots : seq->slot0,
        };

        if (on_host(seq) && b.n > 0) {
            s->brings[p.n_seqs++] = b;
        }
    }
    return p.n_seqs ? c->geometry.config.ops->bring(c->be, &p) : 0;
}

/* The rows that args->store_rows wrote at home, once more: as often as there are runs of sequences
 * whose rows lie together. */
static int store_again(struct cache *c, const struct kv_args *args)
{
    struct kv_step *s = c->step;
    int32_t turn = args->store & 1;
    const struct ops_chosen *list = step_list(c, args->store);
    struct ops_rope_store p = *args->store_rows;
    int r = 0;

    if (!c->staging || c->geometry.config.stores[args->store].deep) {
        return 0;
    }
    p.n_q = 0;
    p.seqs = s->seqs;
    p.n_seqs = 0;
    step_take(c, args->store, args->part);
    for (int32_t i = 0; i < s->n && !r; i++) {
        struct ops_seq seq = s->seqs[i];
        bool ours = on_host(&seq);

        if (ours) {
            seq.kv = staging_view(c->staging, turn, i, &seq.kv);
            seq.victim =
                step_is_listed(c, i, &args->rows) ? list->own + i * list->max_groups : NULL;
            s->seqs[p.n_seqs++] = seq;
        }
        bool ends = i + 1 == s->n || (!ours && seq.n_rows > 0);

        if (p.n_seqs > 0 && ends) {
            r = c->geometry.config.ops->rope_store(c->be, &p);
            p.n_seqs = 0;
        }
    }
    return r;
}

static int read_brought(struct cache *c, const struct kv_args *args)
{
    struct kv_step *s = c->step;
    int32_t turn = args->store & 1;

    for (int32_t i = 0; c->staging && i < s->n; i++) {
        struct ops_kv *kv = &s->seqs[i].kv;

        if (!on_host(&s->seqs[i])) {
            continue;
        }
        struct ops_kv brought = staging_view(c->staging, turn, i, kv);

        kv->pool = brought.pool;
        kv->pages = brought.pages;
        kv->max_pages = brought.max_pages;
        kv->part = NULL;
        if (args->attend->select && step_is_listed(c, i, &args->rows)) {
            s->layer_select[i].packed = true;
        }
    }
    return 0;
}

static uint64_t bytes(const struct geometry *s)
{
    return home_pages_bytes(s, true) + (s->staging.seq_bytes ? staging_bytes(&s->staging) : 0);
}

static int create(struct cache *c, struct error *reterr)
{
    int r = home_pages_create(c, true, reterr);

    return r || !c->geometry.staging.seq_bytes
               ? r
               : staging_create(&c->geometry.staging, c->be, &c->staging, reterr);
}

static void destroy(struct cache *c)
{
    staging_destroy(c->staging);
    home_pages_destroy(c, true);
}

const struct home_ops home_host = {.bytes = bytes,
                                   .create = create,
                                   .destroy = destroy,
                                   .attach = home_pages_attach,
                                   .export = home_pages_export,
                                   .at = {
                                       [HOME_FETCH] = fetch,
                                       [HOME_AFTER_STORE] = store_again,
                                       [HOME_BEFORE_ATTEND] = read_brought,
                                   }};
